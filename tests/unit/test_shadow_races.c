/* test_shadow_races.c - no two pieces of a step's work touch the same bytes, one of them writing,
 * without one waiting for the other: on one rank, and on the stages of a pipeline, where messages
 * leave on queues of their own. An edge that is left out is found, and named. Ranks are processes
 * of this program. */
#include "executor/comm/comm_launch.h"
#include "tests/support/sampled.h"
#include "tests/support/shadow_case.h"
#include "tests/support/shadow_races.h"
#include "tests/support/test.h"

#include <unistd.h>

enum { RACES = 8 };

static void label(void *user, const mf_exec_op *x) {
    char text[96];
    snprintf(text, sizeof text, "position %d %s", x->position, x->op->name);
    shadow_label(user, text);
}

/* Two steps, of which the second begins before the first has finished. */
static mf_status two_ahead(shadow_case *c, mf_err *e) {
    const mf_exec_batch batch = {c->sample, c};
    mf_exec_result r;
    mf_status status = mf_exec_step_begin(c->exec, &batch, 1e-3, e);
    status = status == MF_OK ? mf_exec_step_begin(c->exec, &batch, 1e-4, e) : status;
    status = status == MF_OK ? mf_exec_step_finish(c->exec, &r, e) : status;
    return status == MF_OK ? mf_exec_step_finish(c->exec, &r, e) : status;
}

/* One step, or two that go ahead, and how many races they have; the first of them in words. */
static mf_status races_of(const shadow_setup *s, bool ahead, mf_device *device, int64_t *races,
                          char *text, size_t size, mf_err *e) {
    shadow_case c;
    shadow_race race[RACES];
    shadow_bytes left = {0};
    mf_exec_options o;
    shadow_case_options(s, &o);
    o.before_op = label;
    o.user = device;
    *races = -1;
    mf_status status = shadow_case_lower(&c, s, device, e);
    status = status == MF_OK ? shadow_case_start(&c, device, &o, e) : status;
    if (status == MF_OK) {
        shadow_drop_recording(device);
        status = ahead ? two_ahead(&c, e) : shadow_steps(&c, 1, &left, e);
        status = status == MF_OK ? device->ops->wait(device, e) : status;
    }
    if (status == MF_OK) {
        *races = shadow_find_races(device, race, RACES);
        for (int64_t i = 0; i < *races && i < RACES; i++) {
            shadow_race_text(device, &race[i], text, size);
        }
    }
    if (*races > 0) {
        shadow_race_text(device, &race[0], text, size);
    }
    shadow_bytes_clear(&left);
    shadow_case_close(&c);
    return status;
}

static void one_rank_has_no_races(void **state) {
    static const shadow_setup setups[] = {
        {.family = "qwen2_moe", .precision = MF_PREC_BF16, .aux_coef = 0.02},
        {.family = "deepseek_v3", .precision = MF_PREC_BF16, .graph = true},
        {.family = "llama", .precision = MF_PREC_BF16, .graph = true},
    };
    const shadow_options o = {.records = true};
    (void)state;
    for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i += (size_t)case_stride(2)) {
        mf_device *device = NULL;
        int64_t races;
        char text[600] = "";
        mf_err e;
        assert_ok(shadow_open(&o, &device, &e));
        assert_ok(races_of(&setups[i], i == 1, device, &races, text, sizeof text, &e));
        assert_int_equal(races, 0);
        device->ops->close(device);
    }
}

/* The batch of the next step goes up while this one may still read its own. */
static void a_batch_that_comes_too_early_is_named(void **state) {
    const shadow_setup s = {.family = "llama", .precision = MF_PREC_BF16};
    (void)state;
    for (int k = 1; k <= 3; k++) { /* behind the first batch, before the second, behind it */
        const shadow_options o = {.records = true, .no_order = k};
        mf_device *device = NULL;
        int64_t races;
        char text[600] = "";
        mf_err e;
        assert_ok(shadow_open(&o, &device, &e));
        assert_ok(races_of(&s, true, device, &races, text, sizeof text, &e));
        assert_above(races, 0);
        assert_true(strstr(text, "copy") != NULL);
        assert_int_equal(shadow_orders(device), 4);
        device->ops->close(device);
    }
}

