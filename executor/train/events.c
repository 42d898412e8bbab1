/* events.c - TFRecords of Event messages. */
#include "executor/train/events.h"

#include "core/base/crc32c.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RECORD_MAX_B 4096

struct mf_events {
    FILE *file;
    char path[4096];
};

/* --- protocol buffers: tag = field * 8 + wire type ---------------------------------------------
 */

typedef struct message {
    size_t length;
    unsigned char bytes[RECORD_MAX_B];
} message;

static void put(message *m, const void *bytes, size_t size) {
    if (size <= sizeof m->bytes - m->length) {
        memcpy(m->bytes + m->length, bytes, size);
        m->length += size;
    }
}

static void put_varint(message *m, uint64_t v) {
    unsigned char b;
    for (; v >= 128; v >>= 7) {
        b = (unsigned char)(v | 128);
        put(m, &b, 1);
    }
    b = (unsigned char)v;
    put(m, &b, 1);
}

static void put_little(message *m, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) {
        unsigned char b = (unsigned char)(v >> (8 * i));
        put(m, &b, 1);
    }
}

static void put_double(message *m, unsigned field, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_varint(m, field * 8 + 1);
    put_little(m, bits, 8);
}

static void put_float(message *m, unsigned field, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_varint(m, field * 8 + 5);
    put_little(m, bits, 4);
}

static void put_i64(message *m, unsigned field, int64_t v) {
    put_varint(m, field * 8);
    put_varint(m, (uint64_t)v);
}

static void put_bytes(message *m, unsigned field, const void *bytes, size_t size) {
    put_varint(m, field * 8 + 2);
    put_varint(m, size);
    put(m, bytes, size);
}

/* --- records -----------------------------------------------------------------------------------
 */

static uint32_t masked(const void *bytes, size_t size) {
    uint32_t crc = mf_crc32c(0, bytes, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static mf_status write_record(mf_events *v, const message *m, mf_err *e) {
    message head = {0}, tail = {0};
    put_little(&head, m->length, 8);
    put_little(&head, masked(head.bytes, 8), 4);
    put_little(&tail, masked(m->bytes, m->length), 4);
    bool written = fwrite(head.bytes, 1, head.length, v->file) == head.length &&
                   fwrite(m->bytes, 1, m->length, v->file) == m->length &&
                   fwrite(tail.bytes, 1, tail.length, v->file) == tail.length &&
                   fflush(v->file) == 0;
    return written ? MF_OK : mf_err_set(e, MF_IO, "%s: %s", v->path, strerror(errno));
}

static void begin_event(message *m, int64_t step) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    *m = (message){0};
    put_double(m, 1, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
    put_i64(m, 2, step);
}

mf_status mf_events_open(const char *folder, int64_t first_step, mf_events **out, mf_err *e) {
    static const char version[] = "brain.Event:2";
    static const unsigned char start[] = {8, 1}; /* SessionLog: status START */
    char host[64] = "";
    message m;
    *out = NULL;
    mf_events *v = calloc(1, sizeof *v);
    if (v == NULL) {
        return mf_err_set(e, MF_NOMEM, "event file: out of memory");
    }
    gethostname(host, sizeof host - 1);
    snprintf(v->path, sizeof v->path, "%s/events.out.tfevents.%lld.%s.%ld", folder,
             (long long)time(NULL), host, (long)getpid());
    v->file = fopen(v->path, "wb");
    if (v->file == NULL) {
        mf_status status = mf_err_set(e, MF_IO, "%s: %s", v->path, strerror(errno));
        free(v);
        return status;
    }
    begin_event(&m, 0);
    put_bytes(&m, 3, version, sizeof version - 1);
    mf_status status = write_record(v, &m, e);
    if (status == MF_OK) {
        begin_event(&m, first_step);
        put_bytes(&m, 7, start, sizeof start);
        status = write_record(v, &m, e);
    }
    if (status != MF_OK) {
        mf_events_close(v, NULL);
        return status;
    }
    *out = v;
    return MF_OK;
}

mf_status mf_events_add(mf_events *v, int64_t step, const mf_event_scalar *scalar, int count,
                        mf_err *e) {
    message event, summary = {0};
    for (int i = 0; i < count; i++) {
        message value = {0};
        put_bytes(&value, 1, scalar[i].tag, strlen(scalar[i].tag));
        put_float(&value, 2, (float)scalar[i].value);
        put_bytes(&summary, 1, value.bytes, value.length);
    }
    begin_event(&event, step);
    put_bytes(&event, 5, summary.bytes, summary.length);
    return write_record(v, &event, e);
}

mf_status mf_events_close(mf_events *v, mf_err *e) {
    if (v == NULL) {
        return MF_OK;
    }
    mf_status status = MF_OK;
    if (fclose(v->file) != 0) {
        status = mf_err_set(e, MF_IO, "%s: %s", v->path, strerror(errno));
    }
    free(v);
    return status;
}
