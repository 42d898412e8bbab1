/* gemm_cuda.c - matrix products through cuBLASLt.
 *
 * cuBLASLt's matrices are column-major; a row-major matrix is its transpose there. So the product
 * is asked for as c^T = op(b)^T op(a)^T: our b is its A, our a its B, our n its m.
 */
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/gemm_autotune.h"

#include "kernels/device/cuda_check.h"

#include <cublasLt.h>

#include <stdio.h>
#include <stdlib.h>

struct mf_gemm_cuda {
    mf_gemm_cuda_shape shape;
    cublasLtHandle_t library;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c; /* of our a, b, c */
    size_t workspace_B;
    int candidates, chosen;
    cublasLtMatmulAlgo_t algo[MF_GEMM_CANDIDATES];
};

#define TRY(call)                                                                                  \
    do {                                                                                           \
        cublasStatus_t result_ = (call);                                                           \
        if (result_ != CUBLAS_STATUS_SUCCESS) {                                                    \
            status = mf_err_set(e, MF_LIBRARY, "cuBLASLt: %s: %s (%s)", #call,                     \
                                cublasLtGetStatusString(result_), cublasLtGetStatusName(result_)); \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

mf_status mf_gemm_cuda_library_open(void **library, mf_err *e) {
    mf_status status = MF_OK;
    cublasLtHandle_t handle = NULL;
    TRY(cublasLtCreate(&handle));
out:
    *library = handle;
    return status;
}

void mf_gemm_cuda_library_close(void *library) {
    if (library != NULL) {
        (void)cublasLtDestroy(library);
    }
}

void mf_gemm_cuda_version(char *text, size_t size) {
    size_t version = cublasLtGetVersion();
    snprintf(text, size, "%zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

/* --- descriptors ------------------------------------------------------------------------------ */

static cudaDataType_t data_type(mf_gemm_type t) {
    static const cudaDataType_t types[] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_8F_E4M3};
    return types[t];
}

static int32_t scale_mode(mf_gemm_scale s) {
    static const int32_t modes[] = {
        CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
        CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F};
    return modes[s];
}

static cublasLtEpilogue_t epilogue_of(const mf_gemm_cuda_shape *s) {
    static const cublasLtEpilogue_t with[][2] = {
        {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS},
        {CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS},
        {CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS},
    };
    /* Our a is its B: the sums over k of B's columns. */
    return s->bias_grad ? CUBLASLT_EPILOGUE_BGRADB : with[s->activation][s->bias];
}

static mf_status describe_product(mf_gemm_cuda *p, mf_err *e) {
    mf_status status = MF_OK;
    const mf_gemm_cuda_shape *s = &p->shape;
    bool fp8 = s->a_type == MF_GEMM_E4M3;
    /* TF32 would be no float arithmetic: FP32 operands take the plain units. */
    cublasOperation_t no = CUBLAS_OP_N, yes = CUBLAS_OP_T;
    int32_t a_mode = scale_mode(s->a_scale), b_mode = scale_mode(s->b_scale);
    cublasLtEpilogue_t epilogue = epilogue_of(s);
    cudaDataType_t bias_type = data_type(s->c_type);
    TRY(cublasLtMatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA,
                                       s->form == MF_GEMM_NT ? &yes : &no, sizeof yes));
    TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB,
                                       s->form == MF_GEMM_TN ? &yes : &no, sizeof yes));
    if (fp8) {
        TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &b_mode,
                                           sizeof b_mode));
        TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &a_mode,
                                           sizeof a_mode));
    }
    TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                       sizeof epilogue));
    if (s->bias || s->bias_grad) {
        TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                           &bias_type, sizeof bias_type));
    }
out:
    return status;
}

static mf_status describe_operands(mf_gemm_cuda *p, mf_err *e) {
    mf_status status = MF_OK;
    const mf_gemm_cuda_shape *s = &p->shape;
    uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, k = (uint64_t)s->k;
    bool a_t = s->form == MF_GEMM_TN, b_t = s->form == MF_GEMM_NT;
    TRY(cublasLtMatrixLayoutCreate(&p->a, data_type(s->a_type), a_t ? m : k, a_t ? k : m, s->lda));
    TRY(cublasLtMatrixLayoutCreate(&p->b, data_type(s->b_type), b_t ? k : n, b_t ? n : k, s->ldb));
    TRY(cublasLtMatrixLayoutCreate(&p->c, data_type(s->c_type), n, m, s->ldc));
out:
    return status;
}

