/* Lowering: what the fields of ops, tensors and blocks say is so. */
#include "core/program/lower.h"
#include "core/program/row_map.h"
#include "tests/support/models.h"
#include "tests/support/test.h"

#include <stdbool.h>

static int bits(unsigned x) {
    int n = 0;
    for (; x != 0; x &= x - 1) {
        n++;
    }
    return n;
}

static bool alike(const mf_block *b, int16_t x, int16_t y) {
    return b->tensors[x].rows == b->tensors[y].rows && b->tensors[x].cols == b->tensors[y].cols;
}

/* The last op before `end` that writes t. */
static const mf_op *writer_of(const mf_block *b, int16_t t, int end) {
    for (int i = end - 1; i >= 0; i--) {
        for (int k = 0; k < b->ops[i].nout; k++) {
            if (b->ops[i].out[k] == t) {
                return &b->ops[i];
            }
        }
    }
    return NULL;
}

/* A ring's message waits for attention and for nothing else, a combine for weight gradients of
 * experts, all others for gathers. */
static void check_mark(const mf_block *b, const mf_op *op, int k) {
    bool ring = op->kind == MF_OP_SEND_RECV && op->stream == MF_STREAM_CP;
    bool combine = op->kind == MF_OP_COMBINE;
    bool mark = k >= op->nin - op->marks;
    assert_int_equal(b->tensors[op->in[k]].gather_mark, mark && !ring && !combine);
    if (mark && (ring || combine)) {
        const mf_op *writer = writer_of(b, op->in[k], (int)(op - b->ops));
        assert_int_equal(op->marks, 1);
        assert_non_null(writer);
        if (combine) {
            assert_int_equal(writer->kind, MF_OP_GROUPED_GEMM);
            assert_int_equal(writer->pass, MF_PASS_W);
            assert_int_equal(op->pass, MF_PASS_B);
        } else if (writer->kind != MF_OP_ATTENTION_FWD) {
            assert_int_equal(writer->kind, MF_OP_ATTENTION_BWD);
        }
    }
}

/* Operands, then partial sums in the order of their outputs, then marks. */
static void check_inputs(const mf_block *b, const mf_op *op) {
    int next = op->nin - op->marks - bits(op->sums);
    assert_at_least(next, 0);
    for (int k = 0; k < op->nin; k++) {
        check_mark(b, op, k);
    }
    assert_true(op->sums >> op->nout == 0);
    for (int k = 0; k < op->nout; k++) {
        if (op->sums >> k & 1) {
            assert_int_equal(op->pass, MF_PASS_B);
            assert_true(alike(b, op->in[next++], op->out[k]));
        }
    }
}

/* What is made again is what the forward op made. */
static void check_made(const mf_block *b, const mf_op *op) {
    const mf_op *f = op->pass == MF_PASS_R ? &b->ops[op->forward] : op;
    assert_int_equal(bits(op->makes), op->pass == MF_PASS_R ? op->nout : 0);
    for (int k = 0, of = 0; k < op->nout && op->pass == MF_PASS_R; k++, of++) {
        while (!(op->makes >> of & 1)) {
            of++;
        }
        assert_below(of, f->nout);
        assert_true(alike(b, op->out[k], f->out[of]));
    }
}

/* Gradients and recomputation say what the forward op says. */
static void check_meaning(const mf_model *m, const mf_block *b, const mf_op *op) {
    bool norm = op->kind == MF_OP_RMSNORM_FWD || op->kind == MF_OP_RMSNORM_BWD ||
                op->kind == MF_OP_NORM_SUM;
    bool product = op->kind == MF_OP_GEMM || op->kind == MF_OP_GROUPED_GEMM;
    const mf_op *f = op->forward >= 0 ? &b->ops[op->forward] : op;
    assert_true(norm == (op->eps > 0.0f));
    assert_true(norm || op->norm_scope == MF_NORM_ROW);
    if (norm || product || op->kind == MF_OP_BIAS_BWD) {
        assert_true(op->norm_scope == f->norm_scope);
        assert_true(op->bias_owner == f->bias_owner);
        assert_close(op->eps, f->eps, 0);
    }
    if (norm && op->norm_scope != MF_NORM_ROW) {
        assert_int_equal(op->norm_scope, m->qk_norm_full ? MF_NORM_QK_ROWS : MF_NORM_HEADS);
    }
    assert_true(op->reduce == MF_REDUCE_SUM || op->kind == MF_OP_ALL_REDUCE);
    assert_int_equal(op->step_end, MF_STEP_END_NONE);
}

