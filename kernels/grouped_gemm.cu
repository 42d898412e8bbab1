/* grouped_gemm.cu - the expert products on Hopper: persistent, warp-specialised, TMA and wgmma.
 *
 * A block is three warpgroups. One thread of the first keeps a ring of `stages` reduction steps
 * full by bulk tensor copies; the other two each own 64 of the tile's 128 rows, multiply straight
 * from shared memory into 128 float registers a thread, and store through small buffers with the
 * bulk copy engine (masked by hand where a tile crosses the end of a segment). Two blocks form a
 * cluster and share one operand by multicast, which one depends on the tile (grouped_gemm_tiles.h).
 * Expert segments are read here, never on the host.
 *
 * Both operands always travel as boxes of 64 x 64 elements (8 KiB, 128-byte swizzle): rows of 64
 * along the reduction (forward), or rows of 64 along the output with one row a reduction step (W in
 * dgrad, both operands in wgrad), which wgmma reads transposed.
 */
#include "kernels/cuda_check.h"
#include "kernels/grouped_gemm.h"
#include "kernels/grouped_gemm_tiles.h"
#include "kernels/hopper.cuh"

#include <cuda_bf16.h>

#include <string.h>

namespace {

constexpr int BOX = 64;                          /* rows and bf16 columns of a box */
constexpr int BOX_B = BOX * BOX * 2;             /* and the bytes of any box or buffer */
constexpr int BOXES_A = MF_GROUPED_TILE_M / BOX; /* one for each consumer warpgroup */
constexpr int BOXES_B = MF_GROUPED_TILE_N / BOX;
constexpr int STAGE_B = (BOXES_A + BOXES_B) * BOX_B;
constexpr int CONSUMERS = 2;
constexpr int THREADS = (1 + CONSUMERS) * 128;
constexpr int BAR_BOTH = 1, BAR_OWN = 2, BAR_LEAD = 4; /* named barriers; OWN + warpgroup */

struct Args {
    mf_grouped_space space;
    const int32_t *offsets;
    uint16_t *out;     /* for tiles that the copy engine cannot mask */
    int32_t reduction; /* elements summed; WGRAD: the expert's tokens instead */
    int32_t accumulate;
    int32_t stagger;
};

template <mf_grouped_kind KIND, int STAGES_, int BUFFERS_> struct Traits {
    static constexpr bool WGRAD = KIND == MF_GROUPED_WGRAD;
    static constexpr int MN_A = WGRAD;
    static constexpr int MN_B = KIND != MF_GROUPED_FORWARD;
    static constexpr int STAGES = STAGES_;
    static constexpr int BUFFERS = BUFFERS_;
    /* in units of 16 bytes: what one wgmma's 16 reduction elements advance a descriptor by */
    static constexpr int STEP_A = MN_A ? 2048 / 16 : 32 / 16;
    static constexpr int STEP_B = MN_B ? 2048 / 16 : 32 / 16;
    static constexpr int SMEM_B = STAGES * STAGE_B + CONSUMERS * BUFFERS * BOX_B + 256 + 1024;
};

/* Position in the ring of stages. */
struct Ring {
    int stage;
    uint32_t phase;
};

template <int STAGES> MF_DEVICE void ring_next(Ring &r) {
    if (++r.stage == STAGES) {
        r.stage = 0;
        r.phase ^= 1;
    }
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
    MF_DEVICE_MEMBER uint32_t buffer(int warpgroup, int i) const {
        return base + C::STAGES * STAGE_B + (uint32_t)((warpgroup * C::BUFFERS + i) * BOX_B);
    }
    MF_DEVICE_MEMBER uint32_t full(int stage) const {
        return base + C::STAGES * STAGE_B + CONSUMERS * C::BUFFERS * BOX_B + (uint32_t)stage * 16;
    }
    MF_DEVICE_MEMBER uint32_t empty(int stage) const {
        return full(stage) + 8;
    }
};

MF_DEVICE int steps_of(const Args &p, const mf_grouped_tile &t) {
    const int length = p.reduction ? p.reduction : t.count;
    return (length + MF_GROUPED_TILE_K - 1) / MF_GROUPED_TILE_K;
}

/* Boxes of b that hold columns of the output: 0 to 4. */
MF_DEVICE int boxes_of(const Args &p, const mf_grouped_tile &t) {
    const int boxes = (p.space.out_cols - t.n + BOX - 1) / BOX;
    return boxes < 0 ? 0 : boxes < BOXES_B ? boxes : BOXES_B;
}

/* --- producer: one thread ----------------------------------------------------------------------
 */
template <class C>
MF_DEVICE void produce(const Smem<C> s, const CUtensorMap *map_a, const CUtensorMap *map_b,
                       const Args &p, int rank) {
    Ring r = {0, 1}; /* a fresh barrier counts as emptied */
    mf_grouped_walk walk = mf_grouped_walk_start();
    mf_grouped_tile t;
    for (int pair = (int)mf_cluster_id();
         mf_grouped_walk_seek(&p.space, p.offsets, &walk, pair, rank, &t);
         pair += (int)mf_cluster_count()) {
        const int steps = steps_of(p, t);
        const int boxes = boxes_of(p, t);
        const uint32_t bytes = (uint32_t)(BOXES_A + boxes) * BOX_B;
        const int row = C::WGRAD ? t.m : t.begin + t.m;
        const int expert = C::WGRAD ? 0 : t.expert;
#pragma unroll 1
        for (int i = 0; i < steps; i++) {
            const int at = (C::WGRAD ? t.begin : 0) + i * MF_GROUPED_TILE_K;
            mf_mbar_wait(s.empty(r.stage), r.phase);
            const uint32_t full = s.full(r.stage);
            mf_mbar_expect(full, bytes);
            for (int j = 0; j < BOXES_A; j++) {
                const uint32_t dst = s.a(r.stage) + (uint32_t)j * BOX_B;
                const int x = C::MN_A ? row + j * BOX : at;
                const int y = C::MN_A ? at : row + j * BOX;
                if (t.by_rows) {
                    mf_tma_load(dst, map_a, full, x, y, 0);
                } else if (j == rank) {
                    mf_tma_load_multicast(dst, map_a, full, x, y, 0, 3);
                }
            }
            for (int j = 0; j < boxes; j++) {
                const uint32_t dst = s.b(r.stage) + (uint32_t)j * BOX_B;
                const int x = C::MN_B ? t.n + j * BOX : at;
                const int y = C::MN_B ? at : t.n + j * BOX;
                if (!t.by_rows) {
                    mf_tma_load(dst, map_b, full, x, y, expert);
                } else if (j % 2 == rank) {
                    mf_tma_load_multicast(dst, map_b, full, x, y, expert, 3);
                }
            }
            ring_next<C::STAGES>(r);
        }
    }
}

/* --- consumers ---------------------------------------------------------------------------------
 */
/* Tells the producers of both blocks that this warp has read the stage. */
template <class C> MF_DEVICE void release(const Smem<C> s, int stage, int lane) {
    if (lane < 2) {
        mf_mbar_arrive_at(s.empty(stage), (uint32_t)lane);
    }
}

/* Zeroes the reduction rows past the segment in a WGRAD stage. All consumer threads. */
template <class C> MF_DEVICE void clear_tail(const Smem<C> s, int stage, int valid, int thread) {
    const int chunks = (BOX - valid) * 8; /* 16 bytes each, of one box */
#pragma unroll 1
    for (int i = thread; i < chunks * (BOXES_A + BOXES_B); i += CONSUMERS * 128) {
        const int box = i / chunks;
        const uint32_t at = s.a(stage) + (uint32_t)(box * BOX_B + valid * 128 + (i % chunks) * 16);
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
    }
    mf_fence_async();
    mf_bar_sync(BAR_BOTH, CONSUMERS * 128);
}

/* Who leads: warpgroup 0 starts `after` steps before warpgroup 1, so that one stores its tile while
 * the other still multiplies. `owes`: warpgroup 0 has yet to let the other go. */
struct Lead {
    int after;
    bool owes;
    MF_DEVICE_MEMBER void pay(void) {
        if (owes) {
            mf_bar_arrive(BAR_LEAD, CONSUMERS * 128);
            owes = false;
        }
    }
};

/* Sums all steps of a tile into d. wide: 256 columns, otherwise the first 128. */
template <class C>
MF_DEVICE void multiply(float (&d)[128], const Smem<C> s, Ring &r, int steps, int valid_last,
                        bool wide, int warpgroup, Lead &lead) {
    const int thread = (int)threadIdx.x - 128;
    const int lane = thread % 32;
    int previous = 0;
    if (C::WGRAD && steps == 0) {
#pragma unroll
        for (int i = 0; i < 128; i++) {
            d[i] = 0;
        }
    }
    mf_wgmma_hold(d);
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        mf_mbar_wait(s.full(r.stage), r.phase);
        const bool cut = C::WGRAD && i == steps - 1 && valid_last < BOX;
        if (lead.owes && (i == lead.after || cut)) {
            lead.pay();
        }
        if (cut) {
            clear_tail<C>(s, r.stage, valid_last, thread);
        }
        const uint64_t a = mf_wgmma_descriptor(s.a(r.stage) + (uint32_t)warpgroup * BOX_B,
                                               C::MN_A ? BOX_B : 16, 1024);
        const uint64_t b = mf_wgmma_descriptor(s.b(r.stage), C::MN_B ? BOX_B : 16, 1024);
        /* fence and commit stand inside the branches so that they join the instructions */
        if (wide) {
            mf_wgmma_fence();
#pragma unroll
            for (int j = 0; j < MF_GROUPED_TILE_K / 16; j++) {
                mf_wgmma_n256<C::MN_A, C::MN_B>(d, a + (uint64_t)(j * C::STEP_A),
                                                b + (uint64_t)(j * C::STEP_B), i | j);
            }
            mf_wgmma_commit();
        } else {
            mf_wgmma_fence();
#pragma unroll
            for (int j = 0; j < MF_GROUPED_TILE_K / 16; j++) {
                mf_wgmma_n128<C::MN_A, C::MN_B>(d, a + (uint64_t)(j * C::STEP_A),
                                                b + (uint64_t)(j * C::STEP_B), i | j);
            }
            mf_wgmma_commit();
        }
        if (i > 0) {
            mf_wgmma_wait<1>();
            release<C>(s, previous, lane);
        }
        previous = r.stage;
        ring_next<C::STAGES>(r);
    }
    mf_wgmma_wait<0>();
    mf_wgmma_hold(d);
    if (steps > 0) {
        release<C>(s, previous, lane);
    }
}

