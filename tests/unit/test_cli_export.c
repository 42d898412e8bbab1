/* `export`, `import`, `tune`: the job that comes back takes the plan's time, whatever that rests
 * on, and what was not read of one is said. */
#include "tests/support/cli_test.h"

#include <stdio.h>
#include <unistd.h>

#define JOB                                                                                        \
    "--model mixtral-8x7b --cluster h100 --gpus 64 --global-batch 256 --seq 4096 "                 \
    "--software megatron-26.06 --ep 8 --pp 2 --recompute layer --no-corrections "

static double import_s(const char *path) {
    char line[256];
    snprintf(line, sizeof line, "import %s --json", path);
    cli_result r = cli_json(line);
    const mf_json_value *plan = cli_member(mf_json_root(r.json), "plan");
    const double s = cli_number(cli_member(plan, "prediction"), "step_time_s");
    cli_free(&r);
    return s;
}

/* Under uneven routing a capacity drops rows of the busiest expert, there and back. */
static void a_capacity_holds_for_uneven_routing_when_a_script_comes_back(void **state) {
    (void)state;
    static const char *const jobs[] = {"", "--routing zipf:1 ",
                                       "--routing zipf:1 --capacity-factor 1.0 "};
    char dir[] = "/tmp/moefold-export-XXXXXX", plan[64], script[64], line[512];
    double step_s[3];
    assert_non_null(mkdtemp(dir));
    snprintf(plan, sizeof plan, "%s/plan.json", dir);
    snprintf(script, sizeof script, "%s/launch.sh", dir);
    for (int i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "simulate " JOB "%s--json --out %s", jobs[i], plan);
        cli_result r = cli_json(line);
        step_s[i] = cli_number(mf_json_root(r.json), "step_time_s");
        cli_free(&r);
        snprintf(line, sizeof line, "export --plan %s --out %s", plan, script);
        r = cli_run(line, NULL);
        assert_int_equal(r.code, 0);
        cli_free(&r);
        assert_close(import_s(script), step_s[i], 1e-9 * step_s[i]);
    }
    assert_above(step_s[1], 1.5 * step_s[0]);
    assert_below(step_s[2], 0.8 * step_s[1]);
    unlink(plan);
    unlink(script);
    rmdir(dir);
}

/* A setting that moefold does not know may make another job of it: `tune`, which reads the same
 * texts as `import`, says so in its text, in JSON and in the verdict. */
static void tune_says_what_it_did_not_read(void **state) {
    (void)state;
    char path[] = "/tmp/moefold-job-XXXXXX", line[256];
    static const char job[] =
        "torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 16 --hidden-size 2048 "
        "--ffn-hidden-size 1024 --num-attention-heads 16 --num-experts 64 --moe-router-topk 8 "
        "--seq-length 4096 --max-position-embeddings 4096 --swiglu --vocab-size 50304 "
        "--untie-embeddings-and-output-weights --micro-batch-size 1 --global-batch-size 64 --bf16 "
        "--expert-model-parallel-size 8 --use-distributed-optimizer --no-such-flag 3\n";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, job, sizeof job - 1), sizeof job - 1);
    close(fd);
    snprintf(line, sizeof line, "tune %s --model olmoe-1b-7b --cluster h100 --effort 1", path);
    cli_result r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "\nnot read    1 setting that moefold does not know:\n"
                                  "            --no-such-flag 3\n"));
    cli_free(&r);
    strcat(line, " --json");
    r = cli_json(line);
    const mf_json_value *root = mf_json_root(r.json);
    assert_string_equal(cli_text(cli_member(root, "not_read"), "--no-such-flag"), "3");
    assert_non_null(strstr(cli_text(root, "verdict"), "; 1 of the job's settings is not read"));
    cli_free(&r);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_capacity_holds_for_uneven_routing_when_a_script_comes_back),
        cmocka_unit_test(tune_says_what_it_did_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
