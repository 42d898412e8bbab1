/* Which points are measured, on which machine, and what is left to do: no GPU is needed. */
#include "tests/support/test.h"

#include "executor/measure/measure.h"
#include "executor/measure/measure_draw.h"
#include "executor/measure/measure_route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t count(const mf_measure_list *l, const char *op, bool held) {
    int64_t n = 0;
    for (int64_t i = 0; i < l->n; i++) {
        n += strcmp(l->point[i].op, op) == 0 && (l->point[i].holdout != 0) == held;
    }
    return n;
}

static void the_general_grid_holds_out_five_hundred_shapes(void **state) {
    (void)state;
    mf_measure_list l = {NULL, 0, 0};
    assert_ok(mf_measure_plan_gpu(1, &l, NULL));
    assert_at_least(count(&l, "gemm", true), 500);
    assert_at_least(count(&l, "gemm", false), 1000);
    assert_at_least(count(&l, "grouped_gemm", true), 80);
    assert_at_least(count(&l, "attention", true), 40);
    assert_at_least(count(&l, "memory", false), 100);
    assert_true(count(&l, "launch", false) == 3);
    mf_measure_list_clear(&l);
}

/* Each that is no shape drawn at random, held out like the product that adds. */
static void weight_gradients_are_measured_writing_too(void **state) {
    (void)state;
    mf_measure_list l = {NULL, 0, 0}, made = {NULL, 0, 0};
    assert_ok(mf_measure_list_add(&made, "gemm dtype=bf16 m=64 n=32 k=512 layout=tn acc=1", false,
                                  "grid", NULL));
    assert_ok(mf_measure_list_add(
        &made, "grouped_gemm dtype=bf16 experts=8 m=16 n=64 k=32 pass=wgrad acc=1", true,
        "drawn from models and layouts", NULL));
    assert_ok(mf_measure_list_add(&made, "gemm dtype=fp8-block m=64 n=32 k=512 layout=tn acc=1",
                                  false, "grid", NULL));
    assert_ok(mf_measure_list_add(&made, "gemm dtype=bf16 m=64 n=32 k=512 layout=nt acc=0", false,
                                  "grid", NULL));
    assert_ok(mf_measure_add_variants(&made, NULL));
    assert_int_equal(made.n, 6);
    mf_point dense, grouped;
    assert_ok(mf_point_parse("first_wgrad dtype=bf16 m=512 n=64 k=32", &dense, NULL));
    assert_ok(mf_point_parse("first_wgrad dtype=bf16 experts=8 m=16 n=64 k=32", &grouped, NULL));
    char want[200], got[200];
    for (int i = 0; i < 2; i++) {
        mf_point_format(i ? &grouped : &dense, want, sizeof want);
        mf_point_format(&made.point[4 + i], got, sizeof got);
        assert_string_equal(got, want);
        assert_int_equal(made.point[4 + i].holdout, i);
    }
    assert_ok(mf_measure_plan_gpu(1, &l, NULL));
    assert_at_least(count(&l, "first_wgrad", false), 100);
    assert_at_least(count(&l, "first_wgrad", true), 20);
    mf_measure_list_clear(&l);
    mf_measure_list_clear(&made);
}

static int by_key(const void *a, const void *b) {
    return strcmp(a, b);
}

static void points_are_canonical_and_stand_once(void **state) {
    (void)state;
    enum { KEY = 400 };
    mf_measure_list l = {NULL, 0, 0};
    assert_ok(mf_measure_plan_gpu(7, &l, NULL));
    char *keys = calloc((size_t)l.n, KEY);
    assert_non_null(keys);
    for (int64_t i = 0; i < l.n; i++) {
        mf_point again;
        mf_point_format(&l.point[i], keys + i * KEY, KEY);
        assert_ok(mf_point_parse(keys + i * KEY, &again, NULL));
        assert_int_equal(again.dims, l.point[i].dims);
        assert_true(l.point[i].source[0] != '\0');
    }
    qsort(keys, (size_t)l.n, KEY, by_key);
    for (int64_t i = 1; i < l.n; i++) {
        assert_string_not_equal(keys + (i - 1) * KEY, keys + i * KEY);
    }
    free(keys);
    mf_measure_list_clear(&l);
}

