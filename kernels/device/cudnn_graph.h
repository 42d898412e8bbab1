/* cudnn_graph.h - a small builder over cuDNN's backend descriptors: tensors and operations are
 * added one by one, errors stick, and the graph becomes an execution plan at the end. Host code
 * only; included by the CUDA side alone.
 */
#ifndef MF_KERNELS_CUDNN_GRAPH_H
#define MF_KERNELS_CUDNN_GRAPH_H

#include "core/base/status.h"

#include <cudnn.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MF_GRAPH_DESCRIPTORS 192
#define MF_GRAPH_OPS 48

/* A tensor of the graph: index of its descriptor; negative = none. */
typedef int mf_graph_tensor;

typedef struct mf_graph {
    cudnnHandle_t handle;
    mf_status status; /* of the first failure; later calls do nothing */
    mf_err *e;
    int n, nops;
    cudnnBackendDescriptor_t descriptor[MF_GRAPH_DESCRIPTORS];
    struct {
        int64_t dim[4], stride[4];
        cudnnDataType_t type;
    } shape[MF_GRAPH_DESCRIPTORS]; /* of those that are tensors */
    cudnnBackendDescriptor_t op[MF_GRAPH_OPS];
    cudnnBackendDescriptor_t plan;
    size_t workspace_B;
} mf_graph;

void mf_graph_init(mf_graph *g, cudnnHandle_t handle, mf_err *e);
void mf_graph_clear(mf_graph *g); /* descriptors and plan */

/* A tensor in device memory, bound by its uid when the plan runs. */
mf_graph_tensor mf_graph_input(mf_graph *g, int64_t uid, cudnnDataType_t type, const int64_t dim[4],
                               const int64_t stride[4]);
/* The same with rows that begin where `first` says: [dim 0 + 1] int32, in elements. */
mf_graph_tensor mf_graph_ragged(mf_graph *g, int64_t uid, cudnnDataType_t type,
                                const int64_t dim[4], const int64_t stride[4],
                                mf_graph_tensor first);
/* One value in host memory, bound by its uid. */
mf_graph_tensor mf_graph_scalar(mf_graph *g, int64_t uid, cudnnDataType_t type);
/* A tensor that exists inside the kernel only. */
mf_graph_tensor mf_graph_inner(mf_graph *g, cudnnDataType_t type, const int64_t dim[4],
                               const int64_t stride[4]);
mf_graph_tensor mf_graph_inner_ragged(mf_graph *g, cudnnDataType_t type, const int64_t dim[4],
                                      const int64_t stride[4], mf_graph_tensor first);
/* The same, dense, of the dims given. */
mf_graph_tensor mf_graph_dense(mf_graph *g, cudnnDataType_t type, int64_t a, int64_t b, int64_t c,
                               int64_t d);

/* y = mode(x, b); b < 0 for functions of one tensor. y < 0: an inner tensor like x of `type`.
 * Returns y. Arithmetic in float (comparisons in bool). */
mf_graph_tensor mf_graph_pointwise(mf_graph *g, cudnnPointwiseMode_t mode, mf_graph_tensor x,
                                   mf_graph_tensor b, cudnnDataType_t type, mf_graph_tensor y);
/* Index along an axis of x, int32. */
mf_graph_tensor mf_graph_index(mf_graph *g, mf_graph_tensor x, int64_t axis);
/* x where mask, else b. */
mf_graph_tensor mf_graph_select(mf_graph *g, mf_graph_tensor x, mf_graph_tensor b,
                                mf_graph_tensor mask);
mf_graph_tensor mf_graph_matmul(mf_graph *g, mf_graph_tensor a, mf_graph_tensor b,
                                mf_graph_tensor c);

/* How long a product's dims are in each entry of its batch: int32 tensors [batch, 1, 1, 1]; -1: as
 * long as the operands. */
typedef struct mf_graph_extent {
    mf_graph_tensor m, n, k;
    bool padded; /* what lies beyond counts as zero */
} mf_graph_extent;
mf_graph_tensor mf_graph_matmul_part(mf_graph *g, mf_graph_tensor a, mf_graph_tensor b,
                                     mf_graph_tensor c, const mf_graph_extent *x);
mf_graph_tensor mf_graph_reduce(mf_graph *g, cudnnReduceTensorOp_t how, mf_graph_tensor x,
                                mf_graph_tensor y);
/* y: the same elements under y's dims and strides. */
mf_graph_tensor mf_graph_reshape(mf_graph *g, mf_graph_tensor x, mf_graph_tensor y);

/* Compiles with the first engine that the heuristic proposes and that takes the graph; fixed: of
 * those whose results are the same in every run. Frees all descriptors but the plan. MF_INPUT when
 * no engine does; MF_LIBRARY. */
mf_status mf_graph_compile(mf_graph *g, bool fixed);

/* Runs with n pointers (device memory; scalars: host memory) by uid. */
mf_status mf_graph_execute(const mf_graph *g, int n, const int64_t *uid, void *const *pointer,
                           void *workspace, void *stream, mf_err *e);

#endif
