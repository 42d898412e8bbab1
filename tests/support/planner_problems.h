/* planner_problems.h - random planning problems, small enough to try every plan: models, clusters,
 * software, spaces, and any layout and assignment in them. */
#ifndef MF_TESTS_PLANNER_PROBLEMS_H
#define MF_TESTS_PLANNER_PROBLEMS_H

#include "planner/search/search.h"
#include "tests/support/models.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

static inline bool rng_chance(rng *r, int percent) {
    return rng_range(r, 1, 100) <= percent;
}

static inline double rng_between(rng *r, double lo, double hi) {
    return lo + (hi - lo) * (double)(rng_next(r) >> 11) * 0x1p-53;
}

/* How many problems to try: $MF_CASES, else as many as go in a few seconds. */
static inline int planner_cases(int usual, int sanitized) {
    const char *text = getenv("MF_CASES");
    return text ? (int)strtol(text, NULL, 10) : cases_sampled() ? sanitized : usual;
}

/* --- models ----------------------------------------------------------------------------------- */

/* Classes of the layers: all alike, dense ones in front, alternating, or in any order. */
static inline void planner_layer_classes(rng *r, mf_model *m) {
    bool moe = m->experts > 0, windows = rng_chance(r, 30);
    m->classes = 1;
    m->layer_classes[0] = (mf_layer_class){.ffn = moe ? MF_FFN_MOE : MF_FFN_DENSE};
    if (windows) {
        m->layer_classes[m->classes++] =
            (mf_layer_class){.ffn = m->layer_classes[0].ffn, .window = 128};
    }
    if (moe && rng_chance(r, 40)) {
        m->layer_classes[m->classes++] = (mf_layer_class){.ffn = MF_FFN_DENSE};
    }
    int64_t way = rng_range(r, 0, 2);
    for (int i = 0; i < m->layers; i++) {
        int64_t front = i == 0 ? m->classes - 1 : 0;
        m->layer_class[i] = (uint8_t)(way == 0   ? front
                                      : way == 1 ? i % m->classes
                                                 : rng_range(r, 0, m->classes - 1));
    }
    m->mtp_class = 0;
}

static inline mf_model planner_model(rng *r, int64_t max_layers) {
    mf_model m = test_model_moe(rng_chance(r, 50));
    m.layers = rng_range(r, 1, max_layers);
    m.mtp_layers = rng_chance(r, 70) ? 0 : rng_range(r, 1, 2);
    m.hidden = 256 * rng_range(r, 1, 8);
    m.ffn = 512 * rng_range(r, 1, 8);
    m.vocab = rng_chance(r, 50) ? 4096 : 32000;
    m.tied_embeddings = rng_chance(r, 30);
    if (rng_chance(r, 35)) {
        m.experts = m.top_k = m.moe_ffn = m.shared_ffn = 0;
    } else {
        m.experts = rng_chance(r, 50) ? 8 : 32;
        m.top_k = rng_range(r, 1, 4);
        m.moe_ffn = 256 * rng_range(r, 1, 6);
        m.shared_ffn = rng_chance(r, 50) ? 512 : 0;
    }
    planner_layer_classes(r, &m);
    snprintf(m.name, sizeof m.name, "random");
    return m;
}

/* --- machines --------------------------------------------------------------------------------- */

static inline mf_cluster planner_cluster(rng *r) {
    mf_cluster c = test_cluster();
    c.gpu.memory_B = 1e9 * rng_between(r, 2, 40);
    c.gpu.memory_Bps *= rng_between(r, 0.2, 2);
    c.gpus_per_node = c.domain_gpus = c.domain_gpus_used = rng_pow2(r, 8);
    c.scaleup_Bps *= rng_between(r, 0.05, 2);
    c.scaleup_pair_Bps = c.scaleup_Bps;
    c.nic_Bps *= rng_between(r, 0.05, 4);
    c.host_Bps *= rng_between(r, 0.2, 4);
    /* one cluster in three does not say; of the others a server's GPUs get 0.9 of their links */
    c.host_shared_Bps = c.host_Bps > 80e9 ? 0 : 0.9 * (double)c.gpus_per_node * c.host_Bps;
    c.host_memory_B = rng_chance(r, 50) ? 0 : 1e9 * rng_between(r, 0.1, 20);
    c.tier[0].oversubscription = rng_between(r, 1, 3);
    return c;
}

static inline mf_software planner_software(rng *r) {
    mf_software s = {.name = "random",
                     .gemm_eff = {1, 1, 1, 1},
                     .grouped_eff = 1,
                     .attention_eff = 1,
                     .memory_eff = 1,
                     .host_graph = {1, 0.5, 0.1},
                     .comm_eff = {1, 1, 1},
                     .collective_eff = 1,
                     .first_anew = 1,
                     .copies_in_pass = 1,
                     .gpu_power_eff = 1};
    if (rng_chance(r, 30)) { /* ideal: no host, nothing exposed */
        return s;
    }
    for (int i = 0; i < 5; i++) {
        s.overlap_exposed[i] = rng_chance(r, 30) ? 0 : rng_between(r, 0, 1);
    }
    s.host_op_s = 8e-6 * rng_between(r, 0, 4);
    s.host_layer_s = 100e-6 * rng_between(r, 0, 4);
    s.moe_sync_s = rng_chance(r, 70) ? 0 : rng_between(r, 0, 1e-4);
    s.fixed_step_s = rng_chance(r, 50) ? 0 : 0.01;
    return s;
}

