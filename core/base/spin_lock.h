/* spin_lock.h - locks that are held briefly: who waits looks again and again before it sleeps. */
#ifndef MF_CORE_SPIN_LOCK_H
#define MF_CORE_SPIN_LOCK_H

#include <pthread.h>

/* So often (`plan` of DeepSeek-V3 on 1,024 H100 with two threads takes 2 % less than where it
 * sleeps at once). */
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
