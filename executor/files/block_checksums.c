/* block_checksums.c - writes, reads and checks them. */
#include "executor/files/block_checksums.h"

#include "core/base/crc32c.h"
#include "executor/files/files.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LL(x) ((long long)(x))

enum { LINE_B = 9 }; /* eight digits and an end */

static mf_block_checksums *create(int64_t size_B, int64_t block_B) {
    mf_block_checksums *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->size_B = size_B;
    s->block_B = block_B;
    s->blocks = size_B / block_B + (size_B % block_B != 0);
    s->crc = calloc((size_t)s->blocks + 1, sizeof *s->crc);
    s->seen = calloc((size_t)s->blocks + 1, 1);
    if (s->crc == NULL || s->seen == NULL) {
        mf_block_checksums_destroy(s);
        return NULL;
    }
    return s;
}

mf_block_checksums *mf_block_checksums_create(int64_t size_B) {
    return create(size_B, MF_CHECKSUM_BLOCK_B);
}

void mf_block_checksums_destroy(mf_block_checksums *s) {
    if (s != NULL) {
        free(s->name);
        free(s->crc);
        free(s->seen);
        free(s);
    }
}

static uint32_t crc_of(const mf_block_checksums *s, const void *bytes, int64_t block) {
    int64_t from = block * s->block_B, left = s->size_B - from;
    return mf_crc32c(0, (const char *)bytes + from,
                     (size_t)(left < s->block_B ? left : s->block_B));
}

void mf_block_checksums_take(mf_block_checksums *s, const void *bytes, int64_t first,
                             int64_t step) {
    for (int64_t i = first; i < s->blocks; i += step) {
        s->crc[i] = crc_of(s, bytes, i);
        s->seen[i] = 1;
    }
}

/* --- as text -----------------------------------------------------------------------------------
 */

mf_status mf_block_checksums_write(const char *path, const mf_block_checksums *s, mf_err *e) {
    size_t size = 128 + (size_t)s->blocks * LINE_B;
    char *text = malloc(size);
    if (text == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    }
    int n = snprintf(text, size, "moefold-seal 1\nsize %lld\nblock %lld\n", LL(s->size_B),
                     LL(s->block_B));
    size_t at = (size_t)n;
    for (int64_t i = 0; i < s->blocks; i++) {
        at += (size_t)snprintf(text + at, size - at, "%08x\n", s->crc[i]);
    }
    uint32_t all = mf_crc32c(0, text, at);
    at += (size_t)snprintf(text + at, size - at, "seal %08x\n", all);
    mf_status status = mf_file_write(path, text, at, e);
    free(text);
    return status;
}

/* Eight lower-case hexadecimal digits and the end of the line. */
static bool read_crc(const char *at, const char *end, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 8; i++) {
        char c = at + i < end ? at[i] : '\0';
        bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
        if (!digit && !letter) {
            return false;
        }
        *out = *out << 4 | (uint32_t)(digit ? c - '0' : c - 'a' + 10);
    }
    return at + 8 < end && at[8] == '\n';
}

/* "KEY NUMBER" and the end of the line; where the next begins, NULL when it is not so. */
static const char *read_number(const char *at, const char *end, const char *key, int64_t *out) {
    size_t n = strlen(key);
    if ((size_t)(end - at) < n || memcmp(at, key, n) != 0) {
        return NULL;
    }
    *out = 0;
    int digits = 0;
    for (at += n; at < end && *at >= '0' && *at <= '9' && digits < 18; at++, digits++) {
        *out = 10 * *out + (*at - '0');
    }
    return digits > 0 && at < end && *at == '\n' ? at + 1 : NULL;
}

mf_status mf_block_checksums_parse(const char *name, const char *text, size_t size,
                                   mf_block_checksums **out, mf_err *e) {
    const char *end = text + size, *at = text;
    int64_t version = 0, size_B = 0, block_B = 0;
    uint32_t stands, all;
    *out = NULL;
    at = read_number(at, end, "moefold-seal ", &version);
    at = at != NULL && version == 1 ? read_number(at, end, "size ", &size_B) : NULL;
    at = at != NULL ? read_number(at, end, "block ", &block_B) : NULL;
    if (at == NULL || block_B < 1) {
        return mf_err_set(e, MF_INPUT, "%s: offset 0: not a seal", name);
    }
    int64_t blocks = size_B / block_B + (size_B % block_B != 0), left = end - at;
    if (left < 14 || (left - 14) % LINE_B != 0 || (left - 14) / LINE_B != blocks) {
        return mf_err_set(e, MF_INPUT, "%s: offset %lld: no checksums of %lld blocks", name,
                          LL(at - text), LL(blocks));
    }
    const char *last = at + blocks * LINE_B;
    all = mf_crc32c(0, text, (size_t)(last - text));
    if (memcmp(last, "seal ", 5) != 0 || !read_crc(last + 5, end, &stands) || stands != all) {
        return mf_err_set(e, MF_INPUT, "%s: offset %lld: the seal itself is damaged", name,
                          LL(last - text));
    }
    mf_block_checksums *s = create(size_B, block_B);
    if (s == NULL || (s->name = strdup(name)) == NULL) {
        mf_block_checksums_destroy(s);
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", name);
    }
    for (int64_t i = 0; i < blocks; i++, at += LINE_B) {
        if (!read_crc(at, end, &s->crc[i])) {
            mf_block_checksums_destroy(s);
            return mf_err_set(e, MF_INPUT, "%s: offset %lld: not a checksum", name, LL(at - text));
        }
    }
    *out = s;
    return MF_OK;
}

mf_status mf_block_checksums_read(const char *path, mf_block_checksums **out, mf_err *e) {
    unsigned char *bytes = NULL;
    size_t size = 0;
    int64_t file_B = 0;
    *out = NULL;
    if (access(path, F_OK) != 0) {
        return errno == ENOENT ? MF_OK : mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
    }
    mf_status status = mf_file_read(path, (size_t)1 << 32, &bytes, &size, &file_B, e);
    status = status == MF_OK ? mf_block_checksums_parse(path, (const char *)bytes, size, out, e)
                             : status;
    free(bytes);
    return status;
}

/* --- checking ----------------------------------------------------------------------------------
 */

mf_status mf_block_checksums_check(mf_block_checksums *s, const char *file, int64_t offset,
                                   const void *bytes, int64_t from, int64_t to, mf_err *e) {
    for (int64_t i = from / s->block_B; i < s->blocks && i * s->block_B < to; i++) {
        uint32_t crc = s->seen[i] ? s->crc[i] : crc_of(s, bytes, i);
        if (crc != s->crc[i]) {
            int64_t first = i * s->block_B, last = first + s->block_B;
            return mf_err_set(
                e, MF_INPUT,
                "%s: offset %lld: the CRC-32C of the bytes from there to %lld is %08x, %s says "
                "%08x: the file is damaged, or another",
                file, LL(offset + first), LL(offset + (last < s->size_B ? last : s->size_B)), crc,
                s->name != NULL ? s->name : "its seal", s->crc[i]);
        }
        s->seen[i] = 1;
    }
    return MF_OK;
}
