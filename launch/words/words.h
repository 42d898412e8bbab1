/* words.h - one table of the settings that moefold knows: what Megatron-LM's command line,
 * its argument dump and Megatron-Bridge's configuration call them. Export writes by it, import
 * reads by it, so that what one says the other understands.
 *
 * Facts: megatron/training/arguments.py, megatron/core/transformer/transformer_config.py and
 * megatron/core/model_parallel_config.py of Megatron-LM, docs/megatron-lm-to-megatron-bridge.md and
 * src/megatron/bridge/training of Megatron-Bridge, at the commits of launch/target/target.c.
 */
#ifndef MF_LAUNCH_WORDS_H
#define MF_LAUNCH_WORDS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum mf_word_kind {
    MF_WORD_SWITCH, /* there or not */
    MF_WORD_VALUE,  /* one word */
    MF_WORD_LIST,   /* one word or more */
    MF_WORD_EACH,   /* one word for all of several (layers, losses), or one for each */
} mf_word_kind;

/* A setting. `key` is NULL where Megatron-Bridge takes it from elsewhere (a recipe, a precision by
 * name), `dest` where the dump's name is the flag's. `ignored` settings change neither times nor
 * memory as moefold counts them: import passes over them without a word. */
typedef struct mf_word {
    const char *flag; /* without "--"; or the key itself: Megatron-LM has no such flag */
    mf_word_kind kind;
    const char *key;
    const char *dest;
    bool inverse; /* key and dest say the opposite of the flag */
    bool ignored;
} mf_word;

/* By flag (with "-" or "_"), by key, by the dump's name; NULL: not known. */
const mf_word *mf_word_of_flag(const char *flag, size_t length);
const mf_word *mf_word_of_key(const char *key, size_t length);
const mf_word *mf_word_of_dest(const char *dest, size_t length);

/* The i-th word; NULL past the last. */
const mf_word *mf_word_at(size_t i);

/* Whether several words may follow it. */
bool mf_word_takes_several(const mf_word *w);

/* Whether the word is a key of Megatron-Bridge that no flag says. */
bool mf_word_is_key(const mf_word *w);

#endif
