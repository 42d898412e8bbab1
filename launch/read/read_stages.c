/* read_stages.c - Megatron-LM's notation of the layers of virtual stages: letters E, t, m, L for
 * embedding, layer, MTP layer and head, "|" between stages, "t*4" and "(tt|)*3" for repetition.
 */
#include "launch/read/read.h"

#include "launch/write/write.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MOST 16384

/* Reads "*12" at *at; 1 where there is none. */
static long times_of(const char **at) {
    char *end = NULL;
    long times = 1;
    if (**at == '*') {
        times = strtol(*at + 1, &end, 10);
        *at = end;
    }
    return times;
}

static bool repeat(const char *from, size_t length, long times, char *out, size_t *used) {
    for (long i = 0; i < times; i++) {
        if (*used + length + 1 >= MOST) {
            return false;
        }
        memcpy(out + *used, from, length);
        *used += length;
    }
    out[*used] = '\0';
    return times >= 0;
}

/* Parentheses first, single letters then, as Megatron-LM does it. */
static bool unroll(const char *text, bool groups, char *out) {
    size_t used = 0;
    out[0] = '\0';
    for (const char *at = text; *at != '\0';) {
        const char *from = at;
        size_t length = 1;
        if (*at == ',' || isspace((unsigned char)*at)) {
            at++;
            continue;
        }
        bool group = groups && *at == '(';
        if (group) {
            from = at + 1;
            length = strcspn(from, ")");
            at = from + length;
            if (*at == '\0') {
                return false;
            }
        }
        at++;
        if (!repeat(from, length, group || !groups ? times_of(&at) : 1, out, &used)) {
            return false;
        }
    }
    return true;
}

/* Which letter each position of the model is. */
static char letter_of(const mf_model *m, int at) {
    switch (mf_position_kind_of(m, at)) {
    case MF_POS_EMBEDDING:
        return 'E';
    case MF_POS_LAYER:
        return 't';
    case MF_POS_MTP:
        return 'm';
    case MF_POS_HEAD:
        break;
    }
    return 'L';
}

static mf_status place(const char *flat, const mf_model *m, mf_assignment *out, mf_err *e) {
    int at = 0, stage = 0;
    out->positions = mf_model_positions(m);
    out->first[0] = 0;
    for (const char *p = flat; *p != '\0'; p++) {
        if (*p == '|') {
            if (++stage >= MF_MAX_VSTAGES) {
                return mf_err_set(e, MF_INPUT, "more than %d virtual stages", MF_MAX_VSTAGES);
            }
            out->first[stage] = at;
        } else if (at >= out->positions || *p != letter_of(m, at)) {
            return mf_err_set(e, MF_INPUT,
                              "position %d of %s is '%c' (E embedding, t layer, m MTP, L head), "
                              "found '%c' on stage %d",
                              at, m->name, at < out->positions ? letter_of(m, at) : '.', *p, stage);
        } else {
            at++;
        }
    }
    if (at != out->positions) {
        return mf_err_set(e, MF_INPUT, "%d positions are placed, %s has %d", at, m->name,
                          out->positions);
    }
    out->vstages = stage + 1;
    out->first[stage + 1] = at;
    return MF_OK;
}

mf_status mf_read_stages(const char *text, const mf_model *m, mf_assignment *out, mf_err *e) {
    char *flat = malloc(2 * MOST);
    mf_status status = MF_OK;
    if (flat == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    memset(out, 0, sizeof *out);
    if (!unroll(text, true, flat + MOST) || !unroll(flat + MOST, false, flat)) {
        status = mf_err_set(e, MF_INPUT, "not closed, or longer than %d letters", MOST);
    } else {
        status = place(flat, m, out, e);
    }
    free(flat);
    return status == MF_OK ? status
                           : mf_err_prefix(e, "pipeline-model-parallel-layout \"%.120s\"", text);
}

mf_status mf_read_letters(const char *text, const mf_model *m, mf_assignment *out, mf_err *e) {
    char all[2 * MF_MODEL_MAX_LAYERS + 2 * MF_MODEL_MAX_MTP + 2];
    mf_assignment whole = {.positions = mf_model_positions(m), .vstages = 1};
    int stage = 0, layer = 0;
    whole.first[1] = whole.positions;
    mf_write_letters(m, &whole, false, all, sizeof all);
    memset(out, 0, sizeof *out);
    for (const char *p = text; *p != '\0' && *p != '/'; p++) {
        if (*p == '|' && stage + 1 < MF_MAX_VSTAGES) {
            out->first[++stage] = 1 + layer; /* behind the embedding */
        } else if (*p != all[layer]) {
            return mf_err_set(e, MF_INPUT,
                              "hybrid-layer-pattern \"%.120s\": layer %d of %s is '%c', found '%c'",
                              text, layer, m->name, all[layer] != '\0' ? all[layer] : '.', *p);
        } else {
            layer++;
        }
    }
    if (all[layer] != '\0') {
        return mf_err_set(e, MF_INPUT, "hybrid-layer-pattern \"%.120s\": %d layers, %s has %lld",
                          text, layer, m->name, (long long)m->layers);
    }
    out->positions = whole.positions;
    out->vstages = stage > 0 ? stage + 1 : 0;
    out->first[stage + 1] = whole.positions;
    return MF_OK;
}
