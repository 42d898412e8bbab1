/* optimizer_offload.c - optimizer states of which a part is in host memory: they come to the device
 * for their update piece by piece, and go back. Where host memory begins a piece may be cut. */
#include "executor/step/exec.h"

#include <stdlib.h>

/* Elements of a piece: at most, and a multiple of. */
enum { MOST = 1 << 20, MULTIPLE = 64 };

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

mf_status mf_exec_read_state(const mf_exec *x, void *to, const void *state, int64_t size_B,
                             mf_err *e) {
    char *from = (char *)(uintptr_t)state;
    int64_t first_B = before_host_B(x, from, size_B);
    mf_status status = mf_exec_copy(x, to, memory_of(x, from), (size_t)first_B, e);
    return status == MF_OK && first_B < size_B
               ? mf_exec_copy(x, (char *)to + first_B, memory_of(x, from + first_B),
                              (size_t)(size_B - first_B), e)
               : status;
}

mf_status mf_exec_write_state(const mf_exec *x, void *state, const void *from, int64_t size_B,
                              mf_err *e) {
    int64_t first_B = before_host_B(x, state, size_B);
    mf_status status = mf_exec_copy(x, memory_of(x, state), from, (size_t)first_B, e);
    return status == MF_OK && first_B < size_B
               ? mf_exec_copy(x, memory_of(x, (char *)state + first_B),
                              (const char *)from + first_B, (size_t)(size_B - first_B), e)
               : status;
}

/* --- pieces -------------------------------------------------------------------------------------
 */

/* Elements of which all states fit into the scratch, side by side. */
static int64_t piece_of(const mf_exec *x) {
    int64_t room = (int64_t)(x->env.scratch_B / (3 * sizeof(float))) / MULTIPLE * MULTIPLE;
    return room < MOST ? room : MOST;
}

/* The piece of a tensor from element `from` on; its states are in the scratch where they travel. */
static mf_kernel_adamw_tensor piece_at(const mf_exec *x, const mf_kernel_adamw_tensor *t,
                                       int64_t from, int64_t count, bool staged) {
    int64_t moment_B = (int64_t)mf_kernel_dtype_B(x->moment_type), piece = piece_of(x);
    float *room = x->scratch;
    mf_kernel_adamw_tensor p = {.master = t->master + from,
                                .param = t->param != NULL ? t->param + from : NULL,
                                .grad = t->grad + from,
                                .m = (char *)t->m + moment_B * from,
                                .v = (char *)t->v + moment_B * from,
                                .count = count,
                                .decay = t->decay};
    if (staged) {
        p.master = on_device(x, p.master, 4 * count) ? p.master : room;
        p.m = on_device(x, p.m, moment_B * count) ? p.m : room + piece;
        p.v = on_device(x, p.v, moment_B * count) ? p.v : room + 2 * piece;
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
                p->piece[p->count] = (mf_update_piece){piece_at(x, &tensor[i], from, count, false),
                                                       p->chunks, chunks};
                out->staged[p->count] = piece_at(x, &tensor[i], from, count, true);
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
    cut(x, tensor, tensors, NULL);
    p->piece = calloc((size_t)p->count + 1, sizeof *p->piece);
    host_pieces h = {.staged = calloc((size_t)p->count + 1, sizeof *h.staged),
                     .chunk = calloc((size_t)p->chunks + 1, sizeof *h.chunk)};
    mf_status status = MF_OK;
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

/* A state that travels, to the scratch or back. */
static mf_status move(const mf_exec *x, void *state, int64_t size_B, void *room, bool back,
                      mf_err *e) {
    return on_device(x, state, size_B) ? MF_OK
           : back                      ? mf_exec_write_state(x, state, room, size_B, e)
                                       : mf_exec_read_state(x, room, state, size_B, e);
}

static mf_status move_states(const mf_exec *x, const mf_kernel_adamw_tensor *t, bool back,
                             mf_err *e) {
    int64_t moment_B = (int64_t)mf_kernel_dtype_B(x->moment_type), piece = piece_of(x);
    float *room = x->scratch;
    mf_status s = move(x, t->master, 4 * t->count, room, back, e);
    s = s == MF_OK ? move(x, t->m, moment_B * t->count, room + piece, back, e) : s;
    return s == MF_OK ? move(x, t->v, moment_B * t->count, room + 2 * piece, back, e) : s;
}

mf_status mf_exec_offload_update(mf_exec *x, const mf_kernel_adamw *how, mf_err *e) {
    mf_status status = MF_OK;
    for (int64_t i = 0; i < x->pieces.count && status == MF_OK; i++) {
        const mf_update_piece *p = &x->pieces.piece[i];
        mf_kernel_adamw a = *how;
        a.tensors = 1;
        a.chunks = p->chunks;
        a.tensor = &x->pieces.staged[i];
        a.chunk = &x->pieces.chunk[p->first_chunk];
        status = move_states(x, &p->at, false, e);
        status = status == MF_OK ? mf_exec_device(x)->adamw(x->queue, &a, e) : status;
        status = status == MF_OK ? move_states(x, &p->at, true, e) : status;
    }
    return status;
}
