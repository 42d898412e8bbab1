/* combine_device.cuh - the kernel of combine.
 *
 * A unit is a piece of a token's columns, most often all of them. A block is one team of warps or
 * several, which know nothing of each other. A team has two kinds of jobs for each of its units:
 * for every other rank, to add up what this rank's experts made of that rank's token and to send
 * the sum there; and for itself, to add up its own experts' rows and then what the other owners
 * sent. The first kind is bound by the links, the second by memory, so they take turns: units come
 * in chunks, and in phase i a team sends the units of chunk i and finishes those of chunk i - LAG.
 * Team t of all has the same units on every rank, so a flag between the teams of one number says
 * that a chunk has arrived.
 *
 * One warp of a team, the feeder, walks through the jobs and has the copy engine bring each row
 * into a ring in shared memory, with a note of what is to be done with it; others, the adders, each
 * take their columns of one row after the other. So all of shared memory is on its way from memory
 * at any time, whatever the adders wait for, and adders know nothing of tokens and experts. The
 * last warp, the herald, exchanges the flags: a release to other GPUs takes microseconds, and
 * nobody else waits for it.
 */
#ifndef MF_KERNELS_COMBINE_DEVICE_CUH
#define MF_KERNELS_COMBINE_DEVICE_CUH

#include "kernels/dispatch_room.cuh"

#define COMBINE_THREADS_MOST (MF_COMBINE_WARPS_MOST * 32)
#define VECTOR 8 /* bf16 in 16 bytes */
#define ACROSS 2 /* vectors of a lane in a row */
#define WARP_COLS MF_COMBINE_WARP_COLS
#define SLOTS_MOST MF_COMBINE_SLOTS_MOST
#define OUTBOX MF_COMBINE_OUTBOX
#define AT_ONCE 4 /* rows that the feeder puts at once: no more than any ring has slots */
#define LAG 3     /* phases between sending a chunk and finishing it */

typedef mf_raw<mf_bf16, VECTOR> Vector;
typedef float Sums[ACROSS][VECTOR];

/* What is to be done with a row of the ring, and with the sums after it. */
enum {
    ROW_EMPTY = 1,  /* there is no row */
    THEN_ROUND = 2, /* the sum is rounded as if it had been sent, and goes on */
    THEN_SEND = 4,  /* the sum goes to rank `to`, */
    THEN_STORE = 8, /* or is the result; it begins anew */
    THEN_TELL = 16, /* what was sent before the last telling has arrived: told */
    THEN_STOP = 32
};
struct alignas(16) Note {
    float weight;
    uint16_t what, to;
    uint32_t token, piece;
};

/* Shared memory of a team: ring [slots, piece_cols], outbox [adders, OUTBOX, WARP_COLS], then this.
 */
struct CombineDesk {
    Note note[SLOTS_MOST];
    uint64_t full[SLOTS_MOST], empty[SLOTS_MOST];
    /* Adders that have told for the i-th time, by i modulo its length: no adder is ever as far
     * ahead of another. The first telling tells nothing. */
    unsigned told[2 * SLOTS_MOST];
    unsigned came; /* 0, 1 when the peers are there, c + 2 when their chunk c is */
};

static_assert(WARP_COLS == 32 * VECTOR * ACROSS, "a warp takes its columns in one step");
static_assert(sizeof(CombineDesk) <= MF_COMBINE_DESK_B, "room that the plan leaves");

/* Of this block, and of all blocks. */
__device__ static unsigned team_here(const mf_combine_plan &p) {
    return threadIdx.x / 32 / (p.adders + MF_COMBINE_OTHERS);
}
__device__ static unsigned team_of_all(const mf_combine_plan &p) {
    return blockIdx.x * p.teams + team_here(p);
}

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
    __device__ void skip(unsigned n, unsigned slots) { /* n <= slots */
        slot += n;
        if (slot >= slots) {
            slot -= slots;
            parity ^= 1;
        }
    }
    __device__ void next(unsigned slots) {
        skip(1, slots);
    }
};

struct Feeder {
    char *ring;
    CombineDesk *desk;
    Turn turn;
    unsigned came; /* as desk->came when it was last looked at */
};

/* One lane puts a note, and `size_B` bytes from `from`, into the slot of that turn. */
__device__ static void put_here(const Feeder &f, const mf_combine_plan &p, const Turn &t,
                                const Note &note, const mf_bf16 *from, uint32_t size_B) {
    uint64_t *full = &f.desk->full[t.slot];
    mf_bulk_wait(&f.desk->empty[t.slot], t.parity ^ 1); /* a fresh one counts as emptied */
    f.desk->note[t.slot] = note;
    mf_bulk_expect(full, size_B);
    if (size_B > 0) {
        mf_bulk_load(f.ring + t.slot * p.piece_cols * 2, from, size_B, full);
    }
}

