/* measure_worker.c - the measuring program as a child process. */
#include "executor/measure/measure_worker.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PATH_MAX
#define PATH_MAX 4096
#endif
enum { LINE = 2048 };

struct mf_measure_worker {
    pid_t child;
    FILE *to, *from;
    int64_t points;
    bool ended; /* it sent the end, and exits by itself */
};

bool mf_measure_worker_path(char *out, size_t size) {
    const char *wanted = getenv("MOEFOLD_MEASURE");
    if (wanted != NULL && wanted[0] != '\0') {
        snprintf(out, size, "%s", wanted);
    } else {
        char self[PATH_MAX];
        ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
        self[length > 0 ? length : 0] = '\0';
        char *slash = strrchr(self, '/');
        if (slash == NULL) {
            return false;
        }
        *slash = '\0';
        snprintf(out, size, "%s/moefold-measure", self);
    }
    return access(out, X_OK) == 0;
}

/* In the child: only what is safe between fork and exec. */
static void become(const char *path, mf_measure_manner manner, const int to[2], const int from[2]) {
    char name[] = "moefold-measure", accept[] = "--shared", count[] = "--energy";
    char *argv[4] = {name};
    int words = 1;
    if (manner.shared) {
        argv[words++] = accept;
    }
    if (manner.energy) {
        argv[words++] = count;
    }
    if (dup2(to[0], STDIN_FILENO) >= 0 && dup2(from[1], STDOUT_FILENO) >= 0) {
        close(to[0]);
        close(to[1]);
        close(from[0]);
        close(from[1]);
        execv(path, argv);
    }
    _exit(127);
}

static mf_status start(mf_measure_worker *w, const char *path, mf_measure_manner manner,
                       mf_err *e) {
    int to[2], from[2];
    if (pipe(to) != 0) {
        return mf_err_set(e, MF_LIBRARY, "%s: %s", path, strerror(errno));
    }
    if (pipe(from) != 0) {
        close(to[0]);
        close(to[1]);
        return mf_err_set(e, MF_LIBRARY, "%s: %s", path, strerror(errno));
    }
    w->child = fork();
    if (w->child == 0) {
        become(path, manner, to, from);
    }
    close(to[0]);
    close(from[1]);
    w->to = fdopen(to[1], "w");
    w->from = fdopen(from[0], "r");
    if (w->child < 0 || w->to == NULL || w->from == NULL) {
        return mf_err_set(e, MF_LIBRARY, "%s: %s", path, strerror(errno));
    }
    return MF_OK;
}

/* Reads a line without its newline; a line that reports an error is returned as that error. */
static mf_status read_line(mf_measure_worker *w, char *line, mf_err *e) {
    do {
        errno = 0;
        if (fgets(line, LINE, w->from) == NULL) {
            if (errno == EINTR) { /* first interrupt: points already measured still arrive */
                clearerr(w->from);
                line[0] = '\0';
                continue;
            }
            return mf_err_set(e, MF_LIBRARY, "measuring ended before it was done");
        }
        line[strcspn(line, "\r\n")] = '\0';
    } while (line[0] == '\0');
    if (strncmp(line, "error\t", 6) == 0) {
        char *text = line + 6;
        long code = strtol(text, &text, 10);
        mf_status s = code == 2 ? MF_USAGE : MF_LIBRARY;
        return mf_err_set(e, s, "%s", *text == '\t' ? text + 1 : text);
    }
    return MF_OK;
}

mf_status mf_measure_worker_open(const char *path, mf_measure_manner manner,
                                 mf_measure_worker **out, mf_measure_machine *machine, mf_err *e) {
    char line[LINE];
    mf_measure_worker *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) {
        return mf_err_set(e, MF_NOMEM, "measuring: out of memory");
    }
    mf_status s = start(w, path, manner, e);
    s = s == MF_OK ? read_line(w, line, e) : s;
    s = s == MF_OK ? mf_measure_machine_parse(line, machine, e) : s;
    if (s != MF_OK) {
        mf_measure_worker_close(w);
        return s;
    }
    *out = w;
    return MF_OK;
}

mf_status mf_measure_worker_give(mf_measure_worker *w, const mf_measure_list *l,
                                 const mf_measure_choice *choice, mf_err *e) {
    struct sigaction quiet = {.sa_handler = SIG_IGN}, before;
    char key[512];
    sigaction(SIGPIPE, &quiet, &before); /* an error here, not our end */
    for (int64_t i = 0; i < l->n; i++) {
        mf_point_format(&l->point[i], key, sizeof key);
        fprintf(w->to, "%" PRId64 "\t%s\t%s\n", i, key, choice != NULL ? choice[i].text : "");
    }
    bool failed = fclose(w->to) != 0;
    w->to = NULL;
    w->points = l->n;
    sigaction(SIGPIPE, &before, NULL);
    return failed ? mf_err_set(e, MF_IO, "measuring: the list could not be handed over: %s",
                               strerror(errno))
                  : MF_OK;
}

mf_status mf_measure_worker_next(mf_measure_worker *w, mf_measure_word *word, int64_t *index,
                                 mf_measure_reading *r, mf_err *e) {
    char line[LINE];
    int end = 0;
    mf_status s = read_line(w, line, e);
    if (s != MF_OK) {
        return s;
    }
    *index = -1;
    *r = (mf_measure_reading){.samples = 0};
    int64_t counted = -1;
    if (sscanf(line, "energy\t%" SCNd64 "\t%lf\t%lf", &counted, &r->energy_J, &r->sustained_s) ==
        3) {
        s = read_line(w, line, e);
        if (s != MF_OK) {
            return s;
        }
    }
    if (strcmp(line, "end") == 0) {
        *word = MF_WORD_END;
        w->ended = true;
        return MF_OK;
    }
    if (sscanf(line, "refused\t%" SCNd64, index) == 1) {
        *word = MF_WORD_REFUSED;
    } else if (sscanf(line, "point\t%" SCNd64 "\t%lf\t%lf\t%lf\t%" SCNd64 "\t%d\t%d%n", index,
                      &r->time_s, &r->low_s, &r->high_s, &r->samples, &r->sm_MHz, &r->temperature_C,
                      &end) == 7) {
        *word = MF_WORD_POINT;
        snprintf(r->choice.text, sizeof r->choice.text, "%s",
                 line[end] == '\t' ? line + end + 1 : "");
    }
    return *index >= 0 && *index < w->points && (counted < 0 || counted == *index)
               ? MF_OK
               : mf_err_set(e, MF_INPUT, "what measures said \"%.80s\"", line);
}

void mf_measure_worker_close(mf_measure_worker *w) {
    if (w == NULL) {
        return;
    }
    if (w->to != NULL) {
        fclose(w->to);
    }
    if (w->from != NULL) {
        fclose(w->from);
    }
    if (w->child > 0) {
        if (!w->ended) {
            kill(w->child, SIGTERM);
        }
        while (waitpid(w->child, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    free(w);
}
