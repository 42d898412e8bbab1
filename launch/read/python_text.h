/* python_text.h - Python texts as statements, and where a name that a module uses is defined.
 *
 * Texts stand one behind the other, each behind a line "\f" with its path, so that a name is
 * looked for in its own module first, then where that module imports it from.
 */
#ifndef MF_LAUNCH_PYTHON_TEXT_H
#define MF_LAUNCH_PYTHON_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* From its first character to the one behind its last. */
typedef struct mf_python_module {
    const char *path, *from, *to;
    size_t path_length;
} mf_python_module;

#define MF_PYTHON_MOST_MODULES 320

typedef struct mf_python_modules {
    int count;
    mf_python_module module[MF_PYTHON_MOST_MODULES];
} mf_python_modules;

void mf_python_find_modules(const char *texts, mf_python_modules *out);

typedef struct mf_python_place {
    const mf_python_module *module;
    const char *at; /* "(" of a function, or the value of a constant; NULL: not found */
} mf_python_place;

/* Where a name that `module` uses is defined, as a function ("def NAME(") or, with constant, as
 * "NAME = value" at the first column. module: NULL, or where it is not defined there nor imported:
 * the last definition of all. */
mf_python_place mf_python_find(const mf_python_modules *all, const mf_python_module *module,
                               const char *name, size_t length, bool constant);

/* A logical line: brackets closed, comments and line ends gone, blanks outside strings single. */
typedef struct mf_python_line {
    int indent;
    char text[8192];
} mf_python_line;

/* The next logical line before `end`, from *at on, which moves behind it; false at the end. What is
 * longer than a line holds is truncated; texts that stand alone (docstrings) are passed over. */
bool mf_python_next(const char **at, const char *end, mf_python_line *out);

/* The logical line that begins at *at, whatever it is. */
bool mf_python_line_at(const char **at, const char *end, mf_python_line *out);

/* Behind the signature of a function whose "(" stands at `at`. */
const char *mf_python_body(const char *at, const char *end);

/* The end of what begins at text[0] and stands before `stop` (one of its characters, outside
 * brackets and strings) or the end: its length. */
size_t mf_python_span(const char *text, const char *stop);
/* The same before a word with blanks around it (" if "); the length of the text where it has none.
 */
size_t mf_python_until(const char *text, const char *word);

#endif
