/* grouped_gemm_slopes.cuh - the gradient of the gated activation in the epilogue of the second
 * expert product's input gradient.
 *
 * A held chunk is the gradient of the activation, rounded to bf16. Its gate and up columns come
 * through this warp's two buffers, fetched one turn ahead; their gradients take their places there
 * and leave through the copy engine. What a row's probability gets from 64 columns is written as a
 * part; sum_parts adds them in order.
 */
#ifndef MF_KERNELS_GROUPED_GEMM_SLOPES_CUH
#define MF_KERNELS_GROUPED_GEMM_SLOPES_CUH

#include "kernels/grouped_gemm/grouped_gemm_act.cuh"

namespace mf_grouped {

/* Where chunk c of the held tile lies, for this warp. */
struct Spot {
    int x, y, rows; /* rows from y on that may be written */
    bool there;
};

template <class C> MF_DEVICE Spot spot_of(const Held &h, const Smem<C> s, int warp, int c) {
    const int x = s.field(h.tile, X) + c * BOX;
    const int y = s.field(h.tile, Y) + warp * WARP_ROWS;
    const int rows = s.field(h.tile, ROWS) - warp * WARP_ROWS;
    return {x, y, rows, x < s.field(h.tile, END) && rows > 0};
}

/* Gate and up columns of chunk c on their way into the two buffers. */
template <class C> MF_DEVICE void fetch(Held &h, const Smem<C> s, const Outputs &to, int c) {
    const int warp = (int)threadIdx.x / 32 - 4, lane = (int)threadIdx.x % 32;
    const Spot at = spot_of<C>(h, s, warp, c);
    if (at.there && lane == 0) {
        mf_tma_wait_read<0>();
        mf_mbar_expect(s.fetched(warp), 2 * BUFFER_B);
        mf_tma_load(s.buffer(warp, 0), &to.act, s.fetched(warp), at.x, GATE, at.y);
        mf_tma_load(s.buffer(warp, 1), &to.act, s.fetched(warp), at.x, UP, at.y);
    }
    __syncwarp();
}

MF_DEVICE void load_matrix_x4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* One register of each: gradients of gate and up take their places. Returns what the two elements
 * add to the gradient of the row's probability. */
MF_DEVICE float slope_of(uint32_t d, uint32_t *gate, uint32_t *up, float prob) {
    const mf_swiglu_slopes low = mf_swiglu_slopes_of<mf_bf16>(low_of(*gate), low_of(*up));
    const mf_swiglu_slopes high = mf_swiglu_slopes_of<mf_bf16>(high_of(*gate), high_of(*up));
    const float dl = low_of(d), dh = high_of(d);
    *gate = pack_bf16(dl * prob * low.d_gate, dh * prob * high.d_gate);
    *up = pack_bf16(dl * prob * low.d_up, dh * prob * high.d_up);
    return __fmaf_rn(dh, high.y, dl * low.y);
}

/* Both buffers into d(gate | up); rows past the segment stay as they are. */
template <class C>
MF_DEVICE void write_slopes(const Smem<C> s, const Outputs &to, const Args &p, const Spot &at,
                            int warp, int lane) {
    mf_fence_async();
    __syncwarp();
    if (at.rows < WARP_ROWS) {
        const int64_t stride = 2 * (int64_t)p.half;
        uint16_t *out = p.out + at.y * stride + at.x;
        copy_rows(s.buffer(warp, 0), out, stride, at.rows, p.half - at.x, lane);
        copy_rows(s.buffer(warp, 1), out + p.half, stride, at.rows, p.half - at.x, lane);
        mf_fence_async();
        __syncwarp();
    } else if (lane == 0) {
        mf_tma_store(&to.y, s.buffer(warp, 0), at.x, GATE, at.y);
        mf_tma_store(&to.y, s.buffer(warp, 1), at.x, UP, at.y);
        mf_tma_commit();
    }
}

/* What the columns of a chunk add to the gradients of probabilities, by row. */
template <class C>
MF_DEVICE void write_part(const Held &h, const Args &p, const Spot &at, int lane) {
#pragma unroll
    for (int i = 0; i < 2 && p.partial; i++) {
        float sum = h.sum[i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == 0 && lane / 4 + 8 * i < at.rows) {
            p.partial[(int64_t)(at.x / BOX) * p.space.rows + at.y + lane / 4 + 8 * i] = sum;
        }
    }
}

/* Quarter j of chunk c; v: its four registers. */
template <class C>
MF_DEVICE void go_through(const uint32_t *v, Held &h, const Smem<C> s, const Outputs &to,
                          const Args &p, int c, int j) {
    const int warp = (int)threadIdx.x / 32 - 4, lane = (int)threadIdx.x % 32;
    const Spot at = spot_of<C>(h, s, warp, c);
    if (!at.there) {
        return;
    }
    const float prob[2] = {prob_of(p, at.y, lane / 4, at.rows),
                           prob_of(p, at.y, lane / 4 + 8, at.rows)};
    if (j == 0) {
        h.sum[0] = h.sum[1] = 0;
        mf_mbar_wait(s.fetched(warp), h.parity);
        h.parity ^= 1;
    }
    const int row = lane % 16, chunk = (2 * j + lane / 16) ^ (row % 8);
    const uint32_t place = s.buffer(warp, 0) + (uint32_t)(row * 128 + chunk * 16);
    uint32_t gate[4], up[4];
    load_matrix_x4(gate, place);
    load_matrix_x4(up, place + BUFFER_B);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        h.sum[i % 2] += slope_of(v[i], &gate[i], &up[i], prob[i % 2]);
    }
    mf_stmatrix_x4(place, gate[0], gate[1], gate[2], gate[3]);
    mf_stmatrix_x4(place + BUFFER_B, up[0], up[1], up[2], up[3]);
    if (j == 3) {
        write_slopes<C>(s, to, p, at, warp, lane);
        write_part<C>(h, p, at, lane);
    }
}

