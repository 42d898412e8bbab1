/* Importing nccl-tests: text of several versions and launchers, JSON, and results not to be used.
 */
#include "tests/support/test.h"

#include "profiles/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mf_store *s;
static mf_err e;

static int open_store(void **state) {
    (void)state;
    mf_err_clear(&e);
    return mf_store_open(":memory:", &s, &e) == MF_OK ? 0 : -1;
}

static int close_store(void **state) {
    (void)state;
    mf_store_close(s);
    return 0;
}

static int64_t import_as(const char *name, const char *text, int64_t nodes) {
    int64_t count = -1;
    mf_err_clear(&e);
    if (mf_store_import_nccl_tests_text(s, name, text, strlen(text), "h200", nodes, &count, &e) !=
        MF_OK) {
        fail_msg("%s", e.text);
    }
    return count;
}

static void expect_refused(const char *name, const char *text, const char *want) {
    int64_t count = -1, rows = -1;
    mf_err_clear(&e);
    assert_int_equal(
        mf_store_import_nccl_tests_text(s, name, text, strlen(text), "h200", 0, &count, &e),
        MF_INPUT);
    if (strstr(e.text, want) == NULL) {
        fail_msg("expected \"%s\" in: %s", want, e.text);
    }
    assert_null(strchr(e.text, '\n'));
    assert_int_equal(count, 0);
    assert_ok(mf_store_check(s, &rows, NULL, &e));
    assert_int_equal(rows, 0);
}

typedef struct wanted {
    const char *key;
    mf_point p;
    int found;
} wanted;

static int match(const mf_point *p, void *user) {
    wanted *w = user;
    char key[640];
    mf_point_format(p, key, sizeof key);
    if (strcmp(key, w->key) == 0) {
        w->p = *p;
        w->found++;
    }
    return 0;
}

static mf_point expect_point(const char *key, double time_s) {
    wanted w = {.key = key};
    assert_ok(mf_store_each(s, "h200", NULL, match, &w, NULL, &e));
    if (w.found != 1) {
        fail_msg("%s: found %d times", key, w.found);
    }
    if (w.p.time_s < time_s * 0.999999 || w.p.time_s > time_s * 1.000001) {
        fail_msg("%s: %g s instead of %g s", key, w.p.time_s, time_s);
    }
    return w.p;
}

#define HEADER                                                                                     \
    "#\n#                                                              out-of-place      "         \
    "                 in-place          \n"                                                        \
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     "    \
    "time   algbw   busbw #wrong\n"                                                                \
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "    \
    "(us)  (GB/s)  (GB/s)       \n"
#define TWO_RANKS                                                                                  \
    "# Using devices\n#  Rank  0 Group  0 Pid   4711 on      alpha device  0 [0000:1b:00] GPU\n"   \
    "#  Rank  1 Group  0 Pid   4711 on      alpha device  1 [0000:2c:00] GPU\n"

/* 4 ranks, busbw = 1.5 algbw; made from 2^20 B in 40 us and 2^24 B in 100 us. */
static const char new_text[] =
    "# nccl-tests version 2.19.6 nccl-headers=22903 nccl-library=22903\n"
    "# Collective test starting: all_reduce_perf\n"
    "# nThread 1 nGpus 4 minBytes 1048576 maxBytes 16777216 step: 16(factor) warmup iters: 1 "
    "iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0\n#\n"
    "# Using devices\n"
    "#  Rank  0 Group  0 Pid   4711 on      alpha device  0 [0000:1b:00] NVIDIA H200\n"
    "#  Rank  1 Group  0 Pid   4711 on      alpha device  1 [0000:2c:00] NVIDIA H200\n"
    "#  Rank  2 Group  0 Pid   4712 on       beta device  0 [0000:1b:00] NVIDIA H200\n"
    "#  Rank  3 Group  0 Pid   4712 on       beta device  1 [0000:2c:00] NVIDIA H200\n" HEADER
    "     1048576        262144     float     sum      -1    40.00   26.21   39.32       0    "
    "41.00   25.57   38.36       0\n"
    "    16777216       4194304     float     sum      -1   100.00  167.77  251.66       0   "
    "100.50  166.94  250.41       0\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 144.94 \n#\n"
    "# Collective test concluded: all_reduce_perf\n";

