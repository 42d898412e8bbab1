/* cudnn_graph_cuda.c - cuDNN backend descriptors made and checked in one place. */
#include "kernels/device/cudnn_graph.h"

#include <stdio.h>
#include <string.h>

static void fail(mf_graph *g, mf_status status, cudnnStatus_t result, const char *what) {
    char words[512] = "";
    if (g->status != MF_OK) {
        return;
    }
    cudnnGetLastErrorString(words, sizeof words);
    g->status =
        mf_err_set(g->e, status, "cuDNN: %s: %s; %s", what, cudnnGetErrorString(result), words);
}

void mf_graph_init(mf_graph *g, cudnnHandle_t handle, mf_err *e) {
    memset(g, 0, sizeof *g);
    g->handle = handle;
    g->e = e;
    g->status = MF_OK;
}

static void drop_descriptors(mf_graph *g) {
    for (int i = 0; i < g->n; i++) {
        (void)cudnnBackendDestroyDescriptor(g->descriptor[i]);
    }
    g->n = g->nops = 0;
}

void mf_graph_clear(mf_graph *g) {
    drop_descriptors(g);
    if (g->plan != NULL) {
        (void)cudnnBackendDestroyDescriptor(g->plan);
        g->plan = NULL;
    }
}

static cudnnBackendDescriptor_t make(mf_graph *g, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t d = NULL;
    if (g->status != MF_OK) {
        return NULL;
    }
    if (g->n == MF_GRAPH_DESCRIPTORS) {
        g->status = mf_err_set(g->e, MF_INTERNAL, "cuDNN graph: too many descriptors");
        return NULL;
    }
    cudnnStatus_t result = cudnnBackendCreateDescriptor(type, &d);
    if (result != CUDNN_STATUS_SUCCESS) {
        fail(g, MF_LIBRARY, result, "cudnnBackendCreateDescriptor");
        return NULL;
    }
    g->descriptor[g->n++] = d;
    return d;
}

