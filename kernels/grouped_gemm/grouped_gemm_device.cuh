/* grouped_gemm_device.cuh - the expert products on Hopper: persistent, warp-specialised, TMA,
 * wgmma.
 *
 * A block is three warpgroups. One thread of the first keeps a ring of `stages` reduction steps
 * full by bulk tensor copies; the other two each own 64 of the tile's 128 rows and multiply
 * straight from shared memory into 128 float registers a thread. A finished tile is rounded into 64
 * registers (bf16) or half written (f32), and the rest is written chunk by chunk while the tensor
 * cores are busy with the next tile: through small buffers and the bulk copy engine, or row by row
 * where a tile crosses the end of a segment. With an activation a tile is 128 columns of the gate
 * half and the same of the up half, which one thread then holds side by side
 * (grouped_gemm_act.cuh). Two blocks form a cluster and share one operand by multicast; which one
 * depends on the tile (grouped_gemm_tiles.h). Expert segments are read here, never on the host; the
 * producer alone walks them and passes each tile to the consumers.
 *
 * Both operands always travel as boxes of 64 x 64 elements (8 KiB, 128-byte swizzle): rows of 64
 * along the reduction (forward), or rows of 64 along the output with one row a reduction step (W in
 * dgrad, both operands in wgrad), which wgmma reads transposed.
 *
 * Shared memory is the limit beside the matrix rate: a step of 1,024 cycles takes in 48 KiB and is
 * read twice for b, once for a (80 KiB), which is all that 128 bytes a cycle give.
 */
#ifndef MF_KERNELS_GROUPED_GEMM_DEVICE_CUH
#define MF_KERNELS_GROUPED_GEMM_DEVICE_CUH

#include "kernels/grouped_gemm/grouped_gemm_act.cuh"

