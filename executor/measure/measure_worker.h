/* measure_worker.h - runs the measuring program as a child process, with a pipe to it and one from
 * it.
 *
 * moefold itself does not link CUDA. `moefold-measure` does; it is built next to moefold where the
 * toolkit is present. They exchange lines of text, with fields separated by tabs:
 *     <- machine ...                        measure_machine.h; or: error CODE TEXT
 *     -> 17 <tab> gemm dtype=bf16 m=... <tab> CHOICE
 *                                           every point with its number and, where one is
 *                                           remembered, its algorithm; then end of file
 *     <- point 17 time_s low_s high_s samples sm_MHz temperature_C CHOICE
 *     <- energy 17 energy_J sustained_s     before its point, when energies are asked for
 *     <- refused 18 TEXT                    no kernel takes this shape
 *     <- end
 * The child is in its parent's process group, so that an interrupt from the keyboard ends both; the
 * reader keeps every point that it received before.
 */
#ifndef MF_EXECUTOR_MEASURE_WORKER_H
#define MF_EXECUTOR_MEASURE_WORKER_H

#include "executor/measure/measure.h"
#include "executor/measure/measure_machine.h"

typedef struct mf_measure_worker mf_measure_worker;

/* Path of the program: $MOEFOLD_MEASURE, else moefold-measure beside this executable. False when
 * there is none that can be run. */
bool mf_measure_worker_path(char *out, size_t size);

/* How to start it. */
typedef struct mf_measure_manner {
    bool shared; /* continues when other processes use the GPU */
    bool energy; /* also measures energies */
} mf_measure_manner;

/* Starts it and reads its machine. Errors: MF_LIBRARY, the error that it reported, MF_INPUT for a
 * line that cannot be parsed. */
mf_status mf_measure_worker_open(const char *path, mf_measure_manner manner,
                                 mf_measure_worker **out, mf_measure_machine *machine, mf_err *e);
/* Sends it the whole list, with the remembered algorithms [n] (NULL: none), and closes the pipe to
 * it. Errors: MF_IO. */
mf_status mf_measure_worker_give(mf_measure_worker *w, const mf_measure_list *l,
                                 const mf_measure_choice *choice, mf_err *e);

typedef enum mf_measure_word { MF_WORD_POINT, MF_WORD_REFUSED, MF_WORD_END } mf_measure_word;
/* Reads its next line; *index is the point's place in the list, *r its times. Errors: as open;
 * MF_LIBRARY when it ended too early. */
mf_status mf_measure_worker_next(mf_measure_worker *w, mf_measure_word *word, int64_t *index,
                                 mf_measure_reading *r, mf_err *e);
/* Ends it if it still runs, waits for it, and frees w; NULL is fine. */
void mf_measure_worker_close(mf_measure_worker *w);

#endif
