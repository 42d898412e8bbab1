/* mla_grad_device.cuh - the kernels of kernels/attention/mla_grad.h.
 *
 * Keys kernel: a block owns 128 keys of a head, two warpgroups 64 each; a third one loads queries,
 * 64 at a time, from the diagonal down. All scores are transposed, a row a key, so that p and ds go
 * from the sums of one product into the next one as its left operand, without leaving registers:
 *
 *     s = k q^T,  dp = v do^T      64 x 64, from shared memory
 *     dv += p do,  dk += ds q      64 x 128 and 64 x 192, 160 registers of sums a thread
 *
 * s of the next queries is multiplied while dk of these is, so the tensor cores have work while
 * exponentials are computed. ds leaves through shared memory as it lies there: 64 keys x 64
 * queries, 8 KiB, 128-byte swizzle.
 *
 * Queries kernel: a block owns 256 queries of a head, two warpgroups 128 each, and multiplies their
 * ds (as the left operand, read across) by all keys up to the diagonal.
 */
#ifndef MF_KERNELS_MLA_GRAD_DEVICE_CUH
#define MF_KERNELS_MLA_GRAD_DEVICE_CUH

#include "kernels/device/hopper_wgmma.cuh"

#include <cuda_bf16.h>

namespace mf_kept {

enum {
    QK = 192,
    VALUE = 128,
    BOX = 64, /* rows and columns of what is moved at once */
    BOX_B = BOX * BOX * 2,
    QK_BOXES = QK / BOX,
    VALUE_BOXES = VALUE / BOX,
    KEYS = 128,              /* of a block of the keys kernel */
    QUERIES = 256,           /* of a block of the queries kernel */
    TILE_B = KEYS * BOX * 2, /* ds of 64 queries with KEYS keys */
    THREADS = 384,
    WARPS = 8,    /* that compute */
    BAR_PAIR = 1, /* both warpgroups that compute */
    BAR_GROUP = 2 /* and one for each */
};

/* What both kernels know of the job. */
struct Args {
    uint8_t *scores; /* ds of `heads of this launch`, each tiles_of(seq) x TILE_B */
    int first;       /* of batch x heads */
    int heads, seq;
    float scale, scale2; /* scale2 = scale log2(e) */
};

struct Maps {
    CUtensorMap q, k, v, d_o, dq, dk, dv;
    CUtensorMap delta, lse2; /* FP32 [batch x heads, seq]; lse2 = lse log2(e) */
};

/* Tiles of 64 queries with 128 keys that causal attention sees, of one head: those of key block j
 * begin at its diagonal, behind those of the blocks before. */
__host__ __device__ inline long long tile_of(int seq, int key_block, int query_box) {
    const long long boxes = seq / BOX, j = key_block;
    return j * boxes - j * (j - 1) + query_box - 2 * j;
}

__host__ __device__ inline long long tiles_of(int seq) {
    return tile_of(seq, seq / KEYS, 2 * (seq / KEYS));
}

MF_DEVICE void bulk_load(uint32_t dst, const void *src, uint32_t size_B, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(dst),
                 "l"((uint64_t)__cvta_generic_to_global(src)), "r"(size_B), "r"(bar)
                 : "memory");
}

MF_DEVICE void bulk_store(void *dst, uint32_t src, uint32_t size_B) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     (uint64_t)__cvta_generic_to_global(dst)),
                 "r"(src), "r"(size_B)
                 : "memory");
}

MF_DEVICE float2 load_pair(uint32_t address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
    return x;
}

MF_DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two numbers rounded to BF16, the first in the lower half. */
MF_DEVICE uint32_t rounded(float low, float high) {
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

MF_DEVICE float low_of(uint32_t x) {
    return __uint_as_float(x << 16);
}
MF_DEVICE float high_of(uint32_t x) {
    return __uint_as_float(x & 0xffff0000u);
}

/* Writes this warp's 16 rows of a swizzled box, 16 columns from 16 `part` on. */
MF_DEVICE void write_part(uint32_t box, int part, uint32_t r0, uint32_t r1, uint32_t r2,
                          uint32_t r3) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
    const int row = warp * 16 + lane % 16, chunk = 2 * part + lane / 16;
    mf_stmatrix_x4(box + (uint32_t)(row * 128 + ((chunk ^ (row % 8)) << 4)), r0, r1, r2, r3);
}

