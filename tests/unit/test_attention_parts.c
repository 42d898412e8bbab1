/* Attention over context-parallel ranks in the blocks that a GPU's library has: the reference
 * kernel stands in for the library and sees no positions, only blocks of consecutive rows. Layouts
 * of 2 and 4 ranks on a device that goes this way, against one rank. The program starts itself
 * again, once for each number of ranks. */
#include "executor/device/attention_parts.h"
#include "tests/support/grid_run.h"
#include "tests/support/sampled.h"

/* --- the device: the CPU's but for attention -----------------------------------------------------
 */

enum { MOST_ROWS = 4 * GRID_SEQ };

static mf_device_ops parts_ops;
static mf_device parts_device = {.ops = &parts_ops};
static mf_queue parts_queue = {.device = &parts_device};
static int32_t position[2 * MOST_ROWS];

static mf_queue *queue_of(mf_device *d, mf_stream stream) {
    (void)d, (void)stream;
    return &parts_queue;
}

static const void *element(const mf_attention_call *c, const void *p, int64_t rows, int64_t row) {
    return mf_kernel_row(p, c->shape->dtype, rows, row);
}

/* Sequence i of a call for the reference: one sequence, positions from where queries begin. */
static mf_kernel_attention_shape one_sequence(const mf_attention_call *c, int32_t cu[4]) {
    mf_kernel_attention_shape s = *c->shape;
    cu[0] = cu[2] = 0;
    cu[1] = (int32_t)c->seq_q;
    cu[3] = (int32_t)c->seq_k;
    s.sequences = 1;
    s.cu_q = cu;
    s.cu_k = cu + 2;
    s.causal = c->causal;
    s.window = c->causal && !s.chunked ? s.window : 0;
    s.chunked = false;
    s.q_pos = position + (c->causal ? c->seq_k - c->seq_q : 0);
    s.k_pos = position;
    return s;
}

static mf_status forward(mf_queue *q, const mf_attention_call *c, mf_err *e) {
    mf_status status = MF_OK;
    (void)q;
    for (int64_t i = 0; i < c->shape->sequences && status == MF_OK; i++) {
        int32_t cu[4];
        const mf_kernel_attention a = {
            .shape = one_sequence(c, cu),
            .q = element(c, c->q, i * c->rows_q, c->shape->q_row),
            .k = element(c, c->k, i * c->rows_k, c->shape->k_row),
            .v = element(c, c->v, i * c->rows_k, c->shape->v_row),
            .o_dtype = c->shape->dtype,
            .o = mf_kernel_row_mut(c->o, c->shape->dtype, i * c->rows_q, c->shape->o_row),
            .lse = c->lse != NULL ? c->lse + i * c->shape->heads * c->seq_q : NULL};
        status = mf_kernel_attention_forward(&a, e);
    }
    return status;
}

static mf_status backward(mf_queue *q, const mf_attention_call *c, mf_err *e) {
    const mf_kernel_dtype d = c->shape->dtype;
    mf_status status = MF_OK;
    (void)q;
    for (int64_t i = 0; i < c->shape->sequences && status == MF_OK; i++) {
        int32_t cu[4];
        const int64_t first_q = i * c->rows_q, first_k = i * c->rows_k;
        const mf_kernel_attention_grad a = {
            .shape = one_sequence(c, cu),
            .q = element(c, c->q, first_q, c->shape->q_row),
            .k = element(c, c->k, first_k, c->shape->k_row),
            .v = element(c, c->v, first_k, c->shape->v_row),
            .o = element(c, c->o, first_q, c->shape->o_row),
            .d_o = element(c, c->d_o, first_q, c->shape->o_row),
            .lse = c->lse + i * c->shape->heads * c->seq_q,
            .grad_dtype = d,
            .dq = mf_kernel_row_mut(c->dq, d, first_q, c->shape->q_row),
            .dk = mf_kernel_row_mut(c->dk, d, first_k, c->shape->k_row),
            .dv = mf_kernel_row_mut(c->dv, d, first_k, c->shape->v_row),
            .dsink = c->dsink,
            .workspace = c->workspace};
        assert_at_most(mf_kernel_attention_workspace_B(c->seq_k, c->shape->qk_dim, c->shape->v_dim),
                       c->workspace_B);
        status = mf_kernel_attention_backward(&a, e);
    }
    return status;
}