/* --- stages of a pipeline -----------------------------------------------------------------------
 */

static void two_stages(mf_layout *l) {
    l->gpus = l->pp = 2;
    l->mbs = 1;
}

/* Calls of order() before the first step, when one is captured and dropped; in a step: one behind
 * the batch and one before the results, which the host's wait stands in for, then two around each
 * of its messages. */
enum { PREPARED = 8, ORDERS = 10 };
/* Leaves out call number `left_out` of order() (0: none). Exit code 0: no race; 1: races, printed;
 * 2: something else. */
static int stage(int64_t left_out) {
    const shadow_setup s = {.family = "llama", .precision = MF_PREC_BF16, .layout = two_stages};
    const shadow_options o = {.records = true, .no_order = left_out, .timeout_s = 20.0};
    int64_t rank, size, races = -1;
    char text[600] = "";
    mf_device *device = NULL;
    mf_err e = {.text = ""};
    mf_status status = mf_comm_start(&rank, &size, &e);
    status = status == MF_OK ? shadow_open(&o, &device, &e) : status;
    if (device == NULL) {
        return 2;
    }
    status = status == MF_OK ? races_of(&s, false, device, &races, text, sizeof text, &e) : status;
    printf("rank %d: %lld orders, %lld races %s%s\n", (int)rank, (long long)shadow_orders(device),
           (long long)races, text, status == MF_OK ? "" : e.text);
    bool counted = shadow_orders(device) == PREPARED + ORDERS;
    device->ops->close(device);
    mf_comm_stop();
    bool named = strstr(text, "copy") != NULL || strstr(text, "send") != NULL;
    return status != MF_OK || !counted ? 2 : races == 0 ? 0 : named ? 1 : 2;
}

/* --- streams of one rank ------------------------------------------------------------------------
 */

static void streams_of_a_layer(mf_layout *l) {
    l->gpus = l->tp = l->ep = 2;
    l->mbs = 1;
    l->overlap = MF_OVERLAP_TP | MF_OVERLAP_EP;
    l->dispatcher = MF_DISPATCH_ALLTOALL;
    l->schedule = MF_SCHED_MERGED;
}

static void two_copies(mf_layout *l) {
    l->gpus = l->dp = 2;
    l->mbs = 1;
    l->zero = 1;
    l->overlap = MF_OVERLAP_DP;
}

static void two_chunks_each(mf_layout *l) {
    two_stages(l);
    l->vpp = 2;
    l->schedule = MF_SCHED_INTERLEAVED;
}

static void two_shards(mf_layout *l) {
    two_copies(l);
    l->zero = l->expert_zero = 3;
}

enum { REDUCTIONS = MF_STREAM_COUNT + 1 + MF_DEVICE_REDUCTIONS };

/* What runs beside compute. */
typedef struct beside {
    const char *name;
    void (*layout)(mf_layout *l);
    bool orders;     /* faults leave out order(), not await() */
    int first, last; /* queues that it is on */
    uint16_t offload;
} beside;

enum { AWAY = MF_OFFLOAD_INPUT | MF_OFFLOAD_QKV | MF_OFFLOAD_EXPERT_FC1 };

static const beside kinds[] = {
    {"layer", streams_of_a_layer, false, MF_STREAM_COMPUTE + 1, MF_STREAM_COUNT - 1, 0},
    {"copies", two_copies, true, REDUCTIONS, REDUCTIONS, 0},
    {"weights", two_copies, false, REDUCTIONS, REDUCTIONS, 0},
    {"shards", two_shards, false, MF_STREAM_DP, MF_STREAM_DP, 0},
    {"ends", two_stages, true, MF_STREAM_D2H, MF_STREAM_H2D, AWAY},
    {"own", two_chunks_each, false, MF_STREAM_D2H, MF_STREAM_H2D, AWAY},
    {"away", streams_of_a_layer, false, MF_STREAM_D2H, MF_STREAM_H2D, AWAY},
};

