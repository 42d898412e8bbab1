/* data_mix.h - draws samples from several token streams by weight.
 *
 * In every block of MF_DATA_MIX_BLOCK samples each stream has a fixed number of them, its share by
 * largest remainder, in an order drawn from (seed, block). Which stream gives sample i, and which
 * of its samples, is thus a function of i alone: the same on every rank of every layout, and
 * training resumes anywhere.
 */
#ifndef MF_EXECUTOR_DATA_MIX_H
#define MF_EXECUTOR_DATA_MIX_H

#include "executor/data/data.h"

#define MF_DATA_MIX_BLOCK 4096
#define MF_DATA_MIX_MAX 64

typedef struct mf_data_mix mf_data_mix;

/* `text`: one stream's path, or "WEIGHT:PATH,WEIGHT:PATH,..." (weights are positive; their sum
 * does not matter). Each path as mf_data_open takes it. The caller closes *out. Errors: MF_USAGE
 * for the text, MF_INPUT for what is opened. */
mf_status mf_data_mix_open(const char *text, int64_t vocab, mf_data_mix **out, mf_err *e);
void mf_data_mix_close(mf_data_mix *m);
/* Has every stream a sample of seq tokens? Errors: MF_INPUT naming the one that has not. */
mf_status mf_data_mix_check(const mf_data_mix *m, int64_t seq, mf_err *e);

int mf_data_mix_streams(const mf_data_mix *m);
const mf_data *mf_data_mix_stream(const mf_data_mix *m, int i);
/* mf_data_keep of stream i. */
mf_status mf_data_mix_keep(mf_data_mix *m, int i, mf_block_checksums *sums, mf_err *e);
const char *mf_data_mix_path(const mf_data_mix *m, int i);
/* Samples of a block that stream i gives; MF_DATA_MIX_BLOCK with one stream. */
int64_t mf_data_mix_share(const mf_data_mix *m, int i);

/* Which stream gives sample `index`, and which of its samples that is. */
void mf_data_mix_place(const mf_data_mix *m, uint64_t seed, int64_t index, int *stream,
                       int64_t *sample);
/* As mf_data_sample; every stream is shuffled by a seed of its own. */
mf_status mf_data_mix_sample(const mf_data_mix *m, const mf_data_order *order, int64_t index,
                             int32_t *tokens, mf_err *e);

#endif
