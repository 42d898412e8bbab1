/* test_executor_layouts.c - folded layouts on 2, 4 and 8 ranks against one rank of the CPU, both in
 * BF16: gradients, losses and norms, op by op and from a graph. Ranks are processes of this host;
 * where they outnumber the GPUs they share them (NCCL 2.30 and later).
 *
 *     test_executor_layouts [--backend cuda|cpu] [--ranks N] [--only TEXT] [--seconds S]
 *                           [--timeout S] [--batch N] [--steps N] [--deterministic] [--plant FAULT]
 *                           [--bits] [--list]
 *
 * Ranks stay over all layouts of their number. What hangs or dies is named, its ranks are killed,
 * and new ones go on behind it. --only: layouts whose line has this text. --seconds: no layout is
 * begun after them, and each number of ranks has its share; those left are counted. --timeout: of a
 * layout [40]. --batch, --steps: samples of a step [8], steps [3], so that a layout is over sooner;
 * --deterministic: no product is measured, the library's first proposal is taken.
 * --bits: gradients on streams are those on one queue, to the bit; algorithms are then fixed ones.
 * --plant: what names of layouts_case.h leave out; a layout is then as it should be where that is
 * seen, or left nothing out; and one at least has to have left it out.
 */
#include "core/base/clock.h"
#include "executor/comm/comm_launch.h"
#include "executor/cuda/comm_nccl_cuda.h"
#include "tests/gpu/layouts_case.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { START_S = 60 /* of processes, beside the first layout */ };

typedef struct options {
    bool cpu, list, fixed, bits;
    int ranks; /* 0: all */
    const char *only;
    const layouts_fault *fault;
    double seconds, timeout;
} options;

static bool chosen(const options *o, int i, int ranks) {
    char text[400];
    layouts_text(&layouts_list[i], text, sizeof text);
    return layouts_list[i].ranks == ranks && (o->only == NULL || strstr(text, o->only) != NULL);
}

/* --- ranks --------------------------------------------------------------------------------------
 */

/* A failure that the other ranks cannot learn of ends all of them. */
static void give_up(int64_t rank, const char *what, const mf_err *e) {
    if (e->text[0] != '\0') {
        printf("rank %lld: %s: %s\n", (long long)rank, what, e->text);
        fflush(stdout);
    }
    mf_comm_abort(1);
}

static mf_device *open_device(const options *o, int64_t rank) {
    mf_device *d = NULL;
    int gpus = 0;
    mf_err e = {.text = ""};
    if (o->cpu) {
        return mf_device_cpu();
    }
    if (mf_device_cuda_count(&gpus, &e) != MF_OK || gpus == 0 ||
        mf_device_cuda_open((int)(rank % gpus), &d, &e) != MF_OK) {
        give_up(rank, "the GPU", &e);
    }
    if ((o->fixed || o->bits) && d->ops->fix != NULL) {
        d->ops->fix(d);
    }
    return d;
}

/* The same outcome on all ranks, or the end. */
static mf_status run_row(const layouts_row *r, mf_device *device, const grid_reference *ref,
                         const options *o, layouts_errors *x, double *ready_s, mf_err *e) {
    layouts_case c;
    mf_status s = layouts_open(&c, r, device, o->fault, e);
    c.bits = o->bits;
    *ready_s = mf_clock_s();
    if (s == MF_OK) {
        s = layouts_run(&c, ref, x, e);
        if (s != MF_OK) {
            give_up(mf_comm_rank(c.g.comm), "a step", e);
        }
    }
    layouts_close(&c);
    return s;
}

/* Whether this layout has to go through windows: it has a fused dispatcher, every rank has a GPU,
 * and MOEFOLD_DISPATCH does not ask for slots. */
static bool wants_window(const layouts_row *r, const options *o) {
    int gpus = 0;
    mf_err e;
    const char *by = getenv("MOEFOLD_DISPATCH");
    return !o->cpu && r->ep > 1 && r->dispatcher == MF_DISPATCH_FUSED &&
           (by == NULL || strcmp(by, "slots") != 0) && mf_device_cuda_count(&gpus, &e) == MF_OK &&
           gpus >= r->ranks;
}

