/* restart.c - a run whose ranks are started again: where it goes on from, on how many ranks, and
 * when that ends. */
#include "cli/restart.h"

#include "core/base/flag.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/files/files.h"
#include "executor/ranks/launch.h"

#include <stdlib.h>
#include <string.h>

enum { PATH_B = 4096 };

typedef struct restarts {
    const mf_cli *cli;
    const mf_restart *how;
    mf_launch_call next; /* what the next ranks are started by */
    const char **argv;
    int64_t ranks, in_row;
    char newest[PATH_B]; /* checkpoint; "" where there is none */
    mf_refolded fewer;
} restarts;

static void find_newest(restarts *r) {
    char folder[PATH_B];
    r->newest[0] = '\0';
    if (r->how->out != NULL &&
        mf_path_join(folder, sizeof folder, r->how->out, "checkpoints", NULL) &&
        mf_checkpoint_newest(folder, r->newest, sizeof r->newest, NULL) != MF_OK) {
        r->newest[0] = '\0';
    }
}

static void say(const restarts *r, const char *line) {
    mf_err e;
    mf_err_set(&e, MF_LIBRARY, "%s", line);
    mf_cli_say(r->cli, &e);
    fflush(r->cli->err);
}

/* --- the command line of the next ranks ---------------------------------------------------------
 */

/* Does a plan say what this option does? */
static bool is_of_plan(const mf_option *o) {
    static const mf_option_id of_job[] = {MF_OPT_GPUS, MF_OPT_GLOBAL_BATCH, MF_OPT_SEQ, MF_OPT_PLAN,
                                          MF_OPT_SOFTWARE};
    for (size_t i = 0; i < sizeof of_job / sizeof of_job[0]; i++) {
        if (o == mf_option_get(of_job[i])) {
            return true;
        }
    }
    return o != mf_option_get(MF_OPT_DETERMINISTIC) &&
           (o->group == MF_OPTS_DEGREES || o->group == MF_OPTS_CHOICES);
}

/* As the user's, without what the plan says where there is one, and with --resume. */
static void write_argv(restarts *r) {
    const bool planned = r->fewer.ranks > 0;
    int n = 0;
    for (int i = 0; i < r->cli->argc; i++) {
        const char *text = r->cli->argv[i];
        const size_t length = strncmp(text, "--", 2) == 0 ? strcspn(text + 2, "=") : 0;
        const mf_option_id id = length > 0 ? mf_option_find(text + 2, length, NULL) : MF_OPT_COUNT;
        const mf_option *o = id != MF_OPT_COUNT ? mf_option_get(id) : NULL;
        const bool takes = o != NULL && o->kind != MF_VALUE_FLAG && text[2 + length] != '=' &&
                           i + 1 < r->cli->argc;
        if (!planned || o == NULL || !is_of_plan(o)) {
            r->argv[n++] = text;
            if (takes) {
                r->argv[n++] = r->cli->argv[i + 1];
            }
        }
        i += takes;
    }
    if (!r->how->resumes) {
        r->argv[n++] = "--resume";
    }
    if (planned) {
        r->argv[n++] = "--plan";
        r->argv[n++] = r->fewer.plan;
    }
    r->argv[n] = NULL;
    r->next.argv = r->argv;
    r->next.argc = n;
}

/* --- what comes next ----------------------------------------------------------------------------
 */

static void say_restart(const restarts *r) {
    char line[PATH_B + 160];
    snprintf(line, sizeof line, "restart %lld of %lld, from %s", (long long)r->in_row,
             (long long)r->how->most,
             r->newest[0] != '\0' ? r->newest : "the start: nothing is saved");
    say(r, line);
}

/* Restarts come no further: on fewer ranks, where there is a plan for them. */
static bool goes_on_with_fewer(restarts *r) {
    char line[2 * PATH_B + 200];
    const long long most = (long long)r->how->most, ranks = (long long)r->ranks;
    mf_err e;
    mf_err_clear(&e);
    const char *s = most == 1 ? "" : "s";
    mf_refolded fewer = {.ranks = 0};
    if (r->ranks > 1 && r->how->refold != NULL &&
        r->how->refold(r->how->user, r->ranks - 1, &fewer, &e) != MF_OK) {
        fewer.ranks = 0;
    }
    if (fewer.ranks == 0) {
        snprintf(line, sizeof line,
                 "%lld restart%s in a row came to no new checkpoint%s%s%s: the run ends", most, s,
                 r->ranks > 1 ? ", and there is no plan for fewer ranks" : "",
                 e.text[0] != '\0' ? ": " : "", e.text);
        say(r, line);
        return false;
    }
    snprintf(
        line, sizeof line,
        "%lld restart%s in a row came to no new checkpoint on %lld ranks: folded anew, the run "
        "goes on on %lld by %s, from %s",
        most, s, ranks, (long long)fewer.ranks, fewer.plan,
        r->newest[0] != '\0' ? r->newest : "the start: nothing is saved");
    say(r, line);
    r->fewer = fewer;
    r->ranks = fewer.ranks;
    r->in_row = 0;
    return true;
}

static bool begins_again(restarts *r, const char *before) {
    r->in_row = strcmp(before, r->newest) != 0 ? 1 : r->in_row + 1;
    if (r->in_row > r->how->most && !goes_on_with_fewer(r)) {
        return false;
    }
    if (r->in_row > 0) {
        say_restart(r);
    }
    write_argv(r);
    return true;
}

static mf_status launch_all(restarts *r, int *code, mf_err *e) {
    const volatile int *cancel = r->cli->cancel;
    for (;;) {
        char before[PATH_B];
        bool lost = false;
        memcpy(before, r->newest, sizeof before);
        mf_status status = mf_launch_ranks(&r->next, r->ranks, code, &lost, e);
        const bool asked = mf_flag_is_set(cancel);
        find_newest(r);
        if (status != MF_OK || *code == 0 || !lost || asked || r->how->most == 0 ||
            !begins_again(r, before)) {
            return status;
        }
    }
}

mf_status mf_launch_restarting(const mf_cli *cli, const mf_restart *how, int64_t ranks, int *code,
                               mf_err *e) {
    restarts *r = calloc(1, sizeof *r);
    const char **argv = malloc(((size_t)cli->argc + 4) * sizeof *argv);
    mf_status status = MF_NOMEM;
    if (r == NULL || argv == NULL) {
        mf_err_set(e, MF_NOMEM, "restarts: out of memory");
    } else {
        *r = (restarts){.cli = cli,
                        .how = how,
                        .next = {cli->argc, cli->argv, cli->out, cli->err, cli->cancel},
                        .argv = argv,
                        .ranks = ranks};
        find_newest(r);
        status = launch_all(r, code, e);
    }
    free(argv);
    free(r);
    return status;
}
