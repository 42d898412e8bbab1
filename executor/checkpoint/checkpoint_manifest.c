/* checkpoint_manifest.c - writes manifest.json, and reads it with every value checked. */
#include "executor/checkpoint/checkpoint_manifest.h"

#include "core/base/crc32c.h"
#include "core/base/json.h"
#include "core/base/json_write.h"
#include "core/plan/plan.h"
#include "executor/files/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST (INT64_C(1) << 52)
#define MAX_HEADER_B ((size_t)64 << 20)
#define CRC_MARK ",\n  \"crc32c\": \""

void mf_checkpoint_manifest_clear(mf_checkpoint_manifest *m) {
    free(m->file);
    *m = (mf_checkpoint_manifest){0};
}

void mf_checkpoint_fingerprint(const mf_model *m, char out[20]) {
    mf_model_identity p;
    mf_model own = *m;
    own.aux_loss_coef = 0.0; /* a choice of the run */
    mf_model_identify(&own, &p);
    snprintf(out, 20, "%s", p.fingerprint);
}

void mf_checkpoint_file_name(int64_t rank, char out[40]) {
    snprintf(out, 40, "rank-%05lld.safetensors", (long long)rank);
}

/* --- writing -----------------------------------------------------------------------------------
 */

static void write_progress(mf_json_writer *w, const mf_train_progress *s) {
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)s->seed);
    mf_json_write_i64(w, "step", s->step);
    mf_json_write_i64(w, "samples", s->samples);
    if (s->skipped > 0) {
        mf_json_write_i64(w, "skipped", s->skipped);
    }
    mf_json_write_string(w, "seed", seed);
    mf_json_write_bool(w, "shuffle", s->shuffle);
    mf_json_write_i64(w, "seq", s->seq);
    mf_json_write_array(w, "streams", false);
    for (int i = 0; i < s->streams; i++) {
        mf_json_write_object(w, NULL, true);
        mf_json_write_i64(w, "tokens", s->stream_tokens[i]);
        mf_json_write_i64(w, "share", s->stream_share[i]);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
}

mf_status mf_checkpoint_manifest_write(const char *folder, const mf_checkpoint_manifest *m,
                                       mf_err *e) {
    mf_json_writer w;
    char *text = NULL, path[4096], crc[16], name[40];
    size_t length = 0;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_string(&w, "format", MF_CHECKPOINT_FORMAT);
    mf_json_write_i64(&w, "version", MF_CHECKPOINT_VERSION);
    mf_json_write_string(&w, "model_fingerprint", m->model);
    write_progress(&w, &m->progress);
    mf_json_write_array(&w, "files", false);
    for (int64_t i = 0; i < m->files; i++) {
        mf_checkpoint_file_name(i, name);
        snprintf(crc, sizeof crc, "%08x", m->file[i].header_crc);
        mf_json_write_object(&w, NULL, true);
        mf_json_write_string(&w, "name", name);
        mf_json_write_i64(&w, "size_B", m->file[i].size_B);
        mf_json_write_i64(&w, "tensors", m->file[i].tensors);
        mf_json_write_string(&w, "header_crc32c", crc);
        mf_json_write_end(&w);
    }
    mf_json_write_end(&w);
    mf_json_write_end(&w);
    mf_status status = mf_json_writer_finish(&w, &text, &length, e);
    if (status != MF_OK) {
        return status;
    }
    length -= 3; /* the end of the object comes back behind its checksum */
    char *whole = malloc(length + 64);
    if (whole == NULL) {
        free(text);
        return mf_err_set(e, MF_NOMEM, "manifest: out of memory");
    }
    memcpy(whole, text, length);
    length +=
        (size_t)snprintf(whole + length, 64, CRC_MARK "%08x\"\n}\n", mf_crc32c(0, text, length));
    status = mf_path_join(path, sizeof path, folder, "manifest.json", NULL)
                 ? mf_file_write(path, whole, length, e)
                 : mf_err_set(e, MF_IO, "%s: path too long", folder);
    free(whole);
    free(text);
    return status;
}

/* --- reading -----------------------------------------------------------------------------------
 */

