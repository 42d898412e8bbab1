/* reference_attention.h - of tests/support/reference_model.h: attention, grouped or latent, one
 * token after the other. */
#ifndef MF_TESTS_REFERENCE_ATTENTION_H
#define MF_TESTS_REFERENCE_ATTENTION_H

#include "tests/support/reference_base.h"

#define REF_WIDE 512 /* widest vector of these small models */

static inline void ref_gqa(ref_model *r, const num *x, int64_t at, num *q, num *k, num *v) {
    const mf_model *m = &r->m;
    int64_t d = m->head_dim, rot = (int64_t)((double)d * m->partial_rotary + 0.5) / 2 * 2;
    num raw[REF_WIDE];
    for (int side = 0; side < 2; side++) {
        const char *norm = side == 0 ? "self_attn.q_norm" : "self_attn.k_norm";
        num *to = side == 0 ? q : k;
        int64_t heads = side == 0 ? m->heads : m->kv_heads;
        ref_linear(r, side == 0 ? "self_attn.q_proj" : "self_attn.k_proj", x, raw);
        memcpy(to, raw, (size_t)(heads * d) * sizeof *to);
        if (m->qk_norm_full) {
            ref_norm(r, norm, raw, heads * d, to);
        }
        for (int64_t h = 0; h < heads; h++) {
            if (m->qk_norm) {
                ref_norm(r, norm, raw + h * d, d, to + h * d);
            }
            ref_rope(r, to + h * d, rot, at);
        }
    }
    ref_linear(r, "self_attn.v_proj", x, v);
}

static inline void ref_mla(ref_model *r, const num *x, int64_t at, num *q, num *k, num *v) {
    const mf_model *m = &r->m;
    int64_t d = m->head_dim, nope = m->qk_nope_head_dim, rope = m->qk_rope_head_dim;
    num low[REF_WIDE], normed[REF_WIDE], kv[REF_WIDE];
    if (m->q_lora_rank > 0) {
        ref_linear(r, "self_attn.q_a_proj", x, low);
        ref_norm_eps(r, "self_attn.q_a_layernorm", low, m->q_lora_rank, 1e-6, normed);
        ref_linear(r, "self_attn.q_b_proj", normed, q);
    } else {
        ref_linear(r, "self_attn.q_proj", x, q);
    }
    ref_linear(r, "self_attn.kv_a_proj_with_mqa", x, low);
    ref_rope(r, low + m->kv_lora_rank, rope, at);
    ref_norm_eps(r, "self_attn.kv_a_layernorm", low, m->kv_lora_rank, 1e-6, normed);
    ref_linear(r, "self_attn.kv_b_proj", normed, kv);
    for (int64_t h = 0; h < m->heads; h++) {
        const num *head = kv + h * (nope + m->v_head_dim);
        ref_rope(r, q + h * d + nope, rope, at);
        memcpy(k + h * d, head, (size_t)nope * sizeof *k);
        memcpy(k + h * d + nope, low + m->kv_lora_rank, (size_t)rope * sizeof *k);
        memcpy(v + h * m->v_head_dim, head + nope, (size_t)m->v_head_dim * sizeof *v);
    }
}

/* x [samples * seq][hidden] += attention. */
static inline void ref_attention(ref_model *r, num *x, int64_t window) {
    const mf_model *m = &r->m;
    tape *t = &r->t;
    int64_t h = m->hidden, d = m->head_dim, dv = m->v_head_dim, seq = r->o.seq;
    int64_t kvh = m->attn == MF_ATTN_MLA ? m->heads : m->kv_heads;
    num *q = calloc((size_t)(seq * REF_WIDE * 3), sizeof *q);
    num *k = q + seq * REF_WIDE, *v = k + seq * REF_WIDE;
    const ref_tensor *sinks = m->attn_sinks ? ref_weight(r, "self_attn.sinks") : NULL;
    double scale = 1.0 / sqrt((double)d);
    if (m->rope_scaling.kind == MF_ROPE_YARN) {
        scale *= m->rope_scaling.softmax_scale;
    }
    for (int64_t s = 0; s < r->o.samples; s++) {
        num *rows = x + s * seq * h;
        for (int64_t i = 0; i < seq; i++) {
            num normed[REF_WIDE];
            ref_norm(r, "input_layernorm", rows + i * h, h, normed);
            (m->attn == MF_ATTN_MLA ? ref_mla : ref_gqa)(r, normed, i, q + i * REF_WIDE,
                                                         k + i * REF_WIDE, v + i * REF_WIDE);
        }
        for (int64_t i = 0; i < seq; i++) {
            num out[REF_WIDE], y[REF_WIDE];
            for (int64_t head = 0; head < m->heads; head++) {
                int64_t kv = head / (m->heads / kvh);
                num total = sinks != NULL ? t_exp(t, sinks->at + (num)head) : tape_put(t, 0.0);
                num *o = out + head * dv;
                for (int64_t c = 0; c < dv; c++) {
                    o[c] = tape_put(t, 0.0);
                }
                for (int64_t j = 0; j <= i; j++) {
                    if (window > 0 && i - j >= window) {
                        continue;
                    }
                    num dot = tape_put(t, 0.0);
                    for (int64_t c = 0; c < d; c++) {
                        dot = t_fma(t, dot, q[i * REF_WIDE + head * d + c],
                                    k[j * REF_WIDE + kv * d + c]);
                    }
                    num weight = t_exp(t, t_line(t, dot, scale, 0.0));
                    total = t_add(t, total, weight);
                    for (int64_t c = 0; c < dv; c++) {
                        o[c] = t_fma(t, o[c], weight, v[j * REF_WIDE + kv * dv + c]);
                    }
                }
                for (int64_t c = 0; c < dv; c++) {
                    o[c] = t_div(t, o[c], total);
                }
            }
            ref_linear(r, "self_attn.o_proj", out, y);
            for (int64_t c = 0; c < h; c++) {
                rows[i * h + c] = t_add(t, rows[i * h + c], y[c]);
            }
        }
    }
    free(q);
}

#endif
