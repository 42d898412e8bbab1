/* Heads that are moved and turned in one pass: the same bits as copies, packing and rotations in
 * place, one after the other. The gate's product and its gradients likewise. */
#include "tests/support/kernel_test.h"
#include "tests/support/rope_table.h"

#include "kernels/attention/mla.h"
#include "kernels/attention/mla_rope.h"
#include "kernels/attention/rope.h"
#include "kernels/attention/rope_split.h"
#include "kernels/moe/gate.h"
#include "kernels/rows/cast.h"

#define ROWS 7
#define POSITIONS 50

static const mf_kernel_dtype types[] = {MF_KERNEL_F32, MF_KERNEL_BF16};

typedef struct angles {
    int32_t positions[ROWS];
    float *cos, *sin;
} angles;

static angles angles_of(int64_t rot_dim) {
    angles a = {.cos = kt_zeros((size_t)(POSITIONS * rot_dim / 2) * sizeof(float)),
                .sin = kt_zeros((size_t)(POSITIONS * rot_dim / 2) * sizeof(float))};
    plain_rope_table(10000.0, rot_dim, POSITIONS, a.cos, a.sin);
    for (int r = 0; r < ROWS; r++) {
        a.positions[r] = (int32_t)kt_int(0, POSITIONS - 1);
    }
    return a;
}

static void free_angles(angles *a) {
    free(a->cos), free(a->sin);
}

static void *at(void *p, mf_kernel_dtype d, int64_t i) {
    return mf_kernel_row_mut(p, d, i, 1);
}

static void copy(mf_kernel_dtype d, int64_t cols, const void *from, int64_t from_stride, void *to,
                 int64_t to_stride) {
    const mf_kernel_copy_rows a = {.dtype = d,
                                   .rows = ROWS,
                                   .cols = cols,
                                   .src_stride = from_stride,
                                   .dst_stride = to_stride,
                                   .src = from,
                                   .dst = to};
    assert_ok(mf_kernel_copy_rows_strided(&a, NULL));
}

static void turn(mf_kernel_dtype d, const angles *w, int64_t rot_dim, bool interleaved,
                 bool inverse, int64_t heads, int64_t row_stride, int64_t head_stride, void *x) {
    const mf_kernel_rope a = {.dtype = d,
                              .rows = ROWS,
                              .heads = heads,
                              .rot_dim = rot_dim,
                              .row_stride = row_stride,
                              .head_stride = head_stride,
                              .interleaved = interleaved,
                              .inverse = inverse,
                              .positions = w->positions,
                              .cos = w->cos,
                              .sin = w->sin,
                              .x = x};
    assert_ok(mf_kernel_rope_apply(&a, NULL));
}

static void add(mf_kernel_dtype d, int64_t n, void *y, const void *more) {
    const mf_kernel_add a = {.dtype = d, .count = n, .a = y, .b = more, .y = y};
    assert_ok(mf_kernel_add_values(&a, NULL));
}

static void same(const void *got, const void *want, mf_kernel_dtype d, int64_t n) {
    assert_memory_equal(got, want, (size_t)n * mf_kernel_dtype_B(d));
}

/* --- a fused projection ------------------------------------------------------------------------
 */

typedef struct split_case {
    mf_kernel_rope_shape shape;
    angles w;
    int64_t cols[3], at[3], n; /* columns of q, k, v; n: elements of a joined tensor */
} split_case;

static split_case split_of(mf_kernel_dtype d, int64_t heads, int64_t kv, int64_t dim, int64_t rot,
                           bool interleaved) {
    split_case k = {.w = angles_of(rot),
                    .cols = {heads * dim, kv * dim, kv * dim},
                    .at = {0, heads * dim, (heads + kv) * dim},
                    .n = ROWS * (heads + 2 * kv) * dim};
    k.shape = (mf_kernel_rope_shape){.dtype = d,
                                     .rows = ROWS,
                                     .heads = heads,
                                     .kv_heads = kv,
                                     .head_dim = dim,
                                     .rot_dim = rot,
                                     .joined_stride = k.n / ROWS,
                                     .interleaved = interleaved,
                                     .cos = k.w.cos,
                                     .sin = k.w.sin};
    return k;
}

