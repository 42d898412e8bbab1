/* ops_table.c - names and dims of every op that can be measured. */
#include "profiles/ops_table.h"

#include "core/base/json.h"
#include "profiles/store.h"

#include <math.h>
#include <string.h>

static const char *const dtypes[] = {"bf16",  "fp32",  "fp8-tensor", "fp8-block",
                                     "mxfp8", "nvfp4", NULL};
static const char *const layouts[] = {"nt", "nn", "tn", NULL};
static const char *const gemm_passes[] = {"fwd", "dgrad", "wgrad", NULL};
static const char *const attention_passes[] = {"fwd", "bwd", NULL};
static const char *const scan_rules[] = {"gdn", "kda", "mamba2", "lightning", NULL};
static const char *const attention_impls[] = {"cudnn", "moefold", "fa2", "fa3", "reference", NULL};
static const char *const launch_modes[] = {"stream", "graph", "replay", NULL};
static const char *const algos[] = {"auto",     "ring", "tree",  "nvls",
                                    "nvlstree", "pat",  "sharp", NULL};
static const char *const dispatchers[] = {"allgather", "alltoall", "fused",
                                          "hybridep",  "deepep",   NULL};
static const char *const sides[] = {"compute", "comm", NULL};
static const char *const beside_ops[] = {"gemm", "copy", NULL};
static const char *const beside_comms[] = {"all_reduce", "all_gather", "reduce_scatter",
                                           "all_to_all", "send_recv",  "dispatch",
                                           "combine",    NULL};
static const char *const row_modes[] = {"store", "load", NULL};

#define DTYPE                                                                                      \
    { "dtype", MF_DIM_IS_WORD, NULL, dtypes, "precision of the operands" }

