/* graph_cuda.c - captured work of a GPU as one CUDA graph.
 *
 * CUDA spreads the nodes of a graph over channels of the GPU, in the order in which they were made.
 * A copy to or from the host is captured before the kernel that runs beside it, and takes the
 * channel of the kernels in front of both; the next kernels get another channel, at every block. As
 * long as many channels wait, copies are slow: 49 instead of 55 GB/s on an H200 with 32 channels of
 * kernels (docs/training.md). So capture_end makes these copies once more, behind all other nodes,
 * with the same edges. Then all kernels have one channel, and all copies of a direction have one.
 */
#include "executor/cuda/device_cuda.h"
#include "kernels/device/cuda_check.h"

#include <stdlib.h>

struct mf_device_graph {
    cudaGraphExec_t exec;
};

typedef struct host_copy {
    cudaGraphNode_t node, again; /* as captured; its second making */
    struct cudaMemcpy3DParms how;
    cudaGraphNode_t *before, *behind; /* nodes that it waits for; that wait for it */
    size_t befores, behinds;
} host_copy;

typedef struct host_copies {
    host_copy *list;
    size_t count;
} host_copies;

static void clear(host_copies *c) {
    for (size_t i = 0; i < c->count; i++) {
        free(c->list[i].before);
        free(c->list[i].behind);
    }
    free(c->list);
}

static bool on_host(const void *memory) {
    struct cudaPointerAttributes a;
    return cudaPointerGetAttributes(&a, memory) == cudaSuccess && a.type == cudaMemoryTypeHost;
}

/* Sets *is, and of such a copy all that it is made again from. */
static mf_status read_copy(cudaGraphNode_t node, host_copy *out, bool *is, mf_err *e) {
    enum cudaGraphNodeType type;
    *is = false;
    *out = (host_copy){.node = node};
    MF_CUDA_TRY(cudaGraphNodeGetType(node, &type), e);
    if (type != cudaGraphNodeTypeMemcpy) {
        return MF_OK;
    }
    MF_CUDA_TRY(cudaGraphMemcpyNodeGetParams(node, &out->how), e);
    *is = on_host(out->how.srcPtr.ptr) || on_host(out->how.dstPtr.ptr);
    return MF_OK;
}

static mf_status read_edges(host_copy *c, mf_err *e) {
    MF_CUDA_TRY(cudaGraphNodeGetDependencies(c->node, NULL, NULL, &c->befores), e);
    MF_CUDA_TRY(cudaGraphNodeGetDependentNodes(c->node, NULL, NULL, &c->behinds), e);
    c->before = calloc(c->befores + 1, sizeof *c->before);
    c->behind = calloc(c->behinds + 1, sizeof *c->behind);
    if (c->before == NULL || c->behind == NULL) {
        return mf_err_set(e, MF_NOMEM, "graph: out of memory");
    }
    MF_CUDA_TRY(cudaGraphNodeGetDependencies(c->node, c->before, NULL, &c->befores), e);
    MF_CUDA_TRY(cudaGraphNodeGetDependentNodes(c->node, c->behind, NULL, &c->behinds), e);
    return MF_OK;
}

/* All copies between host and device, in the order in which they were captured. */
static mf_status find_copies(cudaGraph_t graph, host_copies *out, mf_err *e) {
    size_t nodes = 0;
    mf_status status = MF_OK;
    MF_CUDA_TRY(cudaGraphGetNodes(graph, NULL, &nodes), e);
    cudaGraphNode_t *node = calloc(nodes + 1, sizeof *node);
    out->list = calloc(nodes + 1, sizeof *out->list);
    if (node == NULL || out->list == NULL) {
        status = mf_err_set(e, MF_NOMEM, "graph: out of memory");
        goto out;
    }
    MF_CUDA_GOTO(cudaGraphGetNodes(graph, node, &nodes), e);
    for (size_t i = 0; i < nodes && status == MF_OK; i++) {
        bool is = false;
        host_copy *c = &out->list[out->count];
        status = read_copy(node[i], c, &is, e);
        out->count += is;
        status = status == MF_OK && is ? read_edges(c, e) : status;
    }
out:
    free(node);
    return status;
}

