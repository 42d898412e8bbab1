/* grouped_gemm_shared.cuh - what the warps of the expert products share: arguments, the division of
 * shared memory with its ring and its tile slots, and the walk over tiles. grouped_gemm_device.cuh
 * has the whole picture.
 */
#ifndef MF_KERNELS_GROUPED_GEMM_SHARED_CUH
#define MF_KERNELS_GROUPED_GEMM_SHARED_CUH

#include "kernels/device/hopper.cuh"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/grouped_gemm/grouped_gemm_tiles.h"

#include <cuda_bf16.h>

#include <string.h>

namespace mf_grouped {

constexpr int BOX = 64;                          /* rows and bf16 columns of a box */
constexpr int BOX_B = BOX * BOX * 2;             /* and the bytes of any box or buffer */
constexpr int BOXES_A = MF_GROUPED_TILE_M / BOX; /* one for each consumer warpgroup */
constexpr int BOXES_B = MF_GROUPED_TILE_N / BOX;
constexpr int STAGE_B = (BOXES_A + BOXES_B) * BOX_B;
constexpr int CONSUMERS = 2;
constexpr int THREADS = (1 + CONSUMERS) * 128;
constexpr int WARP_ROWS = 16; /* of a tile, of one warp */
constexpr int BUFFER_B = WARP_ROWS * 128;
constexpr int LEFT_CHUNKS = 4; /* of 32 f32 columns, of the half of a tile that is not held back */
constexpr int BAR_BOTH = 1;    /* named barrier */
/* Turns in which each chunk of gate and up is written: both, the activation in quarters, and that.
 * Otherwise a chunk is a turn. */
constexpr int GATED_TURNS = 7;

struct Args {
    mf_grouped_space space;
    const int32_t *offsets;
    uint16_t *out;     /* for tiles that the copy engine cannot mask */
    uint16_t *act;     /* likewise */
    const float *prob; /* of rows, of act; NULL: 1 */
    uint32_t *turns;   /* taken so far; NULL: each cluster has its own */
    int32_t half;      /* columns of gate, and of up */
    int32_t reduction; /* elements summed; WGRAD: the expert's tokens instead */
    int32_t balance;   /* fill the last round */
};

/* Where the copy engine writes. y: [rows, cols, 1], dW [n, k, experts]; with an activation y is
 * [gate and up, cols, rows], act [rows, cols, 1]. */
struct Outputs {
    CUtensorMap y, act;
};

/* A tile as the consumers need it; the producer finds it and passes it on through shared memory,
 * where it stays until its last chunk is written. */
enum Field {
    STEPS,      /* of the reduction; negative: no more tiles */
    BOXES,      /* width in units of 64 columns; 0: this block only helps its neighbour */
    SHORT_STEP, /* in this step (-1: none) ... */
    VALID,      /* ... only so many elements are the expert's */
    X,          /* first column, */
    Y,          /* first row, */
    Z,          /* expert in the output's map */
    END,        /* column after the last */
    ROWS,       /* from the first on, that may be written; may exceed the tile */
    FIELDS
};
constexpr int SLOTS = 4, SLOT_B = 64, SLOT_BARS = 48;
/* Turns on their way from the block that takes them to its neighbour: two barriers, then a word. */
constexpr int MAILS = 2, MAIL_B = 32, MAIL_WORD = 16;
constexpr int WARPS = CONSUMERS * 4, BARS_B = 512; /* of all barriers and slots together */
static_assert(FIELDS * 4 <= SLOT_BARS && SLOT_BARS + 16 <= SLOT_B, "fields, then two barriers");

/* How the output leaves: as bf16, as f32 in place of what was there, or added to it as f32. */
enum Writes { BF16, F32_OVER, F32_ADD };

template <mf_grouped_kind KIND, Writes WRITES, bool GATED_, int STAGES_, int BUFFERS_>
struct Traits {
    static constexpr bool WGRAD = KIND == MF_GROUPED_WGRAD;
    static constexpr bool F32 = WRITES != BF16;
    static constexpr bool ADD = WRITES == F32_ADD;
    static constexpr bool GATED = GATED_;
    static constexpr bool FETCHES = ADD && BUFFERS_ > LEFT_CHUNKS;
    static constexpr int TURNS = GATED ? 2 * GATED_TURNS : 4;
    static constexpr int MN_A = WGRAD;
    static constexpr int MN_B = KIND != MF_GROUPED_FORWARD;
    static constexpr int STAGES = STAGES_;
    static constexpr int BUFFERS = BUFFERS_;
    /* in units of 16 bytes: what one wgmma's 16 reduction elements advance a descriptor by */
    static constexpr uint32_t STEP_A = MN_A ? 2048 / 16 : 32 / 16;
    static constexpr uint32_t STEP_B = MN_B ? 2048 / 16 : 32 / 16;
    static constexpr int SMEM_B = STAGES * STAGE_B + WARPS * BUFFERS * BUFFER_B + BARS_B + 1024;
    static_assert(STAGES * 16 + SLOTS * SLOT_B + MAILS * MAIL_B + WARPS * 8 <= BARS_B, "all fit");
};

/* Steps since the start: which stage of the ring is next, and the parity of its round. */
template <int STAGES> struct Ring {
    uint32_t at;
    MF_DEVICE_MEMBER int stage(void) const {
        return (int)(at % STAGES);
    }
    MF_DEVICE_MEMBER uint32_t parity(void) const {
        return at / STAGES % 2;
    }
};

/* A value that is the same in all lanes of a warp, and known to the compiler to be: what depends on
 * it can live in the uniform registers. A bulk copy whose coordinates do not stands in a loop over
 * threads. */
MF_DEVICE int uniform(int value) {
    return __shfl_sync(~0u, value, 0);
}

/* Shared memory: the ring, the output buffers, the barriers. */
template <class C> struct Smem {
    uint32_t base;
    MF_DEVICE_MEMBER uint32_t a(int stage) const {
        return base + (uint32_t)stage * STAGE_B;
    }
    MF_DEVICE_MEMBER uint32_t b(int stage) const {
        return a(stage) + BOXES_A * BOX_B;
    }
    MF_DEVICE_MEMBER uint32_t buffer(int warp, int i) const {
        return base + C::STAGES * STAGE_B + (uint32_t)((warp * C::BUFFERS + i) * BUFFER_B);
    }
    MF_DEVICE_MEMBER uint32_t full(int stage) const {
        return base + C::STAGES * STAGE_B + WARPS * C::BUFFERS * BUFFER_B + (uint32_t)stage * 16;
    }
    MF_DEVICE_MEMBER uint32_t empty(int stage) const {
        return full(stage) + 8;
    }
    MF_DEVICE_MEMBER uint32_t slot(uint32_t number) const {
        return full(C::STAGES) + number % SLOTS * SLOT_B;
    }
    MF_DEVICE_MEMBER uint32_t slot_full(uint32_t number) const {
        return slot(number) + SLOT_BARS;
    }
    MF_DEVICE_MEMBER uint32_t slot_empty(uint32_t number) const {
        return slot(number) + SLOT_BARS + 8;
    }
    MF_DEVICE_MEMBER uint32_t mail(uint32_t number) const {
        return slot(0) + SLOTS * SLOT_B + number % MAILS * MAIL_B;
    }
    MF_DEVICE_MEMBER uint32_t mail_full(uint32_t number) const { /* the neighbour's */
        return mail(number);
    }
    MF_DEVICE_MEMBER uint32_t mail_empty(uint32_t number) const { /* the taker's */
        return mail(number) + 8;
    }
    MF_DEVICE_MEMBER uint32_t mail_word(uint32_t number) const {
        return mail(number) + MAIL_WORD;
    }
    MF_DEVICE_MEMBER uint32_t fetched(int warp) const { /* what its next tile is added to */
        return mail(0) + MAILS * MAIL_B + (uint32_t)warp * 8;
    }
    MF_DEVICE_MEMBER int field(uint32_t number, Field f) const {
        int v;
        asm volatile("ld.shared.b32 %0, [%1];"
                     : "=r"(v)
                     : "r"(slot(number) + 4 * (uint32_t)f)
                     : "memory");
        return v;
    }
    /* Read by a whole warp together, and uniform in it. */
    MF_DEVICE_MEMBER int warp_field(uint32_t number, Field f) const {
        return uniform(field(number, f));
    }
    MF_DEVICE_MEMBER void set_field(uint32_t number, Field f, int v) const {
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(slot(number) + 4 * (uint32_t)f), "r"(v)
                     : "memory");
    }
};

