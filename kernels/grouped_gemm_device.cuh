/* grouped_gemm_device.cuh - the expert products on Hopper: persistent, warp-specialised, TMA,
 * wgmma.
 *
 * A block is three warpgroups. One thread of the first keeps a ring of `stages` reduction steps
 * full by bulk tensor copies; the other two each own 64 of the tile's 128 rows and multiply
 * straight from shared memory into 128 float registers a thread. A finished tile is rounded into 64
 * registers (bf16) or half written (f32), and the rest is written chunk by chunk while the tensor
 * cores are busy with the next tile: through small buffers and the bulk copy engine, or row by row
 * where a tile crosses the end of a segment. Two blocks form a cluster and share one operand by
 * multicast; which one depends on the tile (grouped_gemm_tiles.h). Expert segments are read here,
 * never on the host; the producer alone walks them and passes each tile to the consumers.
 *
 * Both operands always travel as boxes of 64 x 64 elements (8 KiB, 128-byte swizzle): rows of 64
 * along the reduction (forward), or rows of 64 along the output with one row a reduction step (W in
 * dgrad, both operands in wgrad), which wgmma reads transposed.
 *
 * Shared memory is the limit beside the matrix rate: a step of 1,024 cycles takes in 48 KiB and is
 * read twice for b, once for a (80 KiB), which is all that 128 bytes a cycle give.
 */
#ifndef MF_KERNELS_GROUPED_GEMM_DEVICE_CUH
#define MF_KERNELS_GROUPED_GEMM_DEVICE_CUH

#include "kernels/grouped_gemm.h"
#include "kernels/grouped_gemm_tiles.h"
#include "kernels/hopper.cuh"

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
constexpr int BAR_BOTH = 1; /* named barrier */

struct Args {
    mf_grouped_space space;
    const int32_t *offsets;
    uint16_t *out;     /* for tiles that the copy engine cannot mask */
    int32_t reduction; /* elements summed; WGRAD: the expert's tokens instead */
    int32_t accumulate;
    int32_t balance; /* fill the last round */
};

