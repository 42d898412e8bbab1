/* lower_recompute.c - the forward tensors that backward passes read: kept, made again, fetched
 * again, or copied back from the host.
 *
 * A forward tensor is saved unless the memory choice drops it; then its producers are emitted again
 * (pass R) right where they are first needed.
 */
#include "core/base/scratch.h"
#include "core/program/lower_build.h"

#include <string.h>

/* Notes the producer of each tensor, after the last forward op. */
void mf_lower_note_forward(mf_build *bd) {
    const size_t tensors = (size_t)bd->b->ntensors + 1;
    bd->first_producer = mf_scratch_take(tensors * sizeof *bd->first_producer);
    bd->ring = mf_scratch_take(tensors * sizeof *bd->ring);
    if (bd->first_producer == NULL || bd->ring == NULL) {
        bd->status = MF_NOMEM;
        return;
    }
    memset(bd->first_producer, 0, tensors * sizeof *bd->first_producer);
    bd->noted = bd->b->ntensors;
    for (int t = 0; t < bd->b->ntensors; t++) {
        bd->ring[t] = (mf_ring_link){MF_NO_TENSOR, MF_NO_TENSOR, MF_NO_TENSOR, MF_NO_TENSOR};
    }
    for (int i = bd->b->nops - 1; i >= 0; i--) {
        const mf_op *op = &bd->b->ops[i];
        for (int k = 0; k < op->nout; k++) {
            bd->first_producer[op->out[k]] = (int16_t)i;
        }
    }
    for (int i = 0; i < bd->b->nops; i++) {
        const mf_op *op = &bd->b->ops[i];
        for (int k = 0; k < op->nout; k++) {
            bd->b->tensors[op->out[k]].producer = (int16_t)i;
        }
        if (op->kind == MF_OP_SEND_RECV) {
            mf_ring_link *from = &bd->ring[op->in[0]], *to = &bd->ring[op->out[0]];
            from->next = op->out[0];
            to->first = from->first != MF_NO_TENSOR ? from->first : op->in[0];
            to->before = op->in[0];
        }
    }
}

static bool dropped(const mf_build *bd, const mf_tensor *t) {
    return (t->drop & MF_DROP_ALWAYS) || (t->drop & bd->key.memory.recompute);
}

/* Emits forward op i again; its dropped outputs get new tensors. Of an expert product whose y was
 * saved, only the activation is made again. */
static void recompute(mf_build *bd, int i) {
    if (bd->extra[i].cloned || bd->status != MF_OK) {
        return;
    }
    bd->extra[i].cloned = true;
    const mf_op whole = bd->b->ops[i];
    bool act_alone = (whole.flags & MF_OPF_ACT) && !dropped(bd, mf_build_t(bd, whole.out[0]));
    mf_op from = act_alone ? mf_lower_act_apart(bd, &whole) : whole;
    int16_t in[MF_OP_MAX_IN] = {0};
    if (from.kind ==
        MF_OP_ROUTER_DROP) { /* by the choices that were kept: nothing is gathered again */
        in[0] = mf_lower_read_forward(bd, from.out[0]);
        in[1] = mf_lower_read_forward(bd, from.in[1]);
        from.nin = 2;
    }
    for (int k = 0; k < from.nin && from.kind != MF_OP_ROUTER_DROP; k++) {
        in[k] = mf_lower_read_forward_part(bd, from.in[k], &from);
    }
    uint8_t pass = bd->pass;
    bd->pass = MF_PASS_R;
    for (int k = 0; k < whole.nout; k++) {
        int16_t t = whole.out[k];
        if (bd->status == MF_OK && dropped(bd, mf_build_t(bd, t)) && bd->alias[t] == MF_NO_TENSOR) {
            mf_tensor copy = *mf_build_t(bd, t);
            int16_t again = mf_build_tensor(bd, copy.name, copy.rows, copy.cols, copy.element_B);
            mf_tensor *made = mf_build_t(bd, again);
            made->bytes = copy.bytes;
            made->routed = copy.routed;
            made->drop = 0;
            if (bd->status == MF_OK) {
                bd->alias[t] = again;
            }
        }
    }
    mf_op *op = mf_build_op(bd, (mf_op_kind)from.kind, from.name, (mf_stream)from.stream);
    *op = from;
    op->pass = MF_PASS_R;
    op->forward = (int16_t)i;
    op->nout = 0;
    op->makes = 0;
    for (int k = 0; k < from.nin; k++) {
        op->in[k] = in[k];
    }
    if (from.kind == MF_OP_ROUTER_FWD && bd->status == MF_OK) {
        mf_op_in(op, mf_lower_read_forward(
                         bd, from.out[0])); /* probabilities of the choices that were made */
    }
    for (int k = 0; k < whole.nout && bd->status == MF_OK; k++) {
        int16_t again = bd->alias[whole.out[k]];
        mf_op_out(op, again);
        op->makes |= (uint8_t)(again != MF_NO_TENSOR ? 1u << k : 0u);
    }
    bd->pass = pass;
}

