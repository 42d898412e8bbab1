/* cost_key.c - what costs depend on, in a few words. */
#include "planner/price/cost_key.h"

#include <string.h>

/* The part of a key that its block depends on (core/program/lower_block.c). */
static mf_block_key plain_key(const mf_block_key *k) {
    mf_block_key plain = *k;
    bool end = k->kind == MF_POS_EMBEDDING || k->kind == MF_POS_HEAD, mtp = k->kind == MF_POS_MTP;
    plain.shared_embedding = k->shared_embedding && (mtp || k->kind == MF_POS_HEAD);
    plain.shared_head = k->shared_head && mtp;
    if (end) {
        plain.layer_class = 0;
        plain.parts = 0;
        plain.memory = (mf_memory_choice){0, 0};
    }
    plain.at_end = k->at_end && plain.memory.offload != 0;
    return plain;
}

/* Attention without its FFN is the same in all classes that mix tokens alike: the first of them. */
static uint8_t first_alike(const mf_model *m, uint8_t layer_class) {
    uint8_t first = 0;
    while (!mf_layer_class_mixes_alike(&m->layer_classes[first], &m->layer_classes[layer_class])) {
        first++;
    }
    return first;
}

static bool is_attention(const mf_block_key *k) {
    return k->kind == MF_POS_LAYER && k->parts == MF_HALF_ATTENTION;
}

/* What copies to the host depend on: the GPUs that copy, no more than any host has. 10 bits. */
static uint64_t copying_word(const mf_layout *l, const mf_block_key *k) {
    const int64_t most = MF_CLUSTER_MAX_NODE;
    return k->memory.offload != 0 ? (uint64_t)((l->gpus < most ? l->gpus : most) - 1) : 0;
}

static uint64_t block_word(const mf_model *m, const mf_layout *l, const mf_block_key *key) {
    mf_block_key k = plain_key(key);
    k.layer_class = is_attention(&k) ? first_alike(m, k.layer_class) : k.layer_class;
    return (uint64_t)k.kind | (uint64_t)k.layer_class << 4 | (uint64_t)k.parts << 12 |
           (uint64_t)k.split << 14 | (uint64_t)k.shared_embedding << 15 |
           (uint64_t)k.shared_head << 16 | (uint64_t)k.after_depth << 17 |
           (uint64_t)k.before_depth << 18 | (uint64_t)k.unplaced << 19 |
           (uint64_t)k.memory.recompute << 20 | (uint64_t)k.memory.offload << 36 |
           (uint64_t)k.at_end << 52 | copying_word(l, &k) << 53;
}

static bool is_layer(const mf_block_key *k) {
    return k && (k->kind == MF_POS_LAYER || k->kind == MF_POS_MTP);
}

static bool routes(const mf_model *m, const mf_block_key *k) {
    return k && is_layer(k) && !is_attention(k) &&
           m->layer_classes[k->layer_class].ffn == MF_FFN_MOE;
}

int64_t mf_common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Degrees are below 2^28 (core/layout/layout.c). */
static uint64_t group_word(int64_t size, bool alike) {
    return alike && size > 2 ? 2 : (uint64_t)size;
}

static mf_cost_key key_of(const mf_model *m, const mf_layout *l, const mf_block_key *a,
                          const mf_block_key *b, bool exact, bool alike) {
    mf_cost_key key, *out = &key;
    bool experts = routes(m, a) || routes(m, b), layer = is_layer(a) || is_layer(b);
    int64_t divisor = layer ? 1 : mf_common_divisor(l->cp, l->mbs);
    uint64_t dense = l->zero >= 2 ? group_word(l->dp * l->cp, alike) : 0;
    uint64_t expert = l->expert_zero >= 2 && experts ? group_word(l->edp, alike) : 0;
    uint64_t stage = experts && l->aux_scope == MF_AUX_GLOBAL ? (uint64_t)(l->gpus / l->pp) : 0;
    out->word[0] = (uint64_t)l->tp | (uint64_t)(l->cp / divisor) << 28 |
                   (layer ? (uint64_t)l->cp_type << 56 : 0) | (uint64_t)exact << 60 |
                   (uint64_t)(b != NULL) << 61;
    out->word[1] =
        experts ? (uint64_t)l->ep | (uint64_t)l->etp << 28 | (uint64_t)l->dispatcher << 56 : 0;
    out->word[2] = (uint64_t)(l->mbs / divisor) | dense << 28 | (uint64_t)l->precision << 60;
    out->word[3] = expert | stage << 28 | (uint64_t)(l->zero >= 2 ? l->zero : 0) << 56 |
                   (uint64_t)(expert > 0 ? l->expert_zero : 0) << 58;
    out->word[4] = block_word(m, l, a);
    out->word[5] = b ? block_word(m, l, b) : 0;
    return key;
}

mf_cost_key mf_cost_key_of(const mf_model *m, const mf_layout *l, const mf_block_key *a,
                           const mf_block_key *b, bool exact) {
    return key_of(m, l, a, b, exact, false);
}

mf_cost_key mf_block_cache_key_of(const mf_model *m, const mf_layout *l, const mf_block_key *k) {
    return key_of(m, l, k, NULL, false, (l->overlap & MF_OVERLAP_DP) != 0);
}

uint64_t mf_cost_key_hash(const mf_cost_key *key) {
    uint64_t h = UINT64_C(1469598103934665603);
    for (int i = 0; i < MF_COST_KEY_WORDS; i++) {
        h = (h ^ key->word[i]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return h;
}

bool mf_cost_key_same(const mf_cost_key *a, const mf_cost_key *b) {
    return memcmp(a, b, sizeof *a) == 0;
}
