/* hf_moe.h - of tests/support/hf_model.h: dense and shared MLPs, the router, routed experts,
 * forward and backward. */
#ifndef MF_TESTS_HF_MOE_H
#define MF_TESTS_HF_MOE_H

#include "tests/support/hf_base.h"

#include "kernels/moe/gate.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/router.h"
#include "kernels/moe/swiglu.h"

static mf_kernel_swiglu_shape hf_swiglu(int64_t rows, int64_t cols, const float *prob) {
    mf_kernel_swiglu_shape s = {.kind = MF_SWIGLU_SILU, .rows = rows, .cols = cols, .prob = prob};
    return s;
}

static void hf_mlp_run(hf_model *h, hf_mlp *m, const float *x) {
    int64_t t = h->rows, hid = h->m.hidden, f = m->width;
    m->gate_up = hf_floats(h, t * 2 * f), m->act = hf_floats(h, t * f);
    m->out = hf_floats(h, t * hid);
    hf_linear(hf_need(h, hf_join(h, m->prefix, "gate_proj.weight")), t, f, hid, x, m->gate_up,
              2 * f);
    hf_linear(hf_need(h, hf_join(h, m->prefix, "up_proj.weight")), t, f, hid, x, m->gate_up + f,
              2 * f);
    mf_kernel_swiglu a = {.shape = hf_swiglu(t, f, NULL), .gate_up = m->gate_up, .y = m->act};
    assert_ok(mf_kernel_swiglu_forward(&a, NULL));
    hf_linear(hf_need(h, hf_join(h, m->prefix, "down_proj.weight")), t, hid, f, m->act, m->out,
              hid);
}

/* dx += */
static void hf_mlp_back(hf_model *h, hf_mlp *m, const float *x, const float *dy, float *dx) {
    int64_t t = h->rows, hid = h->m.hidden, f = m->width;
    float *dact = hf_floats(h, t * f), *dgu = hf_floats(h, t * 2 * f);
    hf_linear_back(hf_need(h, hf_join(h, m->prefix, "down_proj.weight")), t, hid, f, m->act, dy,
                   hid, dact, false);
    mf_kernel_swiglu_grad g = {
        .shape = hf_swiglu(t, f, NULL), .gate_up = m->gate_up, .dy = dact, .dgate_up = dgu};
    assert_ok(mf_kernel_swiglu_backward(&g, NULL));
    hf_linear_back(hf_need(h, hf_join(h, m->prefix, "gate_proj.weight")), t, f, hid, x, dgu, 2 * f,
                   dx, true);
    hf_linear_back(hf_need(h, hf_join(h, m->prefix, "up_proj.weight")), t, f, hid, x, dgu + f,
                   2 * f, dx, true);
}

/* Weight `which` (0 gate, 1 up, 2 down) of expert x. */
static hf_param *hf_expert(hf_model *h, int64_t l, int x, int which) {
    static const char *const mixtral[] = {"w1", "w3", "w2"};
    static const char *const others[] = {"gate_proj", "up_proj", "down_proj"};
    bool is_mixtral = strcmp(h->m.family, "mixtral") == 0;
    char rest[96];
    snprintf(rest, sizeof rest, "%s.experts.%d.%s.weight", is_mixtral ? "block_sparse_moe" : "mlp",
             x, is_mixtral ? mixtral[which] : others[which]);
    return hf_need(h, hf_name(h, l, rest));
}

static hf_param *hf_router_weight(hf_model *h, int64_t l) {
    hf_param *p = hf_find(h, hf_name(h, l, "mlp.gate.weight"));
    return p ? p : hf_need(h, hf_name(h, l, "block_sparse_moe.gate.weight"));
}

static mf_route_score hf_score(const hf_model *h) {
    return h->m.router_score == MF_ROUTER_SIGMOID        ? MF_ROUTE_SIGMOID
           : h->m.router_score == MF_ROUTER_TOPK_SOFTMAX ? MF_ROUTE_TOPK_SOFTMAX
                                                         : MF_ROUTE_SOFTMAX;
}

