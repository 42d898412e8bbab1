/* Steps of random layouts, simulated: sums, bounds, other ways to the same number, and how the step
 * follows machine, overlap and load. */
#include "core/program/pairing.h"
#include "core/schedule/schedule.h"
#include "simulator/anew.h"
#include "tests/support/sampled.h"
#include "tests/support/sim_fixture.h"

#include <string.h>

static mf_layout random_layout(rng *r, const mf_model *m) {
    mf_layout l = test_random_layout(r, m, 128);
    int64_t groups = rng_range(r, 1, 4) * (l.vpp > 1 ? l.pp : 1); /* more micro-batches */
    l.gbs = l.mbs * l.dp * groups;
    mf_err e;
    if (mf_layout_resolve(&l, m, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return l;
}

/* --- sums and bounds ----------------------------------------------------------------------------
 */

static double block_s(const mf_cost *cost, const mf_program *p, int position, unsigned passes) {
    mf_block_time t;
    assert_ok(mf_sim_block(cost, &p->layout, p->blocks[p->block_of[position]], passes, NULL, 1,
                           false, &t, NULL));
    return t.gpu_time_s;
}

/* What weight gradients of a position take less where they write: products of weights that are no
 * table which another position may read. */
static double anew_s(const mf_cost *cost, const mf_program *p, int position) {
    const mf_block *b = p->blocks[p->block_of[position]];
    const bool shared = p->model.tied_embeddings || p->model.mtp_layers > 0;
    double sum = 0;
    for (int i = 0; i < b->nops; i++) {
        mf_op op = b->ops[i];
        mf_price adds, writes;
        if (op.pass != MF_PASS_W || (op.kind != MF_OP_GEMM && op.kind != MF_OP_GROUPED_GEMM) ||
            (shared && strcmp(op.name, "lm_head") == 0)) {
            continue;
        }
        mf_cost_op(cost, &op, 1, &adds);
        op.flags |= MF_OPF_ANEW;
        mf_cost_op(cost, &op, 1, &writes);
        assert_at_most(writes.time_s, adds.time_s);
        sum += adds.time_s - writes.time_s;
    }
    return sum;
}

static double busiest_stream_bound(const mf_cost *cost, const mf_program *p, int position) {
    const mf_block *b = p->blocks[p->block_of[position]];
    double both = 0;
    unsigned all = MF_PASS_F | MF_PASS_BACKWARD;
    for (int i = 0; i < b->nops; i++) { /* a merged pair shares streams: compute alone is sure */
        if ((b->ops[i].pass & all) && b->ops[i].stream == MF_STREAM_COMPUTE) {
            mf_price price;
            mf_cost_op(cost, &b->ops[i], 1, &price);
            both += price.time_s;
        }
    }
    return both;
}

static void check_sums(const mf_cost *cost, const mf_program *p, const mf_sim *s) {
    const mf_layout *l = &p->layout;
    double t = s->step_time_s, eps = 1e-9 * t;
    assert_close(sim_sum(s->breakdown_s), t, eps);
    assert_at_most(s->low_s, t + eps);
    assert_at_least(s->high_s, t - eps);
    assert_int_equal(s->stages, l->pp);
    double busiest = 0, through = 0;
    for (int64_t k = 0; k < l->pp; k++) {
        const mf_sim_stage *st = &s->stage[k];
        assert_close(sim_sum(st->breakdown_s), t, eps);
        assert_close(st->busy_s + st->idle_s, t, eps);
        assert_close(st->breakdown_s[MF_BD_COMPUTE] + st->breakdown_s[MF_BD_RECOMPUTE] +
                         st->breakdown_s[MF_BD_OPTIMIZER],
                     st->busy_s, 1e-6 * t);
        for (int c = 0; c < MF_BD_COUNT; c++) {
            assert_at_least(st->breakdown_s[c], -eps);
        }
        double work = 0;
        for (int64_t c = 0; c < l->vpp; c++) {
            int64_t v = mf_layout_vstage(l, k, c);
            for (int i = p->assignment.first[v]; i < p->assignment.first[v + 1]; i++) {
                work += busiest_stream_bound(cost, p, i) * (double)l->micro_batches;
                work -= mf_cost_software(cost)->first_anew > 0 ? anew_s(cost, p, i) : 0;
                through += mf_sim_block_bound(cost, l, p->blocks[p->block_of[i]], MF_PASS_F, 1);
            }
        }
        assert_at_least(t, work - eps);
        busiest = fmax(busiest, st->busy_s);
    }
    assert_at_least(t, through - eps); /* a micro-batch passes all stages */
    assert_close(s->stage[s->critical_stage].busy_s, busiest, eps);
    assert_int_equal(s->memory->stages, l->pp);
    assert_above(s->samples, 0);
    double peak = 0;
    for (int64_t i = 0; i < s->samples; i++) {
        assert_true(i == 0 || s->sample[i].time_s >= s->sample[i - 1].time_s);
        peak = fmax(peak, s->sample[i].bytes);
    }
    assert_close(peak, s->memory->peak_B, 1);
}

static void classes_sum_to_the_step_and_bounds_lie_below_it(void **state) {
    (void)state;
    rng r = rng_init(51);
    mf_cluster c = test_cluster();
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    mf_software soft[2] = {sim_software_ideal(), sim_software_real()};
    soft[1].first_anew = soft[1].copies_in_pass = 1;
    mf_cost *cost[2] = {sim_cost(&c, &soft[0]), sim_cost(&c, &soft[1])};
    for (int i = 0; i < case_count(400, 60); i++) {
        const mf_model *m = &models[i % 3];
        mf_layout l = random_layout(&r, m);
        mf_program *p = sim_program(m, &l, &c);
        mf_sim *s = sim_step(cost[i % 2], p, NULL);
        check_sums(cost[i % 2], p, s);
        mf_sim_destroy(s);
        mf_program_destroy(p);
    }
    mf_cost_destroy(cost[0]);
    mf_cost_destroy(cost[1]);
}

/* --- other ways to the same number --------------------------------------------------------------
 */

static double optimizer_s(const mf_cost *cost, const mf_program *p, int64_t stage) {
    mf_op ops[16];
    int n = mf_program_optimizer(p, stage, ops, 16);
    double sum = 0;
    for (int i = 0; i < n; i++) {
        mf_price price;
        mf_cost_op(cost, &ops[i], 1, &price);
        sum += price.time_s;
    }
    return sum;
}

static void one_rank_takes_the_serial_sum(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    soft.fixed_step_s = 0.125;
    mf_cost *adds = sim_cost(&c, &soft);
    soft.first_anew = 1;
    mf_cost *writes = sim_cost(&c, &soft);
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    for (int k = 0; k < 24; k++) {
        const mf_model *m = &models[k % 3];
        mf_cost *cost = k < 12 ? adds : writes;
        mf_layout l = sim_layout(m, 1, 1, 1, 1 + k % 12);
        l.schedule = k % 2 ? MF_SCHED_GPIPE : MF_SCHED_1F1B;
        mf_program *p = sim_program(m, &l, &c);
        double sum = 0.125 + optimizer_s(cost, p, 0), less = 0;
        for (int i = 0; i < p->assignment.positions; i++) {
            const mf_block *b = p->blocks[p->block_of[i]];
            less += k < 12 ? 0 : anew_s(cost, p, i); /* once, however many micro-batches */
            for (int o = 0; o < b->nops; o++) {
                mf_price price;
                mf_cost_op(cost, &b->ops[o], 1, &price);
                sum += (double)l.micro_batches * price.time_s;
            }
        }
        mf_sim *s = sim_step(cost, p, NULL);
        assert_true(k < 12 || less > 1e-3 * sum / (double)l.micro_batches);
        sum -= less;
        assert_close(s->step_time_s, sum, 1e-9 * sum);
        assert_close(s->breakdown_s[MF_BD_BUBBLE], 0, 1e-9 * sum);
        mf_sim_destroy(s);
        mf_program_destroy(p);
    }
    mf_cost_destroy(adds);
    mf_cost_destroy(writes);
}

/* Earliest ends by repeated relaxation over all events, with nothing of the engine's: finish[] of
 * each stage. */
static void relax(const mf_cost *cost, const mf_program *p, double *finish) {
    const mf_layout *l = &p->layout;
    mf_schedule *s;
    assert_ok(mf_schedule_create(l, &s, NULL));
    int64_t v_count = l->pp * l->vpp, m = l->micro_batches;
    double *end[2] = {calloc((size_t)(v_count * m), sizeof(double)),
                      calloc((size_t)(v_count * m), sizeof(double))};
    mf_price send[2];
    mf_cost_op(cost, &p->send_forward, 1, &send[0]);
    mf_cost_op(cost, &p->send_backward, 1, &send[1]);
    double length[3][64] = {{0}}, less[64] = {0}; /* less: by what the first micro-batch writes */
    for (int64_t v = 0; v < v_count; v++) {
        for (int i = p->assignment.first[v]; i < p->assignment.first[v + 1]; i++) {
            less[v] += mf_cost_software(cost)->first_anew > 0 ? anew_s(cost, p, i) : 0;
            length[0][v] += block_s(cost, p, i, MF_PASS_F);
            length[1][v] +=
                block_s(cost, p, i, p->split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD);
            length[2][v] += p->split ? block_s(cost, p, i, MF_PASS_W) : 0;
        }
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int64_t k = 0; k < l->pp; k++) {
            double clock = 0, sent[2] = {0, 0};
            for (int64_t i = 0; i < s->count[k]; i++) {
                const mf_event *ev = &s->events[k][i];
                int64_t v = mf_layout_vstage(l, k, ev->chunk), mb = ev->micro_batch;
                int64_t from = ev->pass == MF_EVENT_F ? v - 1 : v + 1;
                int64_t to = ev->pass == MF_EVENT_F ? v + 1 : v - 1;
                const bool weights = ev->pass == (p->split ? MF_EVENT_W : MF_EVENT_B);
                const double off = weights && mb == 0 ? less[v] : 0;
                if (ev->pass == MF_EVENT_W) {
                    clock += length[2][v] - off;
                    continue;
                }
                double *there = &end[ev->pass][v * m + mb], arrival;
                if (from >= 0 && from < v_count) {
                    clock = fmax(clock, end[ev->pass][from * m + mb]);
                }
                clock += length[ev->pass][v] - off;
                arrival = clock;
                if (to >= 0 && to < v_count && mf_layout_stage_of(l, to) != k) {
                    /* Messages of a direction leave one after the other. */
                    arrival = fmax(clock, sent[ev->pass]) + send[ev->pass].time_s;
                    sent[ev->pass] = arrival;
                }
                moved |= arrival > *there * (1 + 1e-14);
                *there = fmax(*there, arrival);
            }
            finish[k] = clock;
        }
    }
    free(end[0]);
    free(end[1]);
    mf_schedule_destroy(s);
}

static void pipelines_take_what_relaxation_over_their_events_gives(void **state) {
    (void)state;
    rng r = rng_init(52);
    mf_cluster c = test_cluster();
    c.nic_Bps = c.scaleup_Bps = c.scaleup_pair_Bps = 5e9; /* messages count */
    mf_software soft = sim_software_ideal();
    mf_cost *adds = sim_cost(&c, &soft);
    soft.first_anew = 1;
    mf_cost *writes = sim_cost(&c, &soft);
    mf_model m = test_model_dense();
    static const mf_schedule_kind kinds[] = {MF_SCHED_GPIPE, MF_SCHED_1F1B, MF_SCHED_INTERLEAVED,
                                             MF_SCHED_ZB_H1, MF_SCHED_ZB_V};
    for (int i = 0; i < 60; i++) {
        const mf_cost *cost = i % 3 == 0 ? adds : writes;
        mf_layout l = sim_layout(&m, 1, 1, 1, 1);
        l.schedule = kinds[i % 5];
        l.pp = l.gpus = l.schedule == MF_SCHED_INTERLEAVED ? 2 : rng_range(&r, 2, 4);
        l.vpp = l.schedule == MF_SCHED_INTERLEAVED || l.schedule == MF_SCHED_ZB_V ? 2 : 1;
        l.gbs = l.pp * rng_range(&r, 1, 5);
        l.mbs = 1;
        assert_ok(mf_layout_resolve(&l, &m, NULL));
        mf_program *p = sim_program(&m, &l, &c);
        mf_sim *s = sim_step(cost, p, NULL);
        /* Gradient norm of each stage, its sum over all, then each stage's update. */
        double finish[4], norm = 0, sum = 0, update = 0;
        relax(cost, p, finish);
        for (int64_t k = 0; k < l.pp; k++) {
            mf_op ops[16];
            int n = mf_program_optimizer(p, k, ops, 16), part = 0;
            double time[3] = {0, 0, 0};
            for (int o = 0; o < n; o++) {
                mf_price price;
                mf_cost_op(cost, &ops[o], 1, &price);
                part = ops[o].group == MF_GROUP_WORLD ? 1 : part == 1 ? 2 : part;
                time[part] += price.time_s;
            }
            norm = fmax(norm, finish[k] + time[0]);
            sum = time[1];
            update = fmax(update, time[2]);
        }
        double expected = norm + sum + update;
        assert_close(s->step_time_s, expected, 1e-9 * expected);
        mf_sim_destroy(s);
        mf_program_destroy(p);
    }
    mf_cost_destroy(adds);
    mf_cost_destroy(writes);
}

/* One micro-batch goes through two stages: what copies that stay in their pass add to the step is
 * what they add to its blocks, of which the last of a forward pass and the first of a backward one
 * have theirs to themselves. */
static void copies_are_on_their_own_where_a_pass_ends(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    mf_cost *cost[2];
    cost[0] = sim_cost(&c, &soft);
    soft.copies_in_pass = 1;
    cost[1] = sim_cost(&c, &soft);
    mf_model m = test_model_dense();
    mf_layout l = sim_layout(&m, 2, 2, 1, 1);
    l.memory.offload = MF_OFFLOAD_QKV | MF_OFFLOAD_FFN;
    mf_program *p = sim_program(&m, &l, &c);
    const mf_assignment *a = &p->assignment;
    double want = 0, ends = 0, took[2];
    for (int i = 0; i < a->positions; i++) {
        const bool end = i + 1 == a->first[1] || i + 1 == a->first[2];
        const unsigned own[2] = {end ? MF_SIM_LAST : 0, end ? MF_SIM_FIRST : 0};
        const double f = block_s(cost[1], p, i, MF_PASS_F | own[0]);
        const double b = block_s(cost[1], p, i, MF_PASS_BACKWARD | own[1]);
        want += f - block_s(cost[0], p, i, MF_PASS_F);
        want += b - block_s(cost[0], p, i, MF_PASS_BACKWARD);
        ends += f - block_s(cost[1], p, i, MF_PASS_F);
        ends += b - block_s(cost[1], p, i, MF_PASS_BACKWARD);
    }
    for (int k = 0; k < 2; k++) {
        mf_sim *s = sim_step(cost[k], p, NULL);
        took[k] = s->step_time_s;
        mf_sim_destroy(s);
    }
    assert_above(ends, 0.01 * took[0]);
    /* ... and what the head, which is beside the last layer's, hides less than a layer. */
    assert_above(took[1] - took[0], want * (1 + 5e-4));
    assert_at_most(took[1] - took[0], want + block_s(cost[0], p, a->first[1], MF_PASS_F) +
                                          block_s(cost[0], p, a->first[1], MF_PASS_BACKWARD));
    mf_program_destroy(p);
    mf_cost_destroy(cost[0]);
    mf_cost_destroy(cost[1]);
}

static void a_merged_step_takes_the_sum_of_its_pairs(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    soft.first_anew = 1;
    mf_cost *cost = sim_cost(&c, &soft);
    mf_model m = test_model_moe(false);
    mf_layout l = sim_layout(&m, 8, 1, 8, 5);
    l.schedule = MF_SCHED_MERGED;
    l.zero = l.expert_zero = 0;
    l.overlap = 0;
    assert_ok(mf_layout_resolve(&l, &m, NULL));
    mf_program *p = sim_program(&m, &l, &c);
    int n = p->assignment.positions;
    double counts[7 * 32], load[16], sum = optimizer_s(cost, p, 0);
    for (int i = 0; i < 7 * 32; i++) { /* every other layer has a hot rank */
        counts[i] = i / 32 % 2 && i % 32 < 4 ? 4 : 1;
    }
    mf_routing routing = {
        .kind = MF_ROUTING_HISTOGRAM, .layers = 7, .experts = 32, .counts = counts};
    for (int i = 0; i < n; i++) { /* embedding, a dense layer, seven MoE layers, head */
        load[i] = i >= 2 && i < n - 1 ? mf_routing_max_load(&routing, &m, 8, i - 2) : 1;
    }
    for (int k = 0; k < n; k++) {
        mf_block_time t;
        const mf_block *f = p->blocks[p->block_of[k]];
        assert_ok(mf_sim_block(cost, &l, f, MF_PASS_F, NULL, load[k], false, &t, NULL));
        sum += t.gpu_time_s;
        assert_ok(mf_sim_block(cost, &l, f, MF_PASS_BACKWARD, NULL, load[k], false, &t, NULL));
        sum += t.gpu_time_s - anew_s(cost, p, k);
        for (int side = 0; side < 2; side++) {
            mf_price price;
            mf_cost_op(cost, &p->dp[k].reduce[side], 1, &price);
            sum += p->dp[k].reduce[side].bytes > 0 ? price.time_s : 0;
        }
    }
    mf_pairing order;
    assert_ok(mf_pairing_init(&order, n, NULL));
    mf_pairing_make(&order, &m, &l, p->assignment.first, 0, 0);
    int both = 0;
    for (int k = 0; k < order.count; k++) {
        mf_block_time t;
        int at = order.step[k].f, back = order.step[k].b >= 0 ? n - 1 - order.step[k].b : -1;
        bool forward = at >= 0, backward = back >= 0;
        int one = forward ? at : back;
        const mf_block *b = forward && backward ? p->blocks[p->block_of[back]] : NULL;
        unsigned passes =
            (forward ? (unsigned)MF_PASS_F : 0) | (backward ? (unsigned)MF_PASS_BACKWARD : 0);
        assert_ok(mf_sim_block(cost, &l, p->blocks[p->block_of[one]], passes, b,
                               b ? fmax(load[at], load[back]) : load[one], false, &t, NULL));
        sum += 4 * t.gpu_time_s;
        both += b && mf_position_exchanges(&m, &l, at) && mf_position_exchanges(&m, &l, back);
    }
    assert_int_equal(both, 7); /* every MoE layer beside another */
    mf_pairing_clear(&order);
    for (int all = 0; all < 2; all++) {
        mf_sim_options o = {.every_rank = all, .routing = &routing};
        mf_sim *s = sim_step(cost, p, &o);
        assert_close(s->step_time_s, sum, 1e-9 * sum);
        mf_sim_destroy(s);
    }
    mf_program_destroy(p);
    mf_cost_destroy(cost);
}

/* End of a pass that starts at `clock` while communication runs until `once` on some SMs. */
static double beside(double clock, double pass_s, double once, double sms) {
    double together = fmin(fmax(0, once - clock), pass_s / (1 - sms));
    return clock + pass_s + sms * together;
}

/* Gathers before the first micro-batch, reductions behind the last: in line, or on a stream of
 * their own that nothing else uses. */
static void data_parallel_communication_runs_in_line_or_beside(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    c.nic_Bps = 5e9;
    mf_software soft = sim_software_ideal();
    soft.first_anew = 1;
    mf_cost *cost = sim_cost(&c, &soft);
    mf_model m = test_model_dense();
    for (int k = 0; k < 8; k++) {
        mf_layout l = sim_layout(&m, 16, 1, 1, 1 + k / 2);
        l.overlap = k % 2 ? MF_OVERLAP_DP : 0;
        mf_program *p = sim_program(&m, &l, &c);
        int n = p->assignment.positions;
        double gather[16], reduce[16], f[16], b[16], dp = 0, once = 0, clock = 0, gathered[16];
        double sms[2] = {0, 0}; /* share of the SMs that gathers, reductions take */
        for (int i = 0; i < n; i++) {
            mf_price price;
            mf_cost_op(cost, &p->dp[i].gather[0], 1, &price);
            gather[i] = price.time_s;
            sms[0] = fmax(sms[0], price.sm_share);
            mf_cost_op(cost, &p->dp[i].reduce[0], 1, &price);
            reduce[i] = price.time_s;
            sms[1] = fmax(sms[1], price.sm_share);
            f[i] = block_s(cost, p, i, MF_PASS_F);
            b[i] = block_s(cost, p, i, MF_PASS_BACKWARD);
            dp += gather[i] + reduce[i];
            once += gather[i];
            gathered[i] = once;
        }
        for (int64_t mb = 0; mb < l.micro_batches; mb++) {
            for (int i = 0; i < n; i++) {
                double ready = mb > 0 ? 0 : k % 2 ? gathered[i] : once;
                clock = beside(fmax(clock, ready), f[i], k % 2 ? once : 0, sms[0]);
            }
            for (int i = n - 1; i >= 0; i--) {
                double back = b[i] - (mb == 0 ? anew_s(cost, p, i) : 0);
                clock = beside(clock, back, k % 2 ? once : 0, sms[1]);
                if (mb == l.micro_batches - 1) {
                    once = fmax(once, clock) + reduce[i];
                    clock = k % 2 ? clock : once;
                }
            }
        }
        double expected = fmax(clock, once) + optimizer_s(cost, p, 0);
        mf_sim *s = sim_step(cost, p, NULL);
        assert_close(s->step_time_s, expected, 1e-9 * expected);
        if (k % 2 == 0) {
            double norm = 0;
            mf_op ops[16];
            int count = mf_program_optimizer(p, 0, ops, 16);
            for (int i = 0; i < count; i++) {
                mf_price price;
                mf_cost_op(cost, &ops[i], 1, &price);
                norm += ops[i].stream == MF_STREAM_DP ? price.time_s : 0;
            }
            assert_close(s->breakdown_s[MF_BD_DP], dp + norm, 1e-9 * expected);
        }
        mf_sim_destroy(s);
        mf_program_destroy(p);
    }
    mf_cost_destroy(cost);
}

/* Gradients that are reduced behind each block are no sums over the micro-batches. */
static void only_sums_over_micro_batches_are_written_at_first(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    mf_cost *adds = sim_cost(&c, &soft);
    soft.first_anew = 1;
    mf_cost *writes = sim_cost(&c, &soft);
    mf_model m = test_model_moe(false);
    for (int k = 0; k < 16; k++) { /* ZeRO levels of both halves of the weights */
        mf_layout l = sim_layout(&m, 8, 1, 4, 2);
        l.zero = (uint8_t)(k % 4);
        l.expert_zero = (uint8_t)(k / 4);
        l.overlap = 0;
        assert_ok(mf_layout_resolve(&l, &m, NULL));
        mf_program *p = sim_program(&m, &l, &c);
        double less = 0;
        for (int i = 0; i < p->assignment.positions; i++) {
            const mf_block *b = p->blocks[p->block_of[i]];
            for (int o = 0; o < b->nops; o++) {
                mf_op op = b->ops[o];
                mf_price sums, anew;
                const bool grouped = op.kind == MF_OP_GROUPED_GEMM;
                if (op.pass != MF_PASS_W || (op.kind != MF_OP_GEMM && !grouped) ||
                    (grouped ? l.expert_zero : l.zero) >= 2) {
                    continue;
                }
                mf_cost_op(adds, &op, 1, &sums);
                op.flags |= MF_OPF_ANEW;
                mf_cost_op(adds, &op, 1, &anew);
                less += sums.time_s - anew.time_s;
            }
        }
        mf_sim *a = sim_step(adds, p, NULL), *b = sim_step(writes, p, NULL);
        assert_true((less > 0) == (l.zero < 2 || l.expert_zero < 2));
        assert_close(a->step_time_s - b->step_time_s, less, 1e-9 * a->step_time_s);
        mf_sim_destroy(a);
        mf_sim_destroy(b);
        mf_program_destroy(p);
    }
    mf_cost_destroy(adds);
    mf_cost_destroy(writes);
}

/* Ops of a block whose weight gradients write: each of these is shorter by what it saves, every
 * other one as long as ever unless it runs beside one, and no gap opens. */
static void ops_move_up_by_what_is_saved_before_them(void **state) {
    (void)state;
    rng r = rng_init(54);
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_real();
    soft.first_anew = 1;
    mf_cost *cost = sim_cost(&c, &soft);
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    for (int i = 0; i < 60; i++) {
        const mf_model *m = &models[i % 3];
        mf_layout l = random_layout(&r, m);
        mf_program *p = sim_program(m, &l, &c);
        int at = (int)rng_range(&r, 0, p->assignment.positions - 1);
        const mf_block *b = p->blocks[p->block_of[at]];
        mf_block_time was, now;
        assert_ok(mf_sim_block(cost, &l, b, MF_PASS_BACKWARD, NULL, 1, true, &was, NULL));
        assert_ok(mf_sim_block(cost, &l, b, MF_PASS_BACKWARD, NULL, 1, true, &now, NULL));
        assert_ok(mf_anew_take_off(cost, m, &l, b, 0, &now, NULL));
        double less = 0, end = 0;
        for (int k = 0; k < was.nops; k++) {
            const double saves = mf_anew_op_s(cost, m, &l, b, was.op[k].op);
            const double long_s = was.op[k].end_s - was.op[k].start_s;
            const double short_s = now.op[k].end_s - now.op[k].start_s;
            less += saves;
            end = fmax(end, now.op[k].end_s);
            assert_at_least(now.op[k].start_s, -1e-12);
            assert_at_most(short_s, long_s - saves + 1e-12);
            assert_true(k == 0 || b->ops[was.op[k].op].stream != MF_STREAM_COMPUTE || saves > 0 ||
                        short_s > long_s - 1e-12);
        }
        assert_close(was.gpu_time_s - now.gpu_time_s, less, 1e-12);
        assert_close(sim_sum(now.class_s), now.gpu_time_s, 1e-9 * was.gpu_time_s);
        assert_at_most(end, now.gpu_time_s + 1e-12);
        assert_at_least(now.time_s, fmax(now.gpu_time_s, now.host_s));
        mf_block_time_clear(&was);
        mf_block_time_clear(&now);
        mf_program_destroy(p);
    }
    mf_cost_destroy(cost);
}

static void all_ranks_take_as_long_as_one_of_each_stage(void **state) {
    (void)state;
    rng r = rng_init(53);
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_real();
    mf_cost *cost = sim_cost(&c, &soft);
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    for (int i = 0; i < 60; i++) {
        const mf_model *m = &models[i % 3];
        mf_layout l = random_layout(&r, m);
        mf_routing routing = {.kind = i % 2 ? MF_ROUTING_ZIPF : MF_ROUTING_BALANCED, .zipf_s = 0.6};
        mf_program *p = sim_program(m, &l, &c);
        mf_sim_options one = {.routing = &routing}, all = one;
        all.every_rank = true;
        mf_sim *a = sim_step(cost, p, &one), *b = sim_step(cost, p, &all);
        check_sums(cost, p, b);
        /* A split weight gradient is the one pass in which ranks drift apart and meet later. */
        if (p->split && i % 2) {
            assert_at_most(b->step_time_s, a->step_time_s * (1 + 1e-9));
        } else {
            assert_close(b->step_time_s, a->step_time_s, 1e-9 * a->step_time_s);
        }
        assert_int_equal(b->events, a->events * l.gpus / l.pp);
        mf_sim_destroy(a);
        mf_sim_destroy(b);
        mf_program_destroy(p);
    }
    mf_cost_destroy(cost);
}

/* --- how the step follows --------------------------------------------------------------------- */

static void ranks_with_fewer_rows_wait_for_the_hottest(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    mf_cost *cost = sim_cost(&c, &soft);
    mf_model m = test_model_moe(false);
    mf_layout l = sim_layout(&m, 8, 1, 8, 4);
    mf_program *p = sim_program(&m, &l, &c);
    double counts[32];
    for (int i = 0; i < 32; i++) {
        counts[i] = i < 4 ? 3 : 1; /* rank 0 holds the first four experts */
    }
    mf_routing routing = {
        .kind = MF_ROUTING_HISTOGRAM, .layers = 1, .experts = 32, .counts = counts};
    mf_sim_options balanced = {.every_rank = true},
                   skewed = {.every_rank = true, .routing = &routing};
    mf_sim *a = sim_step(cost, p, &balanced), *b = sim_step(cost, p, &skewed);
    assert_above(b->step_time_s, a->step_time_s);
    assert_int_equal(b->critical_rank, 0);
    /* All ranks take the same time; what the hottest computes the others wait. */
    assert_above(b->breakdown_s[MF_BD_COMPUTE], a->breakdown_s[MF_BD_COMPUTE]);
    mf_sim_destroy(a);
    mf_sim_destroy(b);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
}

static double step_s(const mf_cluster *c, const mf_software *soft, const mf_model *m,
                     const mf_layout *l) {
    mf_cost *cost = sim_cost(c, soft);
    mf_program *p = sim_program(m, l, c);
    mf_sim *s = sim_step(cost, p, NULL);
    double t = s->step_time_s;
    mf_sim_destroy(s);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
    return t;
}

/* Faster links finish sooner what compute runs beside, at more memory traffic a second: a schedule
 * of contending streams can lose a little by that, never much. */
static void more_bandwidth_is_never_slower(void **state) {
    (void)state;
    rng r = rng_init(54);
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    mf_software soft = sim_software_ideal();
    int slower = 0, count = case_count(150, 30);
    for (int i = 0; i < count; i++) {
        const mf_model *m = &models[i % 3];
        mf_cluster c = test_cluster(), fast = c;
        mf_layout l = random_layout(&r, m);
        double by = 1 + (double)rng_range(&r, 1, 20) / 10;
        int what = (int)rng_range(&r, 0, 3);
        fast.scaleup_Bps *= what == 0 || what == 3 ? by : 1;
        fast.scaleup_pair_Bps *= what == 0 || what == 3 ? by : 1;
        fast.nic_Bps *= what == 1 || what == 3 ? by : 1;
        fast.host_Bps *= what == 2 || what == 3 ? by : 1;
        double before = step_s(&c, &soft, m, &l), after = step_s(&fast, &soft, m, &l);
        if (after > before * 1.01) {
            fail_msg("layout %d: x%g on %d: %g s becomes %g s", i, by, what, before, after);
        }
        slower += after > before * (1 + 1e-9);
    }
    printf("%d of %d a little slower\n", slower, count);
    if (!cases_sampled()) { /* a share is of all */
        assert_at_most(slower, count / 20);
    }
}

/* --- copies to a host that several GPUs share ---------------------------------------------------
 */

static double shared_step_s(mf_cluster c, double host_shared_Bps, const mf_software *soft,
                            const mf_model *m, const mf_layout *l) {
    c.host_shared_Bps = host_shared_Bps;
    return step_s(&c, soft, m, l);
}

/* A layout that copies activations, optimizer states or both. */
static mf_layout copying_layout(rng *r, const mf_model *m) {
    mf_layout l = random_layout(r, m);
    const int64_t what = rng_range(r, 0, 2);
    l.offload_optimizer = what == 0 ? 0 : (double)rng_range(r, 1, 4) / 4;
    l.memory.offload = what == 1 ? 0 : MF_OFFLOAD_QKV | MF_OFFLOAD_FFN;
    return l;
}

static void what_a_hosts_memory_gives_is_shared(void **state) {
    (void)state;
    rng r = rng_init(56);
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    mf_software soft = sim_software_ideal();
    int bound = 0, count = case_count(150, 30);
    for (int i = 0; i < count; i++) {
        const mf_model *m = &models[i % 3];
        const mf_cluster c = test_cluster();
        const mf_layout l = copying_layout(&r, m);
        const double less = c.host_Bps * (double)rng_range(&r, 10, 80) / 10;
        soft.copies_in_pass = i % 2;
        const double alone_s = step_s(&c, &soft, m, &l),
                     shared_s = shared_step_s(c, less, &soft, m, &l),
                     more_s = shared_step_s(c, 1.5 * less, &soft, m, &l),
                     all_s = shared_step_s(c, 100 * c.host_Bps, &soft, m, &l);
        if (more_s > shared_s * 1.01 || all_s > more_s * 1.01) {
            fail_msg("case %d: %g s, with more %g s, with all %g s", i, shared_s, more_s, all_s);
        }
        assert_close(all_s, alone_s, 0); /* to the bit */
        if (l.gpus == 1) {
            assert_close(shared_s, alone_s, 0);
        }
        bound += shared_s > alone_s * (1 + 1e-9);
    }
    printf("%d of %d take longer than on links of their own\n", bound, count);
    assert_above(bound, count / 4);
}

/* Bytes that a stage's states take out and in. */
static double states_B(const mf_model *m, const mf_layout *l, const mf_cluster *c) {
    mf_program *p = sim_program(m, l, c);
    mf_op ops[16];
    const int n = mf_program_optimizer(p, 0, ops, 16);
    double sum_B = 0;
    for (int i = 0; i < n; i++) {
        sum_B += mf_op_kind_class((mf_op_kind)ops[i].kind) == MF_CLASS_COPY ? ops[i].bytes : 0;
    }
    mf_program_destroy(p);
    return sum_B;
}

/* Eight GPUs, each with an eighth: half of it takes twice as long; two hosts as one. One GPU takes
 * what it takes alone, whatever several would share. */
static void states_of_all_gpus_pass_through_their_hosts_memory(void **state) {
    (void)state;
    const mf_model m = test_model_dense();
    const mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    for (int64_t gpus = 1; gpus <= 16; gpus *= 2) {
        mf_layout l = sim_layout(&m, gpus, 1, 1, 1);
        l.offload_optimizer = 1;
        const double of_a_host = gpus < 8 ? (double)gpus : 8, half = c.host_Bps;
        const double all_s = shared_step_s(c, 2 * half, &soft, &m, &l),
                     half_s = shared_step_s(c, half, &soft, &m, &l);
        if (gpus == 1) {
            assert_close(all_s, half_s, 0);
        } else if (gpus > 2) {
            const double more_s = states_B(&m, &l, &c) * of_a_host * (1 / half - 1 / (2 * half));
            assert_close(half_s - all_s, more_s, 1e-9 * half_s);
        }
    }
}

static void overlap_and_fewer_host_ops_only_help(void **state) {
    (void)state;
    rng r = rng_init(55);
    mf_cluster c = test_cluster();
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    for (int i = 0; i < case_count(90, 18); i++) {
        const mf_model *m = &models[i % 3];
        mf_software soft = sim_software_ideal();
        mf_layout l = random_layout(&r, m), other = l;
        l.zero = l.expert_zero = (uint8_t)(i % 2); /* ZeRO-3 prefetch contends with the rest */
        other = l;
        l.overlap = other.overlap &= (uint8_t) ~(MF_OVERLAP_DP | MF_OVERLAP_PP);
        other.overlap |= i % 2 ? MF_OVERLAP_DP : MF_OVERLAP_PP;
        double apart = step_s(&c, &soft, m, &l), beside = step_s(&c, &soft, m, &other);
        assert_at_most(beside, apart * (1 + 1e-9));
        soft = sim_software_real();
        l.graph = MF_GRAPH_NONE;
        other = l;
        other.graph = MF_GRAPH_STEP;
        assert_at_most(step_s(&c, &soft, m, &other), step_s(&c, &soft, m, &l) * (1 + 1e-9));
    }
}

static void a_slow_host_sets_the_pace(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    soft.host_op_s = 5e-3;
    mf_cost *cost = sim_cost(&c, &soft);
    mf_model m = test_model_dense();
    mf_layout l = sim_layout(&m, 1, 1, 1, 4);
    mf_program *p = sim_program(&m, &l, &c);
    double host = 0;
    for (int i = 0; i < p->assignment.positions; i++) {
        const mf_block *b = p->blocks[p->block_of[i]];
        for (int o = 0; o < b->nops; o++) {
            host += 4 * mf_cost_host_s(cost, &b->ops[o], MF_GRAPH_NONE);
        }
    }
    mf_sim *s = sim_step(cost, p, NULL);
    assert_at_least(s->step_time_s, host);
    assert_at_most(s->step_time_s, host * 1.02);
    assert_above(s->breakdown_s[MF_BD_HOST], 0.9 * s->step_time_s);
    mf_sim_destroy(s);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
}

static void cancelling_stops_with_its_status(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    mf_cost *cost = sim_cost(&c, &soft);
    mf_model m = test_model_dense();
    mf_layout l = sim_layout(&m, 2, 2, 1, 4);
    mf_program *p = sim_program(&m, &l, &c);
    volatile int stop = 1;
    mf_sim_options o = {.cancel = &stop};
    mf_sim *s = NULL;
    assert_int_equal(mf_sim_step(cost, p, &o, &s, NULL), MF_INTERRUPTED);
    assert_null(s);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_sum_to_the_step_and_bounds_lie_below_it),
        cmocka_unit_test(one_rank_takes_the_serial_sum),
        cmocka_unit_test(pipelines_take_what_relaxation_over_their_events_gives),
        cmocka_unit_test(copies_are_on_their_own_where_a_pass_ends),
        cmocka_unit_test(a_merged_step_takes_the_sum_of_its_pairs),
        cmocka_unit_test(data_parallel_communication_runs_in_line_or_beside),
        cmocka_unit_test(only_sums_over_micro_batches_are_written_at_first),
        cmocka_unit_test(ops_move_up_by_what_is_saved_before_them),
        cmocka_unit_test(all_ranks_take_as_long_as_one_of_each_stage),
        cmocka_unit_test(ranks_with_fewer_rows_wait_for_the_hottest),
        cmocka_unit_test(more_bandwidth_is_never_slower),
        cmocka_unit_test(what_a_hosts_memory_gives_is_shared),
        cmocka_unit_test(states_of_all_gpus_pass_through_their_hosts_memory),
        cmocka_unit_test(overlap_and_fewer_host_ops_only_help),
        cmocka_unit_test(a_slow_host_sets_the_pace),
        cmocka_unit_test(cancelling_stops_with_its_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