static bool hex(const char *text, uint32_t *out) {
    *out = (uint32_t)strtoul(text, NULL, 16);
    return strlen(text) == 8 && strspn(text, "0123456789abcdef") == 8; /* 'A' is a flipped 'a' */
}

static mf_status check_crc(const char *name, const char *text, size_t length, mf_err *e) {
    size_t tail = sizeof CRC_MARK - 1 + 8 + 4; /* mark, digits, "\n}\n */
    uint32_t want = 0;
    char digits[9] = "";
    if (length > tail && memcmp(text + length - tail, CRC_MARK, sizeof CRC_MARK - 1) == 0) {
        memcpy(digits, text + length - 12, 8);
    }
    if (!hex(digits, &want)) {
        return mf_err_set(e, MF_DAMAGED, "%s: offset %zu: no checksum at the end: truncated", name,
                          length);
    }
    uint32_t found = mf_crc32c(0, text, length - tail);
    if (found != want) {
        return mf_err_set(e, MF_DAMAGED, "%s: offset 0: CRC-32C %08x, it should be %08x", name,
                          found, want);
    }
    return MF_OK;
}

static mf_status read_streams(const mf_json_value *root, mf_train_progress *s, mf_err *e) {
    const mf_json_value *list = mf_json_find(root, "streams");
    if (list == NULL || mf_json_value_type(list) != MF_JSON_ARRAY ||
        mf_json_size(list) > MF_CHECKPOINT_MAX_STREAMS) {
        return mf_json_fail(list != NULL ? list : root, e, "\"streams\": expected a short list");
    }
    mf_status status = MF_OK;
    s->streams = (int)mf_json_size(list);
    for (int i = 0; i < s->streams && status == MF_OK; i++) {
        const mf_json_value *v = mf_json_at(list, (size_t)i);
        status = mf_json_want(v, MF_JSON_OBJECT, e);
        status = status == MF_OK ? mf_json_get_i64(v, "tokens", 0, MOST, &s->stream_tokens[i], e)
                                 : status;
        status =
            status == MF_OK ? mf_json_get_i64(v, "share", 1, MOST, &s->stream_share[i], e) : status;
    }
    return status;
}

static mf_status read_file(const mf_json_value *v, int64_t rank, mf_checkpoint_file *out,
                           mf_err *e) {
    const char *name = NULL, *crc = NULL;
    char expected[40];
    mf_checkpoint_file_name(rank, expected);
    mf_status status = mf_json_want(v, MF_JSON_OBJECT, e);
    status = status == MF_OK ? mf_json_get_string(v, "name", &name, e) : status;
    status = status == MF_OK ? mf_json_get_i64(v, "size_B", 8, MOST, &out->size_B, e) : status;
    status = status == MF_OK ? mf_json_get_i64(v, "tensors", 0, MOST, &out->tensors, e) : status;
    status = status == MF_OK ? mf_json_get_string(v, "header_crc32c", &crc, e) : status;
    if (status == MF_OK && (strcmp(name, expected) != 0 || !hex(crc, &out->header_crc))) {
        status = mf_json_fail(v, e, "expected file %s with its checksum", expected);
    }
    return status;
}

