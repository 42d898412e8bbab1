/* optimizer_offload.c - optimizer states of which a part is in host memory: they come to the device
 * for their update piece by piece, and go back. Where host memory begins a piece may be split.
 *
 * Pieces that travel take turns in slots of the scratch, so that one is stored, one is updated and
 * others are loaded at the same time: loads, updates and stores have a queue each and go in the
 * order of the pieces. An update waits for the load of its own piece, a store for the update of its
 * own, and a load for the store of the piece that had its slot before. A slot is taken for a load,
 * an update and a store, and for what queues take to signal each other between them. With two slots
 * copies in either direction stand still while a slot is between its load and its store; with four
 * a queue of copies always has the next one to do, unless an update takes as long as two loads.
 * Pieces whose states are all on the device are updated between the others. */
#include "executor/step/exec.h"

#include <stdlib.h>
#include <string.h>

/* Elements of a piece: at most, and a multiple of; pieces that the scratch holds. */
enum { MOST = 1 << 20, MULTIPLE = 64, SLOTS = 4 };

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

/* Elements of which all states fit into a slot of the scratch, side by side. */
static int64_t piece_of(const mf_exec *x) {
    int64_t elements =
        (int64_t)(x->env.scratch_B / (SLOTS * 3 * sizeof(float))) / MULTIPLE * MULTIPLE;
    return elements < MOST ? elements : MOST;
}

/* Where a piece has its three states on the device, each the elements of a piece apart. */
static float *slot_of(const mf_exec *x, int64_t turn) {
    return (float *)x->scratch + turn % SLOTS * 3 * piece_of(x);
}

static int64_t moments_B(const mf_exec *x, int64_t count) {
    return (int64_t)mf_kernel_dtype_B(x->moment_type) * count;
}

/* A piece of a tensor from element `from` on, with states where they stand. */
static mf_kernel_adamw_tensor part_of(const mf_exec *x, const mf_kernel_adamw_tensor *t,
                                      int64_t from, int64_t count) {
    return (mf_kernel_adamw_tensor){.master = t->master + from,
                                    .param = t->param != NULL ? t->param + from : NULL,
                                    .grad = t->grad + from,
                                    .m = (char *)t->m + moments_B(x, from),
                                    .v = (char *)t->v + moments_B(x, from),
                                    .count = count,
                                    .decay = t->decay};
}

/* Is any of its states on the host? */
static bool travels(const mf_exec *x, const mf_kernel_adamw_tensor *t) {
    return !(on_device(x, t->master, 4 * t->count) && on_device(x, t->m, moments_B(x, t->count)) &&
             on_device(x, t->v, moments_B(x, t->count)));
}

/* The piece with states where they are updated: those that travel are in its slot. */
static mf_kernel_adamw_tensor staged_of(const mf_exec *x, const mf_update_piece *p) {
    mf_kernel_adamw_tensor t = p->at;
    if (p->turn >= 0) {
        const int64_t piece = piece_of(x);
        float *slot = slot_of(x, p->turn);
        t.master = on_device(x, t.master, 4 * t.count) ? t.master : slot;
        t.m = on_device(x, t.m, moments_B(x, t.count)) ? t.m : slot + piece;
        t.v = on_device(x, t.v, moments_B(x, t.count)) ? t.v : slot + 2 * piece;
    }
    return t;
}

typedef struct host_pieces {
    mf_kernel_adamw_tensor *staged;
    mf_kernel_chunk *chunk;
} host_pieces;

static void divide(mf_exec *x, const mf_kernel_adamw_tensor *tensor, int64_t tensors,
                   host_pieces *out) {
    mf_update_pieces *p = &x->pieces;
    int64_t most = piece_of(x), turns = 0;
    p->count = p->chunks = 0;
    for (int64_t i = 0; i < tensors; i++) {
        for (int64_t from = 0; from < tensor[i].count; from += most) {
            int64_t count = tensor[i].count - from < most ? tensor[i].count - from : most;
            int64_t chunks = mf_kernel_chunks(&count, 1, NULL);
            if (out != NULL) {
                mf_update_piece piece = {.at = part_of(x, &tensor[i], from, count),
                                         .first_chunk = p->chunks,
                                         .chunks = chunks};
                piece.turn = travels(x, &piece.at) ? turns++ : -1;
                p->piece[p->count] = piece;
                out->staged[p->count] = staged_of(x, &piece);
                mf_kernel_chunks(&count, 1, out->chunk + p->chunks);
            }
            p->count++;
            p->chunks += chunks;
        }
    }
}

/* Puts pieces that stay between those that travel, evenly: their updates go on beside copies, too,
 * instead of before the first. Each kind keeps its order. False: out of memory. */
