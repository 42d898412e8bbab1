/* dispatch.c - reference of dispatch and combine, and the layout of a rank's window. */
#include "kernels/dispatch/dispatch.h"

#include <inttypes.h>
#include <stdio.h>

#include <inttypes.h>
#include <string.h>

mf_status mf_dispatch_check(const mf_dispatch_shape *s, mf_err *e) {
    if (s->ranks < 1 || s->ranks > MF_DISPATCH_RANKS_MAX || s->top_k < 1 ||
        s->top_k > MF_DISPATCH_TOP_K_MAX) {
        return mf_err_set(e, MF_INPUT, "dispatch: %d ranks and top %" PRId64 ": at most %d and %d",
                          s->ranks, s->top_k, MF_DISPATCH_RANKS_MAX, MF_DISPATCH_TOP_K_MAX);
    }
    if (s->experts < s->ranks || s->experts % s->ranks != 0 || s->experts > INT32_MAX) {
        return mf_err_set(e, MF_INPUT, "dispatch: %" PRId64 " experts do not divide among %d ranks",
                          s->experts, s->ranks);
    }
    if (s->cols < 8 || s->cols % 8 != 0 || s->tokens < 0 ||
        s->tokens * s->ranks * s->top_k > INT32_MAX ||
        s->tokens * (s->cols / 512 + 1) > INT32_MAX) {
        return mf_err_set(e, MF_INPUT,
                          "dispatch: rows of %" PRId64 " columns (a multiple of 8), %" PRId64
                          " tokens of %d ranks",
                          s->cols, s->tokens, s->ranks);
    }
    return MF_OK;
}

static size_t aligned(size_t size_B) {
    return (size_B + 255) / 256 * 256;
}

static size_t rows_B(const mf_dispatch_shape *s) {
    return aligned((size_t)(s->ranks * s->tokens * s->cols) * sizeof(uint16_t));
}

static size_t slots_B(const mf_dispatch_shape *s) {
    return aligned((size_t)(s->ranks * s->tokens * s->top_k) * 4);
}

size_t mf_dispatch_window_B(const mf_dispatch_shape *s) {
    const size_t rows = s->shared ? rows_B(s) : 2 * rows_B(s);
    return rows + 2 * slots_B(s) + aligned((size_t)(s->tokens * s->top_k) * 4) + 256;
}

mf_dispatch_view mf_dispatch_view_of(const mf_dispatch_shape *s, void *base) {
    char *at = base;
    mf_dispatch_view v;
    v.rows = (uint16_t *)(void *)at;
    at += s->shared ? 0 : rows_B(s);
    v.partial = (uint16_t *)(void *)at;
    at += rows_B(s);
    v.index = (int32_t *)(void *)at;
    at += slots_B(s);
    v.prob = (float *)(void *)at;
    at += slots_B(s);
    v.prob_grad = (float *)(void *)at;
    return v;
}

/* Whether rank owns one of the token's experts. */
static bool goes_to(const mf_dispatch_shape *s, const int32_t *choice, int rank) {
    const int64_t each = s->experts / s->ranks;
    for (int64_t j = 0; j < s->top_k; j++) {
        if (choice[j] >= 0 && choice[j] / each == rank) {
            return true;
        }
    }
    return false;
}

/* Whether one of the choices, as an owner sees them, is its own. */
static bool is_local(const mf_dispatch_shape *s, const int32_t *local) {
    for (int64_t j = 0; j < s->top_k; j++) {
        if (local[j] >= 0) {
            return true;
        }
    }
    return false;
}

int64_t mf_dispatch_copies(const mf_dispatch_shape *s, const int32_t *index, int rank) {
    int64_t copies = 0;
    for (int64_t t = 0; t < s->tokens; t++) {
        for (int r = 0; r < s->ranks; r++) {
            copies += r != rank && goes_to(s, index + t * s->top_k, r);
        }
    }
    return copies;
}