template <mf_grouped_kind KIND, bool F32_, int STAGES_, int BUFFERS_> struct Traits {
    static constexpr bool WGRAD = KIND == MF_GROUPED_WGRAD;
    static constexpr bool F32 = F32_; /* what is written; else bf16 */
    static constexpr int MN_A = WGRAD;
    static constexpr int MN_B = KIND != MF_GROUPED_FORWARD;
    static constexpr int STAGES = STAGES_;
    static constexpr int BUFFERS = BUFFERS_;
    /* in units of 16 bytes: what one wgmma's 16 reduction elements advance a descriptor by */
    static constexpr uint32_t STEP_A = MN_A ? 2048 / 16 : 32 / 16;
    static constexpr uint32_t STEP_B = MN_B ? 2048 / 16 : 32 / 16;
    static constexpr int SMEM_B =
        STAGES * STAGE_B + CONSUMERS * 4 * BUFFERS * BUFFER_B + 512 + 1024;
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

/* A tile as the consumers need it; the producer finds it and passes it on through shared memory,
 * where it stays until its last chunk is written. */
enum Field {
    STEPS, /* of the reduction; negative: no more tiles */
    BOXES, /* width in units of 64 columns; 0: this block only helps its neighbour */
    CUT,   /* in this step (-1: none) ... */
    VALID, /* ... only so many elements are the expert's */
    X,     /* first column, */
    Y,     /* first row, */
    Z,     /* expert in the output's map */
    END,   /* column after the last */
    ROWS,  /* from the first on, that may be written; may exceed the tile */
    FIELDS
};
constexpr int SLOTS = 4, SLOT_B = 64, SLOT_BARS = 48;
static_assert(FIELDS * 4 <= SLOT_BARS && SLOT_BARS + 16 <= SLOT_B, "fields, then two barriers");

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
        return base + C::STAGES * STAGE_B + CONSUMERS * 4 * C::BUFFERS * BUFFER_B +
               (uint32_t)stage * 16;
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
    MF_DEVICE_MEMBER int field(uint32_t number, Field f) const {
        int v;
        asm volatile("ld.shared.b32 %0, [%1];"
                     : "=r"(v)
                     : "r"(slot(number) + 4 * (uint32_t)f)
                     : "memory");
        return v;
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

/* The turns of a block's cluster. */
struct Turns {
    mf_grouped_split split;
    mf_grouped_walk walk;
    int k;
};

MF_DEVICE bool turns_next(Turns &w, const Args &p, int rank, mf_grouped_tile &t) {
    const int clusters = (int)mf_cluster_count();
    int turn;
    do {
        turn = mf_grouped_turn(&w.split, w.k++, (int)mf_cluster_id(), clusters);
    } while (turn < 0);
    return mf_grouped_walk_seek(&p.space, &w.split, p.offsets, &w.walk, turn, rank, &t);
}

/* The split that all blocks work by. All threads of a warp. */
MF_DEVICE mf_grouped_split choose_split(const Args &p) {
    int pairs = 0;
    for (int i = (int)threadIdx.x % 32; i < p.space.experts; i += 32) {
        int begin, count, tiles_m;
        mf_grouped_segment(&p.space, p.offsets, i, &begin, &count);
        pairs += mf_grouped_pairs(&p.space, count, &tiles_m);
    }
    pairs = __reduce_add_sync(~0u, pairs);
    mf_grouped_split split = {0, 1};
    if (p.balance) {
        split = mf_grouped_split_choose(pairs, (int)mf_cluster_count());
    }
    return split;
}

/* --- producer: one thread --- */
/* Passes a tile (steps < 0: the end) to the consumers through its slot. */
template <class C>
MF_DEVICE void pass_on(const Smem<C> s, uint32_t number, const mf_grouped_tile &t, int steps,
                       const Args &p) {
    const int valid = (C::WGRAD ? t.count : p.reduction) - (steps - 1) * MF_GROUPED_TILE_K;
    const bool cut = C::WGRAD && steps > 0 && valid < BOX;
    mf_mbar_wait(s.slot_empty(number), (number / SLOTS % 2) ^ 1);
    s.set_field(number, STEPS, steps);
    s.set_field(number, BOXES, t.boxes);
    s.set_field(number, CUT, cut ? steps - 1 : -1);
    s.set_field(number, VALID, valid);
    s.set_field(number, X, t.n);
    s.set_field(number, Y, t.m + (C::WGRAD ? 0 : t.begin));
    s.set_field(number, Z, C::WGRAD ? t.expert : 0);
    s.set_field(number, END, min(t.n + t.boxes * BOX, p.space.out_cols));
    s.set_field(number, ROWS, (C::WGRAD ? p.space.out_rows : t.count) - t.m);
    mf_mbar_arrive(s.slot_full(number));
}

template <class C>
MF_DEVICE void produce(const Smem<C> s, const CUtensorMap *map_a, const CUtensorMap *map_b,
                       const Args &p, const mf_grouped_split &split) {
    Ring<C::STAGES> r = {0};
    const int rank = (int)mf_cluster_rank();
    Turns turns = {split, mf_grouped_walk_start(), 0};
    mf_grouped_tile t = {0, 0, 0, 0, 0, 0, false};
    uint32_t number = 0;
    for (; turns_next(turns, p, rank, t); number++) {
        const int steps = steps_of(p, t);
        const uint32_t bytes = (uint32_t)(BOXES_A + t.boxes) * BOX_B;
        const int row = C::WGRAD ? t.m : t.begin + t.m;
        const int expert = C::WGRAD ? 0 : t.expert;
        pass_on<C>(s, number, t, steps, p);
#pragma unroll 1
        for (int i = 0; i < steps; i++) {
            const int at = (C::WGRAD ? t.begin : 0) + i * MF_GROUPED_TILE_K;
            mf_mbar_wait(s.empty(r.stage()), r.parity() ^ 1); /* a fresh one counts as emptied */
            const uint32_t full = s.full(r.stage());
            mf_mbar_expect(full, bytes);
            for (int j = 0; j < BOXES_A; j++) {
                const uint32_t dst = s.a(r.stage()) + (uint32_t)j * BOX_B;
                const int x = C::MN_A ? row + j * BOX : at;
                const int y = C::MN_A ? at : row + j * BOX;
                if (t.by_rows) {
                    mf_tma_load(dst, map_a, full, x, y, 0);
                } else if (j == rank) {
                    mf_tma_load_multicast(dst, map_a, full, x, y, 0, 3);
                }
            }
            for (int j = 0; j < t.boxes; j++) {
                const uint32_t dst = s.b(r.stage()) + (uint32_t)j * BOX_B;
                const int x = C::MN_B ? t.n + j * BOX : at;
                const int y = C::MN_B ? at : t.n + j * BOX;
                if (!t.by_rows) {
                    mf_tma_load(dst, map_b, full, x, y, expert);
                } else if (j % 2 == rank) {
                    mf_tma_load_multicast(dst, map_b, full, x, y, expert, 3);
                }
            }
            r.at++;
        }
    }
    pass_on<C>(s, number, t, -1, p);
}

/* --- consumers --- */
/* Tells the producers of both blocks that this warp has read the stage. */
template <class C> MF_DEVICE void release(const Smem<C> s, int stage, int lane) {
    if (lane < 2) {
        mf_mbar_arrive_at(s.empty(stage), (uint32_t)lane);
    }
}

/* Zeroes the reduction rows past the segment in a WGRAD stage. All consumer threads. */
template <class C> MF_DEVICE void clear_tail(const Smem<C> s, int stage, int valid, int thread) {
    constexpr int CHUNKS = (BOXES_A + BOXES_B) * 8; /* of 16 bytes: one row of all boxes */
    constexpr int AT_ONCE = CONSUMERS * 128 / CHUNKS;
    const int chunk = thread % CHUNKS;
    const uint32_t first = s.a(stage) + (uint32_t)(chunk / 8 * BOX_B + chunk % 8 * 16);
#pragma unroll 1
    for (int from = valid; from < BOX; from += AT_ONCE) {
        const int row = from + thread / CHUNKS;
        if (thread < CHUNKS * AT_ONCE && row < BOX) {
            asm volatile(
                "st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(first + (uint32_t)row * 128),
                "r"(0)
                : "memory");
        }
    }
    mf_fence_async();
    mf_bar_sync(BAR_BOTH, CONSUMERS * 128);
}

/* --- output --- */
MF_DEVICE uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &two, sizeof bits);
    return bits;
}

