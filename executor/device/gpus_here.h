/* gpus_here.h - which GPUs this machine has, and whether they can be used. */
#ifndef MF_EXECUTOR_GPUS_HERE_H
#define MF_EXECUTOR_GPUS_HERE_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* GPUs that this process sees, and the first one's name as its driver says it ("NVIDIA H200"). 0
 * where there is none or the CUDA side cannot be loaded: *why says which. Not thread-safe. */
int mf_gpus_here(char *name, size_t size, mf_err *why);

/* Has this machine a driver for GPUs, whether they can be used or not? */
bool mf_gpus_have_driver(void);

#endif