__device__ static void put(Feeder &f, const mf_combine_plan &p, const Note &note,
                           const mf_bf16 *from, uint32_t size_B) {
    if (threadIdx.x % 32 == 0) {
        put_here(f, p, f.turn, note, from, size_B);
    }
    __syncwarp();
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
    const unsigned with = __ballot_sync(0xffffffffu, c.row >= 0);
    const mf_bf16 *y = (const mf_bf16 *)k.y + u.piece * p.piece_cols;
    const uint32_t size_B = piece_B(r, p, u);
    const int rows = __popc(with);
    if (k.slot_grad && u.piece == 0 && c.row >= 0) {
        wait_for(&f.desk->came, 1);
        const int64_t slot = u.token * r.top_k + threadIdx.x % 32;
        at_peer<float>(r, r.prob_grad, to)[slot] = k.slot_grad[to * r.tokens * r.top_k + slot];
    }
    /* Lanes with a row put it themselves, so that waiting and starting copies overlap; AT_ONCE of
     * them, since none starts before all have their slots. */
    const int place = __popc(with & ((1u << threadIdx.x % 32) - 1));
    for (int first = 0; first < rows; first += AT_ONCE) {
        const int now = rows - first < AT_ONCE ? rows - first : AT_ONCE;
        if (c.row >= 0 && place >= first && place < first + now) {
            const Note note = {c.weight, place + 1 < rows ? (uint16_t)0 : last, (uint16_t)to,
                               u.token, u.piece};
            Turn mine = f.turn;
            mine.skip((unsigned)(place - first), p.slots);
            put_here(f, p, mine, note, y + (int64_t)c.row * r.cols, size_B);
        }
        __syncwarp();
        f.turn.skip((unsigned)now, p.slots);
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

/* One unit of this rank's own tokens, of chunk `chunk`: its experts' rows, then the other owners'
 * sums in the order of ranks, as soon as the chunk has come. */
__device__ static void feed_finish(Feeder &f, const mf_combine_plan &p, const Room &r,
                                   const mf_kernel_combine &k, const Unit &u, const Choices &c,
                                   unsigned chunk) {
    const unsigned others = owners(r, c.choice) & ~(1u << r.rank);
    const int rows =
        feed_own(f, p, r, k, c, u, r.rank, (uint16_t)(others ? THEN_ROUND : THEN_STORE));
    const mf_bf16 *partial =
        at_peer<mf_bf16>(r, r.partial, r.rank) + u.token * r.cols + u.piece * p.piece_cols;
    if (others && f.came < chunk + 2) {
        wait_for(&f.desk->came, chunk + 2);
        mf_bulk_fence_all(); /* the copy engine reads what the peers wrote */
        f.came = chunk + 2;
    }
    for (unsigned left = others; left; left &= left - 1) {
        const int peer = __ffs((int)left) - 1;
        const bool last = (left & (left - 1)) == 0;
        const Note note = {1.0f, (uint16_t)(last ? THEN_STORE : 0), 0, u.token, u.piece};
        put(f, p, note, partial + peer * r.tokens * r.cols, piece_B(r, p, u));
    }
    if (rows == 0 && others == 0) {
        const Note note = {0.0f, ROW_EMPTY | THEN_STORE, 0, u.token, u.piece};
        put(f, p, note, nullptr, 0);
    }
}

__device__ static void feed(Feeder &f, const mf_combine_plan &p, const Room &r,
                            const mf_kernel_combine &k) {
    const unsigned team = team_of_all(p);
    Unit send = {team, team / p.pieces, team % p.pieces}, finish = send;
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
                                              gridDim.x + team_of_all(p));
    for (unsigned c = 0; c <= p.chunks; c++) { /* first: peers have read what lies there */
        if (c > 0) {
            wait_for(&desk->told[c % (2 * SLOTS_MOST)], p.adders * (c / (2 * SLOTS_MOST) + 1));
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

/* An adder: a warp with its columns of every row. */
struct Adder {
    CombineDesk *desk;
    mf_bf16 *buffer;               /* [OUTBOX, WARP_COLS] */
    unsigned in_piece;             /* its first column */
    unsigned sent, told, tellings; /* sums, those up to the last telling */
    Sums sum;
};

__device__ static void send(Adder &w, const Note &n, const Room &r, int64_t first) {
    if (first < r.cols) {
        mf_bf16 *to = at_peer<mf_bf16>(r, r.partial, n.to);
        if (w.sent == 0) {
            wait_for(&w.desk->came, 1);
        }
        send_sum(w.buffer + w.sent++ % OUTBOX * WARP_COLS, w.sum,
                 to + (r.rank * r.tokens + n.token) * r.cols + first, r.cols - first);
    }
}

__device__ static void store(const Adder &w, const Note &n, const Room &r,
                             const mf_kernel_combine &k, int64_t first) {
    mf_bf16 *to = (mf_bf16 *)k.out + n.token * r.cols + first;
#pragma unroll
    for (int a = 0; a < ACROSS; a++) {
        const int64_t c = (int64_t)(a * 32 + threadIdx.x % 32) * VECTOR;
        if (c < r.cols - first) {
            mf_store(to + c, w.sum[a]);
        }
    }
}

/* What comes after a row. False: stop. */
__device__ static bool act(Adder &w, const Note &n, const Room &r, const mf_kernel_combine &k,
                           const mf_combine_plan &p) {
    if (n.what & THEN_STOP) {
        return false;
    }
    if (n.what & THEN_TELL) {
        if (threadIdx.x % 32 == 0) {
            wait_sent(w.sent - w.told);
            count_up(&w.desk->told[w.tellings % (2 * SLOTS_MOST)]);
        }
        w.tellings++;
        w.told = w.sent;
        return true;
    }
    if (n.what & THEN_ROUND) {
#pragma unroll
        for (int i = 0; i < ACROSS * VECTOR; i++) {
            float &x = w.sum[i / VECTOR][i % VECTOR];
            x = mf_round_as((mf_bf16 *)nullptr, x);
        }
        return true;
    }
    const int64_t first = (int64_t)n.piece * p.piece_cols + w.in_piece;
    if (n.what & THEN_SEND) {
        send(w, n, r, first);
    } else {
        store(w, n, r, k, first);
    }
    clear(w.sum);
    return true;
}

/* Most rows are only added: as few instructions as that takes. */
__device__ static void add_up(const char *ring, Adder &w, const mf_combine_plan &p, const Room &r,
                              const mf_kernel_combine &k) {
    const char *mine = ring + (w.in_piece + threadIdx.x % 32 * VECTOR) * 2;
    Turn turn = {0, 0};
    clear(w.sum);
    for (;;) {
        mf_bulk_wait(&w.desk->full[turn.slot], turn.parity);
        const Note n = w.desk->note[turn.slot];
        const mf_bf16 *from = (const mf_bf16 *)(mine + turn.slot * p.piece_cols * 2);
        Vector row[ACROSS];
#pragma unroll
        for (int a = 0; a < ACROSS; a++) { /* of an empty one: whatever lies there */
            row[a] = mf_fetch<mf_bf16, VECTOR>(from + a * 32 * VECTOR);
        }
        mf_bulk_arrive(&w.desk->empty[turn.slot]);
        turn.next(p.slots);
        if (!(n.what & ROW_EMPTY)) {
            add_row(w.sum, n.weight, row);
        }
        if (n.what != 0 && !act(w, n, r, k, p)) {
            break;
        }
    }
}

__global__ void __launch_bounds__(COMBINE_THREADS_MOST, 1)
    combine_kernel(const __grid_constant__ ncclDevComm comm, const __grid_constant__ Room r,
                   const __grid_constant__ mf_kernel_combine k,
                   const __grid_constant__ mf_combine_plan p) {
    extern __shared__ __align__(128) char share[]; /* [teams, team_B] */
    const unsigned team = team_here(p);
    const unsigned warp = threadIdx.x / 32 - team * (p.adders + MF_COMBINE_OTHERS);
    char *ring = share + team * p.team_B, *outbox = ring + p.slots * p.piece_cols * 2;
    CombineDesk *desk = (CombineDesk *)(outbox + p.adders * OUTBOX * WARP_COLS * 2);
    if (warp == 0 && threadIdx.x % 32 == 0) {
        for (unsigned i = 0; i < p.slots; i++) {
            mf_bulk_init(&desk->full[i]);
            mf_bulk_init_many(&desk->empty[i], p.adders * 32);
        }
        for (unsigned i = 0; i < 2 * SLOTS_MOST; i++) {
            desk->told[i] = 0;
        }
        desk->came = 0;
        mf_bulk_init_done();
    }
    __syncthreads();
    if (warp == p.adders) {
        Feeder f = {ring, desk, {0, 0}, 0};
        feed(f, p, r, k);
    } else if (warp > p.adders) {
        exchange_flags(comm, desk, p);
    } else {
        Adder w = {desk, (mf_bf16 *)outbox + warp * OUTBOX * WARP_COLS, warp * WARP_COLS, 0, 0, 0,
                   {}};
        add_up(ring, w, p, r, k);
    }
}

#endif
