/* optimizer_offload.c - optimizer states of which a part is in host memory: they come to the device
 * for their update piece by piece, and go back. Where host memory begins a piece may be cut.
 *
 * Pieces take turns in two halves of the scratch, so that three things happen at once: one piece
 * goes back, another is updated or comes in, each on a queue of its own. */
#include "executor/step/exec.h"

#include <stdlib.h>

/* Elements of a piece: at most, and a multiple of; pieces that the scratch holds. */
enum { MOST = 1 << 20, MULTIPLE = 64, HALVES = 2 };

/* --- states that are in two memories ------------------------------------------------------------
 */

/* Addresses of states run on past the device's, in one order: where this one's memory is. */
static char *memory_of(const mf_exec *x, char *state) {
    return state < x->host_states ? state : x->host_memory + (state - x->host_states);
}

static bool on_device(const mf_exec *x, const void *state, int64_t size_B) {
    return (const char *)state + size_B <= x->host_states;
}

/* Bytes of a state before host memory begins. */
static int64_t before_host_B(const mf_exec *x, const char *state, int64_t size_B) {
    int64_t left = x->host_states - state;
    return left <= 0 || left > size_B ? size_B : left;
}

/* Bytes of a state, all in one memory, to the device or back. */
static mf_status move_part(const mf_exec *x, mf_queue *q, char *state, char *buffer, int64_t size_B,
                           bool back, mf_err *e) {
    char *there = memory_of(x, state);
    return size_B > 0 ? mf_exec_device(x)->copy(q, back ? there : buffer, back ? buffer : there,
                                                (size_t)size_B, e)
                      : MF_OK;
}

static mf_status move(const mf_exec *x, mf_queue *q, char *state, char *buffer, int64_t size_B,
                      bool back, mf_err *e) {
    int64_t first_B = before_host_B(x, state, size_B);
    mf_status status = move_part(x, q, state, buffer, first_B, back, e);
    return status == MF_OK
               ? move_part(x, q, state + first_B, buffer + first_B, size_B - first_B, back, e)
               : status;
}

mf_status mf_exec_read_state(const mf_exec *x, void *to, const void *state, int64_t size_B,
                             mf_err *e) {
    return move(x, x->queue, (char *)(uintptr_t)state, to, size_B, false, e);
}

mf_status mf_exec_write_state(const mf_exec *x, void *state, const void *from, int64_t size_B,
                              mf_err *e) {
    return move(x, x->queue, state, (char *)(uintptr_t)from, size_B, true, e);
}

/* --- pieces -------------------------------------------------------------------------------------
 */

/* Elements of which all states fit into the scratch, side by side. */
static int64_t piece_of(const mf_exec *x) {
    int64_t elements =
        (int64_t)(x->env.scratch_B / (HALVES * 3 * sizeof(float))) / MULTIPLE * MULTIPLE;
    return elements < MOST ? elements : MOST;
}

/* Where piece number i has its three states on the device, a piece apart. */
static float *half_of(const mf_exec *x, int64_t i) {
    return (float *)x->scratch + i % HALVES * 3 * piece_of(x);
}

/* Piece number i, of a tensor from element `from` on; its states are in the scratch where they
 * travel. */
static mf_kernel_adamw_tensor piece_at(const mf_exec *x, const mf_kernel_adamw_tensor *t, int64_t i,
                                       int64_t from, int64_t count, bool staged) {
    int64_t moment_B = (int64_t)mf_kernel_dtype_B(x->moment_type), piece = piece_of(x);
    float *buffer = half_of(x, i);
    mf_kernel_adamw_tensor p = {.master = t->master + from,
                                .param = t->param != NULL ? t->param + from : NULL,
                                .grad = t->grad + from,
                                .m = (char *)t->m + moment_B * from,
                                .v = (char *)t->v + moment_B * from,
                                .count = count,
                                .decay = t->decay};
    if (staged) {
        p.master = on_device(x, p.master, 4 * count) ? p.master : buffer;
        p.m = on_device(x, p.m, moment_B * count) ? p.m : buffer + piece;
        p.v = on_device(x, p.v, moment_B * count) ? p.v : buffer + 2 * piece;
    }
    return p;
}