static void text_of_today_gives_both_columns(void **state) {
    (void)state;
    assert_int_equal(import_as("/logs/run 7.txt", new_text, 0), 4);
    mf_point p =
        expect_point("all_reduce bytes=1048576 ranks=4 nodes=2 inplace=0 algo=auto", 40e-6);
    assert_string_equal(p.versions, "nccl=2.29.3");
    assert_string_equal(p.source, "nccl-tests: run 7.txt");
    assert_int_equal(p.samples, 20);
    expect_point("all_reduce bytes=1048576 ranks=4 nodes=2 inplace=1 algo=auto", 41e-6);
    expect_point("all_reduce bytes=16777216 ranks=4 nodes=2 inplace=0 algo=auto", 100e-6);
    expect_point("all_reduce bytes=16777216 ranks=4 nodes=2 inplace=1 algo=auto", 100.5e-6);
}

static void the_caller_may_state_the_hosts(void **state) {
    (void)state;
    assert_int_equal(import_as("x.txt", new_text, 1), 4);
    expect_point("all_reduce bytes=1048576 ranks=4 nodes=1 inplace=0 algo=auto", 40e-6);
}

static void older_text_names_its_collective_in_the_command_or_the_file_name(void **state) {
    (void)state;
#define OLD_TEXT                                                                                   \
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 30 "         \
    "validation: 1\n" TWO_RANKS HEADER                                                             \
    "           0             0     float    none      -1     5.10    0.00    0.00    0     "      \
    "5.00    0.00    0.00    0\n"                                                                  \
    "    33554432       4194304     float    none      -1   100.00  335.54  167.77  N/A   "        \
    "110.00  305.04  152.52  N/A\n"
    assert_int_equal(import_as("/data/all_gather_perf-2gpu.log", OLD_TEXT, 0), 2);
    expect_point("all_gather bytes=33554432 ranks=2 nodes=1 inplace=0 algo=auto", 100e-6);
    mf_point p =
        expect_point("all_gather bytes=33554432 ranks=2 nodes=1 inplace=1 algo=auto", 110e-6);
    assert_int_equal(p.samples, 30);
    assert_int_equal(
        import_as("out.log", "+ mpirun -np 2 ./build/alltoall_perf -b 8\n" OLD_TEXT, 0), 2);
    expect_point("all_to_all bytes=33554432 ranks=2 nodes=1 inplace=0 algo=auto", 100e-6);
    assert_int_equal(import_as("all_reduce/all_gather-2.txt", OLD_TEXT, 0), 2);
    assert_int_equal(import_as("/data/alltoall.txt", OLD_TEXT, 0), 2);
}

static void a_collective_that_nobody_names_is_asked_for(void **state) {
    (void)state;
    expect_refused("out.log",
                   TWO_RANKS HEADER "  33554432  4194304  float  none  -1  100.00 335.54 167.77 0 "
                                    "110.00 305.04 152.52 0\n",
                   "out.log:8: neither output nor file name says which collective");
    expect_refused("broadcast_perf.txt",
                   TWO_RANKS HEADER "  33554432  4194304  float  none  -1  100.00 335.54 167.77 0 "
                                    "110.00 305.04 152.52 0\n",
                   "broadcast_perf measures none of the ops");
    expect_refused("alltoallv.txt", OLD_TEXT, "neither output nor file name");
    expect_refused("/all_gather/out.txt", OLD_TEXT, "neither output nor file name");
}

