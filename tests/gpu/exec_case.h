/* exec_case.h - a Hugging Face family with heads 64 and 128 wide, run by the executor in BF16 on
 * one rank of a device: the GPU, the CPU, or the CPU in the GPU's place. */
#ifndef MF_TESTS_GPU_EXEC_CASE_H
#define MF_TESTS_GPU_EXEC_CASE_H

#include "core/base/json.h"
#include "executor/device/cuda_side.h"
#include "executor/step/program_run.h"
#include "executor/train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXEC_FAMILIES = 5 };
static const char *const exec_families[EXEC_FAMILIES] = {
    "llama_wide", "mixtral_wide", "qwen2_moe_wide", "qwen3_moe_wide", "deepseek_v3_wide"};

static int exec_passed, exec_failed;

/* Counts a check; the line begins with what became of it. */
static inline void exec_check(bool ok, const char *line) {
    printf("%s %s\n", ok ? "ok   " : "FAIL ", line);
    fflush(stdout);
    *(ok ? &exec_passed : &exec_failed) += 1;
}

static inline int exec_report(void) {
    printf("%d passed, %d failed, 0 skipped\n", exec_passed, exec_failed);
    return exec_failed > 0;
}

static inline void exec_die(const char *what, const mf_err *e) {
    printf("FATAL %s: %s\n", what, e->text);
    exit(1);
}

/* --- what is under test -------------------------------------------------------------------------
 */

typedef struct exec_under {
    mf_device *device;
    bool stand_in; /* the CPU in the GPU's place: proves the test, not the device */
    bool noisy;    /* and its results are rounded a little differently: see exec_disturb */
    bool verbose;  /* a line for each op */
} exec_under;

/* Ends the program with a word where there is no GPU or are no references. Arguments: "cpu" or
 * "noisy" put the CPU in the GPU's place, "verbose" prints a line for each op. */
static inline exec_under exec_open_device(int argc, char **argv, int tests) {
    exec_under u = {0};
    int gpus = 0;
    mf_err e;
    for (int i = 1; i < argc; i++) {
        u.noisy |= strcmp(argv[i], "noisy") == 0;
        u.stand_in |= strcmp(argv[i], "cpu") == 0 || u.noisy;
        u.verbose |= strcmp(argv[i], "verbose") == 0;
    }
    if (u.stand_in) {
        u.device = mf_device_cpu();
        printf("the CPU stands in for the GPU: the test is tested, not the device\n");
        return u;
    }
    if (mf_device_cuda_count(&gpus, &e) != MF_OK || gpus == 0) {
        printf("MF_SKIPPED %d no GPU: the executor on CUDA was compiled, not run\n", tests);
        exit(0);
    }
    if (mf_device_cuda_open(0, &u.device, &e) != MF_OK) {
        exec_die("the GPU", &e);
    }
    return u;
}

/* The CPU's device is shared and stays. */
static inline void exec_close_device(exec_under *u) {
    if (!u->stand_in) {
        u->device->ops->close(u->device);
    }
}

/* --- references ---------------------------------------------------------------------------------
 */

static char exec_root[512]; /* the folder that holds the families */

static inline bool exec_is_root(const char *folder, const char *below) {
    char path[640];
    snprintf(exec_root, sizeof exec_root, "%s%s", folder, below);
    snprintf(path, sizeof path, "%s/%s/config.json", exec_root, exec_families[0]);
    FILE *f = fopen(path, "r");
    if (f != NULL) {
        fclose(f);
    }
    return f != NULL;
}

/* In MOEFOLD_REFERENCES (itself, or its folder hf), else beside the checkout or in it. */
static inline void exec_find_references(int tests) {
    const char *folder = getenv("MOEFOLD_REFERENCES");
    bool found = folder != NULL ? exec_is_root(folder, "") || exec_is_root(folder, "/hf")
                                : exec_is_root("../shared/references/hf", "") ||
                                      exec_is_root("shared/references/hf", "");
    if (!found) {
        printf("MF_SKIPPED %d no references in %s (MOEFOLD_REFERENCES): the executor was not run\n",
               tests, folder != NULL ? folder : "../shared/references/hf");
        exit(0);
    }
}

