/* flag.h - a word that a signal handler or another thread sets to ask for an end. It is a volatile
 * int for whoever calls us; we read and write it atomically. */
#ifndef MF_CORE_FLAG_H
#define MF_CORE_FLAG_H

#include <stdbool.h>
#include <stddef.h>

/* NULL is never set. */
static inline bool mf_flag_is_set(const volatile int *flag) {
    return flag != NULL && __atomic_load_n(flag, __ATOMIC_RELAXED) != 0;
}

static inline void mf_flag_set(volatile int *flag, bool on) {
    __atomic_store_n(flag, on ? 1 : 0, __ATOMIC_RELAXED);
}

#endif
