/* heap_prefault.h - glibc's heap, set up for searches. Elsewhere these do nothing. */
#ifndef MF_BASE_HEAP_PREFAULT_H
#define MF_BASE_HEAP_PREFAULT_H

#include <pthread.h>
#include <stdbool.h>

/* Before anything is allocated. */
void mf_heap_set_up(void);

/* Has the kernel hand out memory that a search will write, beside the start of the command, which
 * keeps one core busy: taken page by page it costs a search 4 % of its time. */
typedef struct mf_heap_prefault {
    char *begin, *end; /* what is free of the heap that the first thread takes from */
    pthread_t thread;
    bool runs;
} mf_heap_prefault;
/* threads of the search to come, 0: one a core. With one, on whatever core, nothing is done. */
void mf_heap_begin_prefault(mf_heap_prefault *w, int threads);
/* Waits for it, so that the next thread takes over the other heap. */
void mf_heap_end_prefault(mf_heap_prefault *w);

#endif
