/* nccl_tests.h - what the readers of nccl-tests text and JSON share. Private to profiles/. */
#ifndef MF_PROFILES_NCCL_TESTS_H
#define MF_PROFILES_NCCL_TESTS_H

#include "profiles/store.h"

#include <stdbool.h>
#include <stddef.h>

/* One run of one collective, as far as it has been read. */
typedef struct mf_nccl_run {
    mf_store *store;
    const char *name; /* of the file, for texts */
    const char *gpu;
    const char *op; /* row of the ops table; NULL until known */
    char algo[16];  /* "" = left to NCCL */
    char versions[96];
    char date[16];
    int64_t ranks, nodes; /* 0 until known */
    int64_t samples;
    char type[24], redop[24]; /* of the first row; "" before it */
    int64_t points;
} mf_nccl_run;

/* One half (out-of-place or in-place) of a result row. */
typedef struct mf_nccl_result {
    double time_us, algbw_GBps, busbw_GBps;
    double wrong; /* NaN when results were not checked */
    bool present;
} mf_nccl_result;

/* Takes the collective from a text that names its program ("/opt/all_reduce_perf"). Texts without a
 * program leave the run alone. Errors: MF_INPUT (no position) for another collective than before
 * and for programs that measure none of our ops. */
mf_status mf_nccl_name_program(mf_nccl_run *run, const char *text, mf_err *e);

/* The same from the name of a file that nobody named after the program but after the collective:
 * "runs/all_reduce.txt". Takes nothing from other names, and nothing when the collective is known.
 */
void mf_nccl_name_file(mf_nccl_run *run, const char *path);

/* "2.29.3" of NCCL's integer version into the run's versions. */
void mf_nccl_name_version(mf_nccl_run *run, int64_t code);

/* Checks a row and stores its points. Errors: MF_INPUT (no position). */
mf_status mf_nccl_add_row(mf_nccl_run *run, double size_B, const char *type, const char *redop,
                          const mf_nccl_result half[2], mf_err *e);

mf_status mf_nccl_read_text(mf_nccl_run *run, const char *text, size_t length, mf_err *e);
mf_status mf_nccl_read_json(mf_nccl_run *run, const char *text, size_t length, mf_err *e);

#endif
