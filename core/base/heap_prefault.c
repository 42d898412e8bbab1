/* heap_prefault.c - how glibc's heap grows, and pages that are there before they are written. */
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

/* Steps in which heaps grow, and what glibc maps for a heap of another thread, aligned. */
#define HEAP_B ((size_t)64 << 20)
/* Of each of two heaps: what the start of a plan leaves time for, half of what a search takes. */
#define WARM_B ((size_t)40 << 20)
/* At a time: other threads that ask for pages wait meanwhile. */
#define STEP_B ((size_t)2 << 20)

/* A search keeps what it finds, block by block, on several threads. The heap grows in large steps
 * for that: glibc's of other threads would otherwise ask the kernel for each page and stop each
 * other doing so. What nobody has written takes no memory. Large tables, most of which nobody
 * writes, stay apart, and what is free is not handed back only to be asked for again. */
void mf_heap_set_up(void) {
#ifdef __GLIBC__
    mallopt(M_TOP_PAD, (int)HEAP_B);
    mallopt(M_TRIM_THRESHOLD, (int)(8 * HEAP_B));
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
#endif
}

/* Pages of [begin, end), whose contents stay as they are. Kernels before 5.14 refuse. */
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

/* Another allocator's places, a sanitizer's for one, lie behind the break: nothing is done. */
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
