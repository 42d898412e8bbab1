/* fit_fastest.c - a short search beside `fit`: what fits, ranked by time. */
#include "job/fit_fastest.h"

#include "job/host_copies.h"

/* Plans of one combination of degrees that are met for each that is shown: they differ in VPP,
 * micro-batch and schedule. */
enum { ALIKE = 2 };

static bool same_degrees(const mf_layout *a, const mf_layout *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->ep == b->ep && a->etp == b->etp;
}

/* Keeps the first plan, which is the fastest, of each combination. */
static void thin_out(mf_search_result *r, int rows) {
    int kept = 0;
    for (int i = 0; i < r->count; i++) {
        bool known = kept == rows;
        for (int k = 0; k < kept && !known; k++) {
            known = same_degrees(&r->plan[k].layout, &r->plan[i].layout);
        }
        if (known) {
            mf_plan_clear(&r->plan[i]);
        } else {
            r->plan[kept++] = r->plan[i];
        }
    }
    r->count = kept;
}

mf_status mf_fit_fastest(const mf_problem *p, int rows, int64_t effort_us, int threads,
                         const volatile int *cancel, mf_search_result *out, mf_err *e) {
    mf_search_options o;
    mf_host_copies host;
    mf_err why;
    mf_err_clear(&why);
    mf_search_options_init(&o);
    o.gap = MF_FIT_FASTEST_GAP;
    o.top = rows > 1 ? rows * ALIKE : 1;
    o.budget = effort_us;
    o.threads = threads;
    o.cancel = cancel;
    mf_status s = mf_host_copies_search(NULL, NULL, p, &o, false, out, &host, &why);
    thin_out(out, rows);
    if (s == MF_INFEASIBLE || s == MF_LAYOUT) {
        return MF_OK;
    }
    return s == MF_OK ? s : mf_err_set(e, s, "%s", why.text);
}
