/* tensor_map.cuh - descriptions of arrays in memory for bulk tensor copies (CUDA driver API,
 * cuTensorMapEncodeTiled, found at run time so that nothing is linked with the driver). */
#ifndef MF_KERNELS_TENSOR_MAP_CUH
#define MF_KERNELS_TENSOR_MAP_CUH

#include "kernels/device/cuda_check.h"

#include <cuda.h>
#include <stdint.h>
#include <string.h>

typedef CUresult (*mf_tensor_map_encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                         const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                         const cuuint32_t *, CUtensorMapInterleave,
                                         CUtensorMapSwizzle, CUtensorMapL2promotion,
                                         CUtensorMapFloatOOBfill);

/* An array of BF16 or float of three dims, the fastest first, and the boxes in which it is moved. A
 * box whose rows take 128 bytes is swizzled in shared memory. */
typedef struct mf_tensor_map_array {
    const void *at;
    bool f32;
    int64_t dims[3];
    int64_t strides_B[2]; /* of the second and the third dim */
    uint32_t box[3];
} mf_tensor_map_array;

static inline mf_status mf_tensor_map_find(mf_tensor_map_encode *out, mf_err *e) {
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

static inline mf_status mf_tensor_map(mf_tensor_map_encode encode, CUtensorMap *map,
                                      const mf_tensor_map_array *a, mf_err *e) {
    const cuuint64_t dims[3] = {(cuuint64_t)a->dims[0], (cuuint64_t)a->dims[1],
                                (cuuint64_t)a->dims[2]};
    const cuuint64_t strides[2] = {(cuuint64_t)a->strides_B[0], (cuuint64_t)a->strides_B[1]};
    const cuuint32_t ones[3] = {1, 1, 1};
    const bool swizzled = a->box[0] * (a->f32 ? 4 : 2) == 128;
    const CUresult result = encode(
        map, a->f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3,
        const_cast<void *>(a->at), dims, strides, a->box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        return mf_err_set(
            e, MF_LIBRARY, "CUDA: cuTensorMapEncodeTiled of [%lld, %lld, %lld]: error %d",
            (long long)a->dims[2], (long long)a->dims[1], (long long)a->dims[0], (int)result);
    }
    return MF_OK;
}

#endif
