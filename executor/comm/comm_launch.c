/* comm_launch.c - ranks as child processes. */
#include "executor/comm/comm_launch.h"

#include "core/base/flag.h"
#include "executor/comm/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PERIOD_MS = 10, AGAIN_MS = 500, GRACE_MS = 2000, FREE_MiB = 1024 };

/* A new file, in memory where there is enough of it: stages exchange whole tensors. *held:
 * descriptor to close in the end. */
static mf_status make_ranks_file(char *path, size_t size, int *held, mf_err *e) {
    static const char name[] = "moefold-ranks-";
    const char *memory = "/dev/shm", *base = getenv("TMPDIR");
    struct statvfs v;
    base = base != NULL && *base != '\0' ? base : "/tmp";
    if (statvfs(memory, &v) == 0 && access(memory, W_OK) == 0 &&
        v.f_bavail * (v.f_frsize >> 10) >= (unsigned long)FREE_MiB << 10) {
        base = memory;
    }
    mf_scratch_clean(base, name);
    *held = mf_scratch_file(base, name, path, size);
    return *held >= 0 ? MF_OK
                      : mf_err_set(e, MF_LIBRARY, "%s: no file for the ranks to meet in: %s", base,
                                   strerror(errno));
}

/* The child: never returns. */
static void become_rank(int64_t rank, int64_t ranks, const char *ranks_file, pid_t parent,
                        char *const *argv) {
    char number[24];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) { /* the parent has ended meanwhile */
        _exit(126);
    }
    snprintf(number, sizeof number, "%lld", (long long)rank);
    setenv("MOEFOLD_RANK", number, 1);
    snprintf(number, sizeof number, "%lld", (long long)ranks);
    setenv("MOEFOLD_RANKS", number, 1);
    setenv("MOEFOLD_RANKS_FILE", ranks_file, 1);
    execv(argv[0], argv);
    _exit(errno == ENOENT ? 127 : 126);
}

static void tell_all(const pid_t *child, int64_t ranks, int signal) {
    for (int64_t r = 0; r < ranks; r++) {
        if (child[r] > 0) {
            kill(child[r], signal);
        }
    }
}

/* Takes those that have ended off the list. */
static int64_t reap(pid_t *child, int64_t ranks, int *code) {
    int64_t left = 0;
    for (int64_t r = 0; r < ranks; r++) {
        int result = 0;
        pid_t got = child[r] > 0 ? waitpid(child[r], &result, WNOHANG) : 0;
        if (got == child[r] && got > 0) {
            int its = WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result);
            *code = *code == 0 ? its : *code;
            child[r] = 0;
        }
        left += child[r] > 0;
    }
    return left;
}

static int wait_for_all(pid_t *child, int64_t ranks, const volatile sig_atomic_t *cancel) {
    const struct timespec pause = {.tv_nsec = PERIOD_MS * 1000 * 1000};
    int code = 0, said_ms = AGAIN_MS, failed_ms = 0;
    while (reap(child, ranks, &code) > 0) {
        if (mf_flag_is_set(cancel) && (said_ms += PERIOD_MS) > AGAIN_MS) {
            tell_all(child, ranks, SIGUSR1);
            said_ms = 0;
        }
        if (code != 0 && (failed_ms += PERIOD_MS) > GRACE_MS) {
            tell_all(child, ranks, SIGKILL);
        }
        nanosleep(&pause, NULL);
    }
    return code;
}

mf_status mf_comm_launch(int64_t ranks, char *const *argv, const volatile sig_atomic_t *cancel,
                         int *code, mf_err *e) {
    char ranks_file[256];
    pid_t *child = calloc((size_t)ranks, sizeof *child), parent = getpid();
    if (child == NULL) {
        return mf_err_set(e, MF_NOMEM, "ranks: out of memory");
    }
    int held = -1;
    mf_status status = make_ranks_file(ranks_file, sizeof ranks_file, &held, e);
    if (status != MF_OK) {
        free(child);
        return status;
    }
    fflush(NULL);
    for (int64_t r = 0; r < ranks && status == MF_OK; r++) {
        child[r] = fork();
        if (child[r] == 0) {
            become_rank(r, ranks, ranks_file, parent, argv);
        }
        if (child[r] < 0) {
            status = mf_err_set(e, MF_LIBRARY, "rank %lld: %s", (long long)r, strerror(errno));
            tell_all(child, r, SIGKILL);
        }
    }
    *code = wait_for_all(child, ranks, cancel);
    mf_scratch_remove(ranks_file,
                      held); /* after a start the ranks remove it, when all have it open */
    free(child);
    return status;
}
