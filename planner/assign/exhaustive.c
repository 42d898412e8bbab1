/* exhaustive.c - every plan of a layout: where there are few, all of them are simulated.
 *
 * The integer program proves what no assignment is faster than; it does not tell apart assignments
 * that its paths cannot see to differ (the order of choices among like layers, host time between
 * blocks). So a layout of few plans is closed by playing them all.
 */
#include "planner/assign/assign.h"
#include "planner/space/space.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An odometer over splits and memory choices. */
typedef struct every {
    mf_assignment a;
    int *digit, *choices;                         /* [positions] */
    mf_memory_choice (*choice)[MF_CATALOGUE_MAX]; /* [positions] */
} every;

static void every_clear(every *x) {
    free(x->digit);
    free(x->choices);
    free(x->choice);
}

static mf_status every_init(every *x, const mf_partition *in, uint32_t pinned, mf_err *e) {
    size_t n = (size_t)in->positions;
    memset(x, 0, sizeof *x);
    x->digit = calloc(n, sizeof *x->digit);
    x->choices = calloc(n, sizeof *x->choices);
    x->choice = calloc(n, sizeof *x->choice);
    if (!x->digit || !x->choices || !x->choice) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    x->a.positions = in->positions;
    x->a.vstages = in->vstages;
    for (int v = 0; v < in->vstages; v++) {
        x->a.first[v] = v;
    }
    x->a.first[in->vstages] = in->positions;
    for (int i = 0; i < in->positions; i++) {
        mf_position_kind kind = mf_position_kind_of(in->model, i);
        x->choices[i] = 1;
        if (kind == MF_POS_LAYER || kind == MF_POS_MTP) {
            uint8_t class = kind == MF_POS_MTP
                                ? in->model->mtp_class
                                : in->model->layer_class[mf_position_index(in->model, i)];
            x->choices[i] = mf_catalogue(in->model, class, pinned, in->layout.memory, x->choice[i]);
        }
        x->a.memory[i] = x->choice[i][0];
    }
    return MF_OK;
}

static bool next_memory(every *x) {
    for (int i = 0; i < x->a.positions; i++) {
        bool more = ++x->digit[i] < x->choices[i];
        x->digit[i] = more ? x->digit[i] : 0;
        x->a.memory[i] = x->choice[i][x->digit[i]];
        if (more) {
            return true;
        }
    }
    return false;
}

/* The next way to split positions over virtual stages, none empty. */
static bool next_split(mf_assignment *a) {
    for (int v = a->vstages - 1; v > 0; v--) {
        if (a->first[v] < a->positions - (a->vstages - v)) {
            a->first[v]++;
            for (int u = v + 1; u < a->vstages; u++) {
                a->first[u] = a->first[u - 1] + 1;
            }
            return true;
        }
    }
    return false;
}

static bool few(const every *x, double most) {
    double count = 1.0;
    for (int k = 1; k < x->a.vstages; k++) {
        count *= (double)(x->a.positions - k) / k;
    }
    for (int i = 0; i < x->a.positions; i++) {
        count *= x->choices[i];
    }
    return count <= most;
}

mf_status mf_partition_try_all(const mf_partition *in, uint32_t pinned, int64_t most,
                               mf_partition_all *out, mf_err *e) {
    every x;
    const mf_evaluator *o = in->evaluator;
    memset(out, 0, sizeof *out);
    mf_status status = every_init(&x, in, pinned, e);
    out->complete = status == MF_OK && few(&x, (double)most);
    bool more = out->complete;
    while (more && status == MF_OK) {
        mf_step step;
        status = o->ops->step(o->self, &in->layout, &x.a, &step, e);
        out->tried++;
        if (status == MF_OK && step.fits && (!out->found || step.time_s < out->time_s)) {
            out->found = true;
            out->time_s = step.time_s;
            out->best = x.a;
        }
        more = next_memory(&x) || next_split(&x.a);
    }
    every_clear(&x);
    return status;
}
