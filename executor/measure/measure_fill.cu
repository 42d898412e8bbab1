/* measure_fill.cu - random data of the kinds that training has, and a kernel that does nothing. */
extern "C" {
#include "executor/measure/measure_cuda.h"
}
#include "kernels/device/cuda_check.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

static __device__ inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Two normal values from 64 random bits (Box and Muller). */
static __device__ inline float2 normal(uint64_t bits) {
    float u = (float)((uint32_t)bits >> 8) * 0x1p-24f + 0x1p-25f;
    float angle = (float)((uint32_t)(bits >> 32)) * (6.2831853f * 0x1p-32f), s, c;
    float r = sqrtf(-2.0f * __logf(u));
    __sincosf(angle, &s, &c);
    return make_float2(r * c, r * s);
}

static __device__ inline uint32_t word(mf_measure_data data, uint64_t bits) {
    float2 x = normal(bits);
    if (data == MF_DATA_BF16) {
        __nv_bfloat162 two = __floats2bfloat162_rn(x.x, x.y);
        return *reinterpret_cast<uint32_t *>(&two);
    }
    if (data == MF_DATA_F32) {
        return __float_as_uint(x.x);
    }
    if (data == MF_DATA_SCALE) {
        return __float_as_uint(0.5f + (float)((uint32_t)bits >> 8) * 0x1p-25f);
    }
    float2 y = normal(mix(bits));
    uint32_t low =
        __nv_cvt_float2_to_fp8x2(make_float2(16 * x.x, 16 * x.y), __NV_SATFINITE, __NV_E4M3);
    uint32_t high =
        __nv_cvt_float2_to_fp8x2(make_float2(16 * y.x, 16 * y.y), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

static __global__ void fill(uint4 *p, size_t n, mf_measure_data data, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t h = mix(seed * 0x2545f4914f6cdd1dull + i);
        uint4 v;
        v.x = word(data, h);
        v.y = word(data, mix(h + 1));
        v.z = word(data, mix(h + 2));
        v.w = word(data, mix(h + 3));
        p[i] = v;
    }
}

static __global__ void fill_int(int32_t *p, int64_t n, int32_t below, uint64_t seed) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) {
        p[i] = (int32_t)(mix(seed * 0x2545f4914f6cdd1dull + (uint64_t)i) % (uint64_t)below);
    }
}

static __global__ void nothing(void) {
}

extern "C" mf_status mf_measure_fill(void *p, size_t size_B, mf_measure_data data, uint64_t seed,
                                     void *stream, mf_err *e) {
    if (size_B >= 16) {
        fill<<<2112, 256, 0, (cudaStream_t)stream>>>((uint4 *)p, size_B / 16, data, seed);
        MF_CUDA_TRY(cudaGetLastError(), e);
    }
    return MF_OK;
}

extern "C" mf_status mf_measure_fill_int(int32_t *p, int64_t n, int32_t below, uint64_t seed,
                                         void *stream, mf_err *e) {
    if (n > 0) {
        fill_int<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)stream>>>(p, n, below, seed);
        MF_CUDA_TRY(cudaGetLastError(), e);
    }
    return MF_OK;
}

extern "C" mf_status mf_measure_nothing(void *stream, mf_err *e) {
    nothing<<<1, 32, 0, (cudaStream_t)stream>>>();
    MF_CUDA_TRY(cudaGetLastError(), e);
    return MF_OK;
}
