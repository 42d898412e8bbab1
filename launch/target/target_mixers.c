/* target_mixers.c - what a target knows of layers that are not plain attention.
 *
 * Facts: dsa.py of Megatron-LM's megatron/core/transformer (which layers share a choice of keys)
 * and megatron/core/models/hybrid/hybrid_layer_allocation.py (letters), at the commit of target.c.
 */
#include "launch/target/target.h"

#include "core/program/lower.h"

#include <stdio.h>
#include <string.h>

const mf_layer_class *mf_target_class_at(const mf_model *m, int position) {
    const bool mtp = mf_position_kind_of(m, position) == MF_POS_MTP;
    return &m->layer_classes[mtp ? m->mtp_class : m->layer_class[mf_position_index(m, position)]];
}

bool mf_target_is_hybrid(const mf_model *m) {
    for (int i = 0; i < m->classes; i++) {
        const mf_layer_class *x = &m->layer_classes[i];
        if (x->ffn == MF_FFN_NONE || x->mixer == MF_MIXER_NONE || x->mixer == MF_MIXER_MAMBA2) {
            return true;
        }
    }
    return false;
}

bool mf_target_rotates_none(const mf_model *m) {
    bool any = false;
    for (int i = 0; i < m->classes; i++) {
        const mf_layer_class *x = &m->layer_classes[i];
        any = any || (x->mixer == MF_MIXER_ATTENTION && !x->no_rope);
    }
    return !any && m->classes > 0;
}

/* --- layers by letters ------------------------------------------------------------------------ */

void mf_target_add_letters(const mf_layer_class *x, char *out, size_t size) {
    const size_t used = strlen(out);
    snprintf(out + used, size - used, "%s%s",
             x->mixer == MF_MIXER_MAMBA2      ? "M"
             : x->mixer == MF_MIXER_ATTENTION ? "*"
                                              : "",
             x->ffn == MF_FFN_MOE     ? "E"
             : x->ffn == MF_FFN_DENSE ? "-"
                                      : "");
}

bool mf_target_one_letter(const mf_model *m) {
    for (int64_t i = 0; i < m->layers; i++) {
        char text[8] = "";
        mf_target_add_letters(&m->layer_classes[m->layer_class[i]], text, sizeof text);
        if (strlen(text) != 1) {
            return false;
        }
    }
    return true;
}

/* --- sparse attention ------------------------------------------------------------------------- */

/* Do layers choose keys themselves as dsa.py counts them, from one on? MTP blocks go on counting.
 */
static bool shares_so(const mf_model *m, int64_t freq, int64_t offset) {
    const int64_t from = offset > 1 ? offset : 1;
    for (int64_t i = 0; i < m->layers + (m->mtp_layers > 0); i++) {
        const int class = i < m->layers ? m->layer_class[i] : m->mtp_class;
        const int64_t past = i + 1 > from ? i + 1 - from : 0;
        if (m->layer_classes[class].indexer != (past % freq == 0)) {
            return false;
        }
    }
    return true;
}

bool mf_target_shares_choices(const mf_model *m, int64_t *freq, int64_t *offset) {
    for (*freq = 1; *freq <= m->layers; ++*freq) {
        for (*offset = 0; *offset < (*freq > 1 ? m->layers : 1); ++*offset) {
            if (shares_so(m, *freq, *offset)) {
                return true;
            }
        }
    }
    return false;
}
