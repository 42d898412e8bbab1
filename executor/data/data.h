/* data.h - token streams to train on: Megatron .bin/.idx pairs, text as bytes, int32 tensors.
 *
 * A stream is divided into samples: sample j is tokens [j*S, j*S + S], both ends included (the last
 * label of one is the first token of the next). With shuffling, the samples of each pass over the
 * stream come in an order drawn from (seed, pass); the order is a function of the sample's number
 * alone, so that every rank of every layout sees the same stream and training resumes anywhere.
 * Files are mapped and checked before use: when checksums PATH.crc32c
 * (executor/files/block_checksums.h) is in the same folder as the tokens, each block is compared
 * with it before its first sample is read. A stream is immutable and may be read from several
 * threads.
 */
#ifndef MF_EXECUTOR_DATA_H
#define MF_EXECUTOR_DATA_H

#include "core/base/status.h"
#include "executor/files/block_checksums.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mf_data mf_data;

/* Opens `path`: a Megatron prefix or its .bin or .idx (documents follow each other without a gap),
 * a .safetensors file with an int32 tensor "tokens", or else a text file, one token a byte. Every
 * token must be below `vocab`. The caller closes *out. Errors: MF_INPUT naming file and offset. */
mf_status mf_data_open(const char *path, int64_t vocab, mf_data **out, mf_err *e);
void mf_data_close(mf_data *d);

int64_t mf_data_tokens(const mf_data *d);
/* The tokens as they stand in the file. */
const void *mf_data_bytes(const mf_data *d);
int64_t mf_data_size_B(const mf_data *d);
/* Adds other checksums that samples are checked by; the stream owns it unless there is an error.
 * Errors: MF_INPUT when it is for another size. */
mf_status mf_data_keep(mf_data *d, mf_block_checksums *sums, mf_err *e);
/* Samples of `seq` tokens (and one more) that a pass over the stream holds. */
int64_t mf_data_samples(const mf_data *d, int64_t seq);

typedef struct mf_data_order {
    int64_t seq;
    uint64_t seed;
    bool shuffle;
} mf_data_order;

/* Sample `index`, counted from the start of training, over as many passes as it takes: seq + 1
 * tokens. Errors: MF_INPUT when the stream is shorter than one sample, when a token is outside the
 * vocabulary, when bytes are not what their checksums say. */
mf_status mf_data_sample(const mf_data *d, const mf_data_order *order, int64_t index,
                         int32_t *tokens, mf_err *e);

/* Position of item `index` of `count` in pass `pass`: a permutation of [0, count). */
int64_t mf_data_shuffled(uint64_t seed, int64_t pass, int64_t count, int64_t index);

/* Checks an .idx held in memory against the size of its .bin; gives the element type's bytes, the
 * tokens, and whether elements are signed. For fuzzing. Errors: MF_INPUT with the offset. */
typedef struct mf_data_index {
    int element_B;
    bool is_signed;
    int64_t tokens, sequences, documents;
} mf_data_index;
mf_status mf_data_index_parse(const char *name, const void *bytes, size_t size, int64_t bin_B,
                              mf_data_index *out, mf_err *e);

#endif