/* Rank 0 says what came of a layout; others what they know of it. */
static void play(int i, mf_device *device, const grid_reference ref[LAYOUTS_MODELS],
                 const options *o, int64_t rank) {
    const layouts_row *r = &layouts_list[i];
    layouts_errors x = {0};
    mf_err e = {.text = ""};
    double began_s = mf_clock_s(), ready_s = 0.0;
    if (rank == 0) {
        printf("@begin %d\n", i);
        fflush(stdout);
    }
    mf_status s = run_row(r, device, &ref[r->model], o, &x, &ready_s, &e);
    bool well =
        layouts_near(r, &x) == (x.left_out == 0) && (s != MF_OK || x.window == wants_window(r, o));
    if (s != MF_OK && e.text[0] != '\0') {
        printf("rank %lld: %s\n", (long long)rank, e.text);
    }
    if (rank == 0 && s != MF_OK) {
        printf("@end %d %s did not run\n", i, s == MF_INFEASIBLE ? "skip" : "FAIL");
    } else if (rank == 0) {
        printf("@end %d %s %d ops left out, gradients %.1e, worst %.1e (%s), losses %.1e, "
               "norms %.1e, aux %.1e%s%s%s; %.1f s to start, %.1f s to run\n",
               i, well ? "ok" : "FAIL", x.left_out, x.all, x.tensor, x.worst, x.loss, x.norm, x.aux,
               x.window == wants_window(r, o) ? "" : "; NOT AS IT SHOULD BE",
               x.dispatch[0] != '\0' ? "; " : "", x.dispatch, ready_s - began_s,
               mf_clock_s() - ready_s);
    }
    fflush(stdout);
}

static bool reference_move(const char *path, int model, grid_reference *ref, bool write) {
    char name[96];
    snprintf(name, sizeof name, "%s-%d", path, model);
    FILE *f = fopen(name, write ? "wb" : "rb");
    bool ok = f != NULL && grid_reference_move(f, ref, write);
    return f != NULL && fclose(f) == 0 && ok;
}

/* Is one of the layouts that run of this model? */
static bool needs(const options *o, int model) {
    bool any = false;
    for (int i = 0; i < LAYOUTS; i++) {
        const layouts_row *r = &layouts_list[i];
        any = any || (r->model == model && (o->ranks == 0 || r->ranks == o->ranks) &&
                      chosen(o, i, r->ranks));
    }
    return any;
}

static bool references_read(const options *o, const char *path,
                            grid_reference ref[LAYOUTS_MODELS]) {
    bool ok = true;
    for (int i = 0; i < LAYOUTS_MODELS && ok; i++) {
        ok = !needs(o, i) || reference_move(path, i, &ref[i], false);
    }
    return ok;
}

/* One of the ranks: layouts from `first` on, until `until_s`. */
static int be_rank(const options *o, const char *references, int first, double until_s) {
    static grid_reference ref[LAYOUTS_MODELS];
    int64_t rank = 0, ranks = 1;
    mf_layout all;
    mf_model m;
    mf_comm *world = NULL;
    mf_err e = {.text = ""};
    mf_layout_init(&all);
    if (!references_read(o, references, ref) || mf_comm_start(&rank, &ranks, &e) != MF_OK) {
        printf("ranks: %s\n", e.text);
        return 1;
    }
    all.gpus = all.gbs = ranks;
    if (layouts_model_load(&layouts_models[LLAMA], &m, &e) != MF_OK ||
        mf_layout_resolve(&all, &m, &e) != MF_OK || mf_comm_create(&all, &world, &e) != MF_OK) {
        give_up(rank, "ranks", &e);
    }
    mf_device *device = open_device(o, rank);
    for (int i = first; i < LAYOUTS; i++) {
        double late = mf_clock_s() > until_s ? 1.0 : 0.0;
        if (!chosen(o, i, (int)ranks)) {
            continue;
        }
        if (mf_comm_all_reduce(world, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, &late, 1, &e) !=
            MF_OK) {
            give_up(rank, "ranks", &e);
        }
        if (late > 0.0) {
            break;
        }
        play(i, device, ref, o, rank);
    }
    for (int i = 0; i < LAYOUTS_MODELS; i++) {
        grid_reference_clear(&ref[i]);
    }
    mf_comm_destroy(world);
    device->ops->close(device);
    mf_comm_stop();
    return 0;
}

