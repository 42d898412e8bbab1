/* model_report.c - a model and where its parameters are. */
#include "report/inputs/model_report.h"

#include "launch/target/target.h"
#include "report/text/output.h"
#include "report/text/show.h"

#include <string.h>

enum { PARTS = MF_PART_INDEXER + 1 };

static const char *const part_text[PARTS] = {
    [MF_PART_EMBEDDING] = "embedding",
    [MF_PART_ATTENTION] = "attention",
    [MF_PART_NORM] = "norms",
    [MF_PART_DENSE_FFN] = "dense_ffn",
    [MF_PART_ROUTER] = "router",
    [MF_PART_SHARED_EXPERT] = "shared_expert",
    [MF_PART_EXPERT] = "experts",
    [MF_PART_HEAD] = "head",
    [MF_PART_MTP] = "mtp",
    [MF_PART_MIXER] = "mixer",
    [MF_PART_INDEXER] = "indexer",
};

static int64_t moe_layers(const mf_model *m) {
    int64_t n = 0;
    for (int64_t i = 0; i < m->layers; i++) {
        n += m->layer_classes[m->layer_class[i]].ffn == MF_FFN_MOE;
    }
    return n;
}

/* --- one model -------------------------------------------------------------------------------- */

typedef struct parts {
    const mf_model *model;
    int64_t elements[PARTS];
} parts;

/* Parameters of the layers proper; whatever belongs to an MTP depth counts as MTP. */
static int add_tensor(const mf_model_tensor *t, void *user) {
    parts *p = user;
    if (!t->buffer) {
        bool mtp = t->part == MF_PART_MTP || t->layer >= p->model->layers;
        p->elements[mtp ? MF_PART_MTP : t->part] += t->rows * t->cols;
    }
    return 0;
}

void mf_model_report_json(mf_json_writer *w, const mf_model *m) {
    mf_model_counts c;
    parts p = {.model = m};
    mf_model_count(m, &c);
    mf_model_tensors(m, add_tensor, &p);
    mf_json_write_object(w, NULL, false);
    mf_json_write_string(w, "name", m->name);
    mf_json_write_string(w, "family", m->family);
    mf_json_write_bool(w, "can_plan", mf_model_not_lowered(m) == NULL);
    mf_json_write_bool(w, "can_train", mf_model_not_executed(m) == NULL);
    mf_json_write_bool(w, "can_train_on_gpu", mf_model_not_on_gpu(m) == NULL);
    mf_json_write_bool(w, "in_megatron_bridge", mf_model_in_bridge(m));
    mf_json_write_i64(w, "layers", m->layers);
    mf_json_write_i64(w, "moe_layers", moe_layers(m));
    mf_json_write_i64(w, "mtp_layers", m->mtp_layers);
    mf_json_write_i64(w, "hidden", m->hidden);
    mf_json_write_i64(w, "vocab", m->vocab);
    mf_json_write_string(w, "attention", m->attn == MF_ATTN_MLA ? "mla" : "gqa");
    mf_json_write_i64(w, "heads", m->heads);
    mf_json_write_i64(w, "kv_heads", m->kv_heads);
    mf_json_write_i64(w, "experts", m->experts);
    mf_json_write_i64(w, "top_k", m->top_k);
    mf_json_write_i64(w, "expert_ffn", m->moe_ffn);
    mf_json_write_i64(w, "shared_ffn", m->shared_ffn);
    mf_json_write_i64(w, "dense_ffn", m->ffn);
    mf_json_write_i64(w, "parameters", c.total);
    mf_json_write_i64(w, "active_parameters", c.active);
    mf_json_write_i64(w, "mtp_parameters", c.mtp);
    mf_json_write_i64(w, "routed_parameters", c.routed);
    mf_json_write_object(w, "parameters_by_part", false);
    for (int i = 0; i < PARTS; i++) {
        if (p.elements[i] > 0) {
            mf_json_write_i64(w, part_text[i], p.elements[i]);
        }
    }
    mf_json_write_end(w);
    mf_json_write_f64(w, "gflops_per_token_at_4096", mf_model_flops_per_token(m, 4096) / 1e9);
    mf_json_write_string(w, "flops_convention", mf_flops_convention);
    mf_json_write_end(w);
}

static void print_attention(FILE *out, const mf_model *m) {
    if (m->attn == MF_ATTN_MLA) {
        fprintf(out,
                "attention   latent (MLA), %lld heads of %lld + %lld and %lld, ranks %s for q and "
                "%s for kv\n",
                (long long)m->heads, (long long)m->qk_nope_head_dim, (long long)m->qk_rope_head_dim,
                (long long)m->v_head_dim, mf_show_i64(m->q_lora_rank).s,
                mf_show_i64(m->kv_lora_rank).s);
    } else {
        fprintf(out, "attention   %lld query heads and %lld key and value heads of %lld\n",
                (long long)m->heads, (long long)m->kv_heads, (long long)m->head_dim);
    }
}

static int64_t mixing_layers(const mf_model *m) {
    int64_t n = 0;
    for (int64_t i = 0; i < m->layers; i++) {
        mf_mixer_kind k = m->layer_classes[m->layer_class[i]].mixer;
        n += k != MF_MIXER_ATTENTION && k != MF_MIXER_NONE;
    }
    return n;
}

static const char *export_text(const mf_model *m) {
    const bool plan = mf_model_not_lowered(m) == NULL;
    const bool flags = mf_target_check_model(MF_TARGET_MEGATRON, m, m->name, NULL) == MF_OK;
    const bool bridge = mf_target_check_model(MF_TARGET_BRIDGE, m, m->name, NULL) == MF_OK;
    return !plan             ? ""
           : flags && bridge ? ", exported to Megatron-LM and Megatron-Bridge"
           : flags           ? ", exported to Megatron-LM"
           : bridge          ? ", exported to Megatron-Bridge"
                             : "";
}

