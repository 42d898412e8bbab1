/* data_seal.h - the streams of a run are those that it began with, bit by bit. */
#ifndef MF_EXECUTOR_DATA_SEAL_H
#define MF_EXECUTOR_DATA_SEAL_H

#include "executor/comm/comm.h"
#include "executor/data/data_mix.h"

/* Seals of the streams (executor/files/block_checksums.h) in `folder`, stream-0.crc32c, ...: those
 * that are there when the run goes on (`resumes`), so that samples are checked before they are
 * used; else they are made, each rank taking its share of the blocks, and rank 0 writes them.
 * Collective, and so is the result. Errors: MF_INPUT for another stream, MF_IO, MF_NOMEM. */
mf_status mf_data_mix_seal(mf_data_mix *m, mf_comm *c, const char *folder, bool resumes, mf_err *e);

#endif
