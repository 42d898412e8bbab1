/* unsaid.c - what a row leaves unsaid and no default of its software fills in: virtual stages,
 * which rows of the same source, model and GPU state. Nothing here looks at a speed, and the split
 * into fitted and held-out rows is made before, from the layout as printed.
 */
#include "bench/published/rows_internal.h"

#include <string.h>

/* What the same source states most often for this model, PP and (first) GPU. */
static int64_t usual_vpp(const pub_row *rows, int count, const pub_row *r) {
    for (int any_gpu = 0; any_gpu < 2; any_gpu++) {
        int64_t best = 0;
        int best_seen = 0;
        for (int i = 0; i < count; i++) {
            const pub_row *a = &rows[i];
            int seen = 0;
            for (int j = 0; j < count; j++) {
                const pub_row *b = &rows[j];
                seen += !b->skipped[0] && !(b->unknown & PUB_UNKNOWN_VPP) &&
                        strcmp(b->source, r->source) == 0 &&
                        strcmp(b->model_name, r->model_name) == 0 &&
                        (any_gpu || strcmp(b->gpu, r->gpu) == 0) && b->layout.pp == r->layout.pp &&
                        b->layout.vpp == a->layout.vpp;
            }
            if (seen > best_seen || (seen == best_seen && seen > 0 && a->layout.vpp < best)) {
                best = a->layout.vpp;
                best_seen = seen;
            }
        }
        if (best_seen > 0) {
            return best;
        }
    }
    return r->layout.vpp;
}

static void set_vpp(mf_layout *l, int64_t vpp) {
    l->vpp = vpp;
    if (vpp > 1 && l->schedule == MF_SCHED_1F1B) {
        l->schedule = MF_SCHED_INTERLEAVED;
    }
}

void pub_read_neighbours(pub_row *rows, int count) {
    for (int i = 0; i < count; i++) {
        pub_row *r = &rows[i];
        mf_layout filled = r->layout;
        if (r->skipped[0]) {
            continue;
        }
        if (r->unknown & PUB_UNKNOWN_VPP) {
            set_vpp(&filled, usual_vpp(rows, count, r));
        }
        if (r->unfolded) {
            filled.etp = filled.tp;
        }
        mf_layout resolved = filled;
        if (mf_layout_resolve(&resolved, &r->model, NULL) == MF_OK) { /* does it divide here? */
            r->filled = filled;
        } else {
            r->filled = r->layout;
        }
    }
    for (int i = 0; i < count; i++) { /* after all neighbours were read as printed */
        rows[i].layout = rows[i].skipped[0] ? rows[i].layout : rows[i].filled;
    }
}
