/* Gradients of MLA's attention that keep their score gradients (kernels/attention/mla_grad.h):
 * which ops lowering marks, for which programs; that no sum of theirs needs --deterministic; what
 * memory they are given. */
#include "core/program/lower.h"
#include "core/program/scratch.h"
#include "tests/support/test.h"

#include <string.h>

static mf_err e;

typedef struct fixture {
    mf_model m;
    mf_layout l;
    mf_cluster c;
    mf_block *b; /* of the model's first layer */
} fixture;

static void begin(fixture *w, const char *model) {
    memset(w, 0, sizeof *w);
    assert_ok(mf_model_load(model, &w->m, &e));
    assert_ok(mf_cluster_load("h200", &w->c, &e));
    mf_layout_init(&w->l);
    w->l.gpus = w->l.gbs = 1;
    w->l.seq = 4096;
    w->l.precision = MF_PREC_BF16;
}

/* Flags of the gradient of attention, and the block's scratch. */
static uint32_t lowered(fixture *w, int64_t *scratch_B) {
    const mf_block_key key = mf_block_key_layer(0, (mf_memory_choice){0}, false);
    const mf_op *found = NULL;
    assert_ok(mf_layout_resolve(&w->l, &w->m, &e));
    assert_ok(mf_block_lower(&w->m, &w->l, &w->c, &key, &w->b, &e));
    for (int i = 0; i < w->b->nops && found == NULL; i++) {
        found = w->b->ops[i].kind == MF_OP_ATTENTION_BWD ? &w->b->ops[i] : NULL;
    }
    assert_non_null(found);
    const uint32_t flags = found->flags;
    *scratch_B = w->b->scratch_B[found->stream];
    mf_block_destroy(w->b);
    return flags;
}

static void deepseek_keeps_them_and_needs_no_order_besides(void **state) {
    (void)state;
    fixture w;
    int64_t plain_B, ordered_B;
    begin(&w, "deepseek-v3");
    assert_int_equal(lowered(&w, &plain_B) & (MF_OPF_KEPT | MF_OPF_ORDERED), MF_OPF_KEPT);
    w.l.deterministic = true;
    assert_int_equal(lowered(&w, &ordered_B) & (MF_OPF_KEPT | MF_OPF_ORDERED), MF_OPF_KEPT);
    assert_int_equal(ordered_B, plain_B);
}

static void other_programs_sum_them_in_memory(void **state) {
    (void)state;
    fixture w;
    int64_t scratch_B;
    begin(&w, "deepseek-v3");
    w.l.software_traits = MF_TRAIT_GENERAL_ATTENTION;
    assert_int_equal(lowered(&w, &scratch_B) & MF_OPF_KEPT, 0);
    /* 4 bytes a row, head and element of queries, and one statistic. */
    assert_at_least(scratch_B, (int64_t)4 * 4096 * 128 * (192 + 1));
    w.l.software_traits = 0;
    w.l.traits = MF_TRAIT_GENERAL_ATTENTION;
    assert_int_equal(lowered(&w, &scratch_B) & MF_OPF_KEPT, 0);
}

static void shapes_and_gpus_that_the_kernels_are_not_for_are_left_alone(void **state) {
    (void)state;
    fixture w;
    int64_t scratch_B;
    begin(&w, "qwen3-30b-a3b"); /* heads of 128 */
    assert_int_equal(lowered(&w, &scratch_B) & MF_OPF_KEPT, 0);
    begin(&w, "deepseek-v3");
    w.l.seq = 4096 + 128;
    assert_int_equal(lowered(&w, &scratch_B) & MF_OPF_KEPT, 0);
    w.l.seq = 32768;
    assert_int_equal(lowered(&w, &scratch_B) & MF_OPF_KEPT, 0);
    w.l.seq = 16384;
    assert_int_equal(lowered(&w, &scratch_B) & MF_OPF_KEPT, MF_OPF_KEPT);
    begin(&w, "deepseek-v3");
    w.l.gpus = w.l.cp = 2; /* parts of sequences, over keys of other ranks */
    assert_int_equal(lowered(&w, &scratch_B) & MF_OPF_KEPT, 0);
    begin(&w, "deepseek-v3");
    assert_ok(mf_cluster_load("b200", &w.c, &e));
    assert_int_equal(lowered(&w, &scratch_B) & MF_OPF_KEPT, 0);
    begin(&w, "deepseek-v3");
    w.l.precision = MF_PREC_FP32;
    assert_int_equal(lowered(&w, &scratch_B) & MF_OPF_KEPT, 0);
}

static void groups_fill_half_of_the_memory_each(void **state) {
    (void)state;
    const int64_t head_B = 32 * 33 * 64 * 128 * 2; /* tiles of 4,096 rows that queries see */
    const int64_t rows_B = 8 * (int64_t)256 * 4096;
    /* 15 heads fit into 256 MiB: 18 groups of 256 heads, of 15 at most. */
    assert_int_equal(mf_attention_kept_groups(2, 128, 4096), 18);
    assert_int_equal(mf_attention_kept_B(2, 128, 4096), 2 * 15 * head_B + rows_B);
    /* Few heads make two groups, and a single one its own. */
    assert_int_equal(mf_attention_kept_groups(1, 4, 4096), 2);
    assert_int_equal(mf_attention_kept_B(1, 4, 4096), 4 * head_B + rows_B / 64);
    assert_int_equal(mf_attention_kept_groups(1, 1, 4096), 1);
    assert_int_equal(mf_attention_kept_B(1, 1, 4096), head_B + rows_B / 256);
    /* Of long sequences a head is a group, however much it takes. */
    assert_int_equal(mf_attention_kept_groups(1, 16, 16384), 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepseek_keeps_them_and_needs_no_order_besides),
        cmocka_unit_test(other_programs_sum_them_in_memory),
        cmocka_unit_test(shapes_and_gpus_that_the_kernels_are_not_for_are_left_alone),
        cmocka_unit_test(groups_fill_half_of_the_memory_each),
    };
    return cmocka_run_group_tests_name("attention_kept", tests, NULL, NULL);
}