/* Scales and bias are part of the descriptor; the heuristic asks whether they are there. */
static mf_status point_at(mf_gemm_cuda *p, const mf_gemm_cuda_data *d, mf_err *e) {
    mf_status status = MF_OK;
    if (p->shape.a_type == MF_GEMM_E4M3) {
        TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                           &d->b_scale, sizeof d->b_scale));
        TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                           &d->a_scale, sizeof d->a_scale));
    }
    if (p->shape.bias || p->shape.bias_grad) {
        const void *pointer = p->shape.bias ? d->bias : d->bias_grad;
        TRY(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer,
                                           sizeof pointer));
    }
out:
    return status;
}

/* Algorithms for operands that are aligned to less than 16 bytes. */
static mf_status wish_alignment(cublasLtMatmulPreference_t wish, uint32_t align_B, mf_err *e) {
    static const cublasLtMatmulPreferenceAttributes_t operands[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    mf_status status = MF_OK;
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++) {
        TRY(cublasLtMatmulPreferenceSetAttribute(wish, operands[i], &align_B, sizeof align_B));
    }
out:
    return status;
}

static mf_status propose(mf_gemm_cuda *p, mf_err *e) {
    mf_status status = MF_OK;
    const mf_gemm_cuda_shape *s = &p->shape;
    cublasLtMatmulHeuristicResult_t found[MF_GEMM_CANDIDATES];
    cublasLtMatmulPreference_t wish = NULL;
    /* Only their alignment is looked at. */
    const uintptr_t at = s->align_B > 0 ? (uintptr_t)s->align_B : 256;
    const float *scale = (const float *)(uintptr_t)256;
    mf_gemm_cuda_data standing_in = {.a_scale = scale, .b_scale = scale, .bias = (const void *)at};
    standing_in.bias_grad = (void *)at;
    int count = 0;
    cublasStatus_t result;
    status = point_at(p, &standing_in, e);
    if (status != MF_OK) {
        goto out;
    }
    TRY(cublasLtMatmulPreferenceCreate(&wish));
    TRY(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &p->workspace_B, sizeof p->workspace_B));
    status = s->align_B > 0 ? wish_alignment(wish, (uint32_t)s->align_B, e) : MF_OK;
    if (status != MF_OK) {
        goto out;
    }
    result = cublasLtMatmulAlgoGetHeuristic(p->library, p->product, p->b, p->a, p->c, p->c, wish,
                                            MF_GEMM_CANDIDATES, found, &count);
    for (int i = 0; result == CUBLAS_STATUS_SUCCESS && i < count; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS) {
            p->algo[p->candidates++] = found[i].algo;
        }
    }
    if (p->candidates == 0) {
        status = mf_err_set(
            e, MF_INPUT, "cuBLASLt has no algorithm for this product (m=%lld n=%lld k=%lld): %s",
            (long long)s->m, (long long)s->n, (long long)s->k, cublasLtGetStatusString(result));
    }
out:
    if (wish != NULL) {
        (void)cublasLtMatmulPreferenceDestroy(wish);
    }
    return status;
}

static mf_status check_shape(const mf_gemm_cuda_shape *s, mf_err *e) {
    if (s->accumulate && s->activation != MF_GEMM_LINEAR) {
        return mf_err_set(e, MF_INPUT, "matrix product: sums have no activation");
    }
    if (s->bias_grad && (s->form != MF_GEMM_TN || s->bias || s->activation != MF_GEMM_LINEAR)) {
        return mf_err_set(e, MF_INPUT,
                          "matrix product: a bias has its gradient beside a weight gradient alone");
    }
    return MF_OK;
}

mf_status mf_gemm_cuda_create(void *library, const mf_gemm_cuda_shape *shape, size_t workspace_B,
                              mf_gemm_cuda **out, mf_err *e) {
    mf_status status = check_shape(shape, e);
    *out = NULL;
    if (status != MF_OK) {
        return status;
    }
    mf_gemm_cuda *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return mf_err_set(e, MF_NOMEM, "matrix product: out of memory");
    }
    p->shape = *shape;
    p->library = library;
    p->workspace_B = workspace_B;
    status = describe_product(p, e);
    status = status == MF_OK ? describe_operands(p, e) : status;
    status = status == MF_OK ? propose(p, e) : status;
    if (status != MF_OK) {
        mf_gemm_cuda_destroy(p);
        return status;
    }
    *out = p;
    return MF_OK;
}

