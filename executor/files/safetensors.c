/* safetensors.c - strict reading of safetensors files, and of indexes over several. */
#include "executor/files/safetensors.h"

#include "core/base/json.h"
#include "core/base/text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_HEADER_B (64u << 20)
#define MAX_FILES 4096

typedef struct st_file {
    char *path;
    void *mapping; /* NULL: memory of the caller */
    const unsigned char *bytes;
    size_t size;
    mf_json *header;
} st_file;

struct mf_safetensors {
    st_file *files;
    size_t nfiles;
    mf_st_tensor *tensors; /* by name */
    size_t count, capacity;
    const mf_st_bytes *given; /* what stands for files on disk, or NULL */
    size_t ngiven;
};

/* --- one file ----------------------------------------------------------------------------------
 */

static mf_status parse_dtype(const mf_json_value *v, mf_st_dtype *out, mf_err *e) {
    const char *text = NULL;
    mf_status status = mf_json_get_string(v, "dtype", &text, e);
    if (status != MF_OK) {
        return status;
    }
    for (int d = 0; d < MF_ST_DTYPE_COUNT; d++) {
        if (strcmp(text, mf_st_dtype_text((mf_st_dtype)d)) == 0) {
            *out = (mf_st_dtype)d;
            return MF_OK;
        }
    }
    return mf_json_fail(mf_json_find(v, "dtype"), e, "\"dtype\": \"%.32s\" is not supported", text);
}

static mf_status parse_shape(const mf_json_value *v, mf_st_tensor *t, mf_err *e) {
    const mf_json_value *shape = mf_json_find(v, "shape");
    if (shape == NULL) {
        return mf_json_fail(v, e, "\"shape\" is missing");
    }
    mf_status status = mf_json_want(shape, MF_JSON_ARRAY, e);
    if (status != MF_OK) {
        return status;
    }
    if (mf_json_size(shape) > MF_ST_MAX_DIMS) {
        return mf_json_fail(shape, e, "\"shape\": more than %d dimensions", MF_ST_MAX_DIMS);
    }
    t->dims = (int)mf_json_size(shape);
    t->count = 1;
    for (int i = 0; i < t->dims; i++) {
        status = mf_json_i64(mf_json_at(shape, (size_t)i), 0, INT64_C(1) << 48, &t->shape[i], e);
        if (status != MF_OK) {
            return status;
        }
        if (t->shape[i] > 0 && t->count > (INT64_C(1) << 48) / t->shape[i]) {
            return mf_json_fail(shape, e, "\"shape\": more than 2^48 elements");
        }
        t->count *= t->shape[i];
    }
    return MF_OK;
}

static mf_status parse_entry(const st_file *f, const char *name, const mf_json_value *v,
                             int64_t data_at, mf_st_tensor *t, mf_err *e) {
    static const char *const known[] = {"dtype", "shape", "data_offsets"};
    mf_status status = mf_json_want(v, MF_JSON_OBJECT, e);
    if (status == MF_OK) {
        status = mf_json_check_keys(v, known, 3, e);
    }
    *t = (mf_st_tensor){.name = name, .file = f->path};
    if (status == MF_OK) {
        status = parse_dtype(v, &t->dtype, e);
    }
    if (status == MF_OK) {
        status = parse_shape(v, t, e);
    }
    if (status != MF_OK) {
        return status;
    }
    const mf_json_value *at = mf_json_find(v, "data_offsets");
    int64_t begin = 0, end = 0, data_B = (int64_t)f->size - data_at;
    if (at == NULL || mf_json_value_type(at) != MF_JSON_ARRAY || mf_json_size(at) != 2) {
        return mf_json_fail(at != NULL ? at : v, e, "\"data_offsets\": expected [begin, end]");
    }
    status = mf_json_i64(mf_json_at(at, 0), 0, INT64_C(1) << 52, &begin, e);
    if (status == MF_OK) {
        status = mf_json_i64(mf_json_at(at, 1), 0, INT64_C(1) << 52, &end, e);
    }
    if (status != MF_OK) {
        return status;
    }
    if (end > data_B || begin > end) {
        return mf_json_fail(at, e, "\"data_offsets\": [%lld, %lld] outside the %lld bytes of data",
                            (long long)begin, (long long)end, (long long)data_B);
    }
    if (end - begin != t->count * mf_st_dtype_B(t->dtype)) {
        return mf_json_fail(at, e, "\"data_offsets\": %lld bytes, %s of this shape takes %lld",
                            (long long)(end - begin), mf_st_dtype_text(t->dtype),
                            (long long)(t->count * mf_st_dtype_B(t->dtype)));
    }
    t->offset = data_at + begin;
    t->data = f->bytes + t->offset;
    return MF_OK;
}