static void set(mf_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *value,
                const char *what) {
    if (g->status != MF_OK) {
        return;
    }
    cudnnStatus_t result = cudnnBackendSetAttribute(d, name, type, count, value);
    if (result != CUDNN_STATUS_SUCCESS) {
        fail(g, MF_INPUT, result, what);
    }
}
#define SET(d, name, type, count, value)                                                           \
    set(g, d, CUDNN_ATTR_##name, CUDNN_TYPE_##type, count, value, #name)

static void finish(mf_graph *g, cudnnBackendDescriptor_t d, const char *what) {
    if (g->status != MF_OK) {
        return;
    }
    cudnnStatus_t result = cudnnBackendFinalize(d);
    if (result != CUDNN_STATUS_SUCCESS) {
        fail(g, MF_INPUT, result, what);
    }
}

/* --- tensors ---------------------------------------------------------------------------------- */

static void operand(mf_graph *g, cudnnBackendDescriptor_t op, cudnnBackendAttributeName_t name,
                    mf_graph_tensor t, const char *what) {
    if (g->status == MF_OK) {
        set(g, op, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->descriptor[t], what);
    }
}

static mf_graph_tensor tensor(mf_graph *g, int64_t uid, cudnnDataType_t type, const int64_t dim[4],
                              const int64_t stride[4], bool inner, bool by_value,
                              mf_graph_tensor first) {
    cudnnBackendDescriptor_t d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = by_value || type == CUDNN_DATA_BOOLEAN ? 4 : 16;
    if (d == NULL) {
        return -1;
    }
    int index = g->n - 1;
    memcpy(g->shape[index].dim, dim, sizeof g->shape[index].dim);
    memcpy(g->shape[index].stride, stride, sizeof g->shape[index].stride);
    g->shape[index].type = type;
    SET(d, TENSOR_UNIQUE_ID, INT64, 1, &uid);
    SET(d, TENSOR_DATA_TYPE, DATA_TYPE, 1, &type);
    SET(d, TENSOR_DIMENSIONS, INT64, 4, dim);
    SET(d, TENSOR_STRIDES, INT64, 4, stride);
    SET(d, TENSOR_BYTE_ALIGNMENT, INT64, 1, &alignment);
    SET(d, TENSOR_IS_VIRTUAL, BOOLEAN, 1, &inner);
    SET(d, TENSOR_IS_BY_VALUE, BOOLEAN, 1, &by_value);
    if (first >= 0) {
        operand(g, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, first, "tensor's first elements");
    }
    finish(g, d, "tensor");
    return index;
}

mf_graph_tensor mf_graph_input(mf_graph *g, int64_t uid, cudnnDataType_t type, const int64_t dim[4],
                               const int64_t stride[4]) {
    return tensor(g, uid, type, dim, stride, false, false, -1);
}

mf_graph_tensor mf_graph_ragged(mf_graph *g, int64_t uid, cudnnDataType_t type,
                                const int64_t dim[4], const int64_t stride[4],
                                mf_graph_tensor first) {
    return tensor(g, uid, type, dim, stride, false, false, first);
}

mf_graph_tensor mf_graph_scalar(mf_graph *g, int64_t uid, cudnnDataType_t type) {
    static const int64_t one[4] = {1, 1, 1, 1};
    return tensor(g, uid, type, one, one, false, true, -1);
}

/* Inner tensors take uids that no caller uses. */
mf_graph_tensor mf_graph_inner(mf_graph *g, cudnnDataType_t type, const int64_t dim[4],
                               const int64_t stride[4]) {
    return tensor(g, 1000 + g->n, type, dim, stride, true, false, -1);
}

mf_graph_tensor mf_graph_inner_ragged(mf_graph *g, cudnnDataType_t type, const int64_t dim[4],
                                      const int64_t stride[4], mf_graph_tensor first) {
    return tensor(g, 1000 + g->n, type, dim, stride, true, false, first);
}

mf_graph_tensor mf_graph_dense(mf_graph *g, cudnnDataType_t type, int64_t a, int64_t b, int64_t c,
                               int64_t d) {
    const int64_t dim[4] = {a, b, c, d}, stride[4] = {b * c * d, c * d, d, 1};
    return mf_graph_inner(g, type, dim, stride);
}

static mf_graph_tensor like(mf_graph *g, mf_graph_tensor x, cudnnDataType_t type) {
    return x < 0 ? -1 : mf_graph_inner(g, type, g->shape[x].dim, g->shape[x].stride);
}

/* --- operations ------------------------------------------------------------------------------- */

static void add_op(mf_graph *g, cudnnBackendDescriptor_t op, const char *what) {
    finish(g, op, what);
    if (g->status == MF_OK && g->nops == MF_GRAPH_OPS) {
        g->status = mf_err_set(g->e, MF_INTERNAL, "cuDNN graph: too many operations");
    }
    if (g->status == MF_OK) {
        g->op[g->nops++] = op;
    }
}

static bool compares(cudnnPointwiseMode_t mode) {
    return mode == CUDNN_POINTWISE_CMP_GE || mode == CUDNN_POINTWISE_CMP_GT ||
           mode == CUDNN_POINTWISE_CMP_LT || mode == CUDNN_POINTWISE_LOGICAL_AND;
}

/* Pointwise operation of up to three inputs. */
static void pointwise(mf_graph *g, cudnnPointwiseMode_t mode, int64_t axis, mf_graph_tensor x,
                      mf_graph_tensor b, mf_graph_tensor t, mf_graph_tensor y) {
    cudnnBackendDescriptor_t kind = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
    if (compares(mode)) {
        arithmetic = CUDNN_DATA_BOOLEAN;
    } else if (y >= 0 && g->shape[y].type == CUDNN_DATA_INT32 &&
               mode != CUDNN_POINTWISE_GEN_INDEX) {
        arithmetic = CUDNN_DATA_INT32;
    }
    SET(kind, POINTWISE_MODE, POINTWISE_MODE, 1, &mode);
    SET(kind, POINTWISE_MATH_PREC, DATA_TYPE, 1, &arithmetic);
    if (axis >= 0) {
        SET(kind, POINTWISE_AXIS, INT64, 1, &axis);
    }
    finish(g, kind, "pointwise");
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    SET(op, OPERATION_POINTWISE_PW_DESCRIPTOR, BACKEND_DESCRIPTOR, 1, &kind);
    operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x, "pointwise x");
    if (b >= 0) {
        operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b, "pointwise b");
    }
    if (t >= 0) {
        operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t, "pointwise t");
    }
    operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y, "pointwise y");
    add_op(g, op, "pointwise operation");
}