mf_status mf_kernel_dispatch_run(const mf_dispatch_shape *s, const mf_kernel_dispatch *d,
                                 const mf_dispatch_view *v, mf_err *e) {
    const int32_t each = (int32_t)(s->experts / s->ranks);
    mf_status status = mf_dispatch_check(s, e);
    for (int64_t i = 0; status == MF_OK && i < s->ranks * s->ranks * s->tokens; i++) {
        const int from = (int)(i / s->tokens / s->ranks), to = (int)(i / s->tokens % s->ranks);
        const int64_t t = i % s->tokens, row = from * s->tokens + t;
        const int32_t *choice = d[from].index + t * s->top_k;
        for (int64_t j = 0; j < s->top_k; j++) {
            const bool own = choice[j] >= 0 && choice[j] / each == to;
            v[to].index[row * s->top_k + j] = own ? choice[j] - to * each : -1;
            if (d[from].prob != NULL) {
                v[to].prob[row * s->top_k + j] = d[from].prob[t * s->top_k + j];
            }
        }
        if (goes_to(s, choice, to)) {
            memcpy(v[to].rows + row * s->cols, d[from].x + t * s->cols, (size_t)s->cols * 2);
        }
    }
    return status;
}

/* The row of y for choice j of a token of all ranks' tokens, whose choices are `local` here. */
static int32_t row_of(const mf_dispatch_shape *s, const mf_kernel_combine *c, int64_t token,
                      int64_t j) {
    const int32_t *local = c->local + token * s->top_k;
    if (!c->by_token) {
        return c->row_of_slot[token * s->top_k + j];
    }
    for (int64_t i = 0; i < j; i++) {
        if (local[i] >= 0) {
            return -1;
        }
    }
    return local[j] >= 0 ? c->row_of_slot[token] : -1;
}

/* Owner `from` sums its experts' rows of token t of rank `to`. */
static void send_back(const mf_dispatch_shape *s, const mf_kernel_combine *c,
                      const mf_dispatch_view *v, int from, int to, int64_t t) {
    const int64_t slot = (to * s->tokens + t) * s->top_k;
    int32_t row[MF_DISPATCH_TOP_K_MAX];
    bool any = false;
    for (int64_t j = 0; j < s->top_k; j++) {
        row[j] = row_of(s, &c[from], to * s->tokens + t, j);
        any = any || row[j] >= 0;
    }
    uint16_t *sum = v[to].partial + (from * s->tokens + t) * s->cols;
    for (int64_t i = 0; i < s->cols; i++) {
        float total = 0.0f;
        for (int64_t j = 0; j < s->top_k; j++) {
            if (row[j] >= 0) {
                const float w = c[from].weight != NULL ? c[from].weight[slot + j] : 1.0f;
                total += w * mf_kernel_bf16_widen(c[from].y[row[j] * s->cols + i]);
            }
        }
        sum[i] = mf_kernel_bf16_round(total);
    }
    for (int64_t j = 0; c[from].slot_grad != NULL && j < s->top_k; j++) {
        if (any && c[from].local[slot + j] >= 0) {
            v[to].prob_grad[t * s->top_k + j] = c[from].slot_grad[slot + j];
        }
    }
}

mf_status mf_kernel_combine_run(const mf_dispatch_shape *s, const mf_kernel_combine *c,
                                const mf_dispatch_view *v, mf_err *e) {
    mf_status status = mf_dispatch_check(s, e);
    for (int64_t i = 0; status == MF_OK && i < s->ranks * s->tokens; i++) {
        const int to = (int)(i / s->tokens);
        const int64_t t = i % s->tokens;
        const int32_t *choice = c[to].index + t * s->top_k;
        for (int from = 0; from < s->ranks; from++) {
            if (is_local(s, c[from].local + i * s->top_k)) {
                send_back(s, c, v, from, to, t);
            }
        }
        for (int64_t x = 0; x < s->cols; x++) {
            float total = 0.0f;
            for (int j = 0; j < s->ranks; j++) { /* its own first */
                const int from = j == 0 ? to : j - (j <= to);
                if (goes_to(s, choice, from)) {
                    total +=
                        mf_kernel_bf16_widen(v[to].partial[(from * s->tokens + t) * s->cols + x]);
                }
            }
            c[to].out[t * s->cols + x] = mf_kernel_bf16_round(total);
        }
    }
    return status;
}

/* --- choices of the CUDA side ----------------------------------------------------------------- */

static int64_t round_up(int64_t a, int64_t b) {
    return (a + b - 1) / b * b;
}

/* Shared memory of a team beside its ring. */
static uint32_t beside_ring_B(uint32_t adders) {
    return MF_COMBINE_SMEM_B + adders * MF_COMBINE_OUTBOX * MF_COMBINE_WARP_COLS * 2;
}