static const mf_op_dim gemm[] = {
    DTYPE,
    {"m", MF_DIM_IS_COUNT, NULL, NULL, "rows of the result"},
    {"n", MF_DIM_IS_COUNT, NULL, NULL, "columns of the result"},
    {"k", MF_DIM_IS_COUNT, NULL, NULL, "length of the sums"},
    {"layout", MF_DIM_IS_WORD, "nt", layouts,
     "row-major operands as they lie in memory, t = transposed: nt forward (x W^T), nn input "
     "gradient, tn weight gradient"},
    {"acc", MF_DIM_IS_FLAG, "0", NULL, "1: adds to an FP32 result (weight gradients)"},
};
static const mf_op_dim grouped_gemm[] = {
    DTYPE,
    {"experts", MF_DIM_IS_COUNT, NULL, NULL, "groups, each with a weight [n,k]"},
    {"m", MF_DIM_IS_COUNT, NULL, NULL, "rows per expert, balanced"},
    {"n", MF_DIM_IS_COUNT, NULL, NULL, "outputs of the expert's weight, whatever the pass"},
    {"k", MF_DIM_IS_COUNT, NULL, NULL, "inputs of the expert's weight, whatever the pass"},
    {"pass", MF_DIM_IS_WORD, "fwd", gemm_passes,
     "fwd [m,k] -> [m,n], dgrad [m,n] -> [m,k], wgrad -> [n,k] per expert"},
    {"acc", MF_DIM_IS_FLAG, "0", NULL, "1: adds to an FP32 result (weight gradients)"},
};
static const mf_op_dim first_wgrad[] = {
    DTYPE,
    {"experts", MF_DIM_IS_SIZE, "0", NULL,
     "groups, each with a gradient [n,k]; 0 = a plain product"},
    {"m", MF_DIM_IS_COUNT, NULL, NULL, "rows that the sums are over, per expert, balanced"},
    {"n", MF_DIM_IS_COUNT, NULL, NULL, "outputs of the weight"},
    {"k", MF_DIM_IS_COUNT, NULL, NULL, "inputs of the weight"},
};
static const mf_op_dim attention[] = {
    {"pass", MF_DIM_IS_WORD, "fwd", attention_passes, "fwd or bwd"},
    {"b", MF_DIM_IS_COUNT, "1", NULL, "sequences"},
    {"h", MF_DIM_IS_COUNT, NULL, NULL, "query heads"},
    {"hkv", MF_DIM_IS_COUNT, "@h", NULL, "key and value heads"},
    {"s", MF_DIM_IS_COUNT, NULL, NULL, "query positions"},
    {"skv", MF_DIM_IS_COUNT, "@s", NULL, "key positions; causal: queries are the last s of them"},
    {"dqk", MF_DIM_IS_COUNT, NULL, NULL, "head width of queries and keys"},
    {"dv", MF_DIM_IS_COUNT, "@dqk", NULL, "head width of values"},
    {"causal", MF_DIM_IS_FLAG, "1", NULL, "1: causal mask"},
    {"window", MF_DIM_IS_SIZE, "0", NULL, "sliding window in positions, 0 = none"},
    {"dtype", MF_DIM_IS_WORD, "bf16", dtypes, "precision of the operands"},
    {"impl", MF_DIM_IS_WORD, "cudnn", attention_impls, "kernels"},
};
static const mf_op_dim packed[] = {
    {"pass", MF_DIM_IS_WORD, "fwd", attention_passes, "fwd or bwd"},
    {"b", MF_DIM_IS_COUNT, NULL, NULL, "sequences, one behind the other"},
    {"h", MF_DIM_IS_COUNT, NULL, NULL, "query heads"},
    {"hkv", MF_DIM_IS_COUNT, "@h", NULL, "key and value heads"},
    {"s", MF_DIM_IS_COUNT, NULL, NULL, "positions of a sequence, mean"},
    {"vary", MF_DIM_IS_SIZE, "50", NULL, "lengths lie evenly around the mean, up to so many % off"},
    {"dqk", MF_DIM_IS_COUNT, NULL, NULL, "head width of queries and keys"},
    {"dv", MF_DIM_IS_COUNT, "@dqk", NULL, "head width of values"},
    {"causal", MF_DIM_IS_FLAG, "1", NULL, "1: causal mask"},
    {"window", MF_DIM_IS_SIZE, "0", NULL, "sliding window in positions, 0 = none"},
    {"dtype", MF_DIM_IS_WORD, "bf16", dtypes, "precision of the operands"},
    {"impl", MF_DIM_IS_WORD, "cudnn", attention_impls, "kernels"},
};
static const mf_op_dim conv[] = {
    {"pass", MF_DIM_IS_WORD, "fwd", attention_passes, "fwd or bwd"},
    {"s", MF_DIM_IS_COUNT, NULL, NULL, "positions, of all sequences"},
    {"channels", MF_DIM_IS_COUNT, NULL, NULL, "columns, each with taps of its own"},
    {"taps", MF_DIM_IS_COUNT, "4", NULL, "positions that one result reads"},
};
static const mf_op_dim scan[] = {
    {"rule", MF_DIM_IS_WORD, NULL, scan_rules,
     "gated delta net, Kimi delta attention, Mamba-2, lightning attention"},
    {"pass", MF_DIM_IS_WORD, "fwd", attention_passes, "fwd or bwd"},
    {"s", MF_DIM_IS_COUNT, NULL, NULL, "positions, of all sequences"},
    {"hk", MF_DIM_IS_COUNT, NULL, NULL, "key heads; mamba2: groups"},
    {"dk", MF_DIM_IS_COUNT, NULL, NULL, "width of a key; mamba2: of the state"},
    {"hv", MF_DIM_IS_COUNT, "@hk", NULL, "value heads"},
    {"dv", MF_DIM_IS_COUNT, "@dk", NULL, "width of a value"},
    {"chunk", MF_DIM_IS_COUNT, "64", NULL, "positions that the scan takes at once"},
};
static const mf_op_dim indexer[] = {
    {"pass", MF_DIM_IS_WORD, "fwd", attention_passes, "fwd, or bwd of the indexer's own loss"},
    {"b", MF_DIM_IS_COUNT, "1", NULL, "sequences"},
    {"s", MF_DIM_IS_COUNT, NULL, NULL, "query positions"},
    {"keys", MF_DIM_IS_COUNT, "@s", NULL, "keys of a sequence; causal: queries are the last s"},
    {"h", MF_DIM_IS_COUNT, NULL, NULL, "index heads"},
    {"d", MF_DIM_IS_COUNT, NULL, NULL, "width of an index head"},
    {"topk", MF_DIM_IS_COUNT, NULL, NULL, "keys that a query keeps"},
    {"causal", MF_DIM_IS_FLAG, "1", NULL, "1: keys behind the query are not scored"},
    {"teacher", MF_DIM_IS_SIZE, "0", NULL,
     "bwd: columns of attention's scores, of all heads, that it learns from"},
};
static const mf_op_dim copy[] = {
    {"bytes", MF_DIM_IS_BYTES, NULL, NULL, "bytes copied (device copies move twice as many)"},
};
static const mf_op_dim memory[] = {
    {"op", MF_DIM_IS_NAME, NULL, NULL, "name of the op in the step program, such as rmsnorm_fwd"},
    {"bytes", MF_DIM_IS_BYTES, NULL, NULL, "bytes read and written"},
};
static const mf_op_dim launch[] = {
    {"mode", MF_DIM_IS_WORD, NULL, launch_modes,
     "one kernel launched by the host; the device's time of one in a graph of 400; the host's time "
     "of replaying that graph, per kernel"},
};
static const mf_op_dim collective[] = {
    {"bytes", MF_DIM_IS_BYTES, NULL, NULL, "size as nccl-tests counts it"},
    {"ranks", MF_DIM_IS_COUNT, NULL, NULL, "ranks in the group"},
    {"nodes", MF_DIM_IS_COUNT, "1", NULL, "hosts that they span"},
    {"inplace", MF_DIM_IS_FLAG, "0", NULL, "1: result in the place of the input"},
    {"algo", MF_DIM_IS_WORD, "auto", algos, "algorithm, where it was fixed"},
};
static const mf_op_dim dispatch[] = {
    {"tokens", MF_DIM_IS_COUNT, NULL, NULL, "tokens per rank"},
    {"hidden", MF_DIM_IS_COUNT, NULL, NULL, "elements of a row"},
    {"topk", MF_DIM_IS_COUNT, NULL, NULL, "experts per token"},
    {"experts", MF_DIM_IS_COUNT, NULL, NULL, "experts in all"},
    {"ranks", MF_DIM_IS_COUNT, NULL, NULL, "expert-parallel ranks"},
    {"nodes", MF_DIM_IS_COUNT, "1", NULL, "hosts that they span"},
    {"dtype", MF_DIM_IS_WORD, "bf16", dtypes, "precision on the wire"},
    {"impl", MF_DIM_IS_WORD, NULL, dispatchers, "dispatcher"},
    {"skew", MF_DIM_IS_COUNT, "100", NULL, "choices of the fullest rank over the mean of ranks, %"},
};
static const mf_op_dim beside[] = {
    {"of", MF_DIM_IS_WORD, NULL, sides, "whose time it is while both run"},
    {"op", MF_DIM_IS_WORD, NULL, beside_ops,
     "a BF16 product of m = n = k = size, or a device copy"},
    {"size", MF_DIM_IS_COUNT, NULL, NULL, "of the product; bytes of the copy"},
    {"comm", MF_DIM_IS_WORD, NULL, beside_comms, "collective, or the fused dispatcher's exchange"},
    {"bytes", MF_DIM_IS_BYTES, NULL, NULL,
     "its size as nccl-tests counts it; of exchanges: tokens x 8 choices x 14336"},
    {"ranks", MF_DIM_IS_COUNT, NULL, NULL, "ranks in the group, on one host"},
};
static const mf_op_dim peer_rows[] = {
    {"mode", MF_DIM_IS_WORD, NULL, row_modes, "rows stored to, or loaded from, the peers"},
    {"bytes", MF_DIM_IS_BYTES, NULL, NULL, "bytes that leave each GPU"},
    {"row", MF_DIM_IS_BYTES, NULL, NULL, "bytes of a row"},
    {"ranks", MF_DIM_IS_COUNT, NULL, NULL, "GPUs in one NVLink domain"},
    {"blocks", MF_DIM_IS_COUNT, NULL, NULL, "thread blocks (SMs) that move them"},
};