/* Work on the kind's queues that products were entered behind. */
static int64_t beside_compute(const mf_device *device, const beside *of) {
    const shadow_work *w;
    const int64_t n = shadow_recorded(device, &w);
    int64_t count = 0, more = 0;
    for (int64_t i = 0; i < n; i++) {
        count += w[i].queue >= of->first && w[i].queue <= of->last;
        more += count > 0 && w[i].kind == SHADOW_gemm;
    }
    return more > 0 ? count : 0;
}

static int position_of(const shadow_work *w) {
    int position = -1;
    return sscanf(w->label, "position %d", &position) == 1 ? position : -1;
}

/* Work on the queue of DP of an op so named that goes on beside products of the block before in
 * position, entered behind it. */
static int64_t beside_next(const mf_device *device, const char *name) {
    const shadow_work *w;
    const int64_t n = shadow_recorded(device, &w);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        bool mine = w[i].queue == MF_STREAM_DP && strstr(w[i].label, name) != NULL;
        int64_t k = i + 1;
        while (mine && k < n &&
               !(w[k].kind == SHADOW_gemm && position_of(&w[k]) == position_of(&w[i]) - 1)) {
            k++;
        }
        count += mine && k < n && !shadow_ordered(device, i, k);
    }
    return count;
}

typedef struct layer_run {
    const beside *of;
    int64_t left_out; /* call of await(), or of order(), in a step; 0: none; < 0: the step goes on
                         one queue */
    int64_t calls, beside, races, ahead, put_off;
    char text[600];
} layer_run;

static void look(mf_device *device, layer_run *r) {
    shadow_race race[RACES];
    r->beside = beside_compute(device, r->of);
    if (r->left_out == 0) {
        r->ahead = beside_next(device, "gather_weights");
        r->put_off = beside_next(device, "reduce_gradients");
    }
    r->races = shadow_find_races(device, race, RACES);
    if (r->races > 0) {
        shadow_race_text(device, &race[0], r->text, sizeof r->text);
    }
}

static mf_status run_layer(mf_device *device, layer_run *r, mf_err *e) {
    const shadow_setup s = {.family = "qwen2_moe",
                            .precision = MF_PREC_BF16,
                            .offload = r->of->offload,
                            .layout = r->of->layout};
    int64_t (*const calls)(const mf_device *d) = r->of->orders ? shadow_orders : shadow_awaits;
    shadow_case c;
    shadow_bytes left = {0};
    mf_exec_options o;
    shadow_case_options(&s, &o);
    o.before_op = label;
    o.user = device;
    mf_status status = shadow_case_lower(&c, &s, device, e);
    status = status == MF_OK ? shadow_case_start(&c, device, &o, e) : status;
    if (status == MF_OK) {
        const int64_t before = calls(device), k = r->left_out > 0 ? before + r->left_out : 0;
        shadow_drop_recording(device);
        mf_exec_use_streams(c.exec, r->left_out >= 0);
        shadow_leave_out(device, r->of->orders ? k : 0, r->of->orders ? 0 : k);
        status = shadow_steps(&c, 1, &left, e);
        status = status == MF_OK ? device->ops->wait(device, e) : status;
        r->calls = calls(device) - before;
        look(device, r);
    }
    shadow_bytes_clear(&left);
    shadow_case_close(&c);
    return status;
}

/* Exit code 0: no race; 1: races, printed; 2: something else; 3: as 0, and there was no such
 * call. */
