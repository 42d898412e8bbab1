/* combine_producer.cuh - the producer of a team of combine: one warp that walks through the team's
 * units and has the copy engine bring their rows into the ring (combine_device.cuh). */
#ifndef MF_KERNELS_COMBINE_FEEDER_CUH
#define MF_KERNELS_COMBINE_FEEDER_CUH

#include "kernels/dispatch/combine_smem.cuh"

#define AT_ONCE MF_COMBINE_SLOTS_LEAST

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

/* What lane i knows of choice i of a token. */
struct Choices {
    int row;    /* of y, -1: none; by token: of all choices the one row that there is */
    int local;  /* this rank's expert, -1: not here */
    int choice; /* among all experts; only of this rank's own tokens */
    float weight;
};

__device__ static Choices ask(const Group &r, const mf_kernel_combine &k, const mf_combine_plan &p,
                              const Unit &u, int to) {
    const unsigned lane = threadIdx.x % 32, top_k = (unsigned)r.top_k;
    Choices c = {-1, -1, -1, 1.0f};
    if (u.number < p.count && lane < top_k) {
        const unsigned at = (unsigned)to * (unsigned)r.tokens + u.token, slot = at * top_k + lane;
        c.row = k.row_of_slot[k.by_token ? at : slot];
        c.local = k.local[slot];
        if (k.weight) {
            c.weight = k.weight[slot];
        }
        if (to == r.rank) {
            c.choice = k.index[u.token * top_k + lane];
        }
    }
    return c;
}

struct Producer {
    char *ring;
    CombineSmem *smem;
    mf_bf16 *partial; /* lane i: where rank i takes this rank's sums */
    Turn turn;
    unsigned came; /* as smem->came when it was last looked at */
};

/* A row as one lane knows it. */
struct Row {
    int place; /* among the rows of its job, -1: none */
    const mf_bf16 *from;
    float weight;
};

/* What becomes of a job's sums. */
struct Sink {
    unsigned what;
    mf_bf16 *to;
    uint32_t cols;
};

__device__ static int64_t first_of(const mf_combine_plan &p, const Group &r, const Unit &u) {
    return u.token * r.cols + u.piece * p.piece_cols;
}

/* `rows`: of a token of another array of rows, where the piece lies. */
__device__ static Sink sink_of(const mf_combine_plan &p, const Group &r, const Unit &u,
                               unsigned what, mf_bf16 *rows) {
    const uint32_t left = (uint32_t)r.cols - u.piece * p.piece_cols;
    return {what, rows + first_of(p, r, u), left < p.piece_cols ? left : p.piece_cols};
}

/* `now` of the lanes' rows, from `first` on; 0: only what comes after. Adders leave slots in their
 * order, so that the last one is empty when all are; and a warp waits on one barrier at a time,
 * since racecheck does not follow one that waits on several. */
__device__ static void put_some(Producer &f, const mf_combine_plan &p, const Row &mine, int first,
                                unsigned now, const Sink &sink, unsigned what) {
    const unsigned place = (unsigned)(mine.place - first), count = now > 0 ? now : 1;
    const bool here = mine.place >= first && place < now;
    Turn last = f.turn, own = f.turn;
    last.skip(count - 1, p.slots);
    mf_bulk_wait(&f.smem->empty[last.slot], last.parity ^ 1); /* a fresh one counts as emptied */
    if (here || (now == 0 && threadIdx.x % 32 == 0)) {
        own.skip(here ? place : 0, p.slots);
        what = (now == 0 ? ROW_EMPTY : 0) | (!here || place + 1 == now ? what : 0);
        f.smem->descriptor[own.slot] = {sink.to, mine.weight, (uint16_t)sink.cols, (uint16_t)what};
        mf_bulk_expect(&f.smem->full[own.slot], now > 0 ? sink.cols * 2 : 0);
    }
    f.turn.skip(count, p.slots);
    if (here) {
        mf_bulk_load(f.ring + own.slot * p.piece_cols * 2, mine.from, sink.cols * 2,
                     &f.smem->full[own.slot]);
    }
    __syncwarp();
}

/* The lanes' rows, `rows` in all, AT_ONCE of them at once. */
__device__ static void put(Producer &f, const mf_combine_plan &p, const Row &mine, int rows,
                           const Sink &sink) {
    int first = 0;
    do {
        const int now = rows - first < AT_ONCE ? rows - first : AT_ONCE;
        put_some(f, p, mine, first, (unsigned)now, sink, first + now < rows ? 0 : sink.what);
        first += now;
    } while (first < rows);
}

__device__ static void put_descriptor(Producer &f, const mf_combine_plan &p, unsigned what) {
    put(f, p, Row{-1, nullptr, 0.0f}, 0, Sink{what, nullptr, 0});
}

__device__ static unsigned lanes_before(void) {
    return (1u << threadIdx.x % 32) - 1;
}

/* The rows of this rank's experts for a token of rank `to`, in the order of choices; sends the
 * gradients that go with them. Returns their number. */
__device__ static int own_rows(const Producer &f, const mf_combine_plan &p, const Group &r,
                               const mf_kernel_combine &k, const Choices &c, const Unit &u, int to,
                               Row &mine) {
    unsigned with = __ballot_sync(0xffffffffu, c.row >= 0 && (!k.by_token || c.local >= 0));
    with = k.by_token ? with & (0u - with) : with; /* the first */
    if (k.slot_grad && u.piece == 0 && with != 0) {
        wait_for(&f.smem->came, 1);
        if (c.local >= 0) {
            const int64_t slot = u.token * r.top_k + threadIdx.x % 32;
            at_peer<float>(r, r.prob_grad, to)[slot] = k.slot_grad[to * r.tokens * r.top_k + slot];
        }
    }
    mine = {with >> threadIdx.x % 32 & 1 ? __popc(with & lanes_before()) : -1,
            (const mf_bf16 *)k.y + c.row * r.cols + u.piece * p.piece_cols, c.weight};
    return __popc(with);
}