/* A warpgroup without rows of its own still takes part in the ring. */
template <class C> MF_DEVICE void sit_out(const Smem<C> s, Ring &r, int steps, int valid_last) {
    const int thread = (int)threadIdx.x - 128;
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        mf_mbar_wait(s.full(r.stage), r.phase);
        if (C::WGRAD && i == steps - 1 && valid_last < BOX) {
            clear_tail<C>(s, r.stage, valid_last, thread);
        }
        release<C>(s, r.stage, thread % 32);
        ring_next<C::STAGES>(r);
    }
}

MF_DEVICE uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &two, sizeof bits);
    return bits;
}

/* Columns [64 c, 64 c + 64) of d as bf16 rows of 128 bytes, swizzled. */
MF_DEVICE void put_bf16(uint32_t buffer, const float *d, int warp, int lane) {
    const int row = warp * 16 + lane % 8 + (lane / 8 % 2) * 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int chunk = 2 * j + lane / 16;
        mf_stmatrix_x4(buffer + (uint32_t)(row * 128 + ((chunk ^ (row % 8)) << 4)),
                       pack_bf16(d[8 * j], d[8 * j + 1]), pack_bf16(d[8 * j + 2], d[8 * j + 3]),
                       pack_bf16(d[8 * j + 4], d[8 * j + 5]),
                       pack_bf16(d[8 * j + 6], d[8 * j + 7]));
    }
}