static mf_status add_tensor(mf_safetensors *s, const mf_st_tensor *t, mf_err *e) {
    if (s->count == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 64;
        mf_st_tensor *more = realloc(s->tensors, capacity * sizeof *more);
        if (more == NULL) {
            return mf_err_set(e, MF_NOMEM, "%s: out of memory", t->file);
        }
        s->tensors = more;
        s->capacity = capacity;
    }
    s->tensors[s->count++] = *t;
    return MF_OK;
}

static int by_offset(const void *a, const void *b) {
    const mf_st_tensor *x = a, *y = b;
    if (x->offset != y->offset) {
        return x->offset < y->offset ? -1 : 1;
    }
    return x->count < y->count ? -1 : x->count > y->count; /* empty ones first */
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const mf_st_tensor *)a)->name, ((const mf_st_tensor *)b)->name);
}

static mf_status check_cover(const st_file *f, mf_st_tensor *t, size_t n, int64_t data_at,
                             mf_err *e) {
    if (n > 1) {
        qsort(t, n, sizeof *t, by_offset);
    }
    int64_t at = data_at;
    for (size_t i = 0; i < n; i++) {
        if (t[i].offset != at) {
            return mf_err_set(e, MF_INPUT, "%s: offset %lld: tensor data %s before \"%.100s\"",
                              f->path, (long long)at, t[i].offset > at ? "has a gap" : "overlaps",
                              t[i].name);
        }
        at += t[i].count * mf_st_dtype_B(t[i].dtype);
    }
    if (at != (int64_t)f->size) {
        return mf_err_set(e, MF_INPUT, "%s: offset %lld: %lld bytes belong to no tensor", f->path,
                          (long long)at, (long long)((int64_t)f->size - at));
    }
    return MF_OK;
}

static mf_status check_metadata(const mf_json_value *v, mf_err *e) {
    mf_status status = mf_json_want(v, MF_JSON_OBJECT, e);
    for (size_t i = 0; status == MF_OK && i < mf_json_size(v); i++) {
        status = mf_json_want(mf_json_at(v, i), MF_JSON_STRING, e);
    }
    return status;
}

/* The checksums that the metadata holds, into the file's tensors; each has to be of one of them. */
static mf_status take_checksums(const mf_json_value *root, mf_st_tensor *t, size_t n, mf_err *e) {
    const mf_json_value *metadata = mf_json_find(root, "__metadata__");
    for (size_t i = 0; i < n && metadata != NULL; i++) {
        char key[512];
        const char *text = NULL;
        unsigned value = 0;
        int end = 0;
        snprintf(key, sizeof key, MF_ST_CRC_KEY "%s", t[i].name);
        const mf_json_value *v = mf_json_find(metadata, key);
        if (v == NULL) {
            continue;
        }
        mf_status status = mf_json_string(v, &text, e);
        if (status != MF_OK) {
            return status;
        }
        if (strspn(text, "0123456789abcdef") != 8 || sscanf(text, "%8x%n", &value, &end) != 1 ||
            text[end] != '\0') {
            return mf_json_fail(v, e, "expected a CRC-32C in eight hexadecimal digits");
        }
        t[i].crc = value;
        t[i].has_crc = true;
    }
    return MF_OK;
}

/* Tensors of the file appended to the set. */
static mf_status parse_file(mf_safetensors *s, st_file *f, mf_err *e) {
    if (f->size < 8 || f->bytes == NULL) {
        return mf_err_set(e, MF_INPUT, "%s: offset 0: %zu bytes are no safetensors file", f->path,
                          f->size);
    }
    uint64_t length = 0;
    assert(f->bytes != NULL);
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | f->bytes[i];
    }
    if (length > MAX_HEADER_B || length > f->size - 8) {
        return mf_err_set(e, MF_INPUT, "%s: offset 0: header of %llu bytes in a file of %zu",
                          f->path, (unsigned long long)length, f->size);
    }
    if (length == 0 || f->bytes[8] != '{') {
        return mf_err_set(e, MF_INPUT, "%s: offset 8: the header does not begin with '{'", f->path);
    }
    mf_status status =
        mf_json_parse(f->path, (const char *)f->bytes + 8, (size_t)length, &f->header, e);
    if (status != MF_OK) {
        return status;
    }
    const mf_json_value *root = mf_json_root(f->header);
    int64_t data_at = 8 + (int64_t)length;
    size_t first = s->count;
    for (size_t i = 0; i < mf_json_size(root); i++) {
        const char *name = mf_json_key_at(root, i);
        if (strcmp(name, "__metadata__") == 0) {
            status = check_metadata(mf_json_at(root, i), e);
        } else {
            mf_st_tensor t;
            status = parse_entry(f, name, mf_json_at(root, i), data_at, &t, e);
            if (status == MF_OK) {
                status = add_tensor(s, &t, e);
            }
        }
        if (status != MF_OK) {
            return status;
        }
    }
    const size_t count = s->count - first;
    mf_st_tensor *own = count > 0 ? s->tensors + first : NULL;
    status = take_checksums(root, own, count, e);
    return status == MF_OK ? check_cover(f, own, count, data_at, e) : status;
}