static void split_meets_the_chain(split_case *k) {
    const mf_kernel_rope_shape *s = &k->shape;
    mf_kernel_dtype d = s->dtype;
    void *joined = kt_random(d, k->n, -2, 2, NULL), *got[3], *want[3];
    for (int i = 0; i < 3; i++) {
        got[i] = kt_poison((size_t)k->n * 4), want[i] = kt_poison((size_t)k->n * 4);
        copy(d, k->cols[i], at(joined, d, k->at[i]), s->joined_stride, want[i], k->cols[i]);
        if (i < 2) {
            turn(d, &k->w, s->rot_dim, s->interleaved, false, k->cols[i] / s->head_dim, k->cols[i],
                 s->head_dim, want[i]);
        }
    }
    mf_kernel_rope_split f = {.shape = *s, .joined = joined, .q = got[0], .k = got[1], .v = got[2]};
    assert_ok(mf_kernel_rope_split_run(&f, NULL));
    for (int i = 0; i < 3; i++) {
        same(got[i], want[i], d, ROWS * k->cols[i]);
        memset(got[i], 0xff, (size_t)(ROWS * k->cols[i]) * mf_kernel_dtype_B(d));
    }
    f.q = f.v = NULL; /* keys alone */
    assert_ok(mf_kernel_rope_split_run(&f, NULL));
    same(got[1], want[1], d, ROWS * k->cols[1]);
    for (int i = 0; i < 3; i++) {
        free(got[i]), free(want[i]);
    }
    free(joined);
}

static void join_meets_the_chain(split_case *k, bool with_add) {
    const mf_kernel_rope_shape *s = &k->shape;
    mf_kernel_dtype d = s->dtype;
    void *from[3], *got = kt_poison((size_t)k->n * 4), *want = kt_poison((size_t)k->n * 4);
    void *more = kt_random(d, k->n, -2, 2, NULL);
    for (int i = 0; i < 3; i++) {
        from[i] = kt_random(d, ROWS * k->cols[i], -2, 2, NULL);
        void *part = at(want, d, k->at[i]);
        copy(d, k->cols[i], from[i], k->cols[i], part, s->joined_stride);
        if (i < 2) {
            turn(d, &k->w, s->rot_dim, s->interleaved, true, k->cols[i] / s->head_dim,
                 s->joined_stride, s->head_dim, part);
        }
    }
    if (with_add) {
        add(d, k->n, want, more);
    }
    mf_kernel_rope_join b = {.shape = *s,
                             .dq = from[0],
                             .dk = from[1],
                             .dv = from[2],
                             .add = with_add ? more : NULL,
                             .djoined = got};
    assert_ok(mf_kernel_rope_join_run(&b, NULL));
    same(got, want, d, k->n);
    if (with_add) { /* in place */
        b.djoined = more;
        assert_ok(mf_kernel_rope_join_run(&b, NULL));
        same(more, want, d, k->n);
    }
    for (int i = 0; i < 3; i++) {
        free(from[i]);
    }
    free(more), free(got), free(want);
}

static void split_and_join_give_the_bits_of_copies_and_rotations(void **state) {
    (void)state;
    static const int64_t shapes[][4] = {
        {4, 2, 16, 16}, {3, 3, 10, 6}, {5, 1, 8, 4}, {2, 1, 12, 12}};
    for (int i = 0; i < 4 * 2 * 2; i++) {
        const int64_t *n = shapes[i / 4];
        split_case k = split_of(types[i / 2 % 2], n[0], n[1], n[2], n[3], i % 2 == 1);
        k.shape.positions = k.w.positions;
        split_meets_the_chain(&k);
        join_meets_the_chain(&k, false);
        join_meets_the_chain(&k, true);
        free_angles(&k.w);
    }
}

/* --- latent attention --------------------------------------------------------------------------
 */

#define HEADS 5
#define NOPE 6
#define ROPE 4
#define VDIM 3
#define RANK 7
#define QK (NOPE + ROPE)
#define WIDE (NOPE + VDIM)
#define LATENT (RANK + ROPE)