static bool spread(mf_update_pieces *p, mf_kernel_adamw_tensor *staged) {
    const size_t n = (size_t)p->count;
    mf_update_piece *piece = malloc((n + 1) * sizeof *piece);
    mf_kernel_adamw_tensor *at = malloc((n + 1) * sizeof *at);
    const bool ok = piece != NULL && at != NULL;
    int64_t travelling = 0, next[2] = {0, 0};
    if (ok) {
        memcpy(piece, p->piece, n * sizeof *piece);
        memcpy(at, staged, n * sizeof *at);
    }
    for (int64_t i = 0; ok && i < p->count; i++) {
        travelling += piece[i].turn >= 0;
    }
    for (int64_t i = 0; ok && i < p->count; i++) {
        const bool moves = (i + 1) * travelling / p->count > i * travelling / p->count;
        int64_t *from = &next[moves];
        while ((piece[*from].turn >= 0) != moves) {
            (*from)++;
        }
        p->piece[i] = piece[*from];
        staged[i] = at[(*from)++];
    }
    free(piece);
    free(at);
    return ok;
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
    divide(x, tensor, tensors, NULL);
    p->piece = calloc((size_t)p->count + 1, sizeof *p->piece);
    host_pieces h = {.staged = calloc((size_t)p->count + 1, sizeof *h.staged),
                     .chunk = calloc((size_t)p->chunks + 1, sizeof *h.chunk)};
    if (p->piece != NULL && h.staged != NULL && h.chunk != NULL) {
        divide(x, tensor, tensors, &h);
    }
    status = p->piece != NULL && h.staged != NULL && h.chunk != NULL && spread(p, h.staged)
                 ? upload(x, &h, e)
                 : mf_err_set(e, MF_NOMEM, "executor: out of memory");
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

/* The signal behind the load of a piece; those of a block's own copies (offload_beside.c) come
 * before. */
static int loaded_slot(const mf_exec *x, int64_t turn) {
    return 7 + 2 * x->slots + x->p->assignment.positions + (int)(turn % SLOTS);
}

/* A piece that travels comes, or goes back; what stands on the device stays. */
static mf_status move_states(const mf_exec *x, const mf_update_piece *p, bool back, mf_err *e) {
    const mf_kernel_adamw_tensor *t = &p->at;
    mf_queue *q = back ? x->pieces.out : x->pieces.in;
    const int64_t moment_B = moments_B(x, t->count), piece = piece_of(x);
    void *const state[] = {t->master, t->m, t->v};
    const int64_t size_B[] = {4 * t->count, moment_B, moment_B};
    float *slot = slot_of(x, p->turn);
    mf_status status = MF_OK;
    for (int k = 0; k < 3 && status == MF_OK; k++) {
        if (!on_device(x, state[k], size_B[k])) {
            status = move(x, q, state[k], (char *)(slot + k * piece), size_B[k], back, e);
        }
    }
    return status;
}

/* Loads the first piece from *next on that travels, if there is one, and passes it. */
static mf_status load_next(const mf_exec *x, int64_t *next, mf_err *e) {
    const mf_update_pieces *p = &x->pieces;
    while (*next < p->count && p->piece[*next].turn < 0) {
        (*next)++;
    }
    if (*next == p->count) {
        return MF_OK;
    }
    const mf_update_piece *piece = &p->piece[(*next)++];
    mf_status status = move_states(x, piece, false, e);
    return status == MF_OK ? mf_exec_device(x)->signal(p->in, loaded_slot(x, piece->turn), e)
                           : status;
}

static mf_status update_piece(const mf_exec *x, const mf_kernel_adamw *how, int64_t i, mf_err *e) {
    const mf_device_ops *device = mf_exec_device(x);
    const mf_update_piece *p = &x->pieces.piece[i];
    mf_kernel_adamw a = *how;
    a.tensors = 1;
    a.chunks = p->chunks;
    a.tensor = &x->pieces.staged[i];
    a.chunk = &x->pieces.chunk[p->first_chunk];
    mf_status status = p->turn >= 0 ? device->await(x->queue, loaded_slot(x, p->turn), e) : MF_OK;
    return status == MF_OK ? device->adamw(x->queue, &a, e) : status;
}

/* Stores a piece behind its update, and loads the next one into its slot behind that. */
static mf_status store(const mf_exec *x, const mf_update_piece *p, int64_t *next, mf_err *e) {
    const mf_device_ops *device = mf_exec_device(x);
    mf_status status = device->order(x->queue, x->pieces.out, e);
    status = status == MF_OK ? move_states(x, p, true, e) : status;
    status = status == MF_OK ? device->order(x->pieces.out, x->pieces.in, e) : status;
    return status == MF_OK ? load_next(x, next, e) : status;
}

mf_status mf_exec_offload_update(mf_exec *x, const mf_kernel_adamw *how, mf_err *e) {
    const mf_device_ops *device = mf_exec_device(x);
    int64_t next = 0; /* to be loaded */
    /* The scratch is free, and a capture holds both queues, from here on. */
    mf_status status = device->order(x->queue, x->pieces.out, e);
    status = status == MF_OK ? device->order(x->pieces.out, x->pieces.in, e) : status;
    for (int k = 0; k < SLOTS && status == MF_OK; k++) {
        status = load_next(x, &next, e);
    }
    for (int64_t i = 0; i < x->pieces.count && status == MF_OK; i++) {
        status = update_piece(x, how, i, e);
        if (status == MF_OK && x->pieces.piece[i].turn >= 0) {
            status = store(x, &x->pieces.piece[i], &next, e);
        }
    }
    status = status == MF_OK ? device->order(x->pieces.in, x->queue, e) : status;
    return status == MF_OK ? device->order(x->pieces.out, x->queue, e) : status;
}
