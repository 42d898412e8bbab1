/* Attention reference against double precision and central differences: causal, grouped heads,
 * different v width, windows, sinks, packed sequences, zig-zag positions, ring steps. */
#include "tests/support/kernel_test.h"

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_merge.h"

enum { MAX_T = 300, MAX_H = 4, MAX_D = 8, MAX_V = 6, MAX_SEQ = 3 };

typedef struct setup {
    const char *name;
    int sequences, lengths[MAX_SEQ];
    int heads, kv_heads, qk_dim, v_dim, window;
    bool causal, sink;
} setup;

static const setup setups[] = {
    {"causal", 1, {9}, 2, 2, 4, 4, 0, true, false},
    {"grouped, packed", 3, {5, 1, 7}, 4, 2, 4, 4, 0, true, false},
    {"v width", 2, {6, 3}, 2, 2, 8, 6, 0, true, false},
    {"window and sink", 2, {8, 5}, 4, 1, 4, 4, 3, true, true},
    {"full", 1, {6}, 2, 1, 4, 4, 0, false, false},
    {"several blocks", 1, {290}, 1, 1, 4, 2, 150, true, false},
};
enum { SETUPS = sizeof setups / sizeof setups[0] };

typedef struct model {
    const setup *set;
    int rows;
    int32_t cu[MAX_SEQ + 1];
    double q[MAX_T * MAX_H * MAX_D], k[MAX_T * MAX_H * MAX_D], v[MAX_T * MAX_H * MAX_V];
    double d_o[MAX_T * MAX_H * MAX_V], o[MAX_T * MAX_H * MAX_V], sink[MAX_H];
    double lse[MAX_T * MAX_H];
} model;

static double scale_of(const setup *s) {
    return 1.3 / sqrt(s->qk_dim);
}

static void model_row(model *m, int first, int end, int row, int h) {
    const setup *s = m->set;
    int kvh = h / (s->heads / s->kv_heads);
    double sum = s->sink ? exp(m->sink[h]) : 0.0, o[MAX_V] = {0};
    for (int t = first; t < end; t++) {
        if ((s->causal && t > row) || (s->window && row - t >= s->window)) {
            continue;
        }
        double score = 0.0;
        for (int c = 0; c < s->qk_dim; c++) {
            score += m->q[(row * s->heads + h) * s->qk_dim + c] *
                     m->k[(t * s->kv_heads + kvh) * s->qk_dim + c];
        }
        double p = exp(score * scale_of(s));
        sum += p;
        for (int c = 0; c < s->v_dim; c++) {
            o[c] += p * m->v[(t * s->kv_heads + kvh) * s->v_dim + c];
        }
    }
    for (int c = 0; c < s->v_dim; c++) {
        m->o[(row * s->heads + h) * s->v_dim + c] = o[c] / sum;
    }
    m->lse[h * m->rows + row] = log(sum);
}

static double model_loss(const double *unused, void *user) {
    (void)unused;
    model *m = user;
    double loss = 0.0;
    for (int i = 0; i < m->set->sequences; i++) {
        for (int row = m->cu[i]; row < m->cu[i + 1]; row++) {
            for (int h = 0; h < m->set->heads; h++) {
                model_row(m, m->cu[i], m->cu[i + 1], row, h);
            }
        }
    }
    for (int i = 0; i < m->rows * m->set->heads * m->set->v_dim; i++) {
        loss += m->o[i] * m->d_o[i];
    }
    return loss;
}

static mf_kernel_attention_shape shape_of(const model *m, mf_kernel_dtype d, const float *sink) {
    const setup *s = m->set;
    mf_kernel_attention_shape a = {.dtype = d,
                                   .sequences = s->sequences,
                                   .cu_q = m->cu,
                                   .cu_k = m->cu,
                                   .heads = s->heads,
                                   .kv_heads = s->kv_heads,
                                   .qk_dim = s->qk_dim,
                                   .v_dim = s->v_dim,
                                   .causal = s->causal,
                                   .window = s->window,
                                   .scale = (float)scale_of(s),
                                   .q_row = (int64_t)s->heads * s->qk_dim,
                                   .q_head = s->qk_dim,
                                   .k_row = (int64_t)s->kv_heads * s->qk_dim,
                                   .k_head = s->qk_dim,
                                   .v_row = (int64_t)s->kv_heads * s->v_dim,
                                   .v_head = s->v_dim,
                                   .o_row = (int64_t)s->heads * s->v_dim,
                                   .o_head = s->v_dim,
                                   .sink = s->sink ? sink : NULL};
    return a;
}

