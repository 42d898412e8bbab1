/* test_shadow_grid.c - folded layouts on shadows of GPUs (tests/support/shadow_device.h): every
 * rank's steps leave what they leave on CPU ranks, to the bit, in whatever order queues are worked
 * on; no two of a rank's queues touch the same bytes at once; and nobody waits for ever. Layouts
 * are those of test_executor_grid. Ranks are processes of this program.
 *
 *     test_shadow_grid --case RANKS [CASE]  the layouts of so many ranks, or one of them
 *     test_shadow_grid --child RANKS [CASE] the same, on ranks of another launcher
 *     MF_SHADOW_CASES=60 test_shadow_grid   so many of each number of ranks
 */
#include "executor/comm/comm_launch.h"
#include "tests/support/grid_draw.h"
#include "tests/support/sampled.h"
#include "tests/support/shadow_case.h"
#include "tests/support/shadow_hold.h"
#include "tests/support/shadow_races.h"

#include <unistd.h>

enum { STEPS = 2 };
static const struct { int ranks, cases; } grids[] = {{1, 6}, {2, 11}, {4, 11}, {8, 4}};

static mf_status sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    grid_case g = {.step = ((const shadow_case *)user)->step};
    return grid_sample(&g, index, tokens, e);
}

static void label(void *user, const mf_exec_op *x) {
    char text[96];
    snprintf(text, sizeof text, "position %d %s", x->position, x->op->name);
    shadow_label(user, text);
}

static mf_status open_case(shadow_case *c, const grid_model *m, const mf_layout *l, bool graph,
                           mf_device *device, mf_err *e) {
    mf_exec_options o;
    memset(c, 0, sizeof *c);
    c->layout = *l;
    c->sample = sample;
    mf_status s = grid_model_load(m, &c->model, e);
    grid_options(&o);
    o.graph = graph;
    c->layout.capacity_factor = m->capacity;
    c->layout.pad_to_capacity = m->padded;
    c->layout.aux_scope = MF_AUX_SEQUENCE;
    c->model.aux_loss_coef = c->model.experts > 0 ? o.aux_coef : 0.0;
    s = s == MF_OK ? shadow_case_program(c, device, e) : s;
    if (!device->ops->on_host) {
        o.before_op = label;
        o.user = device;
    }
    return s == MF_OK ? shadow_case_start(c, device, &o, e) : s;
}

/* Of the steps since they were recorded: MF_TOLERANCE, in words. */
static mf_status find_races(mf_device *device, mf_err *e) {
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

static mf_status train(const grid_model *m, const mf_layout *l, bool graph, mf_device *device,
                       shadow_bytes *out, mf_err *e) {
    shadow_case c;
    mf_status s = open_case(&c, m, l, graph, device, e);
    if (s == MF_OK && !device->ops->on_host) {
        shadow_drop_recording(device);
    }
    s = s == MF_OK ? shadow_steps(&c, STEPS, out, e) : s;
    s = s == MF_OK && !device->ops->on_host ? find_races(device, e) : s;
    s = s == MF_OK ? shadow_keep_states(&c, out, e) : s;
    shadow_case_close(&c);
    return s;
}

/* The same on the CPU and on the shadow, op by op and as a graph. */
static mf_status compare(const grid_model *m, const mf_layout *l, uint64_t seed, mf_err *e) {
    const shadow_options o = {.seed = seed,
                              .records = true,
                              .fused_sums = seed % 2 == 0,
                              .slots = true,
                              .timeout_s = 30.0};
    shadow_bytes want = {0}, got = {0};
    shadow_twin twin;
    mf_device *shadow = NULL;
    mf_status s = train(m, l, false, shadow_twin_open(&o, &twin), &want, e);
    for (int graph = 0; graph < 2 && s == MF_OK; graph++) {
        shadow_bytes_clear(&got);
        s = shadow_open(&o, &shadow, e);
        s = s == MF_OK ? train(m, l, graph == 1, shadow, &got, e) : s;
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

static int child(int ranks, int only) {
    int64_t rank = 0, size = 1;
    int failed = 0, cases = 0, played = 0;
    mf_err e = {.text = ""};
    if (mf_comm_start(&rank, &size, &e) != MF_OK || size != ranks) {
        printf("ranks: %lld of %d: %s\n", (long long)size, ranks, e.text);
        return 1;
    }
    for (size_t k = 0; k < sizeof grids / sizeof grids[0]; k++) {
        cases = grids[k].ranks == ranks ? grids[k].cases : cases;
    }
    cases = getenv("MF_SHADOW_CASES") != NULL ? atoi(getenv("MF_SHADOW_CASES")) : cases;
    rng r = grid_seed(ranks);
    for (int i = 0; i < cases || i <= only; i++) {
        mf_layout l;
        char name[320];
        const grid_model *m = grid_draw(&r, ranks, &l);
        l.precision = i % 2 == 0 ? MF_PREC_FP32 : MF_PREC_BF16;
        if (m->starved || (only >= 0 ? i != only : i % case_stride(4) != 0)) {
            continue;
        }
        played++;
        if (compare(m, &l, 100 * (uint64_t)ranks + (uint64_t)i, &e) != MF_OK) {
            grid_describe(&l, m, name, sizeof name);
            printf("rank %lld: case %d (%s %s): %s\n", (long long)rank, i, name,
                   mf_precision_text(l.precision), e.text);
            failed++;
            mf_comm_abort(1);
        }
    }
    if (rank == 0) {
        printf("%d ranks: %d layouts, %d failed on rank 0\n", ranks, played, failed);
    }
    mf_comm_stop();
    return failed > 0;
}

static int launch_case(int ranks, char *only) {
    char count[16], self[4096], child_word[] = "--child";
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_above(length, 0);
    self[length] = '\0';
    snprintf(count, sizeof count, "%d", ranks);
    char *argv[] = {self, child_word, count, only, NULL};
    int code = -1;
    mf_err e;
    assert_ok(mf_comm_launch(ranks, argv, NULL, &code, &e));
    return code;
}

static void launch(int ranks) {
    assert_int_equal(launch_case(ranks, NULL), 0);
}

static void one_rank_leaves_what_the_cpu_leaves(void **state) {
    (void)state;
    launch(1);
}

static void two_ranks_leave_what_cpus_leave(void **state) {
    (void)state;
    launch(2);
}

static void four_ranks_leave_what_cpus_leave(void **state) {
    (void)state;
    launch(4);
}

static void eight_ranks_leave_what_cpus_leave(void **state) {
    (void)state;
    launch(8);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_leaves_what_the_cpu_leaves),
        cmocka_unit_test(two_ranks_leave_what_cpus_leave),
        cmocka_unit_test(four_ranks_leave_what_cpus_leave),
        cmocka_unit_test(eight_ranks_leave_what_cpus_leave),
    };
    if (argc > 2 && strcmp(argv[1], "--child") == 0) {
        return child(atoi(argv[2]), argc > 3 ? atoi(argv[3]) : -1);
    }
    if (argc > 2 && strcmp(argv[1], "--case") == 0) {
        return launch_case(atoi(argv[2]), argc > 3 ? argv[3] : NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
