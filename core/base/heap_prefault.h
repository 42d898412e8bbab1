/* heap_prefault.h - sets glibc's heap up for searches. With other C libraries it does nothing. */
#ifndef MF_BASE_HEAP_PREFAULT_H
#define MF_BASE_HEAP_PREFAULT_H

#include <pthread.h>
#include <stdbool.h>

/* Call it before anything is allocated. */
void mf_heap_set_up(void);

/* Pre-faults heap pages for a search on a second thread while the command starts up, which uses one
 * core: page faults during the search cost it 4 % of its time. */
typedef struct mf_heap_prefault {
    char *begin, *end; /* the free part of the heap that the first thread uses */
    pthread_t thread;
    bool runs;
} mf_heap_prefault;
/* threads: of the search, 0: one a core. With one thread it does nothing. */
void mf_heap_begin_prefault(mf_heap_prefault *w, int threads);
/* Waits for the thread; the next thread that starts then takes over its heap. */
void mf_heap_end_prefault(mf_heap_prefault *w);

#endif
