/* test_shadow_translation.c - what ops of programs become: the kernels of a micro-batch's passes,
 * with the operands that they read and write and their shapes and strides, as text in
 * tests/data/translation. The text changes where translation does, and is written anew with
 *
 *     MF_TRANSLATION_UPDATE=1 build/tests/unit/test_shadow_translation
 *
 * A line of an op has its place among those of its position; one of a kernel the operands: "in1" is
 * the op's second input, "sum0" what stands and is to be added to the first output, "weight" one of
 * the forward op, "scratch" and "env" what ops read beside them. Bytes from the operand's
 * beginning, then rows x bytes of a row (/ bytes from row to row).
 */
#include "tests/support/shadow_case.h"
#include "tests/support/test.h"

#include <assert.h>

typedef struct text {
    char *data;
    size_t size, allocated;
} text;

static void say(text *t, const char *words) {
    size_t n = strlen(words);
    if (t->size + n + 1 > t->allocated) {
        t->allocated = 2 * (t->size + n + 1);
        t->data = realloc(t->data, t->allocated);
        assert_non_null(t->data);
    }
    memcpy(t->data + t->size, words, n + 1);
    t->size += n;
}

/* --- operands by name ---------------------------------------------------------------------------
 */

typedef struct seen_op {
    mf_exec_op op;
    int64_t from, to; /* numbers of its work */
} seen_op;

typedef struct watch {
    mf_device *device;
    seen_op *list;
    int64_t count, allocated, worked;
} watch;

static void count_work(void *user, int64_t number, shadow_kind kind, void *args) {
    watch *w = user;
    (void)kind, (void)args;
    w->worked = number;
}

static void begin_op(void *user, const mf_exec_op *x) {
    watch *w = user;
    if (w->count == w->allocated) {
        w->allocated = 2 * w->allocated + 64;
        w->list = realloc(w->list, (size_t)w->allocated * sizeof *w->list);
        assert_non_null(w->list);
    }
    w->list[w->count++] = (seen_op){.op = *x, .from = w->worked + 1};
}

static void end_op(void *user, const mf_exec_op *x) {
    watch *w = user;
    if (x->block != NULL) {
        w->list[w->count - 1].to = w->worked;
    }
}

static bool inside(const mf_exec_tensor *t, const char *p, int64_t *offset) {
    int64_t size_B = t->rows_max * t->cols * (int64_t)mf_kernel_dtype_B(t->dtype);
    *offset = p - (const char *)t->data;
    return t->data != NULL && *offset >= 0 && *offset < size_B;
}

/* Of operands that share memory the first in this order. */
static void name_of(const mf_exec_op *x, const char *p, bool writes, char *name, size_t size) {
    const struct {
        const char *word;
        const mf_exec_tensor *of;
        int count;
    } sets[] = {{writes ? "out" : "in", writes ? x->out : x->in, writes ? x->op->nout : x->nin},
                {"sum", x->sum, x->op->nout},
                {writes ? "in" : "out", writes ? x->in : x->out, writes ? x->nin : x->op->nout},
                {"weight", x->weight, x->forward->nin}};
    int64_t offset = 0;
    for (size_t k = 0; k < sizeof sets / sizeof sets[0]; k++) {
        for (int i = 0; i < sets[k].count; i++) {
            if (inside(&sets[k].of[i], p, &offset)) {
                snprintf(name, size, "%s%d+%lld", sets[k].word, i, (long long)offset);
                return;
            }
        }
    }
    offset = p - (const char *)x->env->scratch;
    if (offset >= 0 && offset < (int64_t)x->env->scratch_B) {
        snprintf(name, size, "scratch+%lld", (long long)offset);
    } else {
        snprintf(name, size, "env");
    }
}

/* --- what spans do not say ----------------------------------------------------------------------
 */

static void gemm_words(const mf_device_gemm *a, char *words, size_t size) {
    static const char *const form[] = {"nt", "nn", "tn"};
    static const char *const type[] = {"f32", "bf16"};
    snprintf(words, size, " %s %s x %s -> %s m %lld n %lld k %lld%s", form[a->g.form],
             type[a->g.a_dtype], type[a->g.b_dtype], type[a->g.c_dtype], (long long)a->g.m,
             (long long)a->g.n, (long long)a->g.k, a->g.accumulate ? " accumulate" : "");
}

