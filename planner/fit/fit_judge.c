/* fit_judge.c - what one combination of degrees needs at the choices that need least.
 *
 * Which choices those are is not the same everywhere (full recomputation makes one layer's
 * workspace large, ZeRO-3 gathers weights), so a few are tried. Memory needs no more micro-batches
 * than fill the pipeline, and of a block only its sums, which depend on few of a layout's degrees:
 * those are kept in a table.
 */
#include "planner/fit/fit_judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- blocks lowered so far ----------------------------------------------------------------------
 */

/* Everything that the memory of a block depends on; all members have one width, so that bytes can
 * be compared. */
typedef struct block_name {
    int32_t kind, layer_class, parts, split, shared_embedding, shared_head, after_depth,
        before_depth, recompute, offload;
    int32_t tp, cp, mbs, cp_type, precision, zero;
    int32_t ep, etp, dispatcher, expert_zero; /* of layers with experts; else 0 */
} block_name;

typedef struct named_block {
    block_name name;
    mf_block *block; /* NULL: an empty place */
} named_block;

struct mf_fit_judge {
    const mf_problem *p;
    mf_layout layout;   /* that is being lowered */
    named_block *table; /* [places], open addressing */
    size_t places, count;
    /* Of the layout judged last: */
    mf_assignment assignment;
    mf_param_count *stage; /* [stages], of its parameters */
    int64_t stages;        /* 0: unknown */
};

mf_status mf_fit_judge_create(const mf_problem *p, mf_fit_judge **out, mf_err *e) {
    mf_fit_judge *j = calloc(1, sizeof *j);
    *out = j;
    if (j != NULL) {
        j->p = p;
        j->places = 1024;
        j->table = calloc(j->places, sizeof *j->table);
    }
    return j != NULL && j->table != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "fit: out of memory");
}

void mf_fit_judge_destroy(mf_fit_judge *j) {
    if (j == NULL) {
        return;
    }
    for (size_t i = 0; j->table != NULL && i < j->places; i++) {
        mf_block_destroy(j->table[i].block);
    }
    free(j->table);
    free(j->stage);
    free(j);
}

static block_name name_of(const mf_problem *p, const mf_layout *l, const mf_block_key *key) {
    bool layer = key->kind == MF_POS_LAYER || key->kind == MF_POS_MTP;
    bool moe = layer && p->model->layer_classes[key->layer_class].ffn == MF_FFN_MOE;
    return (block_name){
        .kind = (int32_t)key->kind,
        .layer_class = key->layer_class,
        .parts = key->parts,
        .split = key->split,
        .shared_embedding = key->shared_embedding,
        .shared_head = key->shared_head,
        .after_depth = key->after_depth,
        .before_depth = key->before_depth,
        .recompute = key->memory.recompute,
        .offload = key->memory.offload,
        .tp = (int32_t)l->tp,
        .cp = (int32_t)l->cp,
        .mbs = (int32_t)l->mbs,
        .cp_type = (int32_t)l->cp_type,
        .precision = (int32_t)l->precision,
        .zero = l->dp * l->cp > 1 ? l->zero : 0,
        .ep = moe ? (int32_t)l->ep : 0,
        .etp = moe ? (int32_t)l->etp : 0,
        .dispatcher = moe ? (int32_t)l->dispatcher : 0,
        .expert_zero = moe && l->edp > 1 ? l->expert_zero : 0,
    };
}

/* Place of a name, or the empty one where it belongs. */
static named_block *place_of(named_block *table, size_t places, const block_name *name) {
    const unsigned char *bytes = (const unsigned char *)name;
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *name; i++) {
        hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    size_t at = (size_t)(hash % places);
    while (table[at].block != NULL && memcmp(&table[at].name, name, sizeof *name) != 0) {
        at = (at + 1) % places;
    }
    return &table[at];
}

static bool grow(mf_fit_judge *j) {
    size_t places = 2 * j->places;
    named_block *table = calloc(places, sizeof *table);
    if (table == NULL) {
        return false;
    }
    for (size_t i = 0; i < j->places; i++) {
        if (j->table[i].block != NULL) {
            *place_of(table, places, &j->table[i].name) = j->table[i];
        }
    }
    free(j->table);
    j->table = table;
    j->places = places;
    return true;
}

/* The memory plan reads the sums of a block; of its tensors only what a split backward holds. The
 * scratch of CPU ranks is that of their widest op: those keep all. */
static void forget_ops(mf_block *b, bool split, bool cpu) {
    if (cpu) {
        return;
    }
    free(b->ops);
    b->ops = NULL;
    b->nops = b->nforward = 0;
    if (!split) {
        free(b->tensors);
        b->tensors = NULL;
        b->ntensors = 0;
    }
}

