/* The static memory plan: against a count of every live tensor class, and as the choices move it.
 */
#include "core/memory/memory.h"
#include "core/memory/memory_place.h"
#include "core/program/pairing.h"
#include "tests/support/models.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

static mf_program *program_of(const mf_model *m, const mf_layout *l, const mf_cluster *c) {
    mf_assignment a;
    mf_program *p = NULL;
    mf_err e;
    if (mf_assignment_even(m, l, &a, &e) != MF_OK ||
        mf_program_lower(m, l, c, &a, &p, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return p;
}

static mf_memory *plan_of(const mf_program *p, mf_schedule **schedule) {
    mf_memory *m = NULL;
    assert_ok(mf_schedule_create(&p->layout, schedule, NULL));
    assert_ok(mf_memory_plan(p, *schedule, &m, NULL));
    return m;
}

static double sum_kinds(const mf_memory_stage *s) {
    double sum = 0;
    for (int k = 0; k < MF_MEM_COUNT; k++) {
        sum += s->kind_B[k];
    }
    return sum;
}

/* --- brute force ------------------------------------------------------------------------------ */

enum { SAVED = 1, HELD = 2 };

/* What every (position, micro-batch) of a stage holds right now. */
typedef struct live {
    const mf_program *p;
    int64_t micro_batches;
    uint8_t *state; /* [positions][micro-batches] SAVED, HELD */
    double peak;
} live;

static uint8_t *state_of(live *x, int position, int64_t mb) {
    return &x->state[position * x->micro_batches + mb];
}

static double offloaded(const live *x, int position, int first, int end) {
    return position >= first && position < end
               ? (double)x->p->blocks[x->p->block_of[position]]->offload_B
               : 0;
}

/* Moments of a block: copies of what came from the host are still there, others are on their way,
 * copies of what leaves for the host are already there. */
enum { BEGINS, WORKS, ENDS, MOMENTS };

/* Copies on their way of the pass that is at `position`. The last block of a forward pass and the
 * first of a backward one have their own go where they stand. */
static double on_the_way(const live *x, int position, int first, int end, mf_event_pass pass,
                         int moment) {
    if (pass == MF_EVENT_F) {
        return moment == ENDS ? position + 1 < end ? offloaded(x, position, first, end) : 0
                              : offloaded(x, position - 1, first, end);
    }
    if (pass == MF_EVENT_B) {
        return moment == BEGINS ? position + 1 < end ? offloaded(x, position, first, end) : 0
                                : offloaded(x, position - 1, first, end);
    }
    return 0;
}

static double full_gradient(const live *x, int position, int first, int end) {
    if (position < first || position >= end) {
        return 0;
    }
    const mf_layout *l = &x->p->layout;
    const mf_block *b = x->p->blocks[x->p->block_of[position]];
    int64_t dense = 4 * (b->params.dense + b->shared), expert = 4 * b->params.expert;
    return (l->zero >= 2 && l->dp * l->cp > 1 ? (double)mf_align_B(dense) : 0) +
           (l->expert_zero >= 2 && l->edp > 1 ? (double)mf_align_B(expert) : 0);
}

static double held_now(const mf_block *b) {
    double sum = 0;
    for (int t = 0; t < b->ntensors; t++) {
        const mf_tensor *x = &b->tensors[t];
        bool early = x->class == MF_TENSOR_GRADIENT && x->for_w; /* a vector's, written by B */
        sum += x->class == MF_TENSOR_HELD || early ? (double)mf_align_B(x->bytes) : 0;
    }
    return sum;
}

/* Extra bytes while one block of one pass runs. */
static double running(const live *x, int position, int first, int end, mf_event_pass pass) {
    const mf_block *b = x->p->blocks[x->p->block_of[position]];
    bool split = x->p->split;
    double sum = 0;
    if (pass == MF_EVENT_F) {
        return (double)b->local_f_B;
    }
    if (pass == MF_EVENT_B) {
        sum = split ? (double)b->local_bs_B + held_now(b) : (double)b->local_b_B;
    } else {
        sum = (double)b->local_w_B;
    }
    if (pass == MF_EVENT_W || !split) {
        sum += full_gradient(x, position, first, end);
        if (x->p->layout.overlap & MF_OVERLAP_DP) {
            sum += full_gradient(x, position + 1, first, end);
        }
    }
    return sum;
}

static void measure(live *x, double extra) {
    double now = extra;
    for (int i = 0; i < x->p->assignment.positions; i++) {
        const mf_block *b = x->p->blocks[x->p->block_of[i]];
        for (int64_t mb = 0; mb < x->micro_batches; mb++) {
            uint8_t s = *state_of(x, i, mb);
            now += s & SAVED ? (double)b->saved_B : 0;
            now += s & HELD ? (double)b->held_B : 0;
        }
    }
    x->peak = now > x->peak ? now : x->peak;
}

static void begin(live *x, int position, int64_t mb, mf_event_pass pass) {
    if (pass == MF_EVENT_F) {
        *state_of(x, position, mb) |= SAVED;
    }
}

static void finish(live *x, int position, int64_t mb, mf_event_pass pass) {
    uint8_t *s = state_of(x, position, mb);
    if (pass == MF_EVENT_B) {
        *s = x->p->split ? HELD : 0;
    } else if (pass == MF_EVENT_W) {
        *s = 0;
    }
}

/* Extra bytes of a side of a pair that waits between blocks; next: the one that it goes on with. */
static double waiting(const live *x, int next, int first, int end, bool backward) {
    if (!backward) {
        return offloaded(x, next - 1, first, end);
    }
    return offloaded(x, next, first, end) +
           (x->p->layout.overlap & MF_OVERLAP_DP ? full_gradient(x, next + 1, first, end) : 0);
}

static void one_event(live *x, int64_t stage, const mf_event *ev, mf_pairing *order) {
    const mf_program *p = x->p;
    const int *first = p->assignment.first;
    bool pair = ev->pass == MF_EVENT_FB;
    mf_event_pass one = pair ? MF_EVENT_F : (mf_event_pass)ev->pass;
    int64_t v = mf_layout_vstage(&p->layout, stage, ev->chunk);
    int64_t v2 = pair ? mf_layout_vstage(&p->layout, stage, ev->chunk2) : v;
    if (pair) {
        mf_pairing_make(order, &p->model, &p->layout, first, v, v2);
    } else {
        mf_pairing_alone(order, one != MF_EVENT_F, first[v + 1] - first[v]);
    }
    int a = first[v], b = first[v2 + 1] - 1; /* next of each side */
    for (int k = 0; k < order->count; k++) {
        bool forward = order->step[k].f >= 0, backward = order->step[k].b >= 0;
        mf_event_pass back = pair ? MF_EVENT_B : one;
        double extra = 0, copies[MOMENTS] = {0};
        for (int m = 0; m < MOMENTS; m++) {
            copies[m] += forward ? on_the_way(x, a, first[v], first[v + 1], MF_EVENT_F, m) : 0;
            copies[m] += backward ? on_the_way(x, b, first[v2], first[v2 + 1], back, m) : 0;
        }
        if (forward) {
            begin(x, a, ev->micro_batch, MF_EVENT_F);
            extra += running(x, a, first[v], first[v + 1], MF_EVENT_F);
        } else if (pair && a > first[v] && a < first[v + 1]) {
            extra += waiting(x, a, first[v], first[v + 1], false);
        }
        if (backward) {
            extra += running(x, b, first[v2], first[v2 + 1], back);
        } else if (pair && b >= first[v2] && b < first[v2 + 1] - 1) {
            extra += waiting(x, b, first[v2], first[v2 + 1], true);
        }
        measure(x, extra + fmax(copies[BEGINS], fmax(copies[WORKS], copies[ENDS])));
        a += forward;
        if (backward) {
            finish(x, b--, pair ? ev->micro_batch2 : ev->micro_batch, back);
        }
    }
}

static double brute_force(const mf_program *p, const mf_schedule *s, int64_t stage) {
    live x = {.p = p, .micro_batches = s->micro_batches};
    mf_pairing order;
    assert_ok(mf_pairing_init(&order, p->assignment.positions, NULL));
    x.state = calloc((size_t)(p->assignment.positions * s->micro_batches), 1);
    for (int64_t i = 0; i < s->count[stage]; i++) {
        one_event(&x, stage, &s->events[stage][i], &order);
    }
    for (int i = 0; i < p->assignment.positions * (int)s->micro_batches; i++) {
        assert_int_equal(x.state[i], 0); /* nothing stays behind */
    }
    mf_pairing_clear(&order);
    free(x.state);
    return x.peak;
}

/* Gaps of the arrangements, as shares of what stands at once. */
typedef struct looseness {
    double sum, widest;
    int stages, wide; /* wide: of more than a fifth */
} looseness;

/* The arrangement needs at least what stands at once, and rarely more; the plan says how much. */
static void check_places(const mf_program *p, const mf_schedule *s, int64_t stage, double most,
                         const mf_memory_stage *plan, looseness *loose) {
    mf_places *x;
    mf_err e;
    if (mf_memory_place(p, s, stage, &x, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    double gaps = (double)(x->device.size_B - x->device.bound_B);
    assert_close((double)x->device.bound_B, most, 0.5);
    assert_at_least(gaps, 0.0);
    assert_close(gaps, plan->kind_B[MF_MEM_GAPS], 0.0);
    assert_at_most(gaps, most / 3);
    assert_at_most(plan->peak_B, plan->most_B);
    assert_at_most(plan->host_B, plan->host_most_B);
    double share = most > 0 ? gaps / most : 0;
    loose->sum += share;
    loose->widest = fmax(loose->widest, share);
    loose->wide += share > 0.2;
    loose->stages++;
    mf_places_destroy(x);
}

/* Readers that want less than the whole plan get the same of it. */
static void check_readers(const mf_program *p, const mf_schedule *s, const mf_memory *plan) {
    mf_memory *peak, *judged, *fit;
    double host = 0, most = 0;
    assert_ok(mf_memory_peak(p, s, &peak, NULL));
    assert_ok(mf_memory_judge(p, s, &judged, NULL));
    assert_ok(mf_memory_fit(p, s, 0, &fit, NULL));
    assert_true(fit->fits == plan->fits);
    if (!fit->fits) {
        assert_close(fit->peak_B, judged->peak_B, 0.0);
        assert_int_equal(fit->peak_stage, judged->peak_stage);
    }
    assert_close(peak->peak_B, plan->peak_B, 0.0);
    assert_int_equal(peak->peak_stage, plan->peak_stage);
    assert_true(peak->fits == plan->fits);
    assert_true(judged->fits == plan->fits);
    for (int64_t k = 0; k < plan->stages; k++) {
        assert_at_most(peak->stage[k].peak_B, plan->stage[k].peak_B);
        assert_at_most(judged->stage[k].peak_B, plan->stage[k].peak_B);
        host = fmax(host, peak->stage[k].host_B);
        most = fmax(most, plan->stage[k].host_B);
    }
    assert_close(host, most, 0.0);
    mf_memory_destroy(peak);
    mf_memory_destroy(judged);
    mf_memory_destroy(fit);
}

/* With a GPU that is a little too small, stages said to fit do, and need not be looked at again. */
static void check_sure_stages(mf_program *p, const mf_schedule *s, const mf_memory *plan) {
    const double memory_B = p->cluster.gpu.memory_B;
    mf_memory *first, *again;
    p->cluster.gpu.memory_B *= 0.9999 * plan->peak_B / plan->usable_B;
    assert_ok(mf_memory_fit(p, s, 0, &first, NULL));
    assert_false(first->fits);
    assert_true(first->sure_stages < first->stages);
    for (int64_t k = 0; k < first->sure_stages; k++) {
        assert_at_most(plan->stage[k].peak_B, first->usable_B);
    }
    assert_ok(mf_memory_fit(p, s, first->sure_stages, &again, NULL));
    assert_false(again->fits);
    assert_int_equal(again->sure_stages, first->sure_stages);
    assert_int_equal(again->peak_stage, first->peak_stage);
    assert_close(again->peak_B, first->peak_B, 0.0);
    mf_memory_destroy(first);
    mf_memory_destroy(again);
    p->cluster.gpu.memory_B = memory_B;
}

static void the_plan_is_what_a_count_of_everything_alive_gives(void **state) {
    (void)state;
    rng r = rng_init(71);
    looseness loose = {0};
    const char *cases = getenv("MF_CASES");
    mf_cluster c = test_cluster();
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    for (int i = 0, n = cases != NULL ? atoi(cases) : 300; i < n; i++) {
        const mf_model *m = &models[i % 3];
        mf_layout l = test_random_layout(&r, m, 64);
        mf_program *p = program_of(m, &l, &c);
        mf_schedule *s;
        mf_memory *plan = plan_of(p, &s);
        double most = 0;
        for (int64_t k = 0; k < l.pp; k++) {
            const mf_memory_stage *st = &plan->stage[k];
            mf_stage_memory params = mf_param_memory(&l, mf_program_stage_params(p, k));
            double standing = st->kind_B[MF_MEM_WEIGHTS] + params.gradients_B +
                              st->kind_B[MF_MEM_OPTIMIZER] + st->kind_B[MF_MEM_BOUNDARY] +
                              st->kind_B[MF_MEM_GATHERED] + st->kind_B[MF_MEM_COMM] +
                              st->kind_B[MF_MEM_INPUTS] + st->kind_B[MF_MEM_CONTEXT];
            double alive = brute_force(p, s, k);
            double counted = standing + alive + st->kind_B[MF_MEM_GAPS];
            check_places(p, s, k, alive, st, &loose);
            assert_close(st->peak_B, counted, 1e-6 * counted);
            assert_close(sum_kinds(st), st->peak_B, 1);
            double *bytes = calloc((size_t)s->count[k], sizeof *bytes), walked = 0;
            assert_ok(mf_memory_walk(p, s, k, bytes, NULL));
            for (int64_t ev = 0; ev < s->count[k]; ev++) {
                walked = fmax(walked, bytes[ev]);
                assert_at_least(bytes[ev], standing - 1);
            }
            assert_close(walked + st->kind_B[MF_MEM_GAPS], st->peak_B, 1);
            assert_close(bytes[st->peak_event], walked, 1);
            free(bytes);
            most = fmax(most, st->peak_B);
        }
        check_readers(p, s, plan);
        check_sure_stages(p, s, plan);
        assert_close(plan->peak_B, most, 0);
        assert_close(plan->stage[plan->peak_stage].peak_B, most, 0);
        mf_memory_destroy(plan);
        mf_schedule_destroy(s);
        mf_program_destroy(p);
    }
    printf("gaps of %d stages: %.2f %% of what stands at once, %.1f %% at most, %d over a fifth\n",
           loose.stages, 100 * loose.sum / loose.stages, 100 * loose.widest, loose.wide);
    assert_below(loose.sum, 0.006 * loose.stages);
    /* Places that repeat themselves from micro-batch to micro-batch have a tail: one stage of a
     * thousand has a fifth, of fifty thousand the widest had 0.30. */
    assert_at_most(loose.wide, 1 + loose.stages / 300);
}

/* --- as choices move it ----------------------------------------------------------------------- */

static mf_layout plain(const mf_model *m) {
    mf_layout l;
    mf_err e;
    mf_layout_init(&l);
    l.gpus = 32;
    l.pp = 4;
    l.ep = m->experts ? 4 : 1;
    l.seq = 2048;
    l.gbs = 8 * 16;
    if (mf_layout_resolve(&l, m, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return l;
}

static mf_memory_stage stage_of(const mf_model *m, const mf_layout *l, int64_t stage, bool *fits) {
    mf_cluster c = test_cluster();
    mf_program *p = program_of(m, l, &c);
    mf_schedule *s;
    mf_memory *plan = plan_of(p, &s);
    mf_memory_stage out = plan->stage[stage];
    if (fits != NULL) {
        *fits = plan->fits;
        assert_close(plan->usable_B, 80e9 * (1 - l->reserve), 1);
        assert_true(*fits == (plan->peak_B <= plan->usable_B));
    }
    mf_memory_destroy(plan);
    mf_schedule_destroy(s);
    mf_program_destroy(p);
    return out;
}

static void a_1f1b_stage_holds_one_micro_batch_for_each_stage_behind_it(void **state) {
    (void)state;
    mf_model m = test_model_dense();
    mf_layout l = plain(&m);
    mf_cluster c = test_cluster();
    mf_program *p = program_of(&m, &l, &c);
    double layer = (double)p->blocks[p->block_of[3]]->saved_B;
    mf_program_destroy(p);
    /* Stages 1 and 2 hold two layers each. */
    mf_memory_stage one = stage_of(&m, &l, 1, NULL), two = stage_of(&m, &l, 2, NULL);
    assert_close(one.kind_B[MF_MEM_ACTIVATIONS], 3 * 2 * layer, 1);
    assert_close(two.kind_B[MF_MEM_ACTIVATIONS], 2 * 2 * layer, 1);
    l.schedule = MF_SCHED_GPIPE;
    one = stage_of(&m, &l, 1, NULL);
    assert_close(one.kind_B[MF_MEM_ACTIVATIONS], 16 * 2 * layer, 1);
    l.schedule = MF_SCHED_ZB_H1; /* as 1f1b, and what its first stage has is held as well */
    one = stage_of(&m, &l, 1, NULL);
    assert_at_most(one.kind_B[MF_MEM_ACTIVATIONS], 3 * 2 * layer + 1);
    assert_above(one.kind_B[MF_MEM_HELD], 0);
}

static void sharding_recomputing_and_offloading_save_memory(void **state) {
    (void)state;
    const mf_model models[] = {test_model_moe(true), test_model_dense()};
    for (int i = 0; i < 2; i++) {
        const mf_model *m = &models[i];
        mf_layout l = plain(m), other = l;
        mf_memory_stage base = stage_of(m, &l, 1, NULL);
        l.zero = l.expert_zero = 0;
        mf_memory_stage whole = stage_of(m, &l, 1, NULL);
        assert_above(whole.kind_B[MF_MEM_OPTIMIZER], 1.9 * base.kind_B[MF_MEM_OPTIMIZER]);
        assert_close(whole.kind_B[MF_MEM_WEIGHTS], base.kind_B[MF_MEM_WEIGHTS], 1);
        other.memory.recompute = MF_RECOMPUTE_LAYER;
        mf_memory_stage again = stage_of(m, &other, 1, NULL);
        assert_below(again.kind_B[MF_MEM_ACTIVATIONS], 0.2 * base.kind_B[MF_MEM_ACTIVATIONS]);
        assert_below(again.peak_B, base.peak_B);
        other.memory = (mf_memory_choice){0, MF_OFFLOAD_QKV | MF_OFFLOAD_ATTN_OUT};
        mf_memory_stage away = stage_of(m, &other, 1, NULL);
        assert_below(away.peak_B, base.peak_B);
        assert_above(away.host_B, 0);
        assert_at_most(base.host_B, 0);
        other = plain(m);
        other.offload_optimizer = 0.5;
        away = stage_of(m, &other, 1, NULL);
        assert_close(away.host_B, base.kind_B[MF_MEM_OPTIMIZER] / 2, 1);
        other.zero = other.expert_zero = 3;
        mf_memory_stage sharded = stage_of(m, &other, 1, NULL);
        assert_below(sharded.kind_B[MF_MEM_WEIGHTS], base.kind_B[MF_MEM_WEIGHTS]);
        assert_above(sharded.kind_B[MF_MEM_GATHERED], 0);
        assert_at_most(base.kind_B[MF_MEM_GATHERED], 0);
        /* The gradient of a block stands in full until it is reduced. */
        mf_stage_memory params = mf_param_memory(&other, (mf_param_count){0, 0, 0});
        assert_close(params.gradients_B, 0, 0);
        assert_below(sharded.kind_B[MF_MEM_GRADIENTS], base.kind_B[MF_MEM_GRADIENTS]);
    }
}

static void a_small_gpu_does_not_fit(void **state) {
    (void)state;
    mf_model m = test_model_moe(false);
    mf_layout l = plain(&m);
    bool fits = false;
    stage_of(&m, &l, 0, &fits);
    assert_true(fits);
    l.mbs = 8;
    l.gbs = 8 * 8 * 8;
    l.schedule = MF_SCHED_GPIPE;
    assert_ok(mf_layout_resolve(&l, &m, NULL));
    l.reserve = 0.97;
    stage_of(&m, &l, 0, &fits);
    assert_false(fits);
}

/* Two H100s of one host, NCCL 2.32: what their driver counted beside the arena, less the same on
 * one GPU (small models, 2026-11-25). */
static void nccls_bytes_are_those_of_two_gpus(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int tp, cp, pp, ep;
        mf_dispatcher dispatcher;
        double measured_B;
    } cases[] = {
        {"dp 2", 1, 1, 1, 1, MF_DISPATCH_ALLTOALL, 0.93e9},
        {"tp 2", 2, 1, 1, 1, MF_DISPATCH_ALLTOALL, 0.93e9},
        {"ep 2 by all-gather", 1, 1, 1, 2, MF_DISPATCH_ALLGATHER, 0.93e9},
        {"ep 2 by all-to-all", 1, 1, 1, 2, MF_DISPATCH_ALLTOALL, 1.40e9},
        {"ep 2 through windows", 1, 1, 1, 2, MF_DISPATCH_FUSED, 0.96e9},
        {"cp 2 by a ring", 1, 2, 1, 1, MF_DISPATCH_ALLTOALL, 1.40e9},
        {"pp 2", 1, 1, 2, 1, MF_DISPATCH_ALLTOALL, 1.61e9},
    };
    mf_model m = test_model_moe(false);
    mf_cluster c;
    assert_ok(mf_cluster_load("h100", &c, NULL));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mf_layout l = plain(&m);
        l.gpus = 2;
        l.tp = cases[i].tp;
        l.cp = cases[i].cp;
        l.pp = cases[i].pp;
        l.ep = cases[i].ep;
        l.etp = 1;
        l.dispatcher = cases[i].dispatcher;
        l.overlap = 0; /* all groups of the same ranks have one communicator */
        assert_ok(mf_layout_resolve(&l, &m, NULL));
        assert_close(mf_memory_comm_B(&c, &l) / cases[i].measured_B, 1.0, 0.04);
    }
}

/* Two stages of Hunyuan-A13B, whose head is the embedding, took 1.02 GB more than its model's
 * predicted memory had, when there were two communicators for that sum (two H200, 2026-11-29). */
static void a_table_of_two_stages_has_a_communicator(void **state) {
    (void)state;
    mf_model m = test_model_dense();
    mf_cluster c;
    mf_layout l = plain(&m);
    assert_ok(mf_cluster_load("h200", &c, NULL));
    l.gpus = l.pp = 2;
    l.tp = l.cp = 1;
    assert_ok(mf_layout_resolve(&l, &m, NULL));
    assert_close(mf_memory_table_comm_B(&c, &l, 2) / 0.51e9, 1.0, 0.02);
    assert_close(mf_memory_table_comm_B(&c, &l, 1), 0, 0);
    mf_step_end end = {.table_elements = {1}, .table_copies = {2}};
    assert_close(mf_memory_sums_comm_B(&c, &l, &end), mf_memory_table_comm_B(&c, &l, 2), 0);
    end.table_elements[0] = 0; /* a stage between those */
    assert_close(mf_memory_sums_comm_B(&c, &l, &end), 0, 0);
    end.replicas.of[MF_SUM_KV] = 128;
    end.kv_copies = 2;
    assert_close(mf_memory_sums_comm_B(&c, &l, &end) / 0.51e9, 1.0, 0.02);
    strcpy(c.gpu.arch, "cpu");
    assert_close(mf_memory_sums_comm_B(&c, &l, &end), 0, 0);
}

/* Ranks that shard their gradients send parts to ranks of the other stage, which takes buffers. */
static void shards_of_a_table_take_buffers_of_messages(void **state) {
    (void)state;
    mf_model m = test_model_dense();
    mf_cluster c;
    mf_layout l = plain(&m);
    assert_ok(mf_cluster_load("h200", &c, NULL));
    l.gpus = 8;
    l.pp = 2;
    l.tp = l.cp = 1;
    l.zero = 0;
    assert_ok(mf_layout_resolve(&l, &m, NULL));
    const double whole_B = mf_memory_table_comm_B(&c, &l, 2);
    l.zero = 1;
    assert_close(mf_memory_table_comm_B(&c, &l, 2) - whole_B, 2 * 403e6, 2e6);
}

static void one_gpu_needs_no_nccl(void **state) {
    (void)state;
    mf_model m = test_model_dense();
    mf_layout l = plain(&m);
    mf_cluster c = test_cluster();
    l.gpus = l.pp = l.ep = 1;
    l.gbs = 4 * l.mbs;
    assert_ok(mf_layout_resolve(&l, &m, NULL));
    assert_close(mf_memory_comm_B(&c, &l), 0, 0);
}

/* Messages of an all-to-all cost each pair of a domain's ranks; all-gathers go around. */
static void more_ranks_to_exchange_with_take_more(void **state) {
    (void)state;
    mf_model m = test_model_moe(false);
    mf_cluster c;
    assert_ok(mf_cluster_load("h100", &c, NULL));
    for (int ep = 2; ep <= 8; ep *= 2) {
        mf_layout l = plain(&m);
        l.gpus = 8;
        l.tp = l.cp = l.pp = l.etp = 1;
        l.ep = ep;
        l.dispatcher = MF_DISPATCH_ALLTOALL;
        assert_ok(mf_layout_resolve(&l, &m, NULL));
        double exchanges_B = mf_memory_comm_B(&c, &l);
        l.dispatcher = MF_DISPATCH_ALLGATHER;
        exchanges_B -= mf_memory_comm_B(&c, &l);
        assert_close(exchanges_B, 65e6 + 403e6 * (ep - 1), 1e6 * ep);
    }
}

static void cpu_ranks_hold_no_driver_context(void **state) {
    (void)state;
    mf_model m = test_model_dense();
    mf_layout l = plain(&m);
    mf_cluster c = test_cluster();
    assert_above(mf_memory_context_B(&c, &l), 3e8);
    assert_below(mf_memory_context_B(&c, &l), 2e9);
    assert_above(mf_memory_comm_B(&c, &l), 0);
    strcpy(c.gpu.arch, "cpu");
    assert_close(mf_memory_context_B(&c, &l), 0, 0);
    assert_close(mf_memory_comm_B(&c, &l), 0, 0);
}

/* Ranks divide a position's gradients into parts of one size, the last gets what is left; the table
 * stands somewhere in it. */
static int64_t longest_part(int64_t dense, int64_t at, int64_t table, int64_t ranks) {
    int64_t longest = 0;
    for (int64_t i = 0; i < ranks; i++) {
        const int64_t each = dense / ranks, end = i + 1 < ranks ? (i + 1) * each : dense;
        const int64_t from = i * each > at ? i * each : at;
        const int64_t to = end < at + table ? end : at + table;
        longest = to - from > longest ? to - from : longest;
    }
    return longest;
}

static void sums_over_tables_need_what_a_rank_reduces_of_them(void **state) {
    (void)state;
    rng r = rng_init(29);
    for (int i = 0; i < 2000; i++) {
        const int64_t copies = rng_range(&r, 2, 4), table = rng_range(&r, 1, 5000);
        const int64_t at = rng_range(&r, 0, 3000), dense = at + table + rng_range(&r, 0, 3000);
        mf_layout l = {.zero = (uint8_t)rng_range(&r, 1, 3),
                       .dp = rng_range(&r, 1, 9),
                       .cp = rng_range(&r, 1, 3)};
        const int64_t ranks = l.dp * l.cp, part = longest_part(dense, at, table, ranks);
        const int64_t has = mf_memory_table_sum(&l, copies, table, dense);
        /* sent to and received from the other copies, and the sum */
        const int64_t needs = ranks > 1 ? (2 * (copies - 1) + 1) * part : 0;
        assert_at_least(has, needs);
        assert_at_most(has, ranks > 1 ? (2 * copies - 1) * (dense / ranks + ranks) : 0);
        l.zero = 0; /* in place */
        assert_int_equal(mf_memory_table_sum(&l, copies, table, dense), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_is_what_a_count_of_everything_alive_gives),
        cmocka_unit_test(a_1f1b_stage_holds_one_micro_batch_for_each_stage_behind_it),
        cmocka_unit_test(sharding_recomputing_and_offloading_save_memory),
        cmocka_unit_test(a_small_gpu_does_not_fit),
        cmocka_unit_test(nccls_bytes_are_those_of_two_gpus),
        cmocka_unit_test(a_table_of_two_stages_has_a_communicator),
        cmocka_unit_test(shards_of_a_table_take_buffers_of_messages),
        cmocka_unit_test(one_gpu_needs_no_nccl),
        cmocka_unit_test(more_ranks_to_exchange_with_take_more),
        cmocka_unit_test(cpu_ranks_hold_no_driver_context),
        cmocka_unit_test(sums_over_tables_need_what_a_rank_reduces_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