/* --- a case -------------------------------------------------------------------------------------
 */

enum { EXEC_SETS = 20 };

typedef struct exec_setup {
    const char *family, *what; /* what: in words, for its lines */
    int64_t mbs;               /* of a global batch of 4 */
    uint16_t recompute, offload;
    double offload_optimizer;
    double capacity;    /* factor; 0: dropless */
    bool mtp;           /* with the model's MTP depths, weights from a seed */
    const char *preset; /* a shipped model reduced by `sets` in the family's place, weights from a
                           seed, on the family's tokens; NULL: none */
    const char *sets[EXEC_SETS];
} exec_setup;

typedef struct exec_case {
    exec_setup setup;
    mf_model model;
    mf_layout layout;
    mf_cluster cluster;
    mf_assignment assignment;
    mf_program *program;
    mf_schedule *schedule;
    mf_comm *comm;
    mf_device *device;
    mf_exec *exec;
    mf_safetensors *weights, *batch;
    mf_json *expected;
    int64_t step; /* batch that samples come from */
} exec_case;

/* AdamW as the references have it. */
static inline void exec_options(mf_exec_options *o) {
    mf_exec_options_init(o);
    o->bias_rate = 1e-3;
}

static inline mf_status exec_sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    const exec_case *c = user;
    const mf_st_tensor *t = mf_safetensors_find(c->batch, "tokens");
    (void)e;
    for (int64_t i = 0; i <= c->layout.seq; i++) {
        tokens[i] = (int32_t)mf_st_get(t, (c->step * c->layout.gbs + index) * c->layout.seq + i);
    }
    return MF_OK;
}

static inline mf_status exec_read(exec_case *c, mf_err *e) {
    const char *no_mtp = "num_nextn_predict_layers=0"; /* as the references were trained */
    const char *family = c->setup.family;
    bool depths = strcmp(family, "deepseek_v3_wide") == 0 && !c->setup.mtp;
    char path[640];
    snprintf(path, sizeof path, "%s/%s/config.json", exec_root, family);
    mf_status s = mf_model_load_with(path, &no_mtp, depths, &c->model, e);
    snprintf(path, sizeof path, "%s/%s/expected.json", exec_root, family);
    s = s == MF_OK ? mf_json_load(path, &c->expected, e) : s;
    snprintf(path, sizeof path, "%s/%s/model.safetensors", exec_root, family);
    s = s == MF_OK ? mf_safetensors_open(path, &c->weights, e) : s;
    snprintf(path, sizeof path, "%s/%s/batch.safetensors", exec_root, family);
    return s == MF_OK ? mf_safetensors_open(path, &c->batch, e) : s;
}

static inline mf_status exec_read_preset(exec_case *c, mf_err *e) {
    size_t sets = 0;
    char path[640];
    while (sets < EXEC_SETS && c->setup.sets[sets] != NULL) {
        sets++;
    }
    mf_status s = mf_model_load_with(c->setup.preset, c->setup.sets, sets, &c->model, e);
    snprintf(path, sizeof path, "%s/%s/batch.safetensors", exec_root, c->setup.family);
    return s == MF_OK ? mf_safetensors_open(path, &c->batch, e) : s;
}

/* On the GPU the plan is that of a GPU: its scratch is another. */
static inline mf_status exec_build(exec_case *c, const mf_exec_options *o, mf_err *e) {
    mf_layout *l = &c->layout;
    mf_layout_init(l);
    l->gpus = 1;
    l->mbs = c->setup.mbs;
    l->gbs = 4;
    l->seq = 64;
    l->precision = MF_PREC_BF16;
    l->overlap = 0;
    l->token_headroom = 1;
    l->capacity_factor = c->setup.capacity;
    l->memory.recompute = c->setup.recompute;
    l->memory.offload = c->setup.offload;
    l->offload_optimizer = c->setup.offload_optimizer;
    mf_status s = mf_cluster_load(c->device->ops->on_host ? "cpu" : "h200", &c->cluster, e);
    s = s == MF_OK ? mf_layout_resolve(l, &c->model, e) : s;
    s = s == MF_OK ? mf_assignment_even(&c->model, l, &c->assignment, e) : s;
    s = s == MF_OK ? mf_program_lower(&c->model, l, &c->cluster, &c->assignment, &c->program, e)
                   : s;
    s = s == MF_OK ? mf_schedule_create(l, &c->schedule, e) : s;
    s = s == MF_OK ? mf_comm_create(l, &c->comm, e) : s;
    return s == MF_OK ? mf_exec_create(c->program, c->schedule, c->comm, c->device, o, &c->exec, e)
                      : s;
}

