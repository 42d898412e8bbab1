/* measure_memory_cuda.c - kernels bound by device memory, by the bytes that lowering counts for
 * them (core/program/lower_*.c), on rows of a usual width.
 */
#include "executor/measure/measure_memory_cuda.h"

#include "kernels/device/cuda_check.h"

#include <stdlib.h>

/* --- memory of a set -------------------------------------------------------------------------- */

void *mf_measure_make(mf_measure_maker *m, size_t size_B, mf_measure_data data) {
    void *p = mf_measure_take(m->s, size_B, data);
    m->full = m->full || p == NULL;
    return p;
}
void *mf_measure_make_bf16(mf_measure_maker *m, int64_t n) {
    return mf_measure_make(m, (size_t)n * 2, MF_DATA_BF16);
}
float *mf_measure_make_f32(mf_measure_maker *m, int64_t n) {
    return mf_measure_make(m, (size_t)n * 4, MF_DATA_F32);
}
void *mf_measure_make_raw(mf_measure_maker *m, size_t size_B) {
    return mf_measure_make(m, size_B + 16, MF_DATA_NONE);
}
int32_t *mf_measure_make_ints(mf_measure_maker *m, int64_t n, int64_t below) {
    int32_t *p = mf_measure_make_raw(m, (size_t)n * 4);
    if (p != NULL) {
        (void)mf_measure_fill_int(p, n, (int32_t)below, m->s->seed++, m->s->stream, NULL);
    }
    return p;
}
void *mf_measure_make_copy(mf_measure_maker *m, const void *host, size_t size_B) {
    void *p = mf_measure_make_raw(m, size_B);
    if (p != NULL &&
        cudaMemcpyAsync(p, host, size_B, cudaMemcpyHostToDevice, m->s->stream) != cudaSuccess) {
        m->full = true;
    }
    return p;
}

/* --- a point --------------------------------------------------------------------------------- */

typedef struct memory_op {
    const mf_measure_kind *kind;
    int sets;
    mf_measure_args set[MF_MEASURE_SETS];
} memory_op;

static mf_status launch(void *op, int64_t i, cudaStream_t stream, mf_err *e) {
    memory_op *m = op;
    return m->kind->run(&m->set[i % m->sets], stream, e);
}

mf_status mf_measure_memory(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                            mf_err *e) {
    const char *name = mf_point_word(p, "op");
    double bytes = mf_point_value(p, "bytes");
    memory_op *op = calloc(1, sizeof *op);
    mf_status status = MF_OK;
    if (op == NULL) {
        return mf_err_set(e, MF_NOMEM, "measuring: out of memory");
    }
    op->kind = mf_measure_kind_of_rows(name);
    op->kind = op->kind != NULL ? op->kind : mf_measure_kind_of_tokens(name);
    if (op->kind == NULL) {
        status = mf_err_set(e, MF_INPUT, "no kernel for %s yet", name);
        goto out;
    }
    /* Tokens of a training step come in sixteens, and some kernels are quick only then. */
    int64_t rows = (int64_t)(bytes / op->kind->row_B / 16 + 0.5) * 16;
    mf_measure_maker m = {s, rows < 16 ? 16 : rows, false};
    op->sets = mf_measure_sets(s, (size_t)bytes * 3 / 2);
    for (int i = 0; i < op->sets; i++) {
        size_t before = s->used_B;
        op->kind->make(&m, &op->set[i]);
        if (m.full && i > 0) { /* tables beside the operands: fewer sets fit than hoped */
            s->used_B = before;
            op->sets = i;
            m.full = false;
        }
    }
    status = m.full ? mf_err_set(e, MF_INPUT, "%s of %.0f bytes does not fit", name, bytes)
                    : mf_measure_run(s, launch, op, out, e);
out:
    free(op);
    return status;
}