/* Writes 64 x 64 sums, each times `factor`, as BF16 into a box: columns 64 `box` on of d. */
template <int N> MF_DEVICE void write_box(uint32_t to, const float (&d)[N], int box, float factor) {
#pragma unroll
    for (int part = 0; part < 4; part++) {
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = box * 32 + part * 8 + i * 2;
            r[i] = rounded(d[at] * factor, d[at + 1] * factor);
        }
        write_part(to, part, r[0], r[1], r[2], r[3]);
    }
}

/* --- keys ------------------------------------------------------------------------------------- */
struct KeysSmem {
    enum {
        STAGES = 2,
        K = 0, /* of each warpgroup QK_BOXES boxes; dk at the end */
        V = K + 2 * QK_BOXES * BOX_B,
        Q = V + 2 * VALUE_BOXES * BOX_B,
        DO = Q + STAGES * QK_BOXES * BOX_B,
        DS = DO + STAGES * VALUE_BOXES * BOX_B, /* of each warpgroup two boxes */
        LSE = DS + 4 * BOX_B,
        DELTA = LSE + STAGES * BOX * 4,
        BARS = DELTA + STAGES * BOX * 4,
        SIZE_B = BARS + (1 + 4 * STAGES) * 8 + 1024
    };
    uint32_t base;
    MF_DEVICE_MEMBER uint32_t k(int group) const {
        return base + K + (uint32_t)(group * QK_BOXES * BOX_B);
    }
    MF_DEVICE_MEMBER uint32_t v(int group) const {
        return base + V + (uint32_t)(group * VALUE_BOXES * BOX_B);
    }
    MF_DEVICE_MEMBER uint32_t q(int stage) const {
        return base + Q + (uint32_t)(stage * QK_BOXES * BOX_B);
    }
    MF_DEVICE_MEMBER uint32_t d_o(int stage) const {
        return base + DO + (uint32_t)(stage * VALUE_BOXES * BOX_B);
    }
    MF_DEVICE_MEMBER uint32_t ds(int group, int buffer) const {
        return base + DS + (uint32_t)((group * 2 + buffer) * BOX_B);
    }
    MF_DEVICE_MEMBER uint32_t lse(int stage) const {
        return base + LSE + (uint32_t)(stage * BOX * 4);
    }
    MF_DEVICE_MEMBER uint32_t delta(int stage) const {
        return base + DELTA + (uint32_t)(stage * BOX * 4);
    }
    MF_DEVICE_MEMBER uint32_t bar(int i) const {
        return base + BARS + (uint32_t)i * 8;
    }
    MF_DEVICE_MEMBER uint32_t keys_full(void) const {
        return bar(0);
    }
    MF_DEVICE_MEMBER uint32_t q_full(int stage) const {
        return bar(1 + stage);
    }
    MF_DEVICE_MEMBER uint32_t q_empty(int stage) const {
        return bar(1 + STAGES + stage);
    }
    MF_DEVICE_MEMBER uint32_t do_full(int stage) const {
        return bar(1 + 2 * STAGES + stage);
    }
    MF_DEVICE_MEMBER uint32_t do_empty(int stage) const {
        return bar(1 + 3 * STAGES + stage);
    }
};

/* Which keys of which head a block owns. */
struct KeysWork {
    int pair, head, row; /* of batch x heads; row: first of the sequence */
    int block;           /* of keys */
    int boxes;           /* of queries that see them */
};

