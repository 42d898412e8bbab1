/* capacity_table.h - private to capacity: the table while it grows; its cells (capacity_cell.c),
 * and the plans that they give each other when all are planned (capacity_share.c). */
#ifndef MF_JOB_CAPACITY_TABLE_H
#define MF_JOB_CAPACITY_TABLE_H

#include "job/capacity/capacity.h"
#include "planner/capacity/carry.h"

#include <pthread.h>

/* A model on a cluster, while its sizes are planned. */
typedef struct table_row {
    mf_job *job; /* in mf_capacity.job */
    mf_runs_on on;
    char refused[512]; /* why the chosen program cannot express the model; "" */
    mf_capacity_price price;
    mf_price_book *book;
} table_row;

/* The table while it grows. Rows lie whole in z->cell until all have ended: row r, size i at
 * r * sizes + i. */
typedef struct growing {
    mf_capacity *z;
    table_row *row; /* [models * clusters] */
    bool *planned;  /* of each cell */
    mf_order_book *orders;
    int threads, flight; /* of a search */
    int alone_threads;   /* of one beside which no other runs */
    int all_threads;
    pthread_mutex_t watching;
    const mf_capacity_cell *shown; /* the cell that progress reports are about */
} growing;

/* capacity.c: tasks that each row's search has in flight; which plan it finds depends on it. */
int mf_capacity_flight(const mf_capacity_request *r);

/* capacity_cell.c: plans a cell whose size and row are known; known[count]: plans that it may begin
 * with. One that does not fit is a result; MF_OK. */
mf_status mf_capacity_plan_cell(growing *g, table_row *row, mf_capacity_cell *c,
                                const mf_carried *known, int count, mf_err *e);
/* Says what is missing at a cell where nothing fits. */
mf_status mf_capacity_explain_cell(growing *g, mf_capacity_cell *c, mf_err *e);
/* Puts a plan for the job into a cell. Its search's gap and end are not touched. */
mf_status mf_capacity_fill_cell(mf_capacity_cell *c, const mf_capacity_request *r, const mf_job *j,
                                const mf_plan *plan, mf_err *e);
/* What was found elsewhere, as far as it may be tried at a cell of the row: how many of start[].
 * Searches without host copies come first. */
int mf_capacity_starts(const mf_problem *p, int row, const mf_carried *known, int count,
                       mf_known_plan start[MF_CARRY_MOST]);
static inline mf_carried mf_capacity_carried(const mf_capacity_cell *c) {
    return (mf_carried){c->row, &c->layout, &c->assignment};
}

/* capacity_share.c: what cells say and are given when all are planned, several rows at the same
 * time: what is missing where nothing fits, and plans of larger sizes and of other clusters. */
mf_status mf_capacity_share_plans(growing *g, int threads, mf_err *e);

#endif
