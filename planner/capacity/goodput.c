/* goodput.c - what failures cost a long run. */
#include "planner/capacity/goodput.h"

#include <math.h>

mf_goodput mf_goodput_of(double gpus, double mtbf_gpu_h, double checkpoint_s, double restart_s) {
    mf_goodput g = {.share = 1};
    if (mtbf_gpu_h <= 0) {
        return g;
    }
    g.mtbf_s = mtbf_gpu_h * 3600 / gpus;
    g.interval_s = sqrt(2 * checkpoint_s * g.mtbf_s);
    double running = checkpoint_s > 0 ? g.interval_s / (g.interval_s + checkpoint_s) : 1;
    double lost = (g.interval_s / 2 + restart_s) / g.mtbf_s;
    g.share = fmax(0, 1 - lost) * running;
    return g;
}