MF_DEVICE KeysWork keys_work(const Args &p) {
    const int blocks = p.seq / KEYS, pair = p.first + (int)blockIdx.x / blocks;
    const int block = (int)blockIdx.x % blocks;
    return {pair, pair % p.heads, pair / p.heads * p.seq, block, p.seq / BOX - 2 * block};
}

MF_DEVICE void load_queries(const KeysSmem &s, const Maps &m, const KeysWork &w) {
    mf_mbar_expect(s.keys_full(), 2 * (QK_BOXES + VALUE_BOXES) * BOX_B);
    for (int group = 0; group < 2; group++) {
        const int row = w.row + w.block * KEYS + group * BOX;
        for (int i = 0; i < QK_BOXES; i++) {
            mf_tma_load(s.k(group) + (uint32_t)i * BOX_B, &m.k, s.keys_full(), i * BOX, row,
                        w.head);
        }
        for (int i = 0; i < VALUE_BOXES; i++) {
            mf_tma_load(s.v(group) + (uint32_t)i * BOX_B, &m.v, s.keys_full(), i * BOX, row,
                        w.head);
        }
    }
#pragma unroll 1
    for (int n = 0; n < w.boxes; n++) {
        const int stage = n % KeysSmem::STAGES, at = (2 * w.block + n) * BOX;
        const uint32_t emptied = (uint32_t)(n / KeysSmem::STAGES % 2) ^ 1; /* fresh ones count */
        mf_mbar_wait(s.q_empty(stage), emptied);
        mf_mbar_expect(s.q_full(stage), QK_BOXES * BOX_B + BOX * 4);
        for (int i = 0; i < QK_BOXES; i++) {
            mf_tma_load(s.q(stage) + (uint32_t)i * BOX_B, &m.q, s.q_full(stage), i * BOX,
                        w.row + at, w.head);
        }
        mf_tma_load(s.lse(stage), &m.lse2, s.q_full(stage), at, w.pair, 0);
        mf_mbar_wait(s.do_empty(stage), emptied);
        mf_mbar_expect(s.do_full(stage), VALUE_BOXES * BOX_B + BOX * 4);
        for (int i = 0; i < VALUE_BOXES; i++) {
            mf_tma_load(s.d_o(stage) + (uint32_t)i * BOX_B, &m.d_o, s.do_full(stage), i * BOX,
                        w.row + at, w.head);
        }
        mf_tma_load(s.delta(stage), &m.delta, s.do_full(stage), at, w.pair, 0);
    }
}

/* d = a b^T over BOXES boxes of 64 columns; a and b: low words of descriptors. */
template <int BOXES> MF_DEVICE void multiply_rows(float (&d)[32], uint32_t a, uint32_t b) {
    mf_wgmma_fence();
#pragma unroll
    for (int i = 0; i < BOXES; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t at = (uint32_t)(i * (BOX_B / 16) + j * 2);
            mf_wgmma_n64<0, 0>(d, mf_wgmma_descriptor(a + at), mf_wgmma_descriptor(b + at), i | j);
        }
    }
    mf_wgmma_commit();
}

/* p = exp2(scale2 s - lse2) as a left operand; hidden where the key lies behind the query:
 * behind = first key of the warpgroup - first query, below 64 only on the diagonal. */
MF_DEVICE void probabilities(uint32_t (&p)[16], const float (&s)[32], uint32_t lse, float scale2,
                             int behind) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
    const int key = behind + warp * 16 + lane / 4, query = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 l = load_pair(lse + (uint32_t)(j * 8 + query) * 4);
        float x[4] = {
            exp2_of(fmaf(s[4 * j], scale2, -l.x)), exp2_of(fmaf(s[4 * j + 1], scale2, -l.y)),
            exp2_of(fmaf(s[4 * j + 2], scale2, -l.x)), exp2_of(fmaf(s[4 * j + 3], scale2, -l.y))};
        if (behind > -BOX) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = key + i / 2 * 8 > query + j * 8 + i % 2 ? 0.0f : x[i];
            }
        }
        p[2 * j] = rounded(x[0], x[1]);
        p[2 * j + 1] = rounded(x[2], x[3]);
    }
}