/* Emits all pieces of an op again, or (piece >= 0) that one. */
static int16_t keep(mf_build *bd, int16_t t, int piece) {
    if (bd->status != MF_OK) {
        return 0;
    }
    mf_tensor *x = mf_build_t(bd, t);
    if (x->class == MF_TENSOR_WEIGHT) {
        return t;
    }
    if (x->producer < 0 || !dropped(bd, x)) {
        x->class = MF_TENSOR_SAVED;
        return t;
    }
    if (bd->alias[t] != MF_NO_TENSOR &&
        mf_op_split_axis(&bd->b->ops[x->producer]) == MF_SPLIT_NONE) {
        return bd->alias[t]; /* made again already; of pieces some may be missing */
    }
    for (int i = bd->first_producer[t], last = x->producer; i <= last; i++) {
        const mf_op *op = &bd->b->ops[i];
        bool makes = false;
        for (int k = 0; k < op->nout; k++) {
            makes |= op->out[k] == t;
        }
        if (makes && (piece < 0 || op->piece == piece)) {
            recompute(bd, i);
        }
    }
    return bd->status == MF_OK && bd->alias[t] != MF_NO_TENSOR ? bd->alias[t] : t;
}

int16_t mf_lower_read_forward(mf_build *bd, int16_t t) {
    return keep(bd, t, -1);
}

int16_t mf_lower_read_forward_part(mf_build *bd, int16_t t, const mf_op *reader) {
    int maker = bd->status == MF_OK ? mf_build_t(bd, t)->producer : -1;
    bool same = maker >= 0 && mf_op_split_axis(reader) != MF_SPLIT_NONE &&
                mf_op_split_axis(&bd->b->ops[maker]) == mf_op_split_axis(reader);
    return keep(bd, t, same ? reader->piece : -1);
}

/* --- keys and values of a ring ------------------------------------------------------------------
 */

/* Gradients go through the steps of a ring from last to first, and their sums travel against the
 * forward direction. K and V do the same when they were not kept: the ring runs backwards, from
 * those of the last step (which a repeated forward pass has left here, or which are one neighbour
 * away from the rank's own) to those of the second; the rank's own never left. At most two steps' K
 * and V are there at the same time. */
int16_t mf_lower_read_forward_turning(mf_build *bd, int16_t t) {
    if (bd->status != MF_OK || bd->ring[t].first == MF_NO_TENSOR ||
        !dropped(bd, mf_build_t(bd, t))) {
        return mf_lower_read_forward(bd, t);
    }
    mf_ring_link *link = &bd->ring[t];
    if (link->back != MF_NO_TENSOR) {
        return link->back;
    }
    if (link->next == MF_NO_TENSOR && bd->alias[t] != MF_NO_TENSOR) {
        link->back = bd->alias[t];
        return link->back;
    }
    int16_t from = link->next != MF_NO_TENSOR ? mf_lower_read_forward_turning(bd, link->next)
                                              : mf_lower_read_forward(bd, link->first);
    mf_tensor like = *mf_build_t(bd, t);
    int16_t back = mf_build_tensor(bd, like.name, like.rows, like.cols, like.element_B);
    int16_t producer = like.producer;
    mf_op *op = mf_build_op(bd, MF_OP_SEND_RECV, like.name, MF_STREAM_CP);
    if (bd->status != MF_OK) {
        return 0;
    }
    mf_build_t(bd, back)->drop = 0;
    *op = bd->b->ops[producer];
    op->pass = MF_PASS_R;
    op->forward = producer;
    op->dim[MF_OP_DIM_PLACES] = -op->dim[MF_OP_DIM_PLACES];
    op->in[0] = from;
    op->out[0] = back;
    op->makes = 1;
    bd->ring[t].back = back;
    return back;
}

