/* read_modelzoo.c - variables of the launcher of Megatron-MoE-ModelZoo, and the flags that it makes
 * of them.
 *
 * Facts: sbatch_benchmarking.sh at commit e8650517d60d71ab73fc6b3b0388cac4ba435181 (2026-05-16):
 * PR names a precision and its optimizer, A2A_OVERLAP merged passes, DISPATCHER the exchange,
 * OPTIMIZER_OFFLOAD where optimizer states stand; nodes have 8 GPUs, those of GB200 four.
 */
#include "launch/read/read_internal.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of a command, with the lines that it goes on in. */
static size_t command_length(const char *at) {
    size_t n = 0;
    while (at[n] != '\0' && (at[n] != '\n' || (n > 0 && at[n - 1] == '\\'))) {
        n++;
    }
    return n;
}

static bool launches(const char *at, size_t length) {
    static const char launcher[] = "sbatch_benchmarking.sh";
    for (size_t i = 0; i + sizeof launcher - 1 <= length && *at != '#'; i++) {
        if (strncmp(at + i, launcher, sizeof launcher - 1) == 0) {
            return true;
        }
    }
    return false;
}

int mf_read_one_launch(char *text, int which) {
    int count = 0, nth = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (char *at = text; *at != '\0';) {
            at += strspn(at, " \t\n");
            size_t length = command_length(at);
            if (launches(at, length)) {
                count += pass == 0;
                nth += pass == 1;
                if (pass == 1 && nth != which) {
                    memset(at, ' ', length);
                }
            }
            at += length;
        }
        which = which > 0 ? which : count;
    }
    return count;
}

/* What its launcher takes for variables that nobody sets, by MODEL
 * (runtime_configs/benchmarking/runtime.conf of the same commit). */
void mf_read_modelzoo_defaults(mf_read *r) {
    static const struct {
        const char *model;
        int tp, pp, ep, vpp, mbs, gbs, nodes;
    } rows[] = {
        {"Mixtral-8x7B", 1, 4, 8, 8, 1, 256, 8},
        {"Mixtral-8x22B", 2, 8, 8, 7, 1, 256, 16},
        {"DeepSeek-V2", 1, 16, 8, 2, 1, 1024, 32},
        {"DeepSeek-V2-Lite", 1, 1, 8, 1, 1, 512, 1},
        {"DeepSeek-V3", 1, 16, 64, 1, 1, 8192, 128},
        {"DeepSeek-V3-Proxy", 1, 4, 16, 1, 1, 512, 8},
        {"Qwen3-235B-A22B", 2, 8, 32, 4, 1, 256, 32},
        {"Qwen3-30B-A3B", 1, 1, 8, 1, 1, 256, 4},
        {"Qwen3-Next-80B-A3B", 1, 4, 8, 3, 1, 256, 8},
        {"Kimi-K2", 1, 4, 64, 4, 1, 128, 16},
    };
    const char *model = mf_settings_text(&r->variables, "MODEL", "");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].model, model) != 0) {
            continue;
        }
        const struct {
            const char *name;
            int value;
        } numbers[] = {
            {"TP", rows[i].tp},       {"PP", rows[i].pp},   {"EP", rows[i].ep},   {"CP", 1},
            {"VPP", rows[i].vpp},     {"MBS", rows[i].mbs}, {"GBS", rows[i].gbs}, {"SEQ_LEN", 4096},
            {"NNODES", rows[i].nodes}};
        for (size_t n = 0; n < sizeof numbers / sizeof numbers[0]; n++) {
            if (mf_settings_text(&r->variables, numbers[n].name, "")[0] == '\0') {
                mf_settings_put(&r->variables, numbers[n].name, "%d", numbers[n].value);
            }
        }
        if (!mf_settings_has(&r->variables, "PR")) {
            mf_settings_put(&r->variables, "PR", "bf16");
        }
    }
}

static bool is(mf_read *r, const char *variable, const char *value) {
    return strcmp(mf_settings_text(&r->variables, variable, ""), value) == 0;
}

static void add(mf_read *r, const char *flag, const char *value) {
    if (!mf_settings_has(&r->settings, flag)) {
        mf_read_flag(r, flag, strlen(flag), value);
    }
}

static void add_precision(mf_read *r) {
    bool block = is(r, "PR", "fp8"), mx = is(r, "PR", "mxfp8");
    bool offload = is(r, "OPTIMIZER_OFFLOAD", "1");
    if (is(r, "PR", "bf16")) {
        add(r, "tp-comm-overlap", "true");
    }
    if (!block && !mx) {
        return;
    }
    add(r, "fp8-format", "e4m3");
    add(r, "fp8-recipe", block ? "blockwise" : "mxfp8");
    add(r, "use-precision-aware-optimizer", "true");
    add(r, "exp-avg-dtype", "bf16");
    add(r, "exp-avg-sq-dtype", "bf16");
    if (!offload) {
        add(r, "fp8-param-gather", "true");
    }
}

static void add_nodes(mf_read *r) {
    const char *nodes = mf_settings_text(&r->variables, "NNODES", NULL);
    if (nodes != NULL && nodes[0] != '\0') {
        add(r, "nodes", nodes);
        add(r, "ntasks-per-node", is(r, "GB200_CLUSTER", "1") ? "4" : "8");
    }
}

mf_status mf_read_modelzoo(mf_read *r, mf_err *e) {
    static const char *const signs[] = {"PR", "A2A_OVERLAP", "DISPATCHER", "OPTIMIZER_OFFLOAD"};
    bool zoo = false;
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        zoo = zoo || mf_settings_has(&r->variables, signs[i]);
    }
    if (!zoo) {
        return MF_OK;
    }
    const char *dispatcher = mf_settings_text(&r->variables, "DISPATCHER", "deepep");
    const char *vpp = mf_settings_text(&r->variables, "VPP", "1");
    bool fused = strcmp(dispatcher, "alltoall") != 0 && strcmp(dispatcher, "allgather") != 0;
    mf_settings_put(&r->settings, "moe-token-dispatcher-type", "%s", fused ? "flex" : dispatcher);
    if (fused) {
        mf_settings_put(&r->settings, "moe-flex-dispatcher-backend", "%s", dispatcher);
    }
    add_precision(r);
    add_nodes(r);
    if (is(r, "OPTIMIZER_OFFLOAD", "1")) {
        add(r, "optimizer-cpu-offload", "true");
    }
    if (is(r, "A2A_OVERLAP", "1")) {
        add(r, "overlap-moe-expert-parallel-comm", "true");
        add(r, "delay-wgrad-compute", "true");
    }
    bool stated = mf_settings_has(&r->settings, "pipeline-model-parallel-layout") ||
                  mf_settings_has(&r->settings, "num-layers-per-virtual-pipeline-stage");
    if (!stated && strcmp(vpp, "1") != 0) {
        add(r, "num-virtual-stages-per-pipeline-rank", vpp);
    }
    /* Variables in their place (LAYERS_PER_VP, DISPATCHER) are the launcher's own, from those
     * above. */
    mf_settings_drop(&r->unknown, "num-layers-per-virtual-pipeline-stage");
    mf_settings_drop(&r->unknown, "moe-token-dispatcher-type");
    return r->settings.failed ? mf_err_set(e, MF_NOMEM, "out of memory") : MF_OK;
}