static mf_status attention(mf_queue *q, const mf_device_attention *a, mf_err *e) {
    return mf_attention_by_parts(q, a, forward, e);
}

static mf_status attention_grad(mf_queue *q, const mf_device_attention_grad *a, mf_err *e) {
    return mf_attention_grad_by_parts(q, a, backward, e);
}

static void open_device(void) {
    parts_ops = *mf_device_cpu()->ops;
    parts_ops.queue = queue_of;
    parts_ops.attention = attention;
    parts_ops.attention_grad = attention_grad;
    for (int32_t i = 0; i < 2 * MOST_ROWS; i++) {
        position[i] = i;
    }
    grid_device = &parts_device;
}

/* --- layouts ------------------------------------------------------------------------------------
 */

typedef struct spec {
    int model, ranks, tp, cp, ep, mbs;
    int type; /* mf_cp_type */
    uint8_t overlap;
    uint16_t recompute;
} spec;

enum { QWEN2, DEEPSEEK, QWEN3, MIXTRAL, LLAMA = 6 };
enum { RING = MF_CP_RING, GATHER = MF_CP_ALLGATHER, ULYSSES = MF_CP_ALLTOALL };
enum { BOTH = MF_CP_HIERARCHICAL, CUT = MF_OVERLAP_CP, AGAIN = MF_RECOMPUTE_CORE_ATTN };

static const spec specs[] = {
    /* model ranks tp cp ep mbs */
    {QWEN2, 2, 1, 2, 1, 1, RING, 0, 0},        {QWEN2, 2, 1, 2, 2, 2, RING, 0, AGAIN},
    {DEEPSEEK, 2, 1, 2, 1, 2, RING, 0, 0},     {QWEN2, 2, 1, 2, 2, 2, GATHER, 0, 0},
    {DEEPSEEK, 2, 1, 2, 1, 1, GATHER, 0, 0},   {LLAMA, 2, 1, 2, 1, 4, GATHER, CUT, AGAIN},
    {MIXTRAL, 2, 1, 2, 2, 2, ULYSSES, 0, 0},   {DEEPSEEK, 2, 1, 2, 1, 2, ULYSSES, CUT, 0},
    {LLAMA, 2, 1, 2, 1, 1, ULYSSES, CUT, 0},   {QWEN2, 4, 1, 4, 2, 2, RING, 0, 0},
    {DEEPSEEK, 4, 1, 4, 4, 1, RING, 0, AGAIN}, {LLAMA, 4, 2, 2, 1, 2, RING, 0, 0},
    {QWEN3, 4, 1, 4, 2, 2, GATHER, CUT, 0},    {DEEPSEEK, 4, 1, 4, 2, 2, GATHER, 0, 0},
    {LLAMA, 4, 1, 4, 1, 2, ULYSSES, 0, 0},     {DEEPSEEK, 4, 1, 4, 4, 2, ULYSSES, CUT, 0},
    {LLAMA, 4, 1, 4, 1, 2, BOTH, 0, 0},        {DEEPSEEK, 4, 1, 4, 2, 1, BOTH, 0, 0},
};
enum { SPECS = sizeof specs / sizeof specs[0] };

static mf_layout layout_of(const spec *s) {
    mf_layout l;
    grid_layout_init(&l);
    l.gpus = s->ranks;
    l.tp = s->tp;
    l.cp = s->cp;
    l.ep = s->ep;
    l.mbs = s->mbs;
    l.cp_type = (mf_cp_type)s->type;
    l.overlap = s->overlap;
    l.memory.recompute = s->recompute;
    return l;
}

