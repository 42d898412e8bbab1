/* settings.h - settings of a program that trains, as export writes them and import reads them: a
 * name and a text each, in order.
 *
 * Names are Megatron-LM's flags without "--" ("tensor-model-parallel-size"), whichever program is
 * spoken to; what only Megatron-Bridge has goes by its key there ("model.seq_length"). A switch
 * holds "true" or "false", a list words parted by blanks.
 */
#ifndef MF_LAUNCH_SETTINGS_H
#define MF_LAUNCH_SETTINGS_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mf_setting {
    char *name, *value;
    bool read; /* mf_settings_text and its kin have asked for it */
} mf_setting;

/* All zero is empty. `failed`: memory could not be had. */
typedef struct mf_settings {
    int count, allocated;
    mf_setting *item;
    bool failed;
} mf_settings;

void mf_settings_clear(mf_settings *s);

/* Adds a setting; one of the same name is replaced where it stands: the last of two wins, as on a
 * command line. */
void mf_settings_put(mf_settings *s, const char *name, const char *fmt, ...) MF_PRINTF(3, 4);
/* The same with a text as it is, however long. */
void mf_settings_put_text(mf_settings *s, const char *name, const char *text);
/* Takes a setting out; nothing where there is none. */
void mf_settings_drop(mf_settings *s, const char *name);
/* A number, with as few digits as give it back exactly. */
void mf_settings_put_f64(mf_settings *s, const char *name, double value);
/* A switch that is on. */
void mf_settings_on(mf_settings *s, const char *name);

/* The text of a setting, and marks it as read; `absent` where there is none. */
const char *mf_settings_text(mf_settings *s, const char *name, const char *absent);
bool mf_settings_has(mf_settings *s, const char *name);
bool mf_settings_is_on(mf_settings *s, const char *name);
/* Whether a list holds the word. */
bool mf_settings_lists(mf_settings *s, const char *name, const char *word);
/* A number in a range; *out stays as it is where there is none. Errors: MF_INPUT naming it. */
mf_status mf_settings_i64(mf_settings *s, const char *name, int64_t low, int64_t high, int64_t *out,
                          mf_err *e);
mf_status mf_settings_f64(mf_settings *s, const char *name, double low, double high, double *out,
                          mf_err *e);

#endif