/* --- who starts them ----------------------------------------------------------------------------
 */

typedef struct ranks_run {
    pid_t launcher; /* ranks end with it */
    FILE *says;
    int row;  /* that they are at; -1: none yet */
    int said; /* rows that ended */
} ranks_run;

static void start(const options *o, const char *references, int ranks, int first, double until_s,
                  ranks_run *out) {
    char self[] = "/proc/self/exe", word[] = "--rank", backend[8], from[16], until[32], path[64];
    char only[256] = "", fault[32] = "", number[8], batch[8], steps[8], fixed[8], bits[8];
    int pipes[2], code = 1;
    mf_err e = {.text = ""};
    if (pipe(pipes) != 0) {
        exit(1);
    }
    fflush(NULL);
    out->row = -1;
    out->launcher = fork();
    if (out->launcher == 0) {
        char *argv[] = {self, word,  backend, path,  from,  until, number,
                        only, fault, batch,   steps, fixed, bits,  NULL};
        snprintf(bits, sizeof bits, "%d", o->bits);
        snprintf(backend, sizeof backend, "%s", o->cpu ? "cpu" : "cuda");
        snprintf(path, sizeof path, "%s", references);
        snprintf(from, sizeof from, "%d", first);
        snprintf(until, sizeof until, "%.3f", until_s);
        snprintf(number, sizeof number, "%d", o->ranks);
        snprintf(batch, sizeof batch, "%d", (int)layouts_sized.batch);
        snprintf(steps, sizeof steps, "%d", (int)layouts_sized.steps);
        snprintf(fixed, sizeof fixed, "%d", (int)o->fixed);
        snprintf(only, sizeof only, "%s", o->only != NULL ? o->only : "");
        snprintf(fault, sizeof fault, "%s", o->fault != NULL ? o->fault->name : "");
        dup2(pipes[1], STDOUT_FILENO);
        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        if (mf_comm_launch(ranks, argv, NULL, &code, &e) != MF_OK) {
            printf("%s\n", e.text);
        }
        fflush(stdout);
        _exit(code);
    }
    close(pipes[1]);
    out->says = fdopen(pipes[0], "r");
    setvbuf(out->says, NULL, _IONBF, 0); /* what poll does not see must not wait in here */
}

/* A line of the ranks, without its end; false: none came until `until_s`, or none will. */
static bool hear(const ranks_run *r, double until_s, char *line, size_t size, bool *ended) {
    size_t n = 0;
    for (;;) {
        struct pollfd p = {.fd = fileno(r->says), .events = POLLIN};
        double left_ms = 1e3 * (until_s - mf_clock_s());
        int got = poll(&p, 1, left_ms > 0 ? (int)left_ms + 1 : 0);
        int c = got > 0 ? fgetc(r->says) : 0;
        *ended = c == EOF;
        if (got <= 0 || c == EOF) {
            return false;
        }
        if (c == '\n') {
            line[n] = '\0';
            return true;
        }
        n += n + 1 < size;
        line[n - 1] = (char)c;
    }
}

static int passed, failed, skipped, unfinished, touched;

static void tell(int row, const char *state, const char *what) {
    char text[400];
    layouts_text(&layouts_list[row], text, sizeof text);
    printf("%-5s %s: %s\n", state, text, what);
    fflush(stdout);
    *(strcmp(state, "ok") == 0 ? &passed : strcmp(state, "skip") == 0 ? &skipped : &failed) += 1;
}

