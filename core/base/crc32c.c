/* crc32c.c - eight bytes at a time: by the instruction that x86-64 processors have for it, from
 * tables elsewhere (slicing-by-8: Kounavis & Berry 2005). */
#include "core/base/crc32c.h"

#include <pthread.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* reflected */

static uint32_t table[8][256]; /* written once, then only read */

static void fill_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t v = i;
        for (int k = 0; k < 8; k++) {
            v = v >> 1 ^ (v & 1 ? POLYNOMIAL : 0);
        }
        table[0][i] = v;
    }
    for (int k = 1; k < 8; k++) {
        for (int i = 0; i < 256; i++) {
            table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
        }
    }
}

uint32_t mf_crc32c_by_tables(uint32_t before, const void *bytes, size_t size) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_table);
    const unsigned char *at = bytes;
    uint32_t v = ~before;
    for (; size >= 8; size -= 8, at += 8) {
        v ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        v = table[7][v & 255] ^ table[6][v >> 8 & 255] ^ table[5][v >> 16 & 255] ^
            table[4][v >> 24] ^ table[3][at[4]] ^ table[2][at[5]] ^ table[1][at[6]] ^
            table[0][at[7]];
    }
    for (; size > 0; size--, at++) {
        v = v >> 8 ^ table[0][(v ^ *at) & 255];
    }
    return ~v;
}

#if defined(__x86_64__) && defined(__GNUC__)
static __attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t before, const void *bytes,
                                                                 size_t size) {
    const unsigned char *at = bytes;
    uint64_t v = ~before;
    for (; size >= 8; size -= 8, at += 8) {
        uint64_t eight;
        memcpy(&eight, at, sizeof eight);
        v = __builtin_ia32_crc32di(v, eight);
    }
    uint32_t rest = (uint32_t)v;
    for (; size > 0; size--, at++) {
        rest = __builtin_ia32_crc32qi(rest, *at);
    }
    return ~rest;
}

uint32_t mf_crc32c(uint32_t before, const void *bytes, size_t size) {
    return __builtin_cpu_supports("sse4.2") ? by_instruction(before, bytes, size)
                                            : mf_crc32c_by_tables(before, bytes, size);
}
#else
uint32_t mf_crc32c(uint32_t before, const void *bytes, size_t size) {
    return mf_crc32c_by_tables(before, bytes, size);
}
#endif
