/* data.c - token streams: mapping, checking, splitting into samples, shuffling. */
#include "executor/data/data.h"

#include "core/base/text.h"
#include "executor/files/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LL(x) ((long long)(x))

typedef struct mapped {
    unsigned char *bytes;
    size_t size;
} mapped;

struct mf_data {
    char *path; /* of what holds the tokens */
    mapped file;
    mf_safetensors *set;
    const unsigned char *tokens;
    int element_B;
    bool is_signed;
    int64_t count, vocab;
    int64_t offset;                   /* of the tokens in the file */
    mf_block_checksums *checksums[2]; /* beside the file; kept */
};

static void unmap(mapped *m) {
    if (m->bytes != NULL) {
        munmap(m->bytes, m->size);
    }
    *m = (mapped){0};
}

static mf_status map(const char *path, mapped *out, mf_err *e) {
    struct stat info;
    *out = (mapped){0};
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return mf_err_set(e, MF_INPUT, "%s: %s", path, strerror(errno));
    }
    mf_status status = MF_OK;
    if (fstat(fd, &info) != 0) {
        status = mf_err_set(e, MF_INPUT, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = mf_err_set(e, MF_INPUT, "%s: not a file", path);
    } else if (info.st_size == 0) {
        status = mf_err_set(e, MF_INPUT, "%s: offset 0: the file is empty", path);
    } else {
        void *at = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at == MAP_FAILED) {
            status = mf_err_set(e, MF_INPUT, "%s: %s", path, strerror(errno));
        } else {
            *out = (mapped){at, (size_t)info.st_size};
        }
    }
    close(fd);
    return status;
}

static int64_t little(const unsigned char *at, int bytes) {
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        v = v << 8 | at[i];
    }
    return (int64_t)v;
}

/* --- Megatron's index ----------------------------------------------------------------------------
 * "MMIDIDX\0\0", version 1 (8 bytes), element type (1), sequences (8), documents (8), then lengths
 * int32 [sequences], byte offsets int64 [sequences], document bounds int64 [documents]
 * (Megatron-LM, megatron/core/datasets/indexed_dataset.py). */

#define INDEX_HEADER_B 34

static mf_status index_sequences(const char *name, const unsigned char *b, int64_t bin_B,
                                 mf_data_index *out, mf_err *e) {
    const unsigned char *length = b + INDEX_HEADER_B, *place = length + 4 * out->sequences;
    int64_t at_B = 0;
    for (int64_t i = 0; i < out->sequences; i++) {
        int32_t n = (int32_t)(uint32_t)little(length + 4 * i, 4);
        int64_t here = little(place + 8 * i, 8);
        if (n < 0 || here != at_B || (int64_t)n * out->element_B > bin_B - at_B) {
            return mf_err_set(e, MF_INPUT,
                              "%s: offset %lld: sequence %lld (%d tokens at byte %lld) does not "
                              "follow byte %lld of the %lld in its .bin",
                              name, LL(place + 8 * i - b), LL(i), n, LL(here), LL(at_B), LL(bin_B));
        }
        at_B += (int64_t)n * out->element_B;
    }
    if (at_B != bin_B) {
        return mf_err_set(e, MF_INPUT, "%s: offset %lld: sequences cover %lld of the %lld bytes",
                          name, LL(INDEX_HEADER_B), LL(at_B), LL(bin_B));
    }
    out->tokens = at_B / out->element_B;
    return MF_OK;
}

