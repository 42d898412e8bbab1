/* unsaid.c - what a row leaves unsaid: the ways in which it may have run, all equally likely.
 *
 * A way is a layout whose unsaid flags have values that were plausible for the release: its default
 * recipes, or what rows of the same source, model and GPU state. Nothing here looks at a speed, and
 * the split into fitted and held-out rows is made before, from the layout as printed.
 */
#include "bench/published/rows_internal.h"

#include <stdlib.h>
#include <string.h>

/* "megatron-25.11" -> 25.11; 0 for software without a release. */
static double release_of(const pub_row *r) {
    return pub_starts(r->software, "megatron-") ? strtod(r->software + strlen("megatron-"), NULL)
                                                : 0;
}

/* --- virtual stages --------------------------------------------------------------------------- */

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

/* --- the ways --------------------------------------------------------------------------------- */

static int graphs_of(const pub_row *r, mf_graph_mode *out) {
    int n = 0;
    out[n++] = r->layout.graph;
    /* Release notes of 25.11: graphs of the whole iteration for dense models, of parts of the layer
     * for MoE models. */
    if ((r->unknown & PUB_UNKNOWN_GRAPH) && !r->in_recipe && release_of(r) >= 25.11) {
        out[n++] = r->moe ? MF_GRAPH_PARTIAL : MF_GRAPH_STEP;
    }
    return n;
}

static int dispatchers_of(const pub_row *r, mf_dispatcher *out) {
    int n = 0;
    out[n++] = r->layout.dispatcher;
    /* Before HybridEP (25.11) a recipe had one choice: DeepEP beside H100, all-to-all elsewhere. */
    if (r->moe && r->dispatcher_open && release_of(r) >= 25.11) {
        out[n++] =
            r->layout.dispatcher == MF_DISPATCH_FUSED ? MF_DISPATCH_ALLTOALL : MF_DISPATCH_FUSED;
    }
    return n;
}

static void add_way(pub_row *r, const mf_layout *way) {
    mf_layout l = *way;
    if (r->ways < PUB_MAX_WAYS && mf_layout_resolve(&l, &r->model, NULL) == MF_OK) {
        r->way[r->ways++] = l;
    }
}

static void ways_of(pub_row *r, const mf_layout *base) {
    mf_graph_mode graph[2];
    mf_dispatcher dispatcher[2];
    int graphs = graphs_of(r, graph), dispatchers = dispatchers_of(r, dispatcher);
    r->ways = 0;
    for (int g = 0; g < graphs; g++) {
        for (int d = 0; d < dispatchers; d++) {
            mf_layout l = *base;
            l.graph = graph[g];
            l.dispatcher = dispatcher[d];
            add_way(r, &l);
        }
    }
}

void pub_read_ways(pub_row *rows, int count) {
    for (int i = 0; i < count; i++) {
        pub_row *r = &rows[i];
        if (r->skipped[0]) {
            continue;
        }
        mf_layout base = r->layout;
        if (r->unknown & PUB_UNKNOWN_VPP) {
            set_vpp(&base, usual_vpp(rows, count, r));
        }
        if (r->unfolded) {
            base.etp = base.tp;
        }
        ways_of(r, &base);
        if (r->ways == 0) { /* what neighbours use does not divide here */
            ways_of(r, &r->layout);
        }
    }
    for (int i = 0; i < count; i++) { /* after all neighbours were read as printed */
        if (!rows[i].skipped[0] && rows[i].ways > 0) {
            rows[i].layout = rows[i].way[0];
        }
    }
}