static void a_seed_gives_the_same_points_and_another_seed_others(void **state) {
    (void)state;
    mf_measure_list a = {NULL, 0, 0}, b = {NULL, 0, 0}, c = {NULL, 0, 0};
    assert_ok(mf_measure_plan_gpu(3, &a, NULL));
    assert_ok(mf_measure_plan_gpu(3, &b, NULL));
    assert_ok(mf_measure_plan_gpu(4, &c, NULL));
    assert_int_equal(a.n, b.n);
    int64_t differ = 0;
    for (int64_t i = 0; i < a.n; i++) {
        assert_memory_equal(&a.point[i].dim, &b.point[i].dim, sizeof a.point[i].dim);
        differ += i < c.n && memcmp(&a.point[i].dim, &c.point[i].dim, sizeof a.point[i].dim) != 0;
    }
    assert_above(differ, a.n / 2);
    mf_measure_list_clear(&a);
    mf_measure_list_clear(&b);
    mf_measure_list_clear(&c);
}

static void between_gpus_every_link_op_is_measured_with_and_without_skew(void **state) {
    (void)state;
    static const char *const ops[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                      "send_recv",  "dispatch",   "combine"};
    mf_measure_list l = {NULL, 0, 0};
    assert_ok(mf_measure_plan_collectives(4, 1, &l, NULL));
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        assert_at_least(count(&l, ops[i], false), 16);
        assert_at_least(count(&l, ops[i], true), 8);
    }
    int64_t skewed = 0, three = 0;
    for (int64_t i = 0; i < l.n; i++) {
        const mf_point *p = &l.point[i];
        skewed += mf_point_value(p, "skew") > 100 && !p->holdout;
        three +=
            mf_point_value(p, "ranks") < 3.5 && mf_point_value(p, "ranks") > 2.5 && !p->holdout;
    }
    assert_at_least(skewed, 32);
    assert_int_equal(three, 0); /* groups of three are held out of the fit */
    assert_at_least(count(&l, "beside", false), 60);
    mf_measure_list_clear(&l);
}

static void routing_has_the_skew_that_was_asked_for(void **state) {
    (void)state;
    enum { TOKENS = 20000, TOP_K = 4 };
    static const struct {
        int64_t experts, ranks, skew;
    } cases[] = {{64, 2, 100},  {64, 2, 190},  {96, 3, 160},
                 {128, 4, 100}, {128, 4, 400}, {8, 1, 100}};
    int32_t *index = malloc(sizeof *index * TOKENS * TOP_K);
    assert_non_null(index);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t ranks = cases[i].ranks, each = cases[i].experts / ranks;
        int64_t rows[4] = {0};
        mf_measure_route(index, TOKENS, TOP_K, cases[i].experts, ranks, cases[i].skew, 5);
        for (int64_t s = 0; s < TOKENS * TOP_K; s++) {
            assert_in_range(index[s], 0, cases[i].experts - 1);
            for (int64_t k = s - s % TOP_K; k < s; k++) {
                assert_int_not_equal(index[k], index[s]);
            }
            rows[index[s] / each]++;
        }
        for (int64_t r = 0; r < ranks; r++) {
            double wanted = mf_measure_route_share(r, ranks, cases[i].skew) * TOKENS * TOP_K;
            assert_above((double)rows[r], wanted - 800);
            assert_below((double)rows[r], wanted + 800);
        }
    }
    free(index);
}

static void a_key_is_added_once_and_bad_ones_are_refused(void **state) {
    (void)state;
    mf_measure_list l = {NULL, 0, 0};
    assert_ok(mf_measure_list_add(&l, "gemm dtype=bf16 m=8 n=8 k=8", true, "test", NULL));
    assert_ok(
        mf_measure_list_add(&l, "gemm k=8 n=8 m=8 dtype=bf16 layout=nt", false, "test", NULL));
    assert_int_equal(l.n, 1);
    assert_int_equal(l.point[0].holdout, 1);
    assert_int_equal(mf_measure_list_add(&l, "gemm dtype=bf16 m=8", false, "test", NULL), MF_INPUT);
    mf_measure_list_clear(&l);
}