/* One rank. */
static int child(int ranks, const char *references) {
    static grid_reference ref[GRID_MODELS];
    int64_t rank = 0, size = 1;
    mf_err e = {.text = ""};
    mf_cost *cost = account_cost(&e);
    int failed = 0, ran = 0, stride = case_stride(5);
    double most = 0.0;
    if (cost == NULL || !grid_references_read(references, ref) ||
        mf_comm_start(&rank, &size, &e) != MF_OK || size != ranks) {
        printf("ranks: %lld of %d: %s\n", (long long)size, ranks, e.text);
        return 1;
    }
    open_device();
    for (int i = 0; i < SPECS; i++) {
        const mf_layout l = layout_of(&specs[i]);
        const int model = specs[i].model;
        char worst[200] = "";
        if (specs[i].ranks != ranks || i % stride != 0) {
            continue;
        }
        const grid_run_case run = {&grid_models[model], &l, &ref[model], cost, NULL};
        double error = grid_run(&run, worst, &e);
        ran++;
        failed += !(error <= GRID_BOUND);
        most = fmax(most, error);
        if (!(error <= GRID_BOUND)) {
            printf("rank %lld: case %d (%s, %s): %.1e %s %s\n", (long long)rank, i,
                   grid_models[model].name, mf_cp_type_text(l.cp_type), error, worst, e.text);
            fflush(stdout);
        }
        if (isnan(error)) {
            mf_comm_abort(1);
        }
    }
    if (rank == 0) {
        printf("%d ranks: %d layouts, %d failed on rank 0, worst %.1e\n", ranks, ran, failed, most);
    }
    mf_cost_destroy(cost);
    for (int i = 0; i < GRID_MODELS; i++) {
        grid_reference_clear(&ref[i]);
    }
    mf_comm_stop();
    return failed > 0 || ran == 0;
}

/* --- tests --------------------------------------------------------------------------------------
 */

static void two_ranks_in_blocks_equal_one(void **state) {
    (void)state;
    grid_launch(2);
}

static void four_ranks_in_blocks_equal_one(void **state) {
    (void)state;
    grid_launch(4);
}

/* Every query sees the keys of its own and of earlier positions, once, whoever holds them. */
static void blocks_of_all_ranks_cover_the_causal_half_once(void **state) {
    enum { MOST = 5, HALF = 3 };
    (void)state;
    for (int64_t cp = 2; cp <= case_count(MOST, 3); cp++) {
        for (int64_t c = 0; c < cp; c++) {
            static int seen[2 * HALF][2 * HALF * MOST];
            memset(seen, 0, sizeof seen);
            for (int64_t from = 0; from < cp; from++) {
                mf_attention_part part[MF_ATTENTION_PARTS];
                const mf_device_sequences s = {.seq_q = 2 * HALF,
                                               .seq_k = 2 * HALF,
                                               .keys = from == c  ? MF_KEYS_OWN
                                                       : from < c ? MF_KEYS_BEFORE
                                                                  : MF_KEYS_BEHIND,
                                               .member = c,
                                               .members = cp};
                assert_int_equal(mf_attention_parts(&s, part), 1);
                for (int64_t i = 0; i < part[0].seq_q; i++) {
                    for (int64_t j = 0; j < part[0].seq_k; j++) {
                        int64_t key = part[0].first_k + j, chunk = key / HALF;
                        int64_t at = (chunk == 0 ? from : 2 * cp - 1 - from) * HALF + key % HALF;
                        bool sees = !part[0].causal || j <= i + part[0].seq_k - part[0].seq_q;
                        seen[part[0].first_q + i][at] += sees;
                    }
                }
            }
            for (int64_t i = 0; i < 2 * HALF; i++) {
                int64_t at = (i < HALF ? c : 2 * cp - 1 - c) * HALF + i % HALF;
                for (int64_t k = 0; k < 2 * HALF * cp; k++) {
                    assert_int_equal(seen[i][k], k <= at);
                }
            }
        }
    }
}

static void a_window_over_a_ring_is_refused(void **state) {
    (void)state;
    mf_device_attention a = {.s = {.seq_q = 4, .seq_k = 4, .member = 0, .members = 2}};
    mf_err e = {.text = ""};
    a.a.shape.window = 2;
    assert_int_equal(mf_attention_by_parts(&parts_queue, &a, forward, &e), MF_INFEASIBLE);
    assert_non_null(strstr(e.text, "window"));
}

/* --- chunks --------------------------------------------------------------------------------------
 */

/* Attention of rank `member` of `members` that gather keys, or of one. */
typedef struct chunks {
    int64_t members, member, sequences, seq, chunk;
} chunks;

enum { HEADS = 4, KV_HEADS = 2, WIDTH = 8, CHUNK_ROWS = 2 * 24, Q = HEADS * WIDTH };
enum { KV = KV_HEADS * WIDTH };

typedef struct chunk_values {
    float q[CHUNK_ROWS * Q], o[CHUNK_ROWS * Q], d_o[CHUNK_ROWS * Q], dq[CHUNK_ROWS * Q];
    float k[CHUNK_ROWS * KV], v[CHUNK_ROWS * KV], dk[CHUNK_ROWS * KV], dv[CHUNK_ROWS * KV];
    float lse[CHUNK_ROWS * HEADS];
    int32_t cu_q[3], cu_k[3], q_pos[CHUNK_ROWS], k_pos[CHUNK_ROWS];
} chunk_values;