MF_DEVICE int steps_of(const Args &p, const mf_grouped_tile &t) {
    const int length = p.reduction ? p.reduction : t.count;
    return (length + MF_GROUPED_TILE_K - 1) / MF_GROUPED_TILE_K;
}

/* The split that all blocks work by, and how many turns there are in all. */
struct Work {
    mf_grouped_split split;
    int turns;
};

/* Turn number k of a block's cluster, where each has its own. */
MF_DEVICE int own_turn(const Work &w, int &k) {
    int turn;
    do {
        turn = mf_grouped_turn(&w.split, k++, (int)mf_cluster_id(), (int)mf_cluster_count());
    } while (turn < 0);
    return turn;
}

/* The next turn that no cluster has, for block 0 of a cluster. Each takes one more than it has
 * tiles, so the count ends where it began. */
MF_DEVICE uint32_t take_turn(const Args &p, const Work &w, int rank) {
    return p.turns != NULL && rank == 0
               ? atomicInc(p.turns, (uint32_t)w.turns + mf_cluster_count() - 1)
               : 0;
}

/* Turn `number` of a block's cluster: `taken` in block 0, which tells the other one. */
template <class C>
MF_DEVICE int turn_taken(const Smem<C> &s, uint32_t number, int rank, uint32_t taken) {
    const uint32_t round = number / MAILS % 2;
    if (rank == 0) {
        mf_mbar_wait(s.mail_empty(number), round ^ 1);
        mf_store_at(s.mail_word(number), s.mail_full(number), 1, taken);
        return (int)taken;
    }
    int turn;
    mf_mbar_expect(s.mail_full(number), 4);
    mf_mbar_wait(s.mail_full(number), round);
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(turn) : "r"(s.mail_word(number)) : "memory");
    mf_mbar_arrive_at(s.mail_empty(number), 0);
    return turn;
}