/* Columns [32 c, 32 c + 32) of d as f32 rows of 128 bytes, swizzled. */
MF_DEVICE void put_f32(uint32_t buffer, const float *d, int warp, int lane) {
    const int row = warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int chunk = 2 * j + lane % 4 / 2;
        const uint32_t at =
            buffer + (uint32_t)(row * 128 + ((chunk ^ (row % 8)) << 4) + lane % 2 * 8);
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(d[4 * j]), "f"(d[4 * j + 1])
                     : "memory");
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + 8 * 128), "f"(d[4 * j + 2]),
                     "f"(d[4 * j + 3])
                     : "memory");
    }
}

/* Copies the first `rows` rows of a bf16 buffer to global memory, columns below `cols` only. */
MF_DEVICE void copy_rows(uint32_t buffer, uint16_t *out, int64_t stride, int rows, int cols,
                         int thread) {
#pragma unroll
    for (int i = 0; i < BOX * 8 / 128; i++) {
        const int row = (thread + i * 128) / 8, chunk = thread % 8;
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

/* Writes this warpgroup's 64 rows of the tile. */
template <class C>
MF_DEVICE void store(const float (&d)[128], const Smem<C> s, const CUtensorMap *map_out,
                     const Args &p, const mf_grouped_tile &t, int warpgroup) {
    constexpr int COLS = C::WGRAD ? 32 : 64; /* of a buffer */
    const int thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int m = t.m + warpgroup * BOX;
#pragma unroll
    for (int c = 0; c < MF_GROUPED_TILE_N / COLS; c++) {
        const int n = t.n + c * COLS;
        if (n < p.space.out_cols) {
            const uint32_t buffer = s.buffer(warpgroup, c % C::BUFFERS);
            if (thread == 0) {
                mf_tma_wait_read<C::BUFFERS - 1>();
            }
            mf_bar_sync(BAR_OWN + warpgroup, 128);
            if (C::WGRAD) {
                put_f32(buffer, d + c * COLS / 2, warp, lane);
            } else {
                put_bf16(buffer, d + c * COLS / 2, warp, lane);
            }
            mf_fence_async();
            mf_bar_sync(BAR_OWN + warpgroup, 128);
            const bool whole = C::WGRAD || m + BOX <= t.count;
            if (whole && thread == 0) {
                if (C::WGRAD && p.accumulate) {
                    mf_tma_add(map_out, buffer, n, m, t.expert);
                } else if (C::WGRAD) {
                    mf_tma_store(map_out, buffer, n, m, t.expert);
                } else {
                    mf_tma_store(map_out, buffer, n, t.begin + m, 0);
                }
            } else if (!whole) {
                copy_rows(buffer, p.out + (int64_t)(t.begin + m) * p.space.out_cols + n,
                          p.space.out_cols, t.count - m, p.space.out_cols - n, thread);
            }
            if (thread == 0) {
                mf_tma_commit(); /* also when empty: the groups are counted */
            }
        }
    }
}

template <class C>
MF_DEVICE void consume(const Smem<C> s, const CUtensorMap *map_out, const Args &p, int rank,
                       int warpgroup) {
    Ring r = {0, 0};
    Lead lead = {p.stagger, warpgroup == 0 && p.stagger > 0};
    bool follows = warpgroup == 1 && p.stagger > 0;
    float d[128];
    mf_grouped_walk walk = mf_grouped_walk_start();
    mf_grouped_tile t;
    for (int pair = (int)mf_cluster_id();
         mf_grouped_walk_seek(&p.space, p.offsets, &walk, pair, rank, &t);
         pair += (int)mf_cluster_count()) {
        const int steps = steps_of(p, t);
        const int boxes = boxes_of(p, t);
        const int valid_last = t.count - (steps - 1) * MF_GROUPED_TILE_K;
        const int rows = C::WGRAD ? p.space.out_rows : t.count;
        if (follows) {
            mf_bar_sync(BAR_LEAD, CONSUMERS * 128);
            follows = false;
        }
        if (boxes > 0 && t.m + warpgroup * BOX < rows) {
            multiply<C>(d, s, r, steps, valid_last, boxes > 2, warpgroup, lead);
            lead.pay();
            store<C>(d, s, map_out, p, t, warpgroup);
        } else {
            lead.pay();
            sit_out<C>(s, r, steps, valid_last);
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
    const Smem<C> s = {(mf_smem_address(raw) + 1023u) & ~1023u};
    const int rank = (int)mf_cluster_rank();
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        mf_tma_prefetch_map(&map_a);
        mf_tma_prefetch_map(&map_b);
        mf_tma_prefetch_map(&map_out);
        for (int i = 0; i < C::STAGES; i++) {
            mf_mbar_init(s.full(i), 1);
            mf_mbar_init(s.empty(i), 2 * CONSUMERS * 4); /* a warp of either block */
        }
        mf_mbar_init_fence();
    }
    mf_cluster_sync();
    if (warpgroup == 0) {
        mf_registers_give<40>();
        if (threadIdx.x == 0) {
            produce<C>(s, &map_a, &map_b, p, rank);
        }
    } else {
        mf_registers_take<232>();
        consume<C>(s, &map_out, p, rank, warpgroup - 1);
    }
    __syncwarp();
    mf_cluster_sync(); /* the neighbour may still write or arrive here */
}

/* --- host --------------------------------------------------------------------------------------
 */
typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

mf_status find_encode(encode_fn *out, mf_err *e) {
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    MF_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                 cudaEnableDefault, &found),
                e);
    if (found != cudaDriverEntryPointSuccess || !entry) {
        return mf_err_set(e, MF_LIBRARY, "CUDA: the driver has no cuTensorMapEncodeTiled");
    }
    memcpy(out, &entry, sizeof entry);
    return MF_OK;
}

/* Map of a row-major array [depth, rows, cols] in boxes of 128 bytes x 64 rows. */
mf_status encode(encode_fn fn, CUtensorMap *map, const void *p, bool f32, int64_t cols,
                 int64_t rows, int64_t depth, mf_err *e) {
    const cuuint64_t element = f32 ? 4 : 2;
    const cuuint64_t dims[3] = {(cuuint64_t)cols, (cuuint64_t)rows, (cuuint64_t)depth};
    const cuuint64_t strides[2] = {dims[0] * element, dims[0] * dims[1] * element};
    const cuuint32_t box[3] = {(cuuint32_t)(128 / element), BOX, 1};
    const cuuint32_t ones[3] = {1, 1, 1};
    const CUresult result =
        fn(map, f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3,
           const_cast<void *>(p), dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
           CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        return mf_err_set(e, MF_LIBRARY,
                          "CUDA: cuTensorMapEncodeTiled of [%lld, %lld, %lld]: error %d",
                          (long long)depth, (long long)rows, (long long)cols, (int)result);
    }
    return MF_OK;
}

typedef void (*kernel_fn)(CUtensorMap, CUtensorMap, CUtensorMap, Args);

struct Built {
    int stages, buffers, smem_B;
    kernel_fn kernels[MF_GROUPED_KINDS];
};

template <int STAGES, int BUFFERS> constexpr Built built(void) {
    return {STAGES,
            BUFFERS,
            Traits<MF_GROUPED_FORWARD, STAGES, BUFFERS>::SMEM_B,
            {grouped_gemm_kernel<Traits<MF_GROUPED_FORWARD, STAGES, BUFFERS>>,
             grouped_gemm_kernel<Traits<MF_GROUPED_DGRAD, STAGES, BUFFERS>>,
             grouped_gemm_kernel<Traits<MF_GROUPED_WGRAD, STAGES, BUFFERS>>}};
}

/* The configs that are compiled; grouped_gemm.c knows the same list. */
const Built BUILT[] = {built<4, 2>()};

mf_status find_kernel(const mf_kernel_grouped_gemm *g, const mf_grouped_config *c, kernel_fn *out,
                      mf_err *e) {
    for (const Built &b : BUILT) {
        if (b.stages == c->stages && b.buffers == c->store_buffers && b.smem_B <= c->smem_B) {
            *out = b.kernels[g->kind];
            return MF_OK;
        }
    }
    return mf_err_set(e, MF_INPUT, "grouped GEMM: no kernel with %d stages and %d store buffers",
                      c->stages, c->store_buffers);
}

mf_status read_device(mf_grouped_device *out, mf_err *e) {
    int device = 0, sms = 0, smem_B = 0, l2_B = 0, major = 0, minor = 0;
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&smem_B, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&l2_B, cudaDevAttrL2CacheSize, device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), e);
    if (major != 9 || minor != 0) {
        return mf_err_set(e, MF_INPUT,
                          "grouped GEMM: built for compute capability 9.0, this GPU has %d.%d",
                          major, minor);
    }
    out->sm_count = sms;
    out->smem_max_B = smem_B;
    out->l2_B = l2_B;
    return MF_OK;
}