void mf_gemm_cuda_destroy(mf_gemm_cuda *p) {
    if (p == NULL) {
        return;
    }
    cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->c};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        if (layouts[i] != NULL) {
            (void)cublasLtMatrixLayoutDestroy(layouts[i]);
        }
    }
    if (p->product != NULL) {
        (void)cublasLtMatmulDescDestroy(p->product);
    }
    free(p);
}

int mf_gemm_cuda_candidates(const mf_gemm_cuda *p) {
    return p->candidates;
}
int mf_gemm_cuda_chosen(const mf_gemm_cuda *p) {
    return p->chosen;
}
void mf_gemm_cuda_choose(mf_gemm_cuda *p, int candidate) {
    p->chosen = candidate >= 0 && candidate < p->candidates ? candidate : p->chosen;
}

/* --- running ---------------------------------------------------------------------------------- */

mf_status mf_gemm_cuda_run(mf_gemm_cuda *p, const mf_gemm_cuda_data *d, void *stream, mf_err *e) {
    float beta = p->shape.accumulate ? 1.0f : 0.0f;
    mf_status status = point_at(p, d, e);
    if (status != MF_OK) {
        return status;
    }
    const void *add = d->add != NULL ? d->add : d->c;
    TRY(cublasLtMatmul(p->library, p->product, &d->alpha, d->b, p->b, d->a, p->a, &beta, add, p->c,
                       d->c, p->c, &p->algo[p->chosen], d->workspace, p->workspace_B,
                       (cudaStream_t)stream));
out:
    return status;
}

/* --- choosing --------------------------------------------------------------------------------- */

static const double tune_target_s = 0.2e-3; /* of timed work in a look */
static const double tune_most_s = 15e-3;    /* for all; later proposals are seldom better, */
static const double steps_most_s = 0.5;     /* but at the power cap */
static const double tune_long_s = 0.3e-3;   /* runs in turn that need no other to warm up */
enum { TUNE_RUNS_MAX = 10, TUNE_LOOKS_MIN = 3 };

/* Who times proposals, and on what. */
typedef struct gemm_trial {
    mf_gemm_cuda *plan;
    const mf_gemm_cuda_data *data; /* [sets], used in turn */
    int sets, warm, runs;          /* of one look: untimed runs, then timed ones */
    double most_s;                 /* no further proposal is looked at after so many */
    cudaEvent_t mark[2];
    cudaStream_t stream;
} gemm_trial;

/* Seconds per run of a proposal. */
static mf_status time_runs(const gemm_trial *t, int proposal, double *time_s, mf_err *e) {
    mf_gemm_cuda *p = t->plan;
    p->chosen = proposal;
    mf_status status = MF_OK;
    float ms = 0.0f;
    for (int i = 0; i < t->warm && status == MF_OK; i++) {
        status = mf_gemm_cuda_run(p, &t->data[0], t->stream, e);
    }
    MF_CUDA_GOTO(cudaEventRecord(t->mark[0], t->stream), e);
    for (int i = 0; i < t->runs && status == MF_OK; i++) {
        status = mf_gemm_cuda_run(p, &t->data[(i + 1) % t->sets], t->stream, e);
    }
    if (status != MF_OK) {
        goto out;
    }
    MF_CUDA_GOTO(cudaEventRecord(t->mark[1], t->stream), e);
    MF_CUDA_GOTO(cudaEventSynchronize(t->mark[1]), e);
    MF_CUDA_GOTO(cudaEventElapsedTime(&ms, t->mark[0], t->mark[1]), e);
    *time_s = (double)ms * 1e-3 / t->runs;
out:
    return status;
}

