/* price_text.h - the price of an op given as canonical text, for `moefold price`.
 *
 * The text is a key of the profile store (profiles/ops_table.h): `OP key=value ...` in any order,
 * absent keys as the table says; e.g. "gemm m=4096 n=7168 k=2048 dtype=bf16",
 * "all_to_all bytes=64MiB ranks=16 nodes=2", "memory op=rmsnorm_fwd bytes=64MiB".
 */
#ifndef MF_COSTMODEL_PRICE_TEXT_H
#define MF_COSTMODEL_PRICE_TEXT_H

#include "costmodel/cost.h"

/* Fills *op (class, dims, flops, bytes, its group on the cost model's cluster) and *price.
 * Errors: MF_INPUT / MF_USAGE naming op, key and what is expected. Thread-safe. */
mf_status mf_cost_price_text(const mf_cost *cost, const char *text, mf_op *op, mf_price *price,
                             mf_err *e);

#endif
