/* The Chrome trace of a step: valid JSON, one process a rank, slices that nest, a memory track. */
#include "core/base/json.h"
#include "tests/support/sim_fixture.h"

#include <string.h>

typedef struct slice {
    int64_t pid, tid;
    double start, end, waiting; /* microseconds */
    int64_t passes;             /* that a stretch holds */
    const char *category;
} slice;

typedef struct trace {
    mf_json *doc;
    slice *slice;
    size_t slices, processes, threads, counters, placed;
    double peak_B, last;
    size_t powers, clocks;
    double least_W, most_W, last_W, power_at, least_clock, most_clock;
    double first_J; /* of the first rank, until its last power */
    double *begun;  /* [ARROWS] by number: when, or -1 */
    size_t arrows, open_arrows;
} trace;
enum { ARROWS = 1 << 16 };

static int by_place(const void *a, const void *b) {
    const slice *x = a, *y = b;
    if (x->pid != y->pid) {
        return x->pid < y->pid ? -1 : 1;
    }
    if (x->tid != y->tid) {
        return x->tid < y->tid ? -1 : 1;
    }
    if (x->start != y->start) {
        return x->start < y->start ? -1 : 1;
    }
    return x->end > y->end ? -1 : x->end < y->end;
}

static const char *text_of(const mf_json_value *v, const char *key) {
    const char *s = "";
    assert_ok(mf_json_get_string(v, key, &s, NULL));
    return s;
}

/* Each arrow begins once, and ends once, later. */
static void read_arrow(trace *t, const mf_json_value *v, const char *kind, double at) {
    int64_t id = 0;
    assert_ok(mf_json_get_i64(v, "id", 0, ARROWS - 1, &id, NULL));
    if (*kind == 's') {
        assert_true(t->begun[id] < 0);
        t->begun[id] = at;
        t->arrows++;
        t->open_arrows++;
        return;
    }
    assert_true(t->begun[id] >= 0);
    assert_at_most(t->begun[id], at + 1e-6);
    t->open_arrows--;
}

static void read_event(trace *t, const mf_json_value *v) {
    const char *kind = text_of(v, "ph"), *name = text_of(v, "name");
    int64_t pid = 0;
    double at = 0, length = 0;
    assert_ok(mf_json_get_i64(v, "pid", 0, 1 << 20, &pid, NULL));
    if (*kind == 'M') {
        t->processes += strcmp(name, "process_name") == 0;
        t->threads += strcmp(name, "thread_name") == 0;
        t->placed += strstr(name, "_sort_index") != NULL;
        return;
    }
    assert_ok(mf_json_get_f64(v, "ts", 0, 1e15, &at, NULL));
    if (*kind == 's' || *kind == 'f') {
        read_arrow(t, v, kind, at);
        return;
    }
    if (*kind == 'C' && strcmp(name, "power") == 0) {
        double watts = 0;
        assert_ok(mf_json_get_f64(mf_json_find(v, "args"), "W", 0, 1e4, &watts, NULL));
        t->least_W = t->powers == 0 ? watts : fmin(t->least_W, watts);
        t->most_W = fmax(t->most_W, watts);
        if (pid == 0) {
            assert_at_most(t->power_at, at + 1e-6);
            t->first_J += t->last_W * (at - t->power_at) / 1e6;
            t->power_at = at;
            t->last_W = watts;
        }
        t->powers++;
        return;
    }
    if (*kind == 'C' && strcmp(name, "clock of products") == 0) {
        double share = 0;
        assert_ok(mf_json_get_f64(mf_json_find(v, "args"), "share", 0, 1, &share, NULL));
        t->least_clock = t->clocks == 0 ? share : fmin(t->least_clock, share);
        t->most_clock = fmax(t->most_clock, share);
        t->clocks++;
        return;
    }
    if (*kind == 'C') {
        double bytes = 0;
        assert_string_equal(name, "memory");
        assert_ok(mf_json_get_f64(mf_json_find(v, "args"), "bytes", 0, 1e15, &bytes, NULL));
        t->peak_B = fmax(t->peak_B, bytes);
        t->counters++;
        return;
    }
    assert_string_equal(kind, "X");
    slice *s = &t->slice[t->slices++];
    s->pid = pid;
    assert_ok(mf_json_get_f64(v, "dur", 0, 1e15, &length, NULL));
    assert_ok(mf_json_get_i64(v, "tid", 0, 100, &s->tid, NULL));
    s->start = at;
    s->end = at + length;
    s->category = text_of(v, "cat");
    s->passes = 1;
    if (strcmp(s->category, "passes") == 0) {
        const mf_json_value *args = mf_json_find(v, "args");
        assert_ok(mf_json_get_i64(args, "passes", 2, 1 << 20, &s->passes, NULL));
        assert_ok(mf_json_get_f64(args, "waiting_us", 0, length, &s->waiting, NULL));
    }
    assert_true(*name != '\0');
    assert_int_equal(mf_json_value_type(mf_json_find(v, "args")), MF_JSON_OBJECT);
    t->last = fmax(t->last, s->end);
}

