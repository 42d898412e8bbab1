/* safetensors.h - reads and writes tensors in Hugging Face's format: one file, or a folder with an
 * index over several.
 *
 * A file is 8 bytes of header length (little-endian), a JSON header {name: {dtype, shape,
 * data_offsets}} and the data (https://huggingface.co/docs/safetensors). Nothing in a file is
 * trusted: the header must be strict JSON, every size must follow from its dtype and shape, and the
 * tensors must cover the data without gaps or overlap. Files are mapped, not read; a set is
 * immutable after opening and may be read from several threads.
 */
#ifndef MF_EXECUTOR_SAFETENSORS_H
#define MF_EXECUTOR_SAFETENSORS_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(NAME, "spelling", bytes of an element) */
#define MF_ST_DTYPE_MAP(X)                                                                         \
    X(F64, "F64", 8)                                                                               \
    X(F32, "F32", 4)                                                                               \
    X(F16, "F16", 2)                                                                               \
    X(BF16, "BF16", 2)                                                                             \
    X(I64, "I64", 8)                                                                               \
    X(I32, "I32", 4)                                                                               \
    X(I16, "I16", 2)                                                                               \
    X(I8, "I8", 1)                                                                                 \
    X(U8, "U8", 1)                                                                                 \
    X(BOOL, "BOOL", 1)
typedef enum mf_st_dtype {
#define X(name, text, bytes) MF_ST_##name,
    MF_ST_DTYPE_MAP(X)
#undef X
        MF_ST_DTYPE_COUNT
} mf_st_dtype;

#define MF_ST_MAX_DIMS 8

typedef struct mf_st_tensor {
    const char *name; /* owned by the set */
    const char *file; /* the file that holds it, owned by the set */
    mf_st_dtype dtype;
    int dims;
    int64_t shape[MF_ST_MAX_DIMS];
    int64_t count;    /* elements */
    int64_t offset;   /* of its data in the file, bytes */
    const void *data; /* in the mapping; not necessarily aligned */
    bool has_crc;     /* the file says what the CRC-32C of its bytes is */
    uint32_t crc;
} mf_st_tensor;

typedef struct mf_safetensors mf_safetensors;

/* Opens a .safetensors file, a folder (model.safetensors, else model.safetensors.index.json), or
 * an index. The caller closes *out. Errors: MF_INPUT with the file and the offset or line:col of
 * the fault (missing files included); MF_NOMEM. */
mf_status mf_safetensors_open(const char *path, mf_safetensors **out, mf_err *e);
/* The same from memory, which must outlive the set. Error texts call the file `name`. */
mf_status mf_safetensors_parse(const char *name, const void *bytes, size_t size,
                               mf_safetensors **out, mf_err *e);
/* The text of an index over `count` files of a folder, all of them from memory, which must outlive
 * the set; a file that is not among them is missing. */
typedef struct mf_st_bytes {
    const char *name;
    const void *bytes;
    size_t size;
} mf_st_bytes;
mf_status mf_safetensors_parse_index(const char *folder, const char *text, size_t length,
                                     const mf_st_bytes *files, size_t count, mf_safetensors **out,
                                     mf_err *e);
void mf_safetensors_close(mf_safetensors *s);

/* Tensors in order of name. index in [0, mf_safetensors_count). */
size_t mf_safetensors_count(const mf_safetensors *s);
const mf_st_tensor *mf_safetensors_at(const mf_safetensors *s, size_t index);
/* By exact name; NULL when absent. */
const mf_st_tensor *mf_safetensors_find(const mf_safetensors *s, const char *name);

/* Sets e: the set lacks this tensor, and what to do about it (remedy, after the name; ""). Returns
 * MF_INPUT. */
mf_status mf_safetensors_missing(const mf_safetensors *s, const char *name, const char *remedy,
                                 mf_err *e);

/* Checks tensors first, first + step, first + 2 step, ... in order of name: their checksum where
 * the file has one, and that every element of a float type is finite. Errors: MF_INPUT naming file,
 * tensor and offset. */
mf_status mf_safetensors_verify(const mf_safetensors *s, size_t first, size_t step, mf_err *e);
/* Is every element finite, of a tensor of a float type? Errors: MF_INPUT as above. */
mf_status mf_safetensors_check_finite(const mf_st_tensor *t, mf_err *e);

/* Element i widened to float (F64 rounded, integers converted). */
float mf_st_get(const mf_st_tensor *t, int64_t i);
/* out[r * out_stride + c] = t[(row + r) * cols_of_t + col + c] for a tensor seen as a matrix: its
 * last dimension is the columns; a vector [n] is n rows of one column when `vector`. Errors:
 * MF_INPUT naming the tensor when it does not hold rows x cols there or is not of a float type. */
mf_status mf_st_read(const mf_st_tensor *t, int64_t row, int64_t rows, int64_t col, int64_t cols,
                     float *out, int64_t out_stride, mf_err *e);

/* One tensor to write. */
typedef struct mf_st_source {
    const char *name;
    mf_st_dtype dtype;
    int dims;
    int64_t shape[MF_ST_MAX_DIMS];
    const void *data;
} mf_st_source;

/* Writes a file (through a temporary beside it, synced and renamed). Errors: MF_IO, MF_NOMEM. */
mf_status mf_safetensors_write(const char *path, const mf_st_source *tensors, size_t count,
                               mf_err *e);
/* The same with metadata: {"format": "pt", MF_ST_CRC_KEY NAME: CRC-32C in eight digits, ...}, so
 * that mf_safetensors_verify finds a changed bit. */
mf_status mf_safetensors_write_checksums(const char *path, const mf_st_source *tensors,
                                         size_t count, mf_err *e);
#define MF_ST_CRC_KEY "crc32c|"

const char *mf_st_dtype_text(mf_st_dtype d);
int64_t mf_st_dtype_B(mf_st_dtype d);

#endif
