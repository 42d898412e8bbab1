/* test_executor_cuda.c - a training step of five Hugging Face families, and of others reduced from
 * shipped models, on the GPU against the same program on the CPU, both in BF16, op by op
 * (exec_compare.h): in lockstep, each op alone, with several micro-batches, recomputation, dropped
 * tokens and MTP depths, losses of routers, and the update; freely, with all gradients. An op that
 * is left out must be seen, and named.
 *
 *     test_executor_cuda [cpu|noisy] [verbose] [lockstep|free|faults]...
 */
#include "tests/gpu/exec_compare.h"

/* --- a step on both -----------------------------------------------------------------------------
 */

typedef struct both {
    exec_case cpu, device;
    exec_record record;
    exec_watch watch;
    mf_exec_result want, got;
    float **weight;  /* of the CPU, before the step */
    double aux_coef; /* of both */
} both;

static void copy_weights(both *b) {
    const mf_params *list = mf_exec_params(b->cpu.exec);
    b->weight = exec_allocate((size_t)list->count * sizeof *b->weight);
    for (int i = 0; i < list->count; i++) {
        int64_t first, count;
        const float *w = mf_exec_own_weight(b->cpu.exec, i, &first, &count);
        b->weight[i] = (float *)(void *)exec_kept(w, (size_t)count * sizeof *w);
    }
}

/* The CPU's step, recorded. */
static void run_cpu(both *b, const exec_setup *s, bool losses) {
    mf_exec_options o;
    memset(b, 0, sizeof *b);
    b->record.of = &b->cpu;
    exec_options(&o);
    o.aux_coef = losses ? 0.02 : 0.0;
    o.z_coef = losses ? 1e-3 : 0.0;
    b->aux_coef = o.aux_coef;
    o.before_op = exec_record_before;
    o.after_op = exec_record_after;
    o.user = &b->record;
    exec_open(&b->cpu, s, mf_device_cpu(), &o);
    copy_weights(b);
    b->want = exec_step(&b->cpu, 1e-3);
}

/* The device's, held against it. The case stays open. */
static void run_device(both *b, const exec_under *u, bool lockstep, bool quiet, int skip) {
    mf_exec_options o;
    b->watch = (exec_watch){.record = &b->record,
                            .of = &b->device,
                            .under = u,
                            .lockstep = lockstep,
                            .quiet = quiet,
                            .skip = skip,
                            .last_position = -1,
                            .noise = 7};
    exec_options(&o);
    o.aux_coef = b->aux_coef;
    o.z_coef = b->aux_coef > 0 ? 1e-3 : 0.0;
    o.before_op = exec_watch_before;
    o.after_op = exec_watch_after;
    o.skips = exec_watch_skips;
    o.user = &b->watch;
    exec_open(&b->device, &b->cpu.setup, u->device, &o);
    b->got = exec_step(&b->device, 1e-3);
}

static void close_both(both *b) {
    for (int i = 0; i < mf_exec_params(b->cpu.exec)->count; i++) {
        free(b->weight[i]);
    }
    free(b->weight);
    exec_record_clear(&b->record);
    exec_close(&b->cpu);
}

/* --- what a step leaves -------------------------------------------------------------------------
 */

/* Largest error of losses and norm; each that the step has. */
static double losses_off(const both *b) {
    double most = exec_off(b->got.lm_loss, b->want.lm_loss);
    most = fmax(most, exec_off(b->got.grad_norm, b->want.grad_norm));
    most = fmax(most, exec_off(b->got.aux_loss, b->want.aux_loss));
    most = fmax(most, exec_off(b->got.z_loss, b->want.z_loss));
    most = fmax(most, exec_off(b->got.mtp_loss, b->want.mtp_loss));
    bool apart = b->got.ops != b->want.ops || b->got.skipped != b->want.skipped ||
                 b->got.overflowed != b->want.overflowed;
    return apart ? (double)INFINITY : most;
}

/* Largest error of a state after the update: of weights relative to what they moved, of moments to
 * themselves. */
