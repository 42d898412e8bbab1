/* stage_text.h - reads which positions the virtual stages hold, as Megatron writes it: E embedding,
 * t decoder layer, m MTP depth, L loss (our head), | the end of a virtual stage, *n repeats the
 * letter or the (group) before it. */
#ifndef MF_JOB_STAGE_TEXT_H
#define MF_JOB_STAGE_TEXT_H

#include "core/program/lower.h"

/* Sets a->first from `text`; a has the positions and virtual stages of model and layout, and keeps
 * its memory choices. Ignores MTP depths that the model does not have. Errors: MF_USAGE, which
 * leaves a unchanged. */
mf_status mf_stage_text_apply(const mf_model *m, const char *text, mf_assignment *a, mf_err *e);

#endif