namespace mf_grouped {

/* --- producer: one thread --- */
/* Passes a tile (steps < 0: the end) to the consumers through its slot. */
template <class C>
MF_DEVICE void pass_on(const Smem<C> s, uint32_t number, const mf_grouped_tile &t, int steps,
                       const Args &p) {
    const int valid = (C::WGRAD ? t.count : p.reduction) - (steps - 1) * MF_GROUPED_TILE_K;
    const bool short_step = C::WGRAD && steps > 0 && valid < BOX;
    mf_mbar_wait(s.slot_empty(number), (number / SLOTS % 2) ^ 1);
    s.set_field(number, STEPS, steps);
    s.set_field(number, BOXES, t.boxes);
    s.set_field(number, SHORT_STEP, short_step ? steps - 1 : -1);
    s.set_field(number, VALID, valid);
    const int x = C::GATED ? t.n / 2 : t.n, boxes = C::GATED ? t.boxes / 2 : t.boxes;
    s.set_field(number, X, x);
    s.set_field(number, Y, t.m + (C::WGRAD ? 0 : t.begin));
    s.set_field(number, Z, C::WGRAD ? t.expert : 0);
    s.set_field(number, END, min(x + boxes * BOX, C::GATED ? p.half : p.space.out_cols));
    s.set_field(number, ROWS, (C::WGRAD ? p.space.out_rows : t.count) - t.m);
    mf_mbar_arrive(s.slot_full(number));
}

/* First column (row of W) of box j of a gated tile: the first half of its boxes are gate. */
MF_DEVICE int gated_col(const mf_grouped_tile &t, int j, const Args &p) {
    const int gates = t.boxes / 2;
    return t.n / 2 + (j < gates ? j * BOX : p.half + (j - gates) * BOX);
}

template <class C>
MF_DEVICE void produce(const Smem<C> s, const CUtensorMap *map_a, const CUtensorMap *map_b,
                       const Args &p, const Work &w) {
    Ring<C::STAGES> r = {0};
    const int rank = (int)mf_cluster_rank();
    mf_grouped_walk walk = mf_grouped_walk_start();
    mf_grouped_tile t = {0, 0, 0, 0, 0, 0, false};
    uint32_t number = 0;
    int k = 0; /* of its own turns */
    int turn = next_turn(s, p, w, 0, rank, take_turn(p, w, rank), k);
    for (; mf_grouped_walk_seek(&p.space, &w.split, p.offsets, &walk, turn, rank, &t); number++) {
        const uint32_t taken = take_turn(p, w, rank); /* arrives while this tile is computed */
        const int steps = steps_of(p, t);
        const uint32_t bytes = (uint32_t)(BOXES_A + t.boxes) * BOX_B;
        const int row = C::WGRAD ? t.m : t.begin + t.m;
        const int expert = C::WGRAD ? 0 : t.expert;
        pass_on<C>(s, number, t, steps, p);
#pragma unroll 1
        for (int i = 0; i < steps; i++) {
            const int at = (C::WGRAD ? t.begin : 0) + i * MF_GROUPED_TILE_K;
            mf_mbar_wait(s.empty(r.stage()), r.parity() ^ 1); /* a fresh one counts as emptied */
            const uint32_t full = s.full(r.stage());
            mf_mbar_expect(full, bytes);
            for (int j = 0; j < BOXES_A; j++) {
                const uint32_t dst = s.a(r.stage()) + (uint32_t)j * BOX_B;
                const int x = C::MN_A ? row + j * BOX : at;
                const int y = C::MN_A ? at : row + j * BOX;
                if (t.by_rows) {
                    mf_tma_load(dst, map_a, full, x, y, 0);
                } else if (j == rank) {
                    mf_tma_load_multicast(dst, map_a, full, x, y, 0, 3);
                }
            }
            for (int j = 0; j < t.boxes; j++) {
                const uint32_t dst = s.b(r.stage()) + (uint32_t)j * BOX_B;
                const int col = C::GATED ? gated_col(t, j, p) : t.n + j * BOX;
                const int x = C::MN_B ? col : at;
                const int y = C::MN_B ? at : col;
                if (!t.by_rows) {
                    mf_tma_load(dst, map_b, full, x, y, expert);
                } else if (j % 2 == rank) {
                    mf_tma_load_multicast(dst, map_b, full, x, y, expert, 3);
                }
            }
            r.at++;
        }
        turn = next_turn(s, p, w, number + 1, rank, taken, k);
    }
    pass_on<C>(s, number, t, -1, p);
}

/* --- consumers --- */
/* Tells the producers of both blocks that this warp has read the stage. */
template <class C> MF_DEVICE void release(const Smem<C> s, int stage, int lane) {
    if (lane < 2) {
        mf_mbar_arrive_at(s.empty(stage), (uint32_t)lane);
    }
}

/* Zeroes the reduction rows past the segment in a WGRAD stage. All consumer threads. */
template <class C> MF_DEVICE void clear_tail(const Smem<C> s, int stage, int valid, int thread) {
    constexpr int CHUNKS = (BOXES_A + BOXES_B) * 8; /* of 16 bytes: one row of all boxes */
    constexpr int AT_ONCE = CONSUMERS * 128 / CHUNKS;
    const int chunk = thread % CHUNKS;
    const uint32_t first = s.a(stage) + (uint32_t)(chunk / 8 * BOX_B + chunk % 8 * 16);
#pragma unroll 1
    for (int from = valid; from < BOX; from += AT_ONCE) {
        const int row = from + thread / CHUNKS;
        if (thread < CHUNKS * AT_ONCE && row < BOX) {
            asm volatile(
                "st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(first + (uint32_t)row * 128),
                "r"(0)
                : "memory");
        }
    }
    mf_fence_async();
    mf_bar_sync(BAR_BOTH, CONSUMERS * 128);
}

/* --- consumers: the products --- */
/* One step: d (+)= a b, 64 x `boxes` * 64 columns. Fence and commit stand inside the branches so
 * that they join the instructions. */
template <class C>
MF_DEVICE void multiply_step(float (&d)[128], uint32_t a, uint32_t b, int boxes, int add) {
    constexpr int PARTS = MF_GROUPED_TILE_K / 16;
    if (boxes > 2) {
        mf_wgmma_fence();
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            mf_wgmma_n256<C::MN_A, C::MN_B>(d, mf_wgmma_descriptor(a + j * C::STEP_A),
                                            mf_wgmma_descriptor(b + j * C::STEP_B), add | j);
        }
        mf_wgmma_commit();
    } else if (boxes == 2) {
        mf_wgmma_fence();
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            mf_wgmma_n128<C::MN_A, C::MN_B>(d, mf_wgmma_descriptor(a + j * C::STEP_A),
                                            mf_wgmma_descriptor(b + j * C::STEP_B), add | j);
        }
        mf_wgmma_commit();
    } else if (!C::GATED) {
        mf_wgmma_fence();
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            mf_wgmma_n64<C::MN_A, C::MN_B>(d, mf_wgmma_descriptor(a + j * C::STEP_A),
                                           mf_wgmma_descriptor(b + j * C::STEP_B), add | j);
        }
        mf_wgmma_commit();
    }
}

