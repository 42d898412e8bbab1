/* More routed rows than there is space for, where the host cannot see it in time: the step runs to
 * its end, every rank says so and leaves the update out. Two ranks, each dispatcher, on a device
 * that gives its memory out as another's. The program starts itself again. */
#include "tests/support/grid_run.h"

static mf_device_ops far_ops;
static mf_device far = {.ops = &far_ops};
static mf_queue far_queue = {.device = &far};

static mf_queue *queue_of(mf_device *d, mf_stream stream) {
    (void)d, (void)stream;
    return &far_queue;
}

/* All that a rank owns of the weights, in one number that any change changes. */
static uint64_t mark_of(grid_case *g) {
    uint64_t mark = 0xcbf29ce484222325u;
    for (int i = 0; i < mf_exec_params(g->exec)->count; i++) {
        int64_t first = 0, count = 0;
        const float *own = mf_exec_own_weight(g->exec, i, &first, &count);
        for (int64_t k = 0; k < count; k++) {
            uint32_t bits = 0;
            memcpy(&bits, &own[k], sizeof bits);
            mark = (mark ^ bits) * 0x100000001b3u;
        }
    }
    return mark;
}

static bool says(bool ok, mf_dispatcher by, double headroom, const char *what, int64_t rank) {
    if (!ok) {
        printf("rank %lld: %s, headroom %g: %s\n", (long long)rank, mf_dispatcher_text(by),
               headroom, what);
        fflush(stdout);
    }
    return ok;
}

/* Two steps; with space for the balanced number of rows alone, no update. */
static bool holds(mf_dispatcher by, double headroom, int64_t rank, mf_err *e) {
    grid_case g;
    mf_layout l;
    mf_exec_options o;
    bool ok = true, tight = headroom < 2.0;
    grid_layout_init(&l);
    grid_options(&o);
    grid_headroom = headroom;
    l.gpus = l.ep = 2;
    l.mbs = 2;
    l.zero = l.expert_zero = 0;
    l.precision = MF_PREC_BF16;
    l.dispatcher = by;
    mf_status s = grid_open(&g, &grid_models[3], &l, &o, NULL, e);
    const mf_exec_batch batch = {grid_sample, &g};
    for (g.step = 0; g.step < 2 && s == MF_OK; g.step++) {
        mf_exec_result r;
        uint64_t before = mark_of(&g);
        s = mf_exec_step(g.exec, &batch, 1e-3, &r, e);
        bool moved = mark_of(&g) != before;
        ok = says((r.overflowed != 0) == tight, by, headroom, "overflow not reported", rank) && ok;
        ok = says(r.skipped == tight, by, headroom, "update not left out", rank) && ok;
        ok = says(moved != tight, by, headroom, "weights", rank) && ok;
    }
    grid_close(&g);
    return says(s == MF_OK, by, headroom, e->text, rank) && ok;
}

static int child(void) {
    int64_t rank = 0, size = 1;
    mf_err e = {.text = ""};
    bool ok = true;
    if (mf_comm_start(&rank, &size, &e) != MF_OK || size != 2) {
        printf("ranks: %lld of 2: %s\n", (long long)size, e.text);
        return 1;
    }
    far_ops = *mf_device_cpu()->ops;
    far_ops.on_host = false;
    far_ops.queue = queue_of;
    grid_device = &far;
    for (int by = 0; by < MF_DISPATCH_COUNT; by++) {
        ok = holds((mf_dispatcher)by, 1.0, rank, &e) && ok;
        ok = holds((mf_dispatcher)by, 2.0, rank, &e) && ok;
    }
    mf_comm_stop();
    return ok ? 0 : 1;
}

static void ranks_leave_the_update_out_together(void **state) {
    (void)state;
    grid_launch(2);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_leave_the_update_out_together)};
    grid_program = argv[0];
    int launched = self_launch(argc, argv);
    if (launched >= 0) {
        return launched;
    }
    if (argc > 1 && strcmp(argv[1], "--child") == 0) {
        return child();
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