static void hf_route(hf_model *h, hf_layer *s, int64_t l) {
    int64_t t = h->rows, n = h->m.experts, k = h->m.top_k;
    hf_param *bias = hf_find(h, hf_name(h, l, "mlp.gate.e_score_correction_bias"));
    s->logits = hf_floats(h, t * n), s->scores = hf_floats(h, t * n);
    s->prob = hf_floats(h, t * k), s->index = hf_bytes(h, (size_t)(t * k) * 4);
    hf_linear(hf_router_weight(h, l), t, n, h->m.hidden, s->h2, s->logits, n);
    mf_kernel_router r = {.rows = t,
                          .experts = n,
                          .top_k = k,
                          .score = hf_score(h),
                          .normalise = h->m.norm_topk,
                          .scaling = (float)h->m.routed_scaling,
                          .groups = h->m.n_group,
                          .group_topk = h->m.topk_group,
                          .group_score = MF_ROUTE_GROUP_TOP2,
                          .logits = s->logits,
                          .bias = bias ? bias->w : NULL,
                          .scores = s->scores,
                          .prob = s->prob,
                          .index = s->index};
    assert_ok(mf_kernel_router_forward(&r, NULL));
    float *sum = hf_floats(h, n);
    s->count = hf_floats(h, n), s->aux_weight = hf_floats(h, n), s->aux = 0.0;
    mf_kernel_router_stats st = {.rows = t,
                                 .experts = n,
                                 .top_k = k,
                                 .score = hf_score(h),
                                 .scopes = 1,
                                 .scores = s->scores,
                                 .index = s->index,
                                 .count = s->count,
                                 .prob_sum = sum};
    assert_ok(mf_kernel_router_stats_add(&st, NULL));
    mf_kernel_router_aux au = {.experts = n,
                               .top_k = k,
                               .scopes = 1,
                               .tokens = (double)t,
                               .weight_scale = (float)h->aux_coefficient,
                               .count = s->count,
                               .prob_sum = sum,
                               .aux = &s->aux,
                               .weight = s->aux_weight};
    assert_ok(mf_kernel_router_aux_loss(&au, NULL));
}

static void hf_experts(hf_model *h, hf_layer *s, int64_t l) {
    int64_t t = h->rows, n = h->m.experts, k = h->m.top_k, hid = h->m.hidden, f = h->m.moe_ffn;
    int64_t rows = t * k;
    int32_t overflow;
    s->counts = hf_bytes(h, (size_t)n * 4), s->offsets = hf_bytes(h, (size_t)(n + 1) * 4);
    s->row_of_slot = hf_bytes(h, (size_t)rows * 4), s->slot_of_row = hf_bytes(h, (size_t)rows * 4);
    mf_kernel_permute_map map = {.tokens = t,
                                 .top_k = k,
                                 .experts = n,
                                 .align = 1,
                                 .rows_max = rows,
                                 .index = s->index,
                                 .counts = s->counts,
                                 .offsets = s->offsets,
                                 .row_of_slot = s->row_of_slot,
                                 .slot_of_row = s->slot_of_row,
                                 .overflow = &overflow};
    assert_ok(mf_kernel_permute_map_build(&map, NULL));
    s->rows = hf_floats(h, rows * hid), s->row_prob = hf_floats(h, rows);
    mf_kernel_permute p = {.rows = rows,
                           .cols = hid,
                           .top_k = k,
                           .slot_of_row = s->slot_of_row,
                           .x = s->h2,
                           .out = s->rows};
    assert_ok(mf_kernel_permute_forward(&p, NULL));
    mf_kernel_permute_scalar ps = {
        .rows = rows, .map = s->slot_of_row, .src = s->prob, .out = s->row_prob};
    assert_ok(mf_kernel_permute_scalars(&ps, NULL));
    s->gate_up = hf_floats(h, rows * 2 * f), s->act = hf_floats(h, rows * f);
    s->out = hf_floats(h, rows * hid);
    for (int x = 0; x < n; x++) {
        int64_t o = s->offsets[x], c = s->counts[x];
        hf_linear(hf_expert(h, l, x, 0), c, f, hid, s->rows + o * hid, s->gate_up + o * 2 * f,
                  2 * f);
        hf_linear(hf_expert(h, l, x, 1), c, f, hid, s->rows + o * hid, s->gate_up + o * 2 * f + f,
                  2 * f);
    }
    mf_kernel_swiglu a = {
        .shape = hf_swiglu(rows, f, s->row_prob), .gate_up = s->gate_up, .y = s->act};
    assert_ok(mf_kernel_swiglu_forward(&a, NULL));
    for (int x = 0; x < n; x++) {
        int64_t o = s->offsets[x];
        hf_linear(hf_expert(h, l, x, 2), s->counts[x], hid, f, s->act + o * f, s->out + o * hid,
                  hid);
    }
}

/* y = routed experts + shared expert (+ x2 by the caller) */
static void hf_moe(hf_model *h, hf_layer *s, int64_t l, float *y) {
    int64_t t = h->rows, hid = h->m.hidden;
    hf_route(h, s, l);
    hf_experts(h, s, l);
    float *add = NULL;
    if (h->m.shared_ffn > 0) {
        hf_mlp_run(h, &s->shared, s->h2);
        add = s->shared.out;
    }
    if (h->m.shared_gate) {
        s->gate = hf_floats(h, t);
        add = hf_floats(h, t * hid);
        hf_linear(hf_need(h, hf_name(h, l, "mlp.shared_expert_gate.weight")), t, 1, hid, s->h2,
                  s->gate, 1);
        mf_kernel_gate g = {.rows = t, .cols = hid, .gate = s->gate, .x = s->shared.out, .y = add};
        assert_ok(mf_kernel_gate_forward(&g, NULL));
    }
    mf_kernel_unpermute u = {.tokens = t,
                             .cols = hid,
                             .top_k = h->m.top_k,
                             .row_of_slot = s->row_of_slot,
                             .in = s->out,
                             .add = add,
                             .y = y};
    assert_ok(mf_kernel_unpermute_forward(&u, NULL));
}