/* Four chunks of 16 registers a thread that are still to be written, bf16: a whole tile, 64 columns
 * a chunk; f32: its right half, 32 columns a chunk. They are written one by one while the tensor
 * cores are busy with the next tile. */
struct Held {
    uint32_t v[64];
    uint32_t tile; /* number of the tile */
    int left;      /* chunks */
    int next;      /* step of the next tile at which the next one is written */
    int buffer;    /* of this warp, that the next chunk goes through */
};

/* 64 bf16 columns as rows of 128 bytes, swizzled. */
MF_DEVICE void put_bf16(uint32_t buffer, const uint32_t *v, int lane) {
    const int row = lane % 16, shift = lane / 16;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int chunk = (2 * j + shift) ^ (row % 8);
        mf_stmatrix_x4(buffer + (uint32_t)(row * 128 + chunk * 16), v[4 * j], v[4 * j + 1],
                       v[4 * j + 2], v[4 * j + 3]);
    }
}

/* 32 f32 columns as rows of 128 bytes, swizzled. Odd rows take the column groups in another order
 * so that no two rows of a half-warp meet in a bank. */
MF_DEVICE void put_f32(uint32_t buffer, const uint32_t *v, int lane) {
    const int row = lane / 4;
    const bool odd = row % 2;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t *one = v + 4 * j, *other = v + 4 * (j ^ 2);
        const int chunk = (2 * (odd ? j ^ 2 : j) + lane % 4 / 2) ^ (row % 8);
        const uint32_t at = buffer + (uint32_t)(row * 128 + chunk * 16 + lane % 2 * 8);
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(odd ? other[0] : one[0]),
                     "r"(odd ? other[1] : one[1])
                     : "memory");
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at + 8 * 128),
                     "r"(odd ? other[2] : one[2]), "r"(odd ? other[3] : one[3])
                     : "memory");
    }
}

