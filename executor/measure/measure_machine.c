/* measure_machine.c - a machine as text, and whether it is fit to be measured. */
#include "executor/measure/measure_machine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- names ------------------------------------------------------------------------------------ */

static const struct {
    const char *part; /* of the driver's name, upper case; the first match wins */
    const char *gpu;
} names[] = {{"GH200", "gh200"}, {"GB300", "gb300"},   {"GB200", "gb200"},   {"B300", "b300"},
             {"B200", "b200"},   {"H200", "h200"},     {"H100", "h100"},     {"H20", "h20"},
             {"A100", "a100"},   {"MI300X", "mi300x"}, {"MI325X", "mi325x"}, {"MI355X", "mi355x"}};

void mf_measure_gpu_name(const char *device, double memory_B, char *out, size_t size) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strstr(device, names[i].part) != NULL) {
            bool small = strcmp(names[i].gpu, "a100") == 0 && memory_B < 60e9;
            snprintf(out, size, "%s%s", names[i].gpu, small ? "-40" : "");
            return;
        }
    }
    const char *from = strncmp(device, "NVIDIA ", 7) == 0 ? device + 7 : device;
    size_t used = 0;
    for (; *from != '\0' && used + 1 < size; from++) {
        bool plain = isalnum((unsigned char)*from) != 0;
        if (plain || (used > 0 && out[used - 1] != '-')) {
            out[used++] = plain ? (char)tolower((unsigned char)*from) : '-';
        }
    }
    out[used] = '\0';
}

/* --- a line ----------------------------------------------------------------------------------- */

void mf_measure_machine_format(const mf_measure_machine *m, char *out, size_t size) {
    snprintf(out, size,
             "machine\tdevice=%s\tgpu=%s\tmemory_B=%.0f\tgpus=%d\tprocesses=%d\thot=%d\tsm_MHz=%d\t"
             "temperature_C=%d\tversions=%s\tnccl=%s",
             m->device, m->gpu, m->memory_B, m->gpus, m->processes, m->hot, m->sm_MHz,
             m->temperature_C, m->versions, m->nccl);
}

/* Text of a field up to the next tab. */
static bool field_of(const char *line, const char *key, char *out, size_t size) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, "\t%s=", key);
    const char *at = strstr(line, wanted);
    if (at == NULL) {
        return false;
    }
    at += strlen(wanted);
    size_t length = strcspn(at, "\t\r\n");
    snprintf(out, size, "%.*s", (int)(length < size ? length : size - 1), at);
    return true;
}

static mf_status number_of(const char *line, const char *key, double *out, mf_err *e) {
    char text[64], *end = text;
    if (field_of(line, key, text, sizeof text)) {
        *out = strtod(text, &end);
        if (end != text && *end == '\0') {
            return MF_OK;
        }
    }
    return mf_err_set(e, MF_INPUT, "what measures said nothing of \"%s\"", key);
}

mf_status mf_measure_machine_parse(const char *line, mf_measure_machine *out, mf_err *e) {
    double n[5] = {0};
    static const char *const keys[] = {"gpus", "processes", "hot", "sm_MHz", "temperature_C"};
    memset(out, 0, sizeof *out);
    bool texts = strncmp(line, "machine\t", 8) == 0 &&
                 field_of(line, "device", out->device, sizeof out->device) &&
                 field_of(line, "gpu", out->gpu, sizeof out->gpu) &&
                 field_of(line, "versions", out->versions, sizeof out->versions) &&
                 field_of(line, "nccl", out->nccl, sizeof out->nccl);
    if (!texts) {
        return mf_err_set(e, MF_INPUT, "what measures did not name its machine: \"%.80s\"", line);
    }
    mf_status s = number_of(line, "memory_B", &out->memory_B, e);
    for (int i = 0; i < 5 && s == MF_OK; i++) {
        s = number_of(line, keys[i], &n[i], e);
    }
    out->gpus = (int)n[0];
    out->processes = (int)n[1];
    out->hot = n[2] > 0;
    out->sm_MHz = (int)n[3];
    out->temperature_C = (int)n[4];
    return s;
}

/* --- decisions -------------------------------------------------------------------------------- */

const char *mf_measure_machine_blind(const mf_measure_machine *m) {
    return m->processes < 0 ? "the driver does not say what else computes on the GPU: times are "
                              "taken as those of an idle one"
                            : "";
}

mf_status mf_measure_machine_check(const mf_measure_machine *m, bool shared, mf_err *e) {
    if (m->gpus < 1) {
        return mf_err_set(e, MF_USAGE, "this machine has no GPU to measure");
    }
    if (m->processes > 0 && !shared) {
        return mf_err_set(e, MF_INPUT,
                          "%d other process%s on the GPU: times would be those of a shared one; "
                          "wait for it, or accept that with --shared",
                          m->processes, m->processes == 1 ? "" : "es");
    }
    if (m->hot) {
        return mf_err_set(e, MF_INPUT,
                          "the GPU is throttled at %d MHz and %d C: let it cool, then measure",
                          m->sm_MHz, m->temperature_C);
    }
    return MF_OK;
}

void mf_measure_versions_of(const mf_measure_machine *m, const char *op, char *out, size_t size) {
    bool nccl = mf_measure_op_is_collective(op) && m->nccl[0] != '\0';
    snprintf(out, size, "%.120s%s%.30s", m->versions, nccl ? " nccl=" : "", nccl ? m->nccl : "");
}

/* Value of "key=" among words parted by blanks, at most `parts` of those parted by dots; its length
 * in *length, 0 without. */
static const char *version_of(const char *text, const char *key, int parts, size_t *length) {
    size_t n = strlen(key);
    *length = 0;
    for (const char *at = text; at != NULL; at = strchr(at, ' ')) {
        at += strspn(at, " ");
        if (strncmp(at, key, n) != 0 || at[n] != '=') {
            continue;
        }
        at += n + 1;
        while (at[*length] != '\0' && at[*length] != ' ' && (at[*length] != '.' || --parts > 0)) {
            ++*length;
        }
        return at;
    }
    return text;
}

static bool same_version(const char *key, int parts, const char *a, const char *b) {
    size_t of_a, of_b;
    const char *x = version_of(a, key, parts, &of_a), *y = version_of(b, key, parts, &of_b);
    return of_a == of_b && strncmp(x, y, of_a) == 0;
}

bool mf_measure_same_versions(const char *op, const char *a, const char *b) {
    enum { WHOLE = 9 };
    const bool product = strcmp(op, "gemm") == 0 || strcmp(op, "first_wgrad") == 0;
    const char *library = product                            ? "cublas"
                          : strncmp(op, "attention", 9) == 0 ? "cudnn"
                          : mf_measure_op_is_collective(op)  ? "nccl"
                                                             : "cuda";
    return same_version("cuda", WHOLE, a, b) && same_version(library, WHOLE, a, b) &&
           same_version("driver", 2, a, b);
}

bool mf_measure_op_is_collective(const char *op) {
    static const char *const ops[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                      "send_recv",  "beside",     "dispatch",       "combine"};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (strcmp(ops[i], op) == 0) {
            return true;
        }
    }
    return false;
}
