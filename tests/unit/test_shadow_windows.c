/* test_shadow_windows.c - a fused dispatcher that goes through windows in the peers' memory
 * (executor/ops/window.c) on shadows of GPUs: every rank's steps leave what they leave on CPU
 * ranks, which exchange slots, to the bit, op by op and from a graph, in whatever order queues are
 * worked on, without races. So do CPU ranks by the program in which exchanges do not put rows into
 * the order of experts (permute and unpermute do). The window's kernels are the references of
 * kernels/dispatch; layouts are drawn, half of those of four ranks with merged pairs, whose two
 * sides share a window.
 *
 *     test_shadow_windows --child RANKS [CASE]  the layouts of so many ranks, or one of them
 *     MF_SHADOW_CASES=40 test_shadow_windows    so many of each number of ranks
 */
#include "executor/comm/comm_launch.h"
#include "tests/support/sampled.h"
#include "tests/support/shadow_grid.h"

#include <unistd.h>

enum { CASES = 3 };

/* Does an exchange of the program put rows into the order of experts, or take them out of it? */
static bool puts_in_order(const mf_program *p) {
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

/* Shadows have a window, CPU ranks have none; exchanges put rows in order unless the case says not
 * to, or ranks of an expert TP group have the same rows. */
static mf_status has_its_window(const shadow_case *c, mf_err *e) {
    const bool window = mf_exec_window_B(c->exec) > 0;
    if (puts_in_order(c->program) != (c->layout.traits == 0 && c->layout.etp == 1)) {
        return mf_err_set(e, MF_TOLERANCE, "the program is not the one that was wanted");
    }
    return window == c->device->ops->on_host
               ? mf_err_set(e, MF_TOLERANCE, "dispatch: %s", mf_exec_dispatch_text(c->exec))
               : MF_OK;
}

/* CPU ranks by a program whose exchanges leave rows as they came, which a trait asks for that says
 * something of prices alone. */
static mf_status hold_order(const grid_model *m, const mf_layout *l, mf_device *host,
                            const shadow_bytes *want, mf_err *e) {
    mf_layout apart = *l;
    shadow_bytes got = {0};
    apart.traits = MF_TRAIT_PIECES_TOGETHER;
    const shadow_grid_rules alone = {.started = has_its_window};
    mf_status s = shadow_grid_train(m, &apart, false, &alone, host, &got, e);
    s = s == MF_OK ? shadow_hold_programs(want, &got, e) : s;
    shadow_bytes_clear(&got);
    return s == MF_OK ? s : mf_err_prefix(e, "permute and unpermute");
}

static const shadow_grid_rules rules = {.started = has_its_window, .more = hold_order};

/* The next layout that goes through windows: the shadows' domains hold two TP groups. */
static const grid_model *draw(rng *r, int ranks, bool merged, mf_layout *l) {
    for (;;) {
        mf_model m;
        const grid_model *g = grid_draw(r, ranks, l);
        l->dispatcher = MF_DISPATCH_FUSED;
        l->precision = MF_PREC_BF16;
        assert_ok(grid_model_load(g, &m, NULL));
        if (l->ep > 1 && !g->starved && (!merged || l->schedule == MF_SCHED_MERGED) &&
            mf_layout_resolve(l, &m, NULL) == MF_OK &&
            (l->ep - 1) * mf_layout_group(l, MF_GROUP_EP).stride < 2 * l->tp) {
            return g;
        }
    }
}

/* Gradients of a shared expert's gather (TP) are added to those of dispatch (EP), and nothing that
 * lies between makes one wait for the other. */
static const grid_model *draw_shared(mf_layout *l) {
    const grid_model *g = NULL;
    for (int i = 0; i < GRID_MODELS && g == NULL; i++) {
        g = strcmp(grid_models[i].name, "deepseek_v3") == 0 ? &grid_models[i] : NULL;
    }
    assert_non_null(g);
    grid_layout_init(l);
    l->gpus = l->tp = l->ep = 2;
    l->dispatcher = MF_DISPATCH_FUSED;
    l->precision = MF_PREC_BF16;
    l->mbs = 4;
    l->overlap = MF_OVERLAP_TP;
    return g;
}

static int child(int ranks, int only) {
    int64_t rank = 0, size = 1;
    mf_err e = {.text = ""};
    const char *wanted = getenv("MF_SHADOW_CASES");
    const int cases = wanted != NULL ? atoi(wanted) : case_count(CASES, 1);
    if (mf_comm_start(&rank, &size, &e) != MF_OK || size != ranks) {
        printf("ranks: %lld of %d: %s\n", (long long)size, ranks, e.text);
        return 1;
    }
    rng r = grid_seed(ranks);
    for (int i = 0; i < cases || i <= only; i++) {
        mf_layout l;
        char name[320];
        const grid_model *m =
            ranks == 2 && i == 0 ? draw_shared(&l) : draw(&r, ranks, ranks > 2 && i % 2 == 1, &l);
        if (only >= 0 && i != only) {
            continue;
        }
        grid_describe(&l, m, name, sizeof name);
        if (shadow_grid_compare(m, &l, &rules, 100 * (uint64_t)ranks + (uint64_t)i, &e) != MF_OK) {
            printf("rank %lld: case %d (%s): %s\n", (long long)rank, i, name, e.text);
            mf_comm_abort(1);
        }
    }
    mf_comm_stop();
    return 0;
}

static void launch(int ranks) {
    char count[16], self[4096], word[] = "--child";
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_above(length, 0);
    self[length] = '\0';
    snprintf(count, sizeof count, "%d", ranks);
    char *argv[] = {self, word, count, NULL};
    int code = -1;
    assert_ok(mf_comm_launch(ranks, argv, NULL, &code, NULL));
    assert_int_equal(code, 0);
}

static void two_ranks_leave_what_slots_leave(void **state) {
    (void)state;
    launch(2);
}

static void four_ranks_and_merged_pairs_leave_what_slots_leave(void **state) {
    (void)state;
    launch(4);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_leave_what_slots_leave),
        cmocka_unit_test(four_ranks_and_merged_pairs_leave_what_slots_leave),
    };
    if (argc > 2 && strcmp(argv[1], "--child") == 0) {
        return child(atoi(argv[2]), argc > 3 ? atoi(argv[3]) : -1);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