static mf_status block_of(void *user, const mf_block_key *key, mf_block **out, mf_err *e) {
    mf_fit_judge *j = user;
    block_name name = name_of(j->p, &j->layout, key);
    if (2 * j->count >= j->places && !grow(j)) {
        return mf_err_set(e, MF_NOMEM, "fit: out of memory");
    }
    named_block *place = place_of(j->table, j->places, &name);
    if (place->block == NULL) {
        mf_status s = mf_block_lower(j->p->model, &j->layout, mf_cost_cluster(j->p->cost), key,
                                     &place->block, e);
        if (s != MF_OK) {
            return s;
        }
        forget_ops(place->block, key->split, mf_cluster_is_cpu(mf_cost_cluster(j->p->cost)));
        place->name = name;
        j->count++;
    }
    *out = place->block;
    return MF_OK;
}

/* --- one combination -------------------------------------------------------------------------- */

mf_status mf_planner_lay_out(const mf_problem *p, mf_layout *l, mf_assignment *out, mf_err *e) {
    mf_status s = mf_assignment_even(p->model, l, out, e);
    if (s == MF_OK && p->express != NULL && !p->express(p->express_user, p, l, out)) {
        return mf_err_set(e, MF_LAYOUT, "another program cannot run it");
    }
    return s;
}

void mf_fit_choose_zero(const mf_problem *p, uint8_t level, mf_layout *l) {
    const bool dense = (p->pinned & MF_PIN(ZERO)) != 0;
    const bool expert = (p->pinned & MF_PIN(EXPERT_ZERO)) != 0;
    const bool equal = p->limits.equal_zero;
    if (!dense) {
        l->zero = equal && expert ? l->expert_zero : level;
    }
    if (!expert) {
        l->expert_zero = equal && dense ? l->zero : level;
    }
}

static mf_status keep_params(mf_fit_judge *j, const mf_program *program, const mf_assignment *a,
                             mf_err *e) {
    const int64_t stages = program->layout.pp;
    mf_param_count *stage = realloc(j->stage, (size_t)stages * sizeof *stage);
    if (stage == NULL) {
        return mf_err_set(e, MF_NOMEM, "fit: out of memory");
    }
    j->stage = stage;
    j->stages = stages;
    j->assignment = *a;
    for (int64_t i = 0; i < stages; i++) {
        stage[i] = mf_program_stage_params(program, i);
    }
    return MF_OK;
}

/* Bytes of the training state of a layout on the stage that has most of it, never above what the
 * layout needs; 0 unless degrees and split are those judged last. */
static double states_B(const mf_fit_judge *j, const mf_layout *l) {
    mf_layout said = *l;
    mf_assignment a;
    double most_B = 0;
    if (mf_planner_lay_out(j->p, &said, &a, NULL) != MF_OK || said.pp != j->stages ||
        said.vpp != j->layout.vpp || a.positions != j->assignment.positions ||
        memcmp(a.first, j->assignment.first,
               sizeof a.first[0] * (size_t)(said.pp * said.vpp + 1)) != 0) {
        return 0;
    }
    for (int64_t i = 0; i < j->stages; i++) {
        const mf_stage_memory s = mf_param_memory(&said, j->stage[i]);
        most_B = fmax(most_B, s.weights_B + s.gradients_B + s.optimizer_B);
    }
    return most_B;
}

/* Peak of one layout with its memory choice everywhere. False when it cannot be laid out. */
static bool judge(mf_fit_judge *j, const mf_layout *l, bool exact, mf_fit_entry *out, mf_err *e,
                  mf_status *status) {
    const mf_problem *p = j->p;
    mf_layout said = *l;
    mf_assignment a;
    mf_program *program = NULL;
    mf_schedule *schedule = NULL;
    mf_memory *memory = NULL;
    mf_status s = mf_planner_lay_out(p, &said, &a, e);
    if (s == MF_LAYOUT) {
        return false;
    }
    /* In-flight counts are complete after a pipeline's fill; groups of PP stay whole. */
    mf_layout few = said;
    int64_t enough = 2 * few.pp * few.vpp;
    if (few.micro_batches > enough) {
        few.micro_batches = enough;
        few.gbs = enough * few.mbs * few.dp;
    }
    if (s == MF_OK) {
        const mf_block_source source = {block_of, j};
        j->layout = few;
        s = mf_program_lower_from(p->model, &few, mf_cost_cluster(p->cost), &a, &source, &program,
                                  e);
    }
    s = s == MF_OK ? keep_params(j, program, &a, e) : s;
    if (s == MF_OK) {
        s = mf_schedule_create(&few, &schedule, e);
    }
    if (s == MF_OK) {
        s = exact ? mf_memory_peak(program, schedule, &memory, e)
                  : mf_memory_judge(program, schedule, &memory, e);
    }
    if (s == MF_OK) {
        const mf_memory_stage *peak = &memory->stage[memory->peak_stage];
        *out = (mf_fit_entry){.layout = said,
                              .fits = memory->fits,
                              .exact = exact,
                              .peak_B = memory->peak_B,
                              .usable_B = memory->usable_B,
                              .headroom_B = memory->usable_B - memory->peak_B,
                              .stage = memory->peak_stage};
        for (int64_t i = 0; i < memory->stages; i++) {
            const double *kind_B = memory->stage[i].kind_B;
            out->host_B = fmax(out->host_B, memory->stage[i].host_B);
            out->fixed_B = fmax(out->fixed_B, kind_B[MF_MEM_WEIGHTS] + kind_B[MF_MEM_GRADIENTS] +
                                                  kind_B[MF_MEM_OPTIMIZER] + kind_B[MF_MEM_COMM]);
        }
        double host_B = mf_cost_cluster(p->cost)->host_memory_B;
        out->host_missing_B = host_B > 0 ? fmax(out->host_B - host_B, 0) : 0;
        for (int k = 0; k < MF_MEM_COUNT; k++) {
            if (peak->kind_B[k] > out->dominant_B) {
                out->dominant = (mf_memory_kind)k;
                out->dominant_B = peak->kind_B[k];
            }
        }
    }
    mf_memory_destroy(memory);
    mf_schedule_destroy(schedule);
    mf_program_destroy(program);
    *status = s;
    return s == MF_OK;
}

