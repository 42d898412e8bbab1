/* test_executor_cuda_train.c - training on the GPU, as a whole: gradients and ten AdamW steps of
 * five Hugging Face families in BF16 near those of the CPU in BF16, losses near the references',
 * which are float; gradients in one micro-batch and in several; steps that are played from a graph,
 * and steps that are run again, the same to the bit.
 *
 *     test_executor_cuda_train [cpu|noisy] [train|batches|graph]...
 */
#include "tests/gpu/exec_compare.h"

enum { STEPS = 10, GRAPH_STEPS = 5 };

/* The device of these runs, rounded otherwise where it is the CPU in the GPU's place. */
static uint64_t noise = 11;

static void disturb(void *user, const mf_exec_op *x) {
    (void)user;
    exec_disturb(&noise, x);
}

static void open_on(exec_case *c, const exec_under *u, const exec_setup *s, mf_exec_options *o) {
    o->after_op = u->noisy ? disturb : NULL;
    exec_open(c, s, u->device, o);
}

/* A parameter's own gradient in host memory; to be freed. */
static float *gradient_of(exec_case *c, int i, int64_t *count) {
    int64_t first;
    const float *there = mf_exec_own_gradient(c->exec, i, &first, count);
    float *g = exec_allocate((size_t)*count * sizeof *g);
    exec_copy(c->device, g, there, (size_t)*count * sizeof *g);
    return g;
}

/* Largest error of a parameter's gradient, and of all together. */
static double gradients_off(exec_case *want, exec_case *got, double *all, char worst[160]) {
    const mf_params *list = mf_exec_params(want->exec);
    double most = 0.0, difference = 0.0, size = 0.0;
    for (int i = 0; i < list->count; i++) {
        int64_t count;
        float *a = gradient_of(want, i, &count), *b = gradient_of(got, i, &count);
        double error = exec_error(b, a, MF_KERNEL_F32, count);
        for (int64_t j = 0; j < count; j++) {
            difference += ((double)a[j] - (double)b[j]) * ((double)a[j] - (double)b[j]);
            size += (double)a[j] * (double)a[j];
        }
        if (!(error <= most)) {
            most = error;
            snprintf(worst, 160, "%s of position %d", list->list[i].name, list->list[i].position);
        }
        free(a);
        free(b);
    }
    *all = sqrt(difference / (size + 1e-30));
    return most;
}

/* --- ten steps ----------------------------------------------------------------------------------
 */

/* What this rank holds of all states, one behind the other; to be freed. */
static char *states_of(exec_case *c, size_t *size_B) {
    const mf_params *list = mf_exec_params(c->exec);
    char *all = NULL;
    mf_err e;
    *size_B = 0;
    for (int i = 0; i < list->count; i++) {
        mf_exec_state s;
        if (mf_exec_state_of(c->exec, i, &s, &e) != MF_OK) {
            exec_die("states", &e);
        }
        for (int k = 0; k < MF_EXEC_STATES; k++) {
            size_t more_B = (size_t)s.count * mf_kernel_dtype_B(s.dtype[k]);
            all = realloc(all, *size_B + more_B + 1);
            if (all == NULL) {
                printf("FATAL out of memory\n");
                exit(1);
            }
            memcpy(all + *size_B, s.value[k], more_B);
            *size_B += more_B;
        }
    }
    mf_exec_state_release(c->exec);
    return all;
}

/* Distance of two runs' weights, relative to how far the first came from where both began. */
static double weights_apart(exec_case *want, exec_case *got, const exec_case *begin) {
    const mf_params *list = mf_exec_params(want->exec);
    double apart = 0.0, moved = 0.0;
    mf_err e;
    for (int i = 0; i < list->count; i++) {
        mf_exec_state a, b, c;
        if (mf_exec_state_of(want->exec, i, &a, &e) != MF_OK ||
            mf_exec_state_of(got->exec, i, &b, &e) != MF_OK ||
            mf_exec_state_of(begin->exec, i, &c, &e) != MF_OK) {
            exec_die("states", &e);
        }
        const float *x = a.value[MF_EXEC_WEIGHT], *y = b.value[MF_EXEC_WEIGHT];
        const float *from = c.value[MF_EXEC_WEIGHT];
        for (int64_t j = 0; j < a.count; j++) {
            apart += ((double)x[j] - (double)y[j]) * ((double)x[j] - (double)y[j]);
            moved += ((double)x[j] - (double)from[j]) * ((double)x[j] - (double)from[j]);
        }
    }
    mf_exec_state_release(got->exec);
    return sqrt(apart / (moved + 1e-30));
}