/* ds = p (dp - delta) as a left operand. */
MF_DEVICE void score_gradients(uint32_t (&ds)[16], const uint32_t (&p)[16], const float (&dp)[32],
                               uint32_t delta) {
    const int query = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 d = load_pair(delta + (uint32_t)(j * 8 + query) * 4);
        ds[2 * j] = rounded(low_of(p[2 * j]) * (dp[4 * j] - d.x),
                            high_of(p[2 * j]) * (dp[4 * j + 1] - d.y));
        ds[2 * j + 1] = rounded(low_of(p[2 * j + 1]) * (dp[4 * j + 2] - d.x),
                                high_of(p[2 * j + 1]) * (dp[4 * j + 3] - d.y));
    }
}

/* What all lanes have read may be written over. */
MF_DEVICE void arrive_warp(uint32_t bar) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        mf_mbar_arrive(bar);
    }
}

/* Writes ds of 64 keys and queries into a buffer, and from there to memory. */
MF_DEVICE void keep_scores(const KeysSmem &s, int group, int n, const uint32_t (&ds)[16],
                           uint8_t *to) {
    const uint32_t buffer = s.ds(group, n % 2);
#pragma unroll
    for (int part = 0; part < 4; part++) {
        write_part(buffer, part, ds[4 * part], ds[4 * part + 1], ds[4 * part + 2],
                   ds[4 * part + 3]);
    }
    mf_fence_async();
    if (threadIdx.x % 128 == 0) {
        mf_tma_wait_read<0>(); /* so the other buffer is free behind the barrier */
    }
    mf_bar_sync(BAR_GROUP + group, 128);
    if (threadIdx.x % 128 == 0) {
        bulk_store(to, buffer, BOX_B);
        mf_tma_commit();
    }
}

MF_DEVICE void compute_keys(const KeysSmem &s, const Maps &m, const Args &p, const KeysWork &w,
                            int group) {
    float dk[96], dv[64], sum[32], dp[32];
    uint32_t prob[16], ds[16];
#pragma unroll
    for (int i = 0; i < 96; i++) {
        dk[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 64; i++) {
        dv[i] = 0.0f;
    }
    const uint32_t k = mf_wgmma_descriptor_low(s.k(group), 0);
    const uint32_t v = mf_wgmma_descriptor_low(s.v(group), 0);
    const uint32_t q0 = mf_wgmma_descriptor_low(s.q(0), BOX_B);
    const uint32_t do0 = mf_wgmma_descriptor_low(s.d_o(0), BOX_B);
    uint8_t *to =
        p.scores +
        ((w.pair - p.first) * tiles_of(p.seq) + tile_of(p.seq, w.block, 2 * w.block)) * TILE_B +
        group * BOX_B;
    mf_mbar_wait(s.keys_full(), 0);
    mf_wgmma_hold(dk);
    mf_wgmma_hold(dv);
#pragma unroll 1
    for (int n = 0; n < w.boxes; n++) {
        const int stage = n % KeysSmem::STAGES;
        const uint32_t parity = (uint32_t)(n / KeysSmem::STAGES % 2);
        const uint32_t q = q0 + (uint32_t)(stage * (QK_BOXES * BOX_B / 16));
        const uint32_t d_o = do0 + (uint32_t)(stage * (VALUE_BOXES * BOX_B / 16));
        mf_mbar_wait(s.q_full(stage), parity);
        multiply_rows<QK_BOXES>(sum, k, q);
        mf_wgmma_wait<0>(); /* s */
        mf_wgmma_hold(sum);
        probabilities(prob, sum, s.lse(stage), p.scale2, (group - n) * BOX);
        mf_mbar_wait(s.do_full(stage), parity);
        multiply_rows<VALUE_BOXES>(dp, v, d_o);
        mf_wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            mf_wgmma_r128<1>(dv, prob + 4 * j, mf_wgmma_descriptor(d_o + (uint32_t)j * 128), 1);
        }
        mf_wgmma_commit();
        mf_wgmma_wait<1>(); /* dp */
        mf_wgmma_hold(dp);
        score_gradients(ds, prob, dp, s.delta(stage));
        mf_wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            mf_wgmma_r192<1>(dk, ds + 4 * j, mf_wgmma_descriptor(q + (uint32_t)j * 128), 1);
        }
        mf_wgmma_commit();
        keep_scores(s, group, n, ds, to + (long long)n * TILE_B);
        mf_wgmma_wait<1>(); /* dv */
        mf_wgmma_hold(dv);
        arrive_warp(s.do_empty(stage));
        mf_wgmma_wait<0>();
        mf_wgmma_hold(dk);
        arrive_warp(s.q_empty(stage));
    }
    mf_wgmma_hold(dk);
    mf_wgmma_hold(dv);
    /* Only this warpgroup reads these keys and values, and it has. */