static void check_setup(const setup *s, mf_kernel_dtype d) {
    model *m = kt_zeros(sizeof *m);
    m->set = s;
    for (int i = 0; i < s->sequences; i++) {
        m->cu[i + 1] = m->cu[i] + s->lengths[i];
    }
    m->rows = m->cu[s->sequences];
    int nq = m->rows * s->heads * s->qk_dim, nk = m->rows * s->kv_heads * s->qk_dim;
    int nv = m->rows * s->kv_heads * s->v_dim, no = m->rows * s->heads * s->v_dim;
    void *q = kt_random(d, nq, -1, 1, m->q), *k = kt_random(d, nk, -1, 1, m->k);
    void *v = kt_random(d, nv, -1, 1, m->v), *d_o = kt_random(d, no, -1, 1, m->d_o);
    float *sink = kt_random(MF_KERNEL_F32, MAX_H, -1, 1, m->sink);
    void *o = kt_poison(sizeof(float) * (size_t)no);
    float *lse = kt_poison(sizeof(float) * (size_t)(m->rows * s->heads));
    mf_kernel_attention f = {
        .shape = shape_of(m, d, sink), .q = q, .k = k, .v = v, .o_dtype = d, .o = o, .lse = lse};
    assert_ok(mf_kernel_attention_forward(&f, NULL));
    (void)model_loss(NULL, m);
    double bound = d == MF_KERNEL_BF16 ? 1e-2 : 2e-6;
    kt_assert_close(o, d, m->o, no, bound);
    kt_assert_close(lse, MF_KERNEL_F32, m->lse, m->rows * s->heads, 2e-6);

    float *dq = kt_poison(sizeof(float) * (size_t)nq), *dk = kt_poison(sizeof(float) * (size_t)nk);
    float *dv = kt_poison(sizeof(float) * (size_t)nv), dsink[MAX_H] = {0};
    void *work = kt_poison(mf_kernel_attention_workspace_B(m->rows, s->qk_dim, s->v_dim));
    mf_kernel_attention_grad b = {.shape = f.shape,
                                  .q = q,
                                  .k = k,
                                  .v = v,
                                  .o = o,
                                  .d_o = d_o,
                                  .lse = lse,
                                  .grad_dtype = MF_KERNEL_F32,
                                  .dq = dq,
                                  .dk = dk,
                                  .dv = dv,
                                  .dsink = s->sink ? dsink : NULL,
                                  .workspace = work};
    assert_ok(mf_kernel_attention_backward(&b, NULL));
    double *want = kt_doubles(nq + nk + nv + MAX_H);
    if (m->rows <= 32) { /* central differences cost rows^3 */
        kt_gradient(model_loss, m, m->q, nq, want);
        kt_gradient(model_loss, m, m->k, nk, want + nq);
        kt_gradient(model_loss, m, m->v, nv, want + nq + nk);
        bound = d == MF_KERNEL_BF16 ? 2e-2 : 5e-6;
        kt_assert_close(dq, MF_KERNEL_F32, want, nq, bound);
        kt_assert_close(dk, MF_KERNEL_F32, want + nq, nk, bound);
        kt_assert_close(dv, MF_KERNEL_F32, want + nq + nk, nv, bound);
    } else { /* the gradient along one direction: the values themselves */
        double keep = model_loss(NULL, m), dot = 0.0, step = 1e-6;
        for (int i = 0; i < nq; i++) {
            dot += (double)dq[i] * m->q[i];
            m->q[i] *= 1 + step;
        }
        for (int i = 0; i < nk; i++) {
            dot += 2.0 * (double)dk[i] * m->k[i];
            m->k[i] *= 1 + 2 * step;
        }
        for (int i = 0; i < nv; i++) {
            dot += 3.0 * (double)dv[i] * m->v[i];
            m->v[i] *= 1 + 3 * step;
        }
        double slope = (model_loss(NULL, m) - keep) / step;
        bound = d == MF_KERNEL_BF16 ? 5e-2 : 1e-3;
        assert_at_most(fabs(slope - dot), bound * (fabs(slope) + 1.0));
    }
    if (s->sink) {
        kt_gradient(model_loss, m, m->sink, s->heads, want);
        kt_assert_close(dsink, MF_KERNEL_F32, want, s->heads, d == MF_KERNEL_BF16 ? 2e-2 : 5e-6);
    }
    free(m), free(q), free(k), free(v), free(d_o), free(sink), free(o), free(lse);
    free(dq), free(dk), free(dv), free(work), free(want);
}