typedef struct distances {
    double cpu, reference, norm, aux; /* largest of ten losses; mean of norms; largest aux loss */
} distances;

static void follow(distances *d, const mf_exec_result *want, const mf_exec_result *got,
                   const mf_json_value *row) {
    double aux = exec_number(row, "aux_sum");
    d->cpu = fmax(d->cpu, exec_off(got->lm_loss, want->lm_loss));
    d->reference = fmax(d->reference, exec_off(got->lm_loss, exec_number(row, "lm_loss")));
    d->norm += exec_off(got->grad_norm, exec_number(row, "grad_norm")) / STEPS;
    d->aux = aux > 0 ? fmax(d->aux, exec_off(got->aux_loss, aux)) : d->aux;
    if (got->skipped || got->overflowed) {
        d->cpu = (double)INFINITY;
    }
}

static void train(const exec_under *u, const char *family, bool with_aux) {
    const exec_setup s = {.family = family, .mbs = 4};
    static exec_case cpu, device, begin;
    const char *key = with_aux ? "lm_plus_coef_times_sum_of_layers_aux" : "lm_only";
    mf_exec_options o;
    distances d = {0};
    char line[600], worst[160] = "";
    exec_options(&o);
    o.bias_rate = 0.0; /* of the references */
    exec_open(&begin, &s, mf_device_cpu(), &o);
    o.aux_coef = with_aux ? exec_number(mf_json_root(begin.expected), "aux_coef") : 0.0;
    exec_open(&cpu, &s, mf_device_cpu(), &o);
    open_on(&device, u, &s, &o);
    const mf_json_value *rows =
        mf_json_find(mf_json_find(mf_json_root(cpu.expected), "adamw"), key);
    double all = 0.0, gradient = 0.0, bound = exec_bound_after(2 * cpu.assignment.positions);
    for (int i = 0; i < STEPS; i++) {
        cpu.step = device.step = i;
        mf_exec_result want = exec_step(&cpu, 1e-3), got = exec_step(&device, 1e-3);
        follow(&d, &want, &got, mf_json_at(rows, (size_t)i));
        if (i == 0) {
            gradient = gradients_off(&cpu, &device, &all, worst);
        }
    }
    double apart = weights_apart(&cpu, &device, &begin);
    snprintf(
        line, sizeof line,
        "train    %-16s %-8s gradients %.1e of %.1e, worst %.1e (%s); ten losses off the CPU's "
        "by %.1e, the reference's by %.1e, norms by %.1e, aux by %.1e; weights apart by %.1e "
        "of their way",
        family, with_aux ? "with aux" : "lm only", all, bound, gradient, worst, d.cpu, d.reference,
        d.norm, d.aux, apart);
    /* A row that a router sends elsewhere on a near tie is a part of its expert's gradient. */
    exec_check(mf_json_size(rows) == STEPS && all <= 2 * bound && gradient <= 12 * bound &&
                   d.cpu <= 2e-3 && d.reference <= 2e-3 && d.norm <= 2e-2 && d.aux <= 5e-2 &&
                   apart <= 0.5,
               line);
    exec_close(&begin);
    exec_close(&cpu);
    exec_close(&device);
}

static void test_train(const exec_under *u) {
    for (int f = 0; f < EXEC_FAMILIES; f++) {
        train(u, exec_families[f], false);
    }
    train(u, "mixtral_wide", true);
    train(u, "qwen2_moe_wide", true);
    train(u, "qwen3_moe_wide", true);
}

/* --- one micro-batch and several ----------------------------------------------------------------
 */

/* The same samples, whatever they are divided into and whatever is computed again. */
static void test_batches(const exec_under *u) {
    static const exec_setup kinds[] = {
        {.what = "two micro-batches", .mbs = 2},
        {.what = "four micro-batches", .mbs = 1},
        {.what = "recompute full", .mbs = 4, .recompute = MF_RECOMPUTE_LAYER},
        {.what = "recompute selective", .mbs = 4, .recompute = MF_RECOMPUTE_CORE_ATTN},
        {.what = "recompute MoE", .mbs = 4, .recompute = MF_RECOMPUTE_MOE},
    };
    for (int f = 0; f < EXEC_FAMILIES; f++) {
        const exec_setup one = {.family = exec_families[f], .mbs = 4};
        static exec_case whole, cut;
        mf_exec_options o;
        exec_options(&o);
        open_on(&whole, u, &one, &o);
        mf_exec_result want = exec_step(&whole, 0.0);
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            exec_setup s = kinds[k];
            char line[400], worst[160] = "";
            double all;
            s.family = one.family;
            open_on(&cut, u, &s, &o);
            mf_exec_result got = exec_step(&cut, 0.0);
            double gradient = gradients_off(&whole, &cut, &all, worst);
            double loss = exec_off(got.lm_loss, want.lm_loss);
            double bound = exec_bound_after(2 * whole.assignment.positions);
            snprintf(line, sizeof line,
                     "batches  %-16s %-22s loss %.1e, gradients %.1e of %.1e, worst %.1e (%s)",
                     s.family, s.what, loss, all, bound, gradient, worst);
            bool near = loss <= 1e-3 && all <= 2 * bound && gradient <= 12 * bound;
            /* What is computed again is the same to the bit. */
            exec_check(s.mbs == one.mbs && !u->noisy ? loss == 0 && gradient == 0 : near, line);
            exec_close(&cut);
        }
        exec_close(&whole);
    }
}