/* Turn `number` of a block's cluster, of the one thread that calls this. It comes out of a shuffle,
 * so that the compiler knows it to be the same in all threads that run and keeps the coordinates of
 * the copies in uniform registers. Else it puts a loop over threads around each copy, and products
 * take a sixth longer (H200). */
template <class C>
MF_DEVICE int next_turn(const Smem<C> &s, const Args &p, const Work &w, uint32_t number, int rank,
                        uint32_t taken, int &k) {
    const int turn = p.turns != NULL ? turn_taken(s, number, rank, taken) : own_turn(w, k);
    return __shfl_sync(1u, turn, 0);
}

/* All threads of a warp. */
MF_DEVICE Work choose_work(const Args &p) {
    int pairs = 0;
    for (int i = (int)threadIdx.x % 32; i < p.space.experts; i += 32) {
        int begin, count, tiles_m;
        mf_grouped_segment(&p.space, p.offsets, i, &begin, &count);
        pairs += mf_grouped_pairs(&p.space, count, &tiles_m);
    }
    pairs = __reduce_add_sync(~0u, pairs);
    Work w = {{0, 1}, 0};
    if (p.balance) {
        w.split = mf_grouped_split_choose(&p.space, pairs, (int)mf_cluster_count());
    }
    w.turns = pairs + w.split.pairs_sliced * (w.split.slices - 1);
    return w;
}

} // namespace mf_grouped

#endif