/* Choices that need little memory, the usual least first. No other has less training state than
 * the first, which shards all of it. */
static const struct {
    uint8_t zero;
    uint16_t recompute, offload;
} low_memory[] = {
    {3, MF_RECOMPUTE_LAYER, MF_OFFLOAD_INPUT},
    {1, MF_RECOMPUTE_LAYER, MF_OFFLOAD_INPUT},
    {3, MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT | MF_RECOMPUTE_MLA_UP_PROJ | MF_RECOMPUTE_MLP, 0},
    {2, 0, 0},
};

double mf_fit_missing_B(const mf_fit_entry *f) {
    return fmax(-f->headroom_B, 0) + f->host_missing_B;
}

/* Is the first choice, as it was asked for, too large whatever is recomputed? */
static bool is_hopeless(const mf_layout *asked, const mf_fit_entry *first) {
    return first->fixed_B > first->usable_B && first->layout.zero == asked->zero &&
           first->layout.expert_zero == asked->expert_zero;
}

/* Does its training state alone miss more than the best choice so far, or, where it only counts
 * what fits, anything? */
static bool is_worse(const mf_fit_judge *j, const mf_layout *l, bool fits_only,
                     const mf_fit_entry *best) {
    const double allowed_B = best->usable_B + (fits_only ? 0 : mf_fit_missing_B(best));
    return states_B(j, l) > allowed_B + 1; /* a byte: sums are rounded */
}

mf_status mf_fit_judge_least_memory(mf_fit_judge *j, mf_layout l, bool fits_only, mf_fit_entry *out,
                                    bool *laid_out, mf_err *e) {
    const uint32_t pinned = j->p->pinned;
    *laid_out = false;
    for (size_t i = 0; i < sizeof low_memory / sizeof low_memory[0]; i++) {
        mf_fit_entry now;
        mf_status status = MF_OK;
        mf_fit_choose_zero(j->p, low_memory[i].zero, &l);
        if (!(pinned & MF_PIN(RECOMPUTE))) {
            l.memory.recompute = low_memory[i].recompute;
        }
        if (!(pinned & MF_PIN(OFFLOAD))) {
            l.memory.offload = low_memory[i].offload;
        }
        if (*laid_out && is_worse(j, &l, fits_only, out)) {
            continue;
        }
        if (judge(j, &l, false, &now, e, &status) &&
            (!*laid_out || (now.fits && !out->fits) ||
             (now.fits == out->fits && mf_fit_missing_B(&now) < mf_fit_missing_B(out)) ||
             (now.fits && out->fits && now.peak_B < out->peak_B))) {
            *out = now;
            *laid_out = true;
        }
        if (status != MF_OK) {
            return status;
        }
        if (*laid_out && (out->fits || (fits_only && i == 0 && is_hopeless(&l, out)))) {
            break; /* the other choices would give the same answer */
        }
    }
    return MF_OK;
}

mf_status mf_fit_judge_exact(mf_fit_judge *j, mf_fit_entry *x, mf_err *e) {
    const mf_fit_entry before = *x;
    mf_status status = MF_OK;
    judge(j, &before.layout, true, x, e, &status);
    x->timed = before.timed;
    x->step_time_s = before.step_time_s;
    x->timed_layout = before.timed_layout;
    x->timed_peak_B = before.timed_peak_B;
    x->searched = before.searched;
    x->by_layer = before.by_layer;
    return status;
}

mf_status mf_fit_judge_fits(mf_fit_judge *j, const mf_layout *l, bool *fits, double *peak_B,
                            mf_err *e) {
    mf_fit_entry x = {0};
    mf_status status = MF_OK;
    *fits = judge(j, l, false, &x, e, &status) && x.fits && x.host_missing_B <= 0;
    *peak_B = x.peak_B;
    return status;
}
