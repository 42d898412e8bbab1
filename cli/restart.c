/* restart.c - a run whose ranks are started again: where it goes on from, and when that ends. */
#include "cli/restart.h"

#include "cli/launch.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/data/files.h"

#include <stdlib.h>
#include <string.h>

enum { PATH_B = 4096 };

/* The newest checkpoint; "" where there is none. */
static void find_newest(const mf_restart *how, char *path) {
    char folder[PATH_B];
    path[0] = '\0';
    if (how->out != NULL && mf_path_join(folder, sizeof folder, how->out, "checkpoints", NULL) &&
        mf_checkpoint_newest(folder, path, PATH_B, NULL) != MF_OK) {
        path[0] = '\0';
    }
}

static void say(const mf_cli *cli, const char *line) {
    mf_err e;
    mf_err_set(&e, MF_LIBRARY, "%s", line);
    mf_cli_say(cli, &e);
    fflush(cli->err);
}

/* The command line and --resume. *to owns its array. NULL: no memory. */
static const char **resuming(const mf_cli *cli, const mf_restart *how, mf_cli *to) {
    const size_t count = (size_t)cli->argc;
    const char **argv = malloc((count + 2) * sizeof *argv);
    *to = *cli;
    if (argv != NULL) {
        memcpy(argv, cli->argv, count * sizeof *argv);
        argv[count] = "--resume";
        argv[count + 1] = NULL;
        to->argv = argv;
        to->argc = cli->argc + (how->resumes ? 0 : 1);
    }
    return argv;
}

/* Is there to be another start? In `newest` stands what it would begin from. */
static bool begins_again(const mf_cli *cli, const mf_restart *how, const char *newest, bool came_on,
                         int64_t *in_row) {
    char line[PATH_B + 160];
    *in_row = came_on ? 1 : *in_row + 1;
    const bool again = *in_row <= how->most;
    if (again) {
        snprintf(line, sizeof line, "restart %lld of %lld, from %s", (long long)*in_row,
                 (long long)how->most, newest[0] != '\0' ? newest : "the start: nothing is saved");
    } else {
        snprintf(line, sizeof line,
                 "%lld restart%s in a row came to no new checkpoint: the run ends",
                 (long long)how->most, how->most == 1 ? "" : "s");
    }
    say(cli, line);
    return again;
}

mf_status mf_launch_restarting(const mf_cli *cli, const mf_restart *how, int64_t ranks, int *code,
                               mf_err *e) {
    char before[PATH_B], newest[PATH_B];
    mf_cli again;
    bool lost = false;
    int64_t in_row = 0;
    const char **argv = how->most > 0 ? resuming(cli, how, &again) : NULL;
    if (how->most > 0 && argv == NULL) {
        return mf_err_set(e, MF_NOMEM, "restarts: out of memory");
    }
    find_newest(how, newest);
    const mf_cli *next = cli;
    for (;;) {
        memcpy(before, newest, sizeof before);
        mf_status status = mf_launch_ranks(next, ranks, code, &lost, e);
        const bool asked = cli->cancel != NULL && *cli->cancel != 0;
        find_newest(how, newest);
        if (status != MF_OK || *code == 0 || !lost || asked || how->most == 0 ||
            !begins_again(cli, how, newest, strcmp(before, newest) != 0, &in_row)) {
            free(argv);
            return status;
        }
        next = &again;
    }
}
