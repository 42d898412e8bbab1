/* memory.c - the memory in use at the same time: an exact walk over a stage's schedule. */
#include "core/memory/memory.h"

#include "core/memory/memory_inputs.h"
#include "core/program/pairing.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *mf_memory_text(mf_memory_kind k) {
    static const char *const text[] = {
#define X(name, text) text,
        MF_MEMORY_MAP(X)
#undef X
    };
    return (unsigned)k < MF_MEM_COUNT ? text[k] : "?";
}

const char *mf_memory_name(mf_memory_kind k) {
    static const char *const name[MF_MEM_COUNT] = {
        [MF_MEM_HELD] = "held for wgrad", [MF_MEM_BOUNDARY] = "p2p",
        [MF_MEM_WORKSPACE] = "scratch",   [MF_MEM_GATHERED] = "gathered weights",
        [MF_MEM_COMM] = "comm",
    };
    return (unsigned)k < MF_MEM_COUNT && name[k] != NULL ? name[k] : mf_memory_text(k);
}

/* What a process holds before its first tensor. CUDA context with the modules of cuBLASLt and cuDNN
 * loaded: 0.5 to 0.7 GB on H100/H200 by nvidia-smi; cuBLASLt's workspace 32 MiB a stream
 * (NVIDIA's recommendation for Hopper). CPU ranks hold none of it. */
double mf_memory_context_B(const mf_cluster *c, const mf_layout *l) {
    (void)l;
    if (mf_cluster_is_cpu(c)) {
        return 0.0;
    }
    return 0.6e9 + 2.0 * 32.0 * 1048576.0;
}

/* --- one chunk -------------------------------------------------------------------------------- */

/* Bytes while one block of a pass runs: what it leaves behind (saved by forward, held for the
 * weight gradient), the workspaces of the blocks that run, gradients not yet reduced into their
 * shard, and copies of what is on its way to or from the host: when the block begins, while it
 * works, when it ends (core/memory/memory_place.c). */
enum { MOMENTS = 3 };
typedef struct need {
    double saved, held, work, grads, copies[MOMENTS];
} need;

/* A virtual stage: what one micro-batch leaves on the device and the host, and the needs of each
 * pass, block by block in order of play. */
typedef struct chunk_need {
    double saved, held, host;
    int n;
    need *f, *b, *w;                /* [n] */
    need worst_f, worst_b, worst_w; /* of largest sum */
} chunk_need;

static double most_copies(const need *x) {
    return fmax(x->copies[0], fmax(x->copies[1], x->copies[2]));
}

static double sum_need(const need *x) {
    return x->saved + x->held + x->work + x->grads + most_copies(x);
}

static need worst_of(const need *x, int n) {
    need worst = {0};
    for (int i = 0; i < n; i++) {
        worst = sum_need(&x[i]) > sum_need(&worst) ? x[i] : worst;
    }
    return worst;
}

/* From ZeRO-2 on a rank keeps a shard of the gradient sum; a micro-batch's own gradient of a block
 * stands in full until it is reduced. */
double mf_memory_unreduced_of_B(const mf_layout *l, int64_t dense, int64_t expert) {
    double bytes = 0;
    const int64_t gradient_B = (int64_t)mf_layout_gradient_B(l);
    if (l->zero >= 2 && l->dp * l->cp > 1) {
        bytes += (double)mf_align_B(gradient_B * dense);
    }
    if (l->expert_zero >= 2 && l->edp > 1) {
        bytes += (double)mf_align_B(gradient_B * expert);
    }
    return bytes;
}

double mf_memory_unreduced_B(const mf_layout *l, const mf_block *b) {
    return mf_memory_unreduced_of_B(l, b->params.dense + b->shared, b->params.expert);
}

static const mf_block *block_at(const mf_program *p, int position) {
    return p->blocks[p->block_of[position]];
}

