/* measure_links.c - which points a general measurement between the GPUs of one host holds. */
#include "executor/measure/measure.h"
#include "executor/measure/measure_draw.h"

#include <stdio.h>

/* --- collectives ------------------------------------------------------------------------------ */

static mf_status add_message(mf_measure_list *l, const char *op, int ranks, int in_place,
                             int64_t bytes, bool held, const char *source, mf_err *e) {
    char key[160];
    int64_t unit = 16 * ranks; /* whole elements for every rank, 16-byte aligned parts */
    int64_t rounded = (bytes + unit / 2) / unit * unit;
    snprintf(key, sizeof key, "%s bytes=%lld ranks=%d inplace=%d", op,
             (long long)(rounded > 0 ? rounded : unit), ranks, in_place);
    return mf_measure_list_add(l, key, held, source, e);
}

static mf_status add_collective(mf_measure_list *l, const char *op, int ranks, int in_place,
                                bool held, uint64_t *state, mf_err *e) {
    const int64_t low_B = 1 << 10, high_B = 1 << 30;
    mf_status status = MF_OK;
    for (int64_t b = low_B; b <= high_B && status == MF_OK; b *= 2) {
        status = add_message(l, op, ranks, in_place, b, held, "grid", e);
    }
    for (int i = 0; i < 8 && status == MF_OK; i++) {
        status =
            add_message(l, op, ranks, in_place,
                        mf_measure_random_size(state, (double)low_B, (double)high_B, 4096, 256),
                        true, "drawn over the range", e);
    }
    return status;
}

static mf_status add_beside(mf_measure_list *l, int ranks, mf_err *e) {
    static const char *const comms[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                        "send_recv"};
    static const char *const works[] = {"op=gemm size=4096", "op=gemm size=8192",
                                        "op=copy size=268435456"};
    /* the same alone */
    static const char *const alone[] = {"gemm dtype=bf16 m=4096 n=4096 k=4096",
                                        "gemm dtype=bf16 m=8192 n=8192 k=8192",
                                        "copy bytes=268435456"};
    char key[160];
    mf_status status = MF_OK;
    for (size_t w = 0; w < sizeof alone / sizeof alone[0] && status == MF_OK; w++) {
        status = mf_measure_list_add(l, alone[w], false, "grid", e);
    }
    for (size_t c = 0; c < sizeof comms / sizeof comms[0]; c++) {
        for (size_t w = 0; w < sizeof works / sizeof works[0]; w++) {
            for (int64_t b = 1 << 24; b <= 1 << 28; b *= 16) {
                for (int side = 0; side < 2 && status == MF_OK; side++) {
                    snprintf(key, sizeof key, "beside of=%s %s comm=%s bytes=%lld ranks=%d",
                             side == 0 ? "compute" : "comm", works[w], comms[c], (long long)b,
                             ranks);
                    status = mf_measure_list_add(l, key, false, "grid", e);
                }
            }
        }
    }
    /* the fused exchange, of 1,024 and of 4,096 tokens */
    for (int64_t tokens = 1024; tokens <= 4096; tokens *= 4) {
        for (int i = 0; i < 2 * (int)(sizeof works / sizeof works[0]); i++) {
            for (int side = 0; side < 2 && status == MF_OK; side++) {
                snprintf(key, sizeof key, "beside of=%s %s comm=%s bytes=%lld ranks=%d",
                         side == 0 ? "compute" : "comm", works[i / 2],
                         i % 2 == 0 ? "dispatch" : "combine", (long long)tokens * 8 * 7168 * 2,
                         ranks);
                status = mf_measure_list_add(l, key, false, "grid", e);
            }
        }
    }
    return status;
}

/* --- tokens to their experts ------------------------------------------------------------------ */

typedef struct routing {
    int64_t tokens, hidden, top_k;
    int skew; /* % of the mean that the fullest rank gets */
} routing;

enum { EXPERTS_EACH = 32 };

/* Both dispatchers, there and back. */
static mf_status add_routing(mf_measure_list *l, int ranks, const routing *r, bool held,
                             const char *source, mf_err *e) {
    static const char *const ops[] = {"dispatch", "combine"}, *const impls[] = {"fused",
                                                                                "alltoall"};
    char key[200];
    mf_status status = MF_OK;
    for (int i = 0; i < 4 && status == MF_OK; i++) {
        snprintf(key, sizeof key,
                 "%s tokens=%lld hidden=%lld topk=%lld experts=%d ranks=%d dtype=bf16 impl=%s "
                 "skew=%d",
                 ops[i / 2], (long long)r->tokens, (long long)r->hidden, (long long)r->top_k,
                 EXPERTS_EACH * ranks, ranks, impls[i % 2], r->skew);
        status = mf_measure_list_add(l, key, held, source, e);
    }
    return status;
}

static mf_status add_exchanges(mf_measure_list *l, int ranks, bool held, uint64_t *state,
                               mf_err *e) {
    static const int64_t tokens[] = {64, 256, 1024, 4096, 8192};
    static const struct {
        int64_t hidden, top_k;
    } rows[] = {{1536, 1}, {2048, 8}, {4096, 2}, {6144, 4}, {7168, 8}};
    static const int skews[] = {100, 130, 160, 190};
    mf_status status = MF_OK;
    for (int t = 0; t < 5; t++) {
        for (int w = 0; w < 5; w++) {
            for (int k = 0; k < 4 && status == MF_OK; k++) {
                const routing r = {tokens[t], rows[w].hidden, rows[w].top_k, skews[k]};
                if (k == 0 || (t + w + k) % 4 == 0) { /* balanced, and one skew of each */
                    status = add_routing(l, ranks, &r, held, "grid", e);
                }
            }
        }
    }
    for (int i = 0; i < 8 && status == MF_OK; i++) {
        const routing r = {mf_measure_random_size(state, 256, 8192, 64, 8),
                           mf_measure_random_size(state, 1024, 7168, 512, 64),
                           1 + mf_measure_random_int(state, 8),
                           i % 2 == 0 ? 100 : 100 + (int)mf_measure_random_int(state, 91)};
        status = add_routing(l, ranks, &r, true, "drawn over the range", e);
    }
    return status;
}

mf_status mf_measure_plan_collectives(int ranks, uint64_t seed, mf_measure_list *l, mf_err *e) {
    static const struct {
        const char *op;
        bool in_place; /* can be */
    } ops[] = {{"all_reduce", true},
               {"all_gather", true},
               {"reduce_scatter", true},
               {"all_to_all", false},
               {"send_recv", false}};
    uint64_t state = seed;
    mf_status status = MF_OK;
    int64_t first = l->n;
    for (int n = ranks; n >= 2 && status == MF_OK; n--) {
        for (size_t i = 0; i < sizeof ops / sizeof ops[0] && status == MF_OK; i++) {
            for (int in_place = 0; in_place <= (ops[i].in_place ? 1 : 0); in_place++) {
                bool held = ranks >= 4 && n == 3;
                status = add_collective(l, ops[i].op, n, in_place, held, &state, e);
            }
        }
    }
    for (int n = ranks; n >= 2 && status == MF_OK; n--) {
        status = add_exchanges(l, n, ranks >= 4 && n == 3, &state, e);
    }
    mf_measure_shuffle(l, first, &state);
    return status == MF_OK ? add_beside(l, ranks, e) : status;
}