mf_status mf_data_index_parse(const char *name, const void *bytes, size_t size, int64_t bin_B,
                              mf_data_index *out, mf_err *e) {
    /* Element types by code; 0: not for tokens. */
    static const struct {
        int element_B;
        bool is_signed;
    } types[9] = {{0, false}, {1, false}, {1, true},  {2, true}, {4, true},
                  {8, true},  {0, false}, {0, false}, {2, false}};
    const unsigned char *b = bytes;
    *out = (mf_data_index){0};
    if (size < INDEX_HEADER_B || memcmp(b, "MMIDIDX\0\0", 9) != 0) {
        return mf_err_set(e, MF_INPUT, "%s: offset 0: not an index of Megatron-LM", name);
    }
    if (little(b + 9, 8) != 1) {
        return mf_err_set(e, MF_INPUT, "%s: offset 9: version %lld, expected 1", name,
                          LL(little(b + 9, 8)));
    }
    if (b[17] > 8 || types[b[17]].element_B == 0) {
        return mf_err_set(e, MF_INPUT, "%s: offset 17: element type %d holds no tokens", name,
                          b[17]);
    }
    out->element_B = types[b[17]].element_B;
    out->is_signed = types[b[17]].is_signed;
    out->sequences = little(b + 18, 8);
    out->documents = little(b + 26, 8);
    int64_t payload_B = (int64_t)size - INDEX_HEADER_B;
    if (out->sequences < 0 || out->documents < 0 || out->sequences > payload_B / 12 ||
        out->documents > payload_B / 8 || 12 * out->sequences + 8 * out->documents != payload_B) {
        return mf_err_set(e, MF_INPUT,
                          "%s: offset 18: %lld sequences and %lld documents in %lld bytes", name,
                          LL(out->sequences), LL(out->documents), LL(payload_B));
    }
    mf_status status = index_sequences(name, b, bin_B, out, e);
    int64_t last = 0;
    for (int64_t i = 0; i < out->documents && status == MF_OK; i++) {
        const unsigned char *at = b + INDEX_HEADER_B + 12 * out->sequences + 8 * i;
        int64_t bound = little(at, 8);
        if (bound < last || bound > out->sequences || (i == 0 && bound != 0)) {
            return mf_err_set(e, MF_INPUT, "%s: offset %lld: document %lld begins at sequence %lld",
                              name, LL(at - b), LL(i), LL(bound));
        }
        last = bound;
    }
    return status;
}

/* --- opening
 * -------------------------------------------------------------------------------------- */

static int64_t token_at(const mf_data *d, int64_t i) {
    const unsigned char *at = d->tokens + i * d->element_B;
    int64_t v = little(at, d->element_B);
    if (d->is_signed && d->element_B < 8) {
        int64_t sign = INT64_C(1) << (8 * d->element_B - 1);
        v = (v ^ sign) - sign;
    }
    return v;
}

static mf_status open_megatron(mf_data *d, const char *prefix, int length, mf_err *e) {
    char path[4096];
    mapped idx = {0};
    mf_data_index index;
    snprintf(path, sizeof path, "%.*s.bin", length, prefix);
    d->path = strdup(path);
    mf_status status = map(path, &d->file, e);
    if (status == MF_OK) {
        snprintf(path, sizeof path, "%.*s.idx", length, prefix);
        status = map(path, &idx, e);
    }
    if (status == MF_OK) {
        status = mf_data_index_parse(path, idx.bytes, idx.size, (int64_t)d->file.size, &index, e);
    }
    unmap(&idx);
    if (status == MF_OK) {
        d->tokens = d->file.bytes;
        d->element_B = index.element_B;
        d->is_signed = index.is_signed;
        d->count = index.tokens;
    }
    return status;
}

static mf_status open_tensor(mf_data *d, const char *path, mf_err *e) {
    mf_status status = mf_safetensors_open(path, &d->set, e);
    if (status != MF_OK) {
        return status;
    }
    const mf_st_tensor *t = mf_safetensors_find(d->set, "tokens");
    if (t == NULL || t->dtype != MF_ST_I32) {
        return mf_err_set(e, MF_INPUT, "%s: no int32 tensor \"tokens\"", path);
    }
    d->path = strdup(path);
    d->tokens = t->data;
    d->offset = t->offset;
    d->element_B = 4;
    d->is_signed = true;
    d->count = t->count;
    return mf_safetensors_verify(d->set, 0, 1, e);
}

static mf_status open_text(mf_data *d, const char *path, mf_err *e) {
    d->path = strdup(path);
    mf_status status = map(path, &d->file, e);
    d->tokens = d->file.bytes;
    d->element_B = 1;
    d->count = (int64_t)d->file.size;
    return status;
}

static mf_status open_checksums(mf_data *d, mf_err *e) {
    char path[4096];
    mf_block_checksums *sums = NULL;
    if (snprintf(path, sizeof path, "%s.crc32c", d->path) >= (int)sizeof path) {
        return MF_OK;
    }
    mf_status status = mf_block_checksums_read(path, &sums, e);
    if (status == MF_OK && sums != NULL) {
        if (sums->size_B == mf_data_size_B(d)) {
            d->checksums[0] = sums;
            return MF_OK;
        }
        status = mf_err_set(e, MF_INPUT, "%s: %lld bytes of tokens, %s was made for %lld", d->path,
                            LL(mf_data_size_B(d)), path, LL(sums->size_B));
        mf_block_checksums_destroy(sums);
    }
    return status;
}

