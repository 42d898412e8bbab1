/* param_pieces.c - which pieces of hub tensors a rank's parameter consists of, by family and
 * layout.
 */
#include "executor/step/params.h"

#include "core/model/hub_names.h"

#include <stdio.h>
#include <string.h>

#define LL(x) ((long long)(x))

typedef struct place {
    const mf_program *p;
    const mf_model *m;
    const mf_layout *l;
    const mf_rank_coords *c;
    const mf_param *q;
    mf_hub_names hub;
    int64_t heads, kv_heads; /* of the position's class, over all TP ranks */
    char layer[48];          /* "model.layers.3." */
    const char *suffix;
} place;

static bool whole(const place *w, const char *name, mf_param_piece *out) {
    snprintf(out->name, sizeof out->name, "%s%s%s", w->layer, name, w->suffix);
    out->rows = w->q->rows;
    out->cols = w->q->cols;
    out->first_replica = w->c->t == 0;
    return true;
}

/* Rows of the hub tensor to rows `at` of the local one. */
static bool rows_of(const place *w, const char *name, int64_t row, int64_t rows, int64_t at,
                    mf_param_piece *out) {
    whole(w, name, out);
    out->row = row;
    out->rows = rows;
    out->at_row = at;
    out->first_replica = true;
    return true;
}

static bool column_shard(const place *w, const char *name, int64_t part, mf_param_piece *out) {
    whole(w, name, out);
    out->col = part * w->q->cols;
    out->first_replica = true;
    return true;
}

static bool vocabulary(const place *w, const char *name, mf_param_piece *out) {
    int64_t first = w->c->t * w->q->rows, rows = w->m->vocab - first;
    rows = rows < 0 ? 0 : rows < w->q->rows ? rows : w->q->rows;
    snprintf(out->name, sizeof out->name, "%s", name);
    out->row = first;
    out->rows = rows;
    out->cols = w->q->cols;
    out->first_replica = true;
    return rows > 0;
}

/* TP ranks that hold the same K and V heads, and heads of each. */
static int64_t kv_replicas(const place *w) {
    return w->kv_heads >= w->l->tp ? 1 : w->l->tp / w->kv_heads;
}

/* Rows of K (1) or V (2), behind `front` local rows. */
static bool key_or_value(const place *w, int which, int64_t front, mf_param_piece *out) {
    const char *name = which == 1 ? w->hub.k : w->hub.v;
    const int64_t k = w->m->head_dim, d = which == 1 ? k : w->m->v_head_dim;
    int64_t replicas = kv_replicas(w), t = w->c->t;
    int64_t heads = w->kv_heads >= w->l->tp ? w->kv_heads / w->l->tp : 1;
    bool fused = w->hub.qkv != NULL;
    rows_of(w, fused ? w->hub.qkv : name, t / replicas * heads * d, heads * d,
            front + (which - 1) * heads * k, out);
    out->row += fused ? (w->heads + (which - 1) * w->kv_heads) * k : 0;
    out->first_replica = t % replicas == 0;
    return true;
}

/* Gates of each channel stand in the hub's tensor of queries, head by head behind the head's
 * queries; here they follow all else. */
static bool gated_qkv(const place *w, int i, mf_param_piece *out) {
    const int64_t d = w->m->head_dim, heads = w->heads / w->l->tp, first = w->c->t * heads;
    if (i < heads) {
        return rows_of(w, w->hub.q, 2 * (first + i) * d, d, i * d, out);
    }
    if (i < heads + 2) {
        return key_or_value(w, (int)(i - heads + 1), heads * d, out);
    }
    const int64_t h = i - heads - 2;
    return h < heads &&
           rows_of(w, w->hub.q, (2 * (first + h) + 1) * d, d, w->q->rows - (heads - h) * d, out);
}

/* Query, key and value rows: of three tensors, or of one that has them one below the other. */
static bool qkv(const place *w, int i, mf_param_piece *out) {
    int64_t heads = w->heads / w->l->tp, t = w->c->t, rows = heads * w->m->head_dim;
    if (w->m->attn_gate == MF_ATTN_GATE_CHANNEL) {
        return gated_qkv(w, i, out);
    }
    if (i == 0) {
        return rows_of(w, w->hub.qkv != NULL ? w->hub.qkv : w->hub.q, t * rows, rows, 0, out);
    }
    if (i == 3 && w->m->attn_gate == MF_ATTN_GATE_HEAD) { /* a row for each head, behind v */
        return rows_of(w, "self_attn.g_proj", t * heads, heads, w->q->rows - heads, out);
    }
    return i < 3 && key_or_value(w, i, rows, out);
}