static void launchers_may_tag_lines_and_mix_in_logs(void **state) {
    (void)state;
    static const char text[] =
        "[1,0]<stdout>:# Collective test starting: sendrecv_perf\n"
        "[1,1]<stderr>:beta:77:77 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1\n"
        "[1,0]<stdout>:NCCL version 2.28.9+cuda13.0\n"
        "[1,0]<stdout>:#  Rank  0 Group  0 Pid   1 on  alpha device  0 [0x1b] GPU\n"
        "[1,0]<stdout>:#  Rank  1 Group  0 Pid   2 on   beta device  0 [0x1b] GPU\n"
        "[1,0]<stdout>:#       size         count      type   redop    root     time   algbw   "
        "busbw #wrong     time   algbw   busbw #wrong\n"
        "1234 is a number that somebody logged\n"
        "[1,0]<stdout>:    4194304       1048576     float     sum      -1   100.00   41.94   "
        "41.94    0   101.00   41.53   41.53    0\n";
    assert_int_equal(import_as("x", text, 0), 2);
    mf_point p =
        expect_point("send_recv bytes=4194304 ranks=2 nodes=2 inplace=0 algo=auto", 100e-6);
    assert_string_equal(p.versions, "nccl=2.28.9");
    static const char slurm[] =
        "0: # Collective test starting: sendrecv_perf\n0: " TWO_RANKS
        "0:     8388608       2097152     float     sum      -1   200.00   41.94   "
        "41.94    0   202.00   41.53   41.53    0\n";
    assert_int_equal(import_as("x", slurm, 0), 2);
    expect_point("send_recv bytes=8388608 ranks=2 nodes=1 inplace=1 algo=auto", 202e-6);
}

static void per_iteration_columns_and_timestamps_are_passed_over(void **state) {
    (void)state;
    static const char text[] =
        "# Collective test starting: reduce_scatter_perf\n" TWO_RANKS
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong    "
        "i_min    i_max    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    "
        "i_p99    i_cv%           timestamp\n"
        "  33554432  4194304  float  sum  -1  100.00 335.54 167.77 0 99 120 119 3.1  110.00 305.04 "
        "152.52 0 100 130 129 4.0  2026-11-21 10:00:00\n";
    assert_int_equal(import_as("x", text, 0), 2);
    expect_point("reduce_scatter bytes=33554432 ranks=2 nodes=1 inplace=1 algo=auto", 110e-6);
}

static void only_the_first_type_and_reduction_is_read(void **state) {
    (void)state;
    static const char text[] =
        "# Collective test starting: sendrecv_perf\n" TWO_RANKS HEADER
        "  4194304  1048576  float  sum  -1  100.00 41.94 41.94 0  101.00 41.53 41.53 0\n"
        "  4194304  2097152   half  sum  -1   50.00 83.89 83.89 0   50.00 83.89 83.89 0\n"
        "  4194304  1048576  float  max  -1   50.00 83.89 83.89 0   50.00 83.89 83.89 0\n";
    assert_int_equal(import_as("x", text, 0), 2);
    expect_point("send_recv bytes=4194304 ranks=2 nodes=1 inplace=0 algo=auto", 100e-6);
}

#define SENDRECV "# Collective test starting: sendrecv_perf\n" TWO_RANKS HEADER