static mf_status map_file(const char *path, st_file *f, mf_err *e) {
    struct stat info;
    f->path = strdup(path);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool there = f->path != NULL && fd >= 0 && fstat(fd, &info) == 0;
    if (!there || !S_ISREG(info.st_mode)) {
        mf_status status =
            mf_err_set(e, MF_INPUT, "%s: %s", path, there ? "not a file" : strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    f->size = (size_t)info.st_size;
    if (f->size > 0) {
        void *at = mmap(NULL, f->size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at == MAP_FAILED) {
            close(fd);
            return mf_err_set(e, MF_INPUT, "%s: %s", path, strerror(errno));
        }
        f->mapping = at;
        f->bytes = at;
    }
    close(fd);
    return MF_OK;
}

static mf_safetensors *new_set(size_t files) {
    mf_safetensors *s = calloc(1, sizeof *s);
    if (s != NULL) {
        s->files = calloc(files, sizeof *s->files);
        if (s->files == NULL) {
            free(s);
            return NULL;
        }
    }
    return s;
}

void mf_safetensors_close(mf_safetensors *s) {
    if (s == NULL) {
        return;
    }
    for (size_t i = 0; i < s->nfiles; i++) {
        if (s->files[i].mapping != NULL) {
            munmap(s->files[i].mapping, s->files[i].size);
        }
        mf_json_destroy(s->files[i].header);
        free(s->files[i].path);
    }
    free(s->files);
    free(s->tensors);
    free(s);
}

static mf_status finish(mf_safetensors *s, mf_err *e) {
    if (s->count > 1) {
        qsort(s->tensors, s->count, sizeof *s->tensors, by_name);
    }
    for (size_t i = 1; i < s->count; i++) {
        if (strcmp(s->tensors[i - 1].name, s->tensors[i].name) == 0) {
            return mf_err_set(e, MF_INPUT, "%s: tensor \"%.100s\" is also in %s",
                              s->tensors[i].file, s->tensors[i].name, s->tensors[i - 1].file);
        }
    }
    return MF_OK;
}

/* Hands a finished set over, or drops it. */
static mf_status hand_over(mf_safetensors *s, mf_status status, mf_safetensors **out) {
    if (status != MF_OK) {
        mf_safetensors_close(s);
        s = NULL;
    }
    *out = s;
    return status;
}

mf_status mf_safetensors_parse(const char *name, const void *bytes, size_t size,
                               mf_safetensors **out, mf_err *e) {
    *out = NULL;
    mf_safetensors *s = new_set(1);
    if (s == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", name);
    }
    s->nfiles = 1;
    s->files[0].path = strdup(name);
    s->files[0].bytes = bytes;
    s->files[0].size = size;
    mf_status status = s->files[0].path != NULL ? parse_file(s, &s->files[0], e)
                                                : mf_err_set(e, MF_NOMEM, "out of memory");
    if (status == MF_OK) {
        status = finish(s, e);
    }
    return hand_over(s, status, out);
}

/* --- indexes -----------------------------------------------------------------------------------
 */

/* The bytes in memory that are used for the file `name`. */
static mf_status find_given(const mf_safetensors *s, const char *name, const char *path, st_file *f,
                            mf_err *e) {
    f->path = strdup(path);
    for (size_t i = 0; i < s->ngiven && f->path != NULL; i++) {
        if (strcmp(s->given[i].name, name) == 0) {
            f->bytes = s->given[i].bytes;
            f->size = s->given[i].size;
            return MF_OK;
        }
    }
    return f->path != NULL ? mf_err_set(e, MF_INPUT, "%s: %s", path, strerror(ENOENT))
                           : mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
}

/* Position of `name` among the files, which is opened when it is new. */
static mf_status file_index(mf_safetensors *s, const char *folder, const mf_json_value *v,
                            mf_err *e) {
    const char *name = NULL;
    mf_status status = mf_json_string(v, &name, e);
    if (status != MF_OK) {
        return status;
    }
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL) {
        return mf_json_fail(v, e, "\"%.80s\" is not a file of this folder", name);
    }
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (n < 0 || (size_t)n >= sizeof path) {
        return mf_json_fail(v, e, "path too long");
    }
    for (size_t i = 0; i < s->nfiles; i++) {
        if (strcmp(s->files[i].path, path) == 0) {
            return MF_OK;
        }
    }
    if (s->nfiles == MAX_FILES) {
        return mf_json_fail(v, e, "more than %d files", MAX_FILES);
    }
    st_file *f = &s->files[s->nfiles++];
    status = s->given != NULL ? find_given(s, name, path, f, e) : map_file(path, f, e);
    return status == MF_OK ? parse_file(s, f, e) : status;
}

/* The files that an index of this folder names, and their tensors. */
static mf_status read_index(mf_safetensors *s, const mf_json *doc, const char *folder, mf_err *e) {
    mf_status status = MF_OK;
    const mf_json_value *map = mf_json_find(mf_json_root(doc), "weight_map");
    if (map == NULL || mf_json_value_type(map) != MF_JSON_OBJECT) {
        return mf_json_fail(mf_json_root(doc), e, "\"weight_map\": expected an object");
    }
    for (size_t i = 0; i < mf_json_size(map) && status == MF_OK; i++) {
        status = file_index(s, folder, mf_json_at(map, i), e);
    }
    if (status == MF_OK) {
        status = finish(s, e);
    }
    for (size_t i = 0; i < mf_json_size(map) && status == MF_OK; i++) {
        const char *name = mf_json_key_at(map, i), *file = NULL;
        const mf_st_tensor *t = mf_safetensors_find(s, name);
        status = mf_json_string(mf_json_at(map, i), &file, e);
        if (status == MF_OK && (t == NULL || strcmp(strrchr(t->file, '/') + 1, file) != 0)) {
            status =
                mf_json_fail(mf_json_at(map, i), e, "%.80s holds no tensor \"%.100s\"", file, name);
        }
    }
    return status;
}

static mf_status open_index(const char *path, const char *folder, mf_safetensors **out, mf_err *e) {
    mf_json *doc = NULL;
    mf_safetensors *s = new_set(MAX_FILES);
    mf_status status = s != NULL ? mf_json_load(path, &doc, e)
                                 : mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    if (status == MF_OK) {
        status = read_index(s, doc, folder, e);
    }
    mf_json_destroy(doc);
    return hand_over(s, status, out);
}

mf_status mf_safetensors_parse_index(const char *folder, const char *text, size_t length,
                                     const mf_st_bytes *files, size_t count, mf_safetensors **out,
                                     mf_err *e) {
    mf_json *doc = NULL;
    *out = NULL;
    mf_safetensors *s = new_set(count + 1);
    mf_status status = s != NULL ? mf_json_parse(folder, text, length, &doc, e)
                                 : mf_err_set(e, MF_NOMEM, "%s: out of memory", folder);
    if (status == MF_OK) {
        s->given = files;
        s->ngiven = count;
        status = read_index(s, doc, folder, e);
    }
    mf_json_destroy(doc);
    return hand_over(s, status, out);
}

mf_status mf_safetensors_open(const char *path, mf_safetensors **out, mf_err *e) {
    *out = NULL;
    struct stat info;
    char file[4096];
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        snprintf(file, sizeof file, "%s/model.safetensors", path);
        if (stat(file, &info) != 0) {
            snprintf(file, sizeof file, "%s/model.safetensors.index.json", path);
            return stat(file, &info) == 0
                       ? open_index(file, path, out, e)
                       : mf_err_set(e, MF_INPUT,
                                    "%s: no weights: expected model.safetensors or "
                                    "model.safetensors.index.json in this folder",
                                    path);
        }
        path = file;
    } else if (mf_text_ends_with(path, ".json")) {
        char folder[4096];
        snprintf(folder, sizeof folder, "%s", path);
        char *slash = strrchr(folder, '/');
        if (slash != NULL) {
            *slash = '\0';
        }
        return open_index(path, slash != NULL ? folder : ".", out, e);
    }
    mf_safetensors *s = new_set(1);
    if (s == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    }
    s->nfiles = 1;
    mf_status status = map_file(path, &s->files[0], e);
    if (status == MF_OK) {
        status = parse_file(s, &s->files[0], e);
    }
    if (status == MF_OK) {
        status = finish(s, e);
    }
    return hand_over(s, status, out);
}

mf_status mf_safetensors_missing(const mf_safetensors *s, const char *name, const char *remedy,
                                 mf_err *e) {
    char more[48] = "";
    if (s->nfiles > 1) {
        snprintf(more, sizeof more, " and %zu more files", s->nfiles - 1);
    }
    return mf_err_set(e, MF_INPUT, "%s%s: no tensor \"%s\"%s", s->files[0].path, more, name,
                      remedy);
}

/* --- values ------------------------------------------------------------------------------------
 */

size_t mf_safetensors_count(const mf_safetensors *s) {
    return s->count;
}

const mf_st_tensor *mf_safetensors_at(const mf_safetensors *s, size_t index) {
    return &s->tensors[index];
}

const mf_st_tensor *mf_safetensors_find(const mf_safetensors *s, const char *name) {
    mf_st_tensor key = {.name = name};
    return s->count == 0 ? NULL : bsearch(&key, s->tensors, s->count, sizeof key, by_name);
}
