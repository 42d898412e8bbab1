/* shadow_check.c - are the bytes that a kernel is said to read and write those that it does? */
#include "tests/support/shadow_private.h"

#include <stdlib.h>
#include <string.h>

enum { READ = 1, WRITTEN = 2 };

/* What device memory held at a time, allocation behind allocation; or which of its bytes a kernel
 * may touch. */
typedef struct image {
    char *data;
    size_t size_B;
} image;

static bool is_device(const shadow_allocation *r) {
    return r->base != NULL && r->device;
}

/* All of them in one piece of memory, which the device keeps. */
static mf_status make_images(shadow *x, image *m, int count, mf_err *e) {
    size_t size_B = 0;
    for (int k = 0; k < x->allocations; k++) {
        size_B += is_device(&x->allocation[k]) ? (size_t)x->allocation[k].size_B : 0;
    }
    if ((size_t)count * size_B > x->images_B) {
        x->images_B = (size_t)count * size_B;
        free(x->images);
        x->images = malloc(x->images_B + 1);
    }
    for (int k = 0; k < count; k++) {
        m[k] = (image){x->images + (size_t)k * size_B, size_B};
    }
    return x->images != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "shadow: out of memory");
}

static void move(const shadow *x, const image *m, bool back) {
    char *at = m->data;
    for (int k = 0; k < x->allocations; k++) {
        const shadow_allocation *r = &x->allocation[k];
        if (is_device(r)) {
            memcpy(back ? r->base : at, back ? at : r->base, (size_t)r->size_B);
            at += r->size_B;
        }
    }
}

/* Place of a byte in an image. */
static size_t place_of(const shadow *x, const char *p) {
    size_t at = 0;
    for (int k = 0; k < x->allocations; k++) {
        const shadow_allocation *r = &x->allocation[k];
        if (is_device(r) && p >= r->base && p < r->base + r->size_B) {
            return at + (size_t)(p - r->base);
        }
        at += is_device(r) ? (size_t)r->size_B : 0;
    }
    return at;
}

static void mark_spans(const shadow *x, const shadow_item *i, const image *touched) {
    for (int k = 0; k < i->spans.count; k++) {
        const shadow_span *s = &i->spans.span[k];
        for (int64_t row = 0; row < s->rows; row++) {
            char *at = touched->data + place_of(x, s->begin + row * s->stride_B);
            for (int64_t b = 0; b < s->row_B; b++) {
                at[b] = (char)(at[b] | (s->writes ? WRITTEN : READ));
            }
        }
    }
}

static mf_status compare(const shadow_item *i, const image *touched, const image *want,
                         const image *got, bool outside, mf_err *e) {
    for (size_t b = 0; b < want->size_B; b++) {
        bool written = (touched->data[b] & WRITTEN) != 0;
        if (written != outside && want->data[b] != got->data[b]) {
            return mf_err_set(e, MF_TOLERANCE, "shadow: %s (%s) %s, at byte %zu of device memory",
                              i->name, i->label,
                              outside ? "writes what it is not said to write"
                                      : "reads what it is not said to read",
                              b);
        }
    }
    return MF_OK;
}

/* Everything that the kernel is not said to touch becomes other bytes. */
static void scramble(const shadow *x, const image *touched, const image *before,
                     const image *other) {
    for (size_t b = 0; b < before->size_B; b++) {
        bool known = touched->data[b] != 0;
        other->data[b] = known ? before->data[b] : (char)(before->data[b] ^ 0x55);
    }
    move(x, other, true);
}

mf_status shadow_check_kernel(shadow *x, shadow_item *i, mf_err *e) {
    enum { TOUCHED, BEFORE, AFTER, AGAIN, IMAGES };
    image m[IMAGES];
    mf_status s = make_images(x, m, IMAGES, e);
    if (s != MF_OK) {
        return s;
    }
    memset(m[TOUCHED].data, 0, m[TOUCHED].size_B);
    mark_spans(x, i, &m[TOUCHED]);
    move(x, &m[BEFORE], false);
    s = shadow_kernel_run(i->kind, i->args, e);
    move(x, &m[AFTER], false);
    s = s == MF_OK ? compare(i, &m[TOUCHED], &m[BEFORE], &m[AFTER], true, e) : s;
    scramble(x, &m[TOUCHED], &m[BEFORE], &m[AGAIN]);
    s = s == MF_OK ? shadow_kernel_run(i->kind, i->args, e) : s;
    move(x, &m[AGAIN], false);
    s = s == MF_OK ? compare(i, &m[TOUCHED], &m[AFTER], &m[AGAIN], false, e) : s;
    move(x, &m[AFTER], true);
    return s;
}