/* One look at every proposal, as far as time goes: time_s [*looked]. */
static mf_status look_at_all(gemm_trial *t, double *time_s, int *looked, mf_err *e) {
    double spent_s = 0.0;
    mf_status status = time_runs(t, 0, &time_s[0], e);
    if (status == MF_OK) { /* the first one tells how long a run is */
        const double wanted = tune_target_s / time_s[0];
        t->runs = wanted > TUNE_RUNS_MAX ? TUNE_RUNS_MAX : wanted < 1.0 ? 1 : (int)wanted;
    }
    const int all = t->plan->candidates;
    for (int i = 0; status == MF_OK && i < all && (i < TUNE_LOOKS_MIN || spent_s < t->most_s);
         i++) {
        status = time_runs(t, i, &time_s[i], e);
        spent_s += (t->warm + t->runs) * time_s[i];
        *looked = i + 1;
    }
    return status;
}

/* The fastest of the few that may be it, timed in turns. */
static mf_status run_finals(const gemm_trial *t, const mf_gemm_autotune *finals, int *winner,
                            double *best_s, mf_err *e) {
    mf_gemm_rounds rounds;
    mf_status status = MF_OK;
    for (int round = 0; round < finals->rounds; round++) {
        for (int place = 0; place < finals->count && status == MF_OK; place++) {
            const int i = mf_gemm_turn(finals, round, place);
            status = time_runs(t, finals->proposal[i], &rounds.time_s[i][round], e);
        }
    }
    if (status == MF_OK) {
        *winner = finals->proposal[mf_gemm_winner(finals, &rounds, best_s)];
    }
    return status;
}

/* --- at the power cap --------------------------------------------------------------------------
 */

static const double cap_from_s = 0.5e-3; /* shorter products are seldom what a step is made of */
static const double cap_lead_s = 30e-3;  /* until the clock has come to rest */
static const double cap_timed_s = 60e-3;

static int runs_in(double time_s, double run_s) {
    return run_s > time_s ? 1 : (int)(time_s / run_s);
}

/* One look at each that may be fastest, as long as the clock takes to come to rest. */
static mf_status look_at_cap(gemm_trial *t, const double *time_s, int looked, int *winner,
                             double *best_s, mf_err *e) {
    const mf_gemm_autotune finals = mf_gemm_autotune_at_cap(time_s, looked);
    mf_gemm_rounds rounds;
    mf_status status = MF_OK;
    for (int i = 0; i < finals.count && status == MF_OK; i++) {
        const double run_s = time_s[finals.proposal[i]];
        t->warm = runs_in(cap_lead_s, run_s);
        t->runs = runs_in(cap_timed_s, run_s);
        status = time_runs(t, finals.proposal[i], &rounds.time_s[i][0], e);
    }
    if (status == MF_OK) {
        *winner = finals.proposal[mf_gemm_winner(&finals, &rounds, best_s)];
    }
    return status;
}

typedef enum tune_for { FOR_RESTED, FOR_STEPS } tune_for;

static mf_status tune(mf_gemm_cuda *p, const mf_gemm_cuda_data *data, int sets, void *stream,
                      tune_for what, double *best_s, mf_err *e) {
    gemm_trial t = {.plan = p,
                    .data = data,
                    .sets = sets,
                    .warm = 1,
                    .runs = 2,
                    .most_s = what == FOR_STEPS ? steps_most_s : tune_most_s,
                    .stream = (cudaStream_t)stream};
    mf_status status = MF_OK;
    double time_s[MF_GEMM_CANDIDATES], best = 0.0;
    int winner = 0, looked = 0;
    MF_CUDA_GOTO(cudaEventCreate(&t.mark[0]), e);
    MF_CUDA_GOTO(cudaEventCreate(&t.mark[1]), e);
    status = look_at_all(&t, time_s, &looked, e);
    if (status == MF_OK && what == FOR_STEPS && time_s[0] >= cap_from_s) {
        status = look_at_cap(&t, time_s, looked, &winner, &best, e);
    } else if (status == MF_OK) {
        t.warm = time_s[0] > tune_long_s ? 0 : 1; /* all have run before */
        const mf_gemm_autotune finals = mf_gemm_autotune_of(time_s, looked, t.warm + t.runs);
        status = run_finals(&t, &finals, &winner, &best, e);
    }
    if (status == MF_OK && best_s != NULL) {
        *best_s = best;
    }
out:
    p->chosen = winner;
    for (int i = 0; i < 2; i++) {
        if (t.mark[i] != NULL) {
            (void)cudaEventDestroy(t.mark[i]);
        }
    }
    return status;
}

