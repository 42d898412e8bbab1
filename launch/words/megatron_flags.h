/* megatron_flags.h - what Megatron's flags are called here, for who types them out of habit. */
#ifndef MF_LAUNCH_MEGATRON_FLAGS_H
#define MF_LAUNCH_MEGATRON_FLAGS_H

#include "core/base/status.h"

#include <stddef.h>

/* Our words for Megatron-LM's flag (without "--", with "-" or "_"), such as "--tp". "" where it is
 * a flag of Megatron's that no option of ours stands for; NULL: Megatron has no such flag. */
const char *mf_megatron_flag_here(const char *flag);

/* Why there is no option like this flag of Megatron or another program (what follows from other
 * options); NULL: it is none of these. *plain: the same for commands that lack an option which this
 * names; NULL: there is no more to say. */
const char *mf_megatron_flag_derived(const char *flag, const char **plain);

/* The i-th flag of the table and the option that it names, and the i-th of those that follow from
 * others; NULL past the last. For tests. */
const char *mf_megatron_flag_at(size_t i, const char **here);
const char *mf_megatron_flag_derived_at(size_t i);

#endif
