/* combine_device.cuh - the kernel of combine.
 *
 * A unit is a piece of a token's columns, most often all of them. A block has two kinds of jobs for
 * each of its units: for every other rank, to add up what this rank's experts made of that rank's
 * token and to send the sum there; and for itself, to add up its own experts' rows and what the
 * other owners sent. The first kind is bound by the links, the second by memory, so they take
 * turns: units come in chunks, and in phase i a block sends the units of chunk i and finishes those
 * of chunk i - LAG. Block b has the same units on every rank, so a flag between the blocks of one
 * number says that a chunk has arrived.
 *
 * One warp of a block, the feeder, walks through the jobs and has the copy engine bring each row
 * into a ring in shared memory, with a note of what is to be done with it; others, the adders, each
 * take their columns of one row after the other. So all of shared memory is on its way from memory
 * at any time, whatever the adders wait for, and adders know nothing of tokens and experts. The
 * last warp, the herald, exchanges the flags: a release to other GPUs takes microseconds, and
 * nobody else waits for it.
 */
#ifndef MF_KERNELS_COMBINE_DEVICE_CUH
#define MF_KERNELS_COMBINE_DEVICE_CUH

#include "kernels/dispatch_room.cuh"

#define ADDERS MF_COMBINE_ADDERS
#define COMBINE_THREADS ((ADDERS + 2) * 32)
#define VECTOR 8 /* bf16 in 16 bytes */
#define ACROSS 2 /* vectors of a lane in a row */
#define WARP_COLS MF_COMBINE_WARP_COLS
#define SLOTS_MOST MF_COMBINE_SLOTS_MOST
#define OUTBOX MF_COMBINE_OUTBOX
#define LAG 3 /* phases between sending a chunk and finishing it */

typedef mf_raw<mf_bf16, VECTOR> Vector;
typedef float Sums[ACROSS][VECTOR];

/* What is to be done with a row of the ring, and with the sums after it. */
enum {
    ROW_EMPTY = 1,   /* there is no row */
    ROW_PARTIAL = 2, /* another owner's sum: added to the total; else an expert's: to the sum */
    THEN_FOLD = 4,   /* the sum, rounded as if it had been sent, is added to the total */
    THEN_SEND = 8,   /* the sum goes to rank `to`, */
    THEN_STORE = 16, /* or the total is the result; both begin anew */
    THEN_TELL = 32,  /* what was sent before the last telling has arrived: told */
    THEN_STOP = 64
};
struct Note {
    float weight;
    uint16_t what, to;
    uint32_t token, piece;
};

/* Shared memory: ring [slots, piece_cols], outbox [ADDERS, OUTBOX, WARP_COLS], then this. */
struct CombineDesk {
    Note note[SLOTS_MOST];
    uint64_t full[SLOTS_MOST], empty[SLOTS_MOST];
    /* Adders that have told for the i-th time, by i modulo its length: no adder is ever as far
     * ahead of another. The first telling tells nothing. */
    unsigned told[2 * SLOTS_MOST];
    unsigned came; /* 0, 1 when the peers are there, c + 2 when their chunk c is */
};
#define OUTBOX_B (ADDERS * OUTBOX * WARP_COLS * 2)

static_assert(WARP_COLS == 32 * VECTOR * ACROSS, "a warp takes its columns in one step");
static_assert(sizeof(CombineDesk) <= MF_COMBINE_DESK_B, "room that the plan leaves");

struct Unit {
    unsigned number, token, piece;
    __device__ void next(const mf_combine_plan &p) {
        number += p.step;
        token += p.step_tokens;
        piece += p.step_pieces;
        if (piece >= p.pieces) {
            piece -= p.pieces;
            token++;
        }
    }
};

/* Counters between warps of a block. */
__device__ static void count_up(unsigned *counter) {
    asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(mf_bulk_address(counter))
                 : "memory");
}

__device__ static void wait_for(const unsigned *counter, unsigned least) {
    unsigned now;
    do {
        asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];"
                     : "=r"(now)
                     : "r"(mf_bulk_address(counter))
                     : "memory");
    } while (now < least);
}

/* --- the feeder: one warp --- */
/* What lane i knows of choice i of a token. */
struct Choices {
    int row;    /* of y, -1: none */
    int local;  /* this rank's expert, -1: not here */
    int choice; /* among all experts; only of this rank's own tokens */
    float weight;
};

__device__ static Choices ask(const Room &r, const mf_kernel_combine &k, const mf_combine_plan &p,
                              const Unit &u, int to) {
    const int lane = (int)threadIdx.x % 32;
    Choices c = {-1, -1, -1, 1.0f};
    if (u.number < p.count && lane < r.top_k) {
        const int64_t slot = (to * r.tokens + u.token) * r.top_k + lane;
        c.row = k.row_of_slot[slot];
        c.local = k.local[slot];
        if (k.weight) {
            c.weight = k.weight[slot];
        }
        if (to == r.rank) {
            c.choice = k.index[u.token * r.top_k + lane];
        }
    }
    return c;
}

