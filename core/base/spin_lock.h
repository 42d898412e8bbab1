/* spin_lock.h - locks that are held for less time than a sleeping thread takes to wake up. */
#ifndef MF_CORE_SPIN_LOCK_H
#define MF_CORE_SPIN_LOCK_H

#include <pthread.h>

/* Looks so often before it sleeps, for 30 to 100 us: pausing takes 10 to 50 ns. */
enum { MF_SPIN_LOOKS = 2000 };

static inline void mf_spin_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* As pthread_mutex_lock. */
static inline void mf_spin_lock(pthread_mutex_t *lock) {
    for (int looks = 0; looks < MF_SPIN_LOOKS; looks++) {
        if (pthread_mutex_trylock(lock) == 0) {
            return;
        }
        mf_spin_pause();
    }
    pthread_mutex_lock(lock);
}

#endif
