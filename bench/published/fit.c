/* fit.c - fits the software profiles on two thirds of the published rows.
 *
 * A handful of named parameters per release, and a few that all releases share; every one is held
 * near its prior (bench/published/priors, from what simple fits of public rows found) by a
 * quadratic in its logarithm. The loss of a row is the absolute log ratio of step times, cut at a
 * factor of two so that rows with unsaid flags do not steer.
 */
#include "bench/published/predict.h"
#include "core/json.h"
#include "core/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct parameter {
    const char *key; /* path in the profile's JSON: "comm_eff.fused" */
    size_t offset;   /* of the (first) double in mf_software */
    int width;       /* neighbouring doubles that move together */
    double sigma;    /* of the prior, in log space */
    double low, high;
    bool shared; /* one value for all releases */
} parameter;

#define AT(member) offsetof(mf_software, member)
#define GPU(rate, gpu) AT(gpu_eff[MF_RATE_##rate][MF_GPU_##gpu])
enum { BLACKWELLS = MF_GPU_GB300 - MF_GPU_B200 + 1 };
static const parameter parameters[] = {
    {"gemm_eff.bf16", AT(gemm_eff[MF_MATH_BF16]), 1, 0.08, 0.4, 1.1, false},
    {"gemm_eff.fp8", AT(gemm_eff[MF_MATH_FP8]), 1, 0.08, 0.4, 1.1, false},
    {"attention_eff", AT(attention_eff), 1, 0.12, 0.25, 1.1, false},
    {"grouped_eff", AT(grouped_eff), 1, 0.08, 0.4, 1.3, false},
    {"memory_eff", AT(memory_eff), 1, 0.15, 0.25, 1.0, false},
    {"host_op_s", AT(host_op_s), 1, 0.40, 1e-6, 4e-5, false},
    {"host_layer_s", AT(host_layer_s), 1, 0.60, 1e-6, 3e-3, false},
    {"moe_sync_s", AT(moe_sync_s), 1, 0.70, 1e-5, 1e-2, false},
    {"comm_eff.alltoall", AT(comm_eff[MF_DISPATCH_ALLTOALL]), 1, 0.20, 0.2, 1.1, false},
    {"comm_eff.fused", AT(comm_eff[MF_DISPATCH_FUSED]), 1, 0.20, 0.2, 1.3, false},
    {"gemm_eff.fp4", AT(gemm_eff[MF_MATH_FP4]), 1, 0.10, 0.4, 1.1, true},
    {"block_scale_eff", AT(block_scale_eff), 1, 0.05, 0.6, 1.05, true},
    {"gpu_eff.gemm.b200", GPU(GEMM, B200), 1, 0.06, 0.6, 1.2, true},
    {"gpu_eff.gemm.gb200", GPU(GEMM, GB200), 1, 0.06, 0.6, 1.2, true},
    {"gpu_eff.gemm.b300", GPU(GEMM, B300), 1, 0.06, 0.6, 1.2, true},
    {"gpu_eff.gemm.gb300", GPU(GEMM, GB300), 1, 0.06, 0.6, 1.2, true},
    {"gpu_eff.low_precision.b200", GPU(LOW_PRECISION, B200), BLACKWELLS, 0.06, 0.6, 1.2, true},
    {"gpu_eff.grouped.b200", GPU(GROUPED, B200), BLACKWELLS, 0.08, 0.5, 1.2, true},
    {"gpu_eff.attention.b200", GPU(ATTENTION, B200), BLACKWELLS, 0.10, 0.6, 1.6, true},
    {"gpu_eff.host.b200", GPU(HOST, B200), 1, 0.20, 0.3, 1.5, true},
    {"gpu_eff.host.gb200", GPU(HOST, GB200), 1, 0.20, 0.3, 1.5, true},
    {"gpu_eff.host.b300", GPU(HOST, B300), 1, 0.20, 0.3, 1.5, true},
    {"gpu_eff.host.gb300", GPU(HOST, GB300), 1, 0.20, 0.3, 1.5, true},
    {"collective_eff", AT(collective_eff), 1, 0.20, 0.3, 1.1, true},
    {"host_graph.partial", AT(host_graph[MF_GRAPH_PARTIAL]), 1, 0.25, 0.1, 1.0, true},
    {"host_graph.step", AT(host_graph[MF_GRAPH_STEP]), 1, 0.50, 0.01, 0.6, true},
    {"overlap_exposed.ep", AT(overlap_exposed[0]), 1, 0.40, 0.05, 1.0, true},
    {"overlap_exposed.tp", AT(overlap_exposed[1]), 1, 0.40, 0.05, 1.0, true},
    {"overlap_exposed.dp", AT(overlap_exposed[2]), 1, 0.40, 0.02, 1.0, true},
    {"overlap_exposed.pp", AT(overlap_exposed[3]), 1, 0.40, 0.02, 1.0, true},
};
#define PARAMETERS ((int)(sizeof parameters / sizeof parameters[0]))

