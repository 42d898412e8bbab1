/* inner_splits.c - whole positions on every virtual stage, by branch and bound.
 *
 * Most of what whole layers cost comes from the split of the positions: relaxed, every virtual
 * stage holds the same fraction of a layer too many or too few, and the schedule's bubbles vanish.
 * The choices of memory may stay in any proportion. So the tree branches on nothing but n[v], the
 * number of positions on virtual stage v. With every range of n the places at which positions can
 * stand shrink, since their order is kept: y[v, slot], layers of a slot up to v, lies between what
 * the fewest and the most positions up to v hold of it.
 *
 * What makes the tree small is probing. To put one position more than the relaxation does on a
 * virtual stage costs much at once (the whole pipeline waits for its longest link), so that almost
 * everywhere a single linear program tells that it does not pay, and the range loses that end for
 * good. What is left is decided near the ends, where embedding, dense layers and head stand.
 */
#include "planner/floor.h"
#include "planner/inner_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROOT_LAZY = 40, MAX_LAZY = 8, MAX_DEPTH = 64 };
#define WHOLE 1e-6

/* Ranges of n. */
typedef struct range {
    int16_t lo, hi;
} range;

typedef struct tree {
    mf_inner *in;
    const mf_inner_split_options *o;
    mf_rows rows;
    mf_lp *lp;
    double cutoff;     /* in the program's unit */
    range *now;        /* [vstages] */
    int *least, *most; /* [vstages + 1] positions before v: fewest and most */
    int *slots_until;  /* [slots][positions + 1] positions of a slot among the first so many */
    int *fewest;       /* [vstages] positions, for losses */
    double *n;         /* [vstages] at the last point */
    double open;       /* least bound of what is left open or is a whole split */
    int64_t lps;
    mf_inner_split_result *out;
} tree;

/* --- ranges ------------------------------------------------------------------------------------
 */

/* Narrows the ranges to what sums and slots allow; false when nothing is left. */
static bool narrow(tree *t, range *r) {
    int vstages = t->in->vstages, positions = t->in->positions;
    t->least[0] = t->most[0] = 0;
    for (int v = 0; v < vstages; v++) {
        t->least[v + 1] = t->least[v] + r[v].lo;
        t->most[v + 1] = t->most[v] + r[v].hi;
    }
    int after_lo = 0, after_hi = 0;
    for (int v = vstages; v >= 0; v--) {
        int least = positions - after_hi, most = positions - after_lo;
        t->least[v] = t->least[v] > least ? t->least[v] : least;
        t->most[v] = t->most[v] < most ? t->most[v] : most;
        if (t->least[v] > t->most[v]) {
            return false;
        }
        if (v > 0) {
            after_lo += r[v - 1].lo;
            after_hi += r[v - 1].hi;
        }
    }
    for (int v = 0; v < vstages; v++) {
        int lo = t->least[v + 1] - t->most[v], hi = t->most[v + 1] - t->least[v];
        r[v].lo = (int16_t)(r[v].lo > lo ? r[v].lo : lo);
        r[v].hi = (int16_t)(r[v].hi < hi ? r[v].hi : hi);
        if (r[v].lo > r[v].hi) {
            return false;
        }
    }
    return true;
}

/* Puts ranges into the program. */
static void put(tree *t, const range *r) {
    const mf_inner *in = t->in;
    for (int v = 0; v < in->vstages; v++) {
        mf_lp_set_row(t->lp, t->rows.first_size_row + v, r[v].lo, r[v].hi);
        for (int s = 0; s < in->slots; s++) {
            int col = t->rows.until[v * in->slots + s];
            const int *until = t->slots_until + (size_t)s * (size_t)(in->positions + 1);
            if (col >= 0) {
                mf_lp_set_col(t->lp, col, until[t->least[v + 1]], until[t->most[v + 1]]);
            }
        }
    }
}

/* What passes lose at least grows with the fewest positions that virtual stages hold; the rows of
 * the first chains are told. */
static void tell_losses(tree *t, const range *r) {
    for (int v = 0; v < t->in->vstages; v++) {
        t->fewest[v] = r[v].lo;
    }
    mf_inner_losses(t->in, t->fewest, t->o->cutoff_s);
    t->rows.keep_rows = false; /* behind these, rows may go */
    for (int i = 0; i < t->rows.row_chains; i++) {
        mf_lp_set_row(t->lp, t->rows.first_chain_row + i, -INFINITY, mf_rows_chain_hi(&t->rows, i));
    }
}

