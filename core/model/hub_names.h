/* hub_names.h - the names of a model's tensors in Hugging Face checkpoints.
 *
 * Names of linear maps and norms leave out ".weight" and ".bias", and names inside a layer leave
 * out "model.layers.N.". Whole names (router bias, experts) end as the hub's do; '#' is the number
 * of an expert.
 */
#ifndef MF_CORE_HUB_NAMES_H
#define MF_CORE_HUB_NAMES_H

#include "core/model/model.h"

/* How a checkpoint keeps the experts of a layer. */
typedef enum mf_hub_experts {
    MF_HUB_EXPERTS_EACH,        /* three tensors for each: `expert` */
    MF_HUB_EXPERTS_INTERLEAVED, /* [experts, in, out], columns of gate and up in turn (GPT-OSS) */
    MF_HUB_EXPERTS_COLUMNS,     /* [experts, in, out], those of gate first (Llama 4) */
    MF_HUB_EXPERTS_ROWS,        /* [experts, out, in], rows of gate first (Granite) */
} mf_hub_experts;

typedef struct mf_hub_names {
    const char *embedding, *norm, *head; /* outside layers */
    const char *input_norm, *ffn_norm;
    const char *qkv; /* q, k and v in one, one below the other; NULL: apart */
    const char *q, *k, *v, *o, *q_norm, *k_norm, *sinks;
    const char *dense;          /* prefix of "gate_proj" and so on in dense layers */
    const char *shared;         /* of the shared expert */
    const char *shared_gate_up; /* gate and up in one (Granite); NULL: apart */
    const char *shared_down;
    const char *router, *correction; /* correction: the whole name */
    mf_hub_experts experts;
    const char *expert[3]; /* gate, up, down of expert '#'; other kinds: gate and up, down */
} mf_hub_names;

/* Names of a model's family, the common ones where it has none of its own. */
mf_hub_names mf_model_hub_names(const mf_model *m);

#endif
