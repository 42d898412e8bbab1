/* grouped_gemm_act.cuh - the gated activation in the epilogue of the first expert product.
 *
 * A thread holds the same elements of a gate chunk and of its up chunk, rounded to bf16. Once a
 * gate chunk is written, the activation takes its registers and is written after it: so no register
 * is needed beside those that hold the tile.
 */
#ifndef MF_KERNELS_GROUPED_GEMM_ACT_CUH
#define MF_KERNELS_GROUPED_GEMM_ACT_CUH

#include "kernels/grouped_gemm/grouped_gemm_output.cuh"
#include "kernels/moe/swiglu_value.cuh"

namespace mf_grouped {

/* What a chunk is of; gate and up: their place in y's map. */
enum Half { GATE = 0, UP = 1, ACT };

MF_DEVICE float low_of(uint32_t two) {
    return __uint_as_float(two << 16);
}
MF_DEVICE float high_of(uint32_t two) {
    return __uint_as_float(two & 0xffff0000u);
}

/* Probability of the row that is `i` below this warp's first; rows past the segment are not
 * written. */
MF_DEVICE float prob_of(const Args &p, int y, int i, int rows) {
    return p.prob && i < rows ? p.prob[y + i] : 1.0f;
}

/* gate = activation of gate and up, 4 registers of 2 elements; odd registers are 8 rows below. */
template <class C>
MF_DEVICE void activate(uint32_t *gate, const uint32_t *up, const Held &h, const Smem<C> s,
                        const Args &p) {
    const int warp = (int)threadIdx.x / 32 - 4, row = (int)threadIdx.x % 32 / 4;
    const int y = s.field(h.tile, Y) + warp * WARP_ROWS;
    const int rows = s.warp_field(h.tile, ROWS) - warp * WARP_ROWS;
    if (rows <= 0) {
        return;
    }
    const float prob[2] = {prob_of(p, y, row, rows), prob_of(p, y, row + 8, rows)};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float low = mf_swiglu_value<mf_bf16>(low_of(gate[i]), low_of(up[i]));
        const float high = mf_swiglu_value<mf_bf16>(high_of(gate[i]), high_of(up[i]));
        gate[i] = pack_bf16(low * prob[i % 2], high * prob[i % 2]);
    }
}

/* Writes 64 columns of a half of y or of the activation; v: their registers. */
template <class C, Half HALF>
MF_DEVICE void write_half(const uint32_t *v, Held &h, const Smem<C> s, const Outputs &to,
                          const Args &p, int c) {
    const int warp = uniform((int)threadIdx.x / 32) - 4, lane = (int)threadIdx.x % 32;
    const int x = s.warp_field(h.tile, X) + c * BOX;
    const int y = s.warp_field(h.tile, Y) + warp * WARP_ROWS;
    const int rows = s.warp_field(h.tile, ROWS) - warp * WARP_ROWS;
    if (x >= s.warp_field(h.tile, END) || rows <= 0) {
        return;
    }
    const uint32_t buffer = next_buffer<C>(h, s, warp, lane);
    put_bf16(buffer, v, lane);
    mf_fence_async();
    __syncwarp();
    if (rows < WARP_ROWS) {
        const int64_t stride = HALF == ACT ? p.half : 2 * p.half;
        uint16_t *out = HALF == ACT ? p.act : p.out + HALF * p.half;
        copy_rows(buffer, out + y * stride + x, stride, rows, p.half - x, lane);
        __syncwarp();
    } else if (lane == 0) {
        if (HALF == ACT) {
            mf_tma_store(&to.act, buffer, x, y, 0);
        } else {
            mf_tma_store(&to.y, buffer, x, HALF, y);
        }
    }
    if (lane == 0) {
        mf_tma_commit(); /* also when empty: the groups are counted */
    }
}

/* Turn `turn` of chunk c, whose registers are gate and up. A quarter of an activation is what fits
 * under a step of the next tile: more at once would leave the tensor cores idle. */
template <class C>
MF_DEVICE void write_gated_chunk(uint32_t *gate, const uint32_t *up, Held &h, const Smem<C> s,
                                 const Outputs &to, const Args &p, int c, int turn) {
    switch (turn) { /* so that registers have constant numbers */
    case 0:
        write_half<C, GATE>(gate, h, s, to, p, c);
        break;
    case 1:
        activate<C>(gate, up, h, s, p);
        break;
    case 2:
        activate<C>(gate + 4, up + 4, h, s, p);
        break;
    case 3:
        activate<C>(gate + 8, up + 8, h, s, p);
        break;
    case 4:
        activate<C>(gate + 12, up + 12, h, s, p);
        break;
    case 5:
        write_half<C, ACT>(gate, h, s, to, p, c);
        break;
    default:
        write_half<C, UP>(up, h, s, to, p, c);
        break;
    }
}

/* The next turn of a held tile with its activation. */
template <class C>
MF_DEVICE void write_gated(Held &h, const Smem<C> s, const Outputs &to, const Args &p) {
    const int turn = C::TURNS - h.left;
    if (turn < GATED_TURNS) {
        write_gated_chunk<C>(h.v, h.v + 32, h, s, to, p, 0, turn);
    } else {
        write_gated_chunk<C>(h.v + 16, h.v + 48, h, s, to, p, 1, turn - GATED_TURNS);
    }
    if (--h.left == 0) {
        leave(s, h.tile);
    }
}

template <class C>
MF_DEVICE void write_next(Held &h, const Smem<C> s, const Outputs &to, const Args &p) {
    if constexpr (C::GATED) {
        write_gated<C>(h, s, to, p);
    } else {
        write_held<C>(h, s, to, p);
    }
}

/* Takes over a finished tile of gate and up columns. Of a narrow one (64 of each) the up columns
 * move to where those of a whole one are. */
template <class C>
MF_DEVICE void take_gated(const float (&d)[128], Held &h, uint32_t tile, int boxes) {
    h.tile = tile;
    h.left = C::TURNS;
    h.next = 0;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        h.v[i] = pack_bf16(d[2 * i], d[2 * i + 1]);
    }
    if (boxes == 2) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            h.v[32 + i] = h.v[16 + i];
        }
    }
}

} // namespace mf_grouped

#endif