static trace draw(const mf_cost *cost, const mf_program *p, mf_sim_options o, mf_sim **sim) {
    trace t = {.doc = NULL};
    char *text = NULL;
    size_t length = 0;
    o.trace = open_memstream(&text, &length);
    *sim = sim_step(cost, p, &o);
    fclose(o.trace);
    mf_err e;
    if (mf_json_parse("trace", text, length, &t.doc, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    const mf_json_value *events = mf_json_find(mf_json_root(t.doc), "traceEvents");
    t.slice = calloc(mf_json_size(events) + 1, sizeof *t.slice);
    t.begun = malloc(ARROWS * sizeof *t.begun);
    assert_non_null(t.begun);
    for (int i = 0; i < ARROWS; i++) {
        t.begun[i] = -1;
    }
    for (size_t i = 0; i < mf_json_size(events); i++) {
        read_event(&t, mf_json_at(events, i));
    }
    qsort(t.slice, t.slices, sizeof *t.slice, by_place);
    free(text);
    return t;
}

static void trace_clear(trace *t) {
    mf_json_destroy(t->doc);
    free(t->slice);
    free(t->begun);
}

/* Times have three digits behind the point: sums of two of them are exact to 1e-6. */
static void check_nesting(const trace *t) {
    enum { DEPTH = 8 };
    double open[DEPTH];
    int depth = 0;
    for (size_t i = 0; i < t->slices; i++) {
        const slice *s = &t->slice[i];
        if (i == 0 || s->pid != s[-1].pid || s->tid != s[-1].tid) {
            depth = 0;
        }
        while (depth > 0 && open[depth - 1] <= s->start + 1e-6) {
            depth--;
        }
        if (depth > 0 && s->end > open[depth - 1] + 1e-6) {
            fail_msg("pid %d tid %d: %s at %f ends behind what holds it", (int)s->pid, (int)s->tid,
                     s->category, s->start);
        }
        assert_below(depth, DEPTH);
        open[depth++] = s->end;
    }
}

/* Slices on the two tracks of messages. */
static size_t messages_between_first_ranks(const trace *t) {
    size_t n = 0;
    for (size_t i = 0; i < t->slices; i++) {
        n += t->slice[i].tid == MF_STREAM_COUNT || t->slice[i].tid == MF_STREAM_COUNT + 1;
    }
    return n;
}

static void traces_are_valid_and_their_slices_nest(void **state) {
    (void)state;
    rng r = rng_init(61);
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_real();
    soft.fixed_step_s = 5e-3; /* drawn, too: a trace ends with its step */
    mf_cost *cost = sim_cost(&c, &soft);
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    for (int i = 0; i < 24; i++) {
        mf_layout l = test_random_layout(&r, &models[i % 3], 32);
        mf_program *p = sim_program(&models[i % 3], &l, &c);
        mf_sim *sim;
        trace t = draw(cost, p, (mf_sim_options){.every_rank = i % 4 == 0}, &sim);
        assert_int_equal(t.processes, l.pp);
        assert_int_equal(t.threads, l.pp * (MF_STREAM_COUNT + 3));
        assert_int_equal(t.placed, t.processes + t.threads);
        assert_int_equal(t.open_arrows, 0);
        assert_int_equal(t.arrows, messages_between_first_ranks(&t));
        check_nesting(&t);
        assert_at_most(fabs(t.last - sim->step_time_s * 1e6), 1e-2);
        assert_close(t.peak_B, sim->memory->peak_B, 1);
        assert_true(t.counters >= (size_t)(2 * l.micro_batches * l.pp * l.vpp) ||
                    l.schedule == MF_SCHED_MERGED);
        const mf_json_value *other = mf_json_find(mf_json_root(t.doc), "otherData");
        assert_string_equal(text_of(other, "ops"), "every micro-batch");
        trace_clear(&t);
        mf_sim_destroy(sim);
        mf_program_destroy(p);
    }
    mf_cost_destroy(cost);
}

/* Ranks drift apart in weight gradients that are split off, and begin the next block each for
 * itself. */
static void ranks_that_drift_apart_have_slices_that_nest(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_real();
    mf_cost *cost = sim_cost(&c, &soft);
    mf_model m = test_model_moe(false);
    mf_layout l = sim_layout(&m, 8, 2, 4, 6);
    l.schedule = MF_SCHED_ZB_H1;
    mf_program *p = sim_program(&m, &l, &c);
    mf_routing routing = {.kind = MF_ROUTING_ZIPF, .zipf_s = 1.0};
    mf_sim *sim;
    mf_sim_options o = {.every_rank = true, .trace_ranks = 8, .routing = &routing};
    trace t = draw(cost, p, o, &sim);
    assert_int_equal(t.processes, 8);
    check_nesting(&t);
    trace_clear(&t);
    mf_sim_destroy(sim);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
}

/* A slice of this process and track that is open at a time. */
static bool is_open_at(const trace *t, int64_t pid, int64_t tid, double at) {
    for (size_t i = 0; i < t->slices; i++) {
        const slice *s = &t->slice[i];
        if (s->pid == pid && s->tid == tid && s->start <= at + 2e-3 && at <= s->end + 2e-3) {
            return true;
        }
    }
    return false;
}

static size_t count_of(const trace *t, const char *category) {
    size_t count = 0;
    for (size_t i = 0; i < t->slices; i++) {
        count += strcmp(t->slice[i].category, category) == 0 ? (size_t)t->slice[i].passes : 0;
    }
    return count;
}

/* Stages stand in their order under their names; an arrow leaves the slice of a message and enters
 * a slice of the stage that takes it: the next one, forward, or the one before, round the ends
 * where stages hold several chunks. */
static void check_pipeline(mf_schedule_kind schedule, int64_t micro_batches, int64_t ops) {
    enum { STAGES = 4, RANKS = 2 };
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_real();
    mf_cost *cost = sim_cost(&c, &soft);
    mf_model m = test_model_moe(false);
    mf_layout l = sim_layout(&m, STAGES * RANKS, STAGES, RANKS, micro_batches);
    l.vpp = 2;
    l.ep = RANKS;
    l.dispatcher = MF_DISPATCH_ALLTOALL;
    l.schedule = schedule;
    assert_ok(mf_layout_resolve(&l, &m, NULL));
    mf_program *p = sim_program(&m, &l, &c);
    mf_sim *sim;
    trace t = draw(cost, p, (mf_sim_options){.trace_ops = ops}, &sim);
    check_nesting(&t);
    const mf_json_value *events = mf_json_find(mf_json_root(t.doc), "traceEvents");
    int64_t from[ARROWS], named = 0, placed = 0, forward = 0, backward = 0;
    for (size_t i = 0; i < mf_json_size(events); i++) {
        const mf_json_value *v = mf_json_at(events, i);
        const char *kind = text_of(v, "ph"), *name = text_of(v, "name");
        int64_t pid = 0, tid = 0, id = 0;
        assert_ok(mf_json_get_i64(v, "pid", 0, 1 << 20, &pid, NULL));
        const int64_t stage = pid / RANKS;
        if (strcmp(name, "process_name") == 0) {
            char want[40];
            snprintf(want, sizeof want, "stage %d, rank %d", (int)stage, (int)pid);
            assert_string_equal(text_of(mf_json_find(v, "args"), "name"), want);
            named++;
        } else if (strcmp(name, "process_sort_index") == 0) {
            int64_t index = -1;
            assert_ok(
                mf_json_get_i64(mf_json_find(v, "args"), "sort_index", 0, 1 << 20, &index, NULL));
            assert_int_equal(index, pid); /* ranks of later stages are larger */
            placed++;
        } else if (*kind == 's' || *kind == 'f') {
            double at = 0;
            assert_ok(mf_json_get_i64(v, "id", 0, ARROWS - 1, &id, NULL));
            assert_ok(mf_json_get_i64(v, "tid", 0, 100, &tid, NULL));
            assert_ok(mf_json_get_f64(v, "ts", 0, 1e15, &at, NULL));
            assert_true(is_open_at(&t, pid, tid, at));
            if (*kind == 's') {
                const bool goes_on = tid == MF_STREAM_COUNT;
                from[id] = goes_on ? (stage + 1) % STAGES : (stage + STAGES - 1) % STAGES;
                forward += goes_on;
                backward += !goes_on;
            } else {
                assert_int_equal(stage, from[id]);
                assert_int_equal(tid, MF_STREAM_COMPUTE);
            }
        }
    }
    assert_int_equal(named, STAGES);
    assert_int_equal(placed, STAGES);
    assert_int_equal(t.open_arrows, 0);
    /* Every chunk but the last passes every micro-batch on, and its gradient back: where not all
     * are drawn, the first and the last one. */
    const int64_t moves = STAGES * l.vpp - 1;
    if (ops == 0) {
        assert_int_equal(forward, moves * l.micro_batches);
        assert_int_equal(backward, forward);
    } else {
        assert_true(count_of(&t, "passes") > 0);
        assert_at_least(forward, 2 * moves);
        assert_at_least(backward, 2 * moves);
    }
    trace_clear(&t);
    mf_sim_destroy(sim);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
}

static void pipelines_with_chunks_name_stages_and_point_at_the_next(void **state) {
    (void)state;
    check_pipeline(MF_SCHED_INTERLEAVED, 8, 0);
    check_pipeline(MF_SCHED_MERGED, 8, 0);
}

static double busy_of(const trace *t, int64_t pid, const char *category) {
    double sum = 0;
    for (size_t i = 0; i < t->slices; i++) {
        if (t->slice[i].pid == pid && strcmp(t->slice[i].category, category) == 0) {
            sum += t->slice[i].end - t->slice[i].start - t->slice[i].waiting;
        }
    }
    return sum * 1e-6;
}

static void slices_add_up_to_the_stage_times(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    mf_cost *cost = sim_cost(&c, &soft);
    mf_model m = test_model_dense();
    mf_layout l = sim_layout(&m, 4, 4, 1, 6);
    mf_program *p = sim_program(&m, &l, &c);
    mf_sim *sim;
    trace t = draw(cost, p, (mf_sim_options){.every_rank = false}, &sim);
    for (int64_t k = 0; k < 4; k++) {
        double blocks = busy_of(&t, k, "block"), passes = busy_of(&t, k, "pass");
        double own = sim->stage[k].breakdown_s[MF_BD_COMPUTE];
        assert_close(blocks, passes, 1e-6);
        assert_close(blocks, own, 1e-6);
    }
    trace_clear(&t);
    mf_sim_destroy(sim);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
}

static trace draw_on(const char *arch, int64_t ops, mf_power *power) {
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    snprintf(c.gpu.arch, sizeof c.gpu.arch, "%s", arch);
    c.gpu.power_w = 700;
    soft.power_cap = 1;
    mf_cost *cost = sim_cost(&c, &soft);
    mf_model m = test_model_dense();
    mf_layout l = sim_layout(&m, 4, 4, 1, 6);
    mf_program *p = sim_program(&m, &l, &c);
    mf_sim *sim;
    trace t = draw(cost, p, (mf_sim_options){.every_rank = false, .trace_ops = ops}, &sim);
    *power = mf_cost_power(cost);
    mf_sim_destroy(sim);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
    return t;
}

/* Idle between blocks and behind the last, no more than the cap in between. */
static void power_and_clock_are_drawn_where_energies_are_known(void **state) {
    (void)state;
    mf_power power;
    trace t = draw_on("hopper", 0, &power);
    assert_true(t.powers > t.clocks);
    assert_true(t.clocks > 0);
    assert_close(t.least_W, power.idle_W, 1e-5);
    assert_close(t.last_W, power.idle_W, 1e-5);
    assert_true(t.most_W > power.idle_W);
    assert_at_most(t.most_W, power.cap_W);
    assert_true(t.least_clock >= 1.0 / 3 - 1e-6);
    assert_at_most(t.most_clock, 1);
    trace few = draw_on("hopper", 1, &power); /* means over passes hold the same energy */
    assert_true(few.powers < t.powers);
    assert_true(few.clocks < t.clocks);
    assert_close(few.last_W, power.idle_W, 1e-5);
    assert_close(few.first_J / t.first_J, 1, 1e-4);
    assert_at_least(few.least_clock, t.least_clock);
    trace_clear(&few);
    trace_clear(&t);
    t = draw_on("blackwell", 0, &power);
    assert_int_equal(t.powers + t.clocks, 0);
    trace_clear(&t);
}

static void the_first_ranks_can_be_drawn_instead(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    mf_cost *cost = sim_cost(&c, &soft);
    mf_model m = test_model_moe(false);
    mf_layout l = sim_layout(&m, 8, 2, 4, 2);
    mf_program *p = sim_program(&m, &l, &c);
    mf_sim *sim;
    trace t = draw(cost, p, (mf_sim_options){.every_rank = true, .trace_ranks = 5}, &sim);
    assert_int_equal(t.processes, 5);
    assert_int_equal(t.slice[t.slices - 1].pid, 4);
    trace_clear(&t);
    mf_sim_destroy(sim);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
}

/* Stretches hold the passes that are not drawn one by one, and as much work and memory. */
static void check_stretches(const trace *few, const trace *all, int64_t stages) {
    assert_int_equal(count_of(all, "passes"), 0);
    assert_true(count_of(few, "passes") > 0);
    assert_int_equal(count_of(few, "pass") + count_of(few, "passes"), count_of(all, "pass"));
    assert_close(few->peak_B, all->peak_B, 1e-9);
    for (int64_t stage = 0; stage < stages; stage++) {
        assert_close(busy_of(few, stage, "pass") + busy_of(few, stage, "passes"),
                     busy_of(all, stage, "pass"), 1e-6);
    }
}

/* An arrow may lead into a stretch: from an edge of the step that works on another micro-batch,
 * too. */
static void arrows_of_long_steps_connect(void **state) {
    (void)state;
    check_pipeline(MF_SCHED_INTERLEAVED, 200, 20);
    check_pipeline(MF_SCHED_MERGED, 200, 20);
}

static void long_steps_draw_the_ops_of_few_micro_batches(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    mf_cost *cost = sim_cost(&c, &soft);
    mf_model m = test_model_moe(true);
    strcpy(m.name, "my \"own\" \\ model");
    mf_layout l = sim_layout(&m, 4, 4, 1, 800);
    mf_program *p = sim_program(&m, &l, &c);
    mf_sim *sim;
    trace t = draw(cost, p, (mf_sim_options){.every_rank = false}, &sim);
    const mf_json_value *other = mf_json_find(mf_json_root(t.doc), "otherData");
    assert_string_equal(text_of(other, "ops"), "first two and last micro-batch");
    assert_string_equal(text_of(other, "model"), m.name);
    assert_int_equal(count_of(&t, "block"), 2 * 800 * p->assignment.positions);
    assert_below(t.slices, 60000);
    check_nesting(&t);
    mf_sim *again;
    trace few = draw(cost, p, (mf_sim_options){.every_rank = false, .trace_ops = 100}, &again);
    const mf_json_value *says = mf_json_find(mf_json_root(few.doc), "otherData");
    assert_string_equal(text_of(says, "blocks"), "first and last micro-batch");
    assert_int_equal(count_of(&few, "block"), 2 * 2 * p->assignment.positions);
    assert_close(few.last, t.last, 1e-6);
    check_nesting(&few);
    check_stretches(&few, &t, l.pp);
    assert_below(few.slices, 5000);
    assert_string_equal(text_of(other, "passes"), "every one");
    assert_non_null(strstr(text_of(says, "passes"), "others in one slice"));
    trace_clear(&few);
    mf_sim_destroy(again);
    trace_clear(&t);
    mf_sim_destroy(sim);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
}

static void a_full_disk_is_reported(void **state) {
    (void)state;
    FILE *full = fopen("/dev/full", "wb");
    if (full == NULL) {
        skip();
    }
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    mf_cost *cost = sim_cost(&c, &soft);
    mf_model m = test_model_dense();
    mf_layout l = sim_layout(&m, 1, 1, 1, 1);
    mf_program *p = sim_program(&m, &l, &c);
    mf_sim_options o = {.trace = full};
    mf_sim *s = NULL;
    mf_err e;
    assert_int_equal(mf_sim_step(cost, p, &o, &s, &e), MF_IO);
    assert_non_null(strstr(e.text, "trace: "));
    assert_null(s);
    fclose(full);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traces_are_valid_and_their_slices_nest),
        cmocka_unit_test(ranks_that_drift_apart_have_slices_that_nest),
        cmocka_unit_test(pipelines_with_chunks_name_stages_and_point_at_the_next),
        cmocka_unit_test(slices_add_up_to_the_stage_times),
        cmocka_unit_test(power_and_clock_are_drawn_where_energies_are_known),
        cmocka_unit_test(the_first_ranks_can_be_drawn_instead),
        cmocka_unit_test(long_steps_draw_the_ops_of_few_micro_batches),
        cmocka_unit_test(arrows_of_long_steps_connect),
        cmocka_unit_test(a_full_disk_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
