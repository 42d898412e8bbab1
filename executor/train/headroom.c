/* headroom.c - replaces the run's program when routing needs more token headroom than it has. */
#include "executor/train/run.h"

#include "core/base/clock.h"
#include "core/memory/memory.h"

#include <math.h>

/* Where memory allows, the new program has this many times the headroom that the routing needs, as
 * the next routing may need more. Where routing asks again it drifts, and the run stands still each
 * time: the second time there is more to spare, from the third on space for all rows there can be.
 */
static const double spare[] = {1.1, 1.3};

static double spare_now(const run *r) {
    const int count = sizeof spare / sizeof spare[0];
    return r->grown < count ? spare[r->grown] : (double)r->layout.ep;
}

typedef struct remedy {
    double headroom; /* routed rows over the balanced number */
    bool recompute;  /* recompute all layers, which saves least between passes */
    double peak_B;   /* of the fullest rank */
} remedy;

/* No routing sends a rank more than all rows of its expert-parallel group. */
static double at_most(const run *r, double headroom) {
    const double all = (double)r->layout.ep;
    return headroom < all ? headroom : all;
}

static void apply(const run *r, const remedy *to, mf_layout *l, mf_assignment *a) {
    *l = r->layout;
    *a = r->assignment;
    l->headroom_worst_case = false;
    l->token_headroom = to->headroom;
    for (int i = 0; to->recompute && i < a->positions; i++) {
        a->memory[i] = (mf_memory_choice){.recompute = MF_RECOMPUTE_LAYER};
    }
}

/* Does the program then fit? All ranks get the same answer. */
static mf_status judge(const run *r, remedy *to, bool *fits, mf_err *e) {
    mf_layout l;
    mf_assignment a;
    mf_program *program = NULL;
    mf_schedule *schedule = NULL;
    mf_memory *memory = NULL;
    apply(r, to, &l, &a);
    mf_status s = mf_program_lower(&r->model, &l, r->o->cluster, &a, &program, e);
    s = s == MF_OK ? mf_schedule_create(&l, &schedule, e) : s;
    s = s == MF_OK ? mf_memory_plan(program, schedule, &memory, e) : s;
    if (s == MF_OK) {
        *fits = memory->fits;
        to->peak_B = memory->peak_B;
    }
    mf_memory_destroy(memory);
    mf_schedule_destroy(schedule);
    mf_program_destroy(program);
    return s;
}

/* The first that fits of: the headroom that is needed with what is to spare; with less of that;
 * that headroom; the same with recomputation. */
static mf_status choose(const run *r, double asked, remedy *out, mf_err *e) {
    const double factors[] = {spare_now(r), fmin(spare_now(r), spare[1]), spare[0], 1, 1};
    const size_t count = sizeof factors / sizeof factors[0];
    remedy last = {.headroom = asked};
    for (size_t i = 0; i < count; i++) {
        bool fits = false;
        last = (remedy){.headroom = at_most(r, factors[i] * asked), .recompute = i + 1 == count};
        mf_status s = judge(r, &last, &fits, e);
        if (s != MF_OK || fits) {
            *out = last;
            return s;
        }
    }
    return mf_err_set(
        e, MF_INFEASIBLE,
        "step %lld: routing asks for %.3g x the balanced number of rows on a rank, the token "
        "headroom %.3g is too small for it, and no program with that headroom fits: all layers "
        "recomputed it needs %.2f GB of %.2f usable (more balance: --aux-loss; less memory: "
        "--micro-batch, --tp, --zero)",
        (long long)r->done + 1, asked, mf_layout_token_headroom(&r->layout), 1e-9 * last.peak_B,
        1e-9 * mf_cluster_usable_B(r->o->cluster, r->layout.reserve));
}

/* Replaces the run's program. The device may not hold two arenas; what outlives the program it
 * holds beside either, if it can. */
static mf_status change(run *r, const remedy *to, mf_err *e) {
    mf_exec_kept *kept = NULL;
    const int64_t updates = mf_exec_steps(r->exec);
    const double spare_B = mf_cluster_usable_B(r->o->cluster, r->layout.reserve) - to->peak_B;
    mf_status s = mf_comm_agree(r->comm, mf_exec_keep(r->exec, spare_B, &kept, e), e);
    if (s == MF_OK) {
        mf_run_unmake(r);
        apply(r, to, &r->layout, &r->assignment);
        s = mf_run_make(r, e);
        s = s == MF_OK ? mf_run_pace_program(r, e) : s;
        s = s == MF_OK ? mf_exec_restore(r->exec, kept, e) : s;
        s = s == MF_OK ? mf_exec_set_steps(r->exec, updates, r->skipped, e) : s;
        s = mf_comm_agree(r->comm, s, e);
    }
    mf_exec_kept_destroy(kept);
    return s == MF_OK ? mf_run_ready(r, e) : s;
}

mf_status mf_run_more_headroom(run *r, int64_t asked, mf_err *e) {
    const double had = mf_layout_token_headroom(&r->layout);
    const double wanted = had * 1e-3 * (double)asked, began_s = mf_clock_s();
    remedy to = {.headroom = had};
    mf_comm_add_again(r->comm);
    if (r->wire != NULL) {
        mf_comm_add_again(r->wire);
    }
    mf_status s = mf_comm_agree(r->comm, choose(r, wanted, &to, e), e);
    s = s == MF_OK ? change(r, &to, e) : s;
    if (s == MF_OK) {
        r->grown++;
        mf_run_warn(r,
                    "step %lld: routing asked for %.3g x the balanced number of rows on a rank, "
                    "the token headroom was %.3g x: it is run again with %.3g x%s, by which "
                    "the run goes on (%.1f s lost; --token-headroom %.3g has it from the start)",
                    (long long)r->done + 1, wanted, had, to.headroom,
                    to.recompute ? ", all layers recomputed" : "", mf_clock_s() - began_s,
                    to.headroom);
    }
    return s;
}
