/* measure_points.c - which points a general measurement of one GPU holds.
 *
 * Three sources: a grid that nails down the corners; shapes at random over the ranges that the
 * shipped models span; and ops that lowering emits for shipped models under random layouts. Of the
 * random ones some are held out of every fit: the accuracy of prices is judged on those.
 */
#include "executor/measure/measure.h"
#include "executor/measure/measure_draw.h"
#include "profiles/ops_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- lists ------------------------------------------------------------------------------------ */

void mf_measure_list_clear(mf_measure_list *l) {
    free(l->point);
    *l = (mf_measure_list){NULL, 0, 0};
}

static bool same_key(const mf_point *a, const mf_point *b) {
    if (strcmp(a->op, b->op) != 0 || a->dims != b->dims) {
        return false;
    }
    for (int i = 0; i < a->dims; i++) {
        if (strcmp(a->dim[i].text, b->dim[i].text) != 0) {
            return false;
        }
    }
    return true;
}

mf_status mf_measure_list_add(mf_measure_list *l, const char *key, bool holdout, const char *source,
                              mf_err *e) {
    mf_point p;
    mf_status status = mf_point_parse(key, &p, e);
    if (status != MF_OK) {
        return status;
    }
    p.holdout = holdout;
    snprintf(p.source, sizeof p.source, "%s", source);
    for (int64_t i = 0; i < l->n; i++) {
        if (same_key(&l->point[i], &p)) {
            return MF_OK;
        }
    }
    if (l->n == l->allocated) {
        int64_t allocated = l->allocated > 0 ? 2 * l->allocated : 1024;
        mf_point *more = realloc(l->point, (size_t)allocated * sizeof *more);
        if (more == NULL) {
            return mf_err_set(e, MF_NOMEM, "measuring: out of memory");
        }
        l->point = more;
        l->allocated = allocated;
    }
    l->point[l->n++] = p;
    return MF_OK;
}

static int key_order(const void *a, const void *b) {
    const char *const *p = a, *const *q = b;
    return strcmp(*p, *q);
}

/* A row that is kept out of fits does not stand for a point whose price is wanted. */
static const char held_mark[] = "\theld out";

typedef struct known_keys {
    const mf_measure_machine *machine;
    bool energy;
    char **key; /* [n] */
    size_t n, allocated;
    bool full;
} known_keys;

static int take_key(const mf_point *p, void *user) {
    known_keys *k = user;
    char versions[160], text[512];
    mf_measure_versions_of(k->machine, p->op, versions, sizeof versions);
    if (!mf_measure_same_versions(p->op, versions, p->versions) ||
        (k->energy && p->energy_J == 0)) {
        return 0;
    }
    if (k->n == k->allocated) {
        size_t allocated = k->allocated > 0 ? 2 * k->allocated : 1024;
        char **more = realloc(k->key, allocated * sizeof *more);
        if (more == NULL) {
            k->full = true;
            return 1;
        }
        k->key = more;
        k->allocated = allocated;
    }
    mf_point_format(p, text, sizeof text - sizeof held_mark);
    if (p->holdout) {
        memcpy(text + strlen(text), held_mark, sizeof held_mark);
    }
    k->key[k->n] = strdup(text);
    k->full = k->key[k->n] == NULL;
    k->n += !k->full;
    return k->full;
}

static bool knows(const known_keys *k, const char *text) {
    return k->n > 0 && bsearch(&text, k->key, k->n, sizeof *k->key, key_order) != NULL;
}

