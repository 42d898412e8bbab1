/* program.c - names and classes of ops, streams and modules. */
#include "core/program/program.h"

const char *mf_op_text(mf_op_kind k) {
    static const char *const text[] = {
#define X(name, text, class) text,
        MF_OP_MAP(X)
#undef X
    };
    return (unsigned)k < MF_OP_COUNT ? text[k] : "?";
}

mf_op_class mf_op_kind_class(mf_op_kind k) {
    static const uint8_t class_of[] = {
#define X(name, text, class) MF_CLASS_##class,
        MF_OP_MAP(X)
#undef X
    };
    return (mf_op_class)class_of[k];
}

const char *mf_stream_text(mf_stream s) {
    static const char *const text[] = {
#define X(name, text) text,
        MF_STREAM_MAP(X)
#undef X
    };
    return (unsigned)s < MF_STREAM_COUNT ? text[s] : "?";
}

const char *mf_module_text(mf_module m) {
    static const char *const text[] = {
#define X(name, text) text,
        MF_MODULE_MAP(X)
#undef X
    };
    return (unsigned)m < MF_MODULE_COUNT ? text[m] : "?";
}

void mf_block_ops_of(const mf_block *b, unsigned passes, int *first, int *end) {
    *first = passes & MF_PASS_F ? 0 : b->nforward;
    *end = passes & ~(unsigned)MF_PASS_F ? b->nops : b->nforward;
}

int64_t mf_block_scratch_B(const mf_block *b) {
    int64_t sum_B = 0;
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        sum_B += mf_align_B(b->scratch_B[s]);
    }
    return sum_B;
}

int64_t mf_align_B(int64_t bytes) {
    return (bytes + MF_ALIGN_B - 1) / MF_ALIGN_B * MF_ALIGN_B;
}

mf_math mf_precision_math(mf_precision p) {
    switch (p) {
    case MF_PREC_FP8_TENSOR:
    case MF_PREC_FP8_BLOCK:
    case MF_PREC_MXFP8:
        return MF_MATH_FP8;
    case MF_PREC_NVFP4:
        return MF_MATH_FP4;
    case MF_PREC_FP32:
        return MF_MATH_FP32;
    case MF_PREC_BF16:
    case MF_PREC_COUNT:
        break;
    }
    return MF_MATH_BF16;
}

double mf_precision_quantised_B(mf_precision p) {
    static const double bytes[MF_PREC_COUNT] = {
        [MF_PREC_BF16] = 0.0,
        [MF_PREC_FP8_TENSOR] = 1.0,
        [MF_PREC_FP8_BLOCK] = 1.0 + 4.0 / 128.0, /* one FP32 scale per 1x128 */
        [MF_PREC_MXFP8] = 1.0 + 1.0 / 32.0,      /* one E8M0 scale per 32 */
        [MF_PREC_NVFP4] = 0.5 + 1.0 / 16.0,      /* one FP8 scale per 16 */
        [MF_PREC_FP32] = 0.0,
    };
    return (unsigned)p < MF_PREC_COUNT ? bytes[p] : 0.0;
}
