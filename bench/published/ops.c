/* ops.c - where the time of a published row goes, by kind of op. */
#include "bench/published/predict.h"

#include <stdio.h>

enum { PASSES = 4, SLOTS = MF_OP_COUNT * MF_MATH_COUNT * PASSES };
static const double worth_a_line = 0.002; /* of the step */

typedef struct sums {
    double time_s[SLOTS], flops[SLOTS];
} sums;

static int pass_of(const mf_op *op) {
    return op->pass == MF_PASS_F ? 0 : op->pass == MF_PASS_B ? 1 : op->pass == MF_PASS_W ? 2 : 3;
}

static void add_block(const mf_cost *cost, const mf_block *b, double times, sums *s) {
    for (int k = 0; k < b->nops; k++) {
        const mf_op *op = &b->ops[k];
        mf_price price;
        mf_cost_op(cost, op, 1, &price);
        int slot = (op->kind * MF_MATH_COUNT + op->math) * PASSES + pass_of(op);
        s->time_s[slot] += times * price.time_s;
        s->flops[slot] += times * op->flops;
    }
}

static void print(const pub_row *r, const sums *s) {
    static const char *const maths[MF_MATH_COUNT] = {"fp32", "bf16", "fp8", "fp4"};
    static const char *const passes[PASSES] = {"forward", "backward", "weights", "recompute"};
    printf(
        "%s: seconds a step and rank, alone on the device, stages alike; published step %.3f s\n",
        r->id, r->step_s);
    for (int i = 0; i < SLOTS; i++) {
        if (s->time_s[i] > worth_a_line * r->step_s) {
            printf("  %-20s %-4s %-9s %9.3f s %7.0f TFLOP/s\n",
                   mf_op_text((mf_op_kind)(i / PASSES / MF_MATH_COUNT)),
                   maths[i / PASSES % MF_MATH_COUNT], passes[i % PASSES], s->time_s[i],
                   s->flops[i] / s->time_s[i] / 1e12);
        }
    }
}

mf_status pub_print_ops(const pub_profiles *p, const pub_row *r, mf_err *e) {
    mf_cost *cost = NULL;
    mf_program *program = NULL;
    mf_status status = mf_cost_create(&r->cluster, &p->software[r->profile], NULL, &cost, e);
    if (status == MF_OK) {
        status = mf_program_lower(&r->model, &r->layout, &r->cluster, &r->job->plan.assignment,
                                  &program, e);
    }
    if (status == MF_OK) {
        sums s = {{0}, {0}};
        double times = (double)r->layout.micro_batches / (double)r->layout.pp;
        for (int i = 0; i < program->assignment.positions; i++) {
            add_block(cost, program->blocks[program->block_of[i]], times, &s);
        }
        print(r, &s);
    }
    mf_program_destroy(program);
    mf_cost_destroy(cost);
    return status;
}
