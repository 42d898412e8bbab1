/* launch_output.h - passes on what ranks print. The launcher does it because mpirun silently drops
 * what it cannot write.
 */
#ifndef MF_EXECUTOR_LAUNCH_OUTPUT_H
#define MF_EXECUTOR_LAUNCH_OUTPUT_H

#include "core/base/status.h"

#include <stdio.h>

typedef struct mf_launch_output {
    int from, into; /* ends of a pipe: ours, and the standard output of the ranks' starter */
    FILE *to;
    int failed; /* errno of the first write that did */
} mf_launch_output;

/* Errors: MF_LIBRARY. */
mf_status mf_launch_output_open(FILE *to, mf_launch_output *out, mf_err *e);
/* In the child: `into` becomes its standard output. `from` stays open there, so that the child gets
 * no broken pipe when its launcher ends. */
void mf_launch_output_child(const mf_launch_output *o);
/* Passes on what arrives within `ms` milliseconds. */
void mf_launch_output_pass(mf_launch_output *o, int ms);
/* Passes on what has arrived, and closes. */
void mf_launch_output_close(mf_launch_output *o);

#endif