/* Weight gradients of experts: the op's dims are those of the product, the key's of the weight. */
static void ops_of_a_program_become_keys(void **state) {
    (void)state;
    char key[256];
    mf_op op = {.kind = MF_OP_GROUPED_GEMM,
                .pass = MF_PASS_W,
                .math = MF_MATH_BF16,
                .flags = MF_OPF_WGRAD | MF_OPF_ACC_FP32,
                .dim = {4096, 7168, 8 * 512, 8}};
    assert_true(mf_measure_op_key(&op, MF_PREC_BF16, key, sizeof key));
    assert_string_equal(key,
                        "grouped_gemm dtype=bf16 experts=8 m=512 n=4096 k=7168 pass=wgrad acc=1");
    mf_op dgrad = {.kind = MF_OP_GEMM, .pass = MF_PASS_B, .math = MF_MATH_FP8, .dim = {64, 32, 16}};
    assert_true(mf_measure_op_key(&dgrad, MF_PREC_FP8_BLOCK, key, sizeof key));
    assert_string_equal(key, "gemm dtype=fp8-block m=64 n=32 k=16 layout=nn acc=0");
    mf_op gather = {.kind = MF_OP_ALL_GATHER, .bytes = 1e6};
    assert_false(mf_measure_op_key(&gather, MF_PREC_BF16, key, sizeof key));
}

/* --- the machine ------------------------------------------------------------------------------ */

