/* pairing.c - pairs the blocks of two chunks. */
#include "core/program/pairing.h"

#include <assert.h>
#include <stdlib.h>

bool mf_position_exchanges(const mf_model *m, const mf_layout *l, int position) {
    return l->ep * l->etp > 1 && mf_position_is_moe(m, position);
}

mf_status mf_pairing_init(mf_pairing *x, int longest, mf_err *e) {
    size_t n = (size_t)longest + 1;
    *x = (mf_pairing){.longest = longest};
    x->step = calloc(2 * n, sizeof *x->step);
    x->worth = calloc(n * n, sizeof *x->worth);
    if (x->step == NULL || x->worth == NULL) {
        mf_pairing_clear(x);
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    return MF_OK;
}

void mf_pairing_clear(mf_pairing *x) {
    free(x->step);
    free(x->worth);
    *x = (mf_pairing){0};
}

int mf_pairing_longest(const int *first, int vstages) {
    int longest = 0;
    for (int v = 0; v < vstages; v++) {
        int n = first[v + 1] - first[v];
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* The worth of a pair: whether both exchange, one does, none. A block alone is worth nothing. */
enum { WORTH_BOTH = 8, WORTH_ONE = 2, WORTH_NONE = 1 };

typedef struct rows {
    bool f[MF_MAX_POSITIONS], b[MF_MAX_POSITIONS];
    int nf, nb;
} rows;

static int worth(const rows *r, int f, int b) {
    return r->f[f] && r->b[b] ? WORTH_BOTH : r->f[f] || r->b[b] ? WORTH_ONE : WORTH_NONE;
}

static void append(mf_pairing *x, int f, int b) {
    x->step[x->count++] = (mf_pairing_step){(int16_t)f, (int16_t)b};
}

/* Pairs the k-th with the k-th. */
static void pair_in_turn(mf_pairing *x, const rows *r) {
    for (int k = 0; k < r->nf || k < r->nb; k++) {
        append(x, k < r->nf ? k : -1, k < r->nb ? k : -1);
    }
}

/* worth[i][j]: the worth of the best pairing of the blocks from (i, j) on. */
static void pair_by_worth(mf_pairing *x, const rows *r) {
    int width = r->nb + 1, *best = x->worth;
    for (int i = r->nf; i >= 0; i--) {
        for (int j = r->nb; j >= 0; j--) {
            int most = 0;
            if (i < r->nf && j < r->nb) {
                int both = worth(r, i, j) + best[(i + 1) * width + j + 1];
                int f = best[(i + 1) * width + j], b = best[i * width + j + 1];
                most = both > f ? both : f;
                most = most > b ? most : b;
            }
            best[i * width + j] = most;
        }
    }
    for (int i = 0, j = 0; i < r->nf || j < r->nb;) {
        int here = best[i * width + j];
        bool pair =
            i < r->nf && j < r->nb && here == worth(r, i, j) + best[(i + 1) * width + j + 1];
        bool f = pair || j == r->nb || (i < r->nf && here == best[(i + 1) * width + j]);
        bool b = pair || !f;
        append(x, f ? i : -1, b ? j : -1);
        i += f;
        j += b;
    }
}

void mf_pairing_make(mf_pairing *x, const mf_model *m, const mf_layout *l, const int *first,
                     int64_t vf, int64_t vb) {
    rows r;
    r.nf = first[vf + 1] - first[vf];
    r.nb = first[vb + 1] - first[vb];
    assert(r.nf <= x->longest && r.nb <= x->longest);
    int exchange = 0;
    for (int k = 0; k < r.nf; k++) {
        r.f[k] = mf_position_exchanges(m, l, first[vf] + k);
        exchange += r.f[k];
    }
    for (int k = 0; k < r.nb; k++) {
        r.b[k] = mf_position_exchanges(m, l, first[vb + 1] - 1 - k);
        exchange += r.b[k];
    }
    x->count = 0;
    if (r.nf == 0 || r.nb == 0 || exchange == 0 || exchange == r.nf + r.nb) {
        pair_in_turn(x, &r);
    } else {
        pair_by_worth(x, &r);
    }
}

void mf_pairing_alone(mf_pairing *x, bool backward, int blocks) {
    x->count = 0;
    for (int k = 0; k < blocks; k++) {
        append(x, backward ? -1 : k, backward ? k : -1);
    }
}
