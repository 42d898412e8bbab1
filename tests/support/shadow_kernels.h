/* shadow_kernels.h - what the shadow device (tests/support/shadow_device.h) knows of each entry of
 * the device's table: its name, the size of its arguments, how the CPU does it, and which bytes of
 * memory it reads and writes.
 */
#ifndef MF_TESTS_SHADOW_KERNELS_H
#define MF_TESTS_SHADOW_KERNELS_H

#include "executor/device/device.h"

/* All entries of the table that are kernels: SHADOW_ONE(entry, arguments), which the user defines.
 */
#define SHADOW_LISTED(entry, type, function) SHADOW_ONE(entry, type)
#define SHADOW_KERNELS                                                                             \
    MF_KERNEL_LIST(SHADOW_LISTED)                                                                  \
    SHADOW_ONE(gemm, mf_device_gemm)                                                               \
    SHADOW_ONE(grouped, mf_device_grouped)                                                         \
    SHADOW_ONE(attention, mf_device_attention)                                                     \
    SHADOW_ONE(attention_grad, mf_device_attention_grad)                                           \
    SHADOW_ONE(router_z, mf_device_z)

typedef enum shadow_kind {
#define SHADOW_ONE(entry, type) SHADOW_##entry,
    SHADOW_KERNELS
#undef SHADOW_ONE
        SHADOW_KERNEL_COUNT,
    SHADOW_COPY = SHADOW_KERNEL_COUNT,
    SHADOW_FILL,
    SHADOW_MARK,
    SHADOW_JOIN, /* nothing: what follows a graph waits for all of it */
    SHADOW_COMM,
    SHADOW_KINDS
} shadow_kind;

/* Rows of memory, stride_B apart. */
typedef struct shadow_span {
    const char *begin;
    int64_t rows, row_B, stride_B;
    bool writes;
    bool raises; /* by atomic maximum: whoever else does so comes to the same */
} shadow_span;

typedef struct shadow_spans {
    int count, allocated;
    shadow_span *span;
} shadow_spans;

void shadow_spans_clear(shadow_spans *s);
void shadow_span_add(shadow_spans *s, const void *begin, int64_t rows, int64_t row_B,
                     int64_t stride_B, bool writes);
/* First byte behind the last row. */
const char *shadow_span_end(const shadow_span *s);
/* Do the two share a byte? *first, *bytes: the first shared byte, and how many follow it up to the
 * end of the shorter row. */
bool shadow_spans_meet(const shadow_span *a, const shadow_span *b, const char **first,
                       int64_t *bytes);

/* Appends what a kernel with these arguments may read and write. `look`: device memory may be read,
 * so that tables and maps there tell more (else what they point to is left out). What is both read
 * and written has a span of each kind. */
void shadow_kernel_spans(shadow_kind kind, const void *args, bool look, shadow_spans *out);

const char *shadow_kind_name(shadow_kind kind);
size_t shadow_kernel_args_B(shadow_kind kind);
/* On the host's memory, done when it returns. */
mf_status shadow_kernel_run(shadow_kind kind, const void *args, mf_err *e);

#endif
