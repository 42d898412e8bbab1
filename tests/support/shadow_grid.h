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

/* What a fused dispatcher goes through on shadows: slots, as on CPU ranks, or windows in the peers'
 * memory, which every rank must have then. */
typedef enum shadow_grid_way { SHADOW_GRID_SLOTS, SHADOW_GRID_WINDOWS } shadow_grid_way;

static inline mf_status shadow_grid_sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    grid_case g = {.step = ((const shadow_case *)user)->step};
    return grid_sample(&g, index, tokens, e);
}

static inline void shadow_grid_label(void *user, const mf_exec_op *x) {
    char text[96];
    snprintf(text, sizeof text, "position %d %s", x->position, x->op->name);
    shadow_label(user, text);
}

/* Does an exchange of the program put rows into the order of experts, or take them out of it? */
static inline bool shadow_grid_orders(const mf_program *p) {
    bool any = false;
    for (int i = 0; i < p->nblocks; i++) {
        for (int k = 0; k < p->blocks[i]->nops; k++) {
            const mf_op *op = &p->blocks[i]->ops[k];
            any |= (op->kind == MF_OP_DISPATCH || op->kind == MF_OP_COMBINE) &&
                   op->dim[MF_OP_DIM_ORDERED] > 0;
        }
    }
    return any;
}

static inline mf_status shadow_grid_open(shadow_case *c, const grid_model *m, const mf_layout *l,
                                         bool graph, shadow_grid_way way, mf_device *device,
                                         mf_err *e) {
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
    if (s == MF_OK && way == SHADOW_GRID_WINDOWS &&
        shadow_grid_orders(c->program) != (l->traits == 0 && l->etp == 1)) {
        s = mf_err_set(e, MF_TOLERANCE, "the program is not the one that was wanted");
    }
    if (!device->ops->on_host) {
        o.before_op = shadow_grid_label;
        o.user = device;
    }
    s = s == MF_OK ? shadow_case_start(c, device, &o, e) : s;
    const bool window = s == MF_OK && mf_exec_window_B(c->exec) > 0;
    return s == MF_OK && way == SHADOW_GRID_WINDOWS && window == device->ops->on_host
               ? mf_err_set(e, MF_TOLERANCE, "dispatch: %s", mf_exec_dispatch_text(c->exec))
               : s;
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

static inline mf_status shadow_grid_train(const grid_model *m, const mf_layout *l, bool graph,
                                          shadow_grid_way way, mf_device *device, shadow_bytes *out,
                                          mf_err *e) {
    shadow_case c;
    mf_status s = shadow_grid_open(&c, m, l, graph, way, device, e);
    if (s == MF_OK && !device->ops->on_host) {
        shadow_drop_recording(device);
    }
    s = s == MF_OK ? shadow_steps(&c, SHADOW_GRID_STEPS, out, e) : s;
    s = s == MF_OK && !device->ops->on_host ? shadow_grid_races(device, e) : s;
    s = s == MF_OK ? shadow_keep_states(&c, out, e) : s;
    shadow_case_close(&c);
    return s;
}

/* CPU ranks by a program whose exchanges leave rows as they came, which a trait asks for that says
 * something of prices alone. */
static inline mf_status shadow_grid_hold_order(const grid_model *m, const mf_layout *l,
                                               mf_device *host, const shadow_bytes *want,
                                               mf_err *e) {
    mf_layout apart = *l;
    shadow_bytes got = {0};
    apart.traits = MF_TRAIT_PIECES_TOGETHER;
    mf_status s = shadow_grid_train(m, &apart, false, SHADOW_GRID_WINDOWS, host, &got, e);
    s = s == MF_OK ? shadow_hold_programs(want, &got, e) : s;
    shadow_bytes_clear(&got);
    return s == MF_OK ? s : mf_err_prefix(e, "permute and unpermute");
}

/* The same on the CPU and on the shadow, op by op and as a graph; through windows also by CPU ranks
 * with permute and unpermute between exchanges and experts. */
static inline mf_status shadow_grid_compare(const grid_model *m, const mf_layout *l,
                                            shadow_grid_way way, uint64_t seed, mf_err *e) {
    const shadow_options o = {.seed = seed,
                              .records = true,
                              .fused_sums = seed % 2 == 0,
                              .slots = way == SHADOW_GRID_SLOTS,
                              .timeout_s = 30.0};
    shadow_bytes want = {0}, got = {0};
    shadow_twin twin;
    mf_device *shadow = NULL;
    mf_status s = shadow_grid_train(m, l, false, way, shadow_twin_open(&o, &twin), &want, e);
    if (s == MF_OK && way == SHADOW_GRID_WINDOWS) {
        s = shadow_grid_hold_order(m, l, shadow_twin_open(&o, &twin), &want, e);
    }
    for (int graph = 0; graph < 2 && s == MF_OK; graph++) {
        shadow_bytes_clear(&got);
        s = shadow_open(&o, &shadow, e);
        s = s == MF_OK ? shadow_grid_train(m, l, graph == 1, way, shadow, &got, e) : s;
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
