/* anew.c - how much less time a step's first micro-batch takes, block by block. */
#include "simulator/anew.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* l NULL: gradients are not reduced after each block. */
static double anew_s(const mf_cost *cost, const mf_model *m, const mf_layout *l, const mf_block *b,
                     int i) {
    const bool makes = mf_cost_software(cost)->first_anew > 0 && mf_op_makes_gradient(m, b, i) &&
                       (l == NULL || !mf_layout_shards_gradients(l, mf_op_gradient_side(b, i)));
    return makes ? mf_cost_anew_s(cost, &b->ops[i]) : 0;
}

double mf_anew_op_s(const mf_cost *cost, const mf_model *m, const mf_layout *l, const mf_block *b,
                    int i) {
    return anew_s(cost, m, l, b, i);
}

double mf_anew_op_J(const mf_cost *cost, const mf_model *m, const mf_layout *l, const mf_block *b,
                    int i, double clock) {
    if (!(mf_anew_op_s(cost, m, l, b, i) > 0)) {
        return 0;
    }
    mf_op anew = b->ops[i];
    anew.flags |= MF_OPF_ANEW;
    return mf_cost_energy_J(cost, &b->ops[i], 1, 0, clock) -
           mf_cost_energy_J(cost, &anew, 1, 0, clock);
}

void mf_anew_sides_s(const mf_cost *cost, const mf_model *m, const mf_block *b, double out[2]) {
    out[0] = out[1] = 0;
    for (int i = b->nforward; i < b->nops; i++) {
        const double op_s = anew_s(cost, m, NULL, b, i);
        if (op_s > 0) {
            out[mf_op_gradient_side(b, i)] += op_s;
        }
    }
}

/* How much of an op's saving has been made by a given moment of the block. */
static double saved_s(const mf_op_time *op, double saves_s, double at_s) {
    const double done = (at_s - op->start_s) / (op->end_s - op->start_s);
    return saves_s * fmin(1, fmax(0, done));
}

/* Every op starts and ends earlier by what the ops before it save, whichever streams they run on.
 * saves_s[op]. */
static void move_ops(mf_block_time *t, int side, const double *saves_s, const mf_op_time *was) {
    for (int i = 0; i < t->nops; i++) {
        for (int k = 0; k < t->nops; k++) {
            const double saves = was[k].side == side ? saves_s[was[k].op] : 0;
            if (saves > 0) {
                t->op[i].start_s -= saved_s(&was[k], saves, was[i].start_s);
                t->op[i].end_s -= saved_s(&was[k], saves, was[i].end_s);
            }
        }
    }
}

mf_status mf_anew_take_off(const mf_cost *cost, const mf_model *m, const mf_layout *l,
                           const mf_block *b, int side, mf_block_time *t, mf_err *e) {
    const size_t kept = t->op != NULL ? (size_t)t->nops : 0;
    double *saves_s = calloc((size_t)b->nops + 1, sizeof *saves_s), sum_s = 0;
    mf_op_time *was = malloc((kept + 1) * sizeof *was);
    if (saves_s == NULL || was == NULL) {
        free(saves_s);
        free(was);
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    for (int i = b->nforward; i < b->nops; i++) {
        saves_s[i] = mf_anew_op_s(cost, m, l, b, i);
        sum_s += saves_s[i];
    }
    if (sum_s > 0) {
        const double part = (t->gpu_time_s - sum_s) / t->gpu_time_s;
        t->gpu_time_s -= sum_s;
        t->time_s = fmax(t->time_s - sum_s, fmax(t->gpu_time_s, t->host_s));
        t->low_s *= part;
        t->high_s *= part;
        t->compute_s -= sum_s;
        t->class_s[MF_BD_COMPUTE] -= sum_s;
        if (kept > 0) {
            memcpy(was, t->op, kept * sizeof *was);
            move_ops(t, side, saves_s, was);
        }
    }
    free(saves_s);
    free(was);
    return MF_OK;
}