static void attention_matches_double_and_its_differences(void **state) {
    (void)state;
    for (int i = 0; i < SETUPS; i++) {
        check_setup(&setups[i], MF_KERNEL_F32);
        check_setup(&setups[i], MF_KERNEL_BF16);
    }
}

/* Two ranks hold zig-zag halves of one sequence: chunks (0, 3) and (1, 2). Each runs its queries
 * against its own keys and then against the other's, merges, and sums gradients over ring steps. */
enum { CHUNK = 3, RING_T = 4 * CHUNK, RING_H = 2, RING_D = 4, HALF = 2 * CHUNK };
typedef struct half {
    int32_t pos[HALF];
    float q[HALF * RING_H * RING_D], d_o[HALF * RING_H * RING_D];
    float k[HALF * RING_D], v[HALF * RING_D];
    float dk[HALF * RING_D], dv[HALF * RING_D]; /* summed over ring steps */
} half;

/* Rows of a half, `width` wide, out of those of the sequence. */
static void take_rows(float *to, const float *from, const int32_t *pos, int width) {
    for (int i = 0; i < HALF; i++) {
        memcpy(to + i * width, from + pos[i] * width, sizeof *to * (size_t)width);
    }
}

static void assert_rows(const float *got, const double *all, const int32_t *pos, int width,
                        double bound) {
    double want[HALF * RING_H * RING_D];
    for (int i = 0; i < HALF; i++) {
        memcpy(want + i * width, all + pos[i] * width, sizeof *want * (size_t)width);
    }
    kt_assert_close(got, MF_KERNEL_F32, want, HALF * width, bound);
}

/* The passes of rank r over both halves, its own first. want: the gradient of q. */
static void run_ring(const model *m, half *of, int r, const double *want) {
    enum { WIDTH = RING_H * RING_D };
    const mf_kernel_dtype d = MF_KERNEL_F32;
    const int32_t cu[2] = {0, HALF};
    float o[2][HALF * WIDTH], lse[2][RING_H * HALF], dq[HALF * WIDTH] = {0};
    float work[HALF * 2 * RING_D];
    mf_kernel_attention f = {.shape = shape_of(m, d, NULL), .q = of[r].q, .o_dtype = d};
    f.shape.cu_q = f.shape.cu_k = cu;
    f.shape.q_pos = of[r].pos;
    for (int step = 0; step < 2; step++) {
        const half *from = &of[(r + step) % 2];
        f.shape.k_pos = from->pos;
        f.k = from->k, f.v = from->v, f.o = o[step], f.lse = lse[step];
        assert_ok(mf_kernel_attention_forward(&f, NULL));
    }
    mf_kernel_attention_merge merge = {.rows = HALF,
                                       .heads = RING_H,
                                       .v_dim = RING_D,
                                       .o_row = WIDTH,
                                       .o_head = RING_D,
                                       .o = o[0],
                                       .lse = lse[0],
                                       .o2_dtype = d,
                                       .o2 = o[1],
                                       .lse2 = lse[1]};
    assert_ok(mf_kernel_attention_merge_run(&merge, NULL));
    assert_rows(o[0], m->o, of[r].pos, WIDTH, 2e-6);
    for (int step = 0; step < 2; step++) {
        half *from = &of[(r + step) % 2];
        mf_kernel_attention_grad b = {.shape = f.shape,
                                      .q = of[r].q,
                                      .k = from->k,
                                      .v = from->v,
                                      .o = o[0],
                                      .d_o = of[r].d_o,
                                      .lse = lse[0],
                                      .grad_dtype = d,
                                      .accumulate = true,
                                      .dq = dq,
                                      .dk = from->dk,
                                      .dv = from->dv,
                                      .workspace = work};
        b.shape.k_pos = from->pos;
        assert_ok(mf_kernel_attention_backward(&b, NULL));
    }
    assert_rows(dq, want, of[r].pos, WIDTH, 5e-6);
}

