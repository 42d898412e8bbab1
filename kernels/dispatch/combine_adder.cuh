/* combine_adder.cuh - the adders of a team of combine: warps that add up what lies in the ring,
 * each its columns, and send or store the sums (combine_device.cuh). */
#ifndef MF_KERNELS_COMBINE_ADDER_CUH
#define MF_KERNELS_COMBINE_ADDER_CUH

#include "kernels/dispatch/combine_smem.cuh"

#define VECTOR 8 /* bf16 in 16 bytes */
#define ACROSS 2 /* vectors of a lane in a row */
#define WARP_COLS MF_COMBINE_WARP_COLS
#define OUTBOX MF_COMBINE_OUTBOX

typedef mf_raw<mf_bf16, VECTOR> Vector;
typedef float Sums[ACROSS][VECTOR];

static_assert(WARP_COLS == 32 * VECTOR * ACROSS, "a warp takes its columns in one step");

/* Stores this warp's columns of a sum to a peer through the copy engine: 1 KiB at once, which the
 * links carry better than stores of single warps. */
__device__ static void send_sum(mf_bf16 *buffer, const Sums &sum, mf_bf16 *to, uint32_t cols) {
    const unsigned lane = threadIdx.x % 32;
    if (lane == 0) {
        mf_bulk_wait_read<OUTBOX - 1>();
    }
    __syncwarp();
#pragma unroll
    for (int a = 0; a < ACROSS; a++) {
        mf_store(buffer + (a * 32 + lane) * VECTOR, sum[a]);
    }
    mf_bulk_fence();
    __syncwarp();
    if (lane == 0) {
        mf_bulk_store(to, buffer, (cols < WARP_COLS ? cols : WARP_COLS) * 2);
        mf_bulk_commit();
    }
}

/* Until all but this thread's last `later` stores are done. */
__device__ static void wait_sent(unsigned later) {
    switch (later) {
    case 0:
        mf_bulk_wait_done<0>();
        break;
    case 1:
        mf_bulk_wait_done<1>();
        break;
    case 2:
        mf_bulk_wait_done<2>();
        break;
    default:
        mf_bulk_wait_done<3>();
    }
}

/* x += weight * row. */
__device__ static void add_row(Sums &x, float weight, const Vector (&row)[ACROSS]) {
#pragma unroll
    for (int a = 0; a < ACROSS; a++) {
        float v[VECTOR];
        mf_widen(v, row[a]);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            x[a][i] += weight * v[i];
        }
    }
}

__device__ static void clear(Sums &x) {
#pragma unroll
    for (int i = 0; i < ACROSS * VECTOR; i++) {
        x[i / VECTOR][i % VECTOR] = 0.0f;
    }
}

/* An adder: a warp with its columns of every row. */
struct Adder {
    CombineSmem *smem;
    const char *ring;                  /* this lane's first vector in the first slot */
    mf_bf16 *buffer;                   /* [OUTBOX, WARP_COLS] */
    unsigned in_piece;                 /* its first column */
    unsigned sent, signalled, signals; /* sums, those up to the last signal */
    Sums sum;
};

__device__ static void send(Adder &w, const Descriptor &n) {
    if (w.sent == 0) {
        wait_for(&w.smem->came, 1);
    }
    send_sum(w.buffer + w.sent++ % OUTBOX * WARP_COLS, w.sum, n.to + w.in_piece,
             n.cols - w.in_piece);
}

__device__ static void store(const Adder &w, const Descriptor &n) {
#pragma unroll
    for (int a = 0; a < ACROSS; a++) {
        const unsigned c = w.in_piece + (a * 32 + threadIdx.x % 32) * VECTOR;
        if (c < n.cols) {
            mf_store(n.to + c, w.sum[a]);
        }
    }
}

__device__ static void tell(Adder &w, const mf_combine_plan &p) {
    __syncwarp(); /* the other lanes' stores come before, too */
    if (threadIdx.x % 32 == 0) {
        wait_sent(p.early ? 0 : w.sent - w.signalled);
        count_up(&w.smem->signalled[w.signals]);
    }
    w.signals++;
    w.signalled = w.sent;
}

/* What comes after a group. False: stop. */
__device__ static bool act(Adder &w, const Descriptor &n, const mf_combine_plan &p) {
    if (n.what & THEN_STOP) {
        return false;
    }
    if (n.what & THEN_SIGNAL) {
        tell(w, p);
        return true;
    }
    if (n.what & THEN_ROUND) {
#pragma unroll
        for (int i = 0; i < ACROSS * VECTOR; i++) {
            float &x = w.sum[i / VECTOR][i % VECTOR];
            x = mf_round_as((mf_bf16 *)nullptr, x);
        }
        return true;
    }
    if (n.what & THEN_STORE) {
        store(w, n);
    } else if (w.in_piece < n.cols) {
        send(w, n);
    }
    clear(w.sum);
    return true;
}

/* Most rows are only added: as few instructions as that takes. */
__device__ static void add_up(Adder &w, const mf_combine_plan &p) {
    const uint32_t slot_B = p.piece_cols * 2;
    Turn turn = {0, 0};
    clear(w.sum);
    for (;;) {
        mf_bulk_wait(&w.smem->full[turn.slot], turn.parity);
        const Descriptor n = w.smem->descriptor[turn.slot];
        const char *from = w.ring + turn.slot * slot_B;
        Vector row[ACROSS];
#pragma unroll
        for (int a = 0; a < ACROSS; a++) { /* of an empty one: whatever lies there */
            row[a] = mf_fetch<mf_bf16, VECTOR>((const mf_bf16 *)from + a * 32 * VECTOR);
        }
        mf_bulk_arrive(&w.smem->empty[turn.slot]);
        turn.skip(1, p.slots);
        if (!(n.what & ROW_EMPTY)) {
            add_row(w.sum, n.weight, row);
        }
        if (n.what != 0 && !act(w, n, p)) {
            break;
        }
    }
}

#endif
