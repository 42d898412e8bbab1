/* python_reader.h - what reads recipes: values, and the configuration that they fill. Private to
 * launch/read/python_*.c and launch/read/read_python.c.
 *
 * Values are texts: "4096", "\"flex\"", "[\"a\", \"b\"]", an object as the call that makes it
 * ("CommOverlapConfig(tp_comm_overlap=True)"), "?" or a name for what is not known. All
 * configuration objects are one: "@" is it, and "@model" its part.
 */
#ifndef MF_LAUNCH_PYTHON_READER_H
#define MF_LAUNCH_PYTHON_READER_H

#include "launch/read/python_text.h"
#include "launch/read/read_internal.h"

typedef struct mf_python_kept {
    struct mf_python_kept *next;
    char s[];
} mf_python_kept;

typedef struct mf_python_reader {
    mf_read *r;
    const char *recipe; /* its name; "" */
    mf_python_modules modules;
    mf_settings fields;    /* of the configuration: a path without "@", a value */
    mf_python_kept *texts; /* all values, until the end */
    size_t used_B;
    int calls, nested, lines;
    int objects; /* whose arguments are being set */
} mf_python_reader;

/* A function that is read. */
typedef struct mf_python_frame {
    const mf_python_module *module;
    mf_settings names;
    const char *result; /* NULL: it has not returned */
} mf_python_frame;

enum { MF_PYTHON_MOST_CALLS = 16 }; /* functions inside one another */

typedef enum mf_python_truth {
    MF_PYTHON_NO,
    MF_PYTHON_YES,
    MF_PYTHON_UNKNOWN,
} mf_python_truth;

enum { MF_PYTHON_MOST_ITEMS = 256 }; /* of a list */

/* Copies that live as long as the reader; "?" without memory. */
const char *mf_python_keep(mf_python_reader *p, const char *s, size_t length);
const char *mf_python_trimmed(mf_python_reader *p, const char *s, size_t length);
const char *mf_python_joined(mf_python_reader *p, const char *a, const char *b, const char *c);
/* Of a setting, which may be replaced while its value is at work; NULL for NULL. */
const char *mf_python_keep_text(mf_python_reader *p, const char *s);

bool mf_python_is(const char *a, const char *b);
bool mf_python_is_text(const char *v);
bool mf_python_is_whole(const char *v, long *out);
bool mf_python_is_list(const char *v);
mf_python_truth mf_python_truth_of(const char *v);
const char *mf_python_truth_text(mf_python_truth t);
mf_python_truth mf_python_equal(const char *a, const char *b);
/* Nothing that depends on what is not there. */
bool mf_python_is_plain(const char *v);

/* Items of "a, b, c" up to the bracket that closes it; returns how many. */
int mf_python_items(mf_python_reader *p, const char *s, const char **item);
/* Texts one behind the other. */
const char *mf_python_text_behind(mf_python_reader *p, const char *a, const char *b);
/* "a + b" and "a * b" of numbers, texts and lists, "a // b", "a - b"; op has blanks around it. */
const char *mf_python_reckon(mf_python_reader *p, const char *a, const char *op, const char *b);

/* Whether a path begins with a part of the configuration ("model.", "train."). */
bool mf_python_is_part(const char *path);
/* Sets a field ("model.seq_length"), or all that an object's making names, and hands it to import.
 */
void mf_python_set(mf_python_reader *p, const char *path, const char *value);
void mf_python_set_object(mf_python_reader *p, const char *path, const char *value);
/* A field as it was set last; of a part, its path; else `absent`. */
const char *mf_python_field(mf_python_reader *p, const char *path, const char *absent);

/* A name of the function; NULL: it has none. */
const char *mf_python_name(mf_python_reader *p, mf_python_frame *f, const char *name);
/* What an expression comes to. */
const char *mf_python_evaluate(mf_python_reader *p, mf_python_frame *f, const char *s);
/* "a, b=c", each evaluated; `open` and `close` around them. */
const char *mf_python_evaluate_items(mf_python_reader *p, mf_python_frame *f, const char *s,
                                     const char *open, const char *close);
/* A function's result, followed where its text is there; else the call with its arguments. */
const char *mf_python_call(mf_python_reader *p, mf_python_frame *f, const char *name, size_t length,
                           const char *args);
/* The same of those that mean something here whatever their text; NULL: it is none of them. */
const char *mf_python_known_call(mf_python_reader *p, mf_python_frame *f, const char *name,
                                 const char *args);

#endif