static void ring_steps_equal_the_whole_sequence(void **state) {
    (void)state;
    enum { WIDTH = RING_H * RING_D, Q = RING_T * WIDTH, KV = RING_T * RING_D };
    static const int chunks[2][2] = {{0, 3}, {1, 2}};
    const setup s = {"", 1, {RING_T}, RING_H, 1, RING_D, RING_D, 0, true, false};
    model *m = kt_zeros(sizeof *m);
    m->set = &s, m->rows = RING_T, m->cu[1] = RING_T;
    const mf_kernel_dtype d = MF_KERNEL_F32;
    float *q = kt_random(d, Q, -1, 1, m->q), *k = kt_random(d, KV, -1, 1, m->k);
    float *v = kt_random(d, KV, -1, 1, m->v), *g = kt_random(d, Q, -1, 1, m->d_o);
    (void)model_loss(NULL, m);
    half *of = kt_zeros(2 * sizeof *of);
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < HALF; i++) {
            of[r].pos[i] = chunks[r][i / CHUNK] * CHUNK + i % CHUNK;
        }
        take_rows(of[r].q, q, of[r].pos, WIDTH);
        take_rows(of[r].d_o, g, of[r].pos, WIDTH);
        take_rows(of[r].k, k, of[r].pos, RING_D);
        take_rows(of[r].v, v, of[r].pos, RING_D);
    }
    double *want = kt_doubles(Q + 2 * KV);
    kt_gradient(model_loss, m, m->q, Q, want);
    kt_gradient(model_loss, m, m->k, KV, want + Q);
    kt_gradient(model_loss, m, m->v, KV, want + Q + KV);
    for (int r = 0; r < 2; r++) {
        run_ring(m, of, r, want);
    }
    for (int r = 0; r < 2; r++) {
        assert_rows(of[r].dk, want + Q, of[r].pos, RING_D, 5e-6);
        assert_rows(of[r].dv, want + Q + KV, of[r].pos, RING_D, 5e-6);
    }
    free(m), free(q), free(k), free(v), free(g), free(want), free(of);
}

static void a_row_that_sees_no_key_gives_zero(void **state) {
    (void)state;
    const int32_t cu[2] = {0, 1}, q_pos[1] = {0}, k_pos[1] = {5};
    const float one[4] = {1, 1, 1, 1};
    float o[4] = {9, 9, 9, 9}, lse[1], dq[4], dk[4], dv[4], work[8];
    mf_kernel_attention f = {.shape = {.sequences = 1,
                                       .cu_q = cu,
                                       .cu_k = cu,
                                       .q_pos = q_pos,
                                       .k_pos = k_pos,
                                       .heads = 1,
                                       .kv_heads = 1,
                                       .qk_dim = 4,
                                       .v_dim = 4,
                                       .causal = true,
                                       .scale = 1.0f,
                                       .q_row = 4,
                                       .k_row = 4,
                                       .v_row = 4,
                                       .o_row = 4},
                             .q = one,
                             .k = one,
                             .v = one,
                             .o = o,
                             .lse = lse};
    assert_ok(mf_kernel_attention_forward(&f, NULL));
    mf_kernel_attention_grad b = {.shape = f.shape,
                                  .q = one,
                                  .k = one,
                                  .v = one,
                                  .o = o,
                                  .d_o = one,
                                  .lse = lse,
                                  .dq = dq,
                                  .dk = dk,
                                  .dv = dv,
                                  .workspace = work};
    assert_ok(mf_kernel_attention_backward(&b, NULL));
    assert_true(isinf(lse[0]));
    assert_below(lse[0], 0);
    for (int i = 0; i < 4; i++) {
        assert_true(o[i] == 0.0f);
        assert_true(dq[i] == 0.0f);
        assert_true(dk[i] == 0.0f);
        assert_true(dv[i] == 0.0f);
    }
}

int main(void) {
    kt_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_matches_double_and_its_differences),
        cmocka_unit_test(ring_steps_equal_the_whole_sequence),
        cmocka_unit_test(a_row_that_sees_no_key_gives_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