static double *value_of(mf_software *s, const parameter *p, int i) {
    return (double *)(void *)((char *)s + p->offset) + i;
}

/* A median fits most rows and may lean to one side in the mean: leaning costs this much more. */
static const double bias_weight = 0.5;

static double loss(const pub_profiles *p, const pub_profiles *prior, const pub_row *rows, int count,
                   int only) {
    double sum = 0, lean[2] = {0, 0}; /* dense, MoE: to one side */
    for (int i = 0; i < count; i++) {
        const pub_row *r = &rows[i];
        if (r->skipped[0] || r->held_out || (only >= 0 && r->profile != only)) {
            continue;
        }
        double miss = r->predicted_s > 0 ? log(r->predicted_s / r->step_s) : 1.0;
        miss = fmin(0.693, fmax(-0.693, miss));
        sum += fabs(miss);
        lean[r->moe] += miss;
    }
    sum += bias_weight * (fabs(lean[0]) + fabs(lean[1]));
    for (int k = 0; k < p->count; k++) {
        for (int q = 0; q < PARAMETERS && (only < 0 || k == only); q++) {
            mf_software a = p->software[k], b = prior->software[k];
            double z = log(*value_of(&a, &parameters[q], 0) / *value_of(&b, &parameters[q], 0)) /
                       parameters[q].sigma;
            sum += 0.10 * z * z / (parameters[q].shared ? p->count : 1);
        }
    }
    return sum;
}

static bool move(pub_profiles *p, const parameter *q, int profile, double factor) {
    bool moved = false;
    for (int k = 0; k < p->count; k++) {
        if (!q->shared && k != profile) {
            continue;
        }
        for (int i = 0; i < q->width; i++) {
            double *v = value_of(&p->software[k], q, i), next = *v * factor;
            next = next < q->low ? q->low : next > q->high ? q->high : next;
            moved |= fabs(next / *v - 1.0) > 1e-6;
            *v = next;
        }
    }
    return moved;
}

/* One parameter, both directions; keeps what lowers the loss. */
static mf_status try_parameter(pub_profiles *p, const pub_profiles *prior, pub_row *rows, int count,
                               int q, int profile, double step, double *now, mf_err *e) {
    int only = parameters[q].shared ? -1 : profile;
    double before = loss(p, prior, rows, count, only);
    for (int direction = 0; direction < 2; direction++) {
        pub_profiles saved = *p;
        if (!move(p, &parameters[q], profile, direction ? 1.0 / (1.0 + step) : 1.0 + step)) {
            continue;
        }
        mf_status status = pub_predict(p, rows, count, only, e);
        if (status != MF_OK) {
            return status;
        }
        double after = loss(p, prior, rows, count, only);
        if (after < before - 1e-6) {
            *now += after - before;
            return MF_OK;
        }
        *p = saved;
    }
    return pub_predict(p, rows, count, only, e); /* predictions of what is kept */
}

