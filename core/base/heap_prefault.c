/* heap_prefault.c - sets how glibc's heap grows, and pre-faults its pages. */
#define _DEFAULT_SOURCE /* madvise, sbrk */
#include "core/base/heap_prefault.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#if defined(__GLIBC__) && defined(MADV_POPULATE_WRITE)
#define WARMS true
#else
#define WARMS false
#define MADV_POPULATE_WRITE 0
#endif

/* The step by which heaps grow; glibc also maps and aligns heaps of other threads by it. */
#define HEAP_B ((size_t)64 << 20)
/* Bytes to pre-fault in each of two heaps: as much as fits into the start-up of `plan`, half of
 * what a search uses. */
#define WARM_B ((size_t)40 << 20)
/* Bytes of one call: other threads that need pages wait for it. */
#define STEP_B ((size_t)2 << 20)

/* Several threads of a search allocate block after block. So heaps grow in large steps: glibc's
 * heaps of other threads would otherwise ask the kernel for each page, and the threads would wait
 * for each other. Pages that are never written take no memory. Large tables, which are mostly not
 * written, are mapped separately (table.h): where a heap has space for them, calloc() writes them
 * all. Free memory is not returned to the kernel only to be requested again. */
void mf_heap_set_up(void) {
#ifdef __GLIBC__
    mallopt(M_TOP_PAD, (int)HEAP_B);
    mallopt(M_TRIM_THRESHOLD, (int)(8 * HEAP_B));
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
#endif
}

/* Pre-faults the pages of [begin, end) and keeps their contents. Kernels before 5.14 refuse. */
static void hand_out(char *begin, char *end) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), last = (uintptr_t)end / page * page;
    for (uintptr_t at = ((uintptr_t)begin + page - 1) / page * page; at < last; at += STEP_B) {
        size_t size = last - at < STEP_B ? last - at : STEP_B;
        if (madvise((void *)at, size, MADV_POPULATE_WRITE) != 0) {
            return;
        }
    }
}

static void *warm(void *self) {
    const mf_heap_prefault *w = self;
    char *own = malloc(1); /* begins this thread's heap, which the next thread takes over */
    if (own != NULL) {
        char *heap = own - (uintptr_t)own % HEAP_B;
        hand_out(own, heap + WARM_B);
    }
    free(own);
    hand_out(w->begin, w->end);
    return NULL;
}

/* Another allocator (a sanitizer's, for example) allocates beyond the break: then it does nothing.
 */
void mf_heap_begin_prefault(mf_heap_prefault *w, int threads) {
    char *here = malloc(1);
    w->begin = here;
    w->end = WARMS ? sbrk(0) : NULL;
    w->runs = false;
    free(here);
    bool beside = threads != 1 && sysconf(_SC_NPROCESSORS_ONLN) > 1;
    if (beside && w->begin != NULL && w->begin < w->end) {
        size_t left_B = (size_t)(w->end - w->begin);
        w->end = w->begin + (left_B < WARM_B ? left_B : WARM_B);
        w->runs = pthread_create(&w->thread, NULL, warm, w) == 0;
    }
}

void mf_heap_end_prefault(mf_heap_prefault *w) {
    if (w->runs) {
        pthread_join(w->thread, NULL);
    }
    w->runs = false;
}