static double states_off(both *b, char worst[200]) {
    const mf_params *list = mf_exec_params(b->cpu.exec);
    double most = 0.0;
    mf_err e;
    for (int i = 0; i < list->count; i++) {
        mf_exec_state want, got;
        if (mf_exec_state_of(b->cpu.exec, i, &want, &e) != MF_OK ||
            mf_exec_state_of(b->device.exec, i, &got, &e) != MF_OK) {
            exec_die("states", &e);
        }
        for (int k = 0; k < MF_EXEC_STATES; k++) {
            double error = exec_error(got.value[k], want.value[k], want.dtype[k], want.count);
            if (k == MF_EXEC_WEIGHT) {
                const float *now = want.value[k];
                double moved = 0.0, size = 0.0;
                for (int64_t j = 0; j < want.count; j++) {
                    double d = (double)now[j] - (double)b->weight[i][j];
                    moved += d * d;
                    size += (double)now[j] * (double)now[j];
                }
                error *= sqrt(size) / (sqrt(moved) + 1e-30);
            }
            if (!(error <= most)) {
                most = isnan(error) ? (double)INFINITY : error;
                snprintf(worst, 200, "%s of position %d, state %d", list->list[i].name,
                         list->list[i].position, k);
            }
        }
    }
    mf_exec_state_release(b->device.exec);
    return most;
}

/* Correction biases move by whole steps of the rate. */
static bool biases_alike(const both *b) {
    bool alike = true;
    for (int i = 0; i < b->cpu.assignment.positions; i++) {
        const float *want = mf_exec_correction_bias(b->cpu.exec, i);
        const float *there = mf_exec_correction_bias(b->device.exec, i);
        float got[MF_ROUTE_MAX_EXPERTS];
        size_t size_B = (size_t)b->cpu.model.experts * sizeof *got;
        if (want != NULL) {
            exec_copy(b->device.device, got, there, size_B);
            alike = alike && memcmp(got, want, size_B) == 0;
        }
    }
    return alike;
}

/* --- each op alone ------------------------------------------------------------------------------
 */

#define FINE                                                                                       \
    (MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT | MF_RECOMPUTE_MLA_UP_PROJ | MF_RECOMPUTE_EXPERTS |      \
     MF_RECOMPUTE_SHARED_EXPERT | MF_RECOMPUTE_MLP)

static void lockstep(const exec_under *u, const exec_setup *s, bool losses) {
    static both b;
    char line[1200], worst[200] = "";
    run_cpu(&b, s, losses);
    run_device(&b, u, true, false, -1);
    const exec_watch *w = &b.watch;
    double loss = losses_off(&b), state = states_off(&b, worst);
    bool whole = w->at == b.record.count && w->compared > 100;
    double loss_bound = u->noisy ? 1e-3 : 1e-5;
    /* Routers that chose otherwise count otherwise: their biases may move the other way. */
    bool biases = w->otherwise > 0 || biases_alike(&b);
    bool few = w->otherwise <= 2 + w->routed / 200;
    snprintf(line, sizeof line,
             "lockstep %-16s %-22s %d outputs of %d ops, %d wrong; worst %s: %.2e of %.2e; "
             "losses %.1e, states %.1e (%s); %lld of %lld rows chose otherwise%s",
             s->family, s->what, w->compared, w->at, w->wrong, w->worst_text, w->worst_error,
             w->worst_bound, loss, state, worst, (long long)w->otherwise, (long long)w->routed,
             biases ? "" : "; correction biases differ");
    exec_check(whole && w->wrong == 0 && loss <= loss_bound && state <= 1e-3 && biases && few,
               line);
    exec_close(&b.device);
    close_both(&b);
}

/* Statistics of two pieces of three heads, two samples of four rows, there and back. */
static void check_turn(void) {
    const mf_op op = {.dim = {[MF_OP_DIM_BATCH] = 2, [MF_OP_DIM_HEADS] = 3, [MF_OP_DIM_SEQ_Q] = 4}};
    const mf_exec_op x = {.op = &op};
    float lse[48];
    bool right = true;
    for (int i = 0; i < 48; i++) {
        lse[i] = (float)i;
    }
    exec_turn_lse(&x, lse, sizeof lse, true);
    for (int p = 0; p < 2; p++) {
        for (int b = 0; b < 2; b++) {
            for (int h = 0; h < 3; h++) {
                int there = 24 * p + (b * 3 + h) * 4 + 1, here = 24 * p + h * 8 + b * 4 + 1;
                right = right && lse[there] == (float)here;
            }
        }
    }
    exec_turn_lse(&x, lse, sizeof lse, false);
    for (int i = 0; i < 48; i++) {
        right = right && lse[i] == (float)i;
    }
    exec_check(right, "lockstep attention's statistics are turned into cuDNN's order and back");
}

/* Ops that none of the five families has: LayerNorm and the sparse mixer; multipliers; attention in
 * chunks, norms without weights, probabilities on the experts' input; low-rank queries beside whole
 * keys; norms that multiply by 1 + weight, gates by head; and by channel. */