/* The ring as one side sees it: its next slot, and the parity of the barrier it waits for. */
struct Turn {
    unsigned slot, parity;
    __device__ void next(unsigned slots) {
        if (++slot == slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

struct Feeder {
    char *ring;
    CombineDesk *desk;
    Turn turn;
};

/* Puts a note, and `size_B` bytes from `from`, into the next slot. */
__device__ static void put(Feeder &f, const mf_combine_plan &p, const Note &note,
                           const mf_bf16 *from, uint32_t size_B) {
    mf_bulk_wait(&f.desk->empty[f.turn.slot],
                 f.turn.parity ^ 1); /* a fresh one counts as emptied */
    if (threadIdx.x % 32 == 0) {
        uint64_t *full = &f.desk->full[f.turn.slot];
        f.desk->note[f.turn.slot] = note;
        mf_bulk_expect(full, size_B);
        if (size_B > 0) {
            mf_bulk_load(f.ring + f.turn.slot * p.piece_cols * 2, from, size_B, full);
        }
    }
    f.turn.next(p.slots);
}

__device__ static uint32_t piece_B(const Room &r, const mf_combine_plan &p, const Unit &u) {
    const unsigned left = (unsigned)r.cols - u.piece * p.piece_cols;
    return (left < p.piece_cols ? left : p.piece_cols) * 2;
}

/* The rows of this rank's experts for a token of rank `to`; `last` goes with the last of them.
 * Returns their number. */
__device__ static int feed_own(Feeder &f, const mf_combine_plan &p, const Room &r,
                               const mf_kernel_combine &k, const Choices &c, const Unit &u, int to,
                               uint16_t last) {
    unsigned with = __ballot_sync(0xffffffffu, c.row >= 0);
    const mf_bf16 *y = (const mf_bf16 *)k.y + u.piece * p.piece_cols;
    const uint32_t size_B = piece_B(r, p, u);
    const int rows = __popc(with);
    if (k.slot_grad && u.piece == 0 && c.row >= 0) {
        wait_for(&f.desk->came, 1);
        const int64_t slot = u.token * r.top_k + threadIdx.x % 32;
        at_peer<float>(r, r.prob_grad, to)[slot] = k.slot_grad[to * r.tokens * r.top_k + slot];
    }
    while (with) {
        const int j = __ffs((int)with) - 1;
        with &= with - 1;
        const int64_t row = __shfl_sync(0xffffffffu, c.row, j);
        const Note note = {__shfl_sync(0xffffffffu, c.weight, j), with ? (uint16_t)0 : last,
                           (uint16_t)to, u.token, u.piece};
        put(f, p, note, y + row * r.cols, size_B);
    }
    return rows;
}

/* One unit's sums for all other ranks. `ahead`: the choices of the first of them; becomes those of
 * the first for `next`. */
__device__ static void feed_sends(Feeder &f, const mf_combine_plan &p, const Room &r,
                                  const mf_kernel_combine &k, const Unit &u, const Unit &next,
                                  Choices &ahead) {
    for (int i = 1; i < r.ranks; i++) { /* each rank begins with another */
        const int to = (r.rank + i) % r.ranks;
        const Choices now = ahead;
        ahead = i + 1 < r.ranks ? ask(r, k, p, u, (to + 1) % r.ranks)
                                : ask(r, k, p, next, (r.rank + 1) % r.ranks);
        if (__any_sync(0xffffffffu, now.local >= 0) && /* rows may have been dropped since */
            feed_own(f, p, r, k, now, u, to, THEN_SEND) == 0) {
            const Note note = {0.0f, ROW_EMPTY | THEN_SEND, (uint16_t)to, u.token, u.piece};
            put(f, p, note, nullptr, 0);
        }
    }
}

/* One unit of this rank's own tokens, of chunk `chunk`: its experts' rows, then the owners' sums in
 * the order of ranks, as soon as the chunk has come. */
__device__ static void feed_finish(Feeder &f, const mf_combine_plan &p, const Room &r,
                                   const mf_kernel_combine &k, const Unit &u, const Choices &c,
                                   unsigned chunk) {
    const unsigned all = owners(r, c.choice), own = 1u << r.rank;
    const unsigned before = all & (own - 1), after = all & ~(own - 1) & ~own;
    const uint16_t fold = all & own ? THEN_FOLD : 0, store = after ? 0 : THEN_STORE;
    const int rows = feed_own(f, p, r, k, c, u, r.rank, before ? 0 : (uint16_t)(fold | store));
    const mf_bf16 *partial =
        at_peer<mf_bf16>(r, r.partial, r.rank) + u.token * r.cols + u.piece * p.piece_cols;
    wait_for(&f.desk->came, chunk + 2);
    mf_bulk_fence_all(); /* the copy engine reads what the peers wrote */
    for (unsigned left = before | after; left; left &= left - 1) {
        const int peer = __ffs((int)left) - 1;
        const bool folds = peer < r.rank && (left & (left - 1) & before) == 0;
        const bool last = (left & (left - 1)) == 0;
        const Note note = {1.0f,
                           (uint16_t)(ROW_PARTIAL | (folds ? fold : 0) | (last ? THEN_STORE : 0)),
                           0, u.token, u.piece};
        put(f, p, note, partial + peer * r.tokens * r.cols, piece_B(r, p, u));
    }
    if (rows == 0 && (before | after) == 0) {
        const Note note = {0.0f, ROW_EMPTY | THEN_STORE, 0, u.token, u.piece};
        put(f, p, note, nullptr, 0);
    }
}

__device__ static void feed(Feeder &f, const mf_combine_plan &p, const Room &r,
                            const mf_kernel_combine &k) {
    Unit send = {blockIdx.x, blockIdx.x / p.pieces, blockIdx.x % p.pieces}, finish = send;
    Choices sends = ask(r, k, p, send, (r.rank + 1) % r.ranks);
    Choices finishes = ask(r, k, p, finish, r.rank);
    for (unsigned phase = 0; phase < p.chunks + LAG; phase++) {
        for (unsigned i = 0; i < p.each; i++) {
            if (phase < p.chunks && send.number < p.count) {
                const Unit now = send;
                send.next(p);
                feed_sends(f, p, r, k, now, send, sends);
            }
            if (phase >= LAG && finish.number < p.count) {
                const Unit now = finish;
                const Choices c = finishes;
                finish.next(p);
                finishes = ask(r, k, p, finish, r.rank);
                feed_finish(f, p, r, k, now, c, phase - LAG);
            }
        }
        if (phase <= p.chunks) {
            const Note note = {0.0f, ROW_EMPTY | THEN_TELL, 0, 0, 0};
            put(f, p, note, nullptr, 0);
        }
    }
    const Note note = {0.0f, ROW_EMPTY | THEN_STOP, 0, 0, 0};
    put(f, p, note, nullptr, 0);
}

/* --- the herald: one warp --- */
__device__ static void exchange_flags(const ncclDevComm &comm, CombineDesk *desk,
                                      const mf_combine_plan &p) {
    ncclLsaBarrierSession<ncclCoopWarp> flags(ncclCoopWarp(), comm, ncclTeamTagLsa(),
                                              gridDim.x + blockIdx.x);
    for (unsigned c = 0; c <= p.chunks; c++) { /* first: peers have read what lies there */
        if (c > 0) {
            wait_for(&desk->told[c % (2 * SLOTS_MOST)], ADDERS * (c / (2 * SLOTS_MOST) + 1));
        }
        flags.sync(ncclCoopWarp(), cuda::memory_order_acq_rel);
        if (threadIdx.x % 32 == 0) {
            count_up(&desk->came);
        }
    }
}

/* --- the adders --- */
/* Stores this warp's columns of a sum to a peer through the copy engine: 1 KiB at once, which the
 * links carry better than stores of single warps. */
__device__ static void send_sum(mf_bf16 *buffer, const Sums &sum, mf_bf16 *to, int64_t cols) {
    const unsigned lane = threadIdx.x % 32;
    if (lane == 0) {
        mf_bulk_wait_read<OUTBOX - 1>();
    }
    __syncwarp();
#pragma unroll
    for (int a = 0; a < ACROSS; a++) {
        mf_store(buffer + (a * 32 + lane) * VECTOR, sum[a]);
    }
    mf_bulk_fence();
    __syncwarp();
    if (lane == 0) {
        mf_bulk_store(to, buffer, (uint32_t)(cols < WARP_COLS ? cols : WARP_COLS) * 2);
        mf_bulk_commit();
    }
}

/* Until all but this thread's last `later` stores have arrived. */
__device__ static void wait_sent(unsigned later) {
    switch (later) {
    case 0:
        mf_bulk_wait_done<0>();
        break;
    case 1:
        mf_bulk_wait_done<1>();
        break;
    case 2:
        mf_bulk_wait_done<2>();
        break;
    default:
        mf_bulk_wait_done<3>();
    }
}

/* x += weight * row. */
__device__ static void add_row(Sums &x, float weight, const Vector (&row)[ACROSS]) {
#pragma unroll
    for (int a = 0; a < ACROSS; a++) {
        float v[VECTOR];
        mf_widen(v, row[a]);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            x[a][i] += weight * v[i];
        }
    }
}

__device__ static void clear(Sums &x) {
#pragma unroll
    for (int i = 0; i < ACROSS * VECTOR; i++) {
        x[i / VECTOR][i % VECTOR] = 0.0f;
    }
}

/* What a note asks for behind its row; `first`: this warp's first column. */
__device__ static void act(const Note &n, const Room &r, const mf_kernel_combine &k, int64_t first,
                           CombineDesk *desk, mf_bf16 *buffer, unsigned &sent, Sums &sum,
                           Sums &total) {
    const int64_t left = r.cols - first; /* columns from there on */
    if (n.what & THEN_FOLD) {
#pragma unroll
        for (int i = 0; i < ACROSS * VECTOR; i++) {
            total[i / VECTOR][i % VECTOR] +=
                mf_round_as((mf_bf16 *)nullptr, sum[i / VECTOR][i % VECTOR]);
        }
    }
    if (n.what & THEN_SEND && left > 0) {
        mf_bf16 *to = at_peer<mf_bf16>(r, r.partial, n.to);
        if (sent == 0) {
            wait_for(&desk->came, 1);
        }
        send_sum(buffer + sent++ % OUTBOX * WARP_COLS, sum,
                 to + (r.rank * r.tokens + n.token) * r.cols + first, left);
    }
    if (n.what & THEN_STORE) {
#pragma unroll
        for (int a = 0; a < ACROSS; a++) {
            const int64_t c = (int64_t)(a * 32 + threadIdx.x % 32) * VECTOR;
            if (c < left) {
                mf_store((mf_bf16 *)k.out + n.token * r.cols + first + c, total[a]);
            }
        }
    }
    if (n.what & (THEN_SEND | THEN_STORE)) {
        clear(sum);
        clear(total);
    }
}

__device__ static void add_up(const char *ring, mf_bf16 *buffer, CombineDesk *desk,
                              const mf_combine_plan &p, const Room &r, const mf_kernel_combine &k,
                              unsigned warp) {
    const unsigned lane = threadIdx.x % 32, in_piece = warp * WARP_COLS;
    const bool has = in_piece < p.piece_cols;
    Turn turn = {0, 0};
    unsigned sent = 0, told = 0, tellings = 0; /* sums, those up to the last telling */
    Sums sum, total;
    clear(sum);
    clear(total);
    for (;;) {
        mf_bulk_wait(&desk->full[turn.slot], turn.parity);
        const Note n = desk->note[turn.slot];
        Vector row[ACROSS] = {};
        if (has && !(n.what & ROW_EMPTY)) {
            const mf_bf16 *from =
                (const mf_bf16 *)(ring + turn.slot * p.piece_cols * 2) + in_piece + lane * VECTOR;
#pragma unroll
            for (int a = 0; a < ACROSS; a++) {
                row[a] = mf_fetch<mf_bf16, VECTOR>(from + a * 32 * VECTOR);
            }
        }
        mf_bulk_arrive(&desk->empty[turn.slot]);
        turn.next(p.slots);
        if (n.what & THEN_STOP) {
            break;
        }
        if (n.what & THEN_TELL) {
            if (lane == 0) {
                wait_sent(sent - told);
                count_up(&desk->told[tellings % (2 * SLOTS_MOST)]);
            }
            tellings++;
            told = sent;
            continue;
        }
        if (!has) {
            continue;
        }
        if (n.what & ROW_PARTIAL) {
            add_row(total, 1.0f, row);
        } else if (!(n.what & ROW_EMPTY)) {
            add_row(sum, n.weight, row);
        }
        act(n, r, k, (int64_t)n.piece * p.piece_cols + in_piece, desk, buffer, sent, sum, total);
    }
}

__global__ void __launch_bounds__(COMBINE_THREADS, 1)
    combine_kernel(const __grid_constant__ ncclDevComm comm, const __grid_constant__ Room r,
                   const __grid_constant__ mf_kernel_combine k,
                   const __grid_constant__ mf_combine_plan p) {
    extern __shared__ __align__(128) char share[];
    char *outbox = share + p.slots * p.piece_cols * 2;
    CombineDesk *desk = (CombineDesk *)(outbox + OUTBOX_B);
    const unsigned warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < p.slots; i++) {
            mf_bulk_init(&desk->full[i]);
            mf_bulk_init_many(&desk->empty[i], ADDERS * 32);
        }
        for (unsigned i = 0; i < 2 * SLOTS_MOST; i++) {
            desk->told[i] = 0;
        }
        desk->came = 0;
        mf_bulk_init_done();
    }
    __syncthreads();
    if (warp == ADDERS) {
        Feeder f = {share, desk, {0, 0}};
        feed(f, p, r, k);
    } else if (warp > ADDERS) {
        exchange_flags(comm, desk, p);
    } else {
        add_up(share, (mf_bf16 *)outbox + warp * OUTBOX * WARP_COLS, desk, p, r, k, warp);
    }
}

#endif