/* A value that is the same in all lanes, and known to the compiler to be: what depends on it can
 * live in the uniform registers. */
MF_DEVICE int uniform(int value) {
    return __shfl_sync(~0u, value, 0);
}

/* Copies the first `rows` rows of a bf16 buffer to global memory, columns below `cols` only. */
MF_DEVICE void copy_rows(uint32_t buffer, uint16_t *out, int64_t stride, int rows, int cols,
                         int lane) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = lane / 8 + i * 4, chunk = lane % 8;
        if (row < rows && chunk * 8 < cols) {
            uint4 v;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "r"(buffer + (uint32_t)(row * 128 + ((chunk ^ (row % 8)) << 4)))
                         : "memory");
            *(uint4 *)(out + row * stride + chunk * 8) = v;
        }
    }
}

/* Writes chunk c (of 64 bf16 or 32 f32 columns) of the held tile; v: its registers. */
template <class C>
MF_DEVICE void write_chunk(const uint32_t *v, Held &h, const Smem<C> s, const CUtensorMap *map_out,
                           const Args &p, int c) {
    const int warp = (int)threadIdx.x / 32 - 4, lane = (int)threadIdx.x % 32;
    const int x = s.field(h.tile, X) + c * (C::F32 ? 32 : 64);
    const int y = s.field(h.tile, Y) + warp * WARP_ROWS, z = s.field(h.tile, Z);
    const int rows = s.field(h.tile, ROWS) - warp * WARP_ROWS;
    if (x >= s.field(h.tile, END) || rows <= 0) {
        return;
    }
    const uint32_t buffer = s.buffer(warp, h.buffer);
    h.buffer = h.buffer + 1 == C::BUFFERS ? 0 : h.buffer + 1;
    if (lane == 0) {
        mf_tma_wait_read<C::BUFFERS - 1>();
    }
    __syncwarp();
    if (C::F32) {
        put_f32(buffer, v, lane);
    } else {
        put_bf16(buffer, v, lane);
    }
    mf_fence_async();
    __syncwarp();
    if (!C::WGRAD && rows < WARP_ROWS) {
        copy_rows(buffer, p.out + (int64_t)y * p.space.out_cols + x, p.space.out_cols, rows,
                  p.space.out_cols - x, lane);
        __syncwarp();
    } else if (lane == 0) {
        if (C::F32 && p.accumulate) {
            mf_tma_add(map_out, buffer, x, y, z);
        } else {
            mf_tma_store(map_out, buffer, x, y, z);
        }
    }
    if (lane == 0) {
        mf_tma_commit(); /* also when empty: the groups are counted */
    }
}

/* This warp needs the tile's slot no more. */
template <class C> MF_DEVICE void leave(const Smem<C> s, uint32_t number) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        mf_mbar_arrive(s.slot_empty(number));
    }
}

/* Writes the next held chunk. */
template <class C>
MF_DEVICE void write_held(Held &h, const Smem<C> s, const CUtensorMap *map_out, const Args &p) {
    constexpr int FIRST = C::F32 ? 4 : 0;
    switch (h.left) { /* so that registers have constant numbers */
    case 4:
        write_chunk<C>(h.v, h, s, map_out, p, FIRST);
        break;
    case 3:
        write_chunk<C>(h.v + 16, h, s, map_out, p, FIRST + 1);
        break;
    case 2:
        write_chunk<C>(h.v + 32, h, s, map_out, p, FIRST + 2);
        break;
    default:
        write_chunk<C>(h.v + 48, h, s, map_out, p, FIRST + 3);
        break;
    }
    if (--h.left == 0) {
        leave(s, h.tile);
    }
}

