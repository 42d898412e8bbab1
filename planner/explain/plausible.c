/* plausible.c - slips, and predictions better than what was published. */
#include "planner/explain/plausible.h"
#include "planner/price/cost_key.h"
#include "planner/tuning/limits.h"

#include "core/base/number_text.h"
#include "core/program/program.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void mf_doubt(mf_doubts *d, const char *format, ...) {
    char text[sizeof d->text[0]];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    for (int i = 0; i < d->count; i++) {
        if (strcmp(d->text[i], text) == 0) {
            return;
        }
    }
    if (d->count < MF_DOUBTS_MOST) {
        memcpy(d->text[d->count++], text, sizeof text);
    }
}

/* --- published figures ------------------------------------------------------------------------ */

/* The best rows of bench/published/published.csv by model FLOPs, by the dense peak of cluster
 * files. Blackwell's GPUs have one for all: few dense models were published on each, and none of
 * them is faster by its peak than another for a reason of its own. AMD's and the H20: no rows. */
static const struct {
    const char *gpus; /* words */
    mf_math math;
    mf_published_mfu best;
} published[] = {
    {" a100 a100-40 ", MF_MATH_BF16, {0.653, "GPT-175B on A100, MegaScale (row ms-002)"}},
    {" h100 h200 h800 ",
     MF_MATH_BF16,
     {0.658, "Nemotron4-15B on H100, dgxc-benchmarking v25.04 (row dgx-037)"}},
    {" h100 h200 h800 ", MF_MATH_FP8, {0.449, "GPT-175B on H100, NeMo 24.09 (row nemo-004)"}},
    {" b200 b300 gb200 gb300 ",
     MF_MATH_BF16,
     {0.467, "Llama3.1-405B on GB200, dgxc-benchmarking v25.05 (row dgx-093)"}},
    {" b200 b300 gb200 gb300 ",
     MF_MATH_FP8,
     {0.471, "Llama3-70B on GB300, Megatron-Bridge (row bra-107)"}},
    {" b200 b300 gb200 gb300 ",
     MF_MATH_FP4,
     {0.296, "Llama3.1-405B on GB200, Megatron-Bridge (row bra-068)"}},
};

const mf_published_mfu *mf_published_mfu_of(const mf_gpu *gpu, mf_math math) {
    char word[sizeof gpu->name + 2];
    snprintf(word, sizeof word, " %s ", gpu->name);
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        if (published[i].math == math && strstr(published[i].gpus, word) != NULL) {
            return &published[i].best;
        }
    }
    return NULL;
}

void mf_doubt_mfu(mf_doubts *d, const mf_cluster *c, const mf_layout *l, double mfu,
                  const char *where) {
    const mf_published_mfu *best = mf_published_mfu_of(&c->gpu, mf_precision_math(l->precision));
    if (best != NULL && mfu > best->mfu) {
        mf_doubt(d,
                 "%s%sMFU %.1f %% is above all that was published for this GPU and %s: %.1f %%, %s",
                 where, where[0] != '\0' ? ": " : "", 100 * mfu, mf_precision_text(l->precision),
                 100 * best->mfu, best->source);
    }
}

/* --- slips ------------------------------------------------------------------------------------ */

/* A power of two, or three times one: what people take. */
static bool is_usual(int64_t n) {
    while (n > 0 && n % 2 == 0) {
        n /= 2;
    }
    return n == 1 || n == 3;
}

/* Whether one number is the other with a digit left out, too many, wrong, or two in wrong order. */
static bool one_key_apart(int64_t a, int64_t b) {
    char x[24], y[24];
    int n = snprintf(x, sizeof x, "%lld", (long long)a);
    int m = snprintf(y, sizeof y, "%lld", (long long)b);
    int i = 0;
    while (x[i] != '\0' && x[i] == y[i]) {
        i++;
    }
    while (n > i && m > i && x[n - 1] == y[m - 1]) {
        n--;
        m--;
    }
    n -= i; /* of each what differs */
    m -= i;
    return (n <= 1 && m <= 1) || (n == 2 && m == 2 && x[i] == y[i + 1] && x[i + 1] == y[i]);
}

/* The usual number from `least` on that was meant by one that is not: one key beside it, else not
 * more than 5 % away. 0: none. */
static int64_t meant(int64_t n, int64_t least) {
    int64_t best = 0;
    double best_off = 0;
    for (int64_t power = 1; power < (int64_t)1 << 32; power *= 2) {
        for (int64_t near = power; near <= 3 * power; near += 2 * power) {
            const double ratio = (double)near / (double)n;
            const double apart = ratio > 1 ? ratio : 1 / ratio;
            const double off = one_key_apart(n, near) ? apart / 100 : apart; /* those first */
            if (near >= least && (off < 1 || apart < 1.05) && (best == 0 || off < best_off)) {
                best = near;
                best_off = off;
            }
        }
    }
    return is_usual(n) ? 0 : best;
}

/* Kernels take whole tiles, so no published run has another sequence. CPU ranks take any. */
static void doubt_sequence(mf_doubts *d, const mf_model *m, const mf_cluster *c, int64_t seq) {
    const bool gpu = !mf_cluster_is_cpu(c);
    if (gpu && seq > 0 && seq <= 128) {
        mf_doubt(d, "--seq %lld is short for a training run: was a suffix left out (%lldk)?",
                 (long long)seq, (long long)seq);
    } else if (seq % 64 != 0 && (gpu || seq > 63)) {
        const int64_t near = meant(seq, 512);
        if (near > 0) {
            mf_doubt(d, "--seq %lld looks like a slip: %lld?", (long long)seq, (long long)near);
        } else if (gpu) {
            mf_doubt(d, "--seq %lld is no multiple of 64, as sequences usually are",
                     (long long)seq);
        }
    }
    if (m->max_position > 0 && seq > m->max_position) {
        mf_doubt(d, "--seq %lld is longer than the %lld positions of %s", (long long)seq,
                 (long long)m->max_position, m->name);
    }
}

