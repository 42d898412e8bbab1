/* combine_smem.cuh - what the warps of a team of combine share (combine_device.cuh has the whole):
 * rows in a ring, a descriptor with each, and counters. */
#ifndef MF_KERNELS_COMBINE_DESK_CUH
#define MF_KERNELS_COMBINE_DESK_CUH

#include "kernels/dispatch/dispatch_group.cuh"

#define SLOTS_MOST MF_COMBINE_SLOTS_MOST
#define TELLINGS (2 * MF_COMBINE_CHUNKS_MOST)

/* What is to be done with a row of the ring, and with the sums after it. */
enum {
    ROW_EMPTY = 1,    /* there is no row */
    THEN_ROUND = 2,   /* the sums are rounded as if they had been sent, and go on */
    THEN_SEND = 4,    /* they go to a peer, */
    THEN_STORE = 8,   /* or are the result; they begin anew */
    THEN_SIGNAL = 16, /* see mf_combine_plan.early: what was sent, or sent before the last signal */
    THEN_STOP = 32
};
struct alignas(16) Descriptor {
    mf_bf16 *to; /* where the piece's sums go, if they do */
    float weight;
    uint16_t cols; /* of the piece */
    uint16_t what;
};

/* Shared memory of a team: ring [slots, piece_cols], outbox [adders, OUTBOX, WARP_COLS], then this.
 */
struct CombineSmem {
    Descriptor descriptor[SLOTS_MOST];
    uint64_t full[SLOTS_MOST], empty[SLOTS_MOST];
    unsigned signalled[TELLINGS]; /* adders that have signalled for the i-th time */
    unsigned came;                /* 0, 1 when the peers are there, c + 2 when their chunk c is */
};

static_assert(TELLINGS == 32 && SLOTS_MOST <= 32, "one warp sets them up");
static_assert(sizeof(CombineSmem) <= MF_COMBINE_SMEM_B, "what the plan leaves");

/* Of this block, and of all blocks. */
__device__ static unsigned team_here(const mf_combine_plan &p) {
    return threadIdx.x / 32 / (p.adders + MF_COMBINE_OTHERS);
}
__device__ static unsigned team_of_all(const mf_combine_plan &p) {
    return blockIdx.x * p.teams + team_here(p);
}

/* The ring as one side sees it: its next slot, and the parity of the barrier it waits for. */
struct Turn {
    unsigned slot, parity;
    __device__ void skip(unsigned n, unsigned slots) { /* n <= slots */
        slot += n;
        if (slot >= slots) {
            slot -= slots;
            parity ^= 1;
        }
    }
};

/* Counters between warps of a block. */
__device__ static void count_up(unsigned *counter) {
    asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(mf_bulk_address(counter))
                 : "memory");
}

__device__ static void wait_for(const unsigned *counter, unsigned least) {
    unsigned now;
    do {
        asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];"
                     : "=r"(now)
                     : "r"(mf_bulk_address(counter))
                     : "memory");
    } while (now < least);
}

#endif