static void attention_words(const mf_kernel_attention_shape *s, char *words, size_t size) {
    snprintf(words, size, " heads %lld/%lld dims %lld %lld%s window %lld scale %.6g%s",
             (long long)s->heads, (long long)s->kv_heads, (long long)s->qk_dim, (long long)s->v_dim,
             s->causal ? " causal" : "", (long long)s->window, (double)s->scale,
             s->sink != NULL ? " sinks" : "");
}

static void scalars(const shadow_work *w, char *words, size_t size) {
    const void *a = w->args;
    const mf_device_grouped *g = a;
    const mf_kernel_router *r = a;
    words[0] = '\0';
    if (w->kind == SHADOW_gemm) {
        gemm_words(a, words, size);
    } else if (w->kind == SHADOW_attention) {
        attention_words(&((const mf_device_attention *)a)->a.shape, words, size);
    } else if (w->kind == SHADOW_attention_grad) {
        attention_words(&((const mf_device_attention_grad *)a)->a.shape, words, size);
    } else if (w->kind == SHADOW_grouped) {
        snprintf(words, size, " kind %d experts %lld n %lld k %lld%s%s", (int)g->kind,
                 (long long)g->experts, (long long)g->n, (long long)g->k,
                 g->accumulate ? " accumulate" : "", g->act != NULL ? " activates" : "");
    } else if (w->kind == SHADOW_router) {
        snprintf(words, size, " score %d top %lld of %lld groups %lld/%lld scaling %.6g%s",
                 (int)r->score, (long long)r->top_k, (long long)r->experts,
                 (long long)r->group_topk, (long long)r->groups, (double)r->scaling,
                 r->normalise ? " normalised" : "");
    } else if (w->kind == SHADOW_rmsnorm) {
        snprintf(words, size, " eps %.6g", (double)((const mf_kernel_rmsnorm *)a)->eps);
    } else if (w->kind == SHADOW_cast) {
        snprintf(words, size, " alpha %.6g", (double)((const mf_kernel_cast *)a)->alpha);
    } else if (w->kind == SHADOW_loss_whole) {
        snprintf(words, size, " scale %.6g", (double)((const mf_kernel_ce_whole *)a)->scale);
    } else if (w->kind == SHADOW_loss_grad) {
        snprintf(words, size, " scale %.6g", (double)((const mf_kernel_ce_grad *)a)->scale);
    }
}

/* --- a program in words -------------------------------------------------------------------------
 */

static void say_span(text *t, const mf_exec_op *x, const shadow_span *s) {
    char name[64], line[160], apart[32] = "";
    name_of(x, s->begin, s->writes, name, sizeof name);
    if (s->rows > 1) {
        snprintf(apart, sizeof apart, "/%lld", (long long)s->stride_B);
    }
    bool env = strcmp(name, "env") == 0;
    snprintf(line, sizeof line, " %c %s[%lldx%lld%s]", s->writes ? '>' : '<', name,
             env ? 1 : (long long)s->rows, (long long)s->row_B, apart);
    say(t, line);
}

static void say_work(text *t, const mf_exec_op *x, const shadow_work *w) {
    char words[160];
    scalars(w, words, sizeof words);
    say(t, "    ");
    say(t, w->name);
    say(t, words);
    say(t, ":");
    for (int k = 0; k < w->spans.count; k++) {
        say_span(t, x, &w->spans.span[k]);
    }
    say(t, "\n");
}

static bool told_before(const watch *w, int64_t i) {
    for (int64_t k = 0; k < i; k++) {
        const mf_exec_op *a = &w->list[k].op, *b = &w->list[i].op;
        if (a->block == b->block && a->op == b->op) {
            return true;
        }
    }
    return false;
}

/* Ops of each block once, in the order in which they ran. */
static void say_program(text *t, const watch *w) {
    static const char *const passes[] = {
        [MF_PASS_F] = "F", [MF_PASS_R] = "R", [MF_PASS_B] = "B", [MF_PASS_W] = "W"};
    const shadow_work *work;
    const int64_t n = shadow_recorded(w->device, &work);
    const mf_block *block = NULL;
    char line[200];
    for (int64_t i = 0; i < w->count; i++) {
        const mf_exec_op *x = &w->list[i].op;
        if (x->block == NULL || told_before(w, i)) {
            continue;
        }
        if (x->block != block) {
            block = x->block;
            snprintf(line, sizeof line, "%s\n", block->label);
            say(t, line);
        }
        snprintf(line, sizeof line, "  %d %s %s\n", (int)(x->op - x->block->ops),
                 passes[x->op->pass], x->op->name);
        say(t, line);
        for (int64_t k = 0; k < n; k++) {
            if (work[k].number >= w->list[i].from && work[k].number <= w->list[i].to) {
                say_work(t, x, &work[k]);
            }
        }
    }
}

