/* grouped_gemm_output.cuh - the way of a finished tile of the expert products out of registers:
 * held back, and written chunk by chunk under the next tile, through shared memory and the copy
 * engine, or row by row where a tile crosses the end of a segment.
 *
 * What is added to memory is added by L2, which takes it without a wait but adds no more than two
 * floats a cycle and slice: 1.27 TB/s on an H200, a third of what memory could read and write.
 * Where experts have few rows, so that this is the limit, half of a tile goes another way
 * (FETCHES): its chunks of memory come to the buffers while the tensor cores work, are added to
 * here, and are written back.
 */
#ifndef MF_KERNELS_GROUPED_GEMM_OUTPUT_CUH
#define MF_KERNELS_GROUPED_GEMM_OUTPUT_CUH

#include "kernels/grouped_gemm/grouped_gemm_shared.cuh"

namespace mf_grouped {

MF_DEVICE uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &two, sizeof bits);
    return bits;
}

/* Chunks of 16 registers a thread that are still to be written, bf16: four, a whole tile, 64
 * columns a chunk, and two of an activation (grouped_gemm_act.cuh); f32: four, its right half, 32
 * columns a chunk. They are written one by one while the tensor cores are busy with the next tile.
 */
struct Held {
    uint32_t v[64];
    uint32_t tile;    /* number of the tile */
    int left;         /* turns */
    int next;         /* step of the next tile in which the next turn is */
    int buffer;       /* of this warp, that the next chunk goes through */
    uint32_t fetched; /* tiles so far, half of which came from memory for this warp (FETCHES) */
};

/* 64 bf16 columns as rows of 128 bytes, swizzled. */
MF_DEVICE void put_bf16(uint32_t buffer, const uint32_t *v, int lane) {
    const int row = lane % 16, shift = lane / 16;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int chunk = (2 * j + shift) ^ (row % 8);
        mf_stmatrix_x4(buffer + (uint32_t)(row * 128 + chunk * 16), v[4 * j], v[4 * j + 1],
                       v[4 * j + 2], v[4 * j + 3]);
    }
}

/* Writes two floats, or (ADD) adds them to what is there. */
template <bool ADD> MF_DEVICE void put_two(uint32_t at, uint32_t first, uint32_t second) {
    float x = __uint_as_float(first), y = __uint_as_float(second);
    if (ADD) {
        float there_x, there_y;
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(there_x), "=f"(there_y)
                     : "r"(at)
                     : "memory");
        x += there_x;
        y += there_y;
    }
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}

/* 32 f32 columns as rows of 128 bytes, swizzled. Odd rows take the column groups in another order
 * so that no two rows of a half-warp meet in a bank. */
template <bool ADD> MF_DEVICE void put_f32(uint32_t buffer, const uint32_t *v, int lane) {
    const int row = lane / 4;
    const bool odd = row % 2;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t *one = v + 4 * j, *other = v + 4 * (j ^ 2);
        const int chunk = (2 * (odd ? j ^ 2 : j) + lane % 4 / 2) ^ (row % 8);
        const uint32_t at = buffer + (uint32_t)(row * 128 + chunk * 16 + lane % 2 * 8);
        put_two<ADD>(at, odd ? other[0] : one[0], odd ? other[1] : one[1]);
        put_two<ADD>(at + 8 * 128, odd ? other[2] : one[2], odd ? other[3] : one[3]);
    }
}

/* Copies the first `rows` rows of a bf16 buffer to global memory, columns below `cols` only. */
MF_DEVICE void copy_rows(uint32_t buffer, uint16_t *out, int64_t stride, int rows, int cols,
                         int lane) {
#pragma unroll 1 /* four addresses at once would push the tile out of registers */
    for (int i = 0; i < 4; i++) {
        const int row = lane / 8 + i * 4, chunk = lane % 8;
        if (row < rows && chunk * 8 < cols) {
            uint4 v;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "r"(buffer + (uint32_t)(row * 128 + ((chunk ^ (row % 8)) << 4)))
                         : "memory");
            *(uint4 *)(out + row * stride + chunk * 8) = v;
        }
    }
}

/* This warp's next buffer, after the copy engine has read what was in it. */
template <class C> MF_DEVICE uint32_t next_buffer(Held &h, const Smem<C> s, int warp, int lane) {
    const uint32_t buffer = (uint32_t)uniform((int)s.buffer(warp, h.buffer));
    h.buffer = h.buffer + 1 == C::BUFFERS ? 0 : h.buffer + 1;
    if (lane == 0) {
        mf_tma_wait_read<C::BUFFERS - 1>();
    }
    __syncwarp();
    return buffer;
}

/* Where a warp's chunk c (of 64 bf16 or 32 f32 columns) of the held tile lies in the output. */
struct Place {
    int x, y, z;
    int rows; /* of the tile from y on; may exceed the chunk */
    bool out; /* nothing of it is written */
};

template <class C> MF_DEVICE Place place_of(const Smem<C> s, uint32_t tile, int warp, int c) {
    Place a;
    a.x = s.warp_field(tile, X) + c * (C::F32 ? 32 : 64);
    a.y = s.warp_field(tile, Y) + warp * WARP_ROWS;
    a.z = s.warp_field(tile, Z);
    a.rows = s.warp_field(tile, ROWS) - warp * WARP_ROWS;
    a.out = a.x >= s.warp_field(tile, END) || a.rows <= 0;
    return a;
}

