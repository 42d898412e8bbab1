/* rope_tables.c - the tables of rotary positions that the layers of a model read. */
#include "core/model/model.h"

/* The table of a class; false: it reads none. */
static bool table_of(const mf_model *m, const mf_layer_class *c, mf_rope_table *out) {
    double share = c->partial_rotary > 0 ? c->partial_rotary : m->partial_rotary;
    *out = (mf_rope_table){.theta = c->rope_theta > 0 ? c->rope_theta : m->rope_theta};
    if (c->mixer != MF_MIXER_ATTENTION) {
        return false;
    }
    if (m->attn == MF_ATTN_MLA) {
        out->width = m->qk_rope_head_dim;
        return true;
    }
    if (c->no_rope) {
        *out = (mf_rope_table){.width = mf_model_head_dim(m, c), .temperature = true};
        return m->temperature_scale > 0;
    }
    out->width = (int64_t)((double)mf_model_head_dim(m, c) * share + 0.5) / 2 * 2;
    return out->width > 0;
}

static bool same(const mf_rope_table *a, const mf_rope_table *b) {
    return a->width == b->width && a->temperature == b->temperature && !(a->theta < b->theta) &&
           !(a->theta > b->theta);
}

static int place_of(const mf_rope_table *table, int count, const mf_rope_table *x) {
    int i = 0;
    while (i < count && !same(&table[i], x)) {
        i++;
    }
    return i;
}

int mf_model_rope_tables(const mf_model *m, mf_rope_table out[MF_MODEL_MAX_CLASSES]) {
    int count = 0;
    for (int k = 0; k < m->classes; k++) {
        mf_rope_table x;
        if (table_of(m, &m->layer_classes[k], &x) && place_of(out, count, &x) == count) {
            out[count++] = x;
        }
    }
    return count;
}

int mf_model_rope_table_of(const mf_model *m, const mf_layer_class *c) {
    mf_rope_table all[MF_MODEL_MAX_CLASSES], x;
    int count = mf_model_rope_tables(m, all);
    return table_of(m, c, &x) ? place_of(all, count, &x) : -1;
}
