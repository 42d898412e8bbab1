/* Routing: words, files with clear errors, and loads that follow from the counts. */
#include "simulator/sim.h"
#include "tests/support/models.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static const char *file_of(const char *text, size_t length) {
    strcpy(path, "/tmp/mf_routing_XXXXXX");
    int fd = mkstemp(path);
    assert_at_least(fd, 0);
    assert_true(write(fd, text, length) == (ssize_t)length);
    assert_true(close(fd) == 0);
    return path;
}

static mf_status parse_file(const char *text, mf_routing *r, mf_err *e) {
    mf_err_clear(e);
    mf_status status = mf_routing_parse(file_of(text, strlen(text)), r, e);
    unlink(path);
    return status;
}

static void words_are_read(void **state) {
    (void)state;
    mf_routing r;
    mf_err e;
    assert_ok(mf_routing_parse("balanced", &r, &e));
    assert_int_equal(r.kind, MF_ROUTING_BALANCED);
    assert_ok(mf_routing_parse("zipf:0.75", &r, &e));
    assert_int_equal(r.kind, MF_ROUTING_ZIPF);
    assert_close(r.zipf_s, 0.75, 0);
    const char *const bad[] = {"zipf:", "zipf:-1", "zipf:nan", "zipf:1x", "zipf:9", "zipf:inf"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(mf_routing_parse(bad[i], &r, &e), MF_USAGE);
    }
    assert_int_equal(mf_routing_parse("/no/such/file", &r, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "zipf:S"));
    assert_int_equal(mf_routing_parse("/tmp", &r, &e), MF_INPUT);
}