#define ROW(name, dims, meaning)                                                                   \
    { #name, meaning, (int)(sizeof dims / sizeof dims[0]), dims }

static const mf_op_row rows[] = {
    ROW(gemm, gemm, "matrix product"),
    ROW(grouped_gemm, grouped_gemm, "one matrix product per local expert, in one kernel"),
    ROW(attention, attention, "core attention"),
    ROW(attention_packed, packed, "core attention of packed sequences, which see only themselves"),
    ROW(first_wgrad, first_wgrad,
        "weight gradient that writes an FP32 result, as a step's first micro-batch does; with "
        "acc=1 "
        "gemm and grouped_gemm add to it"),
    ROW(conv, conv, "short causal convolution of each channel (no kernel measures it yet)"),
    ROW(scan, scan, "a recurrence over a sequence, by chunks (no kernel measures it yet)"),
    ROW(index, indexer, "an indexer's scores and choice of keys (no kernel measures it yet)"),
    ROW(memory, memory, "an op bound by device memory"),
    ROW(copy, copy, "copy on the device"),
    ROW(copy_h2d, copy, "copy from pinned host memory"),
    ROW(copy_d2h, copy, "copy to pinned host memory"),
    ROW(launch, launch, "what a launch costs"),
    ROW(all_reduce, collective, "sum over the ranks, to all"),
    ROW(all_gather, collective, "every rank's part, to all"),
    ROW(reduce_scatter, collective, "sum over the ranks, a part to each"),
    ROW(all_to_all, collective, "a part from each rank to each other"),
    ROW(send_recv, collective, "a message to the next rank of a ring"),
    ROW(dispatch, dispatch, "tokens to the ranks of their experts"),
    ROW(combine, dispatch, "expert results back to the tokens"),
    ROW(beside, beside, "compute and communication at the same time: the time of one of them"),
    ROW(peer_rows, peer_rows, "rows moved by plain loads and stores over NVLink"),
};
enum { ROWS = sizeof rows / sizeof rows[0] };

#define FITS(dims) _Static_assert(sizeof dims / sizeof dims[0] <= MF_POINT_MAX_DIMS, "dims")
FITS(gemm);
FITS(grouped_gemm);
FITS(attention);
FITS(packed);
FITS(scan);
FITS(indexer);
FITS(collective);
FITS(dispatch);
FITS(peer_rows);

const mf_op_row *mf_op_rows(size_t *count) {
    *count = ROWS;
    return rows;
}

const mf_op_row *mf_op_row_find(const char *name) {
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

const char *mf_op_row_nearest(const char *name) {
    const char *names[ROWS];
    for (size_t i = 0; i < ROWS; i++) {
        names[i] = rows[i].name;
    }
    return mf_nearest_word(name, names, ROWS);
}

const mf_op_dim *mf_op_dim_find(const mf_op_row *row, const char *key) {
    for (int i = 0; i < row->dims; i++) {
        if (strcmp(row->dim[i].key, key) == 0) {
            return &row->dim[i];
        }
    }
    return NULL;
}

const char *mf_op_dim_nearest(const mf_op_row *row, const char *key) {
    const char *keys[MF_POINT_MAX_DIMS];
    for (int i = 0; i < row->dims; i++) {
        keys[i] = row->dim[i].key;
    }
    return mf_nearest_word(key, keys, (size_t)row->dims);
}

int64_t mf_op_packed_length(int64_t s, int64_t vary, int64_t count, int64_t i) {
    double off = count > 1 ? 2.0 * (double)i / (double)(count - 1) - 1.0 : 0.0;
    int64_t n = s + llround((double)s * (double)vary / 100.0 * off);
    return n > 1 ? n : 1;
}

double mf_op_busbw_factor(const char *op, double ranks) {
    if (strcmp(op, "all_reduce") == 0) {
        return 2.0 * (ranks - 1.0) / ranks;
    }
    if (strcmp(op, "all_gather") == 0 || strcmp(op, "reduce_scatter") == 0 ||
        strcmp(op, "all_to_all") == 0) {
        return (ranks - 1.0) / ranks;
    }
    return strcmp(op, "send_recv") == 0 ? 1.0 : 0.0;
}
