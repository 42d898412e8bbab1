/* point_mixers.h - private to the cost model: points of ops that mixers take beside products, as
 * ops. Errors: MF_USAGE where keys contradict each other. */
#ifndef MF_COSTMODEL_POINT_MIXERS_H
#define MF_COSTMODEL_POINT_MIXERS_H

#include "core/program/program.h"
#include "profiles/store.h"

mf_status mf_point_conv(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e);
mf_status mf_point_scan(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e);
mf_status mf_point_index(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e);

#endif