static inline mf_cost *planner_cost(const mf_cluster *c, const mf_software *s) {
    mf_cost *cost = NULL;
    mf_err e;
    if (mf_cost_create(c, s, NULL, &cost, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return cost;
}

/* --- spaces ----------------------------------------------------------------------------------- */

/* What is not searched, and what is pinned: any of it. */
static inline mf_space planner_space(rng *r, const mf_model *m, int64_t max_gpus) {
    mf_space s = {.model = m};
    mf_layout_init(&s.base);
    s.base.gpus = rng_chance(r, 20) ? rng_range(r, 1, max_gpus) : rng_pow2(r, max_gpus);
    s.base.gbs = s.base.gpus * rng_range(r, 1, 8);
    s.base.seq = 256 * rng_pow2(r, 16);
    s.base.overlap = (uint8_t)rng_range(r, 0, 31);
    s.base.graph = (mf_graph_mode)rng_range(r, 0, MF_GRAPH_COUNT - 1);
    s.base.precision = rng_chance(r, 60)   ? MF_PREC_BF16
                       : rng_chance(r, 50) ? MF_PREC_FP8_BLOCK
                                           : MF_PREC_FP8_TENSOR;
    s.base.moments_bf16 = rng_chance(r, 30);
    s.base.offload_optimizer = rng_chance(r, 70) ? 0 : rng_between(r, 0, 1);
    s.base.offload_share = rng_chance(r, 70) ? 1 : rng_between(r, 0, 1);
    s.base.token_headroom = rng_chance(r, 50) ? 1 : 1.25;
    if (rng_chance(r, 15)) {
        s.base.memory.recompute = (uint16_t)rng_range(r, 0, 511);
        s.pinned |= MF_PIN(RECOMPUTE);
    }
    if (rng_chance(r, 15)) {
        s.base.memory.offload = (uint16_t)rng_range(r, 0, 63);
        s.pinned |= MF_PIN(OFFLOAD);
    }
    return s;
}

/* Calls visit for every layout of the space, in the order of its lists. */
typedef void (*planner_visit_fn)(void *user, const mf_layout *l);
static inline void planner_each_layout(const mf_space *s, planner_visit_fn visit, void *user) {
    int64_t denses = mf_space_dense(s, NULL, 0);
    mf_dense_point *dense = calloc((size_t)denses + 1, sizeof *dense);
    mf_space_dense(s, dense, denses);
    for (int64_t i = 0; i < denses; i++) {
        mf_expert_point expert[256];
        mf_order_point order[64];
        int64_t experts = mf_space_experts(s, dense[i].pp, expert, 256);
        int64_t orders = mf_space_orders(s, dense[i].pp, dense[i].micro_batches, order, 64);
        assert_at_most(experts, 256);
        assert_at_most(orders, 64);
        for (int64_t x = 0; x < experts; x++) {
            mf_zero_point zero[16];
            int64_t ranks = s->base.gpus / ((int64_t)dense[i].pp * expert[x].ep * expert[x].etp);
            int64_t zeros = mf_space_zeros(s, dense[i].dp * dense[i].cp, ranks, zero, 16);
            for (int64_t o = 0; o < orders; o++) {
                for (int64_t z = 0; z < zeros; z++) {
                    mf_layout l = mf_space_layout(s, &dense[i], &expert[x], &order[o], &zero[z]);
                    visit(user, &l);
                }
            }
        }
    }
    free(dense);
}

/* Any one layout of the space; false when there is none. */
static inline bool planner_layout(rng *r, const mf_space *s, mf_layout *out) {
    int64_t denses = mf_space_dense(s, NULL, 0);
    if (denses == 0) {
        return false;
    }
    mf_dense_point *dense = calloc((size_t)denses, sizeof *dense);
    mf_expert_point expert[256];
    mf_order_point order[64];
    mf_zero_point zero[16];
    mf_space_dense(s, dense, denses);
    mf_dense_point d = dense[rng_range(r, 0, denses - 1)];
    int64_t experts = mf_space_experts(s, d.pp, expert, 256);
    int64_t orders = mf_space_orders(s, d.pp, d.micro_batches, order, 64);
    free(dense);
    if (experts == 0 || orders == 0) {
        return false;
    }
    mf_expert_point x = expert[rng_range(r, 0, experts - 1)];
    int64_t ranks = s->base.gpus / ((int64_t)d.pp * x.ep * x.etp);
    int64_t zeros = mf_space_zeros(s, d.dp * d.cp, ranks, zero, 16);
    *out = mf_space_layout(s, &d, &x, &order[rng_range(r, 0, orders - 1)],
                           &zero[rng_range(r, 0, zeros - 1)]);
    return true;
}

/* --- assignments ------------------------------------------------------------------------------ */

/* Catalogue of a position: what its layer may keep. Embedding and head have one empty choice. */
static inline int planner_choices(const mf_space *s, int position,
                                  mf_memory_choice out[MF_CATALOGUE_MAX]) {
    mf_position_kind kind = mf_position_kind_of(s->model, position);
    out[0] = (mf_memory_choice){0, 0};
    if (kind != MF_POS_LAYER && kind != MF_POS_MTP) {
        return 1;
    }
    uint8_t class = kind == MF_POS_MTP
                        ? s->model->mtp_class
                        : s->model->layer_class[mf_position_index(s->model, position)];
    return mf_catalogue(s->model, class, s->pinned, s->base.memory, out);
}

/* Any split of the positions, none of its virtual stages empty. */
static inline void planner_split(rng *r, const mf_model *m, const mf_layout *l,
                                 mf_assignment *out) {
    out->positions = mf_model_positions(m);
    out->vstages = (int)(l->pp * l->vpp);
    out->first[0] = 0;
    for (int v = 1; v <= out->vstages; v++) {
        int least = out->first[v - 1] + 1, most = out->positions - (out->vstages - v);
        out->first[v] = v == out->vstages ? out->positions : (int)rng_range(r, least, most);
    }
    if (rng_chance(r, 50)) { /* nearer to even than chance brings it */
        mf_assignment even;
        assert_ok(mf_assignment_even(m, l, &even, NULL));
        memcpy(out->first, even.first, sizeof out->first);
    }
}

static inline void planner_assignment(rng *r, const mf_space *s, const mf_layout *l,
                                      mf_assignment *out) {
    planner_split(r, s->model, l, out);
    int64_t way = rng_range(r, 0, 2), one = rng_range(r, 0, MF_CATALOGUE_MAX - 1);
    for (int i = 0; i < out->positions; i++) {
        mf_memory_choice choice[MF_CATALOGUE_MAX];
        int n = planner_choices(s, i, choice);
        int64_t k = way == 0 ? 0 : way == 1 ? one % n : rng_range(r, 0, n - 1);
        out->memory[i] = choice[k];
    }
}

/* --- words for failures ----------------------------------------------------------------------- */

static inline void planner_print_model(const mf_model *m) {
    printf("  model: %lld layers (", (long long)m->layers);
    for (int i = 0; i < m->layers; i++) {
        const mf_layer_class *c = &m->layer_classes[m->layer_class[i]];
        printf("%s%s%s", i ? " " : "", c->ffn == MF_FFN_MOE ? "moe" : "dense",
               c->window ? "/window" : "");
    }
    printf(") mtp %lld hidden %lld %s ffn %lld experts %lld top %lld x %lld shared %lld vocab %lld"
           "%s\n",
           (long long)m->mtp_layers, (long long)m->hidden, m->attn == MF_ATTN_MLA ? "mla" : "gqa",
           (long long)m->ffn, (long long)m->experts, (long long)m->top_k, (long long)m->moe_ffn,
           (long long)m->shared_ffn, (long long)m->vocab, m->tied_embeddings ? " tied" : "");
}

static inline void planner_print(const mf_layout *l, const mf_assignment *a) {
    char overlap[64];
    mf_overlap_format(l->overlap, overlap, sizeof overlap);
    printf("  gpus %lld tp %lld cp %lld (%s) dp %lld pp %lld vpp %lld ep %lld etp %lld mbs %lld "
           "gbs %lld seq %lld M %lld %s %s zero %d/%d %s overlap %s graph %s\n",
           (long long)l->gpus, (long long)l->tp, (long long)l->cp, mf_cp_type_text(l->cp_type),
           (long long)l->dp, (long long)l->pp, (long long)l->vpp, (long long)l->ep,
           (long long)l->etp, (long long)l->mbs, (long long)l->gbs, (long long)l->seq,
           (long long)l->micro_batches, mf_schedule_text(l->schedule),
           mf_dispatcher_text(l->dispatcher), l->zero, l->expert_zero,
           mf_precision_text(l->precision), overlap, mf_graph_text(l->graph));
    for (int v = 0; a && v < a->vstages; v++) {
        printf("  vstage %d:", v);
        for (int i = a->first[v]; i < a->first[v + 1]; i++) {
            char recompute[128], offload[128];
            mf_recompute_format(a->memory[i].recompute, recompute, sizeof recompute);
            mf_offload_format(a->memory[i].offload, offload, sizeof offload);
            printf(" %d(%s / %s)", i, recompute, offload);
        }
        printf("\n");
    }
}

#endif
