/* trace.h - private to the simulator: a step as a Chrome trace (also read by Perfetto), streamed.
 *
 * One process a rank, one thread a stream; slices nest: a chunk's pass holds its blocks, a block
 * its compute ops; communication and copies lie on the threads of their own streams; an arrow leads
 * from a message to the pass that waits for it, where both are drawn; counter tracks hold the
 * memory of the rank and, where energies of its GPU or of another Hopper were measured, power and
 * clock. Processes stand
 * in the order of ranks, threads in that of streams. Times are those of the simulation, in
 * nanoseconds.
 */
#ifndef MF_SIMULATOR_TRACE_H
#define MF_SIMULATOR_TRACE_H

#include "simulator/step.h"

typedef struct mf_trace mf_trace;

/* ranks: how many of each stage are played; of those of the job, the first `traced` are drawn, the
 * first of each stage when 0. Ops are drawn in every micro-batch while that gives about `most_ops`
 * slices at most (0: 200,000), else in the first two and the last one. Where the blocks alone give
 * more than a quarter of that, of other passes than those of the first micro-batch and the last one
 * neither blocks nor messages are drawn, and power and clock as means over the pass; ops of the
 * last one are left out, too, where they and the passes would be far more than that. Where even
 * passes are more than 0.3 of it, only those at either end of a stage's step and those of the first
 * and last micro-batch are slices of their own; the others stand in stretches of several ("12
 * passes", category "passes", which a long wait ends, with the time that the stage waits in them),
 * with the means of power and clock and the most memory. otherData.ops, .blocks and .passes tell.
 * The file stays the caller's. Errors: MF_NOMEM. */
mf_status mf_trace_open(FILE *f, const mf_program *p, const mf_schedule *s, int64_t ranks,
                        int64_t traced, int64_t most_ops, mf_trace **out, mf_err *e);
/* Draws power (W: idle, and the energy of each block's ops over its time, at most what the GPU
 * settles at) and the share of their highest clock that its products keep under the power cap, as
 * counters from here on. cost is borrowed. Errors: MF_NOMEM. */
mf_status mf_trace_power(mf_trace *t, const mf_cost *cost, mf_err *e);
/* Draws an instance. */
void mf_trace_draw(mf_trace *t, const mf_block_instance *i);
/* Memory track of a stage's ranks: bytes[i] from start_s[i] on; start_s < 0 is left out. */
void mf_trace_memory(mf_trace *t, int64_t stage, const double *start_s, const double *bytes,
                     int64_t count);
/* Draws the host's time at the end of a step, when all ranks are done. */
void mf_trace_host(mf_trace *t, double start_s, double end_s);
/* Ends the file's text and frees the trace (NULL is fine). Errors: MF_IO. */
mf_status mf_trace_close(mf_trace *t, mf_err *e);

#endif