static void draw_chunks(const chunks *c, chunk_values *x) {
    const int64_t local = c->seq / c->members, half = local / 2;
    for (int i = 0; i < CHUNK_ROWS * Q; i++) {
        x->q[i] = sinf((float)(i * i % 977));
        x->d_o[i] = cosf((float)(i * i % 811));
        x->dq[i] = 0.25f;
    }
    for (int i = 0; i < CHUNK_ROWS * KV; i++) {
        x->k[i] = sinf((float)(i * i % 613) + 1.0f);
        x->v[i] = cosf((float)(i * i % 499) + 2.0f);
        x->dk[i] = x->dv[i] = 0.5f;
    }
    for (int64_t i = 0; i <= c->sequences; i++) {
        x->cu_q[i] = (int32_t)(i * local);
        x->cu_k[i] = (int32_t)(i * c->seq);
    }
    for (int64_t i = 0; i < c->sequences * local; i++) {
        const int64_t at = i % local;
        x->q_pos[i] = (int32_t)(at < half ? c->member * half + at
                                          : (2 * c->members - 1 - c->member) * half + at - half);
    }
    for (int64_t i = 0; i < c->sequences * c->seq; i++) {
        x->k_pos[i] = (int32_t)(i % c->seq);
    }
}

static mf_kernel_attention_shape chunked_shape(const chunks *c, const chunk_values *x) {
    return (mf_kernel_attention_shape){.dtype = MF_KERNEL_F32,
                                       .sequences = c->sequences,
                                       .cu_q = x->cu_q,
                                       .cu_k = x->cu_k,
                                       .q_pos = x->q_pos,
                                       .k_pos = x->k_pos,
                                       .heads = HEADS,
                                       .kv_heads = KV_HEADS,
                                       .qk_dim = WIDTH,
                                       .v_dim = WIDTH,
                                       .causal = true,
                                       .window = c->chunk,
                                       .chunked = true,
                                       .scale = 0.5f,
                                       .q_row = Q,
                                       .q_head = WIDTH,
                                       .k_row = KV,
                                       .k_head = WIDTH,
                                       .v_row = KV,
                                       .v_head = WIDTH,
                                       .o_row = Q,
                                       .o_head = WIDTH};
}

static void run_chunks(const chunks *c, bool by_parts, chunk_values *x) {
    static char work[1 << 16];
    const bool sums = c->members > 1;
    const mf_device_sequences s = {.seq_q = c->seq / c->members,
                                   .seq_k = c->seq,
                                   .keys = sums ? MF_KEYS_ALL : MF_KEYS_OWN,
                                   .member = c->member,
                                   .members = c->members};
    mf_device_attention f = {.a = {.q = x->q, .k = x->k, .v = x->v, .o = x->o, .lse = x->lse},
                             .s = s,
                             .workspace = work,
                             .workspace_B = sizeof work};
    mf_device_attention_grad b = {.a = {.q = x->q,
                                        .k = x->k,
                                        .v = x->v,
                                        .o = x->o,
                                        .d_o = x->d_o,
                                        .lse = x->lse,
                                        .accumulate = sums,
                                        .dq = x->dq,
                                        .dk = x->dk,
                                        .dv = x->dv,
                                        .workspace = work},
                                  .s = s,
                                  .workspace_B = sizeof work};
    mf_err e = {.text = ""};
    f.a.shape = b.a.shape = chunked_shape(c, x);
    const mf_device_ops *k = by_parts ? &parts_ops : mf_device_cpu()->ops;
    mf_queue *q = by_parts ? &parts_queue : mf_device_cpu()->ops->queue(mf_device_cpu(), 0);
    assert_int_equal(k->attention(q, &f, &e), MF_OK);
    assert_int_equal(k->attention_grad(q, &b, &e), MF_OK);
}

static double most_apart(const float *a, const float *b, int64_t n) {
    double most = 0.0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    }
    return most;
}

/* With keys of its own and keys of all ranks; chunks that divide the sequence, that do not, that
 * ranks cut, and that are longer than it. */
