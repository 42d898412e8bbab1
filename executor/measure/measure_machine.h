/* measure_machine.h - what measuring has to know of a machine, and when it had better not begin.
 *
 * The program that holds the CUDA side (measure_main_cuda.c) says it in one line of text;
 * everything here is plain text and decisions and needs no GPU.
 */
#ifndef MF_EXECUTOR_MEASURE_MACHINE_H
#define MF_EXECUTOR_MEASURE_MACHINE_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct mf_measure_machine {
    char device[80]; /* as the driver calls it: "NVIDIA H200" */
    char gpu[32];    /* as clusters and points call it: "h200" */
    double memory_B;
    int gpus;      /* of that kind in this host */
    int processes; /* other processes that compute on them; -1 = not known */
    bool hot;      /* clocks are held down by heat or by the power brake */
    int sm_MHz, temperature_C;
    char versions[160]; /* "cuda=13.0 driver=580.159 cublas=13.1.0 cudnn=9.19.0" */
    char nccl[32];      /* "2.28.9"; "" without */
} mf_measure_machine;

/* Name of a GPU among clusters: "NVIDIA H100 80GB HBM3" -> "h100", "NVIDIA A100-SXM4-40GB" ->
 * "a100-40". A device that no cluster is named after becomes its own name in lower case with
 * dashes. */
void mf_measure_gpu_name(const char *device, double memory_B, char *out, size_t size);

/* One line, without the newline, and back. Errors of parse: MF_INPUT naming the field. */
void mf_measure_machine_format(const mf_measure_machine *m, char *out, size_t size);
mf_status mf_measure_machine_parse(const char *line, mf_measure_machine *out, mf_err *e);

/* What cannot be seen on it, for a person; "" when all can. */
const char *mf_measure_machine_blind(const mf_measure_machine *m);
/* Whether times taken now would be those of an idle, cool GPU. shared: another process is accepted.
 * Errors: MF_USAGE for a machine without a GPU, MF_INPUT with what disturbs. */
mf_status mf_measure_machine_check(const mf_measure_machine *m, bool shared, mf_err *e);

/* Versions as they stand in a point of this op: collectives depend on NCCL, too. */
void mf_measure_versions_of(const mf_measure_machine *m, const char *op, char *out, size_t size);
/* Whether a time of this op under one set of versions stands under the other: the toolkit, the
 * library that runs it and the branch of the driver (580.159 of 580.159.04) are the same. */
bool mf_measure_same_versions(const char *op, const char *a, const char *b);
/* Whether points of this op take several GPUs and NCCL. */
bool mf_measure_op_is_collective(const char *op);

#endif
