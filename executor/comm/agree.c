/* agree.c - the lowest failing rank speaks for all. */
#include "executor/comm/agree.h"

mf_status mf_comm_agree(mf_comm *c, mf_status mine, mf_err *e) {
    int64_t ranks = mf_comm_group_size(c, MF_GROUP_WORLD), rank = mf_comm_rank(c);
    /* Largest for the lowest rank; statuses are below 64. */
    double vote = mine == MF_OK ? 0.0 : (double)((ranks - rank) * 64 + (int64_t)mine);
    mf_status status = mf_comm_all_reduce(c, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, &vote, 1, e);
    if (status != MF_OK || vote < 1.0) {
        return status;
    }
    mf_status agreed = (mf_status)((int64_t)vote % 64);
    if (ranks - (int64_t)vote / 64 != rank) {
        mf_err_clear(e);
        return mf_err_set(e, agreed, "%s", "");
    }
    return agreed;
}
