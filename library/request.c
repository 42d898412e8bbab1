/* request.c - a request in JSON as the command line that says the same. */
#define _GNU_SOURCE /* memfd_create */
#include "library/request.h"

#include "core/base/json.h"
#include "core/base/json_write.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXACT_MAX 9007199254740992.0 /* 2^53 */
#define NUMBER_MAX 40

/* --- argv ------------------------------------------------------------------------------------- */

/* Space for one more text. */
static bool grow(mf_request *r) {
    if (r->texts < r->allocated) {
        return true;
    }
    const int allocated = r->allocated > 0 ? 2 * r->allocated : 32;
    char **owned = calloc((size_t)allocated, sizeof *owned);
    if (owned == NULL) {
        return false;
    }
    if (r->texts > 0) {
        memcpy(owned, r->owned, (size_t)r->texts * sizeof *owned);
    }
    free(r->owned);
    r->owned = owned;
    r->allocated = allocated;
    return true;
}

/* Takes `text` over, NULL for lack of memory. */
static mf_status push(mf_request *r, char *text, mf_err *e) {
    if (text == NULL || !grow(r)) {
        free(text);
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    r->owned[r->texts++] = text;
    return MF_OK;
}

static mf_status push_word(mf_request *r, const char *word, mf_err *e) {
    return push(r, strdup(word), e);
}

/* "--NAME=VALUE", or "--NAME" where the value is NULL. */
static mf_status push_option(mf_request *r, const char *name, const char *value, mf_err *e) {
    size_t size = strlen(name) + (value != NULL ? strlen(value) : 0) + 4;
    char *text = malloc(size);
    if (text != NULL) {
        snprintf(text, size, "--%s%s%s", name, value != NULL ? "=" : "",
                 value != NULL ? value : "");
    }
    return push(r, text, e);
}

/* --- values ----------------------------------------------------------------------------------- */

/* Writes a number as one would type it: the shortest text that reads back as the same value.
 * Messages and reports repeat it. */
static void write_number(double value, const char *unit, char out[NUMBER_MAX]) {
    if (value == floor(value) && fabs(value) <= EXACT_MAX) {
        snprintf(out, NUMBER_MAX, "%.0f%s", value, unit);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, NUMBER_MAX, "%.*g", digits, value);
        const double back = strtod(out, NULL);
        if (!(back < value || back > value)) {
            break;
        }
    }
    snprintf(out + strlen(out), NUMBER_MAX - strlen(out), "%s", unit);
}

static mf_status expected(const char *name, const char *what, const mf_json_value *v, mf_err *e) {
    static const char *const got[] = {
        [MF_JSON_NULL] = "null",       [MF_JSON_BOOL] = "true or false",
        [MF_JSON_NUMBER] = "a number", [MF_JSON_STRING] = "a string",
        [MF_JSON_ARRAY] = "an array",  [MF_JSON_OBJECT] = "an object",
    };
    return mf_err_set(e, MF_USAGE, "--%s: expected %s, got %s", name, what,
                      got[mf_json_value_type(v)]);
}

/* The text of a string, number or truth value; of others "". */
static mf_status scalar_text(const mf_json_value *v, char number[NUMBER_MAX], const char **out,
                             mf_err *e) {
    double value = 0;
    bool truth = false;
    mf_status s = MF_OK;
    *out = "";
    if (mf_json_value_type(v) == MF_JSON_STRING) {
        return mf_json_string(v, out, e);
    }
    if (mf_json_value_type(v) == MF_JSON_NUMBER) {
        s = mf_json_f64(v, -(double)INFINITY, (double)INFINITY, &value, e);
        write_number(value, "", number);
        *out = number;
    } else if (mf_json_value_type(v) == MF_JSON_BOOL) {
        s = mf_json_bool(v, &truth, e);
        *out = truth ? "true" : "false";
    }
    return s;
}