static void results_not_to_be_trusted_are_refused(void **state) {
    (void)state;
    expect_refused("x",
                   SENDRECV "  4194304  1048576  float  sum  -1  100.00 41.94 41.94 3  101.00 "
                            "41.53 41.53 0\n",
                   "x:9: 3 wrong results: this run is not to be trusted");
    expect_refused("x", SENDRECV "  4194304  1048576  float  sum  -1  100.00 41.94 41.94 0  101.0",
                   "x:9: expected 13 columns, got 10: is the row truncated?");
    expect_refused("x",
                   SENDRECV "  4194304  1048576  float  sum  -1  100.00 41.94 41.94 0  10 41.53 "
                            "41.53 0\n",
                   "x:9: 4194304 bytes in 10 us are 419.43 GB/s, but algbw says 41.53");
    expect_refused("x",
                   SENDRECV "  4194304  1048576  float  sum  -1  100.00 41.94 73.40 0  101.00 "
                            "41.53 41.53 0\n",
                   "x:9: busbw over algbw is 1.750, but send_recv over 2 ranks has 1.000");
    expect_refused("x",
                   SENDRECV "  4194304  1048576  float  sum  -1  0.00 41.94 41.94 0  101.00 41.53 "
                            "41.53 0\n",
                   "x:9: expected a time > 0");
    expect_refused("x",
                   SENDRECV "  4194304  1048576  float  sum  -1  nan 41.94 41.94 0  101.00 41.53 "
                            "41.53 0\n",
                   "x:9: column 6: expected a number, got \"nan\"");
    expect_refused("x",
                   "# Collective test starting: sendrecv_perf\n" TWO_RANKS
                   "#  size  count  type  redop  root  cputime  algbw  busbw #wrong\n",
                   "x:5: CPU times (-C)");
    expect_refused("x", SENDRECV "# Collective test starting: all_reduce_perf\n",
                   "x:9: results of both send_recv and all_reduce");
    expect_refused("x", "#  Rank  0 Group  1 Pid 1 on a device 0 [0x1b] GPU\n",
                   "x:1: a run split into groups");
    expect_refused("sendrecv_perf",
                   HEADER "  4194304  1048576  float  sum  -1  100.00 41.94 41.94 0  101.00 41.53 "
                          "41.53 0\n",
                   "sendrecv_perf:5: the lines \"#  Rank ...\" are missing");
}

static void binary_and_huge_text_is_refused(void **state) {
    (void)state;
    expect_refused("out.log", "", "out.log: no result rows of nccl-tests found");
    size_t size = 8 << 20;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, '7', size);
    assert_int_equal(mf_store_import_nccl_tests_text(s, "x", text, size, "h200", 0, NULL, &e),
                     MF_INPUT);
    uint64_t x = 1;
    for (size_t i = 0; i < size; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        text[i] = (char)(x >> 56);
    }
    assert_int_equal(mf_store_import_nccl_tests_text(s, "x", text, size, "h200", 0, NULL, &e),
                     MF_INPUT);
    assert_string_equal(e.text, "x: no result rows of nccl-tests found");
    free(text);
}

#define JSON_HEAD                                                                                  \
    "{\"version\":3,\"start_time\":\"2026-11-21 08:30:00\",\"args\":[\"/opt/all_reduce_perf\","    \
    "\"-b\",\"1M\"],\"env\":[\"HOME=/root\",\"NCCL_ALGO=Ring\"],\"nccl_version\":22809,"           \
    "\"config\":{\"nthreads\":1,\"ngpus\":2,\"minimum_bytes\":1048576,\"iterations\":20,"          \
    "\"devices\":[{\"rank\":0,\"group\":0,\"pid\":1,\"hostname\":\"alpha\",\"device\":0},"         \
    "{\"rank\":2,\"group\":0,\"pid\":2,\"hostname\":\"beta\",\"device\":0}]},\"results\":["
#define JSON_ROW                                                                                   \
    "{\"size\":1048576,\"count\":262144,\"type\":\"float\",\"redop\":\"sum\",\"root\":\"    "      \
    "-1\",\"out_of_place\":{\"time\":40.000000,\"alg_bw\":26.214400,\"bus_bw\":39.321600,"         \
    "\"nwrong\":0.000000},\"in_place\":{\"time\":41.000000,\"alg_bw\":25.575024,"                  \
    "\"bus_bw\":38.362537,\"nwrong\":null},\"actual_iterations\":20,\"experiment_name\":\"\"}"
#define JSON_TAIL "],\"out_of_bounds\":{\"count\":0,\"okay\":true},\"end_time\":\"x\"}"

