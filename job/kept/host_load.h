/* host_load.h - whose work a machine's cores do: this program's and its children's, or that of
 * others. What is measured on cores that others use holds for as long as they do.
 */
#ifndef MF_JOB_HOST_LOAD_H
#define MF_JOB_HOST_LOAD_H

#include <stdbool.h>

/* CPU seconds so far. */
typedef struct mf_host_load {
    double all_s; /* of all cores, since the machine started; 0 = unknown */
    double own_s; /* of this process and of its children that have ended */
} mf_host_load;

mf_host_load mf_host_load_now(void);

/* Share of others in what was done between two moments: 0 to 1, 0 where it is not known. */
double mf_host_load_of_others(const mf_host_load *from, const mf_host_load *to);

/* Do others have more than a quarter of the cores now? Watches them for 0.2 s. False where the
 * kernel does not say. */
bool mf_host_load_is_busy(void);

#endif