/* Nothing is too deep here: the parser has a limit. */
static mf_status copy(mf_json_writer *w, const char *key, const mf_json_value *v, mf_err *e) {
    const mf_json_type type = mf_json_value_type(v);
    mf_status s = MF_OK;
    double number = 0;
    bool truth = false;
    const char *text = "";
    if (type == MF_JSON_NULL) {
        mf_json_write_null(w, key);
    } else if (type == MF_JSON_BOOL) {
        s = mf_json_bool(v, &truth, e);
        mf_json_write_bool(w, key, truth);
    } else if (type == MF_JSON_NUMBER) {
        s = mf_json_f64(v, -(double)INFINITY, (double)INFINITY, &number, e);
        mf_json_write_f64(w, key, number);
    } else if (type == MF_JSON_STRING) {
        s = mf_json_string(v, &text, e);
        mf_json_write_string(w, key, text);
    } else {
        if (type == MF_JSON_OBJECT) {
            mf_json_write_object(w, key, false);
        } else {
            mf_json_write_array(w, key, true);
        }
        for (size_t i = 0; s == MF_OK && i < mf_json_size(v); i++) {
            const char *name = type == MF_JSON_OBJECT ? mf_json_key_at(v, i) : NULL;
            s = copy(w, name, mf_json_at(v, i), e);
        }
        mf_json_write_end(w);
    }
    return s;
}

/* The text of any value; to be freed. */
static mf_status json_text(const mf_json_value *v, char **out, mf_err *e) {
    mf_json_writer w;
    size_t length = 0;
    *out = NULL;
    mf_json_writer_init(&w);
    mf_status s = copy(&w, NULL, v, e);
    if (s == MF_OK) {
        return mf_json_writer_finish(&w, out, &length, e);
    }
    mf_json_writer_clear(&w);
    return s;
}

static mf_status read_flag(mf_request *r, const mf_option *o, const mf_json_value *v, mf_err *e) {
    bool given = false;
    if (mf_json_value_type(v) != MF_JSON_BOOL) {
        return expected(o->name, "true or false", v, e);
    }
    mf_status s = mf_json_bool(v, &given, e);
    return s == MF_OK && given ? push_option(r, o->name, NULL, e) : s;
}

static mf_status read_number(mf_request *r, const mf_option *o, const mf_json_value *v, mf_err *e) {
    const bool time = o->kind == MF_VALUE_TIME || o->kind == MF_VALUE_UNTIL;
    const bool plain = o->kind == MF_VALUE_INT || o->kind == MF_VALUE_REAL;
    const mf_json_type type = mf_json_value_type(v);
    char number[NUMBER_MAX];
    double value = 0;
    if (type == MF_JSON_STRING && !plain) {
        const char *text = "";
        mf_status s = mf_json_string(v, &text, e);
        return s == MF_OK ? push_option(r, o->name, text, e) : s;
    }
    if (type != MF_JSON_NUMBER) {
        return expected(o->name, plain ? "a number" : "a number or its text", v, e);
    }
    mf_status s = mf_json_f64(v, -(double)INFINITY, (double)INFINITY, &value, e);
    write_number(value, time ? "s" : "", number);
    return s == MF_OK ? push_option(r, o->name, number, e) : s;
}

/* "a,b" of an array; an element holds no comma of its own. */
static mf_status read_commas(mf_request *r, const mf_option *o, const mf_json_value *v, mf_err *e) {
    mf_status s = MF_OK;
    char *list = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&list, &size);
    if (f == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (size_t i = 0; s == MF_OK && i < mf_json_size(v); i++) {
        const mf_json_value *at = mf_json_at(v, i);
        const mf_json_type type = mf_json_value_type(at);
        char number[NUMBER_MAX];
        const char *text = "";
        if (type != MF_JSON_STRING && type != MF_JSON_NUMBER) {
            s = expected(o->name, "an array of names or numbers", at, e);
            break;
        }
        s = scalar_text(at, number, &text, e);
        if (s == MF_OK && strchr(text, ',') != NULL) {
            s = mf_err_set(e, MF_USAGE, "--%s: \"%s\" holds a comma", o->name, text);
        }
        fprintf(f, "%s%s", i > 0 ? "," : "", text);
    }
    bool written = fclose(f) == 0;
    if (s == MF_OK && !written) {
        s = mf_err_set(e, MF_NOMEM, "out of memory");
    }
    s = s == MF_OK ? push_option(r, o->name, list, e) : s;
    free(list);
    return s;
}

