/* price_text.c - the price of an op given as canonical text. */
#include "costmodel/price_text.h"

#include "costmodel/cost_internal.h"

mf_status mf_cost_price_text(const mf_cost *cost, const char *text, mf_op *op, mf_price *price,
                             mf_err *e) {
    mf_point p;
    mf_status st = mf_point_parse(text, &p, e);
    if (st == MF_OK) {
        st = mf_cost_point_op(&p, mf_cost_cluster(cost), op, e);
    }
    if (st != MF_OK) {
        return st;
    }
    static const char *const math[MF_MATH_COUNT] = {"FP32", "BF16", "FP8", "FP4"};
    const mf_gpu *gpu = &mf_cost_cluster(cost)->gpu;
    if (op->flops > 0 && op->math < MF_MATH_COUNT && gpu->peak_flops[op->math] <= 0) {
        return mf_err_set(e, MF_USAGE, "%s: the %s has no %s arithmetic", p.op, gpu->name,
                          math[op->math]);
    }
    mf_cost_op(cost, op, 1, price);
    return MF_OK;
}
