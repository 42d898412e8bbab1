/* data_checksums.h - checks that a resumed run reads the same bytes as when it began. */
#ifndef MF_EXECUTOR_DATA_CHECKSUMS_H
#define MF_EXECUTOR_DATA_CHECKSUMS_H

#include "executor/comm/comm.h"
#include "executor/data/data_mix.h"

/* Gives each stream its checksums (executor/files/block_checksums.h), stream-0.crc32c and so on in
 * `folder`, by which samples are checked before use. Reads them when the run resumes and they
 * are there; otherwise makes them, each rank computing as many of the blocks as any other, and rank
 * 0 writes them. Collective, with the same result on all ranks. Errors: MF_INPUT for another
 * stream, MF_IO, MF_NOMEM. */
mf_status mf_data_mix_checksum(mf_data_mix *m, mf_comm *c, const char *folder, bool resumes,
                               mf_err *e);

#endif