static void check_boundary(const mf_block *b) {
    const int16_t at[4] = {b->input, b->output, b->output_gradient, b->input_gradient};
    for (int i = 0; i < 4; i++) {
        int class = at[i] < 0 ? MF_TENSOR_BOUNDARY : b->tensors[at[i]].class;
        if (i > 0 || class != MF_TENSOR_SAVED) { /* the input alone may be saved, too */
            assert_int_equal(class, MF_TENSOR_BOUNDARY);
        }
    }
    assert_int_equal(b->input < 0, b->input_gradient < 0);
    assert_true(b->output < 0 || b->output_gradient >= 0);
    for (int16_t t = 0; t < b->ntensors; t++) {
        const mf_tensor *x = &b->tensors[t];
        assert_true(x->table == MF_TABLE_NONE || x->class == MF_TENSOR_WEIGHT);
        bool table = x->part == MF_PART_EMBEDDING || x->part == MF_PART_HEAD;
        assert_true(!table || x->class != MF_TENSOR_WEIGHT || x->table != MF_TABLE_NONE);
    }
}

/* Each op of pass O is another one, in the order in which they stand. */
static void check_once(const mf_program *p) {
    for (int64_t s = 0; s < p->layout.pp; s++) {
        mf_op ops[MF_STEP_END_MAX];
        int n = mf_program_optimizer(p, s, ops, MF_STEP_END_MAX);
        for (int i = 0; i < n; i++) {
            assert_above(ops[i].step_end, (i > 0 ? ops[i - 1].step_end : MF_STEP_END_NONE));
            assert_below(ops[i].step_end, MF_STEP_END_OPS);
        }
    }
}

static mf_model random_model(rng *r, int i) {
    mf_model m = i % 3 == 2 ? test_model_dense() : test_model_moe(i % 3 == 1);
    m.rms_norm_eps = 1e-5;
    m.ffn_bias = rng_range(r, 0, 1);
    m.o_bias = rng_range(r, 0, 1);
    m.tied_embeddings = rng_range(r, 0, 1);
    m.mtp_layers = (int)rng_range(r, 0, 2);
    if (m.attn == MF_ATTN_GQA) {
        int64_t kind = rng_range(r, 0, 2);
        m.qk_norm = kind == 1;
        m.qk_norm_full = kind == 2;
    }
    return m;
}

static void op_fields_match_the_ops(void **state) {
    (void)state;
    rng r = rng_init(5);
    mf_cluster c = test_cluster();
    for (int i = 0; i < 300; i++) {
        mf_model m = random_model(&r, i);
        mf_layout l = test_random_layout(&r, &m, 256);
        mf_assignment a;
        mf_program *p;
        assert_ok(mf_assignment_even(&m, &l, &a, NULL));
        assert_ok(mf_program_lower(&m, &l, &c, &a, &p, NULL));
        for (int k = 0; k < p->nblocks; k++) {
            const mf_block *b = p->blocks[k];
            for (int j = 0; j < b->nops; j++) {
                check_inputs(b, &b->ops[j]);
                check_made(b, &b->ops[j]);
                check_meaning(&m, b, &b->ops[j]);
            }
            check_boundary(b);
        }
        check_once(p);
        mf_program_destroy(p);
    }
}

static void a_row_map_is_as_long_as_its_parts(void **state) {
    (void)state;
    int32_t data[64];
    const mf_row_map m = mf_row_map_of(data, 3, 10, 7);
    assert_ptr_equal(m.offsets, data);
    assert_ptr_equal(m.overflow, m.offsets + 4);
    assert_ptr_equal(m.counts, m.overflow + 1);
    assert_ptr_equal(m.slot_of_row, m.counts + 3);
    assert_ptr_equal(m.row_of_slot, m.slot_of_row + 10);
    assert_int_equal(m.row_of_slot + 7 - data, mf_row_map_elements(3, 10, 7));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(op_fields_match_the_ops),
        cmocka_unit_test(a_row_map_is_as_long_as_its_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