/* Turn `turn` of chunk c, whose registers are v: fetches, or goes through a quarter, which is what
 * fits under a step of the next tile. */
template <class C>
MF_DEVICE void write_through_chunk(const uint32_t *v, Held &h, const Smem<C> s, const Outputs &to,
                                   const Args &p, int c, int turn) {
    switch (turn) { /* so that registers have constant numbers */
    case 0:
        fetch<C>(h, s, to, c);
        break;
    case 1:
        go_through<C>(v, h, s, to, p, c, 0);
        break;
    case 2:
        go_through<C>(v + 4, h, s, to, p, c, 1);
        break;
    case 3:
        go_through<C>(v + 8, h, s, to, p, c, 2);
        break;
    default:
        go_through<C>(v + 12, h, s, to, p, c, 3);
        break;
    }
}

template <class C>
MF_DEVICE void write_through(Held &h, const Smem<C> s, const Outputs &to, const Args &p) {
    const int turn = C::TURNS - h.left, c = turn / SLOPES_TURNS, of = turn % SLOPES_TURNS;
    switch (c) {
    case 0:
        write_through_chunk<C>(h.v, h, s, to, p, 0, of);
        break;
    case 1:
        write_through_chunk<C>(h.v + 16, h, s, to, p, 1, of);
        break;
    case 2:
        write_through_chunk<C>(h.v + 32, h, s, to, p, 2, of);
        break;
    default:
        write_through_chunk<C>(h.v + 48, h, s, to, p, 3, of);
        break;
    }
    if (--h.left == 0) {
        leave(s, h.tile);
    }
}

/* Writes the next chunk of what is held. */
template <class C>
MF_DEVICE void write_next(Held &h, const Smem<C> s, const Outputs &to, const Args &p) {
    if constexpr (C::GATED) {
        write_gated<C>(h, s, to, p);
    } else if constexpr (C::SLOPES) {
        write_through<C>(h, s, to, p);
    } else {
        write_held<C>(h, s, to, p);
    }
}

/* dprob of the rows that experts have: the sum of their parts. */
static __global__ void sum_parts(const float *partial, int parts, int rows, const int32_t *end,
                                 float *dprob) {
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (row < rows && row < *end) {
        float sum = 0;
        for (int i = 0; i < parts; i++) {
            sum += partial[(int64_t)i * rows + row];
        }
        dprob[row] = sum;
    }
}

} // namespace mf_grouped

#endif
