/* comm_status.c - of the ranks that failed, the lowest one with a message sets the status of all.
 */
#include "executor/comm/comm_status.h"

#include <stdbool.h>

enum { STATUSES = 64 }; /* there are fewer */

mf_status mf_comm_agree(mf_comm *c, mf_status mine, mf_err *e) {
    int64_t ranks = mf_comm_group_size(c, MF_GROUP_WORLD), rank = mf_comm_rank(c);
    bool words = mine != MF_OK && e != NULL && e->text[0] != '\0';
    /* Largest for the lowest rank with a text. A failing rank without a text has agreed on this
     * status before, when another rank reported it. */
    int64_t place = ranks - rank + (words ? ranks : 0);
    double vote = mine == MF_OK ? 0.0 : (double)(place * STATUSES + (int64_t)mine);
    mf_status status = mf_comm_all_reduce(c, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, &vote, 1, e);
    if (status != MF_OK || vote < 1.0) {
        return status;
    }
    mf_status agreed = (mf_status)((int64_t)vote % STATUSES);
    if ((int64_t)vote / STATUSES != place || mine == MF_OK) {
        mf_err_clear(e);
        return mf_err_set(e, agreed, "%s", "");
    }
    return words ? agreed
                 : mf_err_set(e, agreed, "rank %lld: %s", (long long)rank, mf_status_text(agreed));
}
