/* shadow_memory.c - memory that the host must not touch, and pinned memory that it may. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "tests/support/shadow_private.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* --- a host that touches it ---------------------------------------------------------------------
 */

/* A signal has no other way to its devices. */
enum { WATCHED = 8 };
static shadow *watched[WATCHED];
static struct sigaction before_us;

static const shadow_allocation *find(const shadow *x, const char *p) {
    for (int i = 0; i < x->allocations; i++) {
        if (p >= x->allocation[i].base && p < x->allocation[i].base + x->allocation[i].mapped_B) {
            return &x->allocation[i];
        }
    }
    return NULL;
}

static void touched(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    for (int i = 0; i < WATCHED; i++) {
        const shadow_allocation *r = watched[i] != NULL ? find(watched[i], info->si_addr) : NULL;
        if (r != NULL && r->device) {
            char text[256];
            int n = snprintf(text, sizeof text,
                             "shadow: the host touched device memory: byte %lld of allocation %d "
                             "(%lld bytes), after \"%s\"\n",
                             (long long)((char *)info->si_addr - r->base),
                             (int)(r - watched[i]->allocation), (long long)r->size_B,
                             watched[i]->label);
            if (write(STDERR_FILENO, text, (size_t)n) < n) {
                _exit(1);
            }
            _exit(SHADOW_TOUCHED);
        }
    }
    sigaction(SIGSEGV, &before_us, NULL); /* not ours: it faults again, as it would without us */
}

void shadow_watch(shadow *x) {
    struct sigaction a = {.sa_sigaction = touched, .sa_flags = SA_SIGINFO}, before;
    sigemptyset(&a.sa_mask);
    for (int i = 0; i < WATCHED; i++) {
        if (watched[i] == NULL) {
            watched[i] = x;
            sigaction(SIGSEGV, &a, &before);
            if (!(before.sa_flags & SA_SIGINFO) || before.sa_sigaction != touched) {
                before_us = before;
            }
            return;
        }
    }
}

void shadow_unwatch(shadow *x) {
    bool any = false;
    for (int i = 0; i < WATCHED; i++) {
        watched[i] = watched[i] == x ? NULL : watched[i];
        any |= watched[i] != NULL;
    }
    if (!any && before_us.sa_handler != NULL) {
        sigaction(SIGSEGV, &before_us, NULL);
    }
}

static void protect(shadow *x, int access) {
    for (int i = 0; i < x->allocations && !x->o.unguarded; i++) {
        if (x->allocation[i].device &&
            mprotect(x->allocation[i].base, (size_t)x->allocation[i].mapped_B, access)) {
            perror("shadow: mprotect");
            abort();
        }
    }
}

void shadow_unlock(shadow *x) {
    if (x->unlocked++ == 0) {
        protect(x, PROT_READ | PROT_WRITE);
    }
}

void shadow_lock(shadow *x) {
    if (--x->unlocked == 0) {
        protect(x, PROT_NONE);
    }
}

/* --- allocations
 * --------------------------------------------------------------------------------------
 */

mf_status shadow_allocate(shadow *x, int64_t size_B, bool device, void **out, mf_err *e) {
    const int64_t page_B = (int64_t)sysconf(_SC_PAGESIZE);
    int64_t aligned_B = mf_align_B(size_B > 0 ? size_B : 1);
    int64_t mapped_B = (aligned_B + page_B - 1) / page_B * page_B;
    *out = NULL;
    mf_status status = shadow_refuse_capture(x, "memory is allocated", e);
    if (status != MF_OK) {
        return status;
    }
    if (x->allocations == x->allocations_max) {
        x->allocations_max = 2 * x->allocations_max + 8;
        shadow_allocation *more = realloc(x->allocation, (size_t)x->allocations_max * sizeof *more);
        if (more == NULL) {
            return mf_err_set(e, MF_NOMEM, "shadow: out of memory");
        }
        x->allocation = more;
    }
    int access = device && !x->o.unguarded && x->unlocked == 0 ? PROT_NONE : PROT_READ | PROT_WRITE;
    void *base = mmap(NULL, (size_t)mapped_B, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return mf_err_set(e, MF_NOMEM, "shadow: no %lld bytes of memory", (long long)mapped_B);
    }
    x->allocation[x->allocations++] = (shadow_allocation){base, aligned_B, mapped_B, device};
    *out = base;
    return MF_OK;
}

/* Places keep their numbers. */
void shadow_release(shadow *x, void *memory) {
    for (int i = 0; i < x->allocations && memory != NULL; i++) {
        if (x->allocation[i].base == memory) {
            munmap(memory, (size_t)x->allocation[i].mapped_B);
            x->allocation[i] = (shadow_allocation){0};
        }
    }
}

void shadow_release_all(shadow *x) {
    for (int i = 0; i < x->allocations; i++) {
        if (x->allocation[i].base != NULL) {
            munmap(x->allocation[i].base, (size_t)x->allocation[i].mapped_B);
        }
    }
    free(x->allocation);
}

const shadow_allocation *shadow_allocation_of(const shadow *x, const void *p, int64_t size_B) {
    const char *at = p;
    for (int i = 0; i < x->allocations; i++) {
        const shadow_allocation *r = &x->allocation[i];
        if (r->base != NULL && at >= r->base && at + size_B <= r->base + r->size_B) {
            return r;
        }
    }
    return NULL;
}

int64_t shadow_place(const mf_device *d, const void *p, int64_t *offset) {
    const shadow *x = shadow_of(d);
    const shadow_allocation *r = shadow_allocation_of(x, p, 0);
    *offset = r != NULL ? (const char *)p - r->base : 0;
    return r != NULL && r->device ? r - x->allocation : -1;
}
