/* rank_registry.c - a page shared by a launcher and its ranks: a file without a name, which the
 * ranks open through the launcher's own descriptor. */
#include "executor/ranks/rank_registry.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#define VARIABLE "MOEFOLD_ROLL"

typedef struct slot {
    atomic_int process; /* 0: not there yet */
    atomic_int left;
    char phase[40];
} slot;

typedef struct page {
    int64_t ranks;
    atomic_int reported, failed;
    slot of[];
} page;

struct mf_rank_registry {
    page *all;
    size_t size_B;
    int file;   /* of the launcher; -1 */
    int64_t me; /* of a rank; -1 */
    slot gone;  /* the first that the launcher missed */
    int64_t gone_rank;
};

static mf_rank_registry *map(int file, size_t size_B) {
    mf_rank_registry *r = calloc(1, sizeof *r);
    void *at =
        r != NULL ? mmap(NULL, size_B, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (at == MAP_FAILED) {
        free(r);
        return NULL;
    }
    *r = (mf_rank_registry){.all = at, .size_B = size_B, .file = -1, .me = -1, .gone_rank = -1};
    return r;
}

mf_status mf_rank_registry_create(int64_t ranks, mf_rank_registry **out, mf_err *e) {
    char path[] = "/tmp/moefold-XXXXXX", name[64];
    size_t size_B = sizeof(page) + (size_t)ranks * sizeof(slot);
    *out = NULL;
    int file = mkstemp(path);
    if (file < 0) {
        return mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
    }
    unlink(path);
    mf_rank_registry *r = ftruncate(file, (off_t)size_B) == 0 ? map(file, size_B) : NULL;
    if (r == NULL) {
        close(file);
        return mf_err_set(e, MF_NOMEM, "mpirun: out of memory");
    }
    r->file = file;
    r->all->ranks = ranks;
    snprintf(name, sizeof name, "/proc/%lld/fd/%d", (long long)getpid(), file);
    setenv(VARIABLE, name, 1);
    *out = r;
    return MF_OK;
}

static int64_t own_rank(void) {
    static const char *const names[] = {"MOEFOLD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK",
                                        "PMI_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text != NULL) {
            return strtoll(text, NULL, 10);
        }
    }
    return -1;
}

mf_rank_registry *mf_rank_registry_join(void) {
    const char *name = getenv(VARIABLE);
    int64_t rank = own_rank();
    int file = name != NULL && rank >= 0 ? open(name, O_RDWR | O_CLOEXEC) : -1;
    off_t size = file >= 0 ? lseek(file, 0, SEEK_END) : 0;
    mf_rank_registry *r = size >= (off_t)sizeof(page) ? map(file, (size_t)size) : NULL;
    if (file >= 0) {
        close(file);
    }
    if (r != NULL && rank >= r->all->ranks) {
        mf_rank_registry_destroy(r);
        return NULL;
    }
    if (r != NULL) {
        r->me = rank;
#ifdef __linux__
        prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
        mf_rank_registry_phase(r, "step 0, MPI_Init");
        atomic_store(&r->all->of[rank].process, (int)getpid());
    }
    return r;
}

void mf_rank_registry_phase(mf_rank_registry *r, const char *phase) {
    if (r != NULL && r->me >= 0) {
        slot *s = &r->all->of[r->me];
        snprintf(s->phase, sizeof s->phase, "%s", phase);
    }
}

void mf_rank_registry_leave(mf_rank_registry *r) {
    if (r != NULL && r->me >= 0) {
        atomic_store(&r->all->of[r->me].left, 1);
    }
}

void mf_rank_registry_reported(mf_rank_registry *r) {
    if (r != NULL) {
        atomic_store(&r->all->reported, 1);
    }
}

void mf_rank_registry_failed(mf_rank_registry *r) {
    if (r != NULL) {
        atomic_store(&r->all->failed, 1);
    }
}

bool mf_rank_registry_has_lost(const mf_rank_registry *r) {
    return r != NULL && (atomic_load(&r->all->reported) != 0 || atomic_load(&r->all->failed) != 0);
}

void mf_rank_registry_destroy(mf_rank_registry *r) {
    if (r == NULL) {
        return;
    }
    munmap(r->all, r->size_B);
    if (r->file >= 0) {
        close(r->file);
        unsetenv(VARIABLE);
    }
    free(r);
}

bool mf_rank_registry_look(mf_rank_registry *r) {
    for (int64_t i = 0; r != NULL && r->gone_rank < 0 && i < r->all->ranks; i++) {
        slot *s = &r->all->of[i];
        int process = atomic_load(&s->process);
        if (process != 0 && atomic_load(&s->left) == 0 && kill((pid_t)process, 0) != 0 &&
            errno == ESRCH) {
            r->gone_rank = i;
            atomic_store(&r->gone.process, process);
            memcpy(r->gone.phase, s->phase, sizeof s->phase);
        }
    }
    return r != NULL && r->gone_rank >= 0;
}

bool mf_rank_registry_line(mf_rank_registry *r, char *out, size_t size) {
    if (r == NULL || atomic_load(&r->all->reported) != 0) {
        return false;
    }
    for (int64_t i = 0; i < r->all->ranks; i++) {
        if (atomic_load(&r->all->of[i].process) == 0) { /* so it was this one */
            snprintf(out, size, "rank %lld is gone: step 0, before it began", (long long)i);
            return true;
        }
    }
    if (!mf_rank_registry_look(r)) {
        return false;
    }
    snprintf(out, size, "rank %lld (process %d) is gone: %s", (long long)r->gone_rank,
             atomic_load(&r->gone.process), r->gone.phase);
    return true;
}