static int layer(const char *kind, int64_t left_out) {
    layer_run r = {.left_out = left_out};
    const shadow_options o = {.records = true, .timeout_s = 20.0};
    int64_t rank, size;
    mf_device *device = NULL;
    mf_err e = {.text = ""};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        r.of = strcmp(kinds[i].name, kind) == 0 ? &kinds[i] : r.of;
    }
    mf_status status = mf_comm_start(&rank, &size, &e);
    status = status == MF_OK ? shadow_open(&o, &device, &e) : status;
    if (device == NULL || r.of == NULL) {
        return 2;
    }
    status = status == MF_OK ? run_layer(device, &r, &e) : status;
    if (rank == 0 && (status != MF_OK || left_out <= 0)) {
        printf("%lld calls, %lld beside compute (%lld gathers, %lld reductions beside the next "
               "block), %lld races %s%s\n",
               (long long)r.calls, (long long)r.beside, (long long)r.ahead, (long long)r.put_off,
               (long long)r.races, r.text, status == MF_OK ? "" : e.text);
    }
    device->ops->close(device);
    mf_comm_stop();
    bool shards = strcmp(kind, "shards") == 0 && left_out == 0;
    if (shards && (r.ahead == 0 || r.put_off == 0)) {
        return 2;
    }
    bool counted = left_out < 0 ? r.beside == 0 : r.calls > 0 && r.beside > 0;
    return status != MF_OK || !counted ? 2 : r.races > 0 ? 1 : left_out > r.calls ? 3 : 0;
}

/* --- copies to and from the host ----------------------------------------------------------------
 */

static void one_by_one(mf_layout *l) {
    l->mbs = 2;
}

static void in_pairs(mf_layout *l) {
    l->mbs = 1;
    l->schedule = MF_SCHED_MERGED;
}

/* Copies of offloaded tensors in one direction, and those of them that go on beside products of the
 * position behind theirs, entered behind them. */
static void copies_on(const mf_device *device, int queue, int64_t *all, int64_t *go_on) {
    const shadow_work *w;
    const int64_t n = shadow_recorded(device, &w);
    *all = *go_on = 0;
    for (int64_t i = 0; i < n; i++) {
        if (w[i].queue != queue || strstr(w[i].label, "offload") == NULL) {
            continue;
        }
        int64_t k = i + 1;
        while (k < n && !(w[k].kind == SHADOW_gemm && w[k].queue == MF_STREAM_COMPUTE &&
                          position_of(&w[k]) == position_of(&w[i]) + 1)) {
            k++;
        }
        (*all)++;
        *go_on += k < n && !shadow_ordered(device, i, k);
    }
}

typedef struct copies_run {
    int64_t no_order; /* call of order() in a step that is left out; 0: none */
    int64_t orders, races;
    int64_t out, out_beside, in, in_beside;
    char text[600];
} copies_run;

static void run_copies(void (*layout)(mf_layout *l), copies_run *r) {
    const shadow_setup s = {
        .family = "qwen3_moe", .precision = MF_PREC_BF16, .offload = AWAY, .layout = layout};
    const shadow_options o = {.records = true};
    shadow_case c;
    shadow_race race[RACES];
    shadow_bytes left = {0};
    mf_device *device = NULL;
    mf_exec_options more;
    mf_err e = {.text = ""};
    shadow_case_options(&s, &more);
    assert_ok(shadow_open(&o, &device, &e));
    more.before_op = label;
    more.user = device;
    assert_ok(shadow_case_lower(&c, &s, device, &e));
    assert_ok(shadow_case_start(&c, device, &more, &e));
    const int64_t orders = shadow_orders(device);
    shadow_drop_recording(device);
    shadow_leave_out(device, r->no_order > 0 ? orders + r->no_order : 0, 0);
    assert_ok(shadow_steps(&c, 1, &left, &e));
    assert_ok(device->ops->wait(device, &e));
    r->orders = shadow_orders(device) - orders;
    r->races = shadow_find_races(device, race, RACES);
    if (r->races > 0) {
        shadow_race_text(device, &race[0], r->text, sizeof r->text);
    }
    copies_on(device, MF_STREAM_D2H, &r->out, &r->out_beside);
    copies_on(device, MF_STREAM_H2D, &r->in, &r->in_beside);
    shadow_bytes_clear(&left);
    shadow_case_close(&c);
    device->ops->close(device);
}

