/* A library to load in front of cuBLASLt (LD_PRELOAD): a fault of a GPU that comes once. Behind the
 * next product of the process whose rank is MF_FLIP_RANK ("-": of one that no launcher gave a rank)
 * once the file MF_FLIP_WHEN has MF_FLIP_BYTES bytes, the first numbers of its result are none,
 * unless the file MF_FLIP_DONE is there, which it makes: a run that begins again goes through. A
 * product that is only recorded for a graph is left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* As in cuda.h and cublasLt.h, which this is compiled without. */
typedef int (*memset_words)(unsigned long long to, unsigned word, size_t count, void *stream);
typedef int (*is_recorded)(void *stream, int *status);
typedef int (*multiply)(void *library, void *product, const void *alpha, const void *a, void *a_is,
                        const void *b, void *b_is, const void *beta, const void *c, void *c_is,
                        void *d, void *d_is, const void *way, void *scratch, size_t scratch_B,
                        void *stream);
int cublasLtMatmul(void *library, void *product, const void *alpha, const void *a, void *a_is,
                   const void *b, void *b_is, const void *beta, const void *c, void *c_is, void *d,
                   void *d_is, const void *way, void *scratch, size_t scratch_B, void *stream);

static bool is_mine(void) {
    static const char *const names[] = {"MOEFOLD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"};
    const char *wanted = getenv("MF_FLIP_RANK"), *own = "-";
    for (int i = 0; i < 3 && own[0] == '-'; i++) {
        own = getenv(names[i]) != NULL ? getenv(names[i]) : own;
    }
    return wanted != NULL && strcmp(wanted, own) == 0;
}

static bool is_due(void) {
    static int mine = -1;
    const char *when = getenv("MF_FLIP_WHEN"), *bytes = getenv("MF_FLIP_BYTES");
    struct stat found;
    mine = mine < 0 ? is_mine() : mine;
    return mine == 1 && when != NULL && bytes != NULL && stat(when, &found) == 0 &&
           found.st_size >= atoll(bytes);
}

/* Loaded already, by what asks for it; its names are not seen by everyone. */
static void *symbol_of(const char *library, const char *name) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    return handle != NULL ? dlsym(handle, name) : dlsym(RTLD_NEXT, name);
}

static void flip(void *d, void *stream) {
    memset_words set;
    is_recorded recorded;
    int status = 0;
    const char *done = getenv("MF_FLIP_DONE");
    *(void **)(void *)&set = symbol_of("libcuda.so.1", "cuMemsetD32Async");
    *(void **)(void *)&recorded = symbol_of("libcuda.so.1", "cuStreamIsCapturing");
    if (set == NULL || recorded == NULL || done == NULL || recorded(stream, &status) != 0 ||
        status != 0) {
        return;
    }
    const int file = open(done, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (file >= 0) {
        close(file);
        (void)set((unsigned long long)d, 0xffffffffu, 1, stream);
    }
}

int cublasLtMatmul(void *library, void *product, const void *alpha, const void *a, void *a_is,
                   const void *b, void *b_is, const void *beta, const void *c, void *c_is, void *d,
                   void *d_is, const void *way, void *scratch, size_t scratch_B, void *stream) {
    static multiply real;
    if (real == NULL) {
        *(void **)(void *)&real = symbol_of("libcublasLt.so.13", "cublasLtMatmul");
    }
    if (real == NULL) {
        *(void **)(void *)&real = symbol_of("libcublasLt.so.12", "cublasLtMatmul");
    }
    if (real == NULL) {
        return 1;
    }
    const int result = real(library, product, alpha, a, a_is, b, b_is, beta, c, c_is, d, d_is, way,
                            scratch, scratch_B, stream);
    if (result == 0 && is_due()) {
        flip(d, stream);
    }
    return result;
}
