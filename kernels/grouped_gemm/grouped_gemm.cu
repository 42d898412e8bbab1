/* grouped_gemm.cu - launches of the grouped GEMM: tensor maps, arguments, cluster launch. The
 * kernel is in grouped_gemm_device.cuh, its choices in grouped_gemm.c. */
#include "kernels/device/cuda_check.h"
#include "kernels/device/tensor_map.cuh"
#include "kernels/grouped_gemm/grouped_gemm_device.cuh"

namespace {

using namespace mf_grouped;

/* A row-major array [depth, rows, cols] and the boxes in which it is moved, [depth, rows, cols]. */
struct Array {
    const void *p;
    bool f32;
    int64_t cols, rows, depth;
    int box_cols, box_rows, box_depth;
};

mf_status encode(mf_tensor_map_encode fn, CUtensorMap *map, const Array &a, mf_err *e) {
    const int64_t row_B = a.cols * (a.f32 ? 4 : 2);
    const mf_tensor_map_array array = {
        a.p,
        a.f32,
        {a.cols, a.rows, a.depth},
        {row_B, row_B * a.rows},
        {(uint32_t)a.box_cols, (uint32_t)a.box_rows, (uint32_t)a.box_depth}};
    return mf_tensor_map(fn, map, &array, e);
}

struct Maps {
    CUtensorMap a, b;
    Outputs to;
};

mf_status encode_all(const mf_kernel_grouped_gemm *g, Maps *maps, mf_err *e) {
    const bool forward = g->kind == MF_GROUPED_FORWARD, wgrad = g->kind == MF_GROUPED_WGRAD;
    const Array weights = {g->b, false, g->k, g->n, g->experts, BOX, BOX, 1};
    const Array rows_k = {g->b, false, g->k, g->rows, 1, BOX, BOX, 1};
    const Array a = {g->a, false, forward ? g->k : g->n, g->rows, 1, BOX, BOX, 1};
    const Array out = {g->out, false, forward ? g->n : g->k, g->rows, 1, BOX, WARP_ROWS, 1};
    const Array halves = {g->out, false, g->n / 2, 2, g->rows, BOX, 1, WARP_ROWS};
    const Array act = {g->act, false, g->n / 2, g->rows, 1, BOX, WARP_ROWS, 1};
    const Array grads = {g->out,    !g->bf16, g->k, g->n, g->experts, g->bf16 ? BOX : BOX / 2,
                         WARP_ROWS, 1};
    mf_tensor_map_encode fn = NULL;
    mf_status status = mf_tensor_map_find(&fn, e);
    if (status == MF_OK) {
        status = encode(fn, &maps->a, a, e);
    }
    if (status == MF_OK) {
        status = encode(fn, &maps->b, wgrad ? rows_k : weights, e);
    }
    if (status == MF_OK) {
        status = encode(fn, &maps->to.y, wgrad ? grads : g->act ? halves : out, e);
    }
    if (status == MF_OK && g->act) {
        status = encode(fn, &maps->to.act, act, e);
    }
    return status;
}

typedef void (*kernel_fn)(CUtensorMap, CUtensorMap, Outputs, Args);

/* What is compiled, by kind, what is written and whether there is an activation;
 * mf_grouped_config_check knows the stages and buffers. */
struct Built {
    int smem_B;
    kernel_fn kernel;
};

template <class C> constexpr Built built(void) {
    return {C::SMEM_B, grouped_gemm_kernel<C>};
}
template <mf_grouped_kind KIND, Writes WRITES, bool GATED> constexpr Built built(void) {
    return built<Traits<KIND, WRITES, GATED, 4, 2>>();
}

/* By kind, then the others. */
enum { WGRAD_ADD = MF_GROUPED_KINDS, WGRAD_ADD_FEW, WGRAD_BF16, FORWARD_GATED, BUILT_COUNT };
const Built BUILT[BUILT_COUNT] = {built<MF_GROUPED_FORWARD, BF16, false>(),
                                  built<MF_GROUPED_DGRAD, BF16, false>(),
                                  built<MF_GROUPED_WGRAD, F32_OVER, false>(),
                                  built<MF_GROUPED_WGRAD, F32_ADD, false>(),
                                  built<Traits<MF_GROUPED_WGRAD, F32_ADD, false, 3, 5>>(),
                                  built<MF_GROUPED_WGRAD, BF16, false>(),
                                  built<MF_GROUPED_FORWARD, BF16, true>()};

const Built &built_for(const mf_kernel_grouped_gemm *g, bool fetches) {
    int at = g->act ? (int)FORWARD_GATED : (int)g->kind;
    if (g->kind == MF_GROUPED_WGRAD && g->accumulate) {
        at = fetches ? WGRAD_ADD_FEW : WGRAD_ADD;
    } else if (g->kind == MF_GROUPED_WGRAD && g->bf16) {
        at = WGRAD_BF16;
    }
    return BUILT[at];
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
    const bool forward = g->kind == MF_GROUPED_FORWARD;
    const bool fetches = mf_grouped_config_fetches(c);
    if (fetches && !(wgrad && g->accumulate)) {
        return mf_err_set(e, MF_INPUT,
                          "grouped GEMM: only weight gradients that are added fetch what is there");
    }
    const Built &b = built_for(g, fetches);
    Maps maps;
    mf_status status = encode_all(g, &maps, e);
    if (status != MF_OK) {
        return status;
    }
    if (b.smem_B > c->smem_B) {
        return mf_err_set(e, MF_INTERNAL, "grouped GEMM: %d bytes of shared memory, needed %d",
                          (int)c->smem_B, b.smem_B);
    }
    Args p;
    memset(&p, 0, sizeof p);
    p.space.experts = g->experts;
    p.space.rows = (int32_t)g->rows;
    p.space.out_rows = wgrad ? (int32_t)g->n : 0;
    p.space.out_cols = (int32_t)(forward ? g->n : g->k);
    p.space.skip_empty = !wgrad || g->accumulate;
    p.space.raster = c->raster;
    p.space.gated = g->act != NULL;
    p.offsets = g->offsets;
    p.out = wgrad ? NULL : (uint16_t *)g->out;
    p.act = g->act;
    p.prob = g->prob;
    p.turns = g->turns;
    p.half = (int32_t)(g->n / 2);
    p.reduction = wgrad ? 0 : (int32_t)(forward ? g->k : g->n);
    p.balance = c->balance;

    MF_CUDA_TRY(cudaFuncSetAttribute((const void *)b.kernel,
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
    MF_CUDA_TRY(cudaLaunchKernelEx(&config, b.kernel, maps.a, maps.b, maps.to, p), e);
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
            const size_t size_B =
                (size_t)g->experts * (size_t)g->n * (size_t)g->k * (g->bf16 ? 2 : 4);
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