#pragma unroll
    for (int i = 0; i < QK_BOXES; i++) {
        write_box(s.k(group) + (uint32_t)i * BOX_B, dk, i, p.scale);
    }
#pragma unroll
    for (int i = 0; i < VALUE_BOXES; i++) {
        write_box(s.v(group) + (uint32_t)i * BOX_B, dv, i, 1.0f);
    }
    mf_fence_async();
    mf_bar_sync(BAR_GROUP + group, 128);
    if (threadIdx.x % 128 == 0) {
        const int row = w.row + w.block * KEYS + group * BOX;
        for (int i = 0; i < QK_BOXES; i++) {
            mf_tma_store(&m.dk, s.k(group) + (uint32_t)i * BOX_B, i * BOX, row, w.head);
        }
        for (int i = 0; i < VALUE_BOXES; i++) {
            mf_tma_store(&m.dv, s.v(group) + (uint32_t)i * BOX_B, i * BOX, row, w.head);
        }
        mf_tma_commit();
        mf_tma_wait<0>();
    }
}

__global__ void __launch_bounds__(THREADS, 1)
    keys_kernel(const __grid_constant__ Maps m, const __grid_constant__ Args p) {
    extern __shared__ uint8_t raw[];
    const KeysSmem s = {mf_opaque((mf_smem_address(raw) + 1023u) & ~1023u)};
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    const KeysWork w = keys_work(p);
    if (threadIdx.x == 0) {
        mf_mbar_init(s.keys_full(), 1);
        for (int i = 0; i < KeysSmem::STAGES; i++) {
            mf_mbar_init(s.q_full(i), 1);
            mf_mbar_init(s.do_full(i), 1);
            mf_mbar_init(s.q_empty(i), WARPS);
            mf_mbar_init(s.do_empty(i), WARPS);
        }
        mf_mbar_init_fence();
    }
    __syncthreads();
    if (warpgroup == 0) {
        mf_registers_give<24>();
        if (threadIdx.x == 0) {
            load_queries(s, m, w);
        }
    } else {
        mf_registers_take<240>();
        compute_keys(s, m, p, w, warpgroup - 1);
    }
}

/* --- queries ---------------------------------------------------------------------------------- */
struct QueriesSmem {
    enum {
        STAGES = 3,
        DS = 0,        /* of 64 keys with each 64 of the block's queries */
        K = 4 * BOX_B, /* of 64 keys */
        STAGE_B = K + QK_BOXES * BOX_B,
        BARS = STAGES * STAGE_B,
        SIZE_B = BARS + 2 * STAGES * 8 + 1024
    };
    uint32_t base;
    MF_DEVICE_MEMBER uint32_t ds(int stage, int box) const {
        return base + (uint32_t)(stage * STAGE_B + box * BOX_B);
    }
    MF_DEVICE_MEMBER uint32_t k(int stage) const {
        return base + (uint32_t)(stage * STAGE_B + K);
    }
    MF_DEVICE_MEMBER uint32_t full(int stage) const {
        return base + BARS + (uint32_t)stage * 8;
    }
    MF_DEVICE_MEMBER uint32_t empty(int stage) const {
        return base + BARS + (uint32_t)(STAGES + stage) * 8;
    }
};