mf_status mf_measure_keep_missing(mf_measure_list *l, mf_store *store,
                                  const mf_measure_machine *machine, bool energy, int64_t *there,
                                  mf_err *e) {
    known_keys known = {.machine = machine, .energy = energy};
    int64_t kept = 0, had = l->n;
    mf_status s = mf_store_each(store, machine->gpu, NULL, take_key, &known, NULL, e);
    if (s == MF_OK && known.full) {
        s = mf_err_set(e, MF_NOMEM, "measuring: out of memory");
    }
    if (known.n > 0) {
        qsort(known.key, known.n, sizeof *known.key, key_order);
    }
    for (int64_t i = 0; i < l->n && s == MF_OK; i++) {
        char key[512];
        mf_point_format(&l->point[i], key, sizeof key - sizeof held_mark);
        bool there_already = knows(&known, key);
        if (!there_already && l->point[i].holdout) {
            memcpy(key + strlen(key), held_mark, sizeof held_mark);
            there_already = knows(&known, key);
        }
        if (!there_already) {
            l->point[kept++] = l->point[i];
        }
    }
    l->n = s == MF_OK ? kept : l->n;
    for (size_t i = 0; i < known.n; i++) {
        free(known.key[i]);
    }
    free(known.key);
    if (there != NULL) {
        *there = had - kept;
    }
    return s;
}

mf_status mf_measure_remember(const mf_measure_list *l, mf_store *store,
                              const mf_measure_machine *machine, mf_measure_choice **out,
                              mf_err *e) {
    mf_status s = MF_OK;
    *out = calloc((size_t)l->n + 1, sizeof **out);
    if (*out == NULL) {
        return mf_err_set(e, MF_NOMEM, "measuring: out of memory");
    }
    for (int64_t i = 0; i < l->n && s == MF_OK; i++) {
        mf_point p = l->point[i];
        memcpy(p.gpu, machine->gpu, sizeof p.gpu);
        s = mf_store_choice(store, &p, (*out)[i].text, e);
    }
    return s;
}

/* --- chance ----------------------------------------------------------------------------------- */

uint64_t mf_measure_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int64_t mf_measure_random_int(uint64_t *state, int64_t below) {
    return (int64_t)(mf_measure_random(state) % (uint64_t)below);
}

int64_t mf_measure_random_size(uint64_t *state, double low, double high, int64_t coarse,
                               int64_t fine) {
    double u = (double)(mf_measure_random(state) >> 11) * 0x1p-53;
    int64_t step = mf_measure_random_int(state, 4) == 0 ? fine : coarse;
    int64_t x = (int64_t)(low * pow(high / low, u) / (double)step + 0.5) * step;
    return x < fine ? fine : x;
}

void mf_measure_shuffle(mf_measure_list *l, int64_t from, uint64_t *state) {
    for (int64_t i = l->n - 1; i > from; i--) {
        int64_t j = from + mf_measure_random_int(state, i - from + 1);
        mf_point keep = l->point[i];
        l->point[i] = l->point[j];
        l->point[j] = keep;
    }
}

/* --- dense products --------------------------------------------------------------------------- */

static const char *const forms[] = {"nt", "nn", "tn"};

/* A linear layer of `out` x `in` features over `tokens` rows, in one of its three passes. */
static mf_status add_linear(mf_measure_list *l, const char *dtype, int pass, int64_t tokens,
                            int64_t out, int64_t in, bool holdout, const char *source, mf_err *e) {
    char key[160];
    int64_t m = pass == 2 ? out : tokens, n = pass == 0 ? out : in;
    int64_t k = pass == 0 ? in : pass == 1 ? out : tokens;
    snprintf(key, sizeof key, "gemm dtype=%s m=%lld n=%lld k=%lld layout=%s acc=%d", dtype,
             (long long)m, (long long)n, (long long)k, forms[pass], pass == 2);
    return mf_measure_list_add(l, key, holdout, source, e);
}

static const double largest_flops = 8e12, smallest_flops = 2e8;
static const double largest_B = 12e9;

static const char any_shape[] = "drawn over the models' ranges";