/* Solves for ranges. Returns the bound, the cutoff at most; INFINITY when nothing is left. The
 * point's n is kept when the bound is below the cutoff. */
static double solve(tree *t, range *r) {
    double bound;
    if (!narrow(t, r)) {
        return HUGE_VAL;
    }
    put(t, r);
    t->lps++;
    mf_milp_outcome outcome =
        mf_lp_solve(t->lp, t->cutoff, t->lps == 1 ? ROOT_LAZY : MAX_LAZY, &bound);
    if (outcome == MF_MILP_FAILED) {
        t->out->outcome = MF_MILP_FAILED;
        return -HUGE_VAL;
    }
    if (outcome == MF_MILP_INFEASIBLE) {
        return HUGE_VAL;
    }
    if (outcome == MF_MILP_LIMIT) {
        return -HUGE_VAL;
    }
    if (bound < t->cutoff) {
        const double *x = mf_lp_point(t->lp);
        for (int v = 0; v < t->in->vstages; v++) {
            t->n[v] = 0.0;
            for (size_t i = mf_inner_cell(t->in, v, 0, 0); i < mf_inner_cell(t->in, v + 1, 0, 0);
                 i++) {
                t->n[v] += t->rows.col[i] >= 0 ? x[t->rows.col[i]] : 0.0;
            }
        }
    }
    return bound;
}

/* --- probing -----------------------------------------------------------------------------------
 */

/* Probes that tell something tell it soon. */
#define MOST_PIVOTS 60

/* May n[v] lie in [lo, hi]? False when that is proven not to pay. */
static bool pays(tree *t, const range *r, range *room, int v, int lo, int hi) {
    memcpy(room, r, (size_t)t->in->vstages * sizeof *room);
    room[v] = (range){(int16_t)lo, (int16_t)hi};
    mf_lp_back_to_mark(t->lp);
    mf_lp_limit(t->lp, MOST_PIVOTS);
    bool less = solve(t, room) < t->cutoff;
    mf_lp_limit(t->lp, 0);
    return less;
}

/* Where the point lies at least so far between two whole numbers, either side is probed; else
 * (FAR) the numbers beside the nearest. */
#define HALF_WAY 0.2
#define NEAR WHOLE
#define FAR 1.0
/* Virtual stages are much alike: when so many in a row tell nothing, the rest will not either. */
#define MOST_MISSES 3

/* Cuts ends off the ranges. *changed: some were. False when nothing is left. */
static bool probe(tree *t, range *r, range *room, double off, bool *changed) {
    int vstages = t->in->vstages;
    bool near = off < FAR;
    double *n = t->n + vstages; /* the point before probing */
    memcpy(n, t->n, (size_t)vstages * sizeof *n);
    mf_lp_mark(t->lp);
    int misses = 0;
    for (int v = 0; v < vstages && misses < MOST_MISSES; v++) {
        int below = (int)floor(n[v] + WHOLE), above = (int)ceil(n[v] - WHOLE);
        if (near && fabs(n[v] - round(n[v])) < off) {
            continue;
        }
        int next = (int)lround(n[v]);
        int up = near ? above : next + 1, down = near ? below : next - 1;
        misses++;
        if (up > r[v].lo && up <= r[v].hi && !pays(t, r, room, v, up, r[v].hi)) {
            r[v].hi = (int16_t)(up - 1);
            *changed = true;
            misses = 0;
        }
        if (down >= r[v].lo && down < r[v].hi && !pays(t, r, room, v, r[v].lo, down)) {
            r[v].lo = (int16_t)(down + 1);
            *changed = true;
            misses = 0;
        }
        if (t->out->outcome == MF_MILP_FAILED) {
            return true;
        }
        if (r[v].lo > r[v].hi || !narrow(t, r)) {
            return false;
        }
    }
    return true;
}

/* --- the tree ----------------------------------------------------------------------------------
 */

