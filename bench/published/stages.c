/* stages.c - which positions a row's virtual stages hold.
 *
 * Megatron writes a pipeline layout as text: E embedding, t decoder layer, m MTP depth, L loss (our
 * head), | the end of a virtual stage, *n repeats the letter or the group before it. Rows print it
 * in their notes; DeepSeek-V3, whose 61 layers divide by nothing, has fixed ones in NeMo and
 * Megatron-Bridge (full stages from the front, what is left with the head).
 */
#include "bench/published/predict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* By number of virtual stages. */
static const struct {
    int64_t vstages;
    const char *text;
} deepseek[] = {
    {4, "Et*16|t*16|t*16|t*13mL"},
    {8, "Et*8|(t*8|)*6t*5mL"},
    {16, "Et*4|(t*4|)*14tmL"},
    {32, "Et|(tt|)*30mL"},
};

/* Writes the letters that `*at` stands for, up to its end or a closing bracket; -1 = malformed. */
static int expand(const char **at, char *out, int size, int depth) {
    int n = 0;
    while (**at != '\0' && **at != ')') {
        int begin = n;
        if (**at == '(') {
            (*at)++;
            int inside = depth > 0 ? expand(at, out + n, size - n, depth - 1) : -1;
            if (inside < 0 || **at != ')') {
                return -1;
            }
            n += inside;
            (*at)++;
        } else if (n < size && strchr("EtmL|", **at) != NULL) {
            out[n++] = *(*at)++;
        } else {
            return -1;
        }
        if (**at == '*') {
            char *end;
            long times = strtol(*at + 1, &end, 10);
            int unit = n - begin;
            if (times < 1 || (times - 1) * unit > size - n) {
                return -1;
            }
            for (long k = 1; k < times; k++, n += unit) {
                memcpy(out + n, out + begin, (size_t)unit);
            }
            *at = end;
        }
    }
    return n;
}

/* Takes the text over where it covers this model and layout; else leaves the even split. */
static void assign_text(const mf_model *m, const char *text, mf_assignment *a) {
    char letters[2 * MF_MAX_POSITIONS];
    int n = expand(&text, letters, (int)sizeof letters, 2), stage = 0, position = 0;
    int first[MF_MAX_VSTAGES + 1] = {0};
    if (n < 0 || *text != '\0') {
        return;
    }
    for (int i = 0; i < n; i++) {
        if (letters[i] == '|') {
            if (++stage >= a->vstages || position == first[stage - 1]) {
                return; /* more stages than the layout has, or an empty one */
            }
            first[stage] = position;
        } else if (letters[i] != 'm' || m->mtp_layers > 0) {
            position++;
        }
    }
    if (stage + 1 == a->vstages && position == a->positions) {
        first[a->vstages] = position;
        memcpy(a->first, first, sizeof first);
    }
}

/* Megatron's "block" recomputation: of each virtual stage the first layers only. */
static void recompute_first(const mf_model *m, int64_t layers, mf_assignment *a) {
    for (int v = 0; v < a->vstages; v++) {
        int64_t left = layers;
        for (int i = a->first[v]; i < a->first[v + 1]; i++) {
            if (mf_position_kind_of(m, i) == MF_POS_LAYER && left-- <= 0) {
                a->memory[i].recompute = MF_RECOMPUTE_NONE;
            }
        }
    }
}

mf_status pub_assign(const pub_row *r, const mf_layout *l, mf_assignment *a, mf_err *e) {
    mf_status status = mf_assignment_even(&r->model, l, a, e);
    if (status != MF_OK) {
        return status;
    }
    char text[64] = "";
    const char *printed = strstr(r->notes, "layout E");
    if (printed != NULL) {
        printed += strlen("layout ");
        snprintf(text, sizeof text, "%.*s", (int)strcspn(printed, ";, "), printed);
    } else if (strcmp(r->model_name, "DeepSeek-V3") == 0 &&
               strncmp(r->software, "megatron", strlen("megatron")) == 0) {
        for (size_t i = 0; i < sizeof deepseek / sizeof deepseek[0]; i++) {
            if (deepseek[i].vstages == l->pp * l->vpp) {
                snprintf(text, sizeof text, "%s", deepseek[i].text);
            }
        }
    }
    if (text[0] != '\0') {
        assign_text(&r->model, text, a);
    }
    if (r->recompute_layers > 0) {
        recompute_first(&r->model, r->recompute_layers, a);
    }
    return MF_OK;
}
