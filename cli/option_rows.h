/* option_rows.h - private to the table of options: how a row is written.
 *
 *     ROW(id, name, group, argument, default, help, kind of value, what it sets, what it pins)
 */
#ifndef MF_CLI_OPTION_ROWS_H
#define MF_CLI_OPTION_ROWS_H

#include "cli/options.h"

#define PLACE(id) MF_OPT_##id
#define ROW(id, text, of, word, default_text, words_of_help, ...)                                  \
    [PLACE(id)] = {.name = text,                                                                   \
                   .group = MF_OPTS_##of,                                                          \
                   .argument = word,                                                               \
                   .fallback = default_text,                                                       \
                   .help = words_of_help,                                                          \
                   __VA_ARGS__}

#define FLAG .kind = MF_VALUE_FLAG
#define TEXT .kind = MF_VALUE_TEXT
#define LIST .kind = MF_VALUE_LIST
#define WORDS(list) .kind = MF_VALUE_TEXT, .words = (list)
#define INT(least, most) .kind = MF_VALUE_INT, .low = (least), .high = (most)
#define SIZE(least, most) .kind = MF_VALUE_SIZE, .low = (least), .high = (most)
#define REAL(least, most) .kind = MF_VALUE_REAL, .low = (least), .high = (most)
#define SHARE(least, most) .kind = MF_VALUE_SHARE, .low = (least), .high = (most)
#define COUNT(least, most) .kind = MF_VALUE_COUNT, .low = (least), .high = (most)
#define TIME(least, most) .kind = MF_VALUE_TIME, .low = (least), .high = (most)
#define UNTIL(least, most) .kind = MF_VALUE_UNTIL, .low = (least), .high = (most)
#define SETS(field) .apply = mf_option_set_##field
#define PINS(dimension) .pin = MF_PIN(dimension)

#define GIB28 ((double)(1 << 28))

#endif
