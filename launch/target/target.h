/* target.h - the programs that a plan may be run by, and what each of them can express.
 *
 * A plan that a target cannot express is changed step by step, each step one difference, until it
 * is the plan that the target would run in its place. What is left is expressible, and
 * `launch/write/write.h` writes exactly that.
 */
#ifndef MF_LAUNCH_TARGET_H
#define MF_LAUNCH_TARGET_H

#include "core/plan/plan.h"

typedef enum mf_target {
    MF_TARGET_MEGATRON, /* Megatron-LM: pretrain_gpt.py and its flags */
    MF_TARGET_BRIDGE, /* Megatron-Bridge: a recipe, or a model made by the script, and overrides */
    MF_TARGET_COUNT
} mf_target;

typedef struct mf_target_info {
    const char *word;    /* "megatron" */
    const char *program; /* "Megatron-LM" */
    const char *commit;  /* whose spelling and rules these are, and its date */
} mf_target_info;

const mf_target_info *mf_target_info_of(mf_target t);
/* Errors: MF_USAGE with the known words and a near one. */
mf_status mf_target_parse(const char *word, mf_target *out, mf_err *e);

/* Whether the target has words for what the model consists of; `name` is how moefold loads it.
 * Errors: MF_INFEASIBLE naming the parts that it has none for. */
mf_status mf_target_check_model(mf_target t, const mf_model *m, const char *name, mf_err *e);

/* A hybrid is another model class there (pretrain_hybrid.py): a letter for each layer, which is a
 * mixer or a feed-forward part. */
bool mf_target_is_hybrid(const mf_model *m);
/* Appends a layer's letters ("M", "*E"): what mixes tokens and what follows it are two layers
 * there. */
void mf_target_add_letters(const mf_layer_class *x, char *out, size_t size);
/* Whether every layer is one letter. */
bool mf_target_one_letter(const mf_model *m);
/* Sparse attention: every how many layers one chooses keys for those behind it, from which layer
 * on; false where layers share otherwise. */
bool mf_target_shares_choices(const mf_model *m, int64_t *freq, int64_t *offset);
/* Whether no layer of attention rotates positions. */
bool mf_target_rotates_none(const mf_model *m);
/* Class of the layer at a position, or of its MTP block. */
const mf_layer_class *mf_target_class_at(const mf_model *m, int position);

/* Whether attention can be captured in a CUDA graph of its own: not with biases, where weight
 * gradients wait for the merged passes while gradients are reduced. */
bool mf_target_captures_attention(const mf_model *m, const mf_layout *l);
/* Whether a whole step can be one CUDA graph: routed rows change in number from step to step,
 * unless they are padded to the experts' capacity (docs/user-guide/features/cuda_graph.md). */
bool mf_target_captures_step(const mf_model *m, const mf_layout *l);

/* Megatron-Bridge's recipe for the model of this name ("deepseek_v3_pretrain_config"); NULL: there
 * is none. */
const char *mf_target_recipe(const char *name);
/* Whether that recipe builds this very model: one with other widths is another; how many depths of
 * MTP and, where all layers are alike, how many layers there are is a setting beside it. */
bool mf_target_has_recipe(const mf_model *m, const char *name);

/* The name of a step that replaces choices by layer. */
#define MF_CONCESSION_MEMORY "memory"

/* A step away from a plan. It may look at all of it. */
typedef struct mf_concession {
    const char *what; /* "schedule", "memory choices", ...: what the plan asks for */
    /* Why it cannot be said and what stands instead: filled in by the step. */
    char why[320];
} mf_concession;

/* Called after each step that changed the plan. A status other than MF_OK ends the walk. */
typedef mf_status (*mf_conceded_fn)(void *user, const mf_plan *p, const mf_concession *c,
                                    mf_err *e);

/* One memory choice for all layers, as a target has it: modules, or the first `first` layers of
 * every virtual stage whole (0: all of them). Layers offload by turns, as mf_assignment_even
 * spreads them over `share`. */
typedef struct mf_common_choice {
    uint16_t recompute, offload;
    int first;
    double share;
} mf_common_choice;

/* Makes *p (layout and assignment; predictions are left alone) the plan that the target runs, and
 * calls `note` for each difference; a ZeRO level of parameters that one rank has alone is none,
 * though it becomes that of the others. Errors: what `note` returns; MF_LAYOUT where no plan of
 * these degrees can be said. */
mf_status mf_target_concede(mf_target t, const mf_model *m, mf_plan *p, mf_conceded_fn note,
                            void *user, mf_err *e);
/* The same; where no choice for all layers gives what the layers of *p choose, `instead` does.
 * NULL: all layers recompute what any of them does. */
mf_status mf_target_concede_to(mf_target t, const mf_model *m, mf_plan *p,
                               const mf_common_choice *instead, mf_conceded_fn note, void *user,
                               mf_err *e);

/* Positions at which a chunk of a pipeline stage may begin, but the first: not at a layer that
 * shares another's choice of keys. start: NULL or [MF_MAX_POSITIONS]. Returns how many. */
int mf_target_chunk_starts(const mf_model *m, int *start);

/* What a layer of the class can recompute, and offload, in the target's words: bits of `mask` that
 * change something in such a layer and that the target knows. */
uint16_t mf_target_recomputed(const mf_model *m, const mf_layer_class *x, uint16_t mask);
uint16_t mf_target_offloaded(const mf_model *m, const mf_layer_class *x, uint16_t mask);

/* The choice that gives exactly the assignment; false when there is none. */
bool mf_common_choice_of(const mf_model *m, const mf_assignment *a, mf_common_choice *out);
/* Do all layers choose the same, whatever a layer of their class can do of it? */
bool mf_target_chose_alike(const mf_model *m, const mf_assignment *a);
/* Gives every layer of the assignment what the choice says. */
void mf_common_choice_apply(const mf_model *m, const mf_common_choice *c, mf_assignment *a);

#endif
