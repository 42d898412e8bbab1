/* write_bridge.c - a model that no recipe of Megatron-Bridge builds: its flags as fields of
 * Megatron-Bridge's providers, and the program that makes a configuration of them and trains.
 *
 * Facts: fields and defaults of src/megatron/bridge/models/gpt_provider.py, mla_provider.py and
 * hybrid/hybrid_provider.py and of the Megatron-Core beside them (3rdparty/Megatron-LM);
 * utils/activation_map.py for the names of activations; training/config.py, comm_overlap.py,
 * mixed_precision.py and pretrain.py; what core_transformer_config_from_args of
 * megatron/training/arguments.py makes of the flags. At the commit of launch/target/target.c.
 */
#include "launch/write/write.h"

#include <string.h>

#define LL(x) ((long long)(x))

bool mf_write_builds(const mf_launch *x) {
    return x->target == MF_TARGET_BRIDGE && !mf_target_has_recipe(x->model, x->model_name);
}

/* --- fields ----------------------------------------------------------------------------------- */

static bool has(mf_settings *s, const char *name) {
    return mf_settings_text(s, name, NULL) != NULL;
}

/* A switch that is off, where a provider may have it on. */
static void say_off(mf_settings *s, const char *name) {
    if (!has(s, name)) {
        mf_settings_put(s, name, "false");
    }
}

/* A value under the name that it has in this kind of provider. */
static void move(mf_settings *s, const char *from, const char *to) {
    const char *value = mf_settings_text(s, from, NULL);
    if (value != NULL) {
        mf_settings_put(s, to, "%s", value);
        mf_settings_drop(s, from);
    }
}

static void write_activation(const mf_model *m, mf_settings *s) {
    const bool gated = m->swiglu_limit > 0 || !m->ungated;
    mf_settings_put(s, "model.gated_linear_unit", gated ? "true" : "false");
    mf_settings_put(s, "model.activation_func", "%s",
                    m->swiglu_limit > 0 ? "quick_gelu"
                    : gated             ? "silu"
                                        : "squared_relu");
    mf_settings_put(s, "model.bias_activation_fusion", gated ? "true" : "false");
    mf_settings_drop(s, "swiglu");
    mf_settings_drop(s, "squared-relu");
    mf_settings_drop(s, "quick-geglu");
}

static bool has_experts(const mf_layer_class *x) {
    return x->ffn == MF_FFN_MOE;
}

static bool is_delta(const mf_layer_class *x) {
    return x->mixer == MF_MIXER_GDN;
}

/* One number a layer: nobody evaluates "([0]*3+[1]*58)" there. */
static void write_each(const mf_model *m, bool (*is)(const mf_layer_class *x), const char *name,
                       mf_settings *s) {
    char text[2 * MF_MODEL_MAX_LAYERS + 2];
    size_t used = 0;
    if (!has(s, name)) {
        return;
    }
    for (int64_t i = 0; i < m->layers; i++) {
        text[used++] = i > 0 ? ',' : '[';
        text[used++] = is(&m->layer_classes[m->layer_class[i]]) ? '1' : '0';
    }
    text[used++] = ']';
    text[used] = '\0';
    mf_settings_put(s, name, "%s", text);
}

static void write_positions(const mf_model *m, mf_settings *s) {
    if (m->attn != MF_ATTN_MLA && m->rope_scaling.kind == MF_ROPE_YARN) {
        move(s, "rotary-scaling-factor", "model.yarn_rotary_scaling_factor");
        move(s, "mscale", "model.yarn_mscale");
        mf_settings_put(s, "model.yarn_mscale_all_dim", "0.0");
        mf_settings_put(s, "yarn-correction-range-round-to-int",
                        m->rope_scaling.truncate ? "true" : "false");
    }
    say_off(s, "no-rope-fusion");
    if (has(s, "window-size")) {
        const char *window = mf_settings_text(s, "window-size", "");
        char pair[64];
        snprintf(pair, sizeof pair, "[%s]", window);
        mf_settings_put(s, "window-size", "%s", pair);
    }
}