static void json_gives_the_same_points(void **state) {
    (void)state;
    assert_int_equal(import_as("run.json", JSON_HEAD JSON_ROW JSON_TAIL, 0), 2);
    mf_point p =
        expect_point("all_reduce bytes=1048576 ranks=4 nodes=2 inplace=0 algo=ring", 40e-6);
    assert_string_equal(p.versions, "nccl=2.28.9");
    assert_string_equal(p.date, "2026-11-21");
    assert_int_equal(p.samples, 20);
    expect_point("all_reduce bytes=1048576 ranks=4 nodes=2 inplace=1 algo=ring", 41e-6);
}

static void json_of_a_traced_run_may_lack_a_half(void **state) {
    (void)state;
    assert_int_equal(
        import_as("run.json",
                  JSON_HEAD "{\"size\":1048576,\"type\":\"float\",\"redop\":\"sum\","
                            "\"out_of_place\":null,\"in_place\":{\"time\":41.0,\"alg_bw\":25.575,"
                            "\"bus_bw\":38.3625,\"nwrong\":0}}" JSON_TAIL,
                  0),
        1);
    expect_point("all_reduce bytes=1048576 ranks=4 nodes=2 inplace=1 algo=ring", 41e-6);
}

static void damaged_json_is_refused_with_its_position(void **state) {
    (void)state;
    expect_refused("r.json", JSON_HEAD JSON_ROW, "r.json:1:");
    expect_refused("r.json", "{}", "r.json:1:1: \"config\" is missing");
    expect_refused("r.json", JSON_HEAD JSON_TAIL, "no result rows");
    expect_refused("r.json", "{\"config\":{\"devices\":[]}}", "no devices");
    expect_refused("r.json",
                   JSON_HEAD "{\"size\":1048576,\"out_of_place\":{\"cpu_time\":4}}" JSON_TAIL,
                   "CPU times");
    expect_refused("r.json",
                   JSON_HEAD "{\"size\":1048576,\"out_of_place\":{\"time\":\"nan\",\"alg_bw\":1,"
                             "\"bus_bw\":1}}" JSON_TAIL,
                   "\"time\": expected");
    expect_refused("r.json",
                   JSON_HEAD "{\"size\":1048576,\"out_of_place\":{\"time\":40,\"alg_bw\":26.2144,"
                             "\"bus_bw\":39.3216,\"nwrong\":2}}" JSON_TAIL,
                   "2 wrong results");
    expect_refused("r.json",
                   JSON_HEAD "{\"size\":1048576,\"out_of_place\":{\"time\":20,\"alg_bw\":26.2144,"
                             "\"bus_bw\":39.3216}}" JSON_TAIL,
                   "but algbw says 26.2144");
}

static void a_missing_file_is_bad_input(void **state) {
    (void)state;
    assert_int_equal(mf_store_import_nccl_tests(s, "/nonexistent/a.txt", "h200", 1, NULL, &e),
                     MF_INPUT);
    assert_string_equal(e.text, "/nonexistent/a.txt: cannot be opened: No such file or directory");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_store, close_store)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(text_of_today_gives_both_columns),
        TEST(the_caller_may_state_the_hosts),
        TEST(older_text_names_its_collective_in_the_command_or_the_file_name),
        TEST(a_collective_that_nobody_names_is_asked_for),
        TEST(launchers_may_tag_lines_and_mix_in_logs),
        TEST(per_iteration_columns_and_timestamps_are_passed_over),
        TEST(only_the_first_type_and_reduction_is_read),
        TEST(results_not_to_be_trusted_are_refused),
        TEST(binary_and_huge_text_is_refused),
        TEST(json_gives_the_same_points),
        TEST(json_of_a_traced_run_may_lack_a_half),
        TEST(damaged_json_is_refused_with_its_position),
        TEST(a_missing_file_is_bad_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