mf_graph_tensor mf_graph_pointwise(mf_graph *g, cudnnPointwiseMode_t mode, mf_graph_tensor x,
                                   mf_graph_tensor b, cudnnDataType_t type, mf_graph_tensor y) {
    y = y >= 0 ? y : like(g, x, type);
    pointwise(g, mode, -1, x, b, -1, y);
    return y;
}

mf_graph_tensor mf_graph_index(mf_graph *g, mf_graph_tensor x, int64_t axis) {
    mf_graph_tensor y = like(g, x, CUDNN_DATA_INT32);
    pointwise(g, CUDNN_POINTWISE_GEN_INDEX, axis, x, -1, -1, y);
    return y;
}

mf_graph_tensor mf_graph_select(mf_graph *g, mf_graph_tensor x, mf_graph_tensor b,
                                mf_graph_tensor mask) {
    mf_graph_tensor y = like(g, x, CUDNN_DATA_FLOAT);
    pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, -1, x, b, mask, y);
    return y;
}

mf_graph_tensor mf_graph_matmul_part(mf_graph *g, mf_graph_tensor a, mf_graph_tensor b,
                                     mf_graph_tensor c, const mf_graph_extent *x) {
    cudnnBackendDescriptor_t kind = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
    const double zero = 0.0;
    SET(kind, MATMUL_COMP_TYPE, DATA_TYPE, 1, &arithmetic);
    if (x->padded) {
        SET(kind, MATMUL_PADDING_VALUE, DOUBLE, 1, &zero);
    }
    finish(g, kind, "matmul");
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    SET(op, OPERATION_MATMUL_DESC, BACKEND_DESCRIPTOR, 1, &kind);
    operand(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, "matmul a");
    operand(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b, "matmul b");
    operand(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c, "matmul c");
    if (x->m >= 0) {
        operand(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, x->m, "matmul m");
    }
    if (x->n >= 0) {
        operand(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, x->n, "matmul n");
    }
    if (x->k >= 0) {
        operand(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, x->k, "matmul k");
    }
    add_op(g, op, "matmul operation");
    return c;
}

mf_graph_tensor mf_graph_matmul(mf_graph *g, mf_graph_tensor a, mf_graph_tensor b,
                                mf_graph_tensor c) {
    const mf_graph_extent whole = {-1, -1, -1, false};
    return mf_graph_matmul_part(g, a, b, c, &whole);
}

mf_graph_tensor mf_graph_reduce(mf_graph *g, cudnnReduceTensorOp_t how, mf_graph_tensor x,
                                mf_graph_tensor y) {
    cudnnBackendDescriptor_t kind = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
    SET(kind, REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, 1, &how);
    SET(kind, REDUCTION_COMP_TYPE, DATA_TYPE, 1, &arithmetic);
    finish(g, kind, "reduction");
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    SET(op, OPERATION_REDUCTION_DESC, BACKEND_DESCRIPTOR, 1, &kind);
    operand(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, "reduction x");
    operand(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, "reduction y");
    add_op(g, op, "reduction operation");
    return y;
}

mf_graph_tensor mf_graph_reshape(mf_graph *g, mf_graph_tensor x, mf_graph_tensor y) {
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    operand(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x, "reshape x");
    operand(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y, "reshape y");
    add_op(g, op, "reshape operation");
    return y;
}

/* --- plans ------------------------------------------------------------------------------------ */

enum { ENGINES_MAX = 8 };

/* The plan of one engine configuration; NULL when the engine refuses. */
static cudnnBackendDescriptor_t plan_of(mf_graph *g, cudnnBackendDescriptor_t config,
                                        size_t *workspace_B) {
    cudnnBackendDescriptor_t plan = NULL;
    int64_t count = 0, size_B = 0;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) !=
        CUDNN_STATUS_SUCCESS) {
        return NULL;
    }
    if (cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                 &config) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendSetAttribute(plan, (cudnnBackendAttributeName_t)400 /* its handle */,
                                 CUDNN_TYPE_HANDLE, 1, &g->handle) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                 1, &count, &size_B) == CUDNN_STATUS_SUCCESS) {
        *workspace_B = (size_t)size_B;
        return plan;
    }
    (void)cudnnBackendDestroyDescriptor(plan);
    return NULL;
}