/* dh2 += through the routed experts; dprob by slot. */
static void hf_experts_back(hf_model *h, hf_layer *s, int64_t l, const float *dy, float *dh2,
                            float *dprob) {
    int64_t t = h->rows, k = h->m.top_k, hid = h->m.hidden, f = h->m.moe_ffn, rows = t * k;
    float *dout = hf_floats(h, rows * hid), *dact = hf_floats(h, rows * f);
    float *dgu = hf_floats(h, rows * 2 * f), *drow = hf_floats(h, rows);
    mf_kernel_permute p = {
        .rows = rows, .cols = hid, .top_k = k, .slot_of_row = s->slot_of_row, .x = dy, .out = dout};
    assert_ok(mf_kernel_permute_forward(&p, NULL));
    for (int x = 0; x < h->m.experts; x++) {
        int64_t o = s->offsets[x];
        hf_linear_back(hf_expert(h, l, x, 2), s->counts[x], hid, f, s->act + o * f, dout + o * hid,
                       hid, dact + o * f, false);
    }
    mf_kernel_swiglu_grad g = {.shape = hf_swiglu(rows, f, s->row_prob),
                               .gate_up = s->gate_up,
                               .dy = dact,
                               .dgate_up = dgu,
                               .dprob = drow};
    assert_ok(mf_kernel_swiglu_backward(&g, NULL));
    for (int x = 0; x < h->m.experts; x++) {
        int64_t o = s->offsets[x], c = s->counts[x];
        hf_linear_back(hf_expert(h, l, x, 0), c, f, hid, s->rows + o * hid, dgu + o * 2 * f, 2 * f,
                       dout + o * hid, false);
        hf_linear_back(hf_expert(h, l, x, 1), c, f, hid, s->rows + o * hid, dgu + o * 2 * f + f,
                       2 * f, dout + o * hid, true);
    }
    mf_kernel_unpermute u = {.tokens = t,
                             .cols = hid,
                             .top_k = k,
                             .row_of_slot = s->row_of_slot,
                             .in = dout,
                             .add = dh2,
                             .y = dh2};
    assert_ok(mf_kernel_unpermute_forward(&u, NULL));
    mf_kernel_permute_scalar ps = {.rows = rows, .map = s->row_of_slot, .src = drow, .out = dprob};
    assert_ok(mf_kernel_permute_scalars(&ps, NULL));
}

static void hf_moe_back(hf_model *h, hf_layer *s, int64_t l, const float *dy, float *dh2) {
    int64_t t = h->rows, n = h->m.experts, hid = h->m.hidden;
    float *dprob = hf_floats(h, t * h->m.top_k), *dlogits = hf_floats(h, t * n);
    hf_experts_back(h, s, l, dy, dh2, dprob);
    mf_kernel_router_grad g = {.rows = t,
                               .experts = n,
                               .top_k = h->m.top_k,
                               .score = hf_score(h),
                               .normalise = h->m.norm_topk,
                               .scaling = (float)h->m.routed_scaling,
                               .scores = s->scores,
                               .index = s->index,
                               .dprob = dprob,
                               .aux_weight = h->aux_coefficient > 0.0 ? s->aux_weight : NULL,
                               .dlogits = dlogits};
    assert_ok(mf_kernel_router_backward(&g, NULL));
    hf_linear_back(hf_router_weight(h, l), t, n, hid, s->h2, dlogits, n, dh2, true);
    const float *dshared = dy;
    if (h->m.shared_gate) {
        float *dx = hf_floats(h, t * hid), *dgate = hf_floats(h, t);
        mf_kernel_gate_grad gg = {.rows = t,
                                  .cols = hid,
                                  .gate = s->gate,
                                  .x = s->shared.out,
                                  .dy = dy,
                                  .dx = dx,
                                  .dgate = dgate};
        assert_ok(mf_kernel_gate_backward(&gg, NULL));
        hf_linear_back(hf_need(h, hf_name(h, l, "mlp.shared_expert_gate.weight")), t, 1, hid, s->h2,
                       dgate, 1, dh2, true);
        dshared = dx;
    }
    if (h->m.shared_ffn > 0) {
        hf_mlp_back(h, &s->shared, s->h2, dshared, dh2);
    }
}

#endif