mf_status launch(const mf_kernel_grouped_gemm *g, const mf_grouped_config *c, cudaStream_t stream,
                 mf_err *e) {
    const bool wgrad = g->kind == MF_GROUPED_WGRAD;
    const int64_t out_cols = g->kind == MF_GROUPED_FORWARD ? g->n : g->k;
    const int64_t a_cols = g->kind == MF_GROUPED_FORWARD ? g->k : g->n;
    encode_fn fn = NULL;
    kernel_fn kernel = NULL;
    CUtensorMap map_a, map_b, map_out;
    mf_status status = find_kernel(g, c, &kernel, e);
    if (status != MF_OK || (status = find_encode(&fn, e)) != MF_OK ||
        (status = encode(fn, &map_a, g->a, false, a_cols, g->rows, 1, e)) != MF_OK ||
        (status = wgrad ? encode(fn, &map_b, g->b, false, g->k, g->rows, 1, e)
                        : encode(fn, &map_b, g->b, false, g->k, g->n, g->experts, e)) != MF_OK ||
        (status = wgrad ? encode(fn, &map_out, g->out, true, g->k, g->n, g->experts, e)
                        : encode(fn, &map_out, g->out, false, out_cols, g->rows, 1, e)) != MF_OK) {
        return status;
    }
    Args p;
    memset(&p, 0, sizeof p);
    p.space.experts = g->experts;
    p.space.rows = (int32_t)g->rows;
    p.space.out_rows = wgrad ? (int32_t)g->n : 0;
    p.space.out_cols = (int32_t)out_cols;
    p.space.skip_empty = !wgrad || g->accumulate;
    p.space.raster = c->raster;
    p.offsets = g->offsets;
    p.out = wgrad ? NULL : (uint16_t *)g->out;
    p.reduction = wgrad ? 0 : (int32_t)a_cols;
    p.accumulate = g->accumulate;
    p.stagger = c->stagger;

    MF_CUDA_TRY(cudaFuncSetAttribute((const void *)kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, c->smem_B),
                e);
    cudaLaunchAttribute cluster;
    memset(&cluster, 0, sizeof cluster);
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)c->cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)c->blocks);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)c->smem_B;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    MF_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, map_a, map_b, map_out, p), e);
    return MF_OK;
}

} // namespace

