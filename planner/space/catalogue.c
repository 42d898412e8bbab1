/* catalogue.c - the memory choices that a search considers for a layer.
 *
 * Recomputation from cheap to thorough, and offloading on top of a few of them. What is not here is
 * not searched (a user can still ask for it with --recompute and --offload); the list says so in
 * docs/planner.md and in the output.
 */
#include "planner/space/catalogue.h"

#include "planner/space/space.h"

#define R(name) MF_RECOMPUTE_##name
#define LIGHT (R(NORM) | R(ACT) | R(MLA_UP_PROJ))

static const uint16_t recompute_sets[] = {
    R(NONE),
    R(ACT),
    R(NORM) | R(ACT),
    LIGHT,
    LIGHT | R(SHARED_EXPERT) | R(MLP),
    LIGHT | R(CORE_ATTN),
    LIGHT | R(EXPERTS) | R(SHARED_EXPERT) | R(MLP),
    LIGHT | R(MOE) | R(MLP),
    R(LAYER),
};

#define O(name) MF_OFFLOAD_##name
#define O_FFN (O(EXPERT_FC1) | O(FFN))

static const struct {
    uint16_t recompute, offload;
} offload_sets[] = {
    {R(NONE), O_FFN},
    {R(NONE), O_FFN | O(EXPERT_IN)},
    {R(NONE), O_FFN | O(EXPERT_IN) | O(INPUT) | O(QKV) | O(ATTN_OUT)},
    {LIGHT, O_FFN},
    {LIGHT, O_FFN | O(EXPERT_IN)},
    {LIGHT, O_FFN | O(EXPERT_IN) | O(INPUT) | O(QKV) | O(ATTN_OUT)},
    {R(LAYER), O(INPUT)},
};

/* Modules that a layer of the class has. */
static uint16_t applicable(const mf_model *m, uint8_t layer_class) {
    uint16_t mask = R(NORM) | R(ACT) | R(CORE_ATTN) | R(LAYER);
    mask |= m->attn == MF_ATTN_MLA ? R(MLA_UP_PROJ) : 0;
    if (m->layer_classes[layer_class].ffn == MF_FFN_MOE) {
        mask |= R(EXPERTS) | R(MOE);
        mask |= m->shared_ffn > 0 ? R(SHARED_EXPERT) : 0;
    } else {
        mask |= R(MLP);
    }
    return mask;
}

/* Modules whose saved tensors it can send to the host. */
static uint16_t movable(const mf_model *m, uint8_t layer_class) {
    uint16_t mask = O(INPUT) | O(QKV) | O(ATTN_OUT);
    bool moe = m->layer_classes[layer_class].ffn == MF_FFN_MOE;
    mask |= moe ? O(EXPERT_IN) | O(EXPERT_FC1) : 0;
    mask |= !moe || m->shared_ffn > 0 ? O(FFN) : 0;
    return mask;
}

static int add(mf_memory_choice c, int n, mf_memory_choice *out) {
    for (int i = 0; i < n; i++) {
        if (out[i].recompute == c.recompute && out[i].offload == c.offload) {
            return n;
        }
    }
    if (n < MF_CATALOGUE_MAX) {
        out[n++] = c;
    }
    return n;
}

int mf_catalogue(const mf_model *m, uint8_t layer_class, uint32_t pinned, mf_memory_choice base,
                 mf_memory_choice out[MF_CATALOGUE_MAX]) {
    bool recompute_held = pinned & MF_PIN(RECOMPUTE), offload_held = pinned & MF_PIN(OFFLOAD);
    uint16_t has = applicable(m, layer_class);
    bool dense = m->layer_classes[layer_class].ffn != MF_FFN_MOE;
    has &= (pinned & MF_PIN_MOE_ACT) && dense ? (uint16_t)~R(ACT) : has;
    uint16_t kept = (uint16_t)(base.recompute & (has | R(LAYER)));
    int n = 0;
    for (size_t i = 0; i < sizeof recompute_sets / sizeof recompute_sets[0]; i++) {
        mf_memory_choice c = {.recompute = (uint16_t)(recompute_sets[i] & has), .offload = 0};
        c.recompute = recompute_held ? kept : c.recompute;
        c.offload = offload_held ? (uint16_t)(base.offload & movable(m, layer_class)) : 0;
        n = add(c, n, out);
    }
    for (size_t i = 0; i < sizeof offload_sets / sizeof offload_sets[0] && !offload_held; i++) {
        mf_memory_choice c = {(uint16_t)(offload_sets[i].recompute & has),
                              (uint16_t)(offload_sets[i].offload & movable(m, layer_class))};
        c.recompute = recompute_held ? kept : c.recompute;
        n = add(c, n, out);
    }
    return n;
}