/* Measured on two and four H200: with more blocks than these and so many units for each, a second
 * team for wide rows costs more (flags, half a ring each) than it hides. */
enum { BLOCKS_FEW = 32, UNITS_MANY = 24 };
/* Measured on two H200: early sums cost a row written and read again, which wide rows do not earn
 * back when a team has many units; a flag takes as long as some units. */
enum { EARLY_WIDE_MOST = 24, EARLY_FEW_MOST = 8 };

/* Teams of a block: as many as have units, warps, and rings worth having. */
static uint32_t teams_of(const mf_combine_plan *p, int blocks, int share_most_B) {
    const uint32_t slot_B = p->piece_cols * 2;
    const uint32_t least_B = beside_ring_B(p->adders) + MF_COMBINE_SLOTS_LEAST * slot_B;
    uint32_t teams = MF_COMBINE_WARPS_MOST / (p->adders + MF_COMBINE_OTHERS);
    const uint32_t units = (p->count + (uint32_t)blocks - 1) / (uint32_t)blocks;
    if (teams <= 2 && blocks > BLOCKS_FEW && units >= UNITS_MANY) {
        teams = 1;
    }
    teams = teams < MF_COMBINE_TEAMS_MOST ? teams : MF_COMBINE_TEAMS_MOST;
    teams = teams < units ? teams : units;
    teams = teams * least_B <= (uint32_t)share_most_B ? teams : (uint32_t)share_most_B / least_B;
    return teams > 0 ? teams : 1;
}

void mf_combine_plan_choose(const mf_dispatch_shape *s, int blocks, int share_most_B,
                            mf_combine_plan *out) {
    const int64_t tokens = s->tokens > 0 ? s->tokens : 1;
    const int64_t cols_most = MF_COMBINE_ADDERS_MOST * MF_COMBINE_WARP_COLS;
    int64_t pieces = (s->cols + cols_most - 1) / cols_most;
    if (tokens * pieces < blocks) { /* few tokens: a piece for every block */
        pieces = blocks / tokens;
    }
    const int64_t cols = round_up((s->cols + pieces - 1) / pieces, MF_COMBINE_WARP_COLS);
    mf_combine_plan p = {.piece_cols = (uint32_t)cols,
                         .pieces = (uint32_t)((s->cols + cols - 1) / cols),
                         .adders = (uint32_t)cols / MF_COMBINE_WARP_COLS};
    p.count = (uint32_t)s->tokens * p.pieces;
    p.teams = teams_of(&p, blocks, share_most_B);
    p.step = (uint32_t)blocks * p.teams;
    p.step_tokens = p.step / p.pieces;
    p.step_pieces = p.step % p.pieces;
    const uint32_t turns = (p.count + p.step - 1) / p.step;
    p.early = turns >= 2 && (p.teams > 2 || turns <= EARLY_WIDE_MOST);
    const bool few = p.early && turns <= EARLY_FEW_MOST;
    p.each = (turns + MF_COMBINE_CHUNKS_MOST - 1) / MF_COMBINE_CHUNKS_MOST;
    p.each = few ? (turns + 1) / 2 : p.early && p.each < 2 ? 2 : p.each;
    p.chunks = p.each > 0 ? (turns + p.each - 1) / p.each : 0;
    p.lag = few ? 2 : 3;
    const uint32_t slot_B = p.piece_cols * 2, rest_B = beside_ring_B(p.adders),
                   slots = ((uint32_t)share_most_B / p.teams - rest_B) / slot_B;
    p.slots = slots < MF_COMBINE_SLOTS_MOST ? slots : MF_COMBINE_SLOTS_MOST;
    p.team_B = p.slots * slot_B + rest_B;
    p.share_B = p.teams * p.team_B;
    *out = p;
}

char *mf_combine_plan_print(const mf_combine_plan *p, char *text, size_t size) {
    (void)snprintf(text, size,
                   "%" PRIu32 " units, pieces of %" PRIu32 " columns, teams of %" PRIu32
                   " adders: %" PRIu32 ", %" PRIu32 " chunks of %" PRIu32 " finished %" PRIu32
                   " later%s, ring of %" PRIu32 ", %" PRIu32 " bytes",
                   p->count, p->piece_cols, p->adders, p->teams, p->chunks, p->each, p->lag,
                   p->early ? " with early sums" : "", p->slots, p->share_B);
    return text;
}
