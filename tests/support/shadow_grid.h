/* shadow_grid.h - layouts of the grid (tests/support/grid_draw.h) trained for some steps on CPU
 * ranks and on shadows of GPUs, op by op and from a graph, and held against each other to the bit.
 */
#ifndef MF_TESTS_SHADOW_GRID_H
#define MF_TESTS_SHADOW_GRID_H

#include "tests/support/grid_draw.h"
#include "tests/support/shadow_case.h"
#include "tests/support/shadow_hold.h"
#include "tests/support/shadow_races.h"

enum { SHADOW_GRID_STEPS = 2 };

/* How a test plays a layout. */
typedef struct shadow_grid_rules {
    bool slots; /* a fused dispatcher goes through slots on shadows, too, as on CPU ranks */
    /* Looks at what was started on a device; NULL: nobody does. */
    mf_status (*started)(const shadow_case *c, mf_err *e);
    /* Holds more against what CPU ranks left, on CPU ranks; NULL: nothing. */
    mf_status (*more)(const grid_model *m, const mf_layout *l, mf_device *host,
                      const shadow_bytes *want, mf_err *e);
} shadow_grid_rules;

static inline mf_status shadow_grid_sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    grid_case g = {.step = ((const shadow_case *)user)->step};
    return grid_sample(&g, index, tokens, e);
}

static inline void shadow_grid_pair(shadow_case *c, const mf_op *op, bool paired) {
    if (!paired && c->unpaired[0] == '\0') {
        snprintf(c->unpaired, sizeof c->unpaired, "%s", op->name);
    }
}

static inline void shadow_grid_before(void *user, const mf_exec_op *x) {
    shadow_case *c = user;
    char text[96];
    shadow_grid_pair(c, x->op, c->under_way == NULL);
    c->under_way = x->op;
    snprintf(text, sizeof text, "position %d %s", x->position, x->op->name);
    shadow_label(c->device, text);
}

static inline void shadow_grid_after(void *user, const mf_exec_op *x) {
    shadow_case *c = user;
    shadow_grid_pair(c, x->op, c->under_way == x->op);
    c->under_way = NULL;
}

static inline mf_status shadow_grid_open(shadow_case *c, const grid_model *m, const mf_layout *l,
                                         bool graph, const shadow_grid_rules *rules,
                                         mf_device *device, mf_err *e) {
    mf_exec_options o;
    memset(c, 0, sizeof *c);
    c->layout = *l;
    c->sample = shadow_grid_sample;
    mf_status s = grid_model_load(m, &c->model, e);
    grid_options(&o);
    o.graph = graph;
    c->layout.capacity_factor = m->capacity;
    c->layout.pad_to_capacity = m->padded;
    c->layout.aux_scope = MF_AUX_SEQUENCE;
    c->model.aux_loss_coef = c->model.experts > 0 ? o.aux_coef : 0.0;
    s = s == MF_OK ? shadow_case_program(c, device, e) : s;
    if (!device->ops->on_host) {
        o.before_op = shadow_grid_before;
        o.after_op = shadow_grid_after;
        o.user = c;
    }
    s = s == MF_OK ? shadow_case_start(c, device, &o, e) : s;
    return s == MF_OK && rules->started != NULL ? rules->started(c, e) : s;
}

/* Of the steps since they were recorded: MF_TOLERANCE, in words. */
static inline mf_status shadow_grid_races(mf_device *device, mf_err *e) {
    enum { RACES = 4 };
    shadow_race race[RACES];
    char text[MF_ERR_TEXT_MAX / 2];
    mf_status s = device->ops->wait(device, e);
    int64_t races = s == MF_OK ? shadow_find_races(device, race, RACES) : 0;
    if (races > 0) {
        shadow_race_text(device, &race[0], text, sizeof text);
        s = mf_err_set(e, MF_TOLERANCE, "%lld races: %s", (long long)races, text);
    }
    return s;
}

static inline bool shadow_grid_waits(const shadow_work *w, int64_t i) {
    for (int k = 0; k < w[i].waits; k++) {
        if (w[w[i].wait[k]].queue != MF_STREAM_COMPUTE && w[w[i].wait[k]].kind != SHADOW_JOIN) {
            return true;
        }
    }
    return false;
}