static void forward_needs(const mf_program *p, int first, chunk_need *c) {
    double before = 0;
    for (int k = 0; k < c->n; k++) { /* saved tensors add up; what leaves does so beside the next */
        const mf_block *b = block_at(p, first + k);
        double leaving = k + 1 < c->n ? (double)b->offload_B : 0;
        c->saved += (double)b->saved_B;
        c->host += (double)b->offload_B;
        c->f[k] = (need){
            .saved = c->saved, .work = (double)b->local_f_B, .copies = {before, before, leaving}};
        before = leaving;
    }
}

static void backward_needs(const mf_program *p, int first, chunk_need *c) {
    bool beside = (p->layout.overlap & MF_OVERLAP_DP) != 0;
    double saved = c->saved, came = 0;
    for (int k = 0; k < c->n; k++) { /* each block frees its own; held ones add up; those of the
                                        next come from the host */
        int position = first + c->n - 1 - k;
        const mf_block *b = block_at(p, position);
        double coming = k + 1 < c->n ? (double)block_at(p, position - 1)->offload_B : 0;
        double grads = mf_memory_unreduced_B(&p->layout, b);
        if (beside && k > 0) { /* the one before is being reduced */
            grads += mf_memory_unreduced_B(&p->layout, block_at(p, position + 1));
        }
        c->b[k] = (need){.saved = saved, .held = c->held, .copies = {came, coming, coming}};
        came = coming;
        if (p->split) {
            c->b[k].held += (double)b->made_B;
            c->b[k].work = (double)b->local_bs_B;
            c->w[k] = (need){.work = (double)b->local_w_B, .grads = grads};
            c->held += (double)b->held_B;
        } else {
            c->b[k].work = (double)b->local_b_B;
            c->b[k].grads = grads;
        }
        saved -= (double)b->saved_B;
    }
    double held = c->held;
    for (int k = 0; k < c->n && p->split; k++) {
        c->w[k].held = held;
        held -= (double)block_at(p, first + c->n - 1 - k)->held_B;
    }
}

static bool chunk_init(const mf_program *p, int64_t vstage, chunk_need *c) {
    int first = p->assignment.first[vstage];
    *c = (chunk_need){.n = p->assignment.first[vstage + 1] - first};
    c->f = calloc(3 * (size_t)c->n + 1, sizeof *c->f);
    if (c->f == NULL) {
        return false;
    }
    c->b = c->f + c->n;
    c->w = c->b + c->n;
    forward_needs(p, first, c);
    backward_needs(p, first, c);
    c->worst_f = worst_of(c->f, c->n);
    c->worst_b = worst_of(c->b, c->n);
    c->worst_w = worst_of(c->w, c->n);
    return true;
}

/* A merged pair's forward side, waiting after k of its blocks: what they saved, the last of it
 * being copied to the host. */
static need forward_waits(const mf_program *p, int64_t v, const chunk_need *f, int k) {
    if (k == 0 || k == f->n) {
        return (need){.saved = k == 0 ? 0 : f->saved};
    }
    const double leaving = (double)block_at(p, p->assignment.first[v] + k - 1)->offload_B;
    return (need){.saved = f->f[k - 1].saved, .copies = {leaving, leaving, leaving}};
}

/* A merged pair's backward side, waiting after k of its blocks: what the other blocks saved, that
 * of the next being copied from the host, and gradients of the one before, being reduced. */
static need backward_waits(const mf_program *p, int64_t v, const chunk_need *b, int k) {
    if (k == 0 || k == b->n) {
        return (need){.saved = k == 0 ? b->saved : 0, .held = k == 0 ? 0 : b->held};
    }
    int next = p->assignment.first[v + 1] - 1 - k;
    bool beside = (p->layout.overlap & MF_OVERLAP_DP) != 0;
    const double coming = (double)block_at(p, next)->offload_B;
    return (need){.saved = b->b[k].saved,
                  .held = b->b[k].held,
                  .copies = {coming, coming, coming},
                  .grads = beside ? mf_memory_unreduced_B(&p->layout, block_at(p, next + 1)) : 0};
}