static mf_status draw_linear(mf_measure_list *l, const char *dtype, int pass, bool holdout,
                             uint64_t *state, mf_err *e) {
    for (;;) {
        int64_t fine = dtype[0] == 'b' ? 8 : 16;
        int64_t tokens = mf_measure_random_size(state, 256, 65536, 128, fine);
        int64_t out = mf_measure_random_size(state, 128, 65536, 64, fine);
        int64_t in = mf_measure_random_size(state, 128, 32768, 64, fine);
        double t = (double)tokens, o = (double)out, i = (double)in;
        double flops = 2 * t * o * i, bytes = 2 * (t * o + t * i + o * i) + 4 * o * i;
        if (flops <= largest_flops && flops >= smallest_flops && bytes <= largest_B) {
            return add_linear(l, dtype, pass, tokens, out, in, holdout, any_shape, e);
        }
    }
}

static mf_status add_products(mf_measure_list *l, uint64_t *state, mf_err *e) {
    static const int64_t tokens[] = {512, 2048, 4096, 8192, 16384, 32768};
    static const int64_t wide[] = {1024, 2048, 4096, 8192, 16384};
    static const struct {
        const char *dtype;
        int fit, held; /* of each pass */
    } draws[] = {{"bf16", 200, 60}, {"fp8-tensor", 70, 16}, {"fp8-block", 70, 16}};
    mf_status status = MF_OK;
    for (int pass = 0; pass < 3; pass++) {
        for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
            for (size_t o = 0; o < sizeof wide / sizeof wide[0] && status == MF_OK; o++) {
                for (size_t i = 0; i < sizeof wide / sizeof wide[0] && status == MF_OK; i++) {
                    if ((t + o + i + (size_t)pass) % 2 == 0) { /* every other corner */
                        status = add_linear(l, "bf16", pass, tokens[t], wide[o], wide[i], false,
                                            "grid", e);
                    }
                }
            }
        }
    }
    for (size_t d = 0; d < sizeof draws / sizeof draws[0]; d++) {
        for (int pass = 0; pass < 3; pass++) {
            for (int i = 0; i < draws[d].fit + draws[d].held && status == MF_OK; i++) {
                status = draw_linear(l, draws[d].dtype, pass, i >= draws[d].fit, state, e);
            }
        }
    }
    return status;
}

/* More products of low precision: their libraries change kernels within smaller steps. */
static mf_status add_low_precision(mf_measure_list *l, uint64_t *state, mf_err *e) {
    mf_status status = MF_OK;
    for (int pass = 0; pass < 3; pass++) {
        for (int i = 0; i < 40 && status == MF_OK; i++) {
            status = draw_linear(l, i < 28 ? "fp8-block" : "fp8-tensor", pass, false, state, e);
        }
    }
    return status;
}

/* --- variants ---------------------------------------------------------------
 */

/* The point that writes what p adds to; false: p is no weight gradient of BF16. */
static bool first_key(const mf_point *p, char *key, size_t size) {
    const bool dense = strcmp(p->op, "gemm") == 0, grouped = strcmp(p->op, "grouped_gemm") == 0;
    if ((!dense && !grouped) || strcmp(mf_point_word(p, "dtype"), "bf16") != 0 ||
        mf_point_value(p, "acc") < 1) {
        return false;
    }
    if (grouped) {
        snprintf(key, size, "first_wgrad dtype=bf16 experts=%.0f m=%.0f n=%.0f k=%.0f",
                 mf_point_value(p, "experts"), mf_point_value(p, "m"), mf_point_value(p, "n"),
                 mf_point_value(p, "k"));
    } else { /* its dims are those of the product: [m, k] x [k, n] */
        snprintf(key, size, "first_wgrad dtype=bf16 m=%.0f n=%.0f k=%.0f", mf_point_value(p, "k"),
                 mf_point_value(p, "m"), mf_point_value(p, "n"));
    }
    return true;
}