void mf_write_bridge_model(const mf_model *m, const mf_layout *l, mf_settings *out) {
    mf_write_model(m, l, out);
    write_activation(m, out);
    write_each(m, has_experts, "moe-layer-freq", out);
    write_each(m, is_delta, "linear-attention-freq", out);
    write_positions(m, out);
    say_off(out, "disable-bias-linear");
    say_off(out, "untie-embeddings-and-output-weights");
    if (m->attn == MF_ATTN_MLA && m->q_lora_rank == 0) {
        mf_settings_put(out, "q-lora-rank", "null");
    }
    mf_settings_put(out, "vocab-size", "%lld", LL((m->vocab + l->tp - 1) / l->tp * l->tp));
}

/* --- the program ------------------------------------------------------------------------------ */

/* Layers of attention alone, experts or none by moe_layer_freq; layers whose attention has a
 * variant. */
static const char plain_layers[] =
    "from functools import partial\n"
    "from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec\n"
    "layers = partial(get_gpt_decoder_block_spec, use_transformer_engine=True)\n";
static const char variant_layers[] =
    "from megatron.core.models.gpt import experimental_attention_variant_module_specs as specs\n"
    "layers = specs.get_transformer_block_with_experimental_attention_variant_spec\n";

static bool has_variant(const mf_model *m) {
    bool delta = false;
    for (int i = 0; i < m->classes; i++) {
        delta = delta || is_delta(&m->layer_classes[i]);
    }
    return delta || m->index_topk > 0;
}

static void print_provider(const mf_model *m, FILE *out) {
    const bool hybrid = mf_target_is_hybrid(m), latent = m->attn == MF_ATTN_MLA;
    const char *name = hybrid   ? "HybridModelProvider"
                       : latent ? "MLAModelProvider"
                                : "GPTModelProvider";
    fprintf(out, "from megatron.bridge.models.%s import %s\n",
            hybrid   ? "hybrid.hybrid_provider"
            : latent ? "mla_provider"
                     : "gpt_provider",
            name);
    if (hybrid) {
        fprintf(out, "model = %s()\n", name);
    } else {
        fprintf(out, "%smodel = %s(transformer_layer_spec=layers)\n",
                has_variant(m) ? variant_layers : plain_layers, name);
    }
    fputs("model.bias_dropout_fusion = model.persist_layer_norm = True\n"
          "model.gradient_accumulation_fusion = True\n",
          out);
}

void mf_write_bridge_program(const mf_launch *x, FILE *out) {
    fputs("# No recipe of Megatron-Bridge builds this model: a program of this script makes the\n"
          "# configuration, with what ARGS and DATA say, and trains.\n"
          "TRAIN='import sys\n"
          "from megatron.bridge.training import config as parts\n"
          "from megatron.bridge.training.comm_overlap import CommOverlapConfig\n"
          "from megatron.bridge.training.gpt_step import forward_step\n"
          "from megatron.bridge.training.pretrain import pretrain\n"
          "from megatron.bridge.training.tokenizers.config import TokenizerConfig\n"
          "from megatron.bridge.training.utils.omegaconf_utils import "
          "process_config_with_overrides\n",
          out);
    print_provider(x->model, out);
    fputs("config = parts.ConfigContainer(\n"
          "    model=model,\n"
          "    train=parts.TrainingConfig(),\n"
          "    optimizer=parts.OptimizerConfig(),\n"
          "    scheduler=parts.SchedulerConfig(),\n"
          "    ddp=parts.DistributedDataParallelConfig(),\n"
          "    dataset=parts.GPTDatasetConfig(seq_length=1, random_seed=1234, split=\"99,1,0\",\n"
          "        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,\n"
          "        dataloader_type=\"single\"),\n"
          "    logger=parts.LoggerConfig(),\n"
          "    tokenizer=TokenizerConfig(),\n"
          "    checkpoint=parts.CheckpointConfig(),\n"
          "    comm_overlap=CommOverlapConfig(tp_comm_overlap=False),\n"
          ")\n"
          "process_config_with_overrides(config, cli_overrides=sys.argv[1:])\n"
          "pretrain(config, forward_step)'\n\n",
          out);
}