/* Forward of virtual stage vf beside backward of vb, step by step (core/program/pairing.h). */
static need pair_need(const mf_program *p, int64_t vf, const chunk_need *f, int64_t vb,
                      const chunk_need *b, mf_pairing *order) {
    need worst = {0};
    int i = 0, j = 0;
    mf_pairing_make(order, &p->model, &p->layout, p->assignment.first, vf, vb);
    for (int k = 0; k < order->count; k++) {
        bool forward = order->step[k].f >= 0, backward = order->step[k].b >= 0;
        need x = forward ? f->f[i] : forward_waits(p, vf, f, i);
        need y = backward ? b->b[j] : backward_waits(p, vb, b, j);
        need both = {.saved = x.saved + y.saved,
                     .held = x.held + y.held,
                     .work = x.work + y.work,
                     .grads = x.grads + y.grads};
        for (int at = 0; at < MOMENTS; at++) {
            both.copies[at] = x.copies[at] + y.copies[at];
        }
        worst = sum_need(&both) > sum_need(&worst) ? both : worst;
        i += forward;
        j += backward;
    }
    return worst;
}

/* --- one stage -------------------------------------------------------------------------------- */

typedef struct stage_walk {
    const mf_program *p;
    int64_t chunks;
    chunk_need *chunk;                /* [chunks] */
    need *pair;                       /* [chunks][chunks] when the schedule merges */
    int64_t *flying, *held;           /* [chunks] micro-batches, the running ones not counted */
    int64_t *most_flying, *most_held; /* [chunks] at any time, with the running ones */
} stage_walk;

static void moment(const stage_walk *w, const mf_event *ev, double grads, mf_memory_stage *out) {
    const chunk_need *own = &w->chunk[ev->chunk];
    need now = {0};
    double host = own->host;
    switch ((mf_event_pass)ev->pass) {
    case MF_EVENT_F:
        now = own->worst_f;
        break;
    case MF_EVENT_B:
        now = own->worst_b;
        break;
    case MF_EVENT_W:
        now = own->worst_w;
        host = 0;
        break;
    case MF_EVENT_FB:
        assert(w->pair != NULL);
        now = w->pair[ev->chunk * w->chunks + ev->chunk2];
        host += w->chunk[ev->chunk2].host;
        break;
    }
    for (int64_t c = 0; c < w->chunks; c++) {
        now.saved += (double)w->flying[c] * w->chunk[c].saved;
        now.held += (double)w->held[c] * w->chunk[c].held;
        host += (double)w->flying[c] * w->chunk[c].host;
    }
    out->kind_B[MF_MEM_ACTIVATIONS] = now.saved;
    out->kind_B[MF_MEM_HELD] = now.held;
    out->kind_B[MF_MEM_WORKSPACE] = now.work + most_copies(&now);
    out->kind_B[MF_MEM_GRADIENTS] = grads + now.grads;
    out->host_B = host;
}

