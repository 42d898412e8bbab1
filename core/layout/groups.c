/* groups.c - rank mapping of parallel folding: coordinates on both grids, groups, stages. */
#include "core/layout/layout.h"

#include <assert.h>

const char *mf_group_text(mf_group_kind g) {
    static const char *const text[] = {
#define X(name, text) text,
        MF_GROUP_MAP(X)
#undef X
    };
    return (unsigned)g < MF_GROUP_COUNT ? text[g] : "none";
}

mf_group_shape mf_layout_group(const mf_layout *l, mf_group_kind g) {
    int64_t stage = l->gpus / l->pp;
    switch (g) {
    case MF_GROUP_TP:
        return (mf_group_shape){l->tp, 1};
    case MF_GROUP_CP:
        return (mf_group_shape){l->cp, l->tp};
    case MF_GROUP_DP:
        return (mf_group_shape){l->dp, l->tp * l->cp};
    case MF_GROUP_DP_CP:
        return (mf_group_shape){l->cp * l->dp, l->tp};
    case MF_GROUP_TP_CP:
        return (mf_group_shape){l->tp * l->cp, 1};
    case MF_GROUP_TP_CP_DP:
        return (mf_group_shape){stage, 1};
    case MF_GROUP_ETP:
        return (mf_group_shape){l->etp, 1};
    case MF_GROUP_EP:
        return (mf_group_shape){l->ep, l->etp};
    case MF_GROUP_EDP:
        return (mf_group_shape){l->edp, l->etp * l->ep};
    case MF_GROUP_PP:
        return (mf_group_shape){l->pp, stage};
    case MF_GROUP_WORLD:
        return (mf_group_shape){l->gpus, 1};
    case MF_GROUP_COUNT:
    case MF_GROUP_NONE:
        break;
    }
    return (mf_group_shape){1, 1};
}

/* Do members of g communicate inside blocks, while gradients are reduced and weights gathered
 * beside them? (A fused dispatcher writes into other GPUs' memory without its communicator.) */
static bool talks_beside(const mf_layout *l, mf_group_kind g) {
    const bool inside = g == MF_GROUP_TP || g == MF_GROUP_CP || g == MF_GROUP_TP_CP ||
                        g == MF_GROUP_ETP ||
                        (g == MF_GROUP_EP && l->dispatcher != MF_DISPATCH_FUSED);
    return inside && (l->overlap & MF_OVERLAP_DP) != 0 && (l->dp * l->cp > 1 || l->edp > 1);
}

mf_group_kind mf_layout_group_shared(const mf_layout *l, mf_group_kind g) {
    const mf_group_shape wanted = mf_layout_group(l, g);
    const bool beside = talks_beside(l, g);
    if (wanted.size == l->gpus && !beside) {
        return MF_GROUP_WORLD;
    }
    for (int k = 0; k < (int)g; k++) {
        const mf_group_shape other = mf_layout_group(l, (mf_group_kind)k);
        if (other.size == wanted.size && other.stride == wanted.stride &&
            talks_beside(l, (mf_group_kind)k) == beside) {
            return (mf_group_kind)k;
        }
    }
    return g;
}

mf_rank_coords mf_layout_coords(const mf_layout *l, int64_t rank) {
    assert(rank >= 0 && rank < l->gpus);
    mf_rank_coords k;
    k.t = rank % l->tp;
    k.c = rank / l->tp % l->cp;
    k.d = rank / (l->tp * l->cp) % l->dp;
    k.p = rank / (l->gpus / l->pp);
    k.et = rank % l->etp;
    k.e = rank / l->etp % l->ep;
    k.ed = rank / (l->etp * l->ep) % l->edp;
    return k;
}

int64_t mf_layout_rank_dense(const mf_layout *l, int64_t t, int64_t c, int64_t d, int64_t p) {
    return t + l->tp * (c + l->cp * (d + l->dp * p));
}

int64_t mf_layout_rank_expert(const mf_layout *l, int64_t et, int64_t e, int64_t ed, int64_t p) {
    return et + l->etp * (e + l->ep * (ed + l->edp * p));
}

int64_t mf_layout_group_first(const mf_layout *l, mf_group_kind g, int64_t rank) {
    mf_group_shape s = mf_layout_group(l, g);
    /* Along an arithmetic progression that the mapping makes, the member index is the digit of
     * `rank` at weight stride. */
    return rank - rank / s.stride % s.size * s.stride;
}

int64_t mf_layout_stage_of(const mf_layout *l, int64_t vstage) {
    int64_t chunk = vstage / l->pp, p = vstage % l->pp;
    return mf_layout_turns(l) && chunk % 2 == 1 ? l->pp - 1 - p : p;
}

int64_t mf_layout_chunk_of(const mf_layout *l, int64_t vstage) {
    return vstage / l->pp;
}

int64_t mf_layout_vstage(const mf_layout *l, int64_t stage, int64_t chunk) {
    int64_t p = mf_layout_turns(l) && chunk % 2 == 1 ? l->pp - 1 - stage : stage;
    return chunk * l->pp + p;
}
