/* mla.h - packing for multi-head latent attention: the keys of all heads out of the up-projected
 * latent rows and the one rotated key part that the heads share, and the way back.
 *
 *     kv [rows, heads, nope + v_dim], k_rope [rows, rope] (row stride rope_stride)
 *     k[r, h] = (kv[r, h, 0..nope), k_rope[r]);   v[r, h] = kv[r, h, nope..nope+v_dim)
 *     dkv likewise from dk, dv;  dk_rope[r] = sum over heads of the last rope columns of dk[r, h]
 */
#ifndef MF_KERNELS_MLA_H
#define MF_KERNELS_MLA_H

#include "kernels/kernel.h"

typedef struct mf_kernel_mla {
    mf_kernel_dtype dtype;
    int64_t rows, heads, nope, rope, v_dim, rope_stride;
    const void *kv;
    const void *k_rope;
    void *k; /* [rows, heads, nope + rope] */
    void *v; /* [rows, heads, v_dim]; NULL: attention reads it inside kv */
} mf_kernel_mla;

typedef struct mf_kernel_mla_grad {
    mf_kernel_dtype dtype;
    int64_t rows, heads, nope, rope, v_dim, rope_stride;
    const void *dk, *dv;
    void *dkv;
    void *dk_rope; /* [rows, rope], row stride rope_stride */
} mf_kernel_mla_grad;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_mla_pack(const mf_kernel_mla *a, mf_err *e);
mf_status mf_kernel_mla_unpack_grad(const mf_kernel_mla_grad *a, mf_err *e);
mf_status mf_kernel_mla_pack_cuda(const mf_kernel_mla *a, void *stream, mf_err *e);
mf_status mf_kernel_mla_unpack_grad_cuda(const mf_kernel_mla_grad *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