/* "--NAME=KEY=VALUE", or "--NAME=VALUE" where the key is NULL. */
static mf_status push_pair(mf_request *r, const char *name, const char *key, const char *value,
                           mf_err *e) {
    const size_t size = (key != NULL ? strlen(key) : 0) + strlen(value) + 2;
    char *pair = malloc(size);
    if (pair == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    snprintf(pair, size, "%s%s%s", key != NULL ? key : "", key != NULL ? "=" : "", value);
    mf_status s = push_option(r, name, pair, e);
    free(pair);
    return s;
}

/* {"key": value}: a string stands as it is, so that "8" and 8 are the same; null, arrays and
 * objects as JSON, which --set reads. */
static mf_status read_pair(mf_request *r, const char *name, const char *key, const mf_json_value *v,
                           mf_err *e) {
    const mf_json_type type = mf_json_value_type(v);
    char number[NUMBER_MAX], *json = NULL;
    const char *text = "";
    mf_status s = MF_OK;
    if (type == MF_JSON_NULL || type == MF_JSON_ARRAY || type == MF_JSON_OBJECT) {
        s = json_text(v, &json, e);
        text = json;
    } else {
        s = scalar_text(v, number, &text, e);
    }
    s = s == MF_OK ? push_pair(r, name, key, text, e) : s;
    free(json);
    return s;
}

static mf_status read_pairs(mf_request *r, const mf_option *o, const mf_json_value *v, mf_err *e) {
    const bool object = mf_json_value_type(v) == MF_JSON_OBJECT;
    mf_status s = MF_OK;
    if (!object && mf_json_value_type(v) != MF_JSON_ARRAY) {
        return expected(o->name, "an object or an array of strings", v, e);
    }
    for (size_t i = 0; s == MF_OK && i < mf_json_size(v); i++) {
        const mf_json_value *at = mf_json_at(v, i);
        const char *text = "";
        if (object) {
            s = read_pair(r, o->name, mf_json_key_at(v, i), at, e);
        } else if (mf_json_value_type(at) == MF_JSON_STRING) {
            s = mf_json_string(at, &text, e);
            s = s == MF_OK ? push_pair(r, o->name, NULL, text, e) : s;
        } else {
            s = expected(o->name, "strings such as KEY=VALUE", at, e);
        }
    }
    return s;
}

/* --- a plan in the request -------------------------------------------------------------------- */

static mf_status write_file(int fd, const char *text, size_t length, mf_err *e) {
    while (length > 0) {
        ssize_t n = write(fd, text, length);
        if (n < 0 && errno != EINTR) {
            return mf_err_set(e, MF_IO, "--plan: %s", strerror(errno));
        }
        text += n > 0 ? n : 0;
        length -= n > 0 ? (size_t)n : 0;
    }
    return MF_OK;
}

/* Commands read plans from files: this one lies in memory. */
static mf_status read_plan(mf_request *r, const mf_option *o, const mf_json_value *v, mf_err *e) {
    char *text = NULL;
    mf_status s = json_text(v, &text, e);
    if (s == MF_OK) {
        r->plan_fd = memfd_create("plan", MFD_CLOEXEC);
        s = r->plan_fd >= 0 ? write_file(r->plan_fd, text, strlen(text), e)
                            : mf_err_set(e, MF_IO, "--plan: %s", strerror(errno));
    }
    free(text);
    if (s == MF_OK) {
        snprintf(r->plan_path, sizeof r->plan_path, "/proc/self/fd/%d", r->plan_fd);
        s = push_option(r, o->name, r->plan_path, e);
    }
    return s;
}

/* --- the request ------------------------------------------------------------------------------ */

static mf_status read_text(mf_request *r, const mf_option *o, const mf_json_value *v, mf_err *e) {
    const bool list = o->argument != NULL && strcmp(o->argument, "LIST") == 0;
    const mf_json_type type = mf_json_value_type(v);
    char number[NUMBER_MAX];
    const char *text = "";
    if (list && type == MF_JSON_ARRAY) {
        return read_commas(r, o, v, e);
    }
    if (type != MF_JSON_STRING && !(list && type == MF_JSON_NUMBER)) {
        return expected(o->name, list ? "a string or an array" : "a string", v, e);
    }
    mf_status s = scalar_text(v, number, &text, e);
    return s == MF_OK ? push_option(r, o->name, text, e) : s;
}

static bool is_answering(mf_option_id id) {
    return id == MF_OPT_JSON || id == MF_OPT_PROGRESS || id == MF_OPT_HELP;
}

/* A name that could be an option's: what is asked of the parser is asked about it alone. */
static bool is_name(const char *key) {
    size_t length = strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return length > 0 && key[length] == '\0' && key[0] != '-';
}

static mf_status read_member(mf_request *r, const mf_command *c, const char *key,
                             const mf_json_value *v, mf_err *e) {
    if (!is_name(key)) {
        return mf_err_set(e, MF_USAGE, "unknown option \"%.64s\"", key);
    }
    mf_option_id id = mf_option_find(key, strlen(key), c->options);
    if (id == MF_OPT_COUNT) {
        return push_option(r, key, NULL, e); /* the parser says what is meant */
    }
    const mf_option *o = mf_option_get(id);
    if (is_answering(id)) {
        return mf_err_set(e, MF_USAGE, "--%s is not taken here: every answer is JSON", o->name);
    }
    if (mf_json_value_type(v) == MF_JSON_NULL) {
        return MF_OK;
    }
    if (id == MF_OPT_PLAN && mf_json_value_type(v) == MF_JSON_OBJECT) {
        return read_plan(r, o, v, e);
    }
    return o->kind == MF_VALUE_FLAG   ? read_flag(r, o, v, e)
           : o->kind == MF_VALUE_LIST ? read_pairs(r, o, v, e)
           : o->kind == MF_VALUE_TEXT ? read_text(r, o, v, e)
                                      : read_number(r, o, v, e);
}

static mf_status read_words(mf_request *r, const mf_json_value *words, mf_err *e) {
    mf_status s = MF_OK;
    if (mf_json_value_type(words) == MF_JSON_NULL) {
        return MF_OK;
    }
    if (mf_json_value_type(words) != MF_JSON_ARRAY) {
        return expected("words", "an array of strings", words, e);
    }
    s = push_word(r, "--", e);
    for (size_t i = 0; s == MF_OK && i < mf_json_size(words); i++) {
        const mf_json_value *v = mf_json_at(words, i);
        const char *text = "";
        if (mf_json_value_type(v) != MF_JSON_STRING) {
            return expected("words", "an array of strings", v, e);
        }
        s = mf_json_string(v, &text, e);
        s = s == MF_OK ? push_word(r, text, e) : s;
    }
    return s;
}

static mf_status read_members(mf_request *r, const mf_command *c, const mf_json_value *root,
                              mf_err *e) {
    const mf_json_value *words = NULL;
    mf_status s = mf_json_want(root, MF_JSON_OBJECT, e);
    for (size_t i = 0; s == MF_OK && i < mf_json_size(root); i++) {
        const char *key = mf_json_key_at(root, i);
        if (strcmp(key, "words") == 0) {
            words = mf_json_at(root, i);
        } else {
            s = read_member(r, c, key, mf_json_at(root, i), e);
        }
    }
    return s == MF_OK && words != NULL ? read_words(r, words, e) : s;
}

mf_status mf_request_read(const char *text, const mf_command *c, mf_request *out, mf_err *e) {
    mf_json *doc = NULL;
    *out = (mf_request){.plan_fd = -1};
    mf_status s = push_word(out, "moefold", e);
    s = s == MF_OK ? push_word(out, c->name, e) : s;
    s = s == MF_OK ? push_option(out, "json", NULL, e) : s;
    if (s == MF_OK && text != NULL) {
        s = mf_json_parse("request", text, strlen(text), &doc, e);
        s = s == MF_OK ? read_members(out, c, mf_json_root(doc), e) : s;
    }
    mf_json_destroy(doc);
    if (s != MF_OK) {
        return s;
    }
    out->argv = calloc((size_t)out->texts + 1, sizeof *out->argv);
    if (out->argv == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int i = 0; i < out->texts; i++) {
        out->argv[i] = out->owned[i];
    }
    out->argc = out->texts;
    return MF_OK;
}

void mf_request_clear(mf_request *r) {
    for (int i = 0; i < r->texts; i++) {
        free(r->owned[i]);
    }
    free(r->owned);
    free(r->argv);
    if (r->plan_fd >= 0) {
        close(r->plan_fd);
    }
    *r = (mf_request){.plan_fd = -1};
}
