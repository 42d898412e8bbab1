/* cuda_load.c - loads the CUDA side when it is asked for. */
#include "executor/device/cuda_side.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_B = 4096 };

/* The folder of the program. */
static bool own_folder(char *out, size_t size) {
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    char *slash = NULL;
    if (n > 0) {
        out[n] = '\0';
        slash = strrchr(out, '/');
    }
    if (slash != NULL) {
        *slash = '\0';
    }
    return slash != NULL;
}

static void *open_library(char *tried, size_t size) {
    static const char *const place[] = {"", "/../lib/moefold"};
    char folder[PATH_B], path[PATH_B + 64];
    const char *given = getenv("MOEFOLD_CUDA_LIBRARY");
    if (given != NULL) {
        snprintf(tried, size, "%s", given);
        return dlopen(given, RTLD_NOW | RTLD_LOCAL);
    }
    void *library = NULL;
    snprintf(tried, size, "libmoefold_cuda.so");
    for (size_t i = 0; i < 2 && library == NULL && own_folder(folder, sizeof folder); i++) {
        snprintf(path, sizeof path, "%s%s/libmoefold_cuda.so", folder, place[i]);
        if (access(path, R_OK) == 0) {
            snprintf(tried, size, "%s", path);
            return dlopen(path, RTLD_NOW | RTLD_LOCAL);
        }
    }
    return library;
}

mf_status mf_cuda_side_load(const mf_cuda_side **out, mf_err *e) {
    static const mf_cuda_side *loaded;
    char tried[PATH_B + 64];
    *out = loaded;
    if (loaded != NULL) {
        return MF_OK;
    }
    void *library = open_library(tried, sizeof tried);
    if (library == NULL) {
        const char *why = dlerror(); /* names the file that it could not open */
        return why != NULL ? mf_err_set(e, MF_LIBRARY, "%s", why)
                           : mf_err_set(e, MF_LIBRARY,
                                        "%s is not beside the program: it is built where nvcc, "
                                        "cuDNN and NCCL are",
                                        tried);
    }
    const mf_cuda_side *(*find)(void) = NULL;
    void *symbol = dlsym(library, MF_CUDA_SIDE_SYMBOL);
    memcpy(&find, &symbol, sizeof find);
    const mf_cuda_side *side = find != NULL ? find() : NULL;
    if (side == NULL || side->abi != MF_CUDA_SIDE_ABI) {
        dlclose(library);
        return mf_err_set(e, MF_LIBRARY, "%s: built from another version than this program", tried);
    }
    *out = loaded = side;
    return MF_OK;
}