/* Takes over a finished tile: bf16 is rounded and held, f32 is half written, half held. */
template <class C>
MF_DEVICE void take(const float (&d)[128], Held &h, const Smem<C> s, const CUtensorMap *map_out,
                    const Args &p, uint32_t tile) {
    h.tile = tile;
    h.left = 4;
    h.next = 0;
    if (C::F32) {
#pragma unroll
        for (int i = 0; i < 64; i++) {
            h.v[i] = __float_as_uint(d[64 + i]);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint32_t v[16];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                v[i] = __float_as_uint(d[16 * c + i]);
            }
            write_chunk<C>(v, h, s, map_out, p, c);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 64; i++) {
            h.v[i] = pack_bf16(d[2 * i], d[2 * i + 1]);
        }
    }
}

/* --- consumers: the products --- */
/* One step: d (+)= a b, 64 x `boxes` * 64 columns. Fence and commit stand inside the branches so
 * that they join the instructions. */
template <class C>
MF_DEVICE void multiply_step(float (&d)[128], uint32_t a, uint32_t b, int boxes, int add) {
    constexpr int PARTS = MF_GROUPED_TILE_K / 16;
    if (boxes > 2) {
        mf_wgmma_fence();
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            mf_wgmma_n256<C::MN_A, C::MN_B>(d, mf_wgmma_descriptor(a + j * C::STEP_A),
                                            mf_wgmma_descriptor(b + j * C::STEP_B), add | j);
        }
        mf_wgmma_commit();
    } else if (boxes == 2) {
        mf_wgmma_fence();
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            mf_wgmma_n128<C::MN_A, C::MN_B>(d, mf_wgmma_descriptor(a + j * C::STEP_A),
                                            mf_wgmma_descriptor(b + j * C::STEP_B), add | j);
        }
        mf_wgmma_commit();
    } else {
        mf_wgmma_fence();
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            mf_wgmma_n64<C::MN_A, C::MN_B>(d, mf_wgmma_descriptor(a + j * C::STEP_A),
                                           mf_wgmma_descriptor(b + j * C::STEP_B), add | j);
        }
        mf_wgmma_commit();
    }
}

/* Sums all steps of a tile into d, and writes what is held meanwhile. */
template <class C>
MF_DEVICE void multiply(float (&d)[128], Held &h, const Smem<C> s, Ring<C::STAGES> &r,
                        uint32_t tile, int steps, int boxes, int warpgroup,
                        const CUtensorMap *map_out, const Args &p) {
    const int thread = (int)threadIdx.x - 128;
    const int cut = C::WGRAD ? s.field(tile, CUT) : -1;
    const int spread = steps > 4 ? steps / 4 : 1; /* a burst of writes would fill the way to L2 */
    const uint32_t a0 =
        mf_wgmma_descriptor_low(s.a(0) + (uint32_t)warpgroup * BOX_B, C::MN_A ? BOX_B : 0);
    const uint32_t b0 = mf_wgmma_descriptor_low(s.b(0), C::MN_B ? BOX_B : 0);
    if (C::WGRAD && steps <= 0) {
#pragma unroll
        for (int i = 0; i < 128; i++) {
            d[i] = 0;
        }
    }
    mf_wgmma_hold(d);
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        const uint32_t stage = (uint32_t)r.stage();
        mf_mbar_wait(s.full(r.stage()), r.parity());
        if (C::WGRAD && i == cut) {
            clear_tail<C>(s, r.stage(), s.field(tile, VALID), thread);
        }
        multiply_step<C>(d, a0 + stage * (STAGE_B / 16), b0 + stage * (STAGE_B / 16), boxes, i);
        if (i > 0) {
            mf_wgmma_wait<1>();
            release<C>(s, (int)((r.at - 1) % C::STAGES), thread % 32);
        }
        r.at++;
        if (h.left > 0 && i >= h.next) {
            write_held<C>(h, s, map_out, p);
            h.next += spread;
        }
    }
    mf_wgmma_wait<0>();
    mf_wgmma_hold(d);
    if (steps > 0) {
        release<C>(s, (int)((r.at - 1) % C::STAGES), thread % 32);
    }
}