extern "C" mf_status mf_kernel_grouped_gemm_run_cuda_config(const mf_kernel_grouped_gemm *g,
                                                            const mf_grouped_config *c,
                                                            void *stream, mf_err *e) {
    mf_grouped_device dev;
    mf_status status = read_device(&dev, e);
    if (status != MF_OK || (status = mf_grouped_config_check(c, &dev, e)) != MF_OK) {
        return status;
    }
    const bool wgrad = g->kind == MF_GROUPED_WGRAD;
    if (g->experts == 0 || g->n == 0 || g->k == 0 || (g->rows == 0 && !wgrad)) {
        return MF_OK;
    }
    if (g->rows == 0) {
        if (!g->accumulate) {
            const size_t size_B = (size_t)g->experts * (size_t)g->n * (size_t)g->k * sizeof(float);
            MF_CUDA_TRY(cudaMemsetAsync(g->out, 0, size_B, (cudaStream_t)stream), e);
        }
        return MF_OK;
    }
    return launch(g, c, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_grouped_gemm_run_cuda(const mf_kernel_grouped_gemm *g, void *stream,
                                                     mf_err *e) {
    mf_grouped_device dev;
    mf_grouped_config c;
    mf_status status = read_device(&dev, e);
    if (status != MF_OK || (status = mf_grouped_config_choose(g, &dev, &c, e)) != MF_OK) {
        return status;
    }
    return mf_kernel_grouped_gemm_run_cuda_config(g, &c, stream, e);
}
