/* What `models` says that each shipped model can do, against who does it: lowering plans it, and
 * the executor's own refusal says whether CPU ranks and GPUs run its program. The line of
 * `simulate` that says who trains it says the same. */
#include "tests/support/test.h"

#include "core/base/json.h"
#include "executor/step/program_run.h"
#include "report/inputs/model_report.h"
#include "report/step/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct abilities {
    bool plan, cpu, gpu;
} abilities;

/* From what `models NAME --json` prints. */
static abilities said_of(const mf_model *m) {
    mf_json_writer w;
    mf_json *doc = NULL;
    char *text = NULL;
    size_t length = 0;
    abilities a = {false, false, false};
    mf_err e;
    mf_json_writer_init(&w);
    mf_model_report_json(&w, m);
    assert_int_equal(mf_json_writer_finish(&w, &text, &length, &e), MF_OK);
    assert_int_equal(mf_json_parse("models", text, length, &doc, &e), MF_OK);
    const mf_json_value *root = mf_json_root(doc);
    assert_int_equal(mf_json_get_bool(root, "can_plan", &a.plan, &e), MF_OK);
    assert_int_equal(mf_json_get_bool(root, "can_train", &a.cpu, &e), MF_OK);
    assert_int_equal(mf_json_get_bool(root, "can_train_on_gpu", &a.gpu, &e), MF_OK);
    mf_json_destroy(doc);
    free(text);
    return a;
}

/* A GPU, as far as refusals look at it. */
static mf_device_ops gpu_ops(void) {
    mf_device_ops ops = *mf_device_cpu()->ops;
    ops.name = "cuda";
    ops.on_host = false;
    ops.mixed = false;
    return ops;
}

static void plan_on_one(const mf_model *m, mf_plan *p) {
    mf_err e;
    memset(p, 0, sizeof *p);
    mf_layout_init(&p->layout);
    p->layout.gbs = 1;
    p->layout.seq = 4096;
    if (mf_layout_resolve(&p->layout, m, &e) != MF_OK ||
        mf_assignment_even(m, &p->layout, &p->assignment, &e) != MF_OK) {
        fail_msg("%s: %s", m->name, e.text);
    }
}

/* From lowering the whole model, on one GPU, and asking the executor. */
static abilities found_of(const mf_model *m, const mf_cluster *c) {
    const mf_device_ops gpu = gpu_ops();
    mf_program *program = NULL;
    mf_plan p;
    mf_err e;
    plan_on_one(m, &p);
    const bool plan = mf_program_lower(m, &p.layout, c, &p.assignment, &program, &e) == MF_OK;
    const abilities a = {plan, plan && mf_exec_lacks(program, mf_device_cpu()->ops) == NULL,
                         plan && mf_exec_lacks(program, &gpu) == NULL};
    mf_program_destroy(program);
    return a;
}

static void what_models_can_do_is_what_train_accepts(void **state) {
    mf_cluster c;
    mf_err e;
    size_t count, cpu = 0, gpu = 0;
    const char *const *names = mf_model_shipped(&count);
    (void)state;
    assert_int_equal(mf_cluster_load("h200", &c, &e), MF_OK);
    for (size_t i = 0; i < count; i++) {
        mf_model m;
        assert_int_equal(mf_model_load(names[i], &m, &e), MF_OK);
        const abilities said = said_of(&m), found = found_of(&m, &c);
        cpu += found.cpu;
        gpu += found.gpu;
        if (said.plan != found.plan || said.cpu != found.cpu || said.gpu != found.gpu ||
            (mf_model_check_executed(&m, &e) == MF_OK) != found.cpu) {
            fail_msg("%s: said to plan %d, train on CPU ranks %d, on GPUs %d; found %d, %d, %d",
                     m.name, said.plan, said.cpu, said.gpu, found.plan, found.cpu, found.gpu);
        }
    }
    assert_above(cpu, 0);
    assert_below(cpu, count);
    assert_above(gpu, 0);
    assert_at_most(gpu, cpu); /* both answers occur */
}

/* The first lines of `simulate`. */
static void job_of(const char *model, const char *cluster, const char *software,
                   mf_precision precision, char *text, size_t size) {
    mf_model m;
    mf_cluster c;
    mf_software s;
    mf_plan p;
    mf_err e;
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(mf_model_load(model, &m, &e), MF_OK);
    assert_int_equal(mf_cluster_load(cluster, &c, &e), MF_OK);
    assert_int_equal(mf_software_load(software, &s, &e), MF_OK);
    plan_on_one(&m, &p);
    p.layout.precision = precision;
    mf_routing routing;
    memset(&routing, 0, sizeof routing);
    const mf_report r = {.model = &m,
                         .cluster = &c,
                         .plan = &p,
                         .routing = &routing,
                         .made_for = "",
                         .software = &s,
                         .measured = ""};
    mf_report_print_job(f, &r);
    rewind(f);
    text[fread(text, 1, size - 1, f)] = '\0';
    fclose(f);
}

static void who_trains_a_model_is_said_truly(void **state) {
    static const struct {
        const char *model, *cluster, *software;
        mf_precision precision;
        const char *line, *lacks; /* lacks NULL: nothing is said to be missing */
    } cases[] = {
        {"olmoe-1b-7b", "h200", "moefold", MF_PREC_BF16, "trained by  moefold in bf16", NULL},
        {"nemotron-h-56b", "h200", "moefold", MF_PREC_BF16, "priced as   moefold in bf16",
         "moefold does not train it yet: Mamba-2"},
        {"deepseek-v3.2", "h200", "moefold", MF_PREC_BF16, "priced as   moefold in bf16",
         "moefold does not train it yet: sparse attention with an indexer"},
        {"olmoe-1b-7b", "h200", "moefold", MF_PREC_FP32, "priced as   moefold in fp32",
         "moefold does not train it yet: fp32"},
        {"olmoe-1b-7b", "gb200", "moefold", MF_PREC_BF16, "priced as   moefold in bf16",
         "moefold does not train it yet: its kernels run on Hopper GPUs alone"},
        {"olmoe-1b-7b", "cpu", "moefold", MF_PREC_FP32, "trained by  moefold in fp32", NULL},
        {"nemotron-h-56b", "h200", "megatron-26.06", MF_PREC_BF16, "trained by  megatron-26.06",
         NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[4096];
        job_of(cases[i].model, cases[i].cluster, cases[i].software, cases[i].precision, text,
               sizeof text);
        if (strstr(text, cases[i].line) == NULL ||
            (cases[i].lacks != NULL ? strstr(text, cases[i].lacks) == NULL
                                    : strstr(text, "does not train") != NULL)) {
            fail_msg("case %zu: %s", i, text);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_models_can_do_is_what_train_accepts),
        cmocka_unit_test(who_trains_a_model_is_said_truly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