struct QueriesWork {
    int pair, head, row, block;
    int steps; /* of 64 keys */
};

/* The long ones first. */
MF_DEVICE QueriesWork queries_work(const Args &p) {
    const int blocks = p.seq / QUERIES, pair = p.first + (int)blockIdx.x / blocks;
    const int block = blocks - 1 - (int)blockIdx.x % blocks;
    return {pair, pair % p.heads, pair / p.heads * p.seq, block, (block + 1) * (QUERIES / BOX)};
}

/* The last two steps lie behind the first 128 queries, which have no scores there. */
MF_DEVICE bool first_half_sees(const QueriesWork &w, int step) {
    return step < w.steps - 2;
}

MF_DEVICE void load_scores(const QueriesSmem &s, const Maps &m, const Args &p,
                           const QueriesWork &w) {
    const uint8_t *of_head = p.scores + (w.pair - p.first) * tiles_of(p.seq) * TILE_B;
#pragma unroll 1
    for (int n = 0; n < w.steps; n++) {
        const int stage = n % QueriesSmem::STAGES, from = first_half_sees(w, n) ? 0 : 2;
        mf_mbar_wait(s.empty(stage), (uint32_t)(n / QueriesSmem::STAGES % 2) ^ 1);
        mf_mbar_expect(s.full(stage), (uint32_t)(QK_BOXES + 4 - from) * BOX_B);
        for (int i = 0; i < QK_BOXES; i++) {
            mf_tma_load(s.k(stage) + (uint32_t)i * BOX_B, &m.k, s.full(stage), i * BOX,
                        w.row + n * BOX, w.head);
        }
        for (int i = from; i < 4; i++) {
            const long long tile = tile_of(p.seq, n / 2, w.block * 4 + i);
            bulk_load(s.ds(stage, i), of_head + tile * TILE_B + n % 2 * BOX_B, BOX_B,
                      s.full(stage));
        }
    }
}

MF_DEVICE void compute_queries(const QueriesSmem &s, const Maps &m, const Args &p,
                               const QueriesWork &w, int group) {
    float d0[96], d1[96];
#pragma unroll
    for (int i = 0; i < 96; i++) {
        d0[i] = d1[i] = 0.0f;
    }
    const uint32_t a0 = mf_wgmma_descriptor_low(s.ds(0, 2 * group), BOX_B);
    const uint32_t b0 = mf_wgmma_descriptor_low(s.k(0), BOX_B);
    const int steps = group == 0 ? w.steps - 2 : w.steps;
    mf_wgmma_hold(d0);
    mf_wgmma_hold(d1);
#pragma unroll 1
    for (int n = 0; n < steps; n++) {
        const int stage = n % QueriesSmem::STAGES;
        const uint32_t a = a0 + (uint32_t)(stage * (QueriesSmem::STAGE_B / 16));
        const uint32_t b = b0 + (uint32_t)(stage * (QueriesSmem::STAGE_B / 16));
        mf_mbar_wait(s.full(stage), (uint32_t)(n / QueriesSmem::STAGES % 2));
        mf_wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint64_t keys = mf_wgmma_descriptor(b + (uint32_t)j * 128);
            mf_wgmma_s192<1, 1>(d0, mf_wgmma_descriptor(a + (uint32_t)j * 128), keys, 1);
            mf_wgmma_s192<1, 1>(d1, mf_wgmma_descriptor(a + BOX_B / 16 + (uint32_t)j * 128), keys,
                                1);
        }
        mf_wgmma_commit();
        if (n > 0) {
            mf_wgmma_wait<1>();
            arrive_warp(s.empty((n - 1) % QueriesSmem::STAGES));
        }
    }
    mf_wgmma_wait<0>();
    mf_wgmma_hold(d0);
    mf_wgmma_hold(d1);
    arrive_warp(s.empty((steps - 1) % QueriesSmem::STAGES));
    for (int n = steps; n < w.steps; n++) { /* what only the other warpgroup needs */
        mf_mbar_wait(s.full(n % QueriesSmem::STAGES), (uint32_t)(n / QueriesSmem::STAGES % 2));
        arrive_warp(s.empty(n % QueriesSmem::STAGES));
    }
    mf_bar_sync(BAR_PAIR, 256); /* both have read all stages, and nothing is on its way */
    const uint32_t out = s.base + (uint32_t)(group * 2 * QK_BOXES * BOX_B);