static void gpus_are_called_by_the_names_of_clusters(void **state) {
    (void)state;
    static const struct {
        const char *device;
        double memory_B;
        const char *gpu;
    } cases[] = {{"NVIDIA H200", 150e9, "h200"},
                 {"NVIDIA H100 80GB HBM3", 85e9, "h100"},
                 {"NVIDIA GH200 480GB", 100e9, "gh200"},
                 {"NVIDIA H20", 100e9, "h20"},
                 {"NVIDIA A100-SXM4-40GB", 42e9, "a100-40"},
                 {"NVIDIA A100-SXM4-80GB", 85e9, "a100"},
                 {"NVIDIA GB200", 190e9, "gb200"},
                 {"NVIDIA B200", 190e9, "b200"},
                 {"NVIDIA GeForce RTX 4090", 25e9, "geforce-rtx-4090"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[32];
        mf_measure_gpu_name(cases[i].device, cases[i].memory_B, name, sizeof name);
        assert_string_equal(name, cases[i].gpu);
    }
}

static mf_measure_machine quiet_machine(void) {
    return (mf_measure_machine){.device = "NVIDIA H200",
                                .gpu = "h200",
                                .memory_B = 150e9,
                                .gpus = 2,
                                .sm_MHz = 1980,
                                .temperature_C = 36,
                                .versions = "cuda=13.0 cublas=13.1.0",
                                .nccl = "2.28.9"};
}

static void a_measured_time_is_kept_while_its_algorithm_stays(void **state) {
    (void)state;
    static const char was[] = "cuda=13.0 driver=580.159.04 cublas=13.1.0 cudnn=9.19.0 nccl=2.28.9";
    static const struct {
        const char *op, *now;
        bool same;
    } cases[] = {
        {"gemm", was, true},
        {"gemm", "cuda=13.0 driver=580.159.03 cublas=13.1.0 cudnn=9.20.0", true},
        {"gemm", "cuda=13.0 driver=580.159.04 cublas=13.1.1 cudnn=9.19.0", false},
        {"gemm", "cuda=13.0 driver=580.159.04 cudnn=9.19.0", false},
        {"gemm", "cuda=13.0 driver=580.160.04 cublas=13.1.0", false},
        {"gemm", "cuda=13.1 driver=580.159.04 cublas=13.1.0", false},
        {"attention", "cuda=13.0 driver=580.159 cublas=13.1.1 cudnn=9.19.0", true},
        {"attention", "cuda=13.0 driver=580.159 cublas=13.1.0 cudnn=9.19.01", false},
        {"memory", "cuda=13.0 driver=580.159.99", true},
        {"all_reduce", "cuda=13.0 driver=580.159.04 nccl=2.28.9", true},
        {"dispatch", "cuda=13.0 driver=580.159.04 nccl=2.29.0", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(mf_measure_same_versions(cases[i].op, was, cases[i].now), cases[i].same);
        assert_int_equal(mf_measure_same_versions(cases[i].op, cases[i].now, was), cases[i].same);
    }
}

static void remembered_algorithms_go_with_their_points(void **state) {
    (void)state;
    mf_store *store;
    mf_point p;
    mf_measure_choice *choice;
    mf_measure_list l = {NULL, 0, 0};
    mf_measure_machine m = quiet_machine();
    assert_ok(mf_store_open(":memory:", &store, NULL));
    assert_ok(mf_point_parse("gemm dtype=bf16 m=8 n=16 k=8", &p, NULL));
    strcpy(p.gpu, "h200");
    assert_ok(mf_store_put_choice(store, &p, "second", NULL));
    strcpy(p.gpu, "h100");
    assert_ok(mf_store_put_choice(store, &p, "of another GPU", NULL));
    assert_ok(mf_measure_list_add(&l, "gemm dtype=bf16 m=8 n=8 k=8", false, "t", NULL));
    assert_ok(mf_measure_list_add(&l, "gemm dtype=bf16 m=8 n=16 k=8", false, "t", NULL));
    assert_ok(mf_measure_remember(&l, store, &m, &choice, NULL));
    assert_string_equal(choice[0].text, "");
    assert_string_equal(choice[1].text, "second");
    free(choice);
    mf_measure_list_clear(&l);
    mf_store_close(store);
}

static void a_machine_survives_its_line(void **state) {
    (void)state;
    char line[1024];
    mf_measure_machine m = quiet_machine(), back;
    mf_measure_machine_format(&m, line, sizeof line);
    assert_ok(mf_measure_machine_parse(line, &back, NULL));
    assert_memory_equal(&m, &back, sizeof m);
    assert_int_equal(mf_measure_machine_parse("hello", &back, NULL), MF_INPUT);
    char *gone = strstr(line, "\thot=");
    assert_non_null(gone);
    memcpy(gone, "\that=", 5);
    assert_int_equal(mf_measure_machine_parse(line, &back, NULL), MF_INPUT);
}

static void company_heat_and_no_gpu_are_refused(void **state) {
    (void)state;
    mf_measure_machine m = quiet_machine();
    mf_err e = {.text = ""};
    assert_ok(mf_measure_machine_check(&m, false, &e));
    m.processes = 1;
    assert_int_equal(mf_measure_machine_check(&m, false, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "1 other process on the GPU"));
    assert_ok(mf_measure_machine_check(&m, true, &e));
    m.hot = true;
    assert_int_equal(mf_measure_machine_check(&m, true, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "throttled at 1980 MHz and 36 C"));
    m.gpus = 0;
    assert_int_equal(mf_measure_machine_check(&m, true, &e), MF_USAGE);
}

/* --- only what is missing --------------------------------------------------------------------- */

static void put(mf_store *s, const char *key, const char *gpu, const char *versions) {
    mf_point p;
    assert_ok(mf_point_parse(key, &p, NULL));
    snprintf(p.gpu, sizeof p.gpu, "%s", gpu);
    snprintf(p.versions, sizeof p.versions, "%s", versions);
    p.time_s = p.low_s = p.high_s = 1e-5;
    assert_ok(mf_store_put(s, &p, NULL));
}

/* Another GPU, another driver and another NCCL are other measurements. */
static void what_the_store_has_of_these_versions_is_left_out(void **state) {
    (void)state;
    static const char *const keys[] = {
        "gemm dtype=bf16 m=128 n=256 k=512", "gemm dtype=bf16 m=128 n=256 k=1024",
        "gemm dtype=bf16 m=128 n=256 k=2048", "all_reduce bytes=4096 ranks=2",
        "all_reduce bytes=8192 ranks=2"};
    const mf_measure_machine m = quiet_machine();
    mf_measure_list l = {NULL, 0, 0};
    mf_store *s;
    int64_t there = 0;
    assert_ok(mf_store_open(":memory:", &s, NULL));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        assert_ok(mf_measure_list_add(&l, keys[i], false, "test", NULL));
    }
    put(s, keys[0], "h200", m.versions);
    put(s, keys[1], "h100", m.versions);
    put(s, keys[2], "h200", "cuda=12.8 cublas=12.8.4");
    put(s, keys[3], "h200", "cuda=13.0 cublas=13.1.0 nccl=2.28.9");
    put(s, keys[4], "h200", m.versions);
    assert_ok(mf_measure_keep_missing(&l, s, &m, false, &there, NULL));
    assert_int_equal(there, 2);
    assert_int_equal(l.n, 3);
    char key[256];
    mf_point_format(&l.point[2], key, sizeof key);
    assert_non_null(strstr(key, "all_reduce bytes=8192"));
    mf_store_close(s);
    mf_measure_list_clear(&l);
}

static int64_t missing(mf_store *s, const char *key, bool held) {
    const mf_measure_machine m = quiet_machine();
    mf_measure_list l = {NULL, 0, 0};
    assert_ok(mf_measure_list_add(&l, key, held, "test", NULL));
    assert_ok(mf_measure_keep_missing(&l, s, &m, false, NULL, NULL));
    int64_t n = l.n;
    mf_measure_list_clear(&l);
    return n;
}

/* The same points every time, of every kind of kernel, whatever else the list holds; with their
 * energy they are there, without it they are not. */
static void energies_are_measured_of_a_share_of_the_kernels(void **state) {
    (void)state;
    static const char *const ops[] = {"gemm", "grouped_gemm", "attention", "memory", "copy"};
    const mf_measure_machine m = quiet_machine();
    mf_measure_list l = {NULL, 0, 0};
    mf_store *s;
    int seen[5] = {0};
    assert_ok(mf_measure_plan_gpu(1, &l, NULL));
    int64_t all = l.n;
    mf_measure_keep_energy(&l);
    assert_above(l.n, all / MF_ENERGY_SHARE / 2);
    assert_below(l.n, 2 * all / MF_ENERGY_SHARE);
    for (int64_t i = 0; i < l.n; i++) {
        int op = 0;
        while (op < 5 && strcmp(l.point[i].op, ops[op]) != 0) {
            op++;
        }
        assert_below(op, 5);
        seen[op]++;
    }
    for (int op = 0; op < 5; op++) {
        assert_above(seen[op], 0);
    }
    int64_t drawn = l.n;
    mf_measure_keep_energy(&l); /* nothing more goes */
    assert_int_equal(l.n, drawn);
    assert_ok(mf_store_open(":memory:", &s, NULL));
    for (int64_t i = 0; i < 2; i++) {
        mf_point p = l.point[i];
        strcpy(p.gpu, "h200");
        mf_measure_versions_of(&m, p.op, p.versions, sizeof p.versions);
        p.time_s = p.low_s = p.high_s = 1e-4;
        p.energy_J = i == 0 ? 0.05 : 0;
        p.sustained_s = i == 0 ? 1e-4 : 0;
        assert_ok(mf_store_put(s, &p, NULL));
    }
    assert_ok(mf_measure_keep_missing(&l, s, &m, true, NULL, NULL));
    assert_int_equal(l.n, drawn - 1);
    mf_store_close(s);
    mf_measure_list_clear(&l);
}

/* No price may rest on such a row: a model that needs the shape measures it again. */
static void a_held_out_row_predicts_held_out_points_only(void **state) {
    (void)state;
    static const char held[] = "gemm dtype=bf16 m=128 n=256 k=512";
    static const char fitted[] = "gemm dtype=bf16 m=128 n=256 k=1024";
    mf_store *s;
    mf_point p;
    assert_ok(mf_store_open(":memory:", &s, NULL));
    assert_ok(mf_point_parse(held, &p, NULL));
    strcpy(p.gpu, "h200");
    strcpy(p.versions, quiet_machine().versions);
    p.time_s = p.low_s = p.high_s = 1e-5;
    p.holdout = 1;
    assert_ok(mf_store_put(s, &p, NULL));
    put(s, fitted, "h200", quiet_machine().versions);
    assert_int_equal(missing(s, held, true), 0);
    assert_int_equal(missing(s, held, false), 1);
    assert_int_equal(missing(s, fitted, true), 0);
    assert_int_equal(missing(s, fitted, false), 0);
    mf_store_close(s);
}

static void a_model_needs_its_own_ops(void **state) {
    (void)state;
    mf_model *m = malloc(sizeof *m);
    mf_cluster c;
    mf_layout base;
    mf_measure_degrees one = {.tp = {1}, .cp = {1}, .ep = {8}, .etp = {1}, .mbs = {1}};
    mf_measure_list few = {NULL, 0, 0}, many = {NULL, 0, 0};
    assert_non_null(m);
    assert_ok(mf_model_load("qwen3-30b-a3b", m, NULL));
    assert_ok(mf_cluster_load("h200", &c, NULL));
    mf_layout_init(&base);
    base.seq = 4096;
    assert_ok(mf_measure_plan_model(m, &c, &base, &one, &few, NULL));
    mf_measure_degrees usual = mf_measure_degrees_usual();
    assert_ok(mf_measure_plan_model(m, &c, &base, &usual, &many, NULL));
    assert_at_least(count(&few, "grouped_gemm", false), 6); /* two products in three passes */
    assert_true(count(&few, "attention", false) == 2);
    assert_above(many.n, 4 * few.n);
    assert_below(many.n, 3000);
    one.ep[0] = 7; /* 128 experts */
    assert_int_equal(mf_measure_plan_model(m, &c, &base, &one, &few, NULL), MF_LAYOUT);
    mf_measure_list_clear(&few);
    mf_measure_list_clear(&many);
    free(m);
}

/* Nothing of it is held out: a model's prices may rest on all of it. */
static void a_model_needs_launches_the_optimizer_and_the_host_too(void **state) {
    (void)state;
    mf_measure_list l = {NULL, 0, 0};
    assert_ok(mf_measure_plan_step(&l, NULL));
    assert_int_equal(count(&l, "launch", false), 3);
    assert_at_least(count(&l, "copy_h2d", false), 6);
    assert_at_least(count(&l, "copy_d2h", false), 6);
    int adamw = 0, norm = 0;
    for (int64_t i = 0; i < l.n; i++) {
        const mf_point_dim *op = mf_point_find(&l.point[i], "op");
        assert_false(l.point[i].holdout);
        adamw += op != NULL && strcmp(op->text, "adamw") == 0;
        norm += op != NULL && strcmp(op->text, "grad_norm") == 0;
    }
    assert_at_least(adamw, 6);
    assert_at_least(norm, 6);
    mf_measure_list_clear(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_general_grid_holds_out_five_hundred_shapes),
        cmocka_unit_test(weight_gradients_are_measured_writing_too),
        cmocka_unit_test(points_are_canonical_and_stand_once),
        cmocka_unit_test(a_seed_gives_the_same_points_and_another_seed_others),
        cmocka_unit_test(between_gpus_every_link_op_is_measured_with_and_without_skew),
        cmocka_unit_test(routing_has_the_skew_that_was_asked_for),
        cmocka_unit_test(a_key_is_added_once_and_bad_ones_are_refused),
        cmocka_unit_test(ops_of_a_program_become_keys),
        cmocka_unit_test(gpus_are_called_by_the_names_of_clusters),
        cmocka_unit_test(a_measured_time_is_kept_while_its_algorithm_stays),
        cmocka_unit_test(remembered_algorithms_go_with_their_points),
        cmocka_unit_test(a_machine_survives_its_line),
        cmocka_unit_test(company_heat_and_no_gpu_are_refused),
        cmocka_unit_test(what_the_store_has_of_these_versions_is_left_out),
        cmocka_unit_test(energies_are_measured_of_a_share_of_the_kernels),
        cmocka_unit_test(a_held_out_row_predicts_held_out_points_only),
        cmocka_unit_test(a_model_needs_its_own_ops),
        cmocka_unit_test(a_model_needs_launches_the_optimizer_and_the_host_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