static mf_kernel_mla_shape mla_of(mf_kernel_dtype d, const angles *w, bool interleaved) {
    return (mf_kernel_mla_shape){.dtype = d,
                                 .rows = ROWS,
                                 .heads = HEADS,
                                 .nope = NOPE,
                                 .rope = ROPE,
                                 .v_dim = VDIM,
                                 .interleaved = interleaved,
                                 .positions = w->positions,
                                 .cos = w->cos,
                                 .sin = w->sin};
}

static void mla_forward_meets_the_chain(mf_kernel_dtype d, bool pairs) {
    const int64_t nq = ROWS * HEADS * QK, nv = ROWS * HEADS * VDIM;
    angles w = angles_of(ROPE);
    void *q = kt_random(d, nq, -2, 2, NULL), *kv = kt_random(d, ROWS * HEADS * WIDE, -2, 2, NULL);
    void *latent = kt_random(d, ROWS * LATENT, -2, 2, NULL), *want[3], *got[3];
    for (int i = 0; i < 3; i++) {
        want[i] = kt_poison((size_t)nq * 4), got[i] = kt_poison((size_t)nq * 4);
    }
    copy(d, HEADS * QK, q, HEADS * QK, want[0], HEADS * QK);
    const mf_kernel_mla pack = {.dtype = d,
                                .rows = ROWS,
                                .heads = HEADS,
                                .nope = NOPE,
                                .rope = ROPE,
                                .v_dim = VDIM,
                                .rope_stride = LATENT,
                                .kv = kv,
                                .k_rope = at(latent, d, RANK),
                                .k = want[1],
                                .v = want[2]};
    assert_ok(mf_kernel_mla_pack(&pack, NULL));
    for (int i = 0; i < 2; i++) {
        turn(d, &w, ROPE, pairs, false, HEADS, HEADS * QK, QK, at(want[i], d, NOPE));
    }
    mf_kernel_mla_rope f = {.shape = mla_of(d, &w, pairs),
                            .rope_stride = LATENT,
                            .q = q,
                            .kv = kv,
                            .k_rope = at(latent, d, RANK),
                            .q_out = got[0]};
    assert_ok(mf_kernel_mla_rope_forward(&f, NULL)); /* queries alone, then the rest */
    f.q_out = NULL, f.k_out = got[1], f.v_out = got[2];
    assert_ok(mf_kernel_mla_rope_forward(&f, NULL));
    same(got[0], want[0], d, nq), same(got[1], want[1], d, nq), same(got[2], want[2], d, nv);
    f.q_out = q; /* where they stand */
    assert_ok(mf_kernel_mla_rope_forward(&f, NULL));
    same(q, want[0], d, nq), same(got[1], want[1], d, nq);
    for (int i = 0; i < 3; i++) {
        free(got[i]), free(want[i]);
    }
    free(q), free(kv), free(latent), free_angles(&w);
}

static void mla_gradient_meets_the_chain(mf_kernel_dtype d, bool pairs, bool with_add) {
    const int64_t n[3] = {ROWS * HEADS * QK, ROWS * HEADS * WIDE, ROWS * LATENT};
    angles w = angles_of(ROPE);
    void *dq = kt_random(d, n[0], -2, 2, NULL), *dk = kt_random(d, n[0], -2, 2, NULL);
    void *dv = kt_random(d, ROWS * HEADS * VDIM, -2, 2, NULL), *want[3], *got[3], *more[3];
    for (int i = 0; i < 3; i++) {
        want[i] = kt_zeros((size_t)n[i] * 4), got[i] = kt_poison((size_t)n[i] * 4);
        more[i] = kt_random(d, n[i], -2, 2, NULL);
    }
    copy(d, HEADS * QK, dq, HEADS * QK, want[0], HEADS * QK);
    turn(d, &w, ROPE, pairs, true, HEADS, HEADS * QK, QK, at(want[0], d, NOPE));
    const mf_kernel_mla_grad unpack = {.dtype = d,
                                       .rows = ROWS,
                                       .heads = HEADS,
                                       .nope = NOPE,
                                       .rope = ROPE,
                                       .v_dim = VDIM,
                                       .rope_stride = LATENT,
                                       .dk = dk,
                                       .dv = dv,
                                       .dkv = want[1],
                                       .dk_rope = at(want[2], d, RANK)};
    assert_ok(mf_kernel_mla_unpack_grad(&unpack, NULL));
    turn(d, &w, ROPE, pairs, true, 1, LATENT, 0, at(want[2], d, RANK));
    for (int i = 0; with_add && i < 3; i++) {
        add(d, n[i], want[i], more[i]);
    }
    mf_kernel_mla_rope_grad b = {.shape = mla_of(d, &w, pairs),
                                 .kv_rank = RANK,
                                 .dq = dq,
                                 .dk = dk,
                                 .dv = dv,
                                 .add_q = with_add ? more[0] : NULL,
                                 .add_kv = with_add ? more[1] : NULL,
                                 .add_latent = with_add ? more[2] : NULL,
                                 .dq_in = got[0],
                                 .dkv = got[1],
                                 .dlatent = got[2]};
    assert_ok(mf_kernel_mla_rope_backward(&b, NULL));
    for (int i = 0; i < 3; i++) {
        same(got[i], want[i], d, n[i]);
    }
    if (!with_add) {
        b.dq_in = dq;
        assert_ok(mf_kernel_mla_rope_backward(&b, NULL));
        same(dq, want[0], d, n[0]);
    }
    for (int i = 0; i < 3; i++) {
        free(got[i]), free(want[i]), free(more[i]);
    }
    free(dq), free(dk), free(dv), free_angles(&w);
}