/* How a chunk comes to what is in memory: written over it, added by L2, or to what was fetched. */
enum Way { OVER, BY_L2, FETCHED };

/* Begins to fetch what the left half of a tile is added to, into the buffers that its chunks will
 * go through. */
template <class C>
MF_DEVICE void fetch_left(Held &h, const Smem<C> s, const Outputs &to, uint32_t tile) {
    const int warp = uniform((int)threadIdx.x / 32) - 4;
    const Place a = place_of<C>(s, tile, warp, 0);
    const int chunks = min(LEFT_CHUNKS, (s.warp_field(tile, END) - a.x + 31) / 32);
    if (a.out) {
        return;
    }
    h.fetched++;
    if (threadIdx.x % 32 == 0) {
        mf_tma_wait_read<C::BUFFERS - LEFT_CHUNKS>();
        mf_mbar_expect(s.fetched(warp), (uint32_t)chunks * BUFFER_B);
    }
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        const int at = h.buffer + c;
        const uint32_t buffer = s.buffer(warp, at < C::BUFFERS ? at : at - C::BUFFERS);
        if (threadIdx.x % 32 == 0) {
            mf_tma_load(buffer, &to.y, s.fetched(warp), a.x + c * 32, a.y, a.z);
        }
    }
}

/* Writes chunk c of the held tile; v: its registers. */
template <class C, Way WAY>
MF_DEVICE void write_chunk(const uint32_t *v, Held &h, const Smem<C> s, const Outputs &to,
                           const Args &p, int c) {
    const int warp = uniform((int)threadIdx.x / 32) - 4, lane = (int)threadIdx.x % 32;
    const Place a = place_of<C>(s, h.tile, warp, c);
    if (a.out) {
        return;
    }
    const uint32_t buffer = next_buffer<C>(h, s, warp, lane);
    if (WAY == FETCHED) {
        mf_mbar_wait(s.fetched(warp), (h.fetched - 1) % 2);
    }
    if (C::F32) {
        put_f32<WAY == FETCHED>(buffer, v, lane);
    } else {
        put_bf16(buffer, v, lane);
    }
    mf_fence_async();
    __syncwarp();
    if (!C::WGRAD && a.rows < WARP_ROWS) {
        copy_rows(buffer, p.out + (int64_t)a.y * p.space.out_cols + a.x, p.space.out_cols, a.rows,
                  p.space.out_cols - a.x, lane);
        __syncwarp();
    } else if (lane == 0) {
        if (WAY == BY_L2) {
            mf_tma_add(&to.y, buffer, a.x, a.y, a.z);
        } else {
            mf_tma_store(&to.y, buffer, a.x, a.y, a.z);
        }
    }
    if (lane == 0) {
        mf_tma_commit(); /* also when empty: the groups are counted */
    }
}

/* This warp needs the tile's slot no more. */
template <class C> MF_DEVICE void leave(const Smem<C> s, uint32_t number) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        mf_mbar_arrive(s.slot_empty(number));
    }
}

/* Writes the next held chunk. */
template <class C>
MF_DEVICE void write_held(Held &h, const Smem<C> s, const Outputs &to, const Args &p) {
    constexpr int FIRST = C::F32 ? LEFT_CHUNKS : 0;
    constexpr Way WAY = C::ADD ? BY_L2 : OVER;
    switch (h.left) { /* so that registers have constant numbers */
    case 4:
        write_chunk<C, WAY>(h.v, h, s, to, p, FIRST);
        break;
    case 3:
        write_chunk<C, WAY>(h.v + 16, h, s, to, p, FIRST + 1);
        break;
    case 2:
        write_chunk<C, WAY>(h.v + 32, h, s, to, p, FIRST + 2);
        break;
    default:
        write_chunk<C, WAY>(h.v + 48, h, s, to, p, FIRST + 3);
        break;
    }
    if (--h.left == 0) {
        leave(s, h.tile);
    }
}

/* Takes over a finished tile: bf16 is rounded and held, f32 is half written, half held. */
template <class C>
MF_DEVICE void take(const float (&d)[128], Held &h, const Smem<C> s, const Outputs &to,
                    const Args &p, uint32_t tile) {
    h.tile = tile;
    h.left = C::TURNS;
    h.next = 0;
    if (C::F32) {
#pragma unroll
        for (int i = 0; i < 64; i++) {
            h.v[i] = __float_as_uint(d[64 + i]);
        }
#pragma unroll
        for (int c = 0; c < LEFT_CHUNKS; c++) {
            uint32_t v[16];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                v[i] = __float_as_uint(d[16 * c + i]);
            }
            write_chunk<C, C::FETCHES ? FETCHED : C::ADD ? BY_L2 : OVER>(v, h, s, to, p, c);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 64; i++) {
            h.v[i] = pack_bf16(d[2 * i], d[2 * i + 1]);
        }
    }
}

} // namespace mf_grouped

#endif
