/* goodput.h - what failures cost a long run. */
#ifndef MF_PLANNER_GOODPUT_H
#define MF_PLANNER_GOODPUT_H

typedef struct mf_goodput {
    double mtbf_s;     /* between failures of the whole job; 0 = they are not known, and left out */
    double interval_s; /* between checkpoints: the best one */
    double share;      /* of the time that makes progress, 0..1 */
} mf_goodput;

/* Share of a run of `gpus` GPUs that makes progress when one GPU's share fails once in mtbf_gpu_h
 * hours (0 = not known), a checkpoint stops the job for checkpoint_s, and restart_s pass from a
 * failure until it runs again.
 *
 * Checkpoints every T = sqrt(2 C M) seconds (C a checkpoint, M the time between failures: Young,
 * "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974). A failure
 * then costs T/2 of work on average and the restart R: share = (1 - (T/2 + R)/M) T/(T + C). */
mf_goodput mf_goodput_of(double gpus, double mtbf_gpu_h, double checkpoint_s, double restart_s);

#endif
