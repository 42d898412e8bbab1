/* A library to load in front of libc (LD_PRELOAD): of the allocations that the program itself asks
 * for (MF_ALLOC_ALL set: those of its libraries, too) the MF_ALLOC_CALLth (from 1; 0 or not set:
 * none) fails once, with ENOMEM. At the end the file MF_ALLOC_LOG says how many there were, whether
 * one failed, how many of them were never given back, and who asked for the first of those: "calls
 * 812 failed 1 kept 0 by 0x0". Without MF_ALLOC_LOG nothing is counted; MF_ALLOC_RANK: only in the
 * process that its launcher gave this rank.
 *
 * MF_ALLOC_FORK=K/N: every Nth fails, from the Kth, each in a child that the process forks there
 * and waits for, and goes on itself as if nothing had been: what comes before a failure runs once
 * for all. Child C's outputs are the files MF_ALLOC_LOG.out.C and .err.C, its own line of the log
 * comes before "call C status S" (that of wait). One with more than one thread is not forked:
 * status -1. A child of more than 60 s is ended by SIGALRM.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t align, size_t size);
extern void __libc_free(void *block);

enum { SLOT_BITS = 17, SLOTS = 1 << SLOT_BITS, CHILD_S = 60 };

typedef struct slot {
    void *block;
    const void *caller;
} slot;

static slot *table; /* of blocks that are out; the next free slot behind a block's own place */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t text_begin, text_end; /* of the program */
static bool on, all;
static long calls, failing, failed, kept;
static long fork_first, fork_step; /* 0: nothing is forked */

/* The program is the first mapping that may run. */
static void find_text(void) {
    char line[512];
    FILE *f = fopen("/proc/self/maps", "r");
    while (f != NULL && text_end == 0 && fgets(line, sizeof line, f) != NULL) {
        unsigned long from, to;
        char how[8] = "";
        if (sscanf(line, "%lx-%lx %7s", &from, &to, how) == 3 && strchr(how, 'x') != NULL) {
            text_begin = from;
            text_end = to;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
}

static bool is_mine(void) {
    const char *wanted = getenv("MF_ALLOC_RANK"), *rank = getenv("MOEFOLD_RANK");
    return wanted == NULL || (rank != NULL && strcmp(wanted, rank) == 0);
}

__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("MF_ALLOC_CALL");
    if (getenv("MF_ALLOC_LOG") == NULL || !is_mine()) {
        return;
    }
    failing = at != NULL ? atol(at) : 0;
    at = getenv("MF_ALLOC_FORK");
    if (at != NULL && sscanf(at, "%ld/%ld", &fork_first, &fork_step) != 2) {
        fork_step = 0;
    }
    all = getenv("MF_ALLOC_ALL") != NULL;
    table = __libc_calloc(SLOTS, sizeof *table);
    find_text();
    on = table != NULL && text_end != 0;
}

static void tell(const char *line, int length) {
    const char *log = getenv("MF_ALLOC_LOG");
    int file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0666);
    (void)!syscall(SYS_write, file, line, (size_t)length);
    syscall(SYS_close, file);
}

__attribute__((destructor)) static void end(void) {
    const void *by = NULL;
    char line[128];
    if (!on) {
        return;
    }
    on = false;
    for (int i = 0; i < SLOTS; i++) {
        if (table[i].block != NULL && table[i].caller != NULL) {
            by = by == NULL ? table[i].caller : by;
            kept++;
        }
    }
    int length =
        snprintf(line, sizeof line, "calls %ld failed %ld kept %ld by 0x%lx\n", calls, failed, kept,
                 by != NULL ? (unsigned long)((uintptr_t)by - text_begin) : 0);
    tell(line, length);
}

static bool is_own(const void *caller) {
    return (uintptr_t)caller >= text_begin && (uintptr_t)caller < text_end;
}

/* A file of its own in the place of an output, which begins with what went there before. */
static void redirect(int output, const char *name, long call) {
    char path[4096], block[4096];
    snprintf(path, sizeof path, "/proc/self/fd/%d", output);
    int before = open(path, O_RDONLY);
    snprintf(path, sizeof path, "%s.%s.%ld", getenv("MF_ALLOC_LOG"), name, call);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    for (ssize_t n; before >= 0 && (n = read(before, block, sizeof block)) > 0;) {
        (void)!write(file, block, (size_t)n);
    }
    close(before);
    dup2(file, output);
    close(file);
}

/* True in the child. By the system's call: to glibc's fork a child is another thread, which does
 * not hold the locks that its parent had taken for writing. */
static bool fork_off(long call) {
    struct stat tasks;
    char line[64];
    int status = -1;
    /* A folder's links are its folders and two. */
    const bool alone = stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink == 3;
    pid_t child = alone ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : -1;
    if (child == 0) {
        fork_step = 0;
        redirect(1, "out", call);
        redirect(2, "err", call);
        alarm(CHILD_S);
        return true;
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    tell(line, snprintf(line, sizeof line, "call %ld status %d\n", call, status));
    return false;
}

/* Is this the one that fails? */
static bool fails(const void *caller) {
    if (!on || !(all || is_own(caller))) {
        return false;
    }
    const long call = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    const bool turn = fork_step > 0 && call >= fork_first && (call - fork_first) % fork_step == 0;
    const bool fail = call == failing || (turn && fork_off(call));
    if (fail) {
        failed = 1;
        errno = ENOMEM;
    }
    return fail;
}

static size_t place_of(const void *block) {
    return (size_t)(((uintptr_t)block >> 4) * 0x9e3779b97f4a7c15u >> (64 - SLOT_BITS));
}

static void *put(void *block, const void *caller) {
    if (on && block != NULL && is_own(caller)) {
        pthread_mutex_lock(&lock);
        size_t i = place_of(block), n = 0;
        while (table[i].block != NULL && table[i].caller != NULL) {
            i = (i + 1) % SLOTS;
            if (++n == SLOTS) {
                abort();
            }
        }
        table[i] = (slot){block, caller};
        pthread_mutex_unlock(&lock);
    }
    return block;
}

/* A slot that was taken once stays in the way of a search for those behind it. */
static void take(const void *block) {
    if (!on || block == NULL) {
        return;
    }
    pthread_mutex_lock(&lock);
    for (size_t i = place_of(block), n = 0; n < SLOTS && table[i].block != NULL;
         i = (i + 1) % SLOTS, n++) {
        if (table[i].block == block && table[i].caller != NULL) {
            table[i].caller = NULL;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

void *malloc(size_t size) {
    const void *caller = __builtin_return_address(0);
    return fails(caller) ? NULL : put(__libc_malloc(size), caller);
}

void *calloc(size_t count, size_t size) {
    const void *caller = __builtin_return_address(0);
    return fails(caller) ? NULL : put(__libc_calloc(count, size), caller);
}

void *realloc(void *old, size_t size) {
    const void *caller = __builtin_return_address(0);
    if (fails(caller)) {
        return NULL;
    }
    take(old);
    return put(__libc_realloc(old, size), caller);
}

void *aligned_alloc(size_t align, size_t size) {
    const void *caller = __builtin_return_address(0);
    return fails(caller) ? NULL : put(__libc_memalign(align, size), caller);
}

int posix_memalign(void **out, size_t align, size_t size) {
    const void *caller = __builtin_return_address(0);
    *out = fails(caller) ? NULL : put(__libc_memalign(align, size), caller);
    return *out != NULL ? 0 : ENOMEM;
}

void free(void *block) {
    take(block);
    __libc_free(block);
}