/* Writes what is held, when step i is its turn, and then begins to fetch. */
template <class C>
MF_DEVICE void write_under(Held &h, const Smem<C> s, const Outputs &to, const Args &p,
                           uint32_t tile, int i, int spread, bool &fetches) {
    if (h.left > 0 && i >= h.next) {
        do {
            write_next<C>(h, s, to, p);
        } while (C::FETCHES && spread == 0 && h.left > 0);
        h.next += spread;
    } else if (C::FETCHES && fetches && h.left == 0) {
        fetch_left<C>(h, s, to, tile);
        fetches = false;
    }
}

/* Sums all steps of a tile into d, and writes what is held meanwhile. */
template <class C>
MF_DEVICE void multiply(float (&d)[128], Held &h, const Smem<C> s, Ring<C::STAGES> &r,
                        uint32_t tile, int steps, int boxes, int warpgroup, const Outputs &to,
                        const Args &p, bool &fetches) {
    const int thread = (int)threadIdx.x - 128;
    const int short_step = C::WGRAD ? s.field(tile, SHORT_STEP) : -1;
    /* Chunks are spread over the steps, since a burst of writes would fill the way to L2. With few
     * steps they are written at once, so that steps are left in which what was fetched can come. */
    const int spread = steps > C::TURNS ? steps / C::TURNS : C::FETCHES ? 0 : 1;
    const uint32_t a0 =
        mf_wgmma_descriptor_low(s.a(0) + (uint32_t)warpgroup * BOX_B, C::MN_A ? BOX_B : 0);
    const uint32_t b0 = mf_wgmma_descriptor_low(s.b(0), C::MN_B ? BOX_B : 0);
    if (C::WGRAD && steps <= 0) {
#pragma unroll
        for (int i = 0; i < 128; i++) {
            d[i] = 0;
        }
    }
    mf_wgmma_hold(d);
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        const uint32_t stage = (uint32_t)r.stage();
        mf_mbar_wait(s.full(r.stage()), r.parity());
        if (C::WGRAD && i == short_step) {
            clear_tail<C>(s, r.stage(), s.field(tile, VALID), thread);
        }
        multiply_step<C>(d, a0 + stage * (STAGE_B / 16), b0 + stage * (STAGE_B / 16), boxes, i);
        if (i > 0) {
            mf_wgmma_wait<1>();
            release<C>(s, (int)((r.at - 1) % C::STAGES), thread % 32);
        }
        r.at++;
        write_under<C>(h, s, to, p, tile, i, spread, fetches);
    }
    mf_wgmma_wait<0>();
    mf_wgmma_hold(d);
    if (steps > 0) {
        release<C>(s, (int)((r.at - 1) % C::STAGES), thread % 32);
    }
}

