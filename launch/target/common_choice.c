/* common_choice.c - one memory choice for all layers. */
#include "launch/target/target.h"

#include <math.h>

/* Modules of attention are none of a mixer with a state: such a layer is recomputed whole or not.
 */
static bool is_attention(const mf_layer_class *x) {
    return x->mixer == MF_MIXER_ATTENTION || x->mixer == MF_MIXER_COMPRESSED;
}

uint16_t mf_target_recomputed(const mf_model *m, const mf_layer_class *x, uint16_t mask) {
    uint16_t known = 0;
    if (mask & MF_RECOMPUTE_LAYER) {
        return MF_RECOMPUTE_LAYER;
    }
    if (is_attention(x)) {
        known |= MF_RECOMPUTE_CORE_ATTN;
        known |= m->attn == MF_ATTN_MLA ? MF_RECOMPUTE_MLA_UP_PROJ : 0;
    }
    if (x->mixer != MF_MIXER_MAMBA2) {
        known |= MF_RECOMPUTE_NORM;
    }
    if (x->ffn == MF_FFN_MOE) {
        known |= MF_RECOMPUTE_ACT | MF_RECOMPUTE_MOE;
        known |= m->shared_ffn > 0 ? MF_RECOMPUTE_SHARED_EXPERT : 0;
    } else if (x->ffn == MF_FFN_DENSE) {
        known |= MF_RECOMPUTE_MLP;
    }
    return mask & known;
}

uint16_t mf_target_offloaded(const mf_model *m, const mf_layer_class *x, uint16_t mask) {
    (void)m;
    uint16_t known = x->mixer != MF_MIXER_MAMBA2 ? MF_OFFLOAD_INPUT : 0;
    known |= is_attention(x) ? MF_OFFLOAD_QKV | MF_OFFLOAD_ATTN_OUT : 0;
    known |= x->ffn == MF_FFN_MOE ? MF_OFFLOAD_EXPERT_IN | MF_OFFLOAD_EXPERT_FC1 : 0;
    return mask & known;
}

static bool is_layer(const mf_model *m, int at) {
    mf_position_kind kind = mf_position_kind_of(m, at);
    return kind == MF_POS_LAYER || kind == MF_POS_MTP;
}

/* Whether position i is one that offloads, as mf_assignment_even spreads a share. */
static bool offloads(int i, double share) {
    return floor((double)(i + 1) * share + 1e-9) > floor((double)i * share + 1e-9);
}

void mf_common_choice_apply(const mf_model *m, const mf_common_choice *c, mf_assignment *a) {
    for (int v = 0; v < a->vstages; v++) {
        int nth = 0;
        for (int i = a->first[v]; i < a->first[v + 1]; i++) {
            mf_memory_choice *choice = &a->memory[i];
            *choice = (mf_memory_choice){0};
            if (!is_layer(m, i)) {
                continue;
            }
            const mf_layer_class *x = mf_target_class_at(m, i);
            choice->recompute = mf_target_recomputed(m, x, c->recompute);
            if (c->first > 0 && nth >= c->first) {
                choice->recompute = 0;
            }
            nth++;
            choice->offload = offloads(i, c->share) ? mf_target_offloaded(m, x, c->offload) : 0;
        }
    }
}

static bool gives(const mf_model *m, const mf_common_choice *c, const mf_assignment *a) {
    mf_assignment made = *a;
    mf_common_choice_apply(m, c, &made);
    for (int i = 0; i < a->positions; i++) {
        if (is_layer(m, i) && (made.memory[i].recompute != a->memory[i].recompute ||
                               made.memory[i].offload != a->memory[i].offload)) {
            return false;
        }
    }
    return true;
}

/* The share of layers that offload, in steps of one: those that it can be are tried. */
static bool find_share(const mf_model *m, const mf_assignment *a, mf_common_choice *c) {
    for (int k = a->positions; k >= 1; k--) {
        c->share = (double)k / a->positions;
        if (gives(m, c, a)) {
            return true;
        }
    }
    c->share = 1;
    return false;
}

/* The longest row of layers at the head of a virtual stage that are recomputed whole. */
static int longest_head(const mf_model *m, const mf_assignment *a) {
    int most = 0;
    for (int v = 0; v < a->vstages; v++) {
        int row = 0;
        for (int i = a->first[v]; i < a->first[v + 1]; i++) {
            if (is_layer(m, i) && !(a->memory[i].recompute & MF_RECOMPUTE_LAYER)) {
                break;
            }
            row += is_layer(m, i);
        }
        most = row > most ? row : most;
    }
    return most;
}

bool mf_common_choice_of(const mf_model *m, const mf_assignment *a, mf_common_choice *out) {
    *out = (mf_common_choice){.share = 1};
    for (int i = 0; i < a->positions; i++) {
        if (is_layer(m, i)) {
            out->recompute |= a->memory[i].recompute;
            out->offload |= a->memory[i].offload;
        }
    }
    if (gives(m, out, a) || find_share(m, a, out)) {
        return true;
    }
    if (out->recompute == MF_RECOMPUTE_LAYER) {
        out->first = longest_head(m, a);
        return gives(m, out, a) || find_share(m, a, out);
    }
    return false;
}
