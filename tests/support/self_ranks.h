/* self_ranks.h - ranks of a test program that starts itself again, as "PROGRAM --child RANKS ...".
 *
 * Two ranks go under mpirun, where it is there; four and more, and two under sanitizers, meet in a
 * file, where they sleep while they wait: those of mpirun keep cores from the others.
 */
#ifndef MF_TESTS_SELF_RANKS_H
#define MF_TESTS_SELF_RANKS_H

#include "executor/comm/comm.h"
#include "executor/comm/comm_launch.h"
#include "tests/support/sampled.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline bool self_uses_mpirun(int ranks) {
    return ranks == 2 && case_stride(2) == 1 && mf_comm_has_mpi() &&
           system("command -v mpirun >/dev/null 2>&1") == 0;
}

/* Ranks whose leaks nobody looks for. */
#define SELF_LEAKS "env ASAN_OPTIONS=detect_leaks=0 "

/* The command that starts so many ranks; `before` ("" or SELF_LEAKS) goes in front of the program
 * where there are several, `more` behind "--child RANKS". */
static inline void self_command(char *out, size_t size, const char *before, const char *program,
                                int ranks, const char *more) {
    if (ranks == 1) {
        snprintf(out, size, "%s --child 1 %s", program, more);
    } else if (self_uses_mpirun(ranks)) {
        snprintf(out, size,
                 "mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 "
                 "--mca btl_vader_single_copy_mechanism none -n %d %s --child %d %s",
                 ranks, program, ranks, more);
    } else {
        snprintf(out, size, "%s%s --launch %d %s", before, program, ranks, more);
    }
}

/* Of a program that was started with "--launch RANKS ...": its exit code; -1: it was not. */
static inline int self_launch(int argc, char **argv) {
    char *child[8] = {argv[0], (char[]){"--child"}};
    int code = 1;
    if (argc < 3 || argc > 7 || strcmp(argv[1], "--launch") != 0) {
        return -1;
    }
    for (int i = 2; i < argc; i++) {
        child[i] = argv[i];
    }
    return mf_comm_launch(atoi(argv[2]), child, NULL, &code, NULL) == MF_OK ? code : 1;
}

#endif
