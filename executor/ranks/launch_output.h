/* launch_output.h - what ranks print comes by way of their launcher: mpirun drops without a word
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
/* In the child: `into` becomes its standard output. It keeps `from` open, so that the end of its
 * launcher is no broken pipe to it. */
void mf_launch_output_child(const mf_launch_output *o);
/* Passes on what comes within `ms` milliseconds. */
void mf_launch_output_pass(mf_launch_output *o, int ms);
/* Passes on what is there, and closes. */
void mf_launch_output_close(mf_launch_output *o);

#endif
