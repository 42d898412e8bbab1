/* order_book.h - summaries of orders, made when they are first asked for and kept, for one search
 * or for several.
 *
 * A summary follows from the schedule alone: not from the cluster, nor from how many GPUs there
 * are. So searches of one table ask for the same ones, and no answer depends on which searches came
 * before.
 */
#ifndef MF_PLANNER_ORDER_BOOK_H
#define MF_PLANNER_ORDER_BOOK_H

#include "planner/order/order.h"

typedef struct mf_order_book mf_order_book;

/* Errors: MF_NOMEM. */
mf_status mf_order_book_create(mf_order_book **out, mf_err *e);
void mf_order_book_destroy(mf_order_book *b);
/* What mf_order_summarise gives for the same arguments; it lives as long as the book. Any number of
 * threads may ask at the same time. Errors: MF_NOMEM and schedule's. */
mf_status mf_order_book_get(mf_order_book *b, const mf_layout *l, mf_order_schedule_fn schedule,
                            void *self, int layers, int others, const mf_order_summary **out,
                            mf_err *e);

#endif