static double sum_of(const mf_memory_stage *s) {
    double sum = 0;
    for (int k = 0; k < MF_MEM_COUNT; k++) {
        sum += s->kind_B[k];
    }
    return sum;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Slots that a chunk fills while micro-batches of its own run: `running` of them. */
static void note_most(int64_t *most, const int64_t *standing, int64_t chunk, int64_t running) {
    most[chunk] = larger(most[chunk], standing[chunk] + running);
}

/* Before the event: takes the running chunk out of the standing counts. After: what it leaves. */
static void enter(stage_walk *w, const mf_event *ev) {
    bool pair = ev->pass == MF_EVENT_FB, weights = ev->pass == MF_EVENT_W;
    if (weights) {
        w->held[ev->chunk]--;
    } else if (ev->pass != MF_EVENT_F) {
        w->flying[pair ? ev->chunk2 : ev->chunk]--;
    }
    if (weights) {
        note_most(w->most_held, w->held, ev->chunk, 1);
        return;
    }
    note_most(w->most_flying, w->flying, ev->chunk, 1 + (pair && ev->chunk2 == ev->chunk));
    if (pair) {
        note_most(w->most_flying, w->flying, ev->chunk2, 1 + (ev->chunk2 == ev->chunk));
    }
    if (ev->pass == MF_EVENT_B || pair) {
        note_most(w->most_held, w->held, pair ? ev->chunk2 : ev->chunk, 1);
    }
}

static void leave(stage_walk *w, const mf_event *ev) {
    if (ev->pass == MF_EVENT_F || ev->pass == MF_EVENT_FB) {
        w->flying[ev->chunk]++;
    } else if (ev->pass == MF_EVENT_B && w->p->split) {
        w->held[ev->chunk]++;
    }
}

double mf_memory_boundaries(const mf_layout *l) {
    return (mf_layout_merges(l) ? 4.0 : 2.0) + (double)mf_schedule_messages(l);
}

double mf_memory_gathers(const mf_layout *l) {
    return mf_layout_merges(l) ? 4.0 : 2.0;
}

static void standing(const mf_program *p, int64_t stage, mf_memory_stage *s) {
    memset(s, 0, sizeof *s);
    mf_stage_memory params = mf_param_memory(&p->layout, mf_program_stage_params(p, stage));
    s->kind_B[MF_MEM_WEIGHTS] = params.weights_B;
    s->kind_B[MF_MEM_GRADIENTS] = params.gradients_B;
    s->kind_B[MF_MEM_OPTIMIZER] = params.optimizer_B;
    s->kind_B[MF_MEM_CONTEXT] = mf_memory_context_B(&p->cluster, &p->layout);
    mf_inputs inputs;
    mf_scratch scratch;
    mf_memory_inputs(&p->model, &p->layout, &inputs);
    s->kind_B[MF_MEM_INPUTS] = (double)inputs.size_B;
    mf_step_end end;
    mf_program_step_end(p, stage, &end);
    mf_memory_scratch(p, stage, &end, &scratch);
    s->kind_B[MF_MEM_CONTEXT] += (double)scratch.size_B;
    const bool merged = mf_layout_merges(&p->layout);
    double dispatcher = 0, gathered = 0, boundary = (double)mf_program_boundary_B(p, stage);
    for (int64_t chunk = 0; chunk < p->layout.vpp; chunk++) {
        int64_t v = mf_layout_vstage(&p->layout, stage, chunk);
        for (int i = p->assignment.first[v]; i < p->assignment.first[v + 1]; i++) {
            const mf_block *b = block_at(p, i);
            dispatcher = fmax(dispatcher, (double)b->comm_B[merged]);
            gathered = fmax(gathered, (double)b->gather_B);
        }
    }
    s->kind_B[MF_MEM_COMM] = mf_memory_comm_B(&p->cluster, &p->layout) +
                             mf_memory_sums_comm_B(&p->cluster, &p->layout, &end) + dispatcher;
    s->kind_B[MF_MEM_GATHERED] = mf_memory_gathers(&p->layout) * gathered;
    s->kind_B[MF_MEM_BOUNDARY] = mf_memory_boundaries(&p->layout) * boundary;
    s->peak_B = sum_of(s);
}

static bool find_pairs(stage_walk *w, int64_t stage) {
    const mf_program *p = w->p;
    mf_pairing order;
    if (mf_pairing_init(&order, mf_pairing_longest(p->assignment.first, p->assignment.vstages),
                        NULL) != MF_OK) {
        return false;
    }
    for (int64_t c = 0; c < w->chunks; c++) {
        for (int64_t k = 0; k < w->chunks; k++) {
            w->pair[c * w->chunks + k] =
                pair_need(p, mf_layout_vstage(&p->layout, stage, c), &w->chunk[c],
                          mf_layout_vstage(&p->layout, stage, k), &w->chunk[k], &order);
        }
    }
    mf_pairing_clear(&order);
    return true;
}

static bool walk_init(const mf_program *p, int64_t stage, stage_walk *w) {
    size_t n = (size_t)p->layout.vpp;
    *w = (stage_walk){.p = p, .chunks = p->layout.vpp};
    w->chunk = calloc(n, sizeof *w->chunk);
    w->flying = calloc(4 * n, sizeof *w->flying);
    w->pair = mf_layout_merges(&p->layout) ? calloc(n * n, sizeof *w->pair) : NULL;
    if (w->chunk == NULL || w->flying == NULL ||
        (w->pair == NULL && mf_layout_merges(&p->layout))) {
        return false;
    }
    w->held = w->flying + n;
    w->most_flying = w->flying + 2 * n;
    w->most_held = w->flying + 3 * n;
    for (int64_t c = 0; c < w->chunks; c++) {
        if (!chunk_init(p, mf_layout_vstage(&p->layout, stage, c), &w->chunk[c])) {
            return false;
        }
    }
    return w->pair == NULL || find_pairs(w, stage);
}

static void walk_clear(stage_walk *w) {
    for (int64_t c = 0; w->chunk != NULL && c < w->chunks; c++) {
        free(w->chunk[c].f);
    }
    free(w->chunk);
    free(w->flying);
    free(w->pair);
}

/* What the simplest arrangement takes: for each block as many slots side by side as it ever fills,
 * above them the largest workspace, gradients of two blocks, and two blocks' copies to or from the
 * host. */
static void find_most(const mf_program *p, int64_t stage, const stage_walk *w, double standing_B,
                      mf_memory_stage *peak) {
    double work_f = 0, work_b = 0, grads = 0, moved = 0, stays = 0, host = 0;
    for (int64_t c = 0; c < w->chunks; c++) {
        int64_t v = mf_layout_vstage(&p->layout, stage, c);
        for (int i = p->assignment.first[v]; i < p->assignment.first[v + 1]; i++) {
            const mf_block *b = block_at(p, i);
            work_f = fmax(work_f, (double)b->local_f_B);
            work_b = fmax(work_b, fmax((double)b->local_b_B,
                                       fmax((double)b->local_bs_B, (double)b->local_w_B)));
            grads = fmax(grads, mf_memory_unreduced_B(&p->layout, b));
            moved = fmax(moved, (double)b->offload_B);
        }
        stays += (double)w->most_flying[c] * w->chunk[c].saved;
        stays += (double)w->most_held[c] * w->chunk[c].held;
        host += (double)w->most_flying[c] * w->chunk[c].host;
    }
    double f = work_f + moved, b = work_b + moved + 2 * grads;
    double work = w->pair != NULL ? 2 * (f + b) + work_f + work_b : fmax(f, b);
    peak->most_B = fmax(standing_B + stays + work, peak->peak_B); /* the same, summed otherwise */
    peak->host_most_B = host;
}

/* Walks a stage; bytes (may be NULL) gets the memory while each event runs. */
static mf_status walk(const mf_program *p, const mf_schedule *s, int64_t stage,
                      mf_memory_stage *peak, double *bytes, mf_err *e) {
    stage_walk w;
    mf_status status = MF_OK;
    if (!walk_init(p, stage, &w)) {
        status = mf_err_set(e, MF_NOMEM, "memory plan: out of memory");
        goto out;
    }
    mf_memory_stage now;
    double host_peak = 0;
    standing(p, stage, &now);
    *peak = now;
    double grads = now.kind_B[MF_MEM_GRADIENTS], standing_B = now.peak_B;
    for (int64_t i = 0; i < s->count[stage]; i++) {
        const mf_event *ev = &s->events[stage][i];
        enter(&w, ev);
        moment(&w, ev, grads, &now);
        now.peak_B = sum_of(&now);
        host_peak = fmax(host_peak, now.host_B);
        if (bytes != NULL) {
            bytes[i] = now.peak_B;
        }
        if (now.peak_B > peak->peak_B) {
            *peak = now;
            peak->peak_event = i;
        }
        leave(&w, ev);
    }
    mf_stage_memory params = mf_param_memory(&p->layout, mf_program_stage_params(p, stage));
    peak->host_B = host_peak + params.optimizer_host_B;
    find_most(p, stage, &w, standing_B, peak);
    peak->host_most_B += params.optimizer_host_B;
out:
    walk_clear(&w);
    return status;
}

mf_status mf_memory_walk(const mf_program *p, const mf_schedule *s, int64_t stage, double *bytes,
                         mf_err *e) {
    mf_memory_stage peak;
    return walk(p, s, stage, &peak, bytes, e);
}

mf_status mf_memory_count(const mf_program *p, const mf_schedule *s, int64_t stage,
                          mf_memory_stage *out, mf_err *e) {
    return walk(p, s, stage, out, NULL, e);
}