static void translate(const shadow_setup *s, text *t) {
    watch w = {0};
    shadow_options o = {
        .records = true, .fused_sums = true, .one_type = true, .plant = count_work, .user = &w};
    shadow_case c;
    shadow_bytes left = {0};
    mf_exec_options x;
    mf_err e = {.text = ""};
    shadow_case_options(s, &x);
    x.before_op = begin_op;
    x.after_op = end_op;
    x.user = &w;
    assert_ok(shadow_open(&o, &w.device, &e));
    mf_status status = shadow_case_lower(&c, s, w.device, &e);
    status = status == MF_OK ? shadow_case_start(&c, w.device, &x, &e) : status;
    status = status == MF_OK ? shadow_steps(&c, 1, &left, &e) : status;
    status = status == MF_OK ? w.device->ops->wait(w.device, &e) : status;
    if (status != MF_OK) {
        fail_msg("%s", e.text);
    }
    say_program(t, &w);
    free(w.list);
    shadow_bytes_clear(&left);
    shadow_case_close(&c);
    w.device->ops->close(w.device);
}

/* --- against what is kept -----------------------------------------------------------------------
 */

static char *read_all(const char *path) {
    FILE *f = fopen(path, "rb");
    char *data = calloc(1 << 20, 1);
    assert_non_null(data);
    size_t n = f != NULL ? fread(data, 1, (1 << 20) - 1, f) : 0;
    data[n] = '\0';
    if (f != NULL) {
        fclose(f);
    }
    return data;
}

static void hold(const char *path, const text *t) {
    char *kept = read_all(path);
    size_t at = 0;
    int line = 1;
    assert(t->data != NULL);
    while (kept[at] != '\0' && kept[at] == t->data[at]) {
        line += kept[at++] == '\n';
    }
    bool same = kept[at] == '\0' && t->data[at] == '\0';
    if (!same) {
        while (at > 0 && t->data[at - 1] != '\n') {
            at--;
        }
        printf("%s:%d: kept   %.*s\n", path, line, (int)strcspn(kept + at, "\n"), kept + at);
        printf("%s:%d: is now %.*s\n", path, line, (int)strcspn(t->data + at, "\n"), t->data + at);
        printf("where that is meant: MF_TRANSLATION_UPDATE=1, and look at the difference\n");
    }
    free(kept);
    assert_true(same);
}

static void ops_become_the_kernels_that_are_kept(void **state) {
    static const struct {
        const char *name;
        shadow_setup setup;
    } cases[] = {
        {"qwen2_moe", {.family = "qwen2_moe", .precision = MF_PREC_BF16, .mbs = 4}},
        {"deepseek_v3", {.family = "deepseek_v3", .precision = MF_PREC_BF16, .mbs = 4}},
        {"mixtral_dropping_again",
         {.family = "mixtral",
          .precision = MF_PREC_BF16,
          .mbs = 4,
          .capacity = 1.0,
          .aux_coef = 0.02,
          .z_coef = 1e-3,
          .recompute = MF_RECOMPUTE_MOE}},
        {"olmoe",
         {.family = "olmoe", .precision = MF_PREC_BF16, .mbs = 4, .offload = MF_OFFLOAD_INPUT}},
    };
    bool update = getenv("MF_TRANSLATION_UPDATE") != NULL;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        text t = {0};
        char path[128];
        snprintf(path, sizeof path, "tests/data/translation/%s.txt", cases[i].name);
        translate(&cases[i].setup, &t);
        if (update) {
            FILE *f = fopen(path, "wb");
            assert_non_null(f);
            assert_int_equal(fwrite(t.data, 1, t.size, f), t.size);
            assert_int_equal(fclose(f), 0);
        } else {
            hold(path, &t);
        }
        free(t.data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_become_the_kernels_that_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
