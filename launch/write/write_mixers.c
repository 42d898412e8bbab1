/* write_mixers.c - layers that are not plain attention, in Megatron-LM's flags: gated delta nets
 * and sparse attention of pretrain_gpt.py, the letters of pretrain_hybrid.py.
 *
 * Facts: megatron/core/transformer/transformer_config.py and
 * megatron/core/models/hybrid/hybrid_layer_allocation.py ("|" between virtual stages, "/" before
 * each MTP depth), at the commit of launch/target/target.c; glm5_bridge.py of Megatron-Bridge for
 * what GLM's indexers do otherwise than DeepSeek's.
 */
#include "launch/write/write.h"

#include "core/program/lower.h"

#include <string.h>

#define LL(x) ((long long)(x))

/* --- layers by letters ------------------------------------------------------------------------ */

void mf_write_letters(const mf_model *m, const mf_assignment *a, bool depths, char *out,
                      size_t size) {
    out[0] = '\0';
    for (int v = 0; v < a->vstages; v++) {
        const size_t used = strlen(out);
        snprintf(out + used, size - used, "%s", v > 0 ? "|" : "");
        for (int at = a->first[v]; at < a->first[v + 1]; at++) {
            if (mf_position_kind_of(m, at) == MF_POS_LAYER) {
                mf_target_add_letters(mf_target_class_at(m, at), out, size);
            }
        }
    }
    for (int64_t i = 0; i < m->mtp_layers && depths; i++) {
        const size_t used = strlen(out);
        snprintf(out + used, size - used, "/");
        mf_target_add_letters(&m->layer_classes[m->mtp_class], out, size);
    }
}

static void write_mamba(const mf_model *m, mf_settings *s) {
    const mf_mixer_shape *x = &m->mixer;
    if (x->value_heads == 0) {
        return;
    }
    mf_settings_put(s, "mamba-num-heads", "%lld", LL(x->value_heads));
    mf_settings_put(s, "mamba-head-dim", "%lld", LL(x->value_dim));
    mf_settings_put(s, "mamba-num-groups", "%lld", LL(x->key_heads));
    mf_settings_put(s, "mamba-state-dim", "%lld", LL(x->key_dim));
}

/* --- gated delta nets ------------------------------------------------------------------------- */

static bool is_delta(const mf_layer_class *x) {
    return x->mixer == MF_MIXER_GDN;
}

static void write_delta(const mf_model *m, mf_settings *s) {
    const mf_mixer_shape *x = &m->mixer;
    char text[1024];
    mf_write_runs(m, is_delta, text, sizeof text);
    mf_settings_put(s, "experimental-attention-variant", "gdn");
    mf_settings_put(s, "linear-attention-freq", "%s", text);
    mf_settings_put(s, "linear-conv-kernel-dim", "%lld", LL(x->conv));
    mf_settings_put(s, "linear-key-head-dim", "%lld", LL(x->key_dim));
    mf_settings_put(s, "linear-value-head-dim", "%lld", LL(x->value_dim));
    mf_settings_put(s, "linear-num-key-heads", "%lld", LL(x->key_heads));
    mf_settings_put(s, "linear-num-value-heads", "%lld", LL(x->value_heads));
}

/* --- sparse attention ------------------------------------------------------------------------- */

static void write_sparse(const mf_model *m, mf_settings *s) {
    int64_t freq = 1, offset = 0;
    mf_settings_put(s, "experimental-attention-variant", "dsa");
    mf_settings_put(s, "dsa-indexer-n-heads", "%lld", LL(m->index_heads));
    mf_settings_put(s, "dsa-indexer-head-dim", "%lld", LL(m->index_head_dim));
    mf_settings_put(s, "dsa-indexer-topk", "%lld", LL(m->index_topk));
    if (mf_target_shares_choices(m, &freq, &offset) && freq > 1) {
        mf_settings_put(s, "dsa-indexer-topk-freq", "%lld", LL(freq));
        mf_settings_put(s, "dsa-indexer-skip-topk-offset", "%lld", LL(offset));
    }
    mf_settings_put(s, "dsa-indexer-loss-coeff", "0.001"); /* over the chosen keys, as priced */
    mf_settings_on(s, "dsa-indexer-use-sparse-loss");
    if (strcmp(m->family, "glm_moe_dsa") == 0) {
        mf_settings_on(s, "dsa-indexer-rope-interleaved");
        mf_settings_on(s, "no-dsa-indexer-rotate-activation");
        mf_settings_put(s, "dsa-indexer-k-norm-epsilon", "1e-6");
    }
    mf_settings_on(s, "no-rope-fusion"); /* refused beside it */
}

void mf_write_mixers(const mf_model *m, mf_settings *out) {
    bool delta = false;
    for (int i = 0; i < m->classes; i++) {
        delta = delta || is_delta(&m->layer_classes[i]);
    }
    if (delta) {
        write_delta(m, out);
    }
    if (m->index_topk > 0) {
        write_sparse(m, out);
    }
    if (mf_target_is_hybrid(m)) {
        write_mamba(m, out);
    }
}