static const host_copy *copy_of(const host_copies *c, cudaGraphNode_t node) {
    for (size_t i = 0; i < c->count; i++) {
        if (c->list[i].node == node) {
            return &c->list[i];
        }
    }
    return NULL;
}

/* Copies that this one waits for were captured before it, so their second making exists. They come
 * last of what it waits for. */
static mf_status make_again(cudaGraph_t graph, const host_copies *all, host_copy *c, mf_err *e) {
    size_t n = 0;
    cudaGraphNode_t *before = calloc(c->befores + 1, sizeof *before);
    if (before == NULL) {
        return mf_err_set(e, MF_NOMEM, "graph: out of memory");
    }
    for (int copies = 0; copies < 2; copies++) {
        for (size_t i = 0; i < c->befores; i++) {
            const host_copy *other = copy_of(all, c->before[i]);
            if ((other != NULL) == (copies != 0)) {
                before[n++] = other != NULL ? other->again : c->before[i];
            }
        }
    }
    const cudaError_t made = cudaGraphAddMemcpyNode(&c->again, graph, before, n, &c->how);
    free(before);
    MF_CUDA_TRY(made, e);
    return MF_OK;
}

static mf_status join_behind(cudaGraph_t graph, const host_copies *all, const host_copy *c,
                             mf_err *e) {
    for (size_t i = 0; i < c->behinds; i++) {
        if (copy_of(all, c->behind[i]) == NULL) { /* copies wait for it since they were made */
            MF_CUDA_TRY(cudaGraphAddDependencies(graph, &c->again, &c->behind[i], NULL, 1), e);
        }
    }
    return MF_OK;
}

static mf_status put_copies_last(cudaGraph_t graph, mf_err *e) {
    host_copies all = {0};
    mf_status status = find_copies(graph, &all, e);
    for (size_t i = 0; i < all.count && status == MF_OK; i++) {
        status = make_again(graph, &all, &all.list[i], e);
    }
    for (size_t i = 0; i < all.count && status == MF_OK; i++) {
        status = join_behind(graph, &all, &all.list[i], e);
    }
    for (size_t i = 0; i < all.count && status == MF_OK; i++) {
        MF_CUDA_GOTO(cudaGraphDestroyNode(all.list[i].node), e);
    }
out:
    clear(&all);
    return status;
}

mf_status mf_cuda_capture_begin(mf_queue *q, mf_err *e) {
    MF_CUDA_TRY(cudaStreamBeginCapture(q->stream, cudaStreamCaptureModeThreadLocal), e);
    return MF_OK;
}

mf_status mf_cuda_capture_end(mf_queue *q, mf_device_graph **out, mf_err *e) {
    cudaGraph_t graph = NULL;
    mf_status status = MF_OK;
    mf_device_graph *g = calloc(1, sizeof *g);
    *out = NULL;
    MF_CUDA_GOTO(cudaStreamEndCapture(q->stream, &graph), e);
    if (g == NULL) {
        status = mf_err_set(e, MF_NOMEM, "graph: out of memory");
        goto out;
    }
    status = put_copies_last(graph, e);
    if (status == MF_OK) {
        MF_CUDA_GOTO(cudaGraphInstantiate(&g->exec, graph, 0), e);
        *out = g;
        g = NULL;
    }
out:
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    free(g);
    return status;
}

mf_status mf_cuda_play(mf_queue *q, mf_device_graph *g, mf_err *e) {
    MF_CUDA_TRY(cudaGraphLaunch(g->exec, q->stream), e);
    return MF_OK;
}

void mf_cuda_forget(mf_device_graph *g) {
    if (g != NULL) {
        (void)cudaGraphExecDestroy(g->exec);
        free(g);
    }
}