/* --- again, and from a graph --------------------------------------------------------------------
 */

typedef struct trace {
    double numbers[GRAPH_STEPS][4];
    int64_t ops;
    char *states;
    size_t states_B;
    float bias[16 * MF_ROUTE_MAX_EXPERTS]; /* of all positions */
} trace;

static void run_trace(const exec_under *u, const exec_setup *s, bool graph, trace *out) {
    static exec_case c;
    mf_exec_options o;
    memset(out, 0, sizeof *out);
    exec_options(&o);
    o.graph = graph;
    o.aux_coef = 0.02;
    o.z_coef = 1e-3;
    noise = 11;
    open_on(&c, u, s, &o);
    for (c.step = 0; c.step < GRAPH_STEPS; c.step++) { /* another rate and batch each time */
        mf_exec_result r = exec_step(&c, 1e-3 / (double)(c.step + 1));
        double *n = out->numbers[c.step];
        n[0] = r.lm_loss;
        n[1] = r.grad_norm;
        n[2] = r.aux_loss;
        n[3] = r.z_loss;
        out->ops = r.ops;
    }
    for (int i = 0; i < c.assignment.positions && i < 16; i++) {
        const float *there = mf_exec_correction_bias(c.exec, i);
        if (there != NULL) {
            exec_copy(c.device, out->bias + i * MF_ROUTE_MAX_EXPERTS, there,
                      (size_t)c.model.experts * sizeof *there);
        }
    }
    out->states = states_of(&c, &out->states_B);
    exec_close(&c);
}

/* Words for what differs; "": nothing. */
static const char *differs(const trace *a, const trace *b) {
    return memcmp(a->numbers, b->numbers, sizeof a->numbers) != 0 ? "losses and norms"
           : a->states_B != b->states_B || memcmp(a->states, b->states, a->states_B) != 0
               ? "weights and moments"
           : memcmp(a->bias, b->bias, sizeof a->bias) != 0 ? "correction biases"
           : a->ops != b->ops                              ? "ops"
                                                           : "";
}

static void test_graph(const exec_under *u) {
    static const exec_setup how[] = {
        {.what = "", .mbs = 4},
        {.what = ", layers recomputed", .mbs = 2, .recompute = MF_RECOMPUTE_LAYER},
        {.what = ", activations and states on the host",
         .mbs = 1,
         .offload = MF_OFFLOAD_INPUT | MF_OFFLOAD_QKV,
         .offload_optimizer = 0.5}};
    for (int f = 0; f < 3 * EXEC_FAMILIES; f++) {
        exec_setup s = how[f / EXEC_FAMILIES];
        s.family = exec_families[f % EXEC_FAMILIES];
        static trace eager, again, graph;
        char line[300];
        run_trace(u, &s, false, &eager);
        run_trace(u, &s, false, &again);
        run_trace(u, &s, true, &graph);
        const char *one = differs(&eager, &again), *two = differs(&eager, &graph);
        snprintf(line, sizeof line,
                 "graph    %-16s mbs %d%s, %d steps, %zu bytes of states; again: %s differ; from a "
                 "graph: %s differ",
                 s.family, (int)s.mbs, s.what, GRAPH_STEPS, eager.states_B, *one ? one : "none",
                 *two ? two : "none");
        bool learns = eager.numbers[0][0] != eager.numbers[GRAPH_STEPS - 1][0];
        exec_check(learns && *one == '\0' && *two == '\0', line);
        free(eager.states);
        free(again.states);
        free(graph.states);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*test)(const exec_under *u);
    } parts[] = {{"train", test_train}, {"batches", test_batches}, {"graph", test_graph}};
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
    exec_close_device(&u);
    return exec_report();
}