__device__ static int rank_after(const Group &r, int rank) {
    return rank + 1 < r.ranks ? rank + 1 : 0;
}

/* One unit's sums for all other ranks. `ahead`: the choices of the first of them; becomes those of
 * the first for `next`. */
__device__ static void feed_sends(Producer &f, const mf_combine_plan &p, const Group &r,
                                  const mf_kernel_combine &k, const Unit &u, const Unit &next,
                                  Choices &ahead) {
    int to = rank_after(r, r.rank); /* each rank begins with another */
    for (int i = 1; i < r.ranks; i++) {
        const Choices now = ahead;
        const int then = rank_after(r, to);
        ahead = then != r.rank ? ask(r, k, p, u, then) : ask(r, k, p, next, rank_after(r, then));
        if (__any_sync(0xffffffffu, now.local >= 0)) { /* all rows may have been dropped since */
            Row mine;
            const int rows = own_rows(f, p, r, k, now, u, to, mine);
            mf_bf16 *partial = (mf_bf16 *)__shfl_sync(0xffffffffu, (uint64_t)f.partial, to);
            put(f, p, mine, rows, sink_of(p, r, u, THEN_SEND, partial));
        }
        to = then;
    }
}

/* This rank's own experts' rows for one of its tokens, stored as its result so far. */
__device__ static void feed_early(Producer &f, const mf_combine_plan &p, const Group &r,
                                  const mf_kernel_combine &k, const Unit &u, const Choices &c) {
    Row mine;
    const int rows = own_rows(f, p, r, k, c, u, r.rank, mine);
    if (rows > 0 || (owners(r, c.choice) & ~(1u << r.rank)) == 0) {
        put(f, p, mine, rows, sink_of(p, r, u, THEN_STORE, (mf_bf16 *)k.out));
    }
}

/* One unit of this rank's own tokens, of chunk `chunk`: its experts' rows (or their early sum),
 * then the other owners' sums in the order of ranks, as soon as the chunk has come. */
__device__ static void feed_finish(Producer &f, const mf_combine_plan &p, const Group &r,
                                   const mf_kernel_combine &k, const Unit &u, const Choices &c,
                                   unsigned chunk) {
    const int lane = (int)threadIdx.x % 32;
    const unsigned others = owners(r, c.choice) & ~(1u << r.rank);
    const bool own = __any_sync(0xffffffffu, c.row >= 0);
    if (!p.early && (own || others == 0)) {
        Row mine;
        const int rows = own_rows(f, p, r, k, c, u, r.rank, mine);
        put(f, p, mine, rows, sink_of(p, r, u, others ? THEN_ROUND : THEN_STORE, (mf_bf16 *)k.out));
    }
    if (others == 0) {
        return;
    }
    if (f.came < chunk + 2) {
        wait_for(&f.smem->came, chunk + 2);
        mf_bulk_fence_all(); /* the copy engine reads what the peers and the adders wrote */
        f.came = chunk + 2;
    }
    const int64_t at = first_of(p, r, u);
    const int before = p.early && own; /* the early sum is the first row */
    Row mine = {-1, (const mf_bf16 *)k.out + at, 1.0f};
    if (before && lane == r.rank) {
        mine.place = 0;
    } else if (others >> lane & 1) {
        mine.place = before + __popc(others & lanes_before());
        mine.from = at_peer<mf_bf16>(r, r.partial, r.rank) + lane * r.tokens * r.cols + at;
    }
    put(f, p, mine, before + __popc(others), sink_of(p, r, u, THEN_STORE, (mf_bf16 *)k.out));
}

__device__ static void feed(Producer &f, const mf_combine_plan &p, const Group &r,
                            const mf_kernel_combine &k) {
    const unsigned team = team_of_all(p);
    Unit send = {team, team / p.pieces, team % p.pieces}, early = send, finish = send;
    Choices sends = ask(r, k, p, send, rank_after(r, r.rank));
    Choices finishes = ask(r, k, p, finish, r.rank), earlies = finishes;
    for (unsigned phase = 0; phase < p.chunks + p.lag; phase++) {
        for (unsigned i = 0; i < p.each; i++) {
            if (phase < p.chunks && send.number < p.count) {
                const Unit now = send;
                send.next(p);
                feed_sends(f, p, r, k, now, send, sends);
            }
            if (p.early && phase < p.chunks && early.number < p.count) {
                const Unit now = early;
                const Choices c = earlies;
                early.next(p);
                earlies = ask(r, k, p, early, r.rank);
                feed_early(f, p, r, k, now, c);
            }
            if (phase >= p.lag && finish.number < p.count) {
                const Unit now = finish;
                const Choices c = finishes;
                finish.next(p);
                finishes = ask(r, k, p, finish, r.rank);
                feed_finish(f, p, r, k, now, c, phase - p.lag);
            }
        }
        if (phase < p.chunks + !p.early) {
            put_descriptor(f, p, THEN_SIGNAL);
        }
    }
    put_descriptor(f, p, THEN_STOP);
}

#endif