typedef struct host_pieces {
    mf_kernel_adamw_tensor *staged;
    mf_kernel_chunk *chunk;
} host_pieces;

static void cut(mf_exec *x, const mf_kernel_adamw_tensor *tensor, int64_t tensors,
                host_pieces *out) {
    mf_update_pieces *p = &x->pieces;
    int64_t most = piece_of(x);
    p->count = p->chunks = 0;
    for (int64_t i = 0; i < tensors; i++) {
        for (int64_t from = 0; from < tensor[i].count; from += most) {
            int64_t count = tensor[i].count - from < most ? tensor[i].count - from : most;
            int64_t chunks = mf_kernel_chunks(&count, 1, NULL);
            if (out != NULL) {
                p->piece[p->count] = (mf_update_piece){
                    piece_at(x, &tensor[i], p->count, from, count, false), p->chunks, chunks};
                out->staged[p->count] = piece_at(x, &tensor[i], p->count, from, count, true);
                mf_kernel_chunks(&count, 1, out->chunk + p->chunks);
            }
            p->count++;
            p->chunks += chunks;
        }
    }
}

static mf_status upload(mf_exec *x, const host_pieces *h, mf_err *e) {
    mf_update_pieces *p = &x->pieces;
    const size_t staged_B = (size_t)p->count * sizeof *p->staged;
    const size_t chunks_B = (size_t)p->chunks * sizeof *p->chunk;
    int64_t first_B = mf_align_B((int64_t)staged_B);
    mf_status status = mf_exec_device(x)->allocate(
        x->device, first_B + (int64_t)chunks_B + MF_ALIGN_B, &p->memory, e);
    if (status != MF_OK) {
        return status;
    }
    p->staged = p->memory;
    p->chunk = (void *)((char *)p->memory + first_B);
    status = mf_exec_put(x, p->memory, h->staged, staged_B, e);
    return status == MF_OK ? mf_exec_put(x, (char *)p->memory + first_B, h->chunk, chunks_B, e)
                           : status;
}