static void copies_beside_the_next_block_have_no_races(void **state) {
    void (*const layouts[])(mf_layout * l) = {one_by_one, in_pairs};
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        copies_run r = {0};
        run_copies(layouts[i], &r);
        if (r.races > 0) {
            fail_msg("%s", r.text);
        }
        assert_above(r.out, 0);
        assert_int_equal(r.in, r.out);
        assert_int_equal(r.out_beside, r.out); /* a block behind theirs is in the pass */
        assert_int_equal(r.in_beside, r.in);
    }
}

/* Of each block that offloads four: its place is free again, holds all of it, host memory has it,
 * has come back. All calls but the second, before the results, which the host's wait stands in for.
 */
static void an_edge_of_a_copy_that_is_missing_is_named(void **state) {
    enum { AROUND = 2, BLOCKS = 4, MICRO_BATCHES = 2, RESULTS = 2 };
    (void)state;
    for (int64_t k = 1; k <= AROUND + 4 * BLOCKS * MICRO_BATCHES; k += case_stride(11)) {
        copies_run r = {.no_order = k};
        run_copies(one_by_one, &r);
        assert_int_equal(r.orders, AROUND + 4 * BLOCKS * MICRO_BATCHES);
        assert_true(k == RESULTS ? r.races == 0 : r.races > 0);
        assert_true(k == RESULTS || strstr(r.text, "copy") != NULL);
    }
}

/* --- ranks --------------------------------------------------------------------------------------
 */

static int launch(const char *what, int64_t left_out) {
    char number[32], self[4096], child_word[] = "--child", kind[16];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_above(length, 0);
    self[length] = '\0';
    snprintf(kind, sizeof kind, "%s", what);
    snprintf(number, sizeof number, "%lld", (long long)left_out);
    char *argv[] = {self, child_word, kind, number, NULL};
    int code = -1;
    mf_err e;
    assert_ok(mf_comm_launch(2, argv, NULL, &code, &e));
    return code;
}

static void pipeline_stages_have_no_races(void **state) {
    (void)state;
    assert_int_equal(launch("stage", 0), 0);
}

/* All but that of the results, and that behind the last message. */
static void an_edge_that_is_missing_is_named(void **state) {
    (void)state;
    for (int64_t k = 1; k < ORDERS; k += case_stride(ORDERS)) {
        if (k != 2) {
            assert_int_equal(launch("stage", PREPARED + k), 1);
        }
    }
}

static void streams_of_a_layer_have_no_races(void **state) {
    (void)state;
    assert_int_equal(launch("layer", 0), 0);
    assert_int_equal(launch("layer", -1), 0);
}

/* Calls of await(), one in so many. Some are for what others wait for as well, through a third
 * queue or later, or for memory that nobody takes again; this part of them, at least, is not. */
static void leave_out_waits(const char *kind, int64_t every, double part) {
    int named = 0, tried = 0, code = 0;
    if (cases_sampled()) { /* these are faults of the test's own making */
        assert_int_not_equal(launch(kind, 1), 2);
        return;
    }
    for (int64_t k = 1; code != 3; k += every) {
        code = launch(kind, k);
        assert_int_not_equal(code, 2);
        named += code == 1;
        tried += code != 3;
    }
    printf("%d of %d waits left out are named\n", named, tried);
    assert_at_least(tried, 10);
    assert_above(named, part * tried);
}

static void a_wait_that_is_missing_is_named(void **state) {
    (void)state;
    leave_out_waits("layer", 23, 0.8);
}

/* Gathers of ZeRO-3 beside the block before, reductions beside the one behind. */
static void shards_beside_the_next_block_have_no_races(void **state) {
    (void)state;
    assert_int_equal(launch("shards", 0), 0);
    assert_int_equal(launch("shards", -1), 0);
}

static void a_wait_for_a_shard_that_is_missing_is_named(void **state) {
    (void)state;
    leave_out_waits("shards", 2, 0.5);
}

