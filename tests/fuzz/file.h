/* file.h - for targets whose parser takes a path: the bytes as a file of a folder of this process,
 * which goes when the process ends. */
#ifndef MF_TESTS_FUZZ_FILE_H
#define MF_TESTS_FUZZ_FILE_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* File-level because atexit's functions take no argument. */
static char fuzz_folder_name[64], fuzz_file_name[4][128];
static int fuzz_file_count;

static inline void fuzz_folder_drop(void) {
    for (int i = 0; i < fuzz_file_count; i++) {
        unlink(fuzz_file_name[i]);
    }
    rmdir(fuzz_folder_name);
}

/* In memory where the system has such a place: targets write some 10^5 files. MF_FUZZ_FOLDER says
 * where, to remove it afterwards (scripts/fuzz.sh). */
static inline const char *fuzz_folder(void) {
    if (fuzz_folder_name[0] == '\0') {
        const char *said = getenv("MF_FUZZ_FOLDER");
        const char *in = said != NULL ? said : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(fuzz_folder_name, sizeof fuzz_folder_name, "%s/mf-fuzz-XXXXXX", in);
        if (mkdtemp(fuzz_folder_name) == NULL || atexit(fuzz_folder_drop) != 0) {
            exit(2);
        }
    }
    return fuzz_folder_name;
}

/* Path of the file `name`, which now holds these bytes. At most four names. */
static inline const char *fuzz_file(const char *name, const void *data, size_t size) {
    char path[128];
    int i = 0;
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    while (i < fuzz_file_count && strcmp(fuzz_file_name[i], path) != 0) {
        i++;
    }
    if (i == 4) {
        exit(2);
    }
    if (i == fuzz_file_count) {
        strcpy(fuzz_file_name[fuzz_file_count++], path);
    }
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, data, size) != (ssize_t)size || close(file) != 0) {
        exit(2);
    }
    return fuzz_file_name[i];
}

#endif
