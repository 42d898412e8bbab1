/* megatron_flags.h - what Megatron's flags are called here, for who types them out of habit. */
#ifndef MF_LAUNCH_MEGATRON_FLAGS_H
#define MF_LAUNCH_MEGATRON_FLAGS_H

#include "core/base/status.h"

#include <stddef.h>

/* Our words for Megatron-LM's flag (without "--", with "-" or "_"), such as "--tp". "" where it is
 * a flag of Megatron's that no option of ours stands for; NULL: Megatron has no such flag. */
const char *mf_megatron_flag_here(const char *flag);

/* MF_USAGE with our words for an option (with its dashes) that Megatron or another program has and
 * we have not; MF_OK: nobody knows it. */
mf_status mf_megatron_flag_refuse(const char *option, mf_err *e);

/* The i-th flag of the table and the option that it names; NULL past the last. For tests. */
const char *mf_megatron_flag_at(size_t i, const char **here);

#endif