/* The point of kernels/attention/mla_grad.h beside one of cuDNN; false: p is none that it takes. */
static bool kept_key(const mf_point *p, char *key, size_t size) {
    const double s = mf_point_value(p, "s"), h = mf_point_value(p, "h");
    if (strcmp(p->op, "attention") != 0 || strcmp(mf_point_word(p, "pass"), "bwd") != 0 ||
        strcmp(mf_point_word(p, "dtype"), "bf16") != 0 || mf_point_value(p, "causal") < 1 ||
        mf_point_value(p, "window") > 0 || mf_point_value(p, "dqk") != 192 ||
        mf_point_value(p, "dv") != 128 || mf_point_value(p, "hkv") != h ||
        mf_point_value(p, "skv") != s || fmod(s, 256) != 0) {
        return false;
    }
    snprintf(key, size,
             "attention pass=bwd b=%.0f h=%.0f hkv=%.0f s=%.0f skv=%.0f dqk=192 dv=128 causal=1 "
             "window=0 dtype=bf16 impl=moefold",
             mf_point_value(p, "b"), h, h, s, s);
    return true;
}

mf_status mf_measure_add_variants(mf_measure_list *l, mf_err *e) {
    const int64_t n = l->n;
    mf_status status = MF_OK;
    for (int64_t i = 0; i < n && status == MF_OK; i++) {
        const mf_point p = l->point[i]; /* the list may move */
        char key[200];
        if (strcmp(p.source, any_shape) != 0 &&
            (first_key(&p, key, sizeof key) || kept_key(&p, key, sizeof key))) {
            status = mf_measure_list_add(l, key, p.holdout != 0, p.source, e);
        }
    }
    return status;
}

/* --- bytes ------------------------------------------------------------------------------------ */

static mf_status add_bytes(mf_measure_list *l, const char *prefix, double low_B, double high_B,
                           double step, int held, uint64_t *state, mf_err *e) {
    char key[128];
    mf_status status = MF_OK;
    for (double b = low_B; b <= high_B * 1.001 && status == MF_OK; b *= step) {
        snprintf(key, sizeof key, "%s bytes=%.0f", prefix, floor(b / 256) * 256);
        status = mf_measure_list_add(l, key, false, "grid", e);
    }
    for (int i = 0; i < held && status == MF_OK; i++) {
        snprintf(key, sizeof key, "%s bytes=%lld", prefix,
                 (long long)mf_measure_random_size(state, low_B, high_B, 4096, 256));
        status = mf_measure_list_add(l, key, true, "drawn over the range", e);
    }
    return status;
}

static mf_status add_memory(mf_measure_list *l, uint64_t *state, mf_err *e) {
    static const char *const kinds[] = {"rmsnorm_fwd",
                                        "rmsnorm_bwd",
                                        "rope_fwd",
                                        "rope_bwd",
                                        "swiglu_fwd",
                                        "swiglu_bwd",
                                        "add",
                                        "gate_fwd",
                                        "gate_bwd",
                                        "router_fwd",
                                        "router_bwd",
                                        "permute",
                                        "unpermute",
                                        "split",
                                        "quantise",
                                        "bias_bwd",
                                        "cast",
                                        "embedding_fwd",
                                        "grad_norm",
                                        "adamw",
                                        "cross_entropy_fwd",
                                        "cross_entropy_bwd",
                                        "embedding_bwd"};
    mf_status status = MF_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && status == MF_OK; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "memory op=%s", kinds[i]);
        bool small = strncmp(kinds[i], "router", 6) == 0;
        status = add_bytes(l, prefix, small ? 1 << 18 : 1 << 20, small ? 1 << 26 : 1 << 30, 2, 4,
                           state, e);
    }
    return status;
}

/* What came to lowering later, behind all that was drawn before it: their shapes stay. */
static mf_status add_late_memory(mf_measure_list *l, uint64_t *state, mf_err *e) {
    mf_status status = add_bytes(l, "memory op=norm_sum", 1 << 20, 1 << 30, 2, 4, state, e);
    status = status == MF_OK
                 ? add_bytes(l, "memory op=attention_merge", 1 << 20, 1 << 30, 2, 4, state, e)
                 : status;
    return status == MF_OK ? add_bytes(l, "memory op=router_drop", 1 << 16, 1 << 26, 2, 4, state, e)
                           : status;
}

