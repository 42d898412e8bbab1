/* launch_output.c - a pipe from the ranks' starter to this process's own output. */
#include "executor/ranks/launch_output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

mf_status mf_launch_output_open(FILE *to, mf_launch_output *out, mf_err *e) {
    int ends[2];
    *out = (mf_launch_output){.from = -1, .into = -1, .to = to};
    if (pipe(ends) != 0) {
        return mf_err_set(e, MF_LIBRARY, "mpirun: no pipe: %s", strerror(errno));
    }
    out->from = ends[0];
    out->into = ends[1];
    (void)fcntl(out->into, F_SETFD, FD_CLOEXEC);
    return MF_OK;
}

void mf_launch_output_child(const mf_launch_output *o) {
    (void)dup2(o->into, STDOUT_FILENO);
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* False: nothing comes any more. */
static bool pass(mf_launch_output *o) {
    char bytes[1 << 14];
    ssize_t n = read(o->from, bytes, sizeof bytes);
    if (n <= 0) {
        return n < 0 && errno == EINTR;
    }
    if (o->failed == 0 && (fwrite(bytes, 1, (size_t)n, o->to) != (size_t)n || fflush(o->to) != 0)) {
        o->failed = errno;
    }
    return true;
}

void mf_launch_output_pass(mf_launch_output *o, int ms) {
    const int64_t until = now_ms() + ms;
    struct pollfd p = {.fd = o->from, .events = POLLIN};
    for (int64_t left = ms; left >= 0; left = until - now_ms()) {
        int ready = poll(&p, 1, (int)left);
        if (ready <= 0 || !pass(o)) {
            return;
        }
    }
}

void mf_launch_output_close(mf_launch_output *o) {
    struct pollfd p = {.fd = o->from, .events = POLLIN};
    if (o->into >= 0) {
        close(o->into);
        o->into = -1;
    }
    while (o->from >= 0 && poll(&p, 1, 0) > 0 && pass(o)) {
    }
    if (o->from >= 0) {
        close(o->from);
        o->from = -1;
    }
}