mf_status mf_data_open(const char *path, int64_t vocab, mf_data **out, mf_err *e) {
    *out = NULL;
    mf_data *d = calloc(1, sizeof *d);
    if (d == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    }
    char index[4096];
    struct stat info;
    size_t length = strlen(path);
    bool named = mf_text_ends_with(path, ".bin") || mf_text_ends_with(path, ".idx");
    snprintf(index, sizeof index, "%s.idx", path);
    mf_status status;
    if (named || (stat(path, &info) != 0 && stat(index, &info) == 0)) {
        status = open_megatron(d, path, (int)(named ? length - 4 : length), e);
    } else if (mf_text_ends_with(path, ".safetensors")) {
        status = open_tensor(d, path, e);
    } else {
        status = open_text(d, path, e);
    }
    d->vocab = vocab;
    if (status == MF_OK && d->path == NULL) {
        status = mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    }
    status = status == MF_OK ? open_checksums(d, e) : status;
    if (status != MF_OK) {
        mf_data_close(d);
        return status;
    }
    *out = d;
    return MF_OK;
}

void mf_data_close(mf_data *d) {
    if (d == NULL) {
        return;
    }
    unmap(&d->file);
    mf_safetensors_close(d->set);
    mf_block_checksums_destroy(d->checksums[0]);
    mf_block_checksums_destroy(d->checksums[1]);
    free(d->path);
    free(d);
}

const void *mf_data_bytes(const mf_data *d) {
    return d->tokens;
}

int64_t mf_data_size_B(const mf_data *d) {
    return d->count * d->element_B;
}

mf_status mf_data_keep(mf_data *d, mf_block_checksums *sums, mf_err *e) {
    if (sums->size_B != mf_data_size_B(d)) {
        return mf_err_set(e, MF_INPUT, "%s: %lld bytes of tokens, %s was made for %lld", d->path,
                          LL(mf_data_size_B(d)), sums->name != NULL ? sums->name : "a seal",
                          LL(sums->size_B));
    }
    mf_block_checksums_destroy(d->checksums[1]);
    d->checksums[1] = sums;
    return MF_OK;
}

int64_t mf_data_tokens(const mf_data *d) {
    return d->count;
}

int64_t mf_data_samples(const mf_data *d, int64_t seq) {
    return d->count > 0 ? (d->count - 1) / seq : 0;
}

/* --- order
 * ---------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t v) { /* SplitMix64's finaliser (Steele, Lea & Flood 2014) */
    v ^= v >> 30;
    v *= 0xbf58476d1ce4e5b9ull;
    v ^= v >> 27;
    v *= 0x94d049bb133111ebull;
    return v ^ v >> 31;
}

/* A Feistel network over the smallest even number of bits that holds count, walked until it lands
 * inside: a permutation of [0, count) in constant memory (Black & Rogaway 2002). */
int64_t mf_data_shuffled(uint64_t seed, int64_t pass, int64_t count, int64_t index) {
    int half = 1;
    while (half < 31 && (INT64_C(1) << (2 * half)) < count) {
        half++;
    }
    uint64_t mask = (UINT64_C(1) << half) - 1, v = (uint64_t)index;
    uint64_t key = mix(seed + 0x9e3779b97f4a7c15ull * (uint64_t)(pass + 1));
    do {
        uint64_t left = v >> half, right = v & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t next = left ^ (mix(right + key + (round << 56)) & mask);
            left = right;
            right = next;
        }
        v = left << half | right;
    } while (v >= (uint64_t)count);
    return (int64_t)v;
}

mf_status mf_data_sample(const mf_data *d, const mf_data_order *order, int64_t index,
                         int32_t *tokens, mf_err *e) {
    int64_t samples = mf_data_samples(d, order->seq);
    if (samples < 1) {
        return mf_err_set(e, MF_INPUT, "%s: %lld tokens, one sample takes %lld", d->path,
                          LL(d->count), LL(order->seq + 1));
    }
    int64_t at = index % samples;
    if (order->shuffle) {
        at = mf_data_shuffled(order->seed, index / samples, samples, at);
    }
    int64_t from_B = at * order->seq * d->element_B;
    for (int k = 0; k < 2; k++) {
        mf_status status =
            d->checksums[k] == NULL
                ? MF_OK
                : mf_block_checksums_check(d->checksums[k], d->path, d->offset, d->tokens, from_B,
                                           from_B + (order->seq + 1) * d->element_B, e);
        if (status != MF_OK) {
            return status;
        }
    }
    for (int64_t i = 0; i <= order->seq; i++) {
        int64_t v = token_at(d, at * order->seq + i);
        if (v < 0 || v >= d->vocab) {
            return mf_err_set(
                e, MF_INPUT, "%s: token %lld at offset %lld is outside the vocabulary of %lld",
                d->path, LL(v), LL(d->offset + (at * order->seq + i) * d->element_B), LL(d->vocab));
        }
        tokens[i] = (int32_t)v;
    }
    return MF_OK;
}