/* K and V beside queries of low rank (Step-3). */
static bool kv(const place *w, int i, mf_param_piece *out) {
    return i < 2 && key_or_value(w, i + 1, 0, out);
}

/* Queries of low rank, as DeepSeek names them or, beside whole keys, Step-3. */
static bool low_rank_down(const place *w, int i, mf_param_piece *out) {
    return i == 0 && whole(w, w->m->attn == MF_ATTN_MLA ? "self_attn.q_a_proj" : w->hub.q, out);
}

static bool low_rank_norm(const place *w, int i, mf_param_piece *out) {
    bool latent = w->m->attn == MF_ATTN_MLA;
    return i == 0 && whole(w, latent ? "self_attn.q_a_layernorm" : "self_attn.inter_norm", out);
}

static bool low_rank_up(const place *w, int i, mf_param_piece *out) {
    return i == 0 && rows_of(w, w->m->attn == MF_ATTN_MLA ? "self_attn.q_b_proj" : "self_attn.wq",
                             w->c->t * w->q->rows, w->q->rows, 0, out);
}

/* Norms over the heads of q and k: one weight each, or (whole projections) a shard each. */
static bool qk_norm(const place *w, int i, mf_param_piece *out) {
    const char *const name[2] = {w->hub.q_norm, w->hub.k_norm};
    const mf_model *m = w->m;
    if (i > 1) {
        return false;
    }
    if (m->qk_norm) {
        rows_of(w, name[i], 0, m->head_dim, i * m->head_dim, out);
        out->first_replica = w->c->t == 0;
        return true;
    }
    int64_t q_rows = w->heads / w->l->tp * m->head_dim, kv_rows = w->q->rows - q_rows;
    int64_t replicas = kv_replicas(w);
    if (i == 0) {
        return rows_of(w, name[0], w->c->t * q_rows, q_rows, 0, out);
    }
    rows_of(w, name[1], w->c->t / replicas * kv_rows, kv_rows, q_rows, out);
    out->first_replica = w->c->t % replicas == 0;
    return true;
}

/* The same behind the rotation. */
static bool q_norm(const place *w, int i, mf_param_piece *out) {
    return i == 0 && whole(w, w->hub.q_norm, out);
}

static bool k_norm(const place *w, int i, mf_param_piece *out) {
    return i == 0 && whole(w, w->hub.k_norm, out);
}

static bool is_shared(const place *w) {
    const mf_tensor *t = &w->p->blocks[w->p->block_of[w->q->position]]->tensors[w->q->tensor];
    return t->part == MF_PART_SHARED_EXPERT;
}

static const char *mlp_prefix(const place *w) {
    return is_shared(w) ? w->hub.shared : w->hub.dense;
}

static bool down_proj(const place *w, int i, mf_param_piece *out) {
    char name[64];
    bool shared = is_shared(w);
    snprintf(name, sizeof name, "%s.%s", mlp_prefix(w), shared ? w->hub.shared_down : "down_proj");
    return i == 0 && (w->q->bias ? whole(w, name, out) : column_shard(w, name, w->c->t, out));
}

/* Rows of gate, then of up: of two tensors, or of one. */
static bool gate_up_proj(const place *w, int i, mf_param_piece *out) {
    char name[64];
    int64_t half = w->q->rows / 2;
    bool shared = is_shared(w);
    if (shared && w->hub.shared_gate_up != NULL) {
        snprintf(name, sizeof name, "%s.%s", w->hub.shared, w->hub.shared_gate_up);
        return i < 2 &&
               rows_of(w, name, i * w->m->shared_ffn + w->c->t * half, half, i * half, out);
    }
    snprintf(name, sizeof name, "%s.%s", mlp_prefix(w), i == 0 ? "gate_proj" : "up_proj");
    return i < 2 && rows_of(w, name, w->c->t * half, half, i * half, out);
}