/* A warpgroup without rows or columns of its own still takes part in the ring. */
template <class C>
MF_DEVICE void sit_out(const Smem<C> s, Ring<C::STAGES> &r, uint32_t tile, int steps) {
    const int thread = (int)threadIdx.x - 128;
    const int short_step = C::WGRAD ? s.field(tile, SHORT_STEP) : -1;
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        mf_mbar_wait(s.full(r.stage()), r.parity());
        if (C::WGRAD && i == short_step) {
            clear_tail<C>(s, r.stage(), s.field(tile, VALID), thread);
        }
        release<C>(s, r.stage(), thread % 32);
        r.at++;
    }
}

template <class C>
MF_DEVICE void consume(const Smem<C> s, const Outputs &to, const Args &p, int warpgroup) {
    Ring<C::STAGES> r = {0};
    float d[128];
    Held h;
    h.tile = 0;
    h.left = h.next = h.buffer = 0;
    h.fetched = 0;
    for (uint32_t tile = 0;; tile++) {
        mf_mbar_wait(s.slot_full(tile), tile / SLOTS % 2);
        const int steps = s.warp_field(tile, STEPS), boxes = s.warp_field(tile, BOXES);
        const bool more = steps >= 0;
        /* In WGRAD both warpgroups or none: they meet where a step is short. */
        const bool rows = C::WGRAD || warpgroup * BOX < s.warp_field(tile, ROWS);
        const bool works = more && boxes > 0 && rows;
        bool fetches = works;
        if (works) {
            multiply<C>(d, h, s, r, tile, steps, boxes, warpgroup, to, p, fetches);
        }
#pragma unroll 1
        while (h.left > 0) { /* what a short reduction left */
            write_next<C>(h, s, to, p);
        }
        if (C::FETCHES && fetches) {
            fetch_left<C>(h, s, to, tile);
        }
        if (!more) {
            break;
        }
        if (works) {
            if constexpr (C::GATED) {
                take_gated<C>(d, h, tile, boxes);
            } else {
                take<C>(d, h, s, to, p, tile);
            }
        } else {
            sit_out<C>(s, r, tile, steps);
            leave(s, tile);
        }
    }
    mf_tma_wait<0>();
}

template <class C>
__global__ void __launch_bounds__(THREADS, 1)
    grouped_gemm_kernel(const __grid_constant__ CUtensorMap map_a,
                        const __grid_constant__ CUtensorMap map_b,
                        const __grid_constant__ Outputs to, const __grid_constant__ Args p) {
    extern __shared__ uint8_t raw[];
    const Smem<C> s = {mf_opaque((mf_smem_address(raw) + 1023u) & ~1023u)};
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        mf_tma_prefetch_map(&map_a);
        mf_tma_prefetch_map(&map_b);
        mf_tma_prefetch_map(&to.y);
        if (C::GATED) {
            mf_tma_prefetch_map(&to.act);
        }
        for (int i = 0; i < C::STAGES; i++) {
            mf_mbar_init(s.full(i), 1);
            mf_mbar_init(s.empty(i), 2 * WARPS); /* a warp of either block */
        }
        for (uint32_t i = 0; i < SLOTS; i++) {
            mf_mbar_init(s.slot_full(i), 1);
            mf_mbar_init(s.slot_empty(i), WARPS);
        }
        for (int i = 0; i < WARPS; i++) {
            mf_mbar_init(s.fetched(i), 1);
        }
        for (uint32_t i = 0; i < MAILS; i++) {
            mf_mbar_init(s.mail_full(i), 1);
            mf_mbar_init(s.mail_empty(i), 1);
        }
        mf_mbar_init_fence();
    }
    const Work work = choose_work(p);
    mf_cluster_sync();
    if (warpgroup == 0) {
        mf_registers_give<40>();
        if (threadIdx.x == 0) {
            produce<C>(s, &map_a, &map_b, p, work);
        }
    } else {
        mf_registers_take<232>();
        consume<C>(s, to, p, warpgroup - 1);
    }
    __syncwarp();
    mf_cluster_sync(); /* the neighbour may still write or arrive here */
}

} // namespace mf_grouped

#endif
