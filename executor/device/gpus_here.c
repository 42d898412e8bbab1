/* gpus_here.c - asks the CUDA side, and looks for the driver. */
#include "executor/device/gpus_here.h"

#include "executor/device/cuda_side.h"

#include <unistd.h>

int mf_gpus_here(char *name, size_t size, mf_err *why) {
    const mf_cuda_side *side = NULL;
    int gpus = 0;
    name[0] = '\0';
    mf_status status = mf_cuda_side_load(&side, why);
    status = status == MF_OK ? side->count(&gpus, why) : status;
    if (status == MF_OK && gpus == 0) {
        mf_err_set(why, MF_USAGE, "no GPU is here");
    }
    return status == MF_OK && gpus > 0 && side->name(0, name, size, why) == MF_OK ? gpus : 0;
}

bool mf_gpus_have_driver(void) {
    return access("/dev/nvidiactl", F_OK) == 0;
}