/* Rows of expert x (gate, up: part 0, 1) of a tensor over all experts, or of its biases. */
static bool sliced_expert(const place *w, bool fc2, int64_t x, int64_t part, mf_param_piece *out) {
    const mf_model *m = w->m;
    int64_t local = m->experts / w->l->ep, width = m->moe_ffn / w->l->etp;
    int64_t rows = fc2 ? m->hidden : width, parts = fc2 ? 1 : 2;
    *out = (mf_param_piece){.slice = fc2 ? m->hidden : 2 * m->moe_ffn,
                            .slice_cols = w->q->bias ? 1
                                          : fc2      ? m->moe_ffn
                                                     : m->hidden,
                            .halves = w->hub.experts == MF_HUB_EXPERTS_INTERLEAVED ? parts : 1,
                            .rows = rows,
                            .cols = w->q->cols,
                            .at_row = (x * parts + part) * rows,
                            .col = fc2 && !w->q->bias ? w->c->et * width : 0};
    out->row = (w->c->e * local + x) * out->slice + part * m->moe_ffn;
    out->row += fc2 ? 0 : w->c->et * width;
    out->first_replica = !fc2 || !w->q->bias || w->c->et == 0;
    snprintf(out->name, sizeof out->name, "%s%s%s", w->layer, w->hub.expert[fc2],
             w->q->bias ? "_bias" : "");
    if (w->hub.experts == MF_HUB_EXPERTS_ROWS) { /* rows of all experts, one below the other */
        out->slice = out->slice_cols = out->halves = 0;
    }
    return true;
}

int64_t mf_param_piece_element(const mf_param_piece *p, int64_t r, int64_t c, int64_t width) {
    int64_t row = p->row + r, col = p->col + c;
    if (p->slice == 0) {
        return row * width + col;
    }
    int64_t in = row % p->slice, half = p->slice / p->halves;
    return row / p->slice * p->slice * p->slice_cols + col * p->slice + in % half * p->halves +
           in / half;
}

static bool expert(const place *w, bool fc2, int i, mf_param_piece *out) {
    const mf_model *m = w->m;
    int64_t local = m->experts / w->l->ep, width = m->moe_ffn / w->l->etp;
    int pieces = fc2 ? 1 : 2;
    int64_t x = i / pieces;
    if (x >= local) {
        return false;
    }
    if (w->hub.experts != MF_HUB_EXPERTS_EACH) {
        return sliced_expert(w, fc2, x, i % pieces, out);
    }
    const char *pattern = w->hub.expert[fc2 ? 2 : i % 2], *mark = strchr(pattern, '#');
    char name[96];
    snprintf(name, sizeof name, "%.*s%lld%s", (int)(mark - pattern), pattern,
             LL(w->c->e * local + x), mark + 1);
    whole(w, name, out);
    out->first_replica = true;
    if (fc2) {
        out->rows = m->hidden;
        out->col = w->c->et * width;
        out->at_row = x * m->hidden;
    } else {
        out->row = w->c->et * width;
        out->rows = width;
        out->at_row = x * 2 * width + i % 2 * width;
    }
    return true;
}

static bool expert_fc1(const place *w, int i, mf_param_piece *out) {
    return expert(w, false, i, out);
}

static bool expert_fc2(const place *w, int i, mf_param_piece *out) {
    return expert(w, true, i, out);
}

static bool router(const place *w, int i, mf_param_piece *out) {
    return i == 0 && whole(w, w->hub.router, out);
}

static bool table(const place *w, const char *hub, mf_param_piece *out) {
    char name[96];
    snprintf(name, sizeof name, "%s%s", hub, w->suffix);
    return vocabulary(w, name, out);
}

static bool embedding(const place *w, int i, mf_param_piece *out) {
    return i == 0 && table(w, w->hub.embedding, out);
}

static bool head(const place *w, int i, mf_param_piece *out) {
    return i == 0 && table(w, w->m->tied_embeddings ? w->hub.embedding : w->hub.head, out);
}

/* Weights of a norm; of LayerNorm the biases behind them. */
static bool norm(const place *w, const char *name, int i, mf_param_piece *out) {
    if (!w->m->layer_norm) {
        return i == 0 && whole(w, name, out);
    }
    const int64_t cols = w->q->rows / 2;
    whole(w, name, out);
    snprintf(out->name, sizeof out->name, "%s%s%s", w->layer, name, i == 0 ? ".weight" : ".bias");
    out->rows = cols;
    out->at_row = i * cols;
    return i < 2;
}

static bool final_norm(const place *w, int i, mf_param_piece *out) {
    return norm(w, w->layer[0] != '\0' ? "shared_head.norm" : w->hub.norm, i, out);
}

static bool input_norm(const place *w, int i, mf_param_piece *out) {
    return norm(w, w->hub.input_norm, i, out);
}

