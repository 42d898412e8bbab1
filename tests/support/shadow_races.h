/* shadow_races.h - pairs of recorded work that touch the same bytes, one of them writing, and that
 * neither their queues nor order() nor a wait of the host puts one behind the other. */
#ifndef MF_TESTS_SHADOW_RACES_H
#define MF_TESTS_SHADOW_RACES_H

#include "tests/support/shadow_device.h"

typedef struct shadow_race {
    int64_t first, second; /* places in the recording */
    const char *at;        /* the first byte that they share, */
    int64_t bytes;         /* and so many */
    bool first_writes, second_writes;
} shadow_race;

/* Every pair once, by its first shared byte: as many as there is space for; returns how many there
 * are. After a wait, of a device that records. */
int64_t shadow_find_races(const mf_device *d, shadow_race *out, int64_t most);
/* Is recorded work `second` begun once `first`, entered before, has ended? */
bool shadow_ordered(const mf_device *d, int64_t first, int64_t second);
/* "gemm (position 2 fc1 F) on queue 0 writes and copy (...) on queue 5 reads 256 bytes from ..." */
void shadow_race_text(const mf_device *d, const shadow_race *r, char *text, size_t size);

#endif
