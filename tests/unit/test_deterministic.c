/* --deterministic in programs, plans and prices: what gradients of attention keep so that their
 * sums have one order is counted, in pieces that a workspace holds; a plan file carries it, and CPU
 * ranks need none of it. */
#include "core/program/lower.h"
#include "core/program/scratch.h"
#include "tests/support/cli_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OLMOE                                                                                      \
    "--model olmoe-1b-7b --set num_hidden_layers=4 --gpus 1 --micro-batch 1 --global-batch 2 "     \
    "--seq 4096 "
#define MIB ((int64_t)1 << 20)

static void few_heads_at_once_fill_a_gpu_and_no_more_memory_than_that(void **state) {
    (void)state;
    /* 16 heads of 4,096 x 4,096 scores in BF16 are 512 MiB: one piece, as much as may be taken. */
    assert_int_equal(mf_attention_ordered_pieces(1, 16, 16, 4096, 4096), 1);
    assert_int_equal(mf_attention_ordered_B(1, 16, 16, 4096, 4096), 512 * MIB);
    assert_int_equal(mf_attention_ordered_pieces(2, 128, 128, 4096, 4096), 16);
    assert_int_equal(mf_attention_ordered_B(2, 128, 128, 4096, 4096), 512 * MIB);
    /* Heads that sum into one head of keys stay together, and take what they need. */
    assert_int_equal(mf_attention_ordered_pieces(1, 32, 4, 8192, 8192), 4);
    assert_int_equal(mf_attention_ordered_B(1, 32, 4, 8192, 8192), 1024 * MIB);
    assert_int_equal(mf_attention_ordered_pieces(1, 71, 1, 8192, 8192), 1);
    assert_int_equal(mf_attention_ordered_B(1, 8, 8, 100, 60), 2 * 8 * 128 * 64);
}

/* Whatever the parts that context parallelism divides sequences into. */
static void the_planned_bytes_hold_the_pieces_of_any_shorter_part(void **state) {
    (void)state;
    uint32_t x = 12345;
    for (int i = 0; i < 20000; i++) {
        int64_t v[6];
        for (int k = 0; k < 6; k++) {
            x = x * 1664525u + 1013904223u;
            v[k] = (int64_t)(x >> 8);
        }
        const int64_t batch = 1 + v[0] % 4, kv_heads = 1 + v[1] % 32;
        const int64_t heads = kv_heads * (1 + v[2] % 8), seq = 1 + v[3] % 20000;
        const int64_t part_q = 1 + v[4] % seq, part_k = 1 + v[5] % seq;
        const int64_t pieces = mf_attention_ordered_pieces(batch, heads, kv_heads, part_q, part_k);
        const int64_t planned_B = mf_attention_ordered_B(batch, heads, kv_heads, seq, seq);
        const int64_t need_B =
            2 * batch * (heads / pieces) * ((part_q + 63) / 64 * 64) * ((part_k + 63) / 64 * 64);
        assert_at_least(pieces, 1);
        assert_at_most(pieces, kv_heads);
        assert_int_equal(kv_heads % pieces, 0);
        assert_at_most((double)need_B, (double)planned_B);
    }
}

/* Peak of memory, the step's time, and whether the layout says that it is so. */
static void figures_of(const char *options, double *memory_B, double *step_s, bool *marked) {
    char line[512];
    snprintf(line, sizeof line, "simulate %s --json", options);
    cli_result r = cli_json(line);
    const mf_json_value *o = mf_json_root(r.json);
    *memory_B = cli_number(o, "peak_memory_B");
    *step_s = cli_number(o, "step_time_s");
    *marked = mf_json_find(cli_member(o, "layout"), "deterministic") != NULL;
    cli_free(&r);
}

static void score_gradients_are_counted_and_priced(void **state) {
    (void)state;
    double plain_B, ordered_B, plain_s, ordered_s;
    bool plain, ordered;
    figures_of(OLMOE "--cluster h200", &plain_B, &plain_s, &plain);
    figures_of(OLMOE "--cluster h200 --deterministic", &ordered_B, &ordered_s, &ordered);
    assert_false(plain);
    assert_true(ordered);
    /* 512 MiB of score gradients stand where sums of 16 heads x 4,096 x 128 floats did. */
    assert_at_most(fabs(ordered_B - plain_B - (double)(480 * MIB)), 1e-3 * (double)MIB);
    assert_above(ordered_s, plain_s * 1.001);
    assert_below(ordered_s, plain_s * 1.10);
}

static void a_plan_file_carries_it_and_the_option_may_stand_beside_a_plan(void **state) {
    (void)state;
    enum { WITH, BESIDE, WITHOUT, WAYS };
    static const char *const made_by[WAYS] = {"--deterministic ", "", ""};
    static const char *const beside[WAYS] = {"", " --deterministic", ""};
    char path[] = "/tmp/mf_deterministicXXXXXX", line[512];
    double bytes[WAYS], step_s[WAYS];
    bool marked[WAYS];
    const int fd = mkstemp(path);
    assert_at_least(fd, 0);
    for (int k = 0; k < WAYS; k++) {
        snprintf(line, sizeof line, "simulate " OLMOE "--cluster h200 %s--out %s --json",
                 made_by[k], path);
        cli_result r = cli_json(line);
        cli_free(&r);
        snprintf(line, sizeof line, "--plan %s%s", path, beside[k]);
        figures_of(line, &bytes[k], &step_s[k], &marked[k]);
    }
    assert_true(marked[WITH]);
    assert_true(marked[BESIDE]);
    assert_false(marked[WITHOUT]);
    assert_int_equal(bytes[WITH], bytes[BESIDE]);
    assert_above(bytes[WITH], bytes[WITHOUT]);
    close(fd);
    unlink(path);
}

static void cpu_ranks_are_deterministic_without_the_option(void **state) {
    (void)state;
    double plain_B, ordered_B, plain_s, ordered_s;
    bool plain, ordered;
    figures_of(OLMOE "--cluster cpu", &plain_B, &plain_s, &plain);
    figures_of(OLMOE "--cluster cpu --deterministic", &ordered_B, &ordered_s, &ordered);
    assert_false(ordered);
    assert_at_most(fabs(ordered_B - plain_B), 0);
    assert_at_most(fabs(ordered_s - plain_s), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_heads_at_once_fill_a_gpu_and_no_more_memory_than_that),
        cmocka_unit_test(the_planned_bytes_hold_the_pieces_of_any_shorter_part),
        cmocka_unit_test(score_gradients_are_counted_and_priced),
        cmocka_unit_test(a_plan_file_carries_it_and_the_option_may_stand_beside_a_plan),
        cmocka_unit_test(cpu_ranks_are_deterministic_without_the_option),
    };
    return cmocka_run_group_tests_name("deterministic", tests, NULL, NULL);
}