static bool ffn_norm(const place *w, int i, mf_param_piece *out) {
    return norm(w, w->hub.ffn_norm, i, out);
}

static bool o_proj(const place *w, int i, mf_param_piece *out) {
    return i == 0 &&
           (w->q->bias ? whole(w, w->hub.o, out) : column_shard(w, w->hub.o, w->c->t, out));
}

/* Hub names of weights that stand alone: all of it on every rank, or rows split over TP. */
static const struct {
    const char *name, *hub;
    bool rows_by_tp;
} plain[] = {
    {"kv_a_norm", "self_attn.kv_a_layernorm", false},
    {"kv_a_proj", "self_attn.kv_a_proj_with_mqa", false},
    {"q_proj", "self_attn.q_proj", true},
    {"kv_b_proj", "self_attn.kv_b_proj", true},
    {"shared_gate", "mlp.shared_expert_gate", false},
    {"hnorm", "hnorm", false},
    {"enorm", "enorm", false},
    {"eh_proj", "eh_proj", true},
};

static bool sinks(const place *w, int i, mf_param_piece *out) {
    if (i > 0) {
        return false;
    }
    rows_of(w, w->hub.sinks, w->c->t * w->q->rows, w->q->rows, 0, out);
    snprintf(out->name, sizeof out->name, "%s%s", w->layer, w->hub.sinks);
    return true;
}

static const struct {
    const char *name;
    bool (*piece)(const place *w, int i, mf_param_piece *out);
} joined[] = {
    {"embed_tokens", embedding},
    {"lm_head", head},
    {"final_norm", final_norm},
    {"input_norm", input_norm},
    {"post_attention_norm", ffn_norm},
    {"qkv_proj", qkv},
    {"kv_proj", kv},
    {"q_a_proj", low_rank_down},
    {"q_a_norm", low_rank_norm},
    {"q_b_proj", low_rank_up},
    {"qk_norm", qk_norm},
    {"q_norm", q_norm},
    {"k_norm", k_norm},
    {"o_proj", o_proj},
    {"sinks", sinks},
    {"fc1", gate_up_proj},
    {"fc2", down_proj},
    {"router", router},
    {"expert_fc1", expert_fc1},
    {"expert_fc2", expert_fc2},
};

bool mf_param_piece_at(const mf_program *p, const mf_rank_coords *c, const mf_param *q, int i,
                       mf_param_piece *out) {
    place w = {.p = p, .m = &p->model, .l = &p->layout, .c = c, .q = q};
    w.hub = mf_model_hub_names(&p->model);
    mf_position_kind kind = mf_position_kind_of(&p->model, q->position);
    if (kind == MF_POS_LAYER || kind == MF_POS_MTP) {
        int64_t layer = mf_position_index(&p->model, q->position);
        const mf_layer_class *x =
            &w.m->layer_classes[kind == MF_POS_MTP ? w.m->mtp_class : w.m->layer_class[layer]];
        w.heads = mf_model_heads(w.m, x);
        w.kv_heads = mf_model_kv_heads(w.m, x);
        layer += kind == MF_POS_MTP ? p->model.layers : 0;
        snprintf(w.layer, sizeof w.layer, "model.layers.%lld.", LL(layer));
    }
    w.suffix = q->bias ? ".bias" : ".weight";
    *out = (mf_param_piece){.name = ""};
    for (size_t k = 0; k < sizeof joined / sizeof joined[0]; k++) {
        if (strcmp(joined[k].name, q->name) == 0) {
            return joined[k].piece(&w, i, out);
        }
    }
    for (size_t k = 0; k < sizeof plain / sizeof plain[0]; k++) {
        if (strcmp(plain[k].name, q->name) == 0 && i == 0) {
            whole(&w, plain[k].hub, out);
            if (plain[k].rows_by_tp) {
                out->row = c->t * q->rows;
                out->first_replica = true;
            }
            return true;
        }
    }
    return false;
}

bool mf_param_correction_bias(const mf_program *p, int position, char *out, size_t size) {
    mf_position_kind kind = mf_position_kind_of(&p->model, position);
    const mf_layer_class *x = mf_position_class(&p->model, position);
    if (x == NULL || !mf_model_has_correction(&p->model, x)) {
        return false;
    }
    int64_t layer = mf_position_index(&p->model, position);
    layer += kind == MF_POS_MTP ? p->model.layers : 0;
    snprintf(out, size, "model.layers.%lld.%s", LL(layer),
             mf_model_hub_names(&p->model).correction);
    return true;
}
