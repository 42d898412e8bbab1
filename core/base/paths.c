/* paths.c - where the data that ships with moefold lies. */
#define _GNU_SOURCE /* dladdr1 */
#include "core/base/paths.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
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
static char said[PATH_MAX];           /* by mf_data_dir_set, before anything reads it */

static bool holds_models(const char *folder) {
    char path[PATH_MAX + 64];
    struct stat info;
    snprintf(path, sizeof path, "%s/models", folder);
    return stat(path, &info) == 0;
}

/* The file that this code was loaded from, program or library. */
static void find_self(char self[PATH_MAX]) {
    Dl_info info;
    struct link_map *library = NULL; /* a program has no name in it */
    if (dladdr1(installed, &info, (void **)&library, RTLD_DL_LINKMAP) != 0 && library != NULL &&
        library->l_name[0] != '\0' && realpath(library->l_name, self) != NULL) {
        return;
    }
    ssize_t length = readlink("/proc/self/exe", self, PATH_MAX - 1);
    self[length > 0 ? length : 0] = '\0';
}

/* PREFIX/bin/moefold, PREFIX/lib/libmoefold.so, PREFIX/lib/x86_64-linux-gnu/libmoefold.so:
 * share/moefold of PREFIX. A library in a Python package: `data` beside it. Else where it was
 * built. */
static void find_installed(void) {
    char self[PATH_MAX], beside[PATH_MAX + 32] = "";
    find_self(self);
    for (int up = 0; up < 3; up++) {
        char *slash = strrchr(self, '/');
        if (slash != NULL) {
            *slash = '\0';
        }
        snprintf(installed, sizeof installed, "%s/%s", self, up == 0 ? "data" : "share/moefold");
        if (holds_models(installed)) {
            return;
        }
        if (up == 1) {
            memcpy(beside, installed, sizeof beside);
        }
    }
    snprintf(installed, sizeof installed, "%s", holds_models(MF_DATA_DIR) ? MF_DATA_DIR : beside);
}

bool mf_data_dir_set(const char *folder) {
    if (strlen(folder) >= sizeof said || !holds_models(folder)) {
        return false;
    }
    snprintf(said, sizeof said, "%s", folder);
    return true;
}

const char *mf_data_dir(void) {
    const char *wanted = getenv("MOEFOLD_DATA");
    if (wanted != NULL && wanted[0] != '\0') {
        return wanted;
    }
    if (said[0] != '\0') {
        return said;
    }
    pthread_once(&once, find_installed);
    return installed;
}