/* The virtual stage whose n lies furthest between two whole numbers; -1 when all are whole. */
static int furthest(const tree *t) {
    int at = -1;
    double most = WHOLE;
    for (int v = 0; v < t->in->vstages; v++) {
        double off = fabs(t->n[v] - round(t->n[v]));
        if (off > most) {
            most = off;
            at = v;
        }
    }
    return at;
}

static void keep_split(tree *t, double bound) {
    mf_inner_split_result *out = t->out;
    if (out->have && bound >= out->split_bound_s) {
        return;
    }
    out->have = true;
    out->near = false;
    out->split_bound_s = bound;
    out->first[0] = 0;
    for (int v = 0; v < t->in->vstages; v++) {
        out->first[v + 1] = out->first[v] + (int)lround(t->n[v]);
    }
}

/* The split nearest to the point; none is empty. */
static void note_nearest(tree *t) {
    int vstages = t->in->vstages, positions = t->in->positions, *first = t->out->first;
    double until = 0.0;
    t->out->near = true;
    first[0] = 0;
    for (int v = 0; v < vstages; v++) {
        until += t->n[v];
        int at = (int)lround(until), most = positions - (vstages - 1 - v);
        at = at > first[v] ? at : first[v] + 1;
        first[v + 1] = at < most ? at : most;
    }
    first[vstages] = positions;
}

/* All below a node whose ranges are at r; room for the levels below behind it. */
static void branch(tree *t, range *r, int depth, double before) {
    int vstages = t->in->vstages;
    if (t->out->outcome == MF_MILP_FAILED) {
        return;
    }
    if (t->lps >= t->o->lp_limit || depth >= MAX_DEPTH || (t->o->cancel && *t->o->cancel)) {
        t->open = fmin(t->open, before);
        t->out->outcome = MF_MILP_LIMIT;
        return;
    }
    double bound = fmax(solve(t, r), before);
    if (t->out->outcome == MF_MILP_FAILED || bound >= t->cutoff) {
        return;
    }
    int v = furthest(t);
    if (v < 0) {
        keep_split(t, bound);
        t->open = fmin(t->open, bound);
        return;
    }
    int below = (int)floor(t->n[v]);
    bool up_first = t->n[v] - below > 0.5;
    for (int side = 0; side < 2; side++) {
        range *child = r + vstages;
        memcpy(child, r, (size_t)vstages * sizeof *child);
        if ((side == 0) == up_first) {
            child[v].lo = (int16_t)(below + 1);
        } else {
            child[v].hi = (int16_t)below;
        }
        branch(t, child, depth + 1, bound);
    }
}

/* The chains of the root's program get their weights; none are kept from then on. */
static void weigh_root(tree *t) {
    mf_chains *kept = t->rows.kept;
    double dual[MF_CHAINS_MAX];
    for (int i = 0; kept && i < kept->count; i++) {
        dual[i] = mf_lp_row_dual(t->lp, t->rows.first_chain_row + i);
    }
    if (kept) {
        mf_rows_weigh(&t->rows, dual, kept);
    }
    t->rows.kept = NULL;
}

/* Chains that do not bind the root are met again where they do. */
static void drop_slack(tree *t) {
    mf_rows *b = &t->rows;
    bool *gone = calloc((size_t)b->row_chains + 1, sizeof *gone);
    int kept = 0;
    if (!gone) { /* slower, not wrong */
        return;
    }
    mf_lp_drop_slack(t->lp, b->first_chain_row, b->row_chains, gone);
    for (int i = 0; i < b->row_chains; i++) {
        if (gone[i]) {
            mf_order_chain_clear(&b->row_chain[i]);
        } else {
            b->row_chain[kept++] = b->row_chain[i];
        }
    }
    b->row_chains = kept;
    free(gone);
}

