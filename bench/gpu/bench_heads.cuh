/* bench_heads.cuh - rows of bench_kernels: heads that are moved and turned in one pass, and the
 * product of the shared expert's gate, at shapes of shipped models. */
#ifndef MF_BENCH_HEADS_CUH
#define MF_BENCH_HEADS_CUH

#include "bench/gpu/bench_rows.cuh"
#include "kernels/attention/mla_rope.h"
#include "kernels/attention/qk_rope.h"
#include "kernels/attention/rope_split.h"
#include "kernels/moe/gate.h"

#define HEADS_SEQUENCE 4096

static int32_t *sequence_positions(int64_t t) {
    return ints(t, [](int64_t i) { return i % HEADS_SEQUENCE; });
}

static mf_kernel_rope_shape bench_shape(int64_t t, int64_t heads, int64_t kv, int64_t d) {
    mf_kernel_rope_shape s = {};
    s.dtype = B16, s.rows = t, s.heads = heads, s.kv_heads = kv, s.head_dim = s.rot_dim = d;
    s.joined_stride = (heads + 2 * kv) * d, s.positions = sequence_positions(t);
    s.cos = f32(HEADS_SEQUENCE * d / 2), s.sin = f32(HEADS_SEQUENCE * d / 2);
    return s;
}

static void bench_split(int64_t t, int64_t heads, int64_t kv) {
    const int64_t d = 128, q = t * heads * d, k = t * kv * d, all = q + 2 * k;
    const std::string shape =
        text("%lld x (%lld + 2 x %lld) x %lld", LL(t), LL(heads), LL(kv), LL(d));
    row(
        "rope split", shape, 4.0 * (double)all,
        [=] {
            return mf_kernel_rope_split{bench_shape(t, heads, kv, d), bf16(all), bf16(q), bf16(k),
                                        bf16(k)};
        },
        mf_kernel_rope_split_run_cuda);
    for (int add = 0; add < 2; add++) {
        row(
            add ? "rope join + add" : "rope join", shape, (add ? 6.0 : 4.0) * (double)all,
            [=] {
                return mf_kernel_rope_join{bench_shape(t, heads, kv, d), bf16(q),  bf16(k), bf16(k),
                                           add ? bf16(all) : nullptr,    bf16(all)};
            },
            mf_kernel_rope_join_run_cuda);
    }
}

static void bench_qk_rope(int64_t t, int64_t heads, int64_t kv) {
    const int64_t d = 128, q = t * heads * d, k = t * kv * d, all = q + 2 * k;
    const std::string shape =
        text("%lld x (%lld + 2 x %lld) x %lld", LL(t), LL(heads), LL(kv), LL(d));
    row(
        "qk-norm, split and rope", shape, 4.0 * (double)all,
        [=] {
            return mf_kernel_qk_rope{bench_shape(t, heads, kv, d),
                                     1e-6f,
                                     bf16(d),
                                     bf16(d),
                                     bf16(all),
                                     bf16(q),
                                     bf16(k),
                                     bf16(k),
                                     f32(t * (heads + kv))};
        },
        mf_kernel_qk_rope_forward_cuda);
    row(
        "qk-norm, split and rope gradient", shape, 6.0 * (double)(q + k) + 4.0 * (double)k,
        [=] {
            return mf_kernel_qk_rope_grad{bench_shape(t, heads, kv, d),
                                          bf16(d),
                                          bf16(d),
                                          bf16(all),
                                          f32(t * (heads + kv)),
                                          bf16(q),
                                          bf16(k),
                                          bf16(k),
                                          nullptr,
                                          bf16(all),
                                          f32(2 * d),
                                          bytes(mf_kernel_qk_rope_workspace_B(d))};
        },
        mf_kernel_qk_rope_backward_cuda);
}

static void bench_mla_rope(int64_t t, int64_t heads) {
    const int64_t nope = 128, rope = 64, v = 128, rank = 512, n = t * heads, qk = nope + rope;
    const std::string shape = text("%lld x %lld heads", LL(t), LL(heads));
    const auto shape_of = [=] {
        mf_kernel_mla_shape s = {};
        s.dtype = B16, s.rows = t, s.heads = heads, s.nope = nope, s.rope = rope, s.v_dim = v;
        s.interleaved = true, s.positions = sequence_positions(t);
        s.cos = f32(HEADS_SEQUENCE * rope / 2), s.sin = f32(HEADS_SEQUENCE * rope / 2);
        return s;
    };
    const double moved_B = 2.0 * (double)n * (double)(3 * qk + v + nope + v);
    row(
        "mla split and rope", shape, moved_B,
        [=] {
            const mf_kernel_mla_shape s = shape_of();
            return mf_kernel_mla_rope{s,
                                      rank + rope,
                                      bf16(n * qk),
                                      bf16(n * (nope + v)),
                                      bf16(t * (rank + rope)),
                                      bf16(n * qk),
                                      bf16(n * qk),
                                      bf16(n * v)};
        },
        mf_kernel_mla_rope_forward_cuda);
    row(
        "mla split and rope gradient", shape, moved_B + 2.0 * (double)(t * (rank + rope)),
        [=] {
            const mf_kernel_mla_shape s = shape_of();
            return mf_kernel_mla_rope_grad{s,
                                           rank,
                                           bf16(n * qk),
                                           bf16(n * qk),
                                           bf16(n * v),
                                           nullptr,
                                           nullptr,
                                           nullptr,
                                           bf16(n * qk),
                                           bf16(n * (nope + v)),
                                           bf16(t * (rank + rope))};
        },
        mf_kernel_mla_rope_backward_cuda);
}

static void bench_gate_product(int64_t t, int64_t h) {
    const std::string shape = text("%lld x %lld", LL(t), LL(h));
    const double n = (double)t * (double)h;
    row(
        "gate product", shape, 2.0 * n,
        [=] { return mf_kernel_gate_logit{B16, t, h, bf16(t * h), bf16(h), f32(t)}; },
        mf_kernel_gate_logits_cuda);
    for (int add = 0; add < 2; add++) {
        row(
            add ? "gate product gradient + add" : "gate product gradient", shape,
            (add ? 6.0 : 4.0) * n,
            [=] {
                return mf_kernel_gate_input_grad{B16,
                                                 t,
                                                 h,
                                                 f32(t),
                                                 bf16(t * h),
                                                 bf16(h),
                                                 add ? bf16(t * h) : nullptr,
                                                 bf16(t * h),
                                                 f32(h),
                                                 bytes(mf_kernel_gate_workspace_B(h))};
            },
            mf_kernel_gate_input_backward_cuda);
    }
}

static void bench_heads(void) {
    for (const int64_t t : {4096, 16384}) {
        bench_split(t, 32, 4);  /* Qwen3-30B */
        bench_split(t, 16, 16); /* OLMoE */
        bench_split(t, 48, 8);  /* Mixtral 8x22B */
        bench_qk_rope(t, 32, 4);
        bench_mla_rope(t, 128); /* DeepSeek-V3 */
        bench_mla_rope(t, 16);
        bench_gate_product(t, 2048); /* Qwen1.5-MoE */
    }
}

#endif