static const exec_setup others[] = {
    {.preset = "phi-3.5-moe",
     .sets = {"hidden_size=128", "num_hidden_layers=2", "num_attention_heads=2",
              "num_key_value_heads=1", "head_dim=64", "num_local_experts=8",
              "intermediate_size=64"}},
    {.preset = "granite-3.1-1b-a400m",
     .sets = {"hidden_size=128", "num_hidden_layers=2", "num_attention_heads=2",
              "num_key_value_heads=1", "num_local_experts=8", "num_experts_per_tok=2",
              "intermediate_size=64"}},
    {.preset = "llama4-maverick",
     .sets = {"hidden_size=128", "num_hidden_layers=4", "num_attention_heads=2",
              "num_key_value_heads=1", "head_dim=64", "num_local_experts=8", "intermediate_size=64",
              "intermediate_size_mlp=128", "attention_chunk_size=32"}},
    {.preset = "step-3",
     .sets = {"hidden_size=128", "num_hidden_layers=2", "num_attention_heads=2", "head_dim=64",
              "share_q_dim=64", "moe_num_experts=8", "moe_top_k=2", "moe_intermediate_size=64",
              "share_expert_dim=64", "intermediate_size=128", "moe_layers_enum=[1]"}},
    {.preset = "step-3.5-flash",
     .sets = {"hidden_size=128", "num_hidden_layers=4", "num_attention_heads=2", "head_dim=64",
              "num_attention_groups=1", "attention_other_setting.num_attention_heads=4",
              "attention_other_setting.num_attention_groups=2",
              "attention_other_setting.head_dim=64", "sliding_window=32", "moe_num_experts=8",
              "moe_top_k=2", "moe_intermediate_size=64", "share_expert_dim=64",
              "intermediate_size=128", "num_nextn_predict_layers=0"}},
    {.preset = "qwen3-next-80b-a3b",
     .sets = {"hidden_size=128", "num_hidden_layers=2", "full_attention_interval=1",
              "num_attention_heads=2", "num_key_value_heads=1", "head_dim=64", "num_experts=8",
              "num_experts_per_tok=2", "moe_intermediate_size=64",
              "shared_expert_intermediate_size=64"}},
};

static void lockstep_others(const exec_under *u) {
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        for (int again = 0; again < 2; again++) {
            exec_setup s = others[i];
            int n = 0;
            while (s.sets[n] != NULL) {
                n++;
            }
            s.sets[n] = "vocab_size=256";
            s.family = "llama_wide";
            s.what = s.preset;
            s.mbs = again ? 2 : 4;
            s.recompute = again ? MF_RECOMPUTE_LAYER : 0;
            lockstep(u, &s, true);
        }
    }
}

static void test_lockstep(const exec_under *u) {
    check_turn();
    lockstep_others(u);
    static const exec_setup kinds[] = {
        {.what = "one micro-batch", .mbs = 4},
        {.what = "two micro-batches", .mbs = 2},
        {.what = "four micro-batches", .mbs = 1},
        {.what = "recompute full", .mbs = 2, .recompute = MF_RECOMPUTE_LAYER},
        {.what = "recompute selective", .mbs = 2, .recompute = MF_RECOMPUTE_CORE_ATTN},
        {.what = "recompute MoE", .mbs = 4, .recompute = MF_RECOMPUTE_MOE},
        {.what = "recompute fine", .mbs = 2, .recompute = FINE},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int f = 0; f < EXEC_FAMILIES; f++) {
            exec_setup s = kinds[k];
            s.family = exec_families[f];
            lockstep(u, &s, k % 2 == 1);
        }
    }
    const exec_setup more[] = {
        {.family = "mixtral_wide", .what = "tokens dropped", .mbs = 2, .capacity = 1.0},
        {.family = "deepseek_v3_wide", .what = "MTP", .mbs = 2, .mtp = true},
    };
    lockstep(u, &more[0], true);
    lockstep(u, &more[1], false);
}

/* --- its own way --------------------------------------------------------------------------------
 */

/* Largest error of a parameter's gradient after the whole step. */
static double gradients_off(const both *b, char worst[160]) {
    const mf_params *list = mf_exec_params(b->cpu.exec);
    double most = 0.0;
    for (int i = 0; i < list->count; i++) {
        int64_t first, count;
        const float *there = mf_exec_own_gradient(b->device.exec, i, &first, &count);
        float *got = exec_allocate((size_t)count * sizeof *got);
        exec_copy(b->device.device, got, there, (size_t)count * sizeof *got);
        double error = exec_error(got, b->record.gradient[i], MF_KERNEL_F32, count);
        free(got);
        if (!(error <= most)) {
            most = error;
            snprintf(worst, 160, "%s of position %d", list->list[i].name, list->list[i].position);
        }
    }
    return most;
}