mf_status mf_gemm_cuda_tune(mf_gemm_cuda *p, const mf_gemm_cuda_data *data, int sets, void *stream,
                            double *best_s, mf_err *e) {
    return tune(p, data, sets, stream, FOR_RESTED, best_s, e);
}

mf_status mf_gemm_cuda_tune_for_steps(mf_gemm_cuda *p, const mf_gemm_cuda_data *data, void *stream,
                                      mf_err *e) {
    return tune(p, data, 1, stream, FOR_STEPS, NULL, e);
}

/* --- remembering ------------------------------------------------------------------------------ */

/* Where the choice keeps each attribute that cuBLASLt tells of an algorithm. */
static const struct attribute {
    cublasLtMatmulAlgoConfigAttributes_t id;
    size_t offset, size_B;
} attributes[] = {
    {CUBLASLT_ALGO_CONFIG_ID, offsetof(mf_gemm_choice, algorithm), 4},
    {CUBLASLT_ALGO_CONFIG_TILE_ID, offsetof(mf_gemm_choice, tile), 4},
    {CUBLASLT_ALGO_CONFIG_STAGES_ID, offsetof(mf_gemm_choice, stages), 4},
    {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, offsetof(mf_gemm_choice, split_k), 4},
    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, offsetof(mf_gemm_choice, reduction), 4},
    {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, offsetof(mf_gemm_choice, swizzle), 4},
    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, offsetof(mf_gemm_choice, inner_shape), 2},
    {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, offsetof(mf_gemm_choice, cluster), 2},
    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, offsetof(mf_gemm_choice, custom), 4},
};

/* The library and the GPU that a choice of this process belongs to. */
static mf_status name_place(mf_gemm_choice *c, mf_err *e) {
    int device = 0, major = 0, minor = 0;
    char version[16];
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), e);
    mf_gemm_cuda_version(version, sizeof version);
    snprintf(c->library, sizeof c->library, "cublas-%s", version);
    snprintf(c->gpu, sizeof c->gpu, "sm_%d%d", major, minor);
    return MF_OK;
}

mf_status mf_gemm_cuda_choice(const mf_gemm_cuda *p, mf_gemm_choice *out, mf_err *e) {
    const cublasLtMatmulAlgo_t *algo = &p->algo[p->chosen];
    _Static_assert(sizeof out->state == sizeof *algo, "the state is cuBLASLt's whole description");
    memset(out, 0, sizeof *out);
    mf_status status = name_place(out, e);
    for (size_t i = 0; status == MF_OK && i < sizeof attributes / sizeof attributes[0]; i++) {
        const struct attribute *a = &attributes[i];
        size_t written;
        TRY(cublasLtMatmulAlgoConfigGetAttribute(algo, a->id, (char *)out + a->offset, a->size_B,
                                                 &written));
    }
    memcpy(out->state, algo, sizeof out->state);
out:
    return status;
}

mf_status mf_gemm_cuda_use(mf_gemm_cuda *p, const mf_gemm_choice *choice, mf_err *e) {
    mf_gemm_choice here;
    cublasLtMatmulAlgo_t algo;
    cublasLtMatmulHeuristicResult_t checked;
    mf_status status = name_place(&here, e);
    if (status != MF_OK) {
        return status;
    }
    if (strcmp(here.library, choice->library) != 0 || strcmp(here.gpu, choice->gpu) != 0) {
        return mf_err_set(e, MF_INPUT, "an algorithm of %s on %s was remembered, this is %s on %s",
                          choice->library, choice->gpu, here.library, here.gpu);
    }
    memcpy(&algo, choice->state, sizeof algo);
    cublasStatus_t result =
        cublasLtMatmulAlgoCheck(p->library, p->product, p->b, p->a, p->c, p->c, &algo, &checked);
    if (result != CUBLAS_STATUS_SUCCESS) {
        return mf_err_set(e, MF_INPUT, "cuBLASLt refuses a remembered algorithm: %s",
                          cublasLtGetStatusString(result));
    }
    if (checked.workspaceSize > p->workspace_B) {
        return mf_err_set(e, MF_INPUT, "a remembered algorithm needs %zu bytes of %zu",
                          checked.workspaceSize, p->workspace_B);
    }
    p->chosen = p->candidates < MF_GEMM_CANDIDATES ? p->candidates++ : MF_GEMM_CANDIDATES - 1;
    p->algo[p->chosen] = algo;
    return MF_OK;
}