/* While a rank's clock of work runs, its queue of compute waits for no other queue and says nothing
 * to other ranks; one rank has no clock. MF_TOLERANCE, in words. */
static inline mf_status shadow_grid_clock(const mf_layout *l, mf_device *device, mf_err *e) {
    const shadow_work *w;
    const int64_t n = shadow_recorded(device, &w);
    int64_t turns = 0, kernels = 0;
    bool runs = false;
    for (int64_t i = 0; i < n; i++) {
        const bool turn = w[i].kind == SHADOW_work_clock;
        const bool begins = turn && ((const mf_kernel_work_clock *)w[i].args)->begins;
        if (w[i].queue != MF_STREAM_COMPUTE) {
            continue;
        }
        if ((turn && begins == runs) ||
            (runs && (w[i].kind == SHADOW_COMM || shadow_grid_waits(w, i)))) {
            return mf_err_set(e, MF_TOLERANCE, "%s %s while the clock of work %s", w[i].label,
                              w[i].name, runs ? "runs" : "stands");
        }
        turns += turn;
        kernels += runs && !turn;
        runs = turn ? begins : runs;
    }
    return !runs && (turns > 0) == (l->gpus > 1) && (kernels > 0) == (turns > 0)
               ? MF_OK
               : mf_err_set(e, MF_TOLERANCE, "%lld turns of the clock of work, %lld kernels",
                            (long long)turns, (long long)kernels);
}

/* The hooks that time ops were called before and after each op, in turns. */
static inline mf_status shadow_grid_pairs(const shadow_case *c, mf_err *e) {
    return c->unpaired[0] == '\0'
               ? MF_OK
               : mf_err_set(e, MF_TOLERANCE, "%s: before_op and after_op were not called in turns",
                            c->unpaired);
}

static inline mf_status shadow_grid_train(const grid_model *m, const mf_layout *l, bool graph,
                                          const shadow_grid_rules *rules, mf_device *device,
                                          shadow_bytes *out, mf_err *e) {
    shadow_case c;
    mf_status s = shadow_grid_open(&c, m, l, graph, rules, device, e);
    if (s == MF_OK && !device->ops->on_host) {
        shadow_drop_recording(device);
    }
    s = s == MF_OK ? shadow_steps(&c, SHADOW_GRID_STEPS, out, e) : s;
    s = s == MF_OK && !device->ops->on_host ? shadow_grid_races(device, e) : s;
    s = s == MF_OK && !device->ops->on_host ? shadow_grid_clock(l, device, e) : s;
    s = s == MF_OK ? shadow_grid_pairs(&c, e) : s;
    s = s == MF_OK ? shadow_keep_states(&c, out, e) : s;
    shadow_case_close(&c);
    return s;
}

/* The same on the CPU and on the shadow, op by op and as a graph. */
static inline mf_status shadow_grid_compare(const grid_model *m, const mf_layout *l,
                                            const shadow_grid_rules *rules, uint64_t seed,
                                            mf_err *e) {
    const shadow_options o = {.seed = seed,
                              .records = true,
                              .fused_sums = seed % 2 == 0,
                              .slots = rules->slots,
                              .timeout_s = 30.0};
    shadow_bytes want = {0}, got = {0};
    shadow_twin twin;
    mf_device *shadow = NULL;
    mf_status s = shadow_grid_train(m, l, false, rules, shadow_twin_open(&o, &twin), &want, e);
    if (s == MF_OK && rules->more != NULL) {
        s = rules->more(m, l, shadow_twin_open(&o, &twin), &want, e);
    }
    for (int graph = 0; graph < 2 && s == MF_OK; graph++) {
        shadow_bytes_clear(&got);
        s = shadow_open(&o, &shadow, e);
        s = s == MF_OK ? shadow_grid_train(m, l, graph == 1, rules, shadow, &got, e) : s;
        if (shadow != NULL) {
            shadow->ops->close(shadow);
        }
        s = s == MF_OK ? shadow_hold(&want, &got, e) : s;
        s = s == MF_OK ? s : mf_err_prefix(e, graph == 1 ? "graph" : "op by op");
    }
    shadow_bytes_clear(&want);
    shadow_bytes_clear(&got);
    return s;
}

#endif