static cudnnBackendDescriptor_t whole_graph(mf_graph *g) {
    cudnnBackendDescriptor_t graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    SET(graph, OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, g->nops, g->op);
    set(g, graph, (cudnnBackendAttributeName_t)800 /* its handle */, CUDNN_TYPE_HANDLE, 1,
        &g->handle, "OPERATIONGRAPH_HANDLE");
    finish(g, graph, "operation graph");
    return graph;
}

/* Does an engine say of itself that its results may differ from run to run? What does not answer
 * counts as one that does. */
static bool varies(mf_graph *g, cudnnBackendDescriptor_t config) {
    cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine = make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t count = 0, notes = 0;
    bool asked =
        cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 1, &count, &engine) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &notes,
                                 note) == CUDNN_STATUS_SUCCESS;
    for (int64_t i = 0; asked && i < notes; i++) {
        if (note[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) {
            return true;
        }
    }
    return !asked;
}

mf_status mf_graph_compile(mf_graph *g, bool fixed) {
    cudnnBackendDescriptor_t config[ENGINES_MAX] = {NULL};
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;
    cudnnBackendDescriptor_t graph = whole_graph(g);
    cudnnBackendDescriptor_t guess = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    SET(guess, ENGINEHEUR_OPERATION_GRAPH, BACKEND_DESCRIPTOR, 1, &graph);
    SET(guess, ENGINEHEUR_MODE, HEUR_MODE, 1, &mode);
    finish(g, guess, "engine heuristic");
    for (int i = 0; i < ENGINES_MAX; i++) {
        config[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    }
    if (g->status == MF_OK) {
        cudnnStatus_t result =
            cudnnBackendGetAttribute(guess, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, ENGINES_MAX, &count, config);
        if (result != CUDNN_STATUS_SUCCESS) {
            fail(g, MF_INPUT, result, "engines for the graph");
        }
    }
    for (int64_t i = 0; i < count && g->status == MF_OK && g->plan == NULL; i++) {
        if (!fixed || !varies(g, config[i])) {
            g->plan = plan_of(g, config[i], &g->workspace_B);
        }
    }
    if (g->status == MF_OK && g->plan == NULL) {
        fail(g, MF_INPUT, CUDNN_STATUS_NOT_SUPPORTED,
             fixed ? "no deterministic engine takes the graph" : "no engine takes the graph");
    }
    drop_descriptors(g);
    g->e = NULL;
    return g->status;
}

mf_status mf_graph_execute(const mf_graph *g, int n, const int64_t *uid, void *const *pointer,
                           void *workspace, void *stream, mf_err *e) {
    cudnnBackendDescriptor_t pack = NULL;
    cudnnStatus_t result = cudnnSetStream(g->handle, (cudaStream_t)stream);
    if (result == CUDNN_STATUS_SUCCESS) {
        result = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    }
    if (result == CUDNN_STATUS_SUCCESS) {
        result = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                          CUDNN_TYPE_VOID_PTR, n, pointer);
    }
    if (result == CUDNN_STATUS_SUCCESS) {
        result = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                          CUDNN_TYPE_INT64, n, uid);
    }
    if (result == CUDNN_STATUS_SUCCESS) {
        result = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                          CUDNN_TYPE_VOID_PTR, 1, &workspace);
    }
    if (result == CUDNN_STATUS_SUCCESS) {
        result = cudnnBackendFinalize(pack);
    }
    if (result == CUDNN_STATUS_SUCCESS) {
        result = cudnnBackendExecute(g->handle, g->plan, pack);
    }
    if (pack != NULL) {
        (void)cudnnBackendDestroyDescriptor(pack);
    }
    if (result != CUDNN_STATUS_SUCCESS) {
        char words[512] = "";
        cudnnGetLastErrorString(words, sizeof words);
        return mf_err_set(e, MF_LIBRARY, "cuDNN: execute: %s; %s", cudnnGetErrorString(result),
                          words);
    }
    return MF_OK;
}
