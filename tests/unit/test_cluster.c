/* Clusters: the shipped ones hold the published figures beside their sources; users' files may use
 * any unit, extend known clusters, and are refused with a position when something is off. */
#include "core/base/paths.h"
#include "tests/support/test.h"

#include "core/cluster/cluster.h"
#include "core/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static mf_err e;

static mf_cluster load(const char *name) {
    mf_cluster c;
    mf_err_clear(&e);
    if (mf_cluster_load(name, &c, &e) != MF_OK) {
        fail_msg("%s: %s", name, e.text);
    }
    return c;
}

static mf_status parse(const char *text, mf_cluster *c) {
    mf_json *doc = NULL;
    mf_err_clear(&e);
    mf_status st = mf_json_parse("c.json", text, strlen(text), &doc, &e);
    st = st == MF_OK ? mf_cluster_from_json(doc, c, &e) : st;
    mf_json_destroy(doc);
    return st;
}

static mf_cluster parse_ok(const char *text) {
    mf_cluster c;
    if (parse(text, &c) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return c;
}

static void expect_refused(const char *text, const char *want) {
    mf_cluster c;
    memset(&c, 7, sizeof c);
    mf_cluster before = c;
    assert_int_equal(parse(text, &c), MF_INPUT);
    if (strstr(e.text, want) == NULL) {
        fail_msg("expected \"%s\" in: %s", want, e.text);
    }
    assert_non_null(strstr(e.text, ".json:"));
    assert_null(strchr(e.text, '\n'));
    assert_memory_equal(&c, &before, sizeof c); /* a failure leaves the result alone */
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-9 * fabs(b);
}

/* --- shipped -------------------------------------------------------------------------------- */

static void every_shipped_cluster_loads_under_its_name(void **state) {
    (void)state;
    size_t count;
    const char *const *names = mf_cluster_shipped(&count);
    assert_int_equal(count, 13);
    for (size_t i = 0; i < count; i++) {
        mf_cluster c = load(names[i]);
        assert_string_equal(c.name, names[i]);
        assert_string_equal(c.gpu.name, names[i]); /* the profile store's word */
        assert_true(i == 0 || strcmp(names[i - 1], names[i]) < 0);
        assert_above(c.tiers, 0);
        assert_true(c.tier[c.tiers - 1].gpus == INT64_MAX);
        assert_above(c.nic_Bps, 0);
        assert_above(c.host_Bps, 0);
        assert_true(c.host_shared_Bps >= c.host_Bps || strcmp(names[i], "cpu") == 0);
        assert_above(c.gpu.memory_B, 0);
        assert_above(c.gpu.power_w, 0);
        assert_int_equal(c.doubts, 0);
        assert_true(strcmp(names[i], "cpu") == 0 || near(c.mtbf_gpu_h, 50677));
    }
}

static void figures_are_those_of_the_published_tables(void **state) {
    (void)state;
    mf_cluster c = load("h200");
    assert_true(near(c.gpu.peak_flops[MF_MATH_BF16], 989e12));
    assert_true(near(c.gpu.peak_flops[MF_MATH_FP8], 1979e12));
    assert_true(c.gpu.peak_flops[MF_MATH_FP4] == 0.0);
    assert_true(near(c.gpu.measured_flops[MF_MATH_BF16], 803e12));
    assert_true(near(c.gpu.memory_B, 143771.0 * 1048576.0));
    assert_true(near(c.gpu.memory_Bps, 4.8e12));
    assert_true(near(c.gpu.memory_measured_Bps, 4.3e12));
    assert_true(near(c.scaleup_Bps, 450e9));
    assert_true(near(c.scaleup_effective_Bps, 370.8e9));
    assert_true(near(c.nic_Bps, 50e9));
    assert_true(near(c.host_Bps, 63e9));
    assert_true(near(c.host_shared_Bps, 450e9));
    assert_int_equal(c.gpu.sms, 132);
    assert_true(near(c.price_usd_gpu_h, 6.305));
    assert_true(near(c.scaleup_latency_s, 0.6e-6));
    assert_int_equal(c.gpus_per_node, 8);
    assert_int_equal(c.domain_gpus_used, 8);
    c = load("gb300");
    assert_int_equal(c.gpus_per_node, 4);
    assert_int_equal(c.domain_gpus, 72);
    assert_int_equal(c.domain_gpus_used, 64);
    assert_true(near(c.gpu.peak_flops[MF_MATH_FP4], 15e15));
    assert_true(near(c.nic_Bps, 100e9));
    c = load("mi300x");
    assert_true(near(c.scaleup_pair_Bps, 64e9));
    assert_true(near(c.scaleup_effective_Bps, 312.9e9));
    c = load("h20");
    assert_true(c.price_usd_gpu_h == 0.0); /* none found */
    c = load("a100");
    assert_true(near(c.gpu.measured_flops[MF_MATH_BF16], 271.2e12));
}

/* Every number in a shipped file is an object that names its source and date. */
static void check_sources(const mf_json_value *v, const char *file) {
    if (mf_json_value_type(v) == MF_JSON_NUMBER) {
        fail_msg("%s:%d: a figure without a source", file, mf_json_line(v));
    }
    const char *text;
    if (mf_json_value_type(v) == MF_JSON_OBJECT && mf_json_find(v, "value") != NULL) {
        assert_ok(mf_json_get_string(v, "source", &text, NULL));
        assert_above(strlen(text), 3);
        assert_ok(mf_json_get_string(v, "date", &text, NULL));
        assert_at_least(strlen(text), 4);
        return;
    }
    for (size_t i = 0; i < mf_json_size(v); i++) {
        check_sources(mf_json_at(v, i), file);
    }
}

static void every_shipped_figure_names_its_source_and_date(void **state) {
    (void)state;
    size_t count;
    const char *const *names = mf_cluster_shipped(&count);
    for (size_t i = 0; i < count; i++) {
        char path[1024];
        mf_json *doc;
        snprintf(path, sizeof path, "%s/clusters/%s.json", mf_data_dir(), names[i]);
        assert_ok(mf_json_load(path, &doc, &e));
        check_sources(mf_json_root(doc), names[i]);
        mf_json_destroy(doc);
    }
}

static void unknown_names_are_refused_with_the_nearest_known(void **state) {
    (void)state;
    mf_cluster c;
    assert_int_equal(mf_cluster_load("h201", &c, &e), MF_USAGE);
    assert_non_null(strstr(e.text, "did you mean \"h20"));
    assert_int_equal(mf_cluster_load("toaster", &c, &e), MF_USAGE);
    assert_non_null(strstr(e.text, "known: a100 a100-40 b200"));
    assert_int_equal(mf_cluster_load("./none.json", &c, &e), MF_INPUT);
}

/* --- own files ------------------------------------------------------------------------------ */

#define GPU_KEYS                                                                                   \
    "\"gpu\": {\"name\": \"x1\", \"memory_GiB\": 64, \"memory_TBps\": 3, \"peak_bf16_tflops\": "   \
    "500, \"sms\": 100}"
#define NODE_KEYS "\"gpus_per_node\": 4, \"scaleup_GBps\": 300, \"host_GBps\": 32"

static void a_small_file_is_enough_and_the_rest_is_filled_in(void **state) {
    (void)state;
    mf_cluster c = parse_ok("{" GPU_KEYS ", " NODE_KEYS "}");
    assert_string_equal(c.name, "x1");
    assert_true(c.gpu.memory_B == 68719476736.0);
    assert_true(near(c.gpu.memory_Bps, 3e12));
    assert_int_equal(c.domain_gpus, 4);
    assert_int_equal(c.domain_gpus_used, 4);
    assert_true(near(c.scaleup_pair_Bps, 300e9));
    assert_true(near(c.nic_efficiency, 0.95));
    assert_int_equal(c.tiers, 1);
    assert_true(c.max_gpus == 4.0); /* no network was given */
    c = parse_ok("{" GPU_KEYS ", " NODE_KEYS ", \"nic_Gbitps\": 100}");
    assert_true(near(c.nic_Bps, 12.5e9));
    assert_true(c.max_gpus == 0.0);
}

static void figures_may_carry_source_date_and_note(void **state) {
    (void)state;
    mf_cluster c = parse_ok("{\"extends\": \"h100\", \"price_usd_gpu_h\": {\"value\": 2.5, "
                            "\"source\": \"our contract\", \"date\": \"2026\", \"note\": \"n\"}}");
    assert_true(c.price_usd_gpu_h == 2.5);
    expect_refused("{\"extends\": \"h100\", \"price_usd_gpu_h\": {\"source\": \"x\"}}",
                   "c.json:1:40: \"value\" is missing");
    expect_refused("{\"extends\": \"h100\", \"price_usd_gpu_h\": {\"value\": 1, \"sorce\": \"x\"}}",
                   "did you mean \"source\"");
    expect_refused("{\"extends\": \"h100\", \"price_usd_gpu_h\": \"2.5\"}",
                   "c.json:1:40: \"price_usd_gpu_h\": expected a number, or {\"value\"");
}

static void extending_changes_only_what_is_written(void **state) {
    (void)state;
    mf_cluster base = load("h100");
    mf_cluster c =
        parse_ok("{\"extends\": \"h100\", \"name\": \"ours\", \"gpu\": {\"power_w\": 650},"
                 " \"nic_Gbitps\": 200}");
    assert_string_equal(c.name, "ours");
    assert_true(c.gpu.power_w == 650.0);
    assert_true(near(c.nic_Bps, 25e9));
    strcpy(base.name, "ours");
    memset(base.name + 4, 0, sizeof base.name - 4);
    base.gpu.power_w = 650.0;
    base.nic_Bps = c.nic_Bps;
    assert_true(c.scaleup_effective_Bps == base.scaleup_effective_Bps);
    assert_true(c.tiers == base.tiers);
    assert_true(c.tier[0].gpus == 256);
    assert_string_equal(c.gpu.name, "h100");
}

static void a_node_of_another_size_takes_its_domain_along(void **state) {
    (void)state;
    mf_cluster c = parse_ok("{\"extends\": \"h200\", \"gpus_per_node\": 4}");
    assert_int_equal(c.domain_gpus, 4);
    assert_int_equal(c.domain_gpus_used, 4);
    c = parse_ok("{\"extends\": \"gb200\", \"gpus_per_node\": 2}");
    assert_int_equal(c.domain_gpus, 72);
    c = parse_ok("{\"extends\": \"gb200\", \"domain_gpus\": 36}");
    assert_int_equal(c.domain_gpus_used, 36);
}

static void measured_rates_do_not_outlive_the_data_sheet_rate_they_belong_to(void **state) {
    (void)state;
    mf_cluster c = parse_ok("{\"extends\": \"h200\", \"gpu\": {\"peak_bf16_tflops\": 600, "
                            "\"memory_TBps\": 4}, \"scaleup_GBps\": 200}");
    assert_true(c.gpu.measured_flops[MF_MATH_BF16] == 0.0);
    assert_true(c.gpu.memory_measured_Bps == 0.0);
    assert_true(near(c.gpu.measured_flops[MF_MATH_FP8], 1500e12)); /* its peak stands */
    assert_true(c.scaleup_effective_Bps == 0.0);
    assert_true(near(c.scaleup_pair_Bps, 200e9));
}

static void units_may_be_any_of_their_kind(void **state) {
    (void)state;
    mf_cluster c =
        parse_ok("{\"extends\": \"h100\", \"gpu\": {\"memory_MiB\": 1024, \"l2_KiB\": 64, "
                 "\"power_kw\": 0.5, \"peak_fp8_pflops\": 2}, \"nic_GBps\": 25, "
                 "\"nic_latency_ns\": 1500, \"host_memory_TiB\": 1}");
    assert_true(c.gpu.memory_B == 1073741824.0);
    assert_true(c.gpu.l2_B == 65536.0);
    assert_true(near(c.gpu.power_w, 500));
    assert_true(near(c.gpu.peak_flops[MF_MATH_FP8], 2e15));
    assert_true(near(c.nic_Bps, 25e9));
    assert_true(near(c.nic_latency_s, 1.5e-6));
    assert_true(c.host_memory_B == 1099511627776.0);
}

static void tiers_are_read_from_near_to_far(void **state) {
    (void)state;
    mf_cluster c =
        parse_ok("{\"extends\": \"h100\", \"tiers\": [{\"name\": \"rack\", \"gpus\": 32}, "
                 "{\"gpus\": 3072, \"latency_us\": 1}, {\"oversubscription\": 7}]}");
    assert_int_equal(c.tiers, 3);
    assert_string_equal(c.tier[0].name, "rack");
    assert_string_equal(c.tier[1].name, "tier 2");
    assert_true(c.tier[1].oversubscription == 1.0);
    assert_true(near(c.tier[1].latency_s, 1e-6));
    assert_true(c.tier[2].gpus == INT64_MAX);
    assert_true(c.tier[2].oversubscription == 7.0);
}

static void mistakes_are_refused_where_they_stand(void **state) {
    (void)state;
    expect_refused("[]", "c.json:1:1: expected");
    expect_refused("{}", "c.json:1:1: \"gpu\" is missing");
    expect_refused("{\"gpu\": {\"name\": \"x\"}}", "\"peak_bf16_flops\" is missing (or start from");
    expect_refused("{" GPU_KEYS "}", "\"gpus_per_node\" is missing");
    expect_refused("{" GPU_KEYS ", " NODE_KEYS ", \"nick_Gbitps\": 1}",
                   "unknown key \"nick_Gbitps\"");
    expect_refused("{\"extends\": \"h100\", \"gpus_pre_node\": 4}",
                   "c.json:1:38: unknown key \"gpus_pre_node\": did you mean \"gpus_per_node\"?");
    expect_refused(
        "{\"extends\": \"h100\", \"gpu\": {\"memory_GBit\": 4}}",
        "unknown key \"memory_GBit\": expected one of these units: B KB MB GB TB KiB MiB "
        "GiB TiB Bps MBps GBps TBps Gbitps Tbitps");
    expect_refused("{\"extends\": \"h100\", \"memory_GB\": 90}",
                   "c.json:1:34: unknown key \"memory_GB\" here: it belongs in \"gpu\"");
    expect_refused("{\"extends\": \"h100\", \"gpu\": {\"nic_Gbitps\": 400}}",
                   "unknown key \"nic_Gbitps\" here: it belongs beside \"gpu\", not in it");
    expect_refused("{\"extends\": \"h100\", \"oversubscription\": 3}",
                   "here: it belongs in one of \"tiers\"");
    expect_refused("{\"extends\": \"h100\", \"nic\": 50}",
                   "unknown key \"nic\": expected one of these units: Bps MBps");
    expect_refused("{\"extends\": \"h100\", \"gpu\": {\"memory_GB\": 80000000000}}",
                   "\"memory_GB\": expected 0.001 to 100000, got 8e+10");
    expect_refused("{\"extends\": \"h100\", \"gpus_per_node\": 2.5}",
                   "\"gpus_per_node\": expected a whole number, got 2.5");
    expect_refused("{\"extends\": \"h100\", \"gpus_per_node\": 0}", "expected 1 to 1024, got 0");
    expect_refused("{\"extends\": \"h100\", \"gpus_per_node\": null}", "expected a number");
    expect_refused("{\"extends\": \"h100\", \"nic_GBps\": 50, \"nic_Gbitps\": 400}",
                   "\"nic\" stands twice, in different units");
    expect_refused("{\"extends\": \"h100\", \"gpu\": 7}",
                   "c.json:1:28: \"gpu\": expected an object, got 7");
    expect_refused("{\"extends\": \"h100\", \"name\": \"a/b\"}",
                   "\"name\": expected 1 to 63 letters");
    expect_refused("{\"extends\": \"h10\"}", "\"extends\": unknown cluster \"h10\": did you mean");
    expect_refused("{\"extends\": 5}", "\"extends\": expected");
    expect_refused("{\"extends\": \"h100\", \"tiers\": []}", "expected 1 to 4 tiers, got 0");
    expect_refused("{\"extends\": \"h100\", \"tiers\": [{}, {}]}", "\"gpus\" is missing");
    expect_refused("{\"extends\": \"h100\", \"tiers\": [{\"gpus\": 64}, {\"gpus\": 32}, {}]}",
                   "a tier must reach more GPUs than the one before it");
    expect_refused("{\"extends\": \"h100\", \"tiers\": [{\"oversubscription\": 0.5}]}",
                   "expected 1 to 1000, got 0.5");
}

static void figures_that_contradict_each_other_are_refused(void **state) {
    (void)state;
    expect_refused("{\"extends\": \"h100\", \"domain_gpus\": 8, \"domain_gpus_used\": 16}",
                   "\"domain_gpus_used\" 16 is more than \"domain_gpus\" 8");
    expect_refused("{\"extends\": \"h100\", \"scaleup_effective_GBps\": 500}", "cannot exceed");
    expect_refused("{\"extends\": \"h100\", \"gpu\": {\"measured_bf16_tflops\": 1000}}",
                   "\"measured_bf16_flops\" 1e+15 exceeds the peak 9.89e+14");
    expect_refused("{\"extends\": \"h100\", \"gpu\": {\"memory_measured_TBps\": 4}}", "exceeds");
}

static void null_means_not_known(void **state) {
    (void)state;
    mf_cluster c =
        parse_ok("{\"extends\": \"h100\", \"price_usd_gpu_h\": null, \"mtbf_gpu_h\": null}");
    assert_true(c.price_usd_gpu_h == 0.0);
    assert_true(c.mtbf_gpu_h == 0.0);
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void files_extend_files_beside_them_but_not_themselves(void **state) {
    (void)state;
    char folder[] = "/tmp/mf_cluster_XXXXXX", path[64], command[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/base.json", folder);
    write_file(path, "{\"extends\": \"h100\", \"node_overhead_w\": 111}");
    snprintf(path, sizeof path, "%s/site.json", folder);
    write_file(path, "{\"extends\": \"base.json\", \"price_usd_gpu_h\": 1}");
    mf_cluster c = load(path);
    assert_string_equal(c.name, "site");
    assert_true(c.node_overhead_w == 111.0);
    assert_true(c.price_usd_gpu_h == 1.0);
    write_file(path, "{\"extends\": \"site.json\"}");
    assert_int_equal(mf_cluster_load(path, &c, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "does it extend itself?"));
    write_file(path, "{\"extends\": \"h100\", \"gpu\": {\"sms\":");
    assert_int_equal(mf_cluster_load(path, &c, &e), MF_INPUT);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

/* --- arithmetic ----------------------------------------------------------------------------- */

static void links_slow_down_with_reach(void **state) {
    (void)state;
    double Bps, latency_s;
    mf_cluster c =
        parse_ok("{\"extends\": \"h100\", \"tiers\": [{\"gpus\": 256}, {\"gpus\": 1024, "
                 "\"oversubscription\": 2, \"latency_us\": 1}, {\"oversubscription\": 7}]}");
    assert_true(mf_cluster_link(&c, 8, &Bps, &latency_s));
    assert_true(near(Bps, 370.8e9));
    assert_true(near(latency_s, 0.6e-6));
    assert_false(mf_cluster_link(&c, 9, &Bps, &latency_s));
    assert_true(near(Bps, 0.95 * 50e9));
    assert_true(near(latency_s, 2.7e-6));
    assert_false(mf_cluster_link(&c, 256, &Bps, &latency_s));
    assert_true(near(Bps, 0.95 * 50e9));
    assert_false(mf_cluster_link(&c, 257, &Bps, &latency_s));
    assert_true(near(Bps, 0.95 * 25e9));
    assert_true(near(latency_s, 3.7e-6));
    assert_false(mf_cluster_link(&c, 100000, &Bps, &latency_s));
    assert_true(near(Bps, 0.95 * 50e9 / 7));
}

static void the_domain_is_what_a_job_uses_of_it(void **state) {
    (void)state;
    double Bps, latency_s;
    mf_cluster c = load("gb200");
    assert_true(mf_cluster_link(&c, 64, &Bps, &latency_s));
    assert_false(mf_cluster_link(&c, 65, &Bps, &latency_s));
}

static void a_mesh_gives_one_link_for_each_other_gpu(void **state) {
    (void)state;
    double two, eight, latency_s;
    mf_cluster c = load("mi300x");
    assert_true(mf_cluster_link(&c, 2, &two, &latency_s));
    assert_true(mf_cluster_link(&c, 8, &eight, &latency_s));
    assert_true(near(eight, 312.9e9));
    assert_true(near(two, 312.9e9 / 7)); /* measured: 47.7 GB/s on two, 312.9 on eight */
    c = load("mi325x");                  /* nobody has published what its collectives reach */
    assert_true(mf_cluster_link(&c, 8, &eight, &latency_s));
    assert_true(near(eight, 0.8 * 448e9));
}

/* Whatever figure of its links gets better alone, and on a switch too. */
static void no_better_figure_of_links_slows_a_group_down(void **state) {
    (void)state;
    static const char *const names[] = {"mi300x", "mi325x", "mi355x", "h100", "a100", "gb200"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (int which = 0; which < 4; which++) {
            mf_cluster c = load(names[i]), better = c;
            double *const figure[] = {&better.scaleup_Bps, &better.scaleup_effective_Bps,
                                      &better.scaleup_pair_Bps, &better.scaleup_pair_effective_Bps};
            *figure[which] *= 1.5;
            for (int64_t span = 2; span <= 8; span++) {
                double before, after, latency_s;
                mf_cluster_link(&c, span, &before, &latency_s);
                mf_cluster_link(&better, span, &after, &latency_s);
                if (after < before) {
                    fail_msg("%s, figure %d, %d GPUs: %g after %g", names[i], which, (int)span,
                             after, before);
                }
            }
        }
    }
}

static void a_file_says_what_collectives_reach_of_a_link_or_the_rest_tells(void **state) {
    (void)state;
    mf_cluster c = parse_ok("{\"extends\": \"mi300x\", \"scaleup_effective_GBps\": 400}");
    assert_true(near(c.scaleup_pair_effective_Bps, 44.7e9 * 400 / 312.9));
    c = parse_ok("{\"extends\": \"mi300x\", \"scaleup_GBps\": 672}");
    assert_true(near(c.scaleup_pair_effective_Bps, 0.8 * 96e9));
    c = parse_ok("{\"extends\": \"mi300x\", \"scaleup_pair_GBps\": 80}");
    assert_true(near(c.scaleup_pair_effective_Bps, 0.8 * 80e9));
    c = parse_ok("{\"extends\": \"h100\", \"scaleup_pair_GBps\": 450}");
    assert_true(c.scaleup_pair_effective_Bps == 0); /* a switch */
    c = parse_ok("{\"extends\": \"h100\", \"scaleup_pair_GBps\": 64}");
    assert_true(near(c.scaleup_pair_effective_Bps, 0.8 * 64e9));
    c = parse_ok("{" GPU_KEYS ", " NODE_KEYS ", \"scaleup_pair_GBps\": 100}");
    assert_true(near(c.scaleup_pair_effective_Bps, 0.8 * 100e9));
    expect_refused("{\"extends\": \"mi300x\", \"scaleup_pair_effective_GBps\": 65}",
                   "cannot exceed");
}

/* What a node's GPUs share of its memory: not known where a file does not say, and no less than
 * what one of them takes. */
static void a_nodes_memory_may_limit_its_gpus(void **state) {
    (void)state;
    char plain[20], shared[20];
    mf_cluster c = parse_ok("{" GPU_KEYS ", " NODE_KEYS "}");
    assert_true(c.host_shared_Bps == 0);
    mf_cluster_fingerprint(&c, plain);
    c = parse_ok("{" GPU_KEYS ", " NODE_KEYS ", \"host_shared_TBps\": 0.4}");
    assert_true(near(c.host_shared_Bps, 400e9));
    mf_cluster_fingerprint(&c, shared);
    assert_string_not_equal(plain, shared);
    c = parse_ok("{\"extends\": \"h100\", \"host_shared_GBps\": null}");
    assert_true(c.host_shared_Bps == 0);
    c = parse_ok("{\"extends\": \"h100\", \"gpus_per_node\": 4}");
    assert_true(near(c.host_shared_Bps, 450e9));
    expect_refused("{\"extends\": \"h100\", \"host_shared_GBps\": 60}",
                   "which one of its GPUs takes alone");
}

static void the_reserve_is_withheld_from_capacity(void **state) {
    (void)state;
    mf_cluster c = load("h100");
    assert_true(near(mf_cluster_usable_B(&c, 0.05), 0.95 * 81559.0 * 1048576.0));
}

static void a_gpus_driver_name_says_its_cluster(void **state) {
    (void)state;
    static const char *const names[][2] = {
        {"NVIDIA H100 80GB HBM3", "h100"}, {"NVIDIA H200", "h200"},
        {"NVIDIA GH200 480GB", "h200"},    {"NVIDIA H20", "h20"},
        {"NVIDIA GeForce RTX 4090", NULL}, {"", NULL}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *cluster = mf_cluster_of_gpu(names[i][0]);
        mf_cluster c;
        if (names[i][1] == NULL) {
            assert_null(cluster);
        } else {
            assert_string_equal(cluster, names[i][1]);
            assert_ok(mf_cluster_load(cluster, &c, NULL));
        }
    }
}

/* Possible, but no GPU that trains is like that: a line with the place, what is usual, what was
 * found and the nearest unit that fits. */
static void a_figure_in_a_wrong_unit_is_doubted_where_it_stands(void **state) {
    (void)state;
    static const struct {
        const char *text, *says; /* NULL: nothing */
    } cases[] = {
        {"{\"extends\": \"h100\",\n \"gpu\": {\"memory_MiB\": 80}}",
         "c.json:2:24: \"memory_MiB\": expected 8 GB to 2 TB, got 80: was \"memory_GiB\" meant?"},
        {"{\"extends\": \"h100\", \"nic_GBps\": {\"value\": 400}}",
         "c.json:1:33: \"nic_GBps\": expected 0.1 to 250 GB/s (2 Tbit/s) a GPU and direction, got "
         "400: was \"nic_Gbitps\" meant?"},
        {"{\"extends\": \"h100\", \"scaleup_GBps\": 3600}", "was \"scaleup_Gbitps\" meant?"},
        {"{\"extends\": \"h100\", \"gpu\": {\"peak_bf16_pflops\": 989}}",
         "got 989: was \"peak_bf16_tflops\" meant?"},
        {"{\"extends\": \"h100\", \"gpu\": {\"memory_TBps\": 335}}",
         "expected 0.1 to 100 TB/s, got 335"},
        {"{\"extends\": \"h100\", \"price_usd_gpu_h\": 400}",
         "\"price_usd_gpu_h\": expected 0.1 to 100 USD an hour, got 400"},
        {"{\"extends\": \"h100\", \"gpu\": {\"power_kw\": 700}}", NULL}, /* refused */
        {"{\"extends\": \"h100\", \"gpu\": {\"memory_GB\": 16}, \"nic_Gbitps\": 10}", NULL},
        {"{\"extends\": \"cpu\", \"gpu\": {\"memory_MiB\": 80}}", NULL},
        {"{\"extends\": \"h100\", \"price_usd_gpu_h\": null, \"host_memory_GB\": null}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mf_cluster c = {.doubts = 0};
        const mf_status s = parse(cases[i].text, &c);
        assert_true(s == MF_OK || cases[i].says == NULL);
        assert_int_equal(c.doubts, cases[i].says != NULL);
        if (cases[i].says != NULL && strstr(c.doubt[0], cases[i].says) == NULL) {
            fail_msg("expected \"%s\" in: %s", cases[i].says, c.doubt[0]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpus_driver_name_says_its_cluster),
        cmocka_unit_test(a_nodes_memory_may_limit_its_gpus),
        cmocka_unit_test(every_shipped_cluster_loads_under_its_name),
        cmocka_unit_test(figures_are_those_of_the_published_tables),
        cmocka_unit_test(every_shipped_figure_names_its_source_and_date),
        cmocka_unit_test(unknown_names_are_refused_with_the_nearest_known),
        cmocka_unit_test(a_small_file_is_enough_and_the_rest_is_filled_in),
        cmocka_unit_test(figures_may_carry_source_date_and_note),
        cmocka_unit_test(extending_changes_only_what_is_written),
        cmocka_unit_test(a_node_of_another_size_takes_its_domain_along),
        cmocka_unit_test(measured_rates_do_not_outlive_the_data_sheet_rate_they_belong_to),
        cmocka_unit_test(units_may_be_any_of_their_kind),
        cmocka_unit_test(tiers_are_read_from_near_to_far),
        cmocka_unit_test(mistakes_are_refused_where_they_stand),
        cmocka_unit_test(figures_that_contradict_each_other_are_refused),
        cmocka_unit_test(null_means_not_known),
        cmocka_unit_test(files_extend_files_beside_them_but_not_themselves),
        cmocka_unit_test(links_slow_down_with_reach),
        cmocka_unit_test(the_domain_is_what_a_job_uses_of_it),
        cmocka_unit_test(a_mesh_gives_one_link_for_each_other_gpu),
        cmocka_unit_test(no_better_figure_of_links_slows_a_group_down),
        cmocka_unit_test(a_file_says_what_collectives_reach_of_a_link_or_the_rest_tells),
        cmocka_unit_test(the_reserve_is_withheld_from_capacity),
        cmocka_unit_test(a_figure_in_a_wrong_unit_is_doubted_where_it_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
