/* program.c - names and classes of ops, streams and modules. */
#include "core/program.h"

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
