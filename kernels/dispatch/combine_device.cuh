/* combine_device.cuh - the kernel of combine.
 *
 * A unit is a piece of a token's columns, most often all of them. A block is one team of warps or
 * several, which know nothing of each other. A team has two kinds of jobs for each of its units:
 * for every other rank, to add up what this rank's experts made of that rank's token and to send
 * the sum there; and for itself, to add up its own experts' rows and then what the other owners
 * sent. The first kind is bound by the links, the second by memory, so they take turns: units come
 * in chunks, and in phase i a team sends the units of chunk i and finishes those of chunk i - lag.
 * Where units are few, waiting for the links would be all there is: then a team adds up its own
 * experts' rows while it sends, too, and keeps these early sums in the result.
 * Team t of all has the same units on every rank, so a flag between the teams of one number says
 * that a chunk has arrived.
 *
 * One warp of a team, the producer, walks through the jobs and has the copy engine bring their rows
 * into a ring in shared memory, each with a descriptor of what is to be done with it; others, the
 * adders, each take their columns of one row after the other. So all of shared memory is on its way
 * from memory at any time, whatever the adders wait for, and adders know nothing of tokens and
 * experts. The last warp, the signal warp, exchanges the flags: a release to other GPUs waits until
 * all that this GPU has sent is delivered, under load 3 to 8 us, and nobody else waits for it. It
 * is what makes the data arrive before the flag: when a bulk store counts as complete it has only
 * been read (on an H200 both waits are one instruction; flags without a release overtook the data).
 */
#ifndef MF_KERNELS_COMBINE_DEVICE_CUH
#define MF_KERNELS_COMBINE_DEVICE_CUH

#include "kernels/dispatch/combine_adder.cuh"
#include "kernels/dispatch/combine_producer.cuh"

#define COMBINE_THREADS_MOST (MF_COMBINE_WARPS_MOST * 32)

/* --- the signal warp: one warp --- */
__device__ static void exchange_flags(const ncclDevComm &comm, const Group &r, CombineSmem *smem,
                                      const mf_combine_plan &p) {
    ncclLsaBarrierSession<ncclCoopWarp> flags(ncclCoopWarp(), comm, ncclTeamTagLsa(),
                                              r.flags + team_of_all(p));
    for (unsigned c = 0; c <= p.chunks; c++) { /* first: peers have read what lies there */
        if (c > 0) {
            wait_for(&smem->signalled[c - p.early], p.adders);
        }
        arrive_at_peers(flags, ncclCoopWarp(), c > 0);
        flags.wait(ncclCoopWarp(), cuda::memory_order_acquire);
        if (threadIdx.x % 32 == 0) {
            count_up(&smem->came);
        }
    }
}

__global__ void __launch_bounds__(COMBINE_THREADS_MOST, 1)
    combine_kernel(const __grid_constant__ ncclDevComm comm, const __grid_constant__ Group r,
                   const __grid_constant__ mf_kernel_combine k,
                   const __grid_constant__ mf_combine_plan p) {
    extern __shared__ __align__(128) char memory[]; /* [teams, team_B] */
    const unsigned team = team_here(p), lane = threadIdx.x % 32;
    const unsigned warp = threadIdx.x / 32 - team * (p.adders + MF_COMBINE_OTHERS);
    char *ring = memory + team * p.team_B, *outbox = ring + p.slots * p.piece_cols * 2;
    CombineSmem *smem = (CombineSmem *)(outbox + p.adders * OUTBOX * WARP_COLS * 2);
    if (warp == 0) {
        if (lane < p.slots) {
            mf_bulk_init(&smem->full[lane]);
            mf_bulk_init_many(&smem->empty[lane], p.adders * 32);
            mf_bulk_init_done();
        }
        smem->signalled[lane] = 0;
        if (lane == 0) {
            smem->came = 0;
        }
    }
    __syncthreads();
    if (warp == p.adders) {
        mf_bf16 *partial = at_peer<mf_bf16>(r, r.partial, (int)lane < r.ranks ? (int)lane : 0);
        Producer f = {ring, smem, partial + r.rank * r.tokens * r.cols, {0, 0}, 0};
        feed(f, p, r, k);
    } else if (warp > p.adders) {
        exchange_flags(comm, r, smem, p);
    } else {
        const char *first = ring + (warp * WARP_COLS + lane * VECTOR) * 2;
        Adder w = {
            smem, first, (mf_bf16 *)outbox + warp * OUTBOX * WARP_COLS, warp * WARP_COLS, 0, 0,
            0,    {}};
        add_up(w, p);
    }
}

#endif
