/* model_mixers.h - private to core/model: the tensors and products of mixers that are not
 * attention, and of the indexers of sparse attention. */
#ifndef MF_CORE_MODEL_MIXERS_H
#define MF_CORE_MODEL_MIXERS_H

#include "core/model/model.h"

#define MF_MIXER_TENSORS_MAX 24

typedef struct mf_mixer_tensor {
    const char *name; /* inside its layer */
    int64_t rows, cols;
} mf_mixer_tensor;

/* Tensors of a class's mixer, in place of attention's; returns how many (0 for attention). Sources:
 * Qwen's gated delta net and Nvidia's Mamba mixer as Megatron-LM has them (core/ssm), Kimi's delta
 * attention and MiniMax's lightning attention as their published code. */
int mf_model_mixer_tensors(const mf_model *m, const mf_layer_class *x,
                           mf_mixer_tensor out[MF_MIXER_TENSORS_MAX]);
/* The tensors by which a layer mixes copies of the residual stream (DeepSeek-V4; Megatron-LM's
 * hyper_connection.py); none where there is one copy. */
int mf_model_hyper_tensors(const mf_model *m, mf_mixer_tensor out[MF_MIXER_TENSORS_MAX]);
/* Tensors of the indexer of a layer whose class has one. */
int mf_model_index_tensors(const mf_model *m, mf_mixer_tensor out[MF_MIXER_TENSORS_MAX]);

/* Multiply-adds of a token in a mixer's forward pass, as Megatron-LM counts them: projections,
 * convolution, and the rule (GDN, KDA: 4 x heads x width^2; Mamba-2: 3.5 x heads x width x state;
 * lightning: causal chunks and the state's two products; compressed attention: what is seen and
 * scored in samples of `seq` tokens). */
double mf_model_mixer_madds(const mf_model *m, const mf_layer_class *c, double seq);
/* Of an indexer, over `keys` keys on average (DeepSeek-V3.2: heads x (width + 1) a pair). */
double mf_model_index_madds(const mf_model *m, double keys);

#endif
