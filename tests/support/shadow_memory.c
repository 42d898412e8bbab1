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

static const shadow_room *find(const shadow *x, const char *p) {
    for (int i = 0; i < x->rooms; i++) {
        if (p >= x->room[i].base && p < x->room[i].base + x->room[i].mapped_B) {
            return &x->room[i];
        }
    }
    return NULL;
}

static void touched(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    for (int i = 0; i < WATCHED; i++) {
        const shadow_room *r = watched[i] != NULL ? find(watched[i], info->si_addr) : NULL;
        if (r != NULL && r->device) {
            char text[256];
            int n = snprintf(text, sizeof text,
                             "shadow: the host touched device memory: byte %lld of allocation %d "
                             "(%lld bytes), after \"%s\"\n",
                             (long long)((char *)info->si_addr - r->base),
                             (int)(r - watched[i]->room), (long long)r->size_B, watched[i]->label);
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
    for (int i = 0; i < x->rooms && !x->o.unguarded; i++) {
        if (x->room[i].device && mprotect(x->room[i].base, (size_t)x->room[i].mapped_B, access)) {
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

/* --- rooms --------------------------------------------------------------------------------------
 */

mf_status shadow_allocate(shadow *x, int64_t size_B, bool device, void **out, mf_err *e) {
    const int64_t page_B = (int64_t)sysconf(_SC_PAGESIZE);
    int64_t room_B = mf_align_B(size_B > 0 ? size_B : 1);
    int64_t mapped_B = (room_B + page_B - 1) / page_B * page_B;
    *out = NULL;
    mf_status status = shadow_refuse_capture(x, "memory is allocated", e);
    if (status != MF_OK) {
        return status;
    }
    if (x->rooms == x->rooms_room) {
        x->rooms_room = 2 * x->rooms_room + 8;
        shadow_room *more = realloc(x->room, (size_t)x->rooms_room * sizeof *more);
        if (more == NULL) {
            return mf_err_set(e, MF_NOMEM, "shadow: out of memory");
        }
        x->room = more;
    }
    int access = device && !x->o.unguarded && x->unlocked == 0 ? PROT_NONE : PROT_READ | PROT_WRITE;
    void *base = mmap(NULL, (size_t)mapped_B, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return mf_err_set(e, MF_NOMEM, "shadow: no %lld bytes of memory", (long long)mapped_B);
    }
    x->room[x->rooms++] = (shadow_room){base, room_B, mapped_B, device};
    *out = base;
    return MF_OK;
}

/* Rooms keep their numbers. */
void shadow_release(shadow *x, void *memory) {
    for (int i = 0; i < x->rooms && memory != NULL; i++) {
        if (x->room[i].base == memory) {
            munmap(memory, (size_t)x->room[i].mapped_B);
            x->room[i] = (shadow_room){0};
        }
    }
}

void shadow_release_all(shadow *x) {
    for (int i = 0; i < x->rooms; i++) {
        if (x->room[i].base != NULL) {
            munmap(x->room[i].base, (size_t)x->room[i].mapped_B);
        }
    }
    free(x->room);
}

const shadow_room *shadow_room_of(const shadow *x, const void *p, int64_t size_B) {
    const char *at = p;
    for (int i = 0; i < x->rooms; i++) {
        const shadow_room *r = &x->room[i];
        if (r->base != NULL && at >= r->base && at + size_B <= r->base + r->size_B) {
            return r;
        }
    }
    return NULL;
}

int64_t shadow_place(const mf_device *d, const void *p, int64_t *offset) {
    const shadow *x = shadow_of(d);
    const shadow_room *r = shadow_room_of(x, p, 0);
    *offset = r != NULL ? (const char *)p - r->base : 0;
    return r != NULL && r->device ? r - x->room : -1;
}
