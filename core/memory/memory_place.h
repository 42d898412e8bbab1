/* memory_place.h - the address of everything that is allocated and freed within a step: the memory
 * plan's maximum (core/memory/memory.h) as an arrangement.
 *
 * The schedule is known, so each tensor group gets its address before the first step: saved tensors
 * and what is held for weight gradients by (chunk, micro-batch, block); workspaces, unreduced
 * gradients and offload staging by (event, running block). What is in use at the same time never
 * overlaps. The same holds for offloaded activations in host memory.
 */
#ifndef MF_CORE_MEMORY_PLACE_H
#define MF_CORE_MEMORY_PLACE_H

#include "core/program/lower.h"
#include "core/schedule/schedule.h"

/* Bytes from the start of the area, of each run of a kind (core/program/memory_runs.h). */
typedef struct mf_place_instance { /* of a block and a micro-batch */
    int64_t saved[MF_RUNS];        /* forward to backward, but for what W reads */
    int64_t kept[MF_RUNS];         /* saved tensors that W reads */
    int64_t made[MF_RUNS];         /* what B makes for W */
    int64_t arrived; /* boundary tensors that W reads, from the end of B on; -1: none */
    int64_t host;    /* offloaded tensors, in the host's area; -1: none */
} mf_place_instance;

typedef struct mf_place_work { /* of a running block in an event */
    int64_t local[MF_RUNS];    /* workspace */
    int64_t gradients;         /* that are not reduced yet (ZeRO-2, ZeRO-3); -1: none */
    /* Copies of its offloaded tensors: on their way to the host, from its end until the pass's next
     * block has worked; on their way back, from where the pass's block before works until this one
     * begins. -1: none, as of the last block of a forward pass and the first of a backward one. */
    int64_t leaving, coming;
} mf_place_work;

typedef struct mf_place_size {
    int64_t size_B;  /* of the area */
    int64_t bound_B; /* most in use at the same time: no arrangement needs less */
    int64_t looks;   /* at pairs of tensors, which the arrangement took */
} mf_place_size;

typedef struct mf_places {
    mf_place_size device, host;
    int64_t micro_batches;
    int blocks;                  /* of the stage, chunk after chunk */
    int *first;                  /* [chunks + 1] block of a chunk */
    mf_place_instance *instance; /* [blocks][micro_batches] */
    int64_t *event;              /* [events + 1] first work of an event */
    mf_place_work *work; /* of the k-th block that event i runs: event[i] + 2 k, and + 1 for the
                            backward side of a merged pair */
} mf_places;

/* The addresses of a stage. The caller destroys *out. Errors: MF_NOMEM. */
mf_status mf_memory_place(const mf_program *p, const mf_schedule *s, int64_t stage, mf_places **out,
                          mf_err *e);
/* The size that mf_memory_place would need, without the addresses: of device or host memory. Any
 * arrangement with gaps of gaps_B at most will do. */
mf_status mf_memory_place_size(const mf_program *p, const mf_schedule *s, int64_t stage, bool host,
                               int64_t gaps_B, mf_place_size *out, mf_err *e);
void mf_places_destroy(mf_places *x);

#endif
