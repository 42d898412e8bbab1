/* driver.h - a main() for fuzz targets that are built without clang's -fsanitize=fuzzer.
 *
 * Include it once in a target that defines LLVMFuzzerTestOneInput. Usage of the program:
 *     fuzz_x [FOLDER or FILE ...]     a missing folder is an empty one
 * It replays every seed file, then runs mutations of the seeds, numbered from MF_FUZZ_SEED (1), for
 * MF_FUZZ_SECONDS (2). Run number N is a function of N and the seeds alone, so a crash, which
 * prints "seed N", is repeated by MF_FUZZ_SEED=N MF_FUZZ_SECONDS=0. A run of 20 s counts as a hang.
 * A target may define MF_FUZZ_WORDS, a list of string literals that mutations insert, beforehand.
 *
 * main() is weak: with -fsanitize=fuzzer the one of libFuzzer wins, and ends without a failure
 * after MF_FUZZ_CPU_SECONDS of processor time (0: no limit).
 */
#ifndef MF_TESTS_FUZZ_DRIVER_H
#define MF_TESTS_FUZZ_DRIVER_H

#include <dirent.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef MF_FUZZ_WORDS
#define MF_FUZZ_WORDS                                                                              \
    "{", "}", "[", "]", ",", ":", "\"", "\\u0000", "\\ud800", "null", "true", "-1", "0", "1e999",  \
        "9007199254740993", "0.1", "\xef\xbb\xbf", "\xff", "\n", " "
#endif
#define MF_FUZZ_MAX_BYTES (1u << 17)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct fuzz_seed {
    char *name;
    uint8_t *data;
    size_t size;
} fuzz_seed;

/* What the handlers of a crash report; file-level because a signal handler takes no argument. */
static char fuzz_now[512] = "before the first run";

static void fuzz_report(void) {
    static const char head[] = "\nfuzz: failed at ";
    ssize_t ignored = write(2, head, sizeof head - 1);
    ignored = write(2, fuzz_now, strlen(fuzz_now));
    ignored = write(2, "\n", 1);
    (void)ignored;
}

static void fuzz_signal(int number) {
    fuzz_report();
    signal(number, SIG_DFL);
    raise(number);
}

/* Present when a sanitizer is linked in: those end the process without a signal. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

/* libFuzzer's own limit is of the clock on the wall, which a fuzzer that waits for a core does not
 * use. It ends, and counts what it did, on SIGUSR1. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *text = getenv("MF_FUZZ_CPU_SECONDS");
    const double seconds = text != NULL ? strtod(text, NULL) : 0.0;
    struct itimerspec limit = {.it_value = {.tv_sec = (time_t)seconds}};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t timer;
    (void)argc, (void)argv;
    if (seconds >= 1.0 && (timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) != 0 ||
                           timer_settime(timer, 0, &limit, NULL) != 0)) {
        fprintf(stderr, "fuzz: no timer of processor time\n");
        exit(2);
    }
    return 0;
}

static uint64_t fuzz_random(uint64_t *state) { /* splitmix64 */
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static size_t fuzz_below(uint64_t *state, size_t count) {
    return count == 0 ? 0 : (size_t)(fuzz_random(state) % count);
}

static void fuzz_add_file(fuzz_seed **seeds, size_t *count, const char *path) {
    FILE *file = fopen(path, "rb");
    fuzz_seed *bigger = realloc(*seeds, (*count + 1) * sizeof **seeds);
    if (file == NULL || bigger == NULL) {
        fprintf(stderr, "fuzz: cannot read %s\n", path);
        exit(2);
    }
    *seeds = bigger;
    fuzz_seed *seed = &bigger[(*count)++];
    seed->data = malloc(MF_FUZZ_MAX_BYTES);
    seed->name = malloc(strlen(path) + 1);
    if (seed->data == NULL || seed->name == NULL) {
        exit(2);
    }
    strcpy(seed->name, path);
    seed->size = fread(seed->data, 1, MF_FUZZ_MAX_BYTES, file);
    fclose(file);
}

static void fuzz_add_path(fuzz_seed **seeds, size_t *count, const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) {
        return;
    }
    if (!S_ISDIR(info.st_mode)) {
        fuzz_add_file(seeds, count, path);
        return;
    }
    struct dirent **entries;
    int n =
        scandir(path, &entries, NULL, alphasort); /* sorted: run N must not depend on the disk */
    for (int i = 0; i < n; i++) {
        char file[1024];
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.') {
            fuzz_add_path(seeds, count, file);
        }
        free(entries[i]);
    }
    if (n >= 0) {
        free(entries);
    }
}