static mf_status read_body(const mf_json_value *root, mf_checkpoint_manifest *out, mf_err *e) {
    static const char *const known[] = {
        "format",  "version", "model_fingerprint", "step",  "samples", "skipped", "seed",
        "shuffle", "seq",     "streams",           "files", "crc32c"};
    const char *format = "", *model = "", *seed = "";
    int64_t version = 0;
    mf_train_progress *s = &out->progress;
    mf_status status = mf_json_want(root, MF_JSON_OBJECT, e);
    status = status == MF_OK ? mf_json_check_keys(root, known, 12, e) : status;
    status = status == MF_OK ? mf_json_get_string(root, "format", &format, e) : status;
    status = status == MF_OK ? mf_json_get_i64(root, "version", 1, 1000, &version, e) : status;
    if (status == MF_OK &&
        (strcmp(format, MF_CHECKPOINT_FORMAT) != 0 || version != MF_CHECKPOINT_VERSION)) {
        return mf_json_fail(root, e, "expected %s version %d", MF_CHECKPOINT_FORMAT,
                            MF_CHECKPOINT_VERSION);
    }
    status = status == MF_OK ? mf_json_get_string(root, "model_fingerprint", &model, e) : status;
    status = status == MF_OK ? mf_json_get_i64(root, "step", 0, MOST, &s->step, e) : status;
    status = status == MF_OK ? mf_json_get_i64(root, "samples", 0, MOST, &s->samples, e) : status;
    status = status == MF_OK && mf_json_find(root, "skipped") != NULL
                 ? mf_json_get_i64(root, "skipped", 0, s->step, &s->skipped, e)
                 : status;
    status = status == MF_OK ? mf_json_get_string(root, "seed", &seed, e) : status;
    status = status == MF_OK ? mf_json_get_bool(root, "shuffle", &s->shuffle, e) : status;
    status = status == MF_OK ? mf_json_get_i64(root, "seq", 1, MOST, &s->seq, e) : status;
    status = status == MF_OK ? read_streams(root, s, e) : status;
    if (status != MF_OK) {
        return status;
    }
    snprintf(out->model, sizeof out->model, "%s", model);
    s->seed = strtoull(seed, NULL, 10);
    const mf_json_value *files = mf_json_find(root, "files");
    if (files == NULL || mf_json_value_type(files) != MF_JSON_ARRAY || mf_json_size(files) == 0) {
        return mf_json_fail(root, e, "\"files\": expected a list");
    }
    out->files = (int64_t)mf_json_size(files);
    out->file = calloc((size_t)out->files, sizeof *out->file);
    if (out->file == NULL) {
        return mf_err_set(e, MF_NOMEM, "manifest: out of memory");
    }
    for (int64_t i = 0; i < out->files && status == MF_OK; i++) {
        status = read_file(mf_json_at(files, (size_t)i), i, &out->file[i], e);
    }
    return status;
}

mf_status mf_checkpoint_manifest_parse(const char *name, const char *text, size_t length,
                                       mf_checkpoint_manifest *out, mf_err *e) {
    mf_json *doc = NULL;
    *out = (mf_checkpoint_manifest){0};
    mf_status status = check_crc(name, text, length, e);
    status = status == MF_OK ? mf_json_parse(name, text, length, &doc, e) : status;
    status = status == MF_OK ? read_body(mf_json_root(doc), out, e) : status;
    mf_json_destroy(doc);
    if (status != MF_OK) {
        mf_checkpoint_manifest_clear(out);
    }
    return status;
}

mf_status mf_checkpoint_manifest_read(const char *folder, mf_checkpoint_manifest *out, mf_err *e) {
    char path[4096];
    unsigned char *bytes = NULL;
    size_t size = 0;
    int64_t file_B = 0;
    *out = (mf_checkpoint_manifest){0};
    if (!mf_path_join(path, sizeof path, folder, "manifest.json", NULL)) {
        return mf_err_set(e, MF_IO, "%s: path too long", folder);
    }
    mf_status status = mf_file_read(path, MF_JSON_MAX_BYTES, &bytes, &size, &file_B, e);
    if (status == MF_OK) {
        status = mf_checkpoint_manifest_parse(path, (const char *)bytes, size, out, e);
        free(bytes);
    }
    return status;
}

mf_status mf_checkpoint_file_look(const char *path, mf_checkpoint_file *out, mf_err *e) {
    unsigned char *bytes = NULL;
    size_t size = 0;
    uint64_t header = 0;
    mf_status status = mf_file_read(path, 8, &bytes, &size, &out->size_B, e);
    if (status != MF_OK) {
        return status;
    }
    for (size_t i = size; i-- > 0;) {
        header = header << 8 | bytes[i];
    }
    free(bytes);
    if (size < 8 || header > MAX_HEADER_B || (int64_t)header > out->size_B - 8) {
        return mf_err_set(e, MF_DAMAGED, "%s: offset 0: header of %llu bytes in a file of %lld",
                          path, (unsigned long long)header, (long long)out->size_B);
    }
    status = mf_file_read(path, 8 + (size_t)header, &bytes, &size, &out->size_B, e);
    if (status == MF_OK) {
        out->header_crc = mf_crc32c(0, bytes, size);
        free(bytes);
    }
    return status;
}