static void counts_come_from_json_and_csv_alike(void **state) {
    (void)state;
    const char *const text[] = {"[[1, 2, 3, 2],\n [0, 0, 8, 0]]\n",
                                "# layer 1 and 2\n1,2, 3,2\r\n \t\n  # 2\n0 ,0,8e0,0"};
    for (int i = 0; i < 2; i++) {
        mf_routing r;
        mf_err e;
        if (parse_file(text[i], &r, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
        assert_int_equal(r.kind, MF_ROUTING_HISTOGRAM);
        assert_int_equal(r.layers, 2);
        assert_int_equal(r.experts, 4);
        mf_model m = test_model_moe(false);
        m.experts = 4;
        assert_ok(mf_routing_check(&r, &m, &e));
        double load[4];
        mf_routing_loads(&r, &m, 2, 0, load);
        assert_close(load[0], 0.75, 1e-15);
        assert_close(load[1], 1.25, 1e-15);
        assert_close(mf_routing_max_load(&r, &m, 4, 1), 4.0, 1e-15);
        assert_close(mf_routing_max_load(&r, &m, 2, 2), 1.25, 1e-15); /* starts over */
        assert_close(mf_routing_max_load(&r, &m, 1, 1), 1.0, 0);
        m.experts = 8;
        assert_int_equal(mf_routing_check(&r, &m, &e), MF_INPUT);
        mf_routing_clear(&r);
        assert_null(r.counts);
    }
}

static void bad_files_are_refused_with_their_position(void **state) {
    (void)state;
    static const struct {
        const char *text, *where;
    } bad[] = {
        {"", ":1:1: "},
        {"# only a comment\n", ":1:1: "},
        {"1,2\n3\n", ":2:1: expected 2 counts"},
        {"1,2\n3,4,5\n", ":2:1: expected 2 counts"},
        {"1,x\n", ":1:3: expected a count"},
        {"1,,2\n", ":1:3: expected a count"},
        {"1,2,\n", ":1:5: expected a count"},
        {"1,-2\n", ":1:3: expected a count"},
        {"1,0x10\n", ":1:3: expected a count"},
        {"1,1e300\n", ":1:3: expected a count"},
        {"1;2\n", ":1:1: expected a count of tokens, got \"1;2\""},
        {"1,\"2\n", ":1:3: quoted field"},
        {"0,0\n", ":1:1: a layer needs"},
        {"[]", ":1:1: expected one array"},
        {"{\"a\": [1]}", ":1:1: expected"},
        {"[[1, 2],\n [1]]", ":2:2: expected 2 counts"},
        {"[[1, -2]]", ":1:6: expected"},
        {"[[1, \"a\"]]", ":1:6: expected"},
        {"[1, 2]", ":1:2: expected"},
        {"[[]]", ":1:2: a layer needs"},
        {"[[1, 2]", ""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mf_routing r;
        mf_err e;
        if (parse_file(bad[i].text, &r, &e) != MF_INPUT || !strstr(e.text, bad[i].where)) {
            fail_msg("\"%s\": %s (expected %s)", bad[i].text, e.text, bad[i].where);
        }
        assert_null(r.counts);
    }
    mf_routing r;
    mf_err e;
    assert_int_equal(mf_routing_parse(file_of("1,2\0\n3,4", 8), &r, &e), MF_INPUT);
    assert_non_null(strstr(e.text, ":1:3: expected text"));
    unlink(path);
}

static void loads_average_to_one_and_grow_with_the_exponent(void **state) {
    (void)state;
    mf_model m = test_model_moe(false);
    for (int64_t ep = 2; ep <= m.experts; ep *= 2) {
        double before = 1.0;
        for (int s = 0; s <= 8; s++) {
            mf_routing r = {.kind = MF_ROUTING_ZIPF, .zipf_s = s / 4.0};
            double mean_max = 0;
            for (int64_t layer = 0; layer < 40; layer++) {
                double load[64], sum = 0, most = 0;
                mf_routing_loads(&r, &m, ep, layer, load);
                for (int64_t k = 0; k < ep; k++) {
                    sum += load[k];
                    most = fmax(most, load[k]);
                }
                assert_close(sum, (double)ep, 1e-12 * (double)ep);
                assert_close(most, mf_routing_max_load(&r, &m, ep, layer), 1e-12);
                mean_max += most / 40;
            }
            /* Beyond, the most popular ones have every token, and the next ones catch up. */
            if (s > 0 && s <= 4) {
                assert_above(mean_max, before);
            }
            assert_true(s > 0 || fabs(mean_max - 1) < 1e-12);
            before = mean_max;
        }
    }
}

/* A token chooses top_k different experts: even the most popular one gets each token once. */
static void no_expert_gets_a_token_twice(void **state) {
    (void)state;
    mf_model m;
    mf_err e;
    double load[128], least;
    assert_ok(mf_model_load("qwen3-30b-a3b", &m, &e));
    const double all = (double)m.experts / (double)m.top_k;
    for (double s = 0.5; s <= 3; s += 0.25) {
        const mf_routing r = {.kind = MF_ROUTING_ZIPF, .zipf_s = s};
        double sum = 0, most = 0;
        mf_routing_loads(&r, &m, m.experts, 3, load);
        least = all;
        for (int64_t i = 0; i < m.experts; i++) {
            sum += load[i];
            most = fmax(most, load[i]);
            least = fmin(least, load[i]);
        }
        assert_close(sum, (double)m.experts, 1e-9 * sum);
        assert_at_most(most, all * (1 + 1e-12));
        assert_at_least(most, s < 1 ? 4 : all * (1 - 1e-12));
        assert_above(least, 0);
    }
}

static void hot_experts_differ_by_layer_and_seed(void **state) {
    (void)state;
    mf_model m = test_model_moe(false);
    mf_routing r = {.kind = MF_ROUTING_ZIPF, .zipf_s = 1};
    double a[32], b[32], c[32];
    mf_routing_loads(&r, &m, 32, 0, a);
    mf_routing_loads(&r, &m, 32, 1, b);
    r.seed = 1;
    mf_routing_loads(&r, &m, 32, 0, c);
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
    r.seed = 0;
    mf_routing_loads(&r, &m, 32, 0, b);
    assert_memory_equal(a, b, sizeof a);
}

static void an_expert_takes_no_more_than_it_has_capacity_for(void **state) {
    (void)state;
    mf_model m = test_model_moe(false);
    m.experts = 4;
    double counts[4] = {4, 2, 1, 1}, load[2];
    mf_routing r = {.kind = MF_ROUTING_HISTOGRAM, .layers = 1, .experts = 4, .counts = counts};
    mf_routing_loads(&r, &m, 2, 0, load);
    assert_close(load[0], 1.5, 1e-12);
    r.most = 1.25; /* of two rows: 2.5 of the four, and all of the others */
    mf_routing_loads(&r, &m, 2, 0, load);
    assert_close(load[0], 4.5 / 4, 1e-12);
    assert_close(load[1], 0.5, 1e-12);
    r = (mf_routing){.kind = MF_ROUTING_ZIPF, .zipf_s = 1, .most = 1.25};
    m.experts = 32;
    for (int64_t layer = 0; layer < 8; layer++) {
        assert_at_most(mf_routing_max_load(&r, &m, 8, layer), 1.25);
        assert_at_least(mf_routing_max_load(&r, &m, 32, layer), 1.25 - 1e-12);
    }
    r.most = 1; /* each rank holds a cold expert */
    m.experts = 8;
    r.zipf_s = 3;
    mf_routing_loads(&r, &m, 2, 0, load);
    assert_below(load[0], 1);
    assert_below(load[1], 1);
    assert_close(mf_routing_max_load(&r, &m, 2, 0), 1, 0);
}

/* The table that a search reads holds what is worked out without one, to the bit, and answers for
 * nothing but the model and the routing that it is of. */
static void a_table_of_loads_changes_no_answer(void **state) {
    (void)state;
    mf_model m, other;
    mf_err e;
    double counts[2 * 256];
    assert_ok(mf_model_load("deepseek-v3", &m, &e));
    other = m;
    other.top_k = 2; /* else the most popular expert has no more than each token once */
    for (int i = 0; i < 2 * 256; i++) {
        counts[i] = 1 + (i * 37) % 101;
    }
    const mf_routing kinds[] = {
        {.kind = MF_ROUTING_ZIPF, .zipf_s = 0.9, .seed = 1},
        {.kind = MF_ROUTING_ZIPF, .zipf_s = 0.9, .seed = 1, .most = 1.5},
        {.kind = MF_ROUTING_HISTOGRAM, .layers = 2, .experts = 256, .counts = counts},
    };
    for (int k = 0; k < 3; k++) {
        const mf_routing plain = kinds[k];
        mf_routing r = plain;
        mf_routing_tabulate(&r, &m);
        assert_non_null(r.table);
        for (int64_t ep = 1; ep <= 256; ep *= 2) {
            for (int64_t layer = 0; layer < 62; layer++) { /* more than there are */
                const double most = mf_routing_max_load(&plain, &m, ep, layer);
                assert_true(mf_routing_max_load(&r, &m, ep, layer) == most);
                mf_routing changed = r, without = plain;
                changed.seed = without.seed = 7;
                assert_true(mf_routing_max_load(&changed, &m, ep, layer) ==
                            mf_routing_max_load(&without, &m, ep, layer));
                changed = r, without = plain;
                changed.most = without.most = 1.05;
                assert_true(mf_routing_max_load(&changed, &m, ep, layer) ==
                            mf_routing_max_load(&without, &m, ep, layer));
                assert_true(mf_routing_max_load(&r, &other, ep, layer) ==
                            mf_routing_max_load(&plain, &other, ep, layer));
            }
        }
        r.counts = NULL; /* borrowed */
        mf_routing_clear(&r);
        assert_null(r.table);
    }
    mf_routing even;
    mf_routing_init(&even);
    mf_routing_tabulate(&even, &m);
    assert_null(even.table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_read),
        cmocka_unit_test(counts_come_from_json_and_csv_alike),
        cmocka_unit_test(bad_files_are_refused_with_their_position),
        cmocka_unit_test(loads_average_to_one_and_grow_with_the_exponent),
        cmocka_unit_test(no_expert_gets_a_token_twice),
        cmocka_unit_test(hot_experts_differ_by_layer_and_seed),
        cmocka_unit_test(an_expert_takes_no_more_than_it_has_capacity_for),
        cmocka_unit_test(a_table_of_loads_changes_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