/* A warpgroup without rows or columns of its own still takes part in the ring. */
template <class C>
MF_DEVICE void sit_out(const Smem<C> s, Ring<C::STAGES> &r, uint32_t tile, int steps) {
    const int thread = (int)threadIdx.x - 128;
    const int cut = C::WGRAD ? s.field(tile, CUT) : -1;
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        mf_mbar_wait(s.full(r.stage()), r.parity());
        if (C::WGRAD && i == cut) {
            clear_tail<C>(s, r.stage(), s.field(tile, VALID), thread);
        }
        release<C>(s, r.stage(), thread % 32);
        r.at++;
    }
}

template <class C>
MF_DEVICE void consume(const Smem<C> s, const CUtensorMap *map_out, const Args &p, int warpgroup) {
    Ring<C::STAGES> r = {0};
    float d[128];
    Held h;
    h.tile = 0;
    h.left = h.next = h.buffer = 0;
    for (uint32_t tile = 0;; tile++) {
        mf_mbar_wait(s.slot_full(tile), tile / SLOTS % 2);
        const int steps = uniform(s.field(tile, STEPS)), boxes = uniform(s.field(tile, BOXES));
        const bool more = steps >= 0;
        /* In WGRAD both warpgroups or none: they meet where a stage is cut. */
        const bool rows = C::WGRAD || warpgroup * BOX < uniform(s.field(tile, ROWS));
        const bool works = more && boxes > 0 && rows;
        if (works) {
            multiply<C>(d, h, s, r, tile, steps, boxes, warpgroup, map_out, p);
        }
#pragma unroll 1
        while (h.left > 0) { /* what a short reduction left */
            write_held<C>(h, s, map_out, p);
        }
        if (!more) {
            break;
        }
        if (works) {
            take<C>(d, h, s, map_out, p, tile);
        } else {
            sit_out<C>(s, r, tile, steps);
            leave(s, tile);
        }
    }
    mf_tma_wait<0>();
}

template <class C>
__global__ void __launch_bounds__(THREADS, 1)
    grouped_gemm_kernel(const __grid_constant__ CUtensorMap map_a,
                        const __grid_constant__ CUtensorMap map_b,
                        const __grid_constant__ CUtensorMap map_out,
                        const __grid_constant__ Args p) {
    extern __shared__ uint8_t raw[];
    const Smem<C> s = {mf_opaque((mf_smem_address(raw) + 1023u) & ~1023u)};
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        mf_tma_prefetch_map(&map_a);
        mf_tma_prefetch_map(&map_b);
        mf_tma_prefetch_map(&map_out);
        for (int i = 0; i < C::STAGES; i++) {
            mf_mbar_init(s.full(i), 1);
            mf_mbar_init(s.empty(i), 2 * CONSUMERS * 4); /* a warp of either block */
        }
        for (uint32_t i = 0; i < SLOTS; i++) {
            mf_mbar_init(s.slot_full(i), 1);
            mf_mbar_init(s.slot_empty(i), CONSUMERS * 4);
        }
        mf_mbar_init_fence();
    }
    const mf_grouped_split split = choose_split(p);
    mf_cluster_sync();
    if (warpgroup == 0) {
        mf_registers_give<40>();
        if (threadIdx.x == 0) {
            produce<C>(s, &map_a, &map_b, p, split);
        }
    } else {
        mf_registers_take<232>();
        consume<C>(s, &map_out, p, warpgroup - 1);
    }
    __syncwarp();
    mf_cluster_sync(); /* the neighbour may still write or arrive here */
}

} // namespace mf_grouped

#endif
