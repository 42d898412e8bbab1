/* safetensors_write.c - writing of safetensors files. */
#include "executor/files/safetensors.h"

#include "core/base/crc32c.h"
#include "core/base/json_write.h"
#include "executor/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t size_B(const mf_st_source *t) {
    int64_t bytes = mf_st_dtype_B(t->dtype);
    for (int d = 0; d < t->dims; d++) {
        bytes *= t->shape[d];
    }
    return bytes;
}

/* What readers of the hub look for, and the checksum of every tensor. */
static void write_metadata(mf_json_writer *w, const mf_st_source *t, size_t count) {
    mf_json_write_object(w, "__metadata__", true);
    mf_json_write_string(w, "format", "pt");
    for (size_t i = 0; i < count; i++) {
        char key[512], crc[9];
        snprintf(key, sizeof key, MF_ST_CRC_KEY "%s", t[i].name);
        snprintf(crc, sizeof crc, "%08x", mf_crc32c(0, t[i].data, (size_t)size_B(&t[i])));
        mf_json_write_string(w, key, crc);
    }
    mf_json_write_end(w);
}

/* {name: {dtype, shape, data_offsets}}, padded with spaces to a multiple of eight bytes. */
static mf_status header_text(const mf_st_source *t, size_t count, bool checksums, char **text,
                             size_t *length, mf_err *e) {
    mf_json_writer w;
    int64_t at = 0;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, true);
    if (checksums) {
        write_metadata(&w, t, count);
    }
    for (size_t i = 0; i < count; i++) {
        mf_json_write_object(&w, t[i].name, true);
        mf_json_write_string(&w, "dtype", mf_st_dtype_text(t[i].dtype));
        mf_json_write_array(&w, "shape", true);
        for (int d = 0; d < t[i].dims; d++) {
            mf_json_write_i64(&w, NULL, t[i].shape[d]);
        }
        mf_json_write_end(&w);
        mf_json_write_array(&w, "data_offsets", true);
        mf_json_write_i64(&w, NULL, at);
        at += size_B(&t[i]);
        mf_json_write_i64(&w, NULL, at);
        mf_json_write_end(&w);
        mf_json_write_end(&w);
    }
    mf_json_write_end(&w);
    return mf_json_writer_finish(&w, text, length, e);
}

static bool put_all(int fd, const char *header, size_t length, const mf_st_source *t,
                    size_t count) {
    unsigned char prefix[8];
    size_t padded = (length + 7) / 8 * 8;
    for (int i = 0; i < 8; i++) {
        prefix[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    }
    if (!mf_file_put(fd, prefix, 8) || !mf_file_put(fd, header, length) ||
        !mf_file_put(fd, "        ", padded - length)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (!mf_file_put(fd, t[i].data, (size_t)size_B(&t[i]))) {
            return false;
        }
    }
    return fsync(fd) == 0;
}

static mf_status write_file(const char *path, const mf_st_source *tensors, size_t count,
                            bool checksums, mf_err *e) {
    char *header = NULL, temporary[4096];
    size_t length = 0;
    int n = snprintf(temporary, sizeof temporary, "%s.tmp", path);
    if (n < 0 || (size_t)n >= sizeof temporary) {
        return mf_err_set(e, MF_IO, "%s: path too long", path);
    }
    mf_status status = header_text(tensors, count, checksums, &header, &length, e);
    if (status != MF_OK) {
        return status;
    }
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool done = fd >= 0 && put_all(fd, header, length, tensors, count);
    int why = errno;
    if (fd >= 0 && close(fd) != 0 && done) {
        done = false;
        why = errno;
    }
    if (!done || rename(temporary, path) != 0) {
        status = mf_err_set(e, MF_IO, "%s: %s", path, strerror(done ? errno : why));
        unlink(temporary);
    }
    free(header);
    return status;
}

mf_status mf_safetensors_write(const char *path, const mf_st_source *tensors, size_t count,
                               mf_err *e) {
    return write_file(path, tensors, count, false, e);
}

mf_status mf_safetensors_write_checksums(const char *path, const mf_st_source *tensors,
                                         size_t count, mf_err *e) {
    return write_file(path, tensors, count, true, e);
}
