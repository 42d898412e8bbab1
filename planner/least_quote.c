/* least_quote.c - the least of the quotes of several blocks. */
#include "planner/least_quote.h"

#include <math.h>

static void least_pass(mf_pass_quote *least, const mf_pass_quote *p) {
    least->time_s = fmin(least->time_s, p->time_s);
    least->chain_s = fmin(least->chain_s, p->chain_s);
    least->path_s = fmin(least->path_s, p->path_s);
    least->host_s = fmin(least->host_s, p->host_s);
    least->sync_s = fmin(least->sync_s, p->sync_s);
    least->compute_s = fmin(least->compute_s, p->compute_s);
    least->ep_s = fmin(least->ep_s, p->ep_s);
}

static void least_of(mf_quote *least, const mf_quote *q) {
    least_pass(&least->f, &q->f);
    least_pass(&least->b, &q->b);
    least_pass(&least->w, &q->w);
    least->flops = fmin(least->flops, q->flops);
    least->saved_B = fmin(least->saved_B, q->saved_B);
    least->held_B = fmin(least->held_B, q->held_B);
    least->offload_B = fmin(least->offload_B, q->offload_B);
    least->boundary_B = fmin(least->boundary_B, q->boundary_B);
    least->gather_B = fmin(least->gather_B, q->gather_B);
    least->comm_B = fmin(least->comm_B, q->comm_B);
    least->local_f_B = fmin(least->local_f_B, q->local_f_B);
    least->local_b_B = fmin(least->local_b_B, q->local_b_B);
    least->local_w_B = fmin(least->local_w_B, q->local_w_B);
}

/* The block with these tables on its stage, at every depth where it may stand. */
static mf_status add_depths(mf_quotes *q, const mf_layout *l, const mf_block_key *key, bool *any,
                            mf_quote *least, mf_err *e) {
    int64_t depths = key->kind == MF_POS_MTP ? mf_quotes_oracle(q)->model->mtp_layers : 1;
    int64_t kinds = depths < 3 ? depths : 3; /* depths between first and last are alike */
    for (int64_t i = 0; i < kinds; i++) {
        mf_quote x;
        mf_block_key at = *key;
        at.after_depth = i > 0;
        at.before_depth = i + 1 < kinds;
        mf_status status = mf_quotes_get(q, l, &at, true, &x, e);
        if (status != MF_OK) {
            return status;
        }
        if (*any) {
            least_of(least, &x);
        } else {
            *least = x;
            *any = true;
        }
    }
    return MF_OK;
}

mf_status mf_quotes_least(mf_quotes *q, const mf_layout *l, const mf_block_key *key,
                          bool any_tables, mf_quote *out, mf_err *e) {
    bool mtp = key->kind == MF_POS_MTP, head = key->kind == MF_POS_HEAD, any = false;
    /* tables that are not gathered are weights and no more */
    bool differ = any_tables && (mtp || head) && l->zero >= 2;
    mf_status status = add_depths(q, l, key, &any, out, e);
    for (int i = 0; i < (head ? 2 : 4) && differ && status == MF_OK; i++) {
        mf_block_key with = *key;
        with.shared_embedding = i & 1;
        with.shared_head = mtp ? (i & 2) != 0 : key->shared_head;
        if (with.shared_embedding != key->shared_embedding ||
            with.shared_head != key->shared_head) {
            status = add_depths(q, l, &with, &any, out, e);
        }
    }
    return status;
}
