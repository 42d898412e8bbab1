/* measure_worker.h - the program that measures, as a child process with a pipe to it and from it.
 *
 * moefold itself links no CUDA: `moefold-measure`, which lies beside it where the toolkit was there
 * when it was built, does. What they say to each other is lines of text, fields parted by tabs:
 *     <- machine ...                        measure_machine.h; or: error CODE TEXT
 *     -> 17 <tab> gemm dtype=bf16 m=... <tab> CHOICE
 *                                           every point with its number and, where one is
 *                                           remembered, its algorithm; then end of file
 *     <- point 17 time_s low_s high_s samples sm_MHz temperature_C CHOICE
 *     <- energy 17 energy_J sustained_s     in front of its point, where energies are asked for
 *     <- refused 18 TEXT                    no kernel takes this shape
 *     <- end
 * The child is in the process group of its parent, so that an interrupt from the keyboard ends both
 * sides; every point that came out before is kept by the reader.
 */
#ifndef MF_EXECUTOR_MEASURE_WORKER_H
#define MF_EXECUTOR_MEASURE_WORKER_H

#include "executor/measure/measure.h"
#include "executor/measure/measure_machine.h"

typedef struct mf_measure_worker mf_measure_worker;

/* Path of the program: $MOEFOLD_MEASURE, else moefold-measure beside this executable. False when
 * there is none that can be run. */
bool mf_measure_worker_path(char *out, size_t size);

/* How it is started. */
typedef struct mf_measure_manner {
    bool shared; /* it goes on when other processes come to the GPU */
    bool energy; /* it measures energies, too */
} mf_measure_manner;

/* Starts it and reads its machine. Errors: MF_LIBRARY, what it said itself, MF_INPUT for talk that
 * is not understood. */
mf_status mf_measure_worker_open(const char *path, mf_measure_manner manner,
                                 mf_measure_worker **out, mf_measure_machine *machine, mf_err *e);
/* Hands it the whole list, with the remembered algorithms [n] (NULL: none); nothing more goes to
 * it. MF_IO. */
mf_status mf_measure_worker_give(mf_measure_worker *w, const mf_measure_list *l,
                                 const mf_measure_choice *choice, mf_err *e);

typedef enum mf_measure_word { MF_WORD_POINT, MF_WORD_REFUSED, MF_WORD_END } mf_measure_word;
/* The next thing that it says; *index is the point's place in the list, *r its times. Errors: as
 * open; MF_LIBRARY when it ended in the middle. */
mf_status mf_measure_worker_next(mf_measure_worker *w, mf_measure_word *word, int64_t *index,
                                 mf_measure_reading *r, mf_err *e);
/* Ends it if it still runs, and waits for it; NULL is fine. */
void mf_measure_worker_close(mf_measure_worker *w);

#endif