static void gathers_beside_compute_have_no_races(void **state) {
    (void)state;
    assert_int_equal(launch("weights", 0), 0);
    assert_int_equal(launch("weights", -1), 0);
}

/* Each position's block waits for the gathers of the weights that it reads. */
static void a_wait_for_a_gather_that_is_missing_is_named(void **state) {
    enum { POSITIONS = 6 };
    (void)state;
    for (int64_t k = 1; k <= POSITIONS; k += case_stride(POSITIONS)) {
        assert_int_equal(launch("weights", k), 1);
    }
    assert_int_equal(launch("weights", POSITIONS + 1), 3);
}

static void reductions_beside_compute_have_no_races(void **state) {
    (void)state;
    assert_int_equal(launch("copies", 0), 0);
    assert_int_equal(launch("copies", -1), 0);
}

/* Behind the gradients of each of the positions, and before the norm; the first two calls of a step
 * are around its batch, the third lets gathers begin behind the update of the step before, which is
 * not recorded here. */
static void an_edge_of_a_reduction_that_is_missing_is_named(void **state) {
    enum { BEFORE = 3, POSITIONS = 6 };
    (void)state;
    for (int64_t k = 1; k <= POSITIONS + 1; k += case_stride(POSITIONS + 1)) {
        assert_int_equal(launch("copies", BEFORE + k), 1);
    }
    assert_int_equal(launch("copies", BEFORE + POSITIONS + 2), 3);
}

/* A stage's last block has its own leave as they are made, and the first of its backward passes
 * fetches for itself; offloading layers beside streams of their own. */
static void copies_at_the_ends_of_passes_have_no_races(void **state) {
    (void)state;
    assert_int_equal(launch("ends", 0), 0);
    assert_int_equal(launch("own", 0), 0);
    assert_int_equal(launch("away", 0), 0);
    assert_int_equal(launch("away", -1), 0);
}

/* Calls of order() up to that behind the first stage's last message, which its end waits for; all
 * but that of the results are named by one stage or the other. */
static void a_wait_at_the_end_of_a_pass_that_is_missing_is_named(void **state) {
    enum { CALLS = 25, RESULTS = 2 };
    (void)state;
    for (int64_t k = 1; k <= CALLS; k += case_stride(CALLS)) {
        if (k != RESULTS) {
            assert_int_equal(launch("ends", k), 1);
        }
    }
    leave_out_waits("own", 1, 0.8);
    leave_out_waits("away", 31, 0.8);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_has_no_races),
        cmocka_unit_test(a_batch_that_comes_too_early_is_named),
        cmocka_unit_test(copies_beside_the_next_block_have_no_races),
        cmocka_unit_test(an_edge_of_a_copy_that_is_missing_is_named),
        cmocka_unit_test(pipeline_stages_have_no_races),
        cmocka_unit_test(an_edge_that_is_missing_is_named),
        cmocka_unit_test(streams_of_a_layer_have_no_races),
        cmocka_unit_test(a_wait_that_is_missing_is_named),
        cmocka_unit_test(shards_beside_the_next_block_have_no_races),
        cmocka_unit_test(a_wait_for_a_shard_that_is_missing_is_named),
        cmocka_unit_test(gathers_beside_compute_have_no_races),
        cmocka_unit_test(a_wait_for_a_gather_that_is_missing_is_named),
        cmocka_unit_test(reductions_beside_compute_have_no_races),
        cmocka_unit_test(an_edge_of_a_reduction_that_is_missing_is_named),
        cmocka_unit_test(copies_at_the_ends_of_passes_have_no_races),
        cmocka_unit_test(a_wait_at_the_end_of_a_pass_that_is_missing_is_named),
    };
    if (argc > 3 && strcmp(argv[1], "--child") == 0) {
        const int64_t left_out = atoll(argv[3]);
        return strcmp(argv[2], "stage") == 0 ? stage(left_out) : layer(argv[2], left_out);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