/* Ready for its first step, or the program ends with a word. */
static inline void exec_open(exec_case *c, const exec_setup *setup, mf_device *device,
                             const mf_exec_options *o) {
    mf_err e;
    memset(c, 0, sizeof *c);
    c->setup = *setup;
    c->device = device;
    mf_status s = setup->preset != NULL ? exec_read_preset(c, &e) : exec_read(c, &e);
    s = s == MF_OK ? exec_build(c, o, &e) : s;
    if (s == MF_OK && (setup->mtp || setup->preset != NULL)) {
        const mf_rank_coords at = mf_layout_coords(&c->layout, 0);
        s = mf_train_init_weights(c->exec, c->program, &at, 7, &e);
        s = s == MF_OK ? mf_exec_share_weights(c->exec, &e) : s;
    } else if (s == MF_OK) {
        s = mf_exec_load(c->exec, c->weights, &e);
    }
    s = s == MF_OK ? mf_exec_prepare(c->exec, &e) : s;
    if (s != MF_OK) {
        exec_die(setup->family, &e);
    }
}

static inline void exec_close(exec_case *c) {
    mf_exec_destroy(c->exec);
    mf_comm_destroy(c->comm);
    mf_schedule_destroy(c->schedule);
    mf_program_destroy(c->program);
    mf_safetensors_close(c->weights);
    mf_safetensors_close(c->batch);
    mf_json_destroy(c->expected);
    memset(c, 0, sizeof *c);
}

/* lr 0: gradients alone. */
static inline mf_exec_result exec_step(exec_case *c, double lr) {
    const mf_exec_batch batch = {exec_sample, c};
    mf_exec_result r;
    mf_err e;
    mf_status s = lr > 0 ? mf_exec_step(c->exec, &batch, lr, &r, &e)
                         : mf_exec_gradients(c->exec, &batch, &r, &e);
    if (s != MF_OK) {
        exec_die(c->setup.family, &e);
    }
    return r;
}

static inline double exec_number(const mf_json_value *v, const char *key) {
    double x = (double)NAN;
    mf_json_get_f64(v, key, -1e30, 1e30, &x, NULL);
    return x;
}

/* --- device memory ------------------------------------------------------------------------------
 */

/* From the device's memory or to it, after all that was entered before. */
static inline void exec_copy(mf_device *d, void *to, const void *from, size_t size_B) {
    mf_err e;
    if (size_B > 0 &&
        (d->ops->copy(d->ops->queue(d, MF_STREAM_COMPUTE), to, from, size_B, &e) != MF_OK ||
         d->ops->wait(d, &e) != MF_OK)) {
        exec_die("copy", &e);
    }
}

static inline void *exec_allocate(size_t size_B) {
    void *p = calloc(size_B + 16, 1);
    if (p == NULL) {
        printf("FATAL out of memory\n");
        exit(1);
    }
    return p;
}

/* |got - want| / |want|; infinite where one alone is not finite. */
static inline double exec_error(const void *got, const void *want, mf_kernel_dtype d, int64_t n) {
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)mf_kernel_get(got, d, i), y = (double)mf_kernel_get(want, d, i);
        bool alike = x == y || (isnan(x) && isnan(y));
        if (!alike && (!isfinite(x) || !isfinite(y))) {
            return (double)INFINITY;
        }
        difference += alike ? 0.0 : (x - y) * (x - y);
        size += isfinite(y) ? y * y : 0.0;
    }
    return difference > 0 ? sqrt(difference) / (sqrt(size) + 1e-30) : 0.0;
}

/* |got / want - 1|; infinite where one is no number. */
static inline double exec_off(double got, double want) {
    double error = got == want ? 0.0 : fabs(got - want) / (fabs(want) + 1e-30);
    return isnan(error) ? (double)INFINITY : error;
}

#endif
