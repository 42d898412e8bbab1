/* data_mix.c - weighted streams. */
#include "executor/data/data_mix.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct stream {
    char *path;
    double weight;
    int64_t samples; /* samples of a block that this stream gives */
    mf_data *data;
} stream;

struct mf_data_mix {
    int count;
    stream list[MF_DATA_MIX_MAX];
    uint8_t *of_slot;  /* [block] stream of a slot before it is shuffled: by stream */
    int64_t *start_of; /* [count] first slot of each stream */
};

/* --- the text ----------------------------------------------------------------------------------
 */

/* "0.3:path": the weight in front, when what stands before the first colon is a number. */
static bool split_weight(const char *text, double *weight, const char **path) {
    char *end = NULL;
    errno = 0;
    *weight = strtod(text, &end);
    if (end == text || *end != ':' || errno != 0) {
        return false;
    }
    *path = end + 1;
    return true;
}

static mf_status add_stream(mf_data_mix *m, const char *path, size_t length, double weight,
                            mf_err *e) {
    if (m->count == MF_DATA_MIX_MAX) {
        return mf_err_set(e, MF_USAGE, "more than %d streams", MF_DATA_MIX_MAX);
    }
    if (!(weight > 0.0) || !isfinite(weight) || length == 0) {
        return mf_err_set(e, MF_USAGE, "expected WEIGHT:PATH with a weight > 0, got \"%g:%.*s\"",
                          weight, (int)length, path);
    }
    stream *s = &m->list[m->count++];
    s->weight = weight;
    s->path = strndup(path, length);
    return s->path != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "data: out of memory");
}

static mf_status parse(mf_data_mix *m, const char *text, mf_err *e) {
    double weight;
    const char *path;
    if (!split_weight(text, &weight, &path)) {
        return add_stream(m, text, strlen(text), 1.0, e);
    }
    for (const char *at = text;;) {
        if (!split_weight(at, &weight, &path)) {
            return mf_err_set(e, MF_USAGE, "expected WEIGHT:PATH, got \"%s\"", at);
        }
        size_t length = strcspn(path, ",");
        mf_status status = add_stream(m, path, length, weight, e);
        if (status != MF_OK || path[length] == '\0') {
            return status;
        }
        at = path + length + 1;
    }
}

/* --- shares ------------------------------------------------------------------------------------
 */

/* Largest remainder: whole parts first, then one more to the streams with the largest rest. */
static mf_status share_block(mf_data_mix *m, mf_err *e) {
    double sum = 0.0, rest[MF_DATA_MIX_MAX];
    int64_t given = 0;
    for (int i = 0; i < m->count; i++) {
        sum += m->list[i].weight;
    }
    for (int i = 0; i < m->count; i++) {
        double exact = m->list[i].weight / sum * MF_DATA_MIX_BLOCK;
        m->list[i].samples = (int64_t)exact;
        rest[i] = exact - floor(exact);
        given += m->list[i].samples;
    }
    for (; given < MF_DATA_MIX_BLOCK; given++) {
        int most = 0;
        for (int i = 1; i < m->count; i++) {
            most = rest[i] > rest[most] ? i : most;
        }
        m->list[most].samples++;
        rest[most] = -1.0;
    }
    int64_t slot = 0;
    for (int i = 0; i < m->count; i++) {
        if (m->list[i].samples == 0) {
            return mf_err_set(e, MF_USAGE, "the weight of %s is below 1 sample in %d",
                              m->list[i].path, MF_DATA_MIX_BLOCK);
        }
        m->start_of[i] = slot;
        memset(m->of_slot + slot, i, (size_t)m->list[i].samples);
        slot += m->list[i].samples;
    }
    return MF_OK;
}

mf_status mf_data_mix_open(const char *text, int64_t vocab, mf_data_mix **out, mf_err *e) {
    *out = NULL;
    mf_data_mix *m = calloc(1, sizeof *m);
    if (m != NULL) {
        m->of_slot = calloc(MF_DATA_MIX_BLOCK, sizeof *m->of_slot);
        m->start_of = calloc(MF_DATA_MIX_MAX, sizeof *m->start_of);
    }
    if (m == NULL || m->of_slot == NULL || m->start_of == NULL) {
        mf_data_mix_close(m);
        return mf_err_set(e, MF_NOMEM, "data: out of memory");
    }
    mf_status status = parse(m, text, e);
    status = status == MF_OK ? share_block(m, e) : status;
    for (int i = 0; i < m->count && status == MF_OK; i++) {
        status = mf_data_open(m->list[i].path, vocab, &m->list[i].data, e);
    }
    if (status != MF_OK) {
        mf_data_mix_close(m);
        return status;
    }
    *out = m;
    return MF_OK;
}

mf_status mf_data_mix_check(const mf_data_mix *m, int64_t seq, mf_err *e) {
    for (int i = 0; i < m->count; i++) {
        if (mf_data_samples(m->list[i].data, seq) < 1) {
            return mf_err_set(e, MF_INPUT, "%s: %lld tokens, one sample takes %lld",
                              m->list[i].path, (long long)mf_data_tokens(m->list[i].data),
                              (long long)seq + 1);
        }
    }
    return MF_OK;
}

void mf_data_mix_close(mf_data_mix *m) {
    if (m == NULL) {
        return;
    }
    for (int i = 0; i < m->count; i++) {
        mf_data_close(m->list[i].data);
        free(m->list[i].path);
    }
    free(m->of_slot);
    free(m->start_of);
    free(m);
}

int mf_data_mix_streams(const mf_data_mix *m) {
    return m->count;
}

const mf_data *mf_data_mix_stream(const mf_data_mix *m, int i) {
    return m->list[i].data;
}

mf_status mf_data_mix_keep(mf_data_mix *m, int i, mf_block_checksums *sums, mf_err *e) {
    return mf_data_keep(m->list[i].data, sums, e);
}

const char *mf_data_mix_path(const mf_data_mix *m, int i) {
    return m->list[i].path;
}

int64_t mf_data_mix_share(const mf_data_mix *m, int i) {
    return m->list[i].samples;
}

/* --- samples -----------------------------------------------------------------------------------
 */

void mf_data_mix_place(const mf_data_mix *m, uint64_t seed, int64_t index, int *at,
                       int64_t *sample) {
    *at = 0;
    *sample = index;
    if (m->count == 1) {
        return;
    }
    int64_t block = index / MF_DATA_MIX_BLOCK;
    int64_t slot = mf_data_shuffled(~seed, block, MF_DATA_MIX_BLOCK, index % MF_DATA_MIX_BLOCK);
    *at = m->of_slot[slot];
    *sample = block * m->list[*at].samples + slot - m->start_of[*at];
}

mf_status mf_data_mix_sample(const mf_data_mix *m, const mf_data_order *order, int64_t index,
                             int32_t *tokens, mf_err *e) {
    int at;
    int64_t sample;
    mf_data_mix_place(m, order->seed, index, &at, &sample);
    mf_data_order own = *order;
    own.seed += (uint64_t)at * UINT64_C(0x9e3779b97f4a7c15);
    return mf_data_sample(m->list[at].data, &own, sample, tokens, e);
}