static void latent_heads_give_the_bits_of_packing_and_rotations(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        mla_forward_meets_the_chain(types[i / 2], i % 2 == 1);
        mla_gradient_meets_the_chain(types[i / 2], i % 2 == 1, false);
        mla_gradient_meets_the_chain(types[i / 2], i % 2 == 1, true);
    }
}

/* --- the gate ----------------------------------------------------------------------------------
 */

#define COLS 33

static void the_gate_product_matches_double_and_its_chain(void **state) {
    (void)state;
    for (int t = 0; t < 4; t++) {
        mf_kernel_dtype d = types[t / 2];
        double wide[ROWS * COLS], weights[COLS], logits[ROWS], sums[COLS], gates[ROWS];
        void *x = kt_random(d, ROWS * COLS, -1, 1, wide), *w = kt_random(d, COLS, -1, 1, weights);
        void *more = kt_random(d, ROWS * COLS, -1, 1, NULL), *want = kt_zeros(ROWS * COLS * 4);
        float *dgate = kt_random(MF_KERNEL_F32, ROWS, -1, 1, gates), gate[ROWS];
        float *dw = kt_random(MF_KERNEL_F32, COLS, -1, 1, sums);
        void *dx = kt_poison(ROWS * COLS * 4);
        for (int r = 0; r < ROWS; r++) {
            logits[r] = 0.0;
            for (int c = 0; c < COLS; c++) {
                logits[r] += wide[r * COLS + c] * weights[c];
                sums[c] += gates[r] * wide[r * COLS + c];
                mf_kernel_put(want, d, r * COLS + c, dgate[r] * mf_kernel_get(w, d, c));
            }
        }
        if (t % 2) {
            add(d, ROWS * COLS, want, more);
        }
        const mf_kernel_gate_logit f = {
            .dtype = d, .rows = ROWS, .cols = COLS, .x = x, .weight = w, .gate = gate};
        assert_ok(mf_kernel_gate_logits(&f, NULL));
        kt_assert_close(gate, MF_KERNEL_F32, logits, ROWS, 1e-6);
        const mf_kernel_gate_input_grad b = {.dtype = d,
                                             .rows = ROWS,
                                             .cols = COLS,
                                             .dgate = dgate,
                                             .x = x,
                                             .weight = w,
                                             .add = t % 2 ? more : NULL,
                                             .dx = dx,
                                             .dweight = dw};
        assert_ok(mf_kernel_gate_input_backward(&b, NULL));
        same(dx, want, d, ROWS * COLS);
        kt_assert_close(dw, MF_KERNEL_F32, sums, COLS, 1e-6);
        free(x), free(w), free(more), free(want), free(dgate), free(dw), free(dx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_and_join_give_the_bits_of_copies_and_rotations),
        cmocka_unit_test(latent_heads_give_the_bits_of_packing_and_rotations),
        cmocka_unit_test(the_gate_product_matches_double_and_its_chain),
    };
    kt_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
