/* paths.c - where the data that ships with moefold lies. */
#include "core/base/paths.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MF_DATA_DIR
#define MF_DATA_DIR ""
#endif
#ifndef PATH_MAX
#define PATH_MAX 4096
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char installed[PATH_MAX + 32]; /* written once, then only read */

static bool holds_models(const char *folder) {
    char path[PATH_MAX + 64];
    struct stat info;
    snprintf(path, sizeof path, "%s/models", folder);
    return stat(path, &info) == 0;
}

/* Beside the program that was installed; else where it was built. */
static void find_installed(void) {
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    for (int up = 0; up < 2; up++) { /* PREFIX/bin/moefold -> PREFIX */
        char *slash = strrchr(self, '/');
        if (slash != NULL) {
            *slash = '\0';
        }
    }
    snprintf(installed, sizeof installed, "%s/share/moefold", self);
    if (!holds_models(installed) && holds_models(MF_DATA_DIR)) {
        snprintf(installed, sizeof installed, "%s", MF_DATA_DIR);
    }
}

const char *mf_data_dir(void) {
    const char *wanted = getenv("MOEFOLD_DATA");
    if (wanted != NULL && wanted[0] != '\0') {
        return wanted;
    }
    pthread_once(&once, find_installed);
    return installed;
}
