/* write.h - a plan as the settings, the environment and the launch line of a target.
 *
 * The plan is one that the target can express (mf_target_concede); reading what is written back
 * (launch/read/read.h) gives the same layout and assignment.
 */
#ifndef MF_LAUNCH_WRITE_H
#define MF_LAUNCH_WRITE_H

#include "launch/target/target.h"
#include "launch/words/settings.h"

#include "core/cluster/cluster.h"

#include <stdio.h>

typedef enum mf_launcher { MF_LAUNCHER_TORCHRUN, MF_LAUNCHER_SRUN } mf_launcher;

typedef struct mf_launch {
    mf_target target;
    mf_launcher launcher;
    const mf_model *model;
    const mf_cluster *cluster;
    const mf_plan *plan;
    const char *model_name, *cluster_name; /* as moefold loads them again */
} mf_launch;

/* The model, one that mf_target_check_model passes, in Megatron-LM's flags. */
void mf_write_model(const mf_model *m, const mf_layout *l, mf_settings *out);

/* The same as settings of Megatron-Bridge, where no recipe builds the model (mf_write_builds). */
void mf_write_bridge_model(const mf_model *m, const mf_layout *l, mf_settings *out);

/* Whether the script has to build the model itself: it is Megatron-Bridge's, and no recipe does. */
bool mf_write_builds(const mf_launch *x);

/* Everything that the script hands to the program: the model where no recipe builds it, the plan,
 * and what a start needs. */
void mf_write_settings(const mf_launch *x, mf_settings *out);

/* Its layers that are not plain attention. */
void mf_write_mixers(const mf_model *m, mf_settings *out);

/* Layers as runs of 0 and 1, as Python spells lists: "([0]*3+[1]*58)". Returns whether both occur.
 */
bool mf_write_runs(const mf_model *m, bool (*is)(const mf_layer_class *x), char *out, size_t size);

/* Degrees, schedule, communication, sharding, precision, memory choices, graphs. */
void mf_write_layout(const mf_launch *x, mf_settings *out);

/* Optimizer, learning rate, checkpoints, logging: a start that a user goes on from. */
void mf_write_run(const mf_launch *x, mf_settings *out);

/* Environment variables that the target asserts or that its kernels read. */
void mf_write_environment(const mf_launch *x, mf_settings *out);

/* "Et*3|t*4|...|tmL": the layers of each virtual stage, in Megatron-LM's notation. */
void mf_write_stages(const mf_model *m, const mf_assignment *a, char *out, size_t size);

/* "MEM*E|ME", "/" before each MTP depth: the same of a hybrid, whose embedding, MTP depths and head
 * stand at the ends. */
void mf_write_letters(const mf_model *m, const mf_assignment *a, bool depths, char *out,
                      size_t size);

/* The program of such a script, as a variable of the shell: TRAIN. */
void mf_write_bridge_program(const mf_launch *x, FILE *out);

/* A setting as the target's command line takes it, quoted for the shell; false where the target
 * has no word for it. */
bool mf_write_item(mf_target t, const mf_setting *s, char *out, size_t size);

/* The whole script. notes: what is not the same, [count] lines. Errors: MF_NOMEM. */
mf_status mf_write_script(const mf_launch *x, const char *const *notes, int count, FILE *out,
                          mf_err *e);

#endif