/* The root: probing until it tells no more, then the tree. */
static void grow(tree *t) {
    int vstages = t->in->vstages;
    range *r = t->now, *room = t->now + vstages;
    for (int v = 0; v < vstages; v++) {
        r[v] = (range){1, (int16_t)(t->in->positions - vstages + 1)};
    }
    static const double order[] = {HALF_WAY, FAR, NEAR, FAR, NEAR, FAR};
    double bound = -HUGE_VAL;
    bool changed = true;
    for (int pass = 0; pass < 6 && changed; pass++) {
        bound = fmax(bound, solve(t, r));
        weigh_root(t);
        if (t->out->outcome == MF_MILP_FAILED || bound >= t->cutoff) {
            return;
        }
        if (pass == 0) {
            note_nearest(t);
        }
        if (t->lps >= t->o->lp_limit) {
            break;
        }
        if (pass == 0) {
            drop_slack(t);
        }
        t->rows.keep_rows = false;
        changed = false;
        if (!probe(t, r, room, order[pass], &changed)) {
            return;
        }
        if (t->out->outcome == MF_MILP_FAILED) {
            return;
        }
        if (changed) {
            tell_losses(t, r);
        }
        changed = changed || pass == 0;
    }
    branch(t, r, 0, bound);
}

/* --- the whole ---------------------------------------------------------------------------------
 */

static mf_status make_tree(tree *t, mf_err *e) {
    const mf_inner *in = t->in;
    size_t vstages = (size_t)in->vstages, positions = (size_t)in->positions;
    t->now = calloc((MAX_DEPTH + 2) * vstages, sizeof *t->now);
    t->least = calloc(2 * (vstages + 1), sizeof *t->least);
    t->slots_until = calloc((size_t)in->slots * (positions + 1), sizeof *t->slots_until);
    t->n = calloc(2 * vstages, sizeof *t->n);
    t->fewest = calloc(vstages, sizeof *t->fewest);
    t->out->first = calloc(vstages + 1, sizeof *t->out->first);
    if (!t->now || !t->least || !t->slots_until || !t->n || !t->fewest || !t->out->first) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    t->most = t->least + vstages + 1;
    for (int s = 0; s < in->slots; s++) {
        int *until = t->slots_until + (size_t)s * (positions + 1);
        for (size_t i = 0; i < positions; i++) {
            until[i + 1] = until[i] + (in->slot_at[i] == s);
        }
    }
    return MF_OK;
}

mf_status mf_inner_splits(mf_inner *in, const mf_inner_split_options *o, mf_inner_split_result *out,
                          mf_err *e) {
    tree t = {.in = in, .o = o, .out = out, .open = HUGE_VAL};
    const mf_inner_options ro = {.hull = true, .splits = true, .cutoff_s = o->cutoff_s};
    memset(out, 0, sizeof *out);
    if (o->kept) {
        mf_chains_init(o->kept, in->stages, in->chunks);
    }
    mf_status status = mf_rows_make(&t.rows, in, NULL, &ro, o->known, o->kept, e);
    if (status != MF_OK) {
        return status;
    }
    const mf_milp_options mo = {
        .cutoff = HUGE_VAL, .lazy = mf_rows_lazy_chain, .lazy_user = &t.rows, .fault = o->fault};
    status = make_tree(&t, e);
    if (status == MF_OK) {
        status = mf_lp_open(&t.rows.milp, &mo, &t.lp, e);
    }
    if (status == MF_OK) {
        out->outcome = MF_MILP_OPTIMAL;
        t.cutoff = o->cutoff_s / t.rows.unit_s / MF_BOUND_SAFETY;
        grow(&t);
        status = t.rows.status;
    }
    if (status == MF_OK) {
        bool failed = out->outcome == MF_MILP_FAILED;
        double bound_s = t.open < t.cutoff ? t.open * t.rows.unit_s * MF_BOUND_SAFETY : o->cutoff_s;
        out->bound_s = failed ? o->floor_s : fmin(fmax(bound_s, o->floor_s), o->cutoff_s);
        out->split_bound_s =
            fmax(out->split_bound_s * t.rows.unit_s * MF_BOUND_SAFETY, out->bound_s);
        out->lps = t.lps;
        out->pivots = mf_lp_pivots(t.lp);
        out->chains = mf_lp_lazy_rows(t.lp);
    }
    mf_lp_close(t.lp);
    mf_rows_clear(&t.rows);
    free(t.now);
    free(t.least);
    free(t.slots_until);
    free(t.n);
    free(t.fewest);
    mf_inner_losses(in, NULL, INFINITY);
    if (status != MF_OK) {
        mf_inner_split_result_clear(out);
    }
    return status;
}

void mf_inner_split_result_clear(mf_inner_split_result *r) {
    free(r->first);
    memset(r, 0, sizeof *r);
}
