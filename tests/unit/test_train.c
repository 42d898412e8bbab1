/* Training runs: the loss falls on text, a folded run takes the same steps as one rank, learning
 * rates, metrics. The program starts itself again under mpirun. */
#include "core/base/json.h"
#include "executor/train/train.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *program;

static void load(const char *family, mf_model *m, mf_cluster *c, mf_layout *l) {
    char path[128];
    const char *no_mtp = "num_nextn_predict_layers=0";
    mf_err e;
    snprintf(path, sizeof path, "tests/data/hf/%s/config.json", family);
    if (mf_model_load_with(path, &no_mtp, strcmp(family, "deepseek_v3") == 0, m, &e) != MF_OK ||
        mf_cluster_load("cpu", c, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    mf_layout_init(l);
    l->gpus = 1;
    l->mbs = 2;
    l->gbs = 8;
    l->seq = 32;
    l->precision = MF_PREC_FP32;
    l->overlap = 0;
    l->headroom_worst_case = true;
}

/* Under sanitizers fewer, too few to learn anything. */
static int steps(void) {
    return case_count(30, 4);
}

static mf_status train_family(const char *family, int ranks, const char *data, const char *out,
                              mf_err *e) {
    mf_model m;
    mf_cluster c;
    mf_layout l;
    mf_train_options o;
    bool alone;
    load(family, &m, &c, &l);
    if (ranks == 4) {
        l.gpus = 4;
        l.tp = l.cp = 2;
        l.ep = 4;
        l.dispatcher = MF_DISPATCH_ALLTOALL;
    }
    mf_status status = mf_layout_resolve(&l, &m, e);
    if (status != MF_OK) {
        return status;
    }
    mf_train_options_init(&o);
    o.model = &m;
    o.cluster = &c;
    o.layout = &l;
    o.data = data;
    o.out = out;
    o.steps = steps();
    o.lr = 1e-2;
    o.lr_min = 1e-3;
    o.warmup = 5;
    /* One micro-batch's scope depends on the layout: no auxiliary loss here. */
    return mf_train(&o, &alone, e);
}

/* Column `key` of metrics.jsonl; returns the number of lines. */
static int read_metrics(const char *out, const char *key, double *values, int max) {
    char path[128], line[4096];
    int n = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (n < max && fgets(line, sizeof line, f) != NULL) {
        mf_json *doc = NULL;
        int64_t step = 0;
        assert_ok(mf_json_parse("metrics", line, strlen(line), &doc, NULL));
        assert_ok(mf_json_get_i64(mf_json_root(doc), "step", 1, 1000, &step, NULL));
        assert_int_equal(step, n + 1);
        assert_ok(mf_json_get_f64(mf_json_root(doc), key, 0, 1e9, &values[n], NULL));
        mf_json_destroy(doc);
        n++;
    }
    fclose(f);
    return n;
}

static void the_loss_falls_and_four_folded_ranks_take_the_same_steps(void **state) {
    (void)state;
    char folder[] = "/tmp/mf-train-XXXXXX", data[64], out[2][64], command[512], path[160];
    assert_non_null(mkdtemp(folder));
    snprintf(data, sizeof data, "%s/text", folder);
    FILE *f = fopen(data, "w");
    assert_non_null(f);
    for (int i = 0; i < 200; i++) {
        fprintf(f, "%d rows of tokens go to their experts and come back in order. ", i % 7);
    }
    fclose(f);
    double one[64], four[64];
    mf_err e;
    for (int k = 0; k < 2; k++) {
        snprintf(out[k], sizeof out[k], "%s/out%d", folder, k);
    }
    if (train_family("mixtral", 1, data, out[0], &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    const int last = steps() - 1;
    assert_int_equal(read_metrics(out[0], "lm_loss", one, 64), steps());
    printf("loss %.3f, after %d steps %.3f\n", one[0], steps(), one[last]);
    assert_close(one[0], log(256.0), 0.2);
    assert_below(one[last], (cases_sampled() ? 1.0 : 0.7) * one[0]);
    bool mpi = mf_comm_has_mpi() && system("command -v mpirun >/dev/null 2>&1") == 0;
    if (mpi) {
        snprintf(command, sizeof command,
                 "mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 "
                 "--mca btl_vader_single_copy_mechanism none -x ASAN_OPTIONS=detect_leaks=0 -n 4 "
                 "%s --child %s %s",
                 program, data, out[1]);
        int result = system(command);
        assert_true(WIFEXITED(result));
        assert_true(WEXITSTATUS(result) == 0);
        assert_int_equal(read_metrics(out[1], "lm_loss", four, 64), steps());
        for (int i = 0; i < case_count(10, last);
             i++) { /* later steps part at ties of the router */
            assert_close(four[i] / one[i], 1.0, 1e-5);
        }
        assert_close(four[last] / one[last], 1.0, 0.02);
    } else {
        printf("MF_SKIPPED 1 no MPI: training on four ranks is not tested\n");
    }
    for (int k = 0; k < 1 + mpi; k++) {
        snprintf(path, sizeof path, "%s/metrics.jsonl", out[k]);
        unlink(path);
        rmdir(out[k]);
    }
    unlink(data);
    rmdir(folder);
}

static void learning_rates_warm_up_and_decay(void **state) {
    (void)state;
    assert_close(mf_train_lr(MF_LR_COSINE, 1.0, 0.1, 10, 110, 1), 0.1, 1e-12);
    assert_close(mf_train_lr(MF_LR_COSINE, 1.0, 0.1, 10, 110, 10), 1.0, 1e-12);
    assert_close(mf_train_lr(MF_LR_COSINE, 1.0, 0.1, 10, 110, 11), 1.0, 1e-12);
    assert_close(mf_train_lr(MF_LR_COSINE, 1.0, 0.1, 10, 110, 110), 0.1, 1e-12);
    assert_close(mf_train_lr(MF_LR_LINEAR, 1.0, 0.0, 0, 11, 6), 0.5, 1e-12);
    assert_close(mf_train_lr(MF_LR_WSD, 1.0, 0.0, 0, 101, 91), 1.0, 1e-12);
    assert_close(mf_train_lr(MF_LR_WSD, 1.0, 0.0, 0, 101, 101), 0.0, 1e-12);
    assert_close(mf_train_lr(MF_LR_CONSTANT, 0.5, 0.0, 0, 10, 7), 0.5, 1e-12);
}

/* At the interval that is suggested one costs as much as the other: half an interval lost at each
 * failure, and the saves. */
static void the_suggested_interval_loses_least(void **state) {
    (void)state;
    const double save_s = 30.0, mtbf_s = 3600.0 * 50677 / 16384;
    double best_s = mf_train_save_interval_s(save_s, mtbf_s);
    assert_close(best_s, 817.4, 0.1);
    for (double s = 0.5 * best_s; s < 2.0 * best_s; s += 10.0) {
        assert_at_least(save_s / s + 0.5 * s / mtbf_s,
                        save_s / best_s + 0.5 * best_s / mtbf_s - 1e-12);
    }
}

static int stop_at_three(void *user, const mf_train_metrics *m) {
    *(int64_t *)user = m->step;
    return m->step == 3;
}

static void a_run_ends_when_its_caller_says_so(void **state) {
    (void)state;
    mf_model m;
    mf_cluster c;
    mf_layout l;
    mf_train_options o;
    int64_t last = 0;
    bool alone;
    mf_err e;
    load("llama", &m, &c, &l);
    assert_ok(mf_layout_resolve(&l, &m, &e));
    mf_train_options_init(&o);
    o.model = &m;
    o.cluster = &c;
    o.layout = &l;
    o.data = "tests/data/hf/llama/batch.safetensors";
    o.init = "tests/data/hf/llama";
    o.stepped = stop_at_three;
    o.user = &last;
    assert_int_equal(mf_train(&o, &alone, &e), MF_INTERRUPTED);
    assert_int_equal(last, 3);
    o.data = "tests/data/hf/llama/config.json.missing";
    assert_int_equal(mf_train(&o, &alone, &e), MF_INPUT);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loss_falls_and_four_folded_ranks_take_the_same_steps),
        cmocka_unit_test(learning_rates_warm_up_and_decay),
        cmocka_unit_test(the_suggested_interval_loses_least),
        cmocka_unit_test(a_run_ends_when_its_caller_says_so),
    };
    program = argv[0];
    if (argc == 4 && strcmp(argv[1], "--child") == 0) {
        mf_err e;
        mf_status status = train_family("mixtral", 4, argv[2], argv[3], &e);
        if (status != MF_OK) {
            fprintf(stderr, "%s\n", e.text);
            mf_comm_abort(1);
        }
        mf_comm_stop();
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
