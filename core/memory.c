/* memory.c - the static memory plan: an exact walk over every stage's schedule. */
#include "core/memory.h"

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

/* What a process holds before its first tensor. CUDA context with the modules of cuBLASLt, cuDNN
 * and NCCL loaded: 0.5 to 0.7 GB on H100/H200 by nvidia-smi; cuBLASLt's workspace 32 MiB a stream
 * (NVIDIA's recommendation for Hopper). CPU ranks hold none of it. */
double mf_memory_context_B(const mf_cluster *c, const mf_layout *l) {
    (void)l;
    if (strcmp(c->gpu.arch, "cpu") == 0) {
        return 0.0;
    }
    return 0.6e9 + 2.0 * 32.0 * 1048576.0;
}

/* NCCL's buffers: each communicator keeps, per channel and peer, 4 MiB (Simple) and 0.8 MiB (LL,
 * LL128); rings and trees have two peers each way. 24 channels inside an NVLink domain, 8 beyond
 * (NCCL 2.28's choices on 8-GPU Hopper hosts). All-to-all groups talk to every peer over up to
 * four channels of 1 MiB. An upper estimate: NCCL connects lazily. */
double mf_memory_comm_B(const mf_cluster *c, const mf_layout *l) {
    if (strcmp(c->gpu.arch, "cpu") == 0) {
        return 0.0;
    }
    static const mf_group_kind kinds[] = {MF_GROUP_TP,    MF_GROUP_CP,  MF_GROUP_EP, MF_GROUP_ETP,
                                          MF_GROUP_DP_CP, MF_GROUP_EDP, MF_GROUP_PP};
    const double mib = 1048576.0, per_channel = 4.0 * 4.8 * mib / 4.0;
    double bytes = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        mf_group_shape s = mf_layout_group(l, kinds[i]);
        if (s.size <= 1) {
            continue;
        }
        bool inside = (s.size - 1) * s.stride < c->domain_gpus_used;
        double channels = inside ? 24.0 : 8.0;
        if (kinds[i] == MF_GROUP_EP && l->dispatcher == MF_DISPATCH_ALLTOALL) {
            bytes += 4.0 * mib * (double)(s.size - 1);
        } else if (kinds[i] == MF_GROUP_PP) {
            bytes += 4.0 * 4.0 * mib;
        } else {
            bytes += channels * per_channel;
        }
    }
    return bytes;
}

/* --- one chunk ---------------------------------------------------------------------------------
 */

/* Bytes of the positions of a virtual stage, and the peaks while a pass runs through them. */
typedef struct chunk_bytes {
    double saved, held, host;
    double f_peak, b_peak, w_peak; /* saved or held so far + workspace, at the worst block */
    double f_work, b_work, w_work; /* of which workspace */
} chunk_bytes;

static void at_least(double *peak, double *work, double bytes, double workspace) {
    if (bytes + workspace > *peak) {
        *peak = bytes + workspace;
        *work = workspace;
    }
}

static chunk_bytes chunk_of(const mf_program *p, int64_t vstage) {
    chunk_bytes c;
    memset(&c, 0, sizeof c);
    int first = p->assignment.first[vstage], end = p->assignment.first[vstage + 1];
    for (int i = first; i < end; i++) { /* forward: saved tensors pile up */
        const mf_block *b = p->blocks[p->block_of[i]];
        c.saved += (double)b->saved_B;
        c.host += (double)b->offload_B;
        at_least(&c.f_peak, &c.f_work, c.saved, (double)b->local_f_B);
    }
    double saved = c.saved, held = 0;
    for (int i = end - 1; i >= first; i--) { /* backward: they go, held ones pile up */
        const mf_block *b = p->blocks[p->block_of[i]];
        double extra = p->split ? (double)b->held_B : 0;
        at_least(&c.b_peak, &c.b_work, saved + held,
                 (double)(p->split ? b->local_bs_B : b->local_b_B) + extra);
        saved -= (double)b->saved_B;
        held += extra;
    }
    c.held = held;
    for (int i = end - 1; i >= first && p->split; i--) {
        const mf_block *b = p->blocks[p->block_of[i]];
        at_least(&c.w_peak, &c.w_work, held, (double)b->local_w_B);
        held -= (double)b->held_B;
    }
    return c;
}