static void test_free(const exec_under *u) {
    for (int f = 0; f < 2 * EXEC_FAMILIES; f++) {
        static both b;
        const exec_setup s = {.family = exec_families[f % EXEC_FAMILIES],
                              .what = f < EXEC_FAMILIES ? "one micro-batch" : "recompute full",
                              .mbs = f < EXEC_FAMILIES ? 4 : 2,
                              .recompute = f < EXEC_FAMILIES ? 0 : MF_RECOMPUTE_LAYER};
        char line[1000], worst[160] = "";
        run_cpu(&b, &s, false);
        run_device(&b, u, false, false, -1);
        const exec_watch *w = &b.watch;
        double gradient = gradients_off(&b, worst);
        double bound = exec_bound_after(w->blocks);
        double loss = exec_off(b.got.lm_loss, b.want.lm_loss);
        double norm = exec_off(b.got.grad_norm, b.want.grad_norm);
        snprintf(line, sizeof line,
                 "free     %-16s %-22s %d outputs, %d wrong; worst %s: %.2e of %.2e; gradients "
                 "%.1e of %.1e (%s); loss %.1e, norm %.1e; %lld of %lld rows chose otherwise "
                 "(gap %.1e)",
                 s.family, s.what, w->compared, w->wrong, w->worst_text, w->worst_error,
                 w->worst_bound, gradient, bound, worst, loss, norm, (long long)w->otherwise,
                 (long long)w->routed, w->widest);
        exec_check(w->at == b.record.count && w->wrong == 0 && gradient <= bound && loss <= 1e-3 &&
                       norm <= EXEC_EPS && w->otherwise * 12 <= w->routed,
                   line);
        exec_close(&b.device);
        close_both(&b);
    }
}

/* --- planted faults -----------------------------------------------------------------------------
 */

/* Has an op of this kind and pass been left out before? */
static bool was_tried(const exec_record *r, int at) {
    for (int i = 0; i < at; i++) {
        if (r->list[i].op.kind == r->list[at].op.kind &&
            r->list[i].op.pass == r->list[at].op.pass) {
            return true;
        }
    }
    return false;
}

/* The first op of each kind and pass that writes something, left out: it, and no other, is wrong.
 */
static void test_faults(const exec_under *u) {
    static const char *const families[] = {"qwen2_moe_wide", "deepseek_v3_wide"};
    for (size_t f = 0; f < 2; f++) {
        static both b;
        const exec_setup s = {.family = families[f], .what = "faults", .mbs = 2};
        int planted = 0, seen = 0;
        char line[400], name[160];
        run_cpu(&b, &s, false);
        run_device(&b, u, true, true, -1);
        const int otherwise_wrong = b.watch.wrong;
        exec_close(&b.device);
        for (int i = 0; i < b.record.count; i++) {
            const exec_entry *t = &b.record.list[i];
            if (*t->label == '\0' || t->op.nout == 0 || was_tried(&b.record, i)) {
                continue;
            }
            run_device(&b, u, true, true, i);
            const int seen_there = b.watch.wrong_left_out;
            bool named = seen_there > 0 && b.watch.wrong - seen_there <= otherwise_wrong;
            planted++;
            seen += named;
            if (!named) {
                printf("      not seen: %s left out; first wrong: %s\n", exec_op_name(t, name),
                       b.watch.wrong > 0 ? b.watch.first_text : "none");
            }
            exec_close(&b.device);
        }
        snprintf(line, sizeof line, "faults   %-16s %d ops left out, %d seen and named", s.family,
                 planted, seen);
        exec_check(planted > 15 && seen == planted, line);
        close_both(&b);
    }
}

static void print_kinds(void) {
    printf("largest errors in lockstep, BF16 and float outputs:\n");
    for (int k = 0; k < MF_OP_COUNT; k++) {
        if (exec_kind_worst[k][0] > 0 || exec_kind_worst[k][1] > 0) {
            printf("      %-18s %.2e %.2e\n", mf_op_text((mf_op_kind)k), exec_kind_worst[k][1],
                   exec_kind_worst[k][0]);
        }
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*test)(const exec_under *u);
    } parts[] = {{"lockstep", test_lockstep}, {"free", test_free}, {"faults", test_faults}};
    bool named = false;
    exec_find_references(3);
    exec_under u = exec_open_device(argc, argv, 3);
    for (int all = 0; all < 2; all++) { /* those that are named; without a name, all */
        for (int k = 0; k < 3; k++) {
            bool asked = all == 1 && !named;
            for (int i = 1; all == 0 && i < argc; i++) {
                asked |= strcmp(argv[i], parts[k].name) == 0;
            }
            if (asked) {
                parts[k].test(&u);
            }
            named |= asked && all == 0;
        }
    }
    print_kinds();
    exec_close_device(&u);
    return exec_report();
}