#pragma unroll
    for (int i = 0; i < QK_BOXES; i++) {
        write_box(out + (uint32_t)i * BOX_B, d0, i, p.scale);
        write_box(out + (uint32_t)(QK_BOXES + i) * BOX_B, d1, i, p.scale);
    }
    mf_fence_async();
    mf_bar_sync(BAR_GROUP + group, 128);
    if (threadIdx.x % 128 == 0) {
        for (int i = 0; i < 2 * QK_BOXES; i++) {
            const int row = w.row + w.block * QUERIES + (group * 2 + i / QK_BOXES) * BOX;
            mf_tma_store(&m.dq, out + (uint32_t)i * BOX_B, i % QK_BOXES * BOX, row, w.head);
        }
        mf_tma_commit();
        mf_tma_wait<0>();
    }
}

__global__ void __launch_bounds__(THREADS, 1)
    queries_kernel(const __grid_constant__ Maps m, const __grid_constant__ Args p) {
    extern __shared__ uint8_t raw[];
    const QueriesSmem s = {mf_opaque((mf_smem_address(raw) + 1023u) & ~1023u)};
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    const QueriesWork w = queries_work(p);
    if (threadIdx.x == 0) {
        for (int i = 0; i < QueriesSmem::STAGES; i++) {
            mf_mbar_init(s.full(i), 1);
            mf_mbar_init(s.empty(i), WARPS);
        }
        mf_mbar_init_fence();
    }
    __syncthreads();
    if (warpgroup == 0) {
        mf_registers_give<24>();
        if (threadIdx.x == 0) {
            load_scores(s, m, p, w);
        }
    } else {
        mf_registers_take<240>();
        compute_queries(s, m, p, w, warpgroup - 1);
    }
}

/* --- rows ------------------------------------------------------------------------------------- */
/* delta = rowsum(do o) and lse log2(e), a warp for a row of a head. Rows of o lie heads x VALUE
 * apart. */
struct RowArgs {
    const __nv_bfloat16 *o, *d_o;
    const float *lse;
    float *delta, *lse2;
    long long rows; /* batch x seq x heads */
    int heads, seq;
    long long row, head; /* strides, elements */
};

__global__ void __launch_bounds__(256) rows_kernel(const RowArgs a) {
    const long long i = (long long)blockIdx.x * 8 + threadIdx.x / 32;
    if (i >= a.rows) {
        return;
    }
    const int lane = (int)threadIdx.x % 32, head = (int)(i % a.heads);
    const long long row = i / a.heads, at = row * a.row + head * a.head + lane * 4;
    const uint2 x = *(const uint2 *)(a.o + at), y = *(const uint2 *)(a.d_o + at);
    float sum = low_of(x.x) * low_of(y.x) + high_of(x.x) * high_of(y.x) +
                low_of(x.y) * low_of(y.y) + high_of(x.y) * high_of(y.y);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        sum += __shfl_xor_sync(~0u, sum, d);
    }
    if (lane == 0) {
        const long long to = (row / a.seq * a.heads + head) * a.seq + row % a.seq;
        a.delta[to] = sum;
        a.lse2[to] = a.lse[to] * 1.44269504088896340736f;
    }
}

} // namespace mf_kept

#endif