/* --- one stage ---------------------------------------------------------------------------------
 */

typedef struct stage_walk {
    const mf_program *p;
    int64_t stage;
    chunk_bytes *chunk;     /* [vpp] */
    int64_t *flying, *held; /* [vpp] micro-batches */
    double boundary, gathered;
} stage_walk;

static void moment(const stage_walk *w, const mf_event *ev, mf_memory_stage *out) {
    double saved = 0, held = 0, host = 0;
    int64_t vpp = w->p->layout.vpp;
    for (int64_t c = 0; c < vpp; c++) {
        saved += (double)w->flying[c] * w->chunk[c].saved;
        host += (double)w->flying[c] * w->chunk[c].host;
        held += (double)w->held[c] * w->chunk[c].held;
    }
    const chunk_bytes *own = &w->chunk[ev->chunk];
    double work = 0, running = 0;
    switch ((mf_event_pass)ev->pass) { /* flying and held do not count the running chunk here */
    case MF_EVENT_F:
        running = own->f_peak - own->f_work;
        work = own->f_work;
        host += own->host;
        break;
    case MF_EVENT_B:
        running = own->b_peak - own->b_work;
        work = own->b_work;
        host += own->host;
        break;
    case MF_EVENT_W:
        held += own->w_peak - own->w_work;
        work = own->w_work;
        break;
    case MF_EVENT_FB: {
        const chunk_bytes *other = &w->chunk[ev->chunk2];
        running = own->f_peak - own->f_work + other->b_peak - other->b_work;
        work = own->f_work + other->b_work;
        host += own->host + other->host;
        break;
    }
    }
    out->kind_B[MF_MEM_ACTIVATIONS] = saved + running;
    out->kind_B[MF_MEM_HELD] = held;
    out->kind_B[MF_MEM_WORKSPACE] = work;
    out->host_B = host;
}

static double sum_of(const mf_memory_stage *s) {
    double sum = 0;
    for (int k = 0; k < MF_MEM_COUNT; k++) {
        sum += s->kind_B[k];
    }
    return sum;
}

/* Before the event: takes the running chunk out of the standing counts. After: what it leaves. */
static void enter(stage_walk *w, const mf_event *ev) {
    if (ev->pass == MF_EVENT_B) {
        w->flying[ev->chunk]--;
    } else if (ev->pass == MF_EVENT_W) {
        w->held[ev->chunk]--;
    } else if (ev->pass == MF_EVENT_FB) {
        w->flying[ev->chunk2]--;
    }
}

static void leave(stage_walk *w, const mf_event *ev) {
    if (ev->pass == MF_EVENT_F || ev->pass == MF_EVENT_FB) {
        w->flying[ev->chunk]++;
    } else if (ev->pass == MF_EVENT_B && w->p->split) {
        w->held[ev->chunk]++;
    }
}

static void standing(const mf_program *p, int64_t stage, mf_memory_stage *s) {
    memset(s, 0, sizeof *s);
    mf_stage_memory params = mf_param_memory(&p->layout, mf_program_stage_params(p, stage));
    s->kind_B[MF_MEM_WEIGHTS] = params.weights_B;
    s->kind_B[MF_MEM_GRADIENTS] = params.gradients_B;
    s->kind_B[MF_MEM_OPTIMIZER] = params.optimizer_B;
    s->kind_B[MF_MEM_CONTEXT] = mf_memory_context_B(&p->cluster, &p->layout);
    double dispatcher = 0, gathered = 0, boundary = 0;
    for (int64_t chunk = 0; chunk < p->layout.vpp; chunk++) {
        int64_t v = mf_layout_vstage(&p->layout, stage, chunk);
        for (int i = p->assignment.first[v]; i < p->assignment.first[v + 1]; i++) {
            const mf_block *b = p->blocks[p->block_of[i]];
            dispatcher = fmax(dispatcher, (double)b->comm_B);
            gathered = fmax(gathered, (double)b->gather_B);
            boundary = fmax(boundary, (double)b->boundary_B);
        }
    }
    s->kind_B[MF_MEM_COMM] = mf_memory_comm_B(&p->cluster, &p->layout) + dispatcher;
    s->kind_B[MF_MEM_GATHERED] = 2.0 * gathered; /* the block that runs and the one prefetched */
    /* Input and output of the running block; with a pipeline, one more of each direction is on its
     * way. A merged pair runs two blocks. */
    double buffers = p->layout.pp > 1 ? 4.0 : 2.0;
    if (p->layout.schedule == MF_SCHED_MERGED) {
        buffers += 2.0;
    }
    s->kind_B[MF_MEM_BOUNDARY] = buffers * boundary;
}

