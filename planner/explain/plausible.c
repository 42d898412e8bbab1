/* plausible.c - slips, and predictions better than what was published. */
#include "planner/explain/plausible.h"

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

/* --- what was published ----------------------------------------------------------------------- */

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

/* A power of two or the sum of two, less one or more by one. */
static int64_t off_by_one(int64_t n) {
    for (int step = -1; step <= 1; step += 2) {
        int64_t near = n + step, odd = near;
        while (odd > 0 && odd % 2 == 0) {
            odd /= 2;
        }
        if (near >= 64 && (odd == 1 || odd == 3) && n % 2 != 0) {
            return near;
        }
    }
    return 0;
}

/* Most tokens of a step that were published: some 63 M (DeepSeek-V3). */
static const double most_tokens = 256e6;

void mf_doubt_job(mf_doubts *d, const mf_model *m, const mf_cluster *c, const mf_layout *l) {
    const int64_t seq = off_by_one(l->seq), gpus = off_by_one(l->gpus);
    const double tokens = (double)l->gbs * (double)l->seq;
    if (seq > 0) {
        mf_doubt(d, "--seq %lld looks like a slip: %lld?", (long long)l->seq, (long long)seq);
    }
    if (m->max_position > 0 && l->seq > m->max_position) {
        mf_doubt(d, "--seq %lld is longer than the %lld positions of %s", (long long)l->seq,
                 (long long)m->max_position, m->name);
    }
    if (l->gbs > 0 && tokens > most_tokens) {
        mf_doubt(
            d,
            "--global-batch %lld is %.3g billion tokens a step: it counts samples, a suffix M (4M) "
            "counts tokens",
            (long long)l->gbs, 1e-9 * tokens);
    }
    if (gpus > 0 || (c->gpus_per_node > 0 && l->gpus > c->gpus_per_node &&
                     l->gpus % (int64_t)c->gpus_per_node != 0)) {
        mf_doubt(d, "%lld GPUs are no whole nodes of %lld", (long long)l->gpus,
                 (long long)c->gpus_per_node);
    }
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
                    bool by_hand) {
    if (usd_gpu_h > 0 && (usd_gpu_h < 0.1 || usd_gpu_h > 100)) {
        mf_doubt(d, "%g USD for a GPU-hour of %s looks like a slip", usd_gpu_h, cluster);
    }
    if (usd_gpu_h > 0 && !by_hand && (date[0] < '0' || date[0] > '9')) {
        mf_doubt(d, "the price of %s has no date: --price %s=USD gives today's", cluster, cluster);
    }
}