void mf_lower_fetch_ahead(mf_build *bd, int16_t t) {
    if (bd->status == MF_OK && bd->ring[t].first != MF_NO_TENSOR &&
        bd->ring[bd->ring[t].before].first != MF_NO_TENSOR) {
        (void)mf_lower_read_forward_turning(bd, bd->ring[t].before);
    }
}

/* --- host memory ------------------------------------------------------------------------------ */

/* Lets backward ops from `first` on read back[t] in place of t, where there is one. */
static void read_back(mf_block *b, int first, int end, const int16_t *back) {
    for (int i = first; i < end; i++) {
        mf_op *op = &b->ops[i];
        for (int k = 0; k < op->nin; k++) {
            op->in[k] = back[op->in[k]] != MF_NO_TENSOR ? back[op->in[k]] : op->in[k];
        }
    }
}

/* What a copy of a tensor moves. moefold's executor knows no counts on the host: it copies all that
 * a routed tensor can hold, however many rows are there. */
static double copied_B(const mf_build *bd, const mf_tensor *x) {
    const unsigned foreign = ~(unsigned)MF_TRAITS_OWN;
    const bool own = ((bd->l->traits | bd->l->software_traits) & foreign) == 0;
    return own ? (double)x->bytes : mf_tensor_balanced_B(x);
}

/* Copies saved tensors of the chosen modules to host memory at the end of the forward pass and
 * back, into new tensors, at the start of the backward pass. Ops that read tensors made again
 * already name them, so bd->alias may now name the copies that came back. */
void mf_lower_offload(mf_build *bd) {
    mf_block *b = bd->b;
    int nforward = b->nforward, before = b->nops, ntensors = b->ntensors;
    if (bd->key.memory.offload == 0) {
        return;
    }
    for (int16_t t = 0; t < ntensors && bd->status == MF_OK; t++) {
        mf_tensor *x = mf_build_t(bd, t);
        bd->alias[t] = MF_NO_TENSOR;
        if (x->class == MF_TENSOR_SAVED && (x->offload & bd->key.memory.offload)) {
            x->class = t == bd->input ? MF_TENSOR_BOUNDARY : MF_TENSOR_LOCAL;
            x->offloaded = true;
            const double bytes = copied_B(bd, x);
            bd->pass = MF_PASS_F;
            mf_op *op = mf_build_op(bd, MF_OP_COPY_D2H, "offload", MF_STREAM_D2H);
            op->bytes = bytes;
            op->dim[MF_OP_DIM_GPUS] = bd->l->gpus;
            mf_op_in(op, t);
        }
    }
    int copies = b->nops - before;
    mf_lower_move_ops(bd, before, nforward);
    b->nforward += copies;
    before = b->nops;
    for (int i = nforward; i < nforward + copies && bd->status == MF_OK; i++) {
        int16_t t = b->ops[i].in[0];
        mf_tensor x = *mf_build_t(bd, t);
        bd->pass = MF_PASS_B;
        int16_t back = mf_build_tensor(bd, x.name, x.rows, x.cols, x.element_B);
        mf_build_t(bd, back)->bytes = x.bytes;
        mf_op *op = mf_build_op(bd, MF_OP_COPY_H2D, "offload", MF_STREAM_H2D);
        op->bytes = copied_B(bd, &x);
        op->dim[MF_OP_DIM_GPUS] = bd->l->gpus;
        op->flags |= MF_OPF_PREFETCH;
        mf_op_out(op, back);
        if (bd->status == MF_OK) {
            bd->alias[t] = back;
        }
    }
    if (bd->status == MF_OK) {
        read_back(b, b->nforward, before, bd->alias);
        mf_lower_move_ops(bd, before, b->nforward);
    }
}