static void chunks_in_blocks_equal_chunks_by_position(void **state) {
    static const chunks cases[] = {
        {1, 0, 2, 24, 8},  {1, 0, 2, 20, 8},  {1, 0, 1, 24, 24}, {1, 0, 2, 24, 64},
        {2, 0, 2, 24, 8},  {2, 1, 2, 24, 8},  {2, 0, 1, 24, 16}, {2, 1, 1, 24, 16},
        {3, 1, 2, 24, 12}, {3, 2, 2, 24, 20}, {2, 1, 2, 24, 64},
    };
    static chunk_values one, many;
    (void)state;
    open_device();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t rows = cases[i].sequences * cases[i].seq / cases[i].members;
        const int64_t keys = cases[i].sequences * cases[i].seq;
        draw_chunks(&cases[i], &one);
        draw_chunks(&cases[i], &many);
        run_chunks(&cases[i], false, &one);
        run_chunks(&cases[i], true, &many);
        assert_below(most_apart(one.o, many.o, rows * Q), 1e-6);
        assert_below(most_apart(one.dq, many.dq, rows * Q), 2e-6);
        assert_below(most_apart(one.dk, many.dk, keys * KV), 5e-6);
        assert_below(most_apart(one.dv, many.dv, keys * KV), 5e-6);
        if (cases[i].members > 1) { /* else they lie block by block */
            assert_below(most_apart(one.lse, many.lse, rows * HEADS), 1e-6);
        }
    }
}

/* What a call asks for, and no more. */
static mf_attention_call asked;
static mf_status note(mf_queue *q, const mf_attention_call *c, mf_err *e) {
    (void)q, (void)e;
    asked = *c;
    return MF_OK;
}

/* Windows and chunks that are as long as the sequence bind nobody. */
static void long_windows_go_over_a_ring(void **state) {
    static const mf_device_keys keys[] = {MF_KEYS_OWN, MF_KEYS_BEFORE};
    (void)state;
    for (int i = 0; i < 4; i++) {
        static char work[64];
        mf_device_attention a = {.s = {.seq_q = 8, .seq_k = 8, .keys = keys[i / 2], .members = 2}};
        mf_err e = {.text = ""};
        a.a.q = a.a.k = a.a.v = a.a.o = work;
        a.a.shape.sequences = 1;
        a.a.shape.window = 16;
        a.a.shape.chunked = i % 2 == 1;
        a.s.member = 1;
        assert_int_equal(mf_attention_by_parts(&parts_queue, &a, note, &e), MF_OK);
        assert_int_equal(asked.causal, keys[i / 2] == MF_KEYS_OWN);
        assert_int_equal(asked.seq_q, 8);
        assert_int_equal(asked.seq_k, keys[i / 2] == MF_KEYS_OWN ? 8 : 4);
        a.a.shape.window = 12;
        assert_int_equal(mf_attention_by_parts(&parts_queue, &a, note, &e), MF_INFEASIBLE);
    }
}

static void chunks_over_a_ring_and_of_odd_sizes_are_refused(void **state) {
    (void)state;
    mf_device_attention a = {.s = {.seq_q = 8, .seq_k = 8, .member = 0, .members = 2}};
    mf_err e = {.text = ""};
    a.a.shape.window = 4;
    a.a.shape.chunked = true;
    assert_int_equal(mf_attention_by_parts(&parts_queue, &a, forward, &e), MF_INFEASIBLE);
    assert_non_null(strstr(e.text, "chunks over a context-parallel ring"));
    a.s.members = 1;
    a.a.shape.window = 6;
    assert_int_equal(mf_attention_by_parts(&parts_queue, &a, forward, &e), MF_INFEASIBLE);
    assert_non_null(strstr(e.text, "multiples of 4"));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_all_ranks_cover_the_causal_half_once),
        cmocka_unit_test(a_window_over_a_ring_is_refused),
        cmocka_unit_test(chunks_in_blocks_equal_chunks_by_position),
        cmocka_unit_test(long_windows_go_over_a_ring),
        cmocka_unit_test(chunks_over_a_ring_and_of_odd_sizes_are_refused),
        cmocka_unit_test(two_ranks_in_blocks_equal_one),
        cmocka_unit_test(four_ranks_in_blocks_equal_one),
    };
    int code = grid_other_than_tests(argc, argv, child);
    return code >= 0 ? code
                     : cmocka_run_group_tests(tests, grid_references_make, grid_references_drop);
}