/* Follows the ranks until they end or hang. The row that they did not come to an end of; -1. */
static int follow(const options *o, ranks_run *r) {
    char line[1024], state[8];
    double until_s = mf_clock_s() + START_S + o->timeout;
    bool ended = false;
    int row, at;
    while (hear(r, until_s, line, sizeof line, &ended)) {
        if (sscanf(line, "@begin %d", &row) == 1) {
            r->row = row;
            until_s = mf_clock_s() + o->timeout + (r->said == 0 ? START_S : 0);
        } else if (sscanf(line, "@end %d %7s %n", &row, state, &at) == 2) {
            tell(row, state, line + at);
            touched += atoi(line + at) > 0; /* ops left out */
            r->row = -1;
            r->said++;
            until_s = mf_clock_s() + (o->timeout > START_S ? o->timeout : START_S);
        } else {
            printf("      %s\n", line);
        }
    }
    if (!ended) {
        kill(r->launcher, SIGKILL);
    }
    int result = 0;
    waitpid(r->launcher, &result, 0);
    fclose(r->says);
    if (r->row >= 0) {
        tell(r->row, "FAIL", ended ? "the ranks ended" : "the ranks hang");
        return r->row;
    }
    if (!ended || !WIFEXITED(result) || WEXITSTATUS(result) != 0) {
        printf("FAIL  the ranks %s outside of a layout\n", ended ? "failed" : "hang");
        failed++;
        return LAYOUTS;
    }
    return -1;
}

static void run_ranks(const options *o, const char *references, int ranks, double until_s) {
    int due = 0, before = passed + failed + skipped;
    for (int i = 0; i < LAYOUTS; i++) {
        due += chosen(o, i, ranks);
    }
    for (int first = 0, stuck = 0;
         due > 0 && stuck >= 0 && first < LAYOUTS && mf_clock_s() < until_s; first = stuck + 1) {
        ranks_run r = {0};
        double began_s = mf_clock_s();
        start(o, references, ranks, first, until_s, &r);
        stuck = follow(o, &r);
        printf("      %d ranks: %d layouts in %.1f s\n", ranks, r.said, mf_clock_s() - began_s);
    }
    unfinished += due - (passed + failed + skipped - before);
}

/* A process for each. */
static bool references_make(const options *o, const char *path) {
    pid_t child[LAYOUTS_MODELS];
    bool ok = true;
    fflush(NULL);
    for (int i = 0; i < LAYOUTS_MODELS; i++) {
        child[i] = needs(o, i) ? fork() : -1;
        if (child[i] == 0) {
            grid_reference ref;
            mf_err e = {.text = ""};
            mf_status s = layouts_reference(i, &ref, &e);
            bool written = s == MF_OK && reference_move(path, i, &ref, true);
            printf("      %-20s one rank: losses %.5f %.5f %.5f, norm %.4f, aux %.4f %s\n",
                   layouts_models[i].name, ref.lm_loss[0], ref.lm_loss[1], ref.lm_loss[2],
                   ref.norm[0], ref.aux_loss[0], s != MF_OK ? e.text : "");
            fflush(stdout);
            _exit(written ? 0 : 1);
        }
    }
    for (int i = 0; i < LAYOUTS_MODELS; i++) {
        int result = 1;
        if (needs(o, i)) {
            ok = child[i] > 0 && waitpid(child[i], &result, 0) == child[i] && result == 0 && ok;
        }
    }
    return ok;
}

static void references_drop(const char *path) {
    char name[96];
    for (int i = 0; i < LAYOUTS_MODELS; i++) {
        snprintf(name, sizeof name, "%s-%d", path, i);
        remove(name);
    }
}

static const layouts_fault *fault_of(const char *name) {
    for (int i = 0; i < LAYOUTS_FAULTS; i++) {
        if (strcmp(layouts_faults[i].name, name) == 0) {
            return &layouts_faults[i];
        }
    }
    return NULL;
}

static const layouts_fault *fault_named(const char *name) {
    const layouts_fault *f = fault_of(name);
    if (f == NULL) {
        printf("--plant: expected one of");
        for (int i = 0; i < LAYOUTS_FAULTS; i++) {
            printf(" %s", layouts_faults[i].name);
        }
        printf(", got \"%s\"\n", name);
        exit(2);
    }
    return f;
}

/* 1 to `most`. */
static int64_t number_of(const char *option, const char *value, int64_t most) {
    int64_t n = atoi(value);
    if (n < 1 || n > most) {
        printf("%s: expected 1 to %d, got \"%s\"\n", option, (int)most, value);
        exit(2);
    }
    return n;
}

