/* stage_text.c - Megatron's text of a pipeline layout into first positions of virtual stages. */
#include "job/request/stage_text.h"

#include <stdlib.h>
#include <string.h>

static const char letters_known[] = "EtmL|";
enum { MOST_LETTERS = MF_MAX_POSITIONS + MF_MAX_VSTAGES, DEPTH = 8 };

static mf_status repeat(const char **at, char *out, int unit, int *n, mf_err *e) {
    char *end;
    long times = strtol(*at + 1, &end, 10);
    if (end == *at + 1 || times < 1) {
        return mf_err_set(e, MF_USAGE, "expected a number above 0 behind \"*\", got \"%.20s\"",
                          *at + 1);
    }
    if (unit > 0 && times - 1 > (MOST_LETTERS - *n) / unit) {
        return mf_err_set(e, MF_USAGE, "more than %d letters", (int)MOST_LETTERS);
    }
    for (long k = 1; k < times; k++, *n += unit) {
        memcpy(out + *n, out + *n - unit, (size_t)unit);
    }
    *at = end;
    return MF_OK;
}

/* Writes the letters that `*at` stands for behind the *n that are there, up to its end or a closing
 * bracket. */
static mf_status expand(const char **at, char *out, int *n, int depth, mf_err *e) {
    mf_status s = MF_OK;
    while (s == MF_OK && **at != '\0' && **at != ')') {
        int begin = *n;
        if (**at == '(') {
            (*at)++;
            s = depth > 0 ? expand(at, out, n, depth - 1, e)
                          : mf_err_set(e, MF_USAGE, "brackets nested too deep");
            if (s == MF_OK && **at != ')') {
                s = mf_err_set(e, MF_USAGE, "a bracket is not closed");
            }
            *at += s == MF_OK;
        } else if (strchr(letters_known, **at) == NULL) {
            s = mf_err_set(e, MF_USAGE, "expected one of E t m L | ( ) *, got \"%.20s\"", *at);
        } else if (*n == MOST_LETTERS) {
            s = mf_err_set(e, MF_USAGE, "more than %d letters", (int)MOST_LETTERS);
        } else {
            out[(*n)++] = *(*at)++;
        }
        if (s == MF_OK && **at == '*') {
            s = repeat(at, out, *n - begin, n, e);
        }
    }
    return s;
}

static char letter_of(const mf_model *m, int position) {
    static const char letter[] = {
        [MF_POS_EMBEDDING] = 'E', [MF_POS_LAYER] = 't', [MF_POS_MTP] = 'm', [MF_POS_HEAD] = 'L'};
    return letter[mf_position_kind_of(m, position)];
}

static mf_status place(const mf_model *m, const char *letters, int n, mf_assignment *a, mf_err *e) {
    int first[MF_MAX_VSTAGES + 1] = {0}, stage = 0, position = 0;
    for (int i = 0; i < n; i++) {
        if (letters[i] == '|') {
            if (++stage >= a->vstages) {
                return mf_err_set(e, MF_USAGE, "more than the %d virtual stages of PP x VPP",
                                  a->vstages);
            }
            if (position == first[stage - 1]) {
                return mf_err_set(e, MF_USAGE, "virtual stage %d is empty", stage - 1);
            }
            first[stage] = position;
        } else if (letters[i] != 'm' || m->mtp_layers > 0) {
            if (position == a->positions || letters[i] != letter_of(m, position)) {
                return mf_err_set(e, MF_USAGE,
                                  "%s has %lld layers and %lld MTP depths between E and L: letter "
                                  "%d, a %c, is none of them",
                                  m->name, (long long)m->layers, (long long)m->mtp_layers, i + 1,
                                  letters[i]);
            }
            position++;
        }
    }
    if (stage + 1 != a->vstages || position != a->positions) {
        return mf_err_set(e, MF_USAGE,
                          "expected %d virtual stages (PP x VPP) with %d letters, got %d with %d",
                          a->vstages, a->positions, stage + 1, position);
    }
    first[a->vstages] = position;
    memcpy(a->first, first, sizeof first);
    return MF_OK;
}

mf_status mf_stage_text_apply(const mf_model *m, const char *text, mf_assignment *a, mf_err *e) {
    char letters[MOST_LETTERS];
    int n = 0;
    mf_status s = expand(&text, letters, &n, DEPTH, e);
    if (s == MF_OK && *text != '\0') {
        s = mf_err_set(e, MF_USAGE, "a bracket closes that did not open");
    }
    return s == MF_OK ? place(m, letters, n, a, e) : s;
}