/* Packed sequences: heads as in shipped models, lengths alike to very different. */
static mf_status add_packed(mf_measure_list *l, uint64_t *state, mf_err *e) {
    static const struct {
        int h, hkv, dqk, dv;
    } heads[] = {{32, 8, 128, 128}, {16, 16, 192, 128}, {64, 8, 64, 64}};
    static const int varies[] = {0, 50, 90};
    char key[200];
    mf_status status = MF_OK;
    for (int i = 0; i < 48 && status == MF_OK; i++) {
        const int kind = i % 3;
        const int64_t b = 2 + mf_measure_random_int(state, 15);
        const int64_t s = mf_measure_random_size(state, 256, 4096, 128, 8);
        snprintf(key, sizeof key,
                 "attention_packed pass=%s b=%lld h=%d hkv=%d s=%lld vary=%d dqk=%d dv=%d",
                 i / 3 % 2 == 0 ? "fwd" : "bwd", (long long)b, heads[kind].h, heads[kind].hkv,
                 (long long)s, varies[mf_measure_random_int(state, 3)], heads[kind].dqk,
                 heads[kind].dv);
        status = mf_measure_list_add(l, key, i % 4 == 3, "drawn over the models' ranges", e);
    }
    return status;
}

static mf_status add_launches(mf_measure_list *l, mf_err *e) {
    static const char *const modes[] = {"launch mode=stream", "launch mode=graph",
                                        "launch mode=replay"};
    mf_status status = MF_OK;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0] && status == MF_OK; i++) {
        status = mf_measure_list_add(l, modes[i], false, "grid", e);
    }
    return status;
}

static mf_status add_host(mf_measure_list *l, uint64_t *state, mf_err *e) {
    mf_status status = add_launches(l, e);
    status = status == MF_OK ? add_bytes(l, "copy", 1 << 16, 1ll << 31, 2, 8, state, e) : status;
    status = status == MF_OK ? add_bytes(l, "copy_h2d", 1 << 14, 1 << 30, 2, 3, state, e) : status;
    return status == MF_OK ? add_bytes(l, "copy_d2h", 1 << 14, 1 << 30, 2, 3, state, e) : status;
}

/* --- once a step ------------------------------------------------------------------------------ */

mf_status mf_measure_plan_step(mf_measure_list *l, mf_err *e) {
    static const char *const ops[] = {"memory op=grad_norm", "memory op=adamw", "memory op=cast",
                                      "copy_h2d", "copy_d2h"};
    mf_status status = add_launches(l, e);
    for (size_t i = 0; i < sizeof ops / sizeof ops[0] && status == MF_OK; i++) {
        status = add_bytes(l, ops[i], 1 << 20, 1 << 30, 4, 0, NULL, e); /* nothing is drawn */
    }
    return status;
}

/* --- all -------------------------------------------------------------------------------------- */

mf_status mf_measure_plan_gpu(uint64_t seed, mf_measure_list *l, mf_err *e) {
    uint64_t state = seed;
    mf_status status = add_host(l, &state, e);
    int64_t first = l->n;
    status = status == MF_OK ? add_memory(l, &state, e) : status;
    status = status == MF_OK ? add_products(l, &state, e) : status;
    status = status == MF_OK ? mf_measure_draw_models(l, &state, e) : status;
    status = status == MF_OK ? add_low_precision(l, &state, e) : status;
    status = status == MF_OK ? add_late_memory(l, &state, e) : status;
    status = status == MF_OK ? add_packed(l, &state, e) : status;
    status = status == MF_OK ? mf_measure_add_variants(l, e) : status;
    status = status == MF_OK
                 ? add_bytes(l, "memory op=cross_entropy", 1 << 20, 1 << 30, 2, 4, &state, e)
                 : status;
    if (status == MF_OK) {
        mf_measure_shuffle(l, first, &state);
    }
    return status;
}