static options read_options(int argc, char **argv) {
    options o = {.seconds = 1e6, .timeout = 40};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool takes = true;
        if (strcmp(argv[i], "--backend") == 0) {
            o.cpu = strcmp(value, "cpu") == 0;
        } else if (strcmp(argv[i], "--ranks") == 0) {
            o.ranks = atoi(value);
        } else if (strcmp(argv[i], "--only") == 0) {
            o.only = value;
        } else if (strcmp(argv[i], "--seconds") == 0) {
            o.seconds = atof(value);
        } else if (strcmp(argv[i], "--timeout") == 0) {
            o.timeout = atof(value);
        } else if (strcmp(argv[i], "--batch") == 0) {
            layouts_sized.batch = number_of(argv[i], value, LAYOUTS_GBS);
        } else if (strcmp(argv[i], "--steps") == 0) {
            layouts_sized.steps = number_of(argv[i], value, GRID_STEPS);
        } else if (strcmp(argv[i], "--plant") == 0) {
            o.fault = fault_named(value);
        } else if (strcmp(argv[i], "--list") == 0 || strcmp(argv[i], "--deterministic") == 0 ||
                   strcmp(argv[i], "--bits") == 0) {
            o.list |= strcmp(argv[i], "--list") == 0;
            o.fixed |= strcmp(argv[i], "--deterministic") == 0;
            o.bits |= strcmp(argv[i], "--bits") == 0;
            takes = false;
        } else {
            printf("unknown option %s\n", argv[i]);
            exit(2);
        }
        i += takes;
    }
    return o;
}

/* Says what there is none of; 0 exit, as other tests of GPUs. */
static void need_gpus(const options *o) {
    int gpus = 0;
    mf_err e = {.text = ""};
    if (o->cpu) {
        return;
    }
    if (mf_device_cuda_count(&gpus, &e) != MF_OK || gpus == 0) {
        printf("MF_SKIPPED %d no GPU: ranks on GPUs were compiled, not run\n", LAYOUTS);
        exit(0);
    }
    if (gpus < 8 && !mf_comm_nccl_shares_gpus()) {
        printf("      this NCCL lets no ranks share a GPU: as many ranks run as GPUs are here\n");
    }
}

int main(int argc, char **argv) {
    static const int numbers[] = {2, 4, 8};
    char references[64];
    if (argc == 13 && strcmp(argv[1], "--rank") == 0) {
        const options rank = {.cpu = strcmp(argv[2], "cpu") == 0,
                              .ranks = atoi(argv[6]),
                              .only = argv[7],
                              .fault = fault_of(argv[8]),
                              .fixed = atoi(argv[11]) != 0,
                              .bits = atoi(argv[12]) != 0};
        layouts_sized = (layouts_size){atoi(argv[9]), atoi(argv[10])};
        layouts_deterministic = rank.fixed || rank.bits;
        return be_rank(&rank, argv[3], atoi(argv[4]), atof(argv[5]));
    }
    options o = read_options(argc, argv);
    for (int i = 0; i < LAYOUTS && o.list; i++) {
        char text[400];
        layouts_text(&layouts_list[i], text, sizeof text);
        printf("%s\n", text);
    }
    if (o.list) {
        return 0;
    }
    need_gpus(&o);
    double until_s = mf_clock_s() + o.seconds;
    snprintf(references, sizeof references, "/tmp/moefold-layouts-%ld", (long)getpid());
    if (!references_make(&o, references)) {
        references_drop(references);
        return 1;
    }
    for (int i = 0; i < 3; i++) { /* of what time is left each number of ranks has its share */
        if (o.ranks == 0 || o.ranks == numbers[i]) {
            int shares = o.ranks == 0 ? 3 - i : 1;
            run_ranks(&o, references, numbers[i], mf_clock_s() + (until_s - mf_clock_s()) / shares);
        }
    }
    references_drop(references);
    if (o.fault != NULL) {
        printf("      %s: %d layouts had it to leave out\n", o.fault->name, touched);
        failed += touched == 0;
    }
    printf("%d passed, %d failed, %d skipped, %d not begun\n", passed, failed, skipped, unfinished);
    return failed > 0;
}