/* Walks a stage; bytes (may be NULL) gets the memory while each event runs. */
static mf_status walk(const mf_program *p, const mf_schedule *s, int64_t stage,
                      mf_memory_stage *peak, double *bytes, mf_err *e) {
    size_t vpp = (size_t)p->layout.vpp;
    stage_walk w = {.p = p, .stage = stage};
    w.chunk = calloc(vpp, sizeof *w.chunk);
    w.flying = calloc(vpp, sizeof *w.flying);
    w.held = calloc(vpp, sizeof *w.held);
    mf_status status = MF_OK;
    if (w.chunk == NULL || w.flying == NULL || w.held == NULL) {
        status = mf_err_set(e, MF_NOMEM, "memory plan: out of memory");
        goto out;
    }
    for (int64_t c = 0; c < p->layout.vpp; c++) {
        w.chunk[c] = chunk_of(p, mf_layout_vstage(&p->layout, stage, c));
    }
    mf_memory_stage now;
    double host_peak = 0;
    standing(p, stage, &now);
    *peak = now;
    for (int64_t i = 0; i < s->count[stage]; i++) {
        const mf_event *ev = &s->events[stage][i];
        enter(&w, ev);
        moment(&w, ev, &now);
        now.peak_B = sum_of(&now);
        host_peak = fmax(host_peak, now.host_B);
        if (bytes != NULL) {
            bytes[i] = now.peak_B;
        }
        if (i == 0 || now.peak_B > peak->peak_B) {
            *peak = now;
            peak->peak_event = i;
        }
        leave(&w, ev);
    }
    mf_stage_memory params = mf_param_memory(&p->layout, mf_program_stage_params(p, stage));
    peak->host_B = host_peak + params.optimizer_host_B;
out:
    free(w.chunk);
    free(w.flying);
    free(w.held);
    return status;
}

mf_status mf_memory_walk(const mf_program *p, const mf_schedule *s, int64_t stage, double *bytes,
                         mf_err *e) {
    mf_memory_stage peak;
    return walk(p, s, stage, &peak, bytes, e);
}

mf_status mf_memory_plan(const mf_program *p, const mf_schedule *s, mf_memory **out, mf_err *e) {
    *out = NULL;
    mf_memory *m = calloc(1, sizeof *m);
    if (m != NULL) {
        m->stage = calloc((size_t)s->stages, sizeof *m->stage);
    }
    if (m == NULL || m->stage == NULL) {
        mf_memory_destroy(m);
        return mf_err_set(e, MF_NOMEM, "memory plan: out of memory");
    }
    m->stages = s->stages;
    m->capacity_B = p->cluster.gpu.memory_B;
    m->usable_B = mf_cluster_usable_B(&p->cluster, p->layout.reserve);
    m->fits = true;
    for (int64_t i = 0; i < s->stages; i++) {
        mf_status status = walk(p, s, i, &m->stage[i], NULL, e);
        if (status != MF_OK) {
            mf_memory_destroy(m);
            return status;
        }
        if (m->stage[i].peak_B > m->peak_B) {
            m->peak_B = m->stage[i].peak_B;
            m->peak_stage = i;
        }
        bool host_fits =
            p->cluster.host_memory_B <= 0 || m->stage[i].host_B <= p->cluster.host_memory_B;
        m->fits = m->fits && m->stage[i].peak_B <= m->usable_B && host_fits;
    }
    *out = m;
    return MF_OK;
}

void mf_memory_destroy(mf_memory *m) {
    if (m == NULL) {
        return;
    }
    free(m->stage);
    free(m);
}
