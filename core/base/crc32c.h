/* crc32c.h - CRC-32C (Castagnoli, RFC 3720 appendix B.4): checksum of checkpoints and of TFRecords.
 */
#ifndef MF_CORE_CRC32C_H
#define MF_CORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Checksum of `size` bytes behind those that gave `before` (0: none). */
uint32_t mf_crc32c(uint32_t before, const void *bytes, size_t size);

/* The same without the processor's instruction: what any processor can, and what tests hold the
 * instruction against. */
uint32_t mf_crc32c_by_tables(uint32_t before, const void *bytes, size_t size);

#endif
