/* table.c - memory mapped from the system, in whole large pages. */
#define _DEFAULT_SOURCE /* madvise, MAP_ANONYMOUS */
#include "core/base/table.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Sanitizers see what their own allocator gives out. */
#if defined(__SANITIZE_ADDRESS__)
#define MAPS 0
#elif defined(__has_feature)
#define MAPS (!__has_feature(address_sanitizer))
#else
#define MAPS 1
#endif

#define LARGE_B ((size_t)2 << 20)
/* In front of the table: what was mapped. It keeps the table's lines apart. */
typedef union head {
    struct {
        void *begin;
        size_t size_B;
    } mapped;
    char line[64];
} head;

void *mf_table_create(size_t size_B) {
    const size_t need_B = (size_B + sizeof(head) + LARGE_B - 1) / LARGE_B * LARGE_B;
    const size_t all_B = need_B + LARGE_B;
    if (!MAPS || size_B < LARGE_B / 2) {
        head *h = calloc(1, sizeof *h + size_B);
        /* cppcheck-suppress memleak ; mf_table_destroy finds it in front of the table */
        return h ? h + 1 : NULL;
    }
    char *begin = mmap(NULL, all_B, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) {
        return NULL;
    }
    char *at = begin + (LARGE_B - (uintptr_t)begin % LARGE_B) % LARGE_B;
#ifdef MADV_HUGEPAGE
    (void)madvise(at, need_B, MADV_HUGEPAGE);
#endif
    head *h = (head *)at;
    h->mapped.begin = begin;
    h->mapped.size_B = all_B;
    return h + 1;
}

void mf_table_destroy(void *table) {
    if (table == NULL) {
        return;
    }
    head *h = (head *)table - 1;
    if (h->mapped.begin == NULL) {
        free(h);
    } else {
        (void)munmap(h->mapped.begin, h->mapped.size_B);
    }
}
