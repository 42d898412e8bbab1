/* measure_ranks.c - trains a small model on CPU ranks and keeps what it measured. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "executor/measure/measure_ranks.h"

#include "core/base/clock.h"
#include "core/base/json.h"
#include "executor/files/files.h"
#include "profiles/store.h"

#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STEPS "6"

enum { SECONDS = 90, SEQ = 128, EXPERTS = 8, MOST_ARGS = 40 };

extern char **environ;

/* A Mixture-of-Experts model of the size that people try on CPU ranks, as in scripts/demo; the
 * times of other sizes follow from its ops. */
static const char model[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 256, \"hidden_size\": 96,\n"
    " \"intermediate_size\": 256, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,\n"
    " \"num_key_value_heads\": 2, \"head_dim\": 24, \"hidden_act\": \"silu\",\n"
    " \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000.0,\n"
    " \"tie_word_embeddings\": false, \"attention_bias\": false, \"num_experts\": 8,\n"
    " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 128, \"norm_topk_prob\": true,\n"
    " \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"router_aux_loss_coef\": 0.01}\n";

/* The folder in which ranks are measured, and its files. */
typedef struct place {
    char dir[512], config[640], text[640], run[2][640], store[640], answer[640];
} place;

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static bool write_file(const char *path, const char *text, int times) {
    FILE *f = fopen(path, "w");
    bool good = f != NULL;
    for (int i = 0; good && i < times; i++) {
        good = fputs(text, f) >= 0;
    }
    return f != NULL && fclose(f) == 0 && good;
}

static bool make_place(place *p) {
    const char *base = getenv("TMPDIR");
    base = base != NULL && base[0] == '/' && strlen(base) < 400 ? base : "/tmp";
    snprintf(p->dir, sizeof p->dir, "%s/moefold-cpu-XXXXXX", base);
    if (mkdtemp(p->dir) == NULL) {
        return false;
    }
    snprintf(p->config, sizeof p->config, "%s/config.json", p->dir);
    snprintf(p->text, sizeof p->text, "%s/text", p->dir);
    snprintf(p->run[0], sizeof p->run[0], "%s/run-1", p->dir);
    snprintf(p->run[1], sizeof p->run[1], "%s/run-2", p->dir);
    snprintf(p->store, sizeof p->store, "%s/store.db", p->dir);
    snprintf(p->answer, sizeof p->answer, "%s/answer", p->dir);
    return write_file(p->config, model, 1) &&
           write_file(p->text, "What a rank computes is the same whatever the words are.\n", 2000);
}

/* A copy of the environment with MOEFOLD_CPU=off, so that the measured run neither looks for
 * measurements nor makes any. The caller frees only the list. NULL: out of memory. */
static char **unmeasured_environment(void) {
    static char off[] = "MOEFOLD_CPU=off";
    size_t count = 0, kept = 0;
    while (environ[count] != NULL) {
        count++;
    }
    char **out = calloc(count + 2, sizeof *out);
    for (size_t i = 0; out != NULL && i < count; i++) {
        if (strncmp(environ[i], off, strcspn(off, "=") + 1) != 0) {
            out[kept++] = environ[i];
        }
    }
    if (out != NULL) {
        out[kept] = off;
    }
    return out;
}

/* Runs this program with MOEFOLD_CPU=off and its output in a file. Returns its exit code, or -1
 * when a signal ended it. */
static int run_self(const char *const *args, size_t count, const char *answer) {
    char *argv[MOST_ARGS + 1] = {NULL}, **environment = unmeasured_environment();
    posix_spawn_file_actions_t files;
    pid_t child;
    int status = 0;
    memcpy(argv, args, count * sizeof argv[0]);
    if (environment == NULL || posix_spawn_file_actions_init(&files) != 0) {
        free(environment);
        return -1;
    }
    (void)posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_addopen(&files, 1, answer, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    const int failed = posix_spawn(&child, "/proc/self/exe", &files, NULL, argv, environment);
    posix_spawn_file_actions_destroy(&files);
    free(environment);
    if (failed != 0) {
        return -1;
    }
    const struct timespec pause = {0, 20000000};
    for (int waits = 0; waitpid(child, &status, WNOHANG) == 0; waits++) {
        if (waits == SECONDS * 50 || waits == (SECONDS + 10) * 50) {
            kill(child, waits == SECONDS * 50 ? SIGTERM : SIGKILL);
        }
        nanosleep(&pause, NULL);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Trains some steps on so many ranks: TP 2 when their number is even, experts over all of them. */
static bool train(const place *p, int64_t ranks, int micro_batch) {
    char gpus[24], batch[24], seq[24], ep[24], mbs[24];
    int64_t experts = EXPERTS;
    while (ranks % experts != 0) {
        experts /= 2;
    }
    snprintf(gpus, sizeof gpus, "%lld", (long long)ranks);
    snprintf(batch, sizeof batch, "%lld", 2 * (long long)ranks);
    snprintf(seq, sizeof seq, "%d", SEQ);
    snprintf(ep, sizeof ep, "%lld", (long long)experts);
    snprintf(mbs, sizeof mbs, "%d", micro_batch);
    const char *const args[] = {
        "moefold",     "train",  "--model",        p->config,
        "--cluster",   "cpu",    "--gpus",         gpus,
        "--seq",       seq,      "--global-batch", batch,
        "--precision", "fp32",   "--tp",           ranks % 2 == 0 ? "2" : "1",
        "--ep",        ep,       "--micro-batch",  mbs,
        "--zero",      "1",      "--steps",        STEPS,
        "--data",      p->text,  "--out",          p->run[micro_batch - 1],
        "--record",    p->store,
    };
    return run_self(args, sizeof args / sizeof args[0], p->answer) == 0;
}

/* Finds the measured step time over the one that the ops' own times give. */
static bool find_factor(const place *p, int micro_batch, double *factor) {
    const char *const args[] = {"moefold", "compare", "--run",       p->run[micro_batch - 1],
                                "--store", p->store,  "--tolerance", "10000%",
                                "--json"};
    mf_json *doc = NULL;
    double predicted_s = 0, measured_s = 0;
    const int code = run_self(args, sizeof args / sizeof args[0], p->answer);
    bool good = (code == 0 || code == 4) && mf_json_load(p->answer, &doc, NULL) == MF_OK;
    good = good &&
           mf_json_get_f64(mf_json_root(doc), "predicted_step_time_s", 1e-9, 1e9, &predicted_s,
                           NULL) == MF_OK &&
           mf_json_get_f64(mf_json_root(doc), "measured_step_time_s", 1e-9, 1e9, &measured_s,
                           NULL) == MF_OK;
    mf_json_destroy(doc);
    *factor = good ? fmin(fmax(measured_s / predicted_s, 0.1), 10) : 1;
    return good;
}

/* --- what earlier runs measured ----------------------------------------------------------------
 */

/* An op whose mean is so many times its shortest time was disturbed, if what it took beyond that
 * time is this share of all that the ops took. Uneven routing alone makes up to six times. */
#define NOISY_RATIO 10
#define NOISY_SHARE 0.01

typedef struct points {
    mf_point *list;
    int count, allocated;
    bool failed;
} points;

static int add_point(const mf_point *p, void *user) {
    points *all = user;
    if (all->count == all->allocated) {
        const int more = all->allocated > 0 ? 2 * all->allocated : 128;
        mf_point *grown = realloc(all->list, (size_t)more * sizeof *grown);
        all->failed = grown == NULL;
        if (grown == NULL) {
            return 1;
        }
        all->list = grown;
        all->allocated = more;
    }
    all->list[all->count++] = *p;
    return 0;
}

static bool same_op(const mf_point *a, const mf_point *b) {
    char key[2][512];
    mf_point_format(a, key[0], sizeof key[0]);
    mf_point_format(b, key[1], sizeof key[1]);
    return strcmp(key[0], key[1]) == 0;
}

/* Points of CPU ranks that a store holds; none where there is no sound store. */
static points read_points(const char *path) {
    points all = {0};
    mf_store *s = NULL;
    if (access(path, R_OK) == 0 && mf_store_open(path, &s, NULL) == MF_OK) {
        (void)mf_store_each(s, "cpu", NULL, add_point, &all, NULL, NULL);
    }
    mf_store_close(s);
    return all;
}

/* Replaces new times by shorter ones of the same ops. */
static bool keep_shorter(const char *path, points *new, const points *earlier) {
    mf_store *s = NULL;
    bool good = mf_store_open(path, &s, NULL) == MF_OK && mf_store_begin(s, NULL) == MF_OK;
    for (int i = 0; i < new->count &&good; i++) {
        for (int k = 0; k < earlier->count && good; k++) {
            const mf_point *e = &earlier->list[k];
            if (e->time_s < new->list[i].time_s && same_op(e, &new->list[i])) {
                new->list[i] = *e;
                good = mf_store_put(s, e, NULL) == MF_OK;
            }
        }
    }
    good = good && mf_store_commit(s, NULL) == MF_OK;
    mf_store_close(s);
    return good;
}

static int count_noisy(const points *all) {
    double sum_s = 0;
    int noisy = 0;
    for (int i = 0; i < all->count; i++) {
        sum_s += all->list[i].time_s * (double)all->list[i].samples;
    }
    for (int i = 0; i < all->count; i++) {
        const mf_point *p = &all->list[i];
        const double beyond_s = (p->time_s - p->low_s) * (double)p->samples;
        noisy += p->time_s > NOISY_RATIO * p->low_s && beyond_s > NOISY_SHARE * sum_s;
    }
    return noisy;
}

/* Puts the earlier store's shorter times into the new one, and counts ops that are noisy still. */
static bool merge(const char *new, const char *earlier, int *noisy) {
    points now = read_points(new), before = read_points(earlier);
    const bool good = !now.failed && (before.count == 0 || keep_shorter(new, &now, &before));
    *noisy = count_noisy(&now);
    free(now.list);
    free(before.list);
    return good;
}

/* --- files that are kept -----------------------------------------------------------------------
 */

/* Copies a file to a temporary name, then renames it, so that no reader sees half of it. */
static bool keep_file(const char *from, const char *to) {
    char part[704], block[65536];
    snprintf(part, sizeof part, "%s.%ld", to, (long)getpid());
    FILE *in = fopen(from, "rb"), *out = fopen(part, "wb");
    bool good = in != NULL && out != NULL;
    for (size_t n; good && (n = fread(block, 1, sizeof block, in)) > 0;) {
        good = fwrite(block, 1, n, out) == n;
    }
    good = good && !ferror(in);
    if (in != NULL) {
        fclose(in);
    }
    good = out != NULL && fclose(out) == 0 && good;
    good = good && rename(part, to) == 0;
    if (!good) {
        remove(part);
    }
    return good;
}

/* Keeps both files, the profile last: when it is there, both are. */
static bool keep(const place *p, double factor, const char *folder, const char *store,
                 const char *software) {
    char profile[256];
    snprintf(profile, sizeof profile,
             "{\"name\": \"moefold\", \"extends\": \"moefold\",\n"
             " \"step_factor\": {\"value\": %.4f, \"source\": \"two times " STEPS
             " steps on this machine\"}}\n",
             factor);
    return write_file(p->answer, profile, 1) && mf_folder_make(folder, NULL) == MF_OK &&
           keep_file(p->store, store) && keep_file(p->answer, software);
}

const char *mf_measure_ranks(int64_t ranks, const char *folder, const char *store,
                             const char *software, mf_ranks_measured *out) {
    const double began_s = mf_clock_s();
    place p = {.dir = ""};
    double factor = 1, other = 1;
    const char *why = NULL;
    *out = (mf_ranks_measured){0};
    if (mf_folder_make(folder, NULL) != MF_OK || access(folder, W_OK | X_OK) != 0) {
        return "its times cannot be kept"; /* said before anybody waits for them */
    }
    if (!make_place(&p)) {
        return "no folder for temporary files";
    }
    /* Measures both micro-batch sizes that small jobs are planned with, as an op of half the rows
     * takes more than half the time. */
    if (!train(&p, ranks, 2) || !train(&p, ranks, 1)) {
        why = "the ranks did not train";
    } else if (!merge(p.store, store, &out->noisy)) {
        why = "its times cannot be kept";
    } else if (!find_factor(&p, 2, &factor) || !find_factor(&p, 1, &other)) {
        why = "its times cannot be read";
    } else if (!keep(&p, sqrt(factor * other), folder, store, software)) {
        why = "its times cannot be kept";
    }
    (void)nftw(p.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    out->took_s = mf_clock_s() - began_s;
    return why;
}