/* Puts `count` bytes at `at`, as far as they fit. */
static size_t fuzz_insert(uint8_t *data, size_t size, size_t at, const void *bytes, size_t count) {
    count = count < MF_FUZZ_MAX_BYTES - size ? count : MF_FUZZ_MAX_BYTES - size;
    memmove(data + at + count, data + at, size - at);
    memmove(data + at, bytes, count);
    return size + count;
}

/* One random change; returns the new size. */
static size_t fuzz_mutate(uint8_t *data, size_t size, const fuzz_seed *seeds, size_t seed_count,
                          uint64_t *state) {
    static const char *const words[] = {MF_FUZZ_WORDS};
    static uint8_t copy[4096];
    size_t at = fuzz_below(state, size + 1), left = size - at;
    size_t span = 1 + fuzz_below(state, fuzz_below(state, 4) == 0 ? 512 : 8);
    size_t cut = span < left ? span : left;
    switch (fuzz_below(state, 8)) {
    case 0: /* one bit */
        if (left > 0) {
            data[at] ^= (uint8_t)(1u << fuzz_below(state, 8));
        }
        return size;
    case 1: /* one byte */
        if (left > 0) {
            data[at] = (uint8_t)fuzz_random(state);
        }
        return size;
    case 2: /* a digit: numbers are where limits hide */
        for (; at < size && (data[at] < '0' || data[at] > '9'); at++) {
        }
        if (at < size) {
            data[at] = (uint8_t)('0' + fuzz_below(state, 10));
        }
        return size;
    case 3: /* remove */
        memmove(data + at, data + at + cut, left - cut);
        return size - cut;
    case 4: /* repeat */
        memcpy(copy, data + at, cut);
        return fuzz_insert(data, size, at, copy, cut);
    case 5: { /* a word */
        const char *word = words[fuzz_below(state, sizeof words / sizeof words[0])];
        return fuzz_insert(data, size, at, word, strlen(word));
    }
    case 6: { /* a piece of a seed */
        if (seed_count == 0) {
            return size;
        }
        const fuzz_seed *other = &seeds[fuzz_below(state, seed_count)];
        size_t from = fuzz_below(state, other->size + 1);
        span = span < other->size - from ? span : other->size - from;
        return fuzz_insert(data, size, at, other->data + from, span);
    }
    default: /* truncated, now and then */
        return fuzz_below(state, 8) == 0 ? at : size;
    }
}

/* Runs the target on a block of exactly `size` bytes, so that a read past its end is seen. */
static void fuzz_run(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size > 0 ? size : 1);
    if (exact == NULL) {
        exit(2);
    }
    memcpy(exact, data, size);
    alarm(20);
    LLVMFuzzerTestOneInput(exact, size);
    alarm(0);
    free(exact);
}

static double fuzz_clock_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

__attribute__((weak)) int main(int argc, char **argv) {
    fuzz_seed *seeds = NULL;
    size_t count = 0;
    const char *text = getenv("MF_FUZZ_SECONDS");
    double limit_s = text != NULL ? strtod(text, NULL) : 2.0;
    text = getenv("MF_FUZZ_SEED");
    uint64_t first = text != NULL ? strtoull(text, NULL, 10) : 1, number = first;
    static const int fatal[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGALRM};
    if (__sanitizer_set_death_callback != NULL) {
        __sanitizer_set_death_callback(fuzz_report);
        signal(SIGALRM, fuzz_signal);
    } else {
        for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++) {
            signal(fatal[i], fuzz_signal);
        }
    }
    for (int i = 1; i < argc; i++) {
        fuzz_add_path(&seeds, &count, argv[i]);
    }
    fuzz_run((const uint8_t *)"", 0);
    for (size_t i = 0; i < count; i++) {
        snprintf(fuzz_now, sizeof fuzz_now, "seed file %s", seeds[i].name);
        fuzz_run(seeds[i].data, seeds[i].size);
    }
    uint8_t *data = malloc(MF_FUZZ_MAX_BYTES);
    if (data == NULL) {
        return 2;
    }
    double end_s = fuzz_clock_s() + limit_s;
    do {
        snprintf(fuzz_now, sizeof fuzz_now, "seed %llu", (unsigned long long)number);
        uint64_t state = number++;
        size_t size = 0;
        if (count > 0) {
            const fuzz_seed *base = &seeds[fuzz_below(&state, count)];
            memcpy(data, base->data, base->size);
            size = base->size;
        }
        for (size_t left = 1 + fuzz_below(&state, 8); left > 0; left--) {
            size = fuzz_mutate(data, size, seeds, count, &state);
        }
        fuzz_run(data, size);
    } while (fuzz_clock_s() < end_s);
    printf("fuzz: %zu seed files, seed %llu to %llu: no crash\n", count, (unsigned long long)first,
           (unsigned long long)(number - 1));
    for (size_t i = 0; i < count; i++) {
        free(seeds[i].name);
        free(seeds[i].data);
    }
    free(seeds);
    free(data);
    return 0;
}

#endif
