/* fit_fastest.c - a short search beside `fit`. */
#include "job/fit_fastest.h"

#include "job/host_copies.h"

enum { EFFORT_US = 300000 }; /* counted; a search that has no plan by then goes on until it has */

mf_status mf_fit_fastest(const mf_problem *p, int threads, const volatile int *cancel,
                         mf_search_result *out, mf_err *e) {
    mf_search_options o;
    mf_host_copies host;
    mf_err why;
    mf_err_clear(&why);
    mf_search_options_init(&o);
    o.gap = MF_FIT_FASTEST_GAP;
    o.budget = EFFORT_US;
    o.threads = threads;
    o.cancel = cancel;
    mf_status s = mf_host_copies_search(NULL, NULL, p, &o, false, out, &host, &why);
    if (s == MF_INFEASIBLE || s == MF_LAYOUT) {
        return MF_OK;
    }
    return s == MF_OK ? s : mf_err_set(e, s, "%s", why.text);
}
