/* run_lock.c - the file that says who writes to a run's folder. */
#include "executor/train/run_lock.h"

#include "executor/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_B = 4096, HOST_B = 256, PERIOD_MS = 50 };

struct mf_run_lock {
    char folder[PATH_B], path[PATH_B];
    int file;
};

typedef struct owner {
    char host[HOST_B], since[32];
    long long process; /* 0: the file names none */
} owner;

static mf_status failed(const mf_run_lock *l, mf_err *e) {
    return mf_err_set(e, MF_IO, "%s: %s", l->path, strerror(errno));
}

/* --- what stands in it
 * ---------------------------------------------------------------------------
 */

static void read_owner(int file, owner *o) {
    char text[512];
    ssize_t n = pread(file, text, sizeof text - 1, 0);
    *o = (owner){.process = 0};
    text[n > 0 ? n : 0] = '\0';
    char *end = strchr(text, '\n');
    if (end == NULL || strncmp(text, "host ", 5) != 0) {
        return;
    }
    *end = '\0';
    snprintf(o->host, sizeof o->host, "%.*s", HOST_B - 1, text + 5);
    if (strncmp(end + 1, "process ", 8) != 0) {
        return;
    }
    o->process = strtoll(end + 9, &end, 10);
    if (strncmp(end, "\nstarted ", 9) == 0) {
        snprintf(o->since, sizeof o->since, "%.*s", (int)strcspn(end + 9, "\n"), end + 9);
    }
}

static void host_of(char *out) {
    snprintf(out, HOST_B, "this host");
    (void)gethostname(out, HOST_B - 1);
    out[HOST_B - 1] = '\0';
}

static void describe(const owner *o, char *out, size_t size) {
    if (o->process == 0) {
        snprintf(out, size, "another run");
        return;
    }
    snprintf(out, size, "the run on %.*s (process %lld, since %s)", HOST_B - 1, o->host, o->process,
             o->since);
}

static mf_status write_owner(const mf_run_lock *l, mf_err *e) {
    char host[HOST_B], since[32], text[512];
    time_t now = time(NULL);
    struct tm t;
    host_of(host);
    strftime(since, sizeof since, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &t));
    int n = snprintf(text, sizeof text, "host %s\nprocess %lld\nstarted %s\n", host,
                     (long long)getpid(), since);
    bool written = ftruncate(l->file, 0) == 0 && pwrite(l->file, text, (size_t)n, 0) == n;
    return written ? MF_OK : failed(l, e);
}

/* --- taking it
 * ---------------------------------------------------------------------------------
 */

typedef enum answer { TAKEN, HELD, AGAIN, FAILED } answer;

/* On a file system without locks: does the process that the file names still run? */
static answer ask_owner(const owner *o) {
    char host[HOST_B];
    host_of(host);
    bool gone = o->process == 0 ||
                (strcmp(o->host, host) == 0 && kill((pid_t)o->process, 0) != 0 && errno == ESRCH);
    return gone ? TAKEN : HELD;
}

/* One attempt. Fails when the file was removed meanwhile, as no other process would see a lock on
 * it. */
static answer try_once(mf_run_lock *l, owner *o) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat mine, there;
    l->file = open(l->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (l->file < 0) {
        return FAILED;
    }
    bool locked = fcntl(l->file, F_SETLK, &whole) == 0;
    int why = locked ? 0 : errno;
    read_owner(l->file, o);
    if (!locked && (why == EACCES || why == EAGAIN)) {
        return HELD;
    }
    if (!locked) {
        return ask_owner(o);
    }
    return fstat(l->file, &mine) == 0 && stat(l->path, &there) == 0 &&
                   mine.st_ino == there.st_ino && mine.st_dev == there.st_dev
               ? TAKEN
               : AGAIN;
}

static mf_status take(mf_run_lock *l, double patience_s, char *former, size_t size, mf_err *e) {
    const struct timespec pause = {.tv_nsec = PERIOD_MS * 1000 * 1000};
    owner o;
    char who[512];
    for (double waited_s = 0.0;; waited_s += 1e-3 * PERIOD_MS) {
        answer a = try_once(l, &o);
        if (a == FAILED) {
            return failed(l, e);
        }
        describe(&o, who, sizeof who);
        if (a == TAKEN) {
            snprintf(former, size, "%s", o.process != 0 ? who : "");
            return write_owner(l, e);
        }
        close(l->file);
        l->file = -1;
        if (a == HELD && waited_s >= patience_s) {
            return mf_err_set(e, MF_USAGE,
                              "%s: %s writes there: end it first, or give another --out (should it "
                              "be gone, remove %s)",
                              l->folder, who, l->path);
        }
        nanosleep(&pause, NULL);
    }
}

mf_status mf_run_lock_take(const char *folder, double patience_s, mf_run_lock **out, char *former,
                           size_t size, mf_err *e) {
    mf_run_lock *l = calloc(1, sizeof *l);
    *out = NULL;
    former[0] = '\0';
    if (l == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", folder);
    }
    l->file = -1;
    int n = snprintf(l->folder, sizeof l->folder, "%s", folder);
    mf_status status = n > 0 && (size_t)n < sizeof l->folder &&
                               mf_path_join(l->path, sizeof l->path, folder, "lock", NULL)
                           ? take(l, patience_s, former, size, e)
                           : mf_err_set(e, MF_IO, "%s: path too long", folder);
    if (status != MF_OK) {
        if (l->file >= 0) {
            close(l->file);
        }
        free(l);
        return status;
    }
    *out = l;
    return MF_OK;
}

mf_status mf_run_lock_stands(const mf_run_lock *l, mf_err *e) {
    struct stat mine, there;
    if (l == NULL) {
        return MF_OK;
    }
    if (fstat(l->file, &mine) != 0) {
        return failed(l, e);
    }
    if (stat(l->path, &there) != 0) {
        return errno == ENOENT || errno == ENOTDIR
                   ? mf_err_set(e, MF_IO,
                                "%s: the run's folder, or the lock in it, is gone: what this run "
                                "has written is lost or another run's",
                                l->folder)
                   : failed(l, e);
    }
    return mine.st_ino == there.st_ino && mine.st_dev == there.st_dev
               ? MF_OK
               : mf_err_set(e, MF_IO, "%s: another run has taken its place", l->path);
}

void mf_run_lock_release(mf_run_lock *l, bool ended) {
    if (l != NULL && ended) {
        if (mf_run_lock_stands(l, NULL) == MF_OK) {
            unlink(l->path);
        }
        close(l->file);
    }
    free(l);
}