/* A batch that few data-parallel ranks can share, beside one that many can. */
static bool shares_badly(int64_t gbs, int64_t near, int64_t gpus) {
    const int64_t least = gbs % 2 != 0 ? MF_DOUBTED_ODD_SHARING : MF_DOUBTED_SHARING;
    return near > 0 && mf_common_divisor(near, gpus) >= least * mf_common_divisor(gbs, gpus);
}

static void doubt_batch(mf_doubts *d, const mf_layout *l) {
    const double tokens = (double)l->gbs * (double)l->seq;
    const double of_gpu = l->gpus > 0 ? tokens / (double)l->gpus : 0;
    const int64_t near = l->gbs > 9 ? meant(l->gbs, 64) : 0;
    if (tokens > MF_DOUBTED_TOKENS) {
        mf_doubt(
            d,
            "--global-batch %lld is %.3g billion tokens a step: it counts samples, a suffix M (4M) "
            "counts tokens",
            (long long)l->gbs, 1e-9 * tokens);
    } else if (of_gpu > MF_DOUBTED_GPU_TOKENS) {
        mf_doubt(d,
                 "--global-batch %lld is %.3g million tokens a GPU and step: is a digit too many?",
                 (long long)l->gbs, 1e-6 * of_gpu);
    } else if (of_gpu < MF_DOUBTED_FEW_GPU_TOKENS) {
        mf_doubt(d, "--global-batch %lld is %.3g tokens a GPU and step: was a digit left out?",
                 (long long)l->gbs, of_gpu);
    } else if (shares_badly(l->gbs, near, l->gpus)) {
        mf_doubt(d, "--global-batch %lld looks like a slip: %lld?", (long long)l->gbs,
                 (long long)near);
    }
}

static void doubt_gpus(mf_doubts *d, const mf_cluster *c, int64_t gpus) {
    const int64_t node = (int64_t)c->gpus_per_node, near = gpus > 48 ? meant(gpus, 64) : 0;
    if (node <= 1 || gpus <= node || gpus % node == 0) {
        return;
    }
    char question[32] = "";
    if (near > 0 && near % node == 0) {
        snprintf(question, sizeof question, ": %lld?", (long long)near);
    }
    mf_doubt(d, "%lld GPUs are no whole nodes of %lld%s", (long long)gpus, (long long)node,
             question);
}

void mf_doubt_cluster(mf_doubts *d, const mf_cluster *c) {
    for (int i = 0; i < c->doubts; i++) {
        mf_doubt(d, "%s", c->doubt[i]);
    }
}

void mf_doubt_job(mf_doubts *d, const mf_model *m, const mf_cluster *c, const mf_layout *l) {
    mf_doubt_cluster(d, c);
    doubt_sequence(d, m, c, l->seq);
    if (l->gbs > 0 && !mf_cluster_is_cpu(c)) {
        doubt_batch(d, l);
    }
    doubt_gpus(d, c, l->gpus);
}

void mf_doubt_tokens(mf_doubts *d, double tokens) {
    if (tokens < 1e8) {
        mf_doubt(d, "--tokens %g is little for a run: was a suffix left out (15T)?", tokens);
    } else if (tokens > 1e15) {
        mf_doubt(d, "--tokens %g is more than any run that was published", tokens);
    }
}

/* --- what numbers rest on --------------------------------------------------------------------- */

void mf_doubt_unmeasured(mf_doubts *d, const mf_cluster *c, double share) {
    if (share > MF_UNMEASURED_SHARE) {
        mf_doubt(d,
                 "%.0f %% of the time of the step's ops was not measured on %s: their prices rest "
                 "on data sheets or on another GPU (more than %.0f %%)",
                 100 * share, c->gpu.name, 100 * MF_UNMEASURED_SHARE);
    }
}

void mf_doubt_correction(mf_doubts *d, const char *software, const char *cluster) {
    const char *at = strchr(software, '@'); /* of a long name its beginning */
    if (at != NULL && strstr(cluster, at + 1) != cluster) {
        mf_doubt(d, "%s was measured on %s, not on %s: it may be as far off there as without",
                 software, at + 1, cluster);
    }
}

void mf_doubt_price(mf_doubts *d, const char *cluster, double usd_gpu_h, const char *date,
                    bool by_hand, int64_t today) {
    char whole[32];
    int64_t day = 0;
    if (by_hand && usd_gpu_h > 0 && (usd_gpu_h < 0.1 || usd_gpu_h > 100)) {
        mf_doubt(d, "%g USD for a GPU-hour of %s looks like a slip", usd_gpu_h, cluster);
    }
    if (usd_gpu_h > 0 && !by_hand && (date[0] < '0' || date[0] > '9')) {
        mf_doubt(d, "the price of %s has no date: --price %s=USD gives today's", cluster, cluster);
    }
    snprintf(whole, sizeof whole, "%.20s%s", date, strlen(date) == 7 ? "-01" : "");
    if (usd_gpu_h > 0 && mf_parse_date(whole, &day, NULL) == MF_OK && today - day > MF_PRICE_DAYS) {
        mf_doubt(d, "the price of %s is of %s, more than %d days ago: --price %s=USD gives today's",
                 cluster, date, MF_PRICE_DAYS, cluster);
    }
}
