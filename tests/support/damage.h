/* damage.h - files on disk whose bits flip. */
#ifndef MF_TESTS_DAMAGE_H
#define MF_TESTS_DAMAGE_H

#include "tests/support/test.h"

#include <stdio.h>
#include <sys/stat.h>

static inline long damage_size_of(const char *path) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return (long)info.st_size;
}

/* Flips one bit of the byte at `at`. */
static inline void damage_flip(const char *path, long at, unsigned bit) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ (1 << bit), f);
    fclose(f);
}

#endif
