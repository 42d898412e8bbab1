/* request.c - what a job was asked for. */
#include "job/request/request.h"

#include <string.h>

void mf_job_request_init(mf_job_request *r) {
    memset(r, 0, sizeof *r);
    mf_layout_init(&r->layout);
}

const char *mf_given_option_name(mf_given_option what) {
    static const char *const option[] = {
#define X(id, text) text,
        MF_GIVEN_MAP(X)
#undef X
    };
    return option[what];
}

mf_status mf_request_require(const mf_job_request *r, mf_given_option what, mf_err *e) {
    return mf_request_gives(r, what)
               ? MF_OK
               : mf_err_set(e, MF_USAGE, "--%s N is required", mf_given_option_name(what));
}

mf_status mf_request_named(mf_status s, const char *option, mf_err *e) {
    bool named = e != NULL && strncmp(e->text, "--", 2) == 0;
    return s == MF_USAGE && !named ? mf_err_prefix(e, "--%s", option) : s;
}
