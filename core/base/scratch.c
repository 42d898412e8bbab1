/* scratch.c - lists of pieces by size, one set for each thread. */
#include "core/base/scratch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

/* Where the sanitizer watches, every piece comes from its allocator. */
#if defined(__SANITIZE_ADDRESS__)
#define KEEPS false
#elif defined(__has_feature)
#define KEEPS (!__has_feature(address_sanitizer))
#else
#define KEEPS true
#endif

/* Pieces of 1, 2, .. 64 KiB; of each size a thread keeps so many, a MiB in all. */
enum { SIZES = 7, LEAST_B = 1024, KEPT = 8 };

typedef struct piece {
    union {
        struct piece *next; /* while it is kept */
        int size;           /* while it is used: its place among the sizes, or SIZES: larger */
        max_align_t align;
    } is;
} piece;

typedef struct shelf {
    piece *kept[SIZES];
    int count[SIZES];
    bool known; /* its thread empties it at its end */
} shelf;

static _Thread_local shelf mine;
static pthread_key_t at_end;
static bool has_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void empty(void *self) {
    shelf *s = self;
    for (int k = 0; k < SIZES; k++) {
        for (piece *x = s->kept[k]; x != NULL;) {
            piece *next = x->is.next;
            free(x);
            x = next;
        }
    }
    *s = (shelf){0};
}

/* The thread that ends the process, or unloads the library, has no end of its own before. */
static void end(void) {
    empty(&mine);
    (void)pthread_key_delete(at_end);
}

static void make_key(void) {
    has_key = pthread_key_create(&at_end, empty) == 0;
    if (has_key && atexit(end) != 0) {
        has_key = false;
        (void)pthread_key_delete(at_end);
    }
}

static int size_for(size_t size_B) {
    int k = KEEPS ? 0 : SIZES;
    while (k < SIZES && size_B > (size_t)LEAST_B << k) {
        k++;
    }
    return k;
}

void *mf_scratch_take(size_t size_B) {
    const int k = size_for(size_B);
    piece *x = NULL;
    if (k < SIZES && mine.kept[k] != NULL) {
        x = mine.kept[k];
        mine.kept[k] = x->is.next;
        mine.count[k]--;
    } else {
        x = malloc(sizeof *x + (k < SIZES ? (size_t)LEAST_B << k : size_B));
    }
    if (x == NULL) {
        return NULL;
    }
    x->is.size = k;
    return x + 1;
}

void mf_scratch_give(void *p) {
    if (p == NULL) {
        return;
    }
    piece *x = (piece *)p - 1;
    const int k = x->is.size;
    if (k == SIZES || mine.count[k] == KEPT) {
        free(x);
        return;
    }
    if (!mine.known) {
        pthread_once(&once, make_key);
        mine.known = has_key && pthread_setspecific(at_end, &mine) == 0;
    }
    if (!mine.known) { /* nobody would empty it */
        free(x);
        return;
    }
    x->is.next = mine.kept[k];
    mine.kept[k] = x;
    mine.count[k]++;
}
