/* A library to load in front of libc and libm (LD_PRELOAD): a fault of a machine that comes once.
 * The MF_FLIP_CALLth expf (from 1) of the process whose rank is MF_FLIP_RANK ("-": of one that no
 * launcher gave a rank) gives no number, unless the file MF_FLIP_DONE is there, which it makes: a
 * run that begins again goes through. Or one that lasts: once the file MF_FLIP_HOLD is there, expf
 * of that rank never returns.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_mine(void) {
    static const char *const names[] = {"MOEFOLD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"};
    const char *wanted = getenv("MF_FLIP_RANK"), *own = "-";
    for (int i = 0; i < 3 && own[0] == '-'; i++) {
        own = getenv(names[i]) != NULL ? getenv(names[i]) : own;
    }
    return wanted != NULL && strcmp(wanted, own) == 0;
}

/* The main thread of a rank computes; no other one calls this. */
static long calls_left(void) {
    static long left = -1;
    if (left < 0) {
        const char *at = getenv("MF_FLIP_CALL");
        left = at != NULL && is_mine() ? atol(at) : 0;
    }
    return left > 0 ? left-- : 0;
}

/* Looked at now and then. */
static bool is_held(void) {
    static const char *hold;
    static long calls = -1;
    if (calls < 0) {
        hold = is_mine() ? getenv("MF_FLIP_HOLD") : NULL;
        calls = 0;
    }
    return hold != NULL && calls++ % 256 == 0 && access(hold, F_OK) == 0;
}

float expf(float x) {
    static float (*real)(float);
    if (real == NULL) {
        *(void **)(void *)&real = dlsym(RTLD_NEXT, "expf");
    }
    while (is_held()) {
        for (volatile bool ever = true; ever;) {
        }
    }
    const char *done = getenv("MF_FLIP_DONE");
    if (calls_left() == 1 && done != NULL) {
        const int file = open(done, O_WRONLY | O_CREAT | O_EXCL, 0666);
        if (file >= 0) {
            close(file);
            return NAN;
        }
    }
    return real(x);
}