mf_status pub_fit(pub_profiles *p, pub_row *rows, int count, mf_err *e) {
    pub_profiles prior = *p;
    mf_status status = MF_OK;
    for (int k = 0; k < p->count && status == MF_OK; k++) {
        char path[128];
        snprintf(path, sizeof path, "bench/published/priors/%s.json", p->software[k].name);
        status = mf_software_load(path, &prior.software[k], e);
    }
    status = status == MF_OK ? pub_predict(p, rows, count, -1, e) : status;
    double now = loss(p, &prior, rows, count, -1);
    fprintf(stderr, "fit: loss %.3f before\n", now);
    for (double step = 0.04; step > 0.018 && status == MF_OK; step *= 0.5) {
        for (int q = 0; q < PARAMETERS && status == MF_OK; q++) {
            int profiles = parameters[q].shared ? 1 : p->count;
            for (int k = 0; k < profiles && status == MF_OK; k++) {
                status = try_parameter(p, &prior, rows, count, q, k, step, &now, e);
            }
        }
        now = loss(p, &prior, rows, count, -1);
        fprintf(stderr, "fit: step %.3f loss %.3f\n", step, now);
    }
    return status;
}

/* --- writing back ----------------------------------------------------------------------------- */

/* Replaces the number behind the next "value" after `from`; NULL when there is none. */
static char *replace_value(char *text, size_t size, char *from, double value) {
    char *at = from ? strstr(from, "\"value\":") : NULL;
    if (at == NULL) {
        return NULL;
    }
    at += strlen("\"value\":");
    while (*at == ' ') {
        at++;
    }
    char *end = at + strcspn(at, ",}");
    char number[32];
    int n = snprintf(number, sizeof number, "%.4g", value);
    size_t tail = strlen(end) + 1;
    if ((size_t)(at - text) + (size_t)n + tail > size) {
        return NULL;
    }
    memmove(at + n, end, tail);
    memcpy(at, number, (size_t)n);
    return at + n;
}

static mf_status save_profile(const mf_software *s, mf_err *e) {
    char path[512];
    enum { SIZE = 65536 };
    snprintf(path, sizeof path, "%s/software/%s.json", mf_data_dir(), s->name);
    char *text = calloc(SIZE, 1);
    FILE *f = fopen(path, "r");
    mf_status status = MF_OK;
    if (text == NULL || f == NULL || fread(text, 1, SIZE / 2, f) == 0) {
        status = mf_err_set(e, MF_IO, "%s: cannot be read", path);
        goto out;
    }
    fclose(f);
    f = NULL;
    for (int q = 0; q < PARAMETERS; q++) {
        mf_software copy = *s;
        char *at = text;
        for (const char *part = parameters[q].key; at != NULL && *part != '\0';) {
            char key[48];
            size_t n = strcspn(part, ".");
            snprintf(key, sizeof key, "\"%.*s\":", (int)n, part);
            at = strstr(at, key);
            part += part[n] == '.' ? n + 1 : n;
        }
        for (int i = 0; i < parameters[q].width && at != NULL; i++) {
            at = replace_value(text, SIZE, at, *value_of(&copy, &parameters[q], i));
        }
        if (at == NULL) {
            status = mf_err_set(e, MF_IO, "%s: %s not found", path, parameters[q].key);
            goto out;
        }
    }
    f = fopen(path, "w");
    if (f == NULL || fputs(text, f) < 0) {
        status = mf_err_set(e, MF_IO, "%s: cannot be written", path);
    }
out:
    if (f != NULL && fclose(f) != 0 && status == MF_OK) {
        status = mf_err_set(e, MF_IO, "%s: cannot be written", path);
    }
    free(text);
    return status;
}

mf_status pub_profiles_save(const pub_profiles *p, mf_err *e) {
    for (int k = 0; k < p->count; k++) {
        mf_status status = save_profile(&p->software[k], e);
        if (status != MF_OK) {
            return status;
        }
    }
    return MF_OK;
}