/* What can be done with it, and what stands in the way of the rest. */
static void print_abilities(FILE *out, const mf_model *m) {
    const char *plan = mf_model_not_lowered(m), *cpu = mf_model_not_executed(m);
    const char *gpu = mf_model_not_on_gpu(m);
    fprintf(out, "can         be counted%s%s%s%s\n", plan == NULL ? ", planned" : "",
            cpu == NULL ? ", trained on CPU ranks" : "", gpu == NULL ? ", on GPUs" : "",
            export_text(m));
    if (gpu != NULL) {
        fprintf(out, "            not be %s yet: %s\n",
                plan != NULL  ? "planned"
                : cpu != NULL ? "trained"
                              : "trained on GPUs",
                gpu);
    }
}

void mf_model_report_print(FILE *out, const mf_model *m) {
    mf_model_counts c;
    parts p = {.model = m};
    mf_model_count(m, &c);
    mf_model_tensors(m, add_tensor, &p);
    fprintf(out, "%s (%s)\n", m->name, m->family);
    fprintf(out, "parameters  %s, of which a token uses %s (%s and %s)\n",
            mf_show_count((double)c.total).s, mf_show_count((double)c.active).s,
            mf_show_i64(c.total).s, mf_show_i64(c.active).s);
    if (c.mtp > 0) {
        fprintf(out, "            and %s in %lld MTP depth%s\n", mf_show_count((double)c.mtp).s,
                (long long)m->mtp_layers, m->mtp_layers == 1 ? "" : "s");
    }
    fprintf(out,
            "layers      %lld, of which %lld are Mixture-of-Experts; hidden %s, vocabulary "
            "%s%s\n",
            (long long)m->layers, (long long)moe_layers(m), mf_show_i64(m->hidden).s,
            mf_show_i64(m->vocab).s, m->tied_embeddings ? ", embedding and head tied" : "");
    print_attention(out, m);
    if (mixing_layers(m) > 0 && m->hyper_streams > 0) {
        fprintf(out, "mixers      %lld layers over compressed keys, %lld residual streams\n",
                (long long)mixing_layers(m), (long long)m->hyper_streams);
    } else if (mixing_layers(m) > 0) {
        fprintf(out, "mixers      %lld layers without attention: %lld heads of %lld, state %lld\n",
                (long long)mixing_layers(m), (long long)m->mixer.value_heads,
                (long long)m->mixer.value_dim, (long long)m->mixer.key_dim);
    }
    if (m->index_topk > 0) {
        fprintf(out, "indexer     %lld heads of %lld choose %s keys\n", (long long)m->index_heads,
                (long long)m->index_head_dim, mf_show_i64(m->index_topk).s);
    }
    if (m->experts > 0) {
        fprintf(out, "experts     %lld of width %s, %lld per token", (long long)m->experts,
                mf_show_i64(m->moe_ffn).s, (long long)m->top_k);
        if (m->n_group > 1) {
            fprintf(out, " from %lld of %lld groups", (long long)m->topk_group,
                    (long long)m->n_group);
        }
        if (mf_model_hashed_layers(m) > 0) {
            fprintf(out, " (by a table of tokens in %lld layers)",
                    (long long)mf_model_hashed_layers(m));
        }
        if (m->shared_ffn > 0) {
            fprintf(out, ", shared expert of width %s", mf_show_i64(m->shared_ffn).s);
        }
        putc('\n', out);
    }
    if (m->ffn > 0) {
        fprintf(out, "dense FFN   width %s\n", mf_show_i64(m->ffn).s);
    }
    print_abilities(out, m);
    fprintf(out,
            "FLOPs       %.1f GFLOP per token, forward and backward, at 4,096 tokens\n"
            "            %s\n",
            mf_model_flops_per_token(m, 4096) / 1e9, mf_flops_convention);
    fputs("\nwhere the parameters are\n", out);
    for (int i = 0; i < PARTS; i++) {
        if (p.elements[i] > 0) {
            double share = (double)p.elements[i] / (double)(c.total + c.mtp);
            fprintf(out, "  %-14s %8s  %7s", part_text[i], mf_show_count((double)p.elements[i]).s,
                    mf_show_percent(share).s);
            mf_show_bar(out, share, 1, 40);
            putc('\n', out);
        }
    }
}

/* --- all of them ------------------------------------------------------------------------------ */

void mf_model_report_heads(FILE *out) {
    fprintf(out, "%-22s %-16s %8s %8s %6s %6s  %-9s %s\n", "model", "family", "total", "active",
            "layers", "hidden", "experts", "can");
}

void mf_model_report_row(FILE *out, const mf_model *m) {
    char experts[32] = "-";
    mf_model_counts c;
    mf_model_count(m, &c);
    if (m->experts > 0) {
        snprintf(experts, sizeof experts, "%lld of %lld", (long long)m->top_k,
                 (long long)m->experts);
    }
    fprintf(out, "%-22s %-16s %8s %8s %6lld %6lld  %-9s %s%s\n", m->name, m->family,
            mf_show_count((double)c.total).s, mf_show_count((double)c.active).s,
            (long long)m->layers, (long long)m->hidden, experts,
            mf_model_not_on_gpu(m) == NULL     ? "plan, CPU, GPU"
            : mf_model_not_executed(m) == NULL ? "plan, CPU"
            : mf_model_not_lowered(m) == NULL  ? "plan"
                                               : "count",
            export_text(m)[0] != '\0' ? ", export" : "");
}
