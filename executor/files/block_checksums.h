/* block_checksums.h - a checksum for each block of a file: a changed bit is found before it is
 * used, and the message names its block.
 *
 * They are text: "moefold-seal 1", "size BYTES", "block BYTES", the CRC-32C of each block as eight
 * hexadecimal digits a line, and "seal" with the CRC-32C of all text before it. A block is checked
 * when its bytes are first asked for.
 */
#ifndef MF_EXECUTOR_BLOCK_CHECKSUMS_H
#define MF_EXECUTOR_BLOCK_CHECKSUMS_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

#define MF_CHECKSUM_BLOCK_B (INT64_C(1) << 20)

typedef struct mf_block_checksums {
    char *name; /* of the file that it was read from; NULL: of none */
    int64_t size_B, block_B, blocks;
    uint32_t *crc;       /* [blocks] */
    unsigned char *seen; /* [blocks] 1: looked at, and right */
} mf_block_checksums;

/* For `size_B` bytes; all checksums 0. NULL: out of memory. */
mf_block_checksums *mf_block_checksums_create(int64_t size_B);
void mf_block_checksums_destroy(mf_block_checksums *s);
/* Fills blocks first, first + step, ... from the bytes. */
void mf_block_checksums_take(mf_block_checksums *s, const void *bytes, int64_t first, int64_t step);

/* Errors: MF_INPUT with the offset of what is wrong. */
mf_status mf_block_checksums_parse(const char *name, const char *text, size_t size,
                                   mf_block_checksums **out, mf_err *e);
/* *out is NULL when there is no such file. Errors: as mf_block_checksums_parse; MF_IO. */
mf_status mf_block_checksums_read(const char *path, mf_block_checksums **out, mf_err *e);
mf_status mf_block_checksums_write(const char *path, const mf_block_checksums *s, mf_err *e);

/* Are bytes [from, to) what they were? `bytes` are all of them; `file` and `offset`, the place of
 * the first of them in it, are for the error: MF_INPUT. */
mf_status mf_block_checksums_check(mf_block_checksums *s, const char *file, int64_t offset,
                                   const void *bytes, int64_t from, int64_t to, mf_err *e);

#endif