mf_status mf_exec_offload_init(mf_exec *x, const mf_kernel_adamw_tensor *tensor, int64_t tensors,
                               mf_err *e) {
    mf_update_pieces *p = &x->pieces;
    if (!(x->p->layout.offload_optimizer > 0)) {
        return MF_OK;
    }
    const mf_device_ops *device = mf_exec_device(x);
    mf_status status = device->side_queue(x->device, MF_DEVICE_STATES_IN, &p->in, e);
    status =
        status == MF_OK ? device->side_queue(x->device, MF_DEVICE_STATES_OUT, &p->out, e) : status;
    if (status != MF_OK) {
        return status;
    }
    cut(x, tensor, tensors, NULL);
    p->piece = calloc((size_t)p->count + 1, sizeof *p->piece);
    host_pieces h = {.staged = calloc((size_t)p->count + 1, sizeof *h.staged),
                     .chunk = calloc((size_t)p->chunks + 1, sizeof *h.chunk)};
    if (p->piece != NULL && h.staged != NULL && h.chunk != NULL) {
        cut(x, tensor, tensors, &h);
        status = upload(x, &h, e);
    } else {
        status = mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    free(h.staged);
    free(h.chunk);
    return status;
}

void mf_exec_offload_clear(mf_exec *x) {
    free(x->pieces.piece);
    mf_exec_device(x)->release(x->device, x->pieces.memory);
}

/* --- the update ---------------------------------------------------------------------------------
 */

mf_status mf_exec_state_here(const mf_exec *x, const void *state, int64_t size_B, const void **out,
                             mf_err *e) {
    bool here = on_device(x, state, size_B);
    *out = here ? state : x->scratch;
    return here ? MF_OK : mf_exec_read_state(x, x->scratch, state, size_B, e);
}

/* Does anything of piece number i travel? */
static bool travels(const mf_exec *x, int64_t i) {
    const mf_kernel_adamw_tensor *t = &x->pieces.piece[i].at;
    int64_t moment_B = (int64_t)mf_kernel_dtype_B(x->moment_type);
    return !(on_device(x, t->master, 4 * t->count) && on_device(x, t->m, moment_B * t->count) &&
             on_device(x, t->v, moment_B * t->count));
}

/* Piece number i comes, or goes back; what stands on the device stays. */
static mf_status move_states(const mf_exec *x, int64_t i, bool back, mf_err *e) {
    const mf_kernel_adamw_tensor *t = &x->pieces.piece[i].at;
    mf_queue *q = back ? x->pieces.out : x->pieces.in;
    int64_t moment_B = (int64_t)mf_kernel_dtype_B(x->moment_type), piece = piece_of(x);
    void *const state[] = {t->master, t->m, t->v};
    const int64_t size_B[] = {4 * t->count, moment_B * t->count, moment_B * t->count};
    float *buffer = half_of(x, i);
    mf_status status = MF_OK;
    for (int k = 0; k < 3 && status == MF_OK; k++) {
        if (!on_device(x, state[k], size_B[k])) {
            status = move(x, q, state[k], (char *)(buffer + k * piece), size_B[k], back, e);
        }
    }
    return status;
}

/* Loads piece i after the previous user of its half of the buffer was written back. */
static mf_status bring_in(const mf_exec *x, int64_t i, mf_err *e) {
    if (i >= x->pieces.count || !travels(x, i)) {
        return MF_OK;
    }
    mf_status status = mf_exec_device(x)->order(x->pieces.out, x->pieces.in, e);
    return status == MF_OK ? move_states(x, i, false, e) : status;
}

static mf_status take_back(const mf_exec *x, int64_t i, mf_err *e) {
    if (!travels(x, i)) {
        return MF_OK;
    }
    mf_status status = mf_exec_device(x)->order(x->queue, x->pieces.out, e);
    return status == MF_OK ? move_states(x, i, true, e) : status;
}

/* The next piece is entered behind what this one's update waits for, and before this one goes. */
static mf_status update_piece(const mf_exec *x, const mf_kernel_adamw *how, int64_t i, mf_err *e) {
    const mf_device_ops *device = mf_exec_device(x);
    const mf_update_piece *p = &x->pieces.piece[i];
    mf_kernel_adamw a = *how;
    a.tensors = 1;
    a.chunks = p->chunks;
    a.tensor = &x->pieces.staged[i];
    a.chunk = &x->pieces.chunk[p->first_chunk];
    mf_status status = travels(x, i) ? device->order(x->pieces.in, x->queue, e) : MF_OK;
    status = status == MF_OK ? bring_in(x, i + 1, e) : status;
    status = status == MF_OK ? device->adamw(x->queue, &a, e) : status;
    return status == MF_OK ? take_back(x, i, e) : status;
}

mf_status mf_exec_offload_update(mf_exec *x, const mf_kernel_adamw *how, mf_err *e) {
    const mf_device_ops *device = mf_exec_device(x);
    /* The scratch is free, and a capture holds both queues, from here on. */
    mf_status status = device->order(x->queue, x->pieces.out, e);
    status = status == MF_OK ? device->order(x->pieces.out, x->pieces.in, e) : status;
    status = status == MF_OK ? bring_in(x, 0, e) : status;
    for (int64_t i = 0; i < x->pieces.count && status == MF_OK; i++) {
        status = update_piece(x, how, i, e);
    }
    status = status == MF_OK ? device->order(x->pieces.in, x->queue, e) : status;
    return status == MF_OK ? device->order(x->pieces.out, x->queue, e) : status;
}
