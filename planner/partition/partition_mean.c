/* partition_mean.c - the bound by means of paths (mean_bound.h) from a partition's own figures. */
#include "planner/bound/family_bound.h"
#include "planner/bound/mean_bound.h"
#include "planner/bound/stage_bound.h"
#include "planner/partition/class_bounds.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A mean that is evaluated. */
typedef struct means {
    const mf_partition *in;
    bool by_kind; /* layers of every class count, each class by itself; else main layers alone */
    mf_mean_kind kind[MF_MODEL_MAX_CLASSES];
    mf_mean_parts parts;
    double *part_s; /* [classes][MF_CATALOGUE_MAX][MF_ORDER_PARTS] in these parts */
} means;

static mf_status find_parts(means *m, mf_err *e) {
    const mf_partition *in = m->in;
    const size_t choices = (size_t)in->classes * MF_CATALOGUE_MAX;
    m->part_s = malloc(choices * MF_ORDER_PARTS * sizeof *m->part_s);
    for (int i = 0; m->part_s && i < in->classes; i++) {
        double *to = m->part_s + (size_t)i * MF_CATALOGUE_MAX * MF_ORDER_PARTS;
        for (int k = 0; k < in->class[i].choices; k++, to += MF_ORDER_PARTS) {
            for (int p = 0; p < m->parts.count; p++) {
                to[p] = mf_partition_part_s(in, &in->class[i], k, m -> parts.part[p], false);
            }
        }
    }
    return m->part_s ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
}

/* Seconds that a layer of a class with a choice adds to the mean on virtual stage v. */
static double visit_s(const means *m, int v, int class, int choice) {
    const size_t at = (size_t) class * MF_CATALOGUE_MAX + (size_t)choice;
    return mf_mean_visit_s(&m->parts, m->part_s + at * MF_ORDER_PARTS, v);
}

/* Are layers of the slot among those that count by stage? */
static bool counts(const means *m, const mf_partition_slot *s) {
    return s->main || (m->by_kind && mf_position_kind_of(m->in->model, s->first) == MF_POS_LAYER);
}

/* What positions other than layers that count add at least, each where it counts least. */
static double others_s(const means *m) {
    const mf_partition *in = m->in;
    double sum_s = 0.0;
    for (int s = 0; s < in->slots; s++) {
        double least_s = HUGE_VAL;
        const bool other = !counts(m, &in->slot[s]);
        for (int v = in->slot[s].v_lo; other && v <= in->slot[s].v_hi; v++) {
            int class = in->slot[s].class_of[in->variant[v]];
            for (int k = 0; k < in->class[class].choices; k++) {
                least_s = mf_smaller(least_s, visit_s(m, v, class, k));
            }
        }
        sum_s += other ? in->slot[s].count * least_s : 0.0;
    }
    return sum_s;
}

/* mf_mean_layers.points */
static int points_on(const void *self, int v, int kind, mf_time_memory_point *point,
                     double *held_B) {
    const means *m = self;
    const mf_partition *in = m->in;
    bool seen[MF_CLASS_BOUNDS_MAX] = {false};
    int points = 0;
    *held_B = HUGE_VAL;
    for (int s = 0; s < in->slots; s++) {
        int class = in->slot[s].class_of[in->variant[v]];
        if (!counts(m, &in->slot[s]) || v < in->slot[s].v_lo || v > in->slot[s].v_hi ||
            seen[class] || (m->by_kind && in->class[class].key.layer_class != kind)) {
            continue;
        }
        seen[class] = true;
        for (int k = 0; k < in->class[class].choices; k++) {
            const mf_block_cost *q = &in->class[class].choice[k].cost;
            point[points++] = (mf_time_memory_point){q->saved_B, visit_s(m, v, class, k)};
            *held_B = mf_smaller(*held_B, q->held_B);
        }
    }
    return points;
}

/* Bytes of each stage for layers: embedding and head stand on the first and the last. */
static void find_free(const means *m, double main_B, double comm_B, double *free_B) {
    const mf_partition *in = m->in;
    for (int p = 0; p < in->stages; p++) {
        const double more_B = mf_partition_tables_B(in, p) - comm_B; /* than for a main layer */
        free_B[p] = main_B - mf_larger(more_B, 0.0) - mf_partition_tables_comm_B(in, p);
    }
    for (int s = 0; s < in->slots; s++) {
        const int v = in->slot[s].v_lo;
        if (!counts(m, &in->slot[s]) && v == in->slot[s].v_hi) {
            free_B[mf_layout_stage_of(&in->layout, v)] -=
                in->slot[s].count * mf_partition_class_at(in, v, s)->persistent_B;
        }
    }
}

/* Layers that count, by class. Classes are told apart where the model has several of some weight:
 * a few dense layers in front of others are no reason. Returns their number. */
static int find_kinds(means *m) {
    const mf_model *model = m->in->model;
    int kinds = 0, largest = 0;
    memset(m->kind, 0, sizeof m->kind);
    for (int64_t i = 0; i < model->layers; i++) {
        const int count = ++m->kind[model->layer_class[i]].count;
        largest = count > largest ? count : largest;
    }
    for (int c = 0; c < m->in->classes; c++) {
        const mf_partition_class *class = &m->in->class[c];
        if (class->key.kind == MF_POS_LAYER) {
            m->kind[class->key.layer_class].layer_B = class->persistent_B;
        }
    }
    for (int i = 0; i < model->classes; i++) {
        kinds += m->kind[i].count > 0;
    }
    m->by_kind =
        kinds > 1 && (double)(model->layers - largest) >= MF_KINDS_SHARE * (double)model->layers;
    return m->by_kind ? (int)model->layers : mf_family_bound_layers(model);
}

mf_status mf_partition_mean_s(const mf_partition *in, const mf_path_set *c, double *bound_s,
                              mf_err *e) {
    means m = {.in = in, .parts = mf_mean_parts_of(c)};
    mf_class_bounds bounds;
    double free_B[MF_MEAN_STAGES];
    *bound_s = 0.0;
    if (in->classes > MF_CLASS_BOUNDS_MAX || in->stages > MF_MEAN_STAGES ||
        in->lost > c->mean.lost) {
        return MF_OK;
    }
    mf_status status = find_parts(&m, e);
    if (status == MF_OK) {
        const int layers = find_kinds(&m);
        mf_class_bounds_make(in, m.by_kind, &bounds);
        mf_mean_layers x = {.l = &in->layout,
                            .order = &in->order,
                            .layers = layers,
                            .positions = in->positions,
                            .layer_B = bounds.main.persistent_B,
                            .free_B = free_B,
                            .priced = true,
                            .kinds = m.by_kind ? in->model->classes : 1,
                            .kind = m.kind,
                            .points = points_on,
                            .self = &m};
        mf_family_bound_run(in->model, &x.first, &x.last);
        if (m.by_kind) {
            x.first = 1;
            x.last = (int)in->model->layers;
        }
        find_free(&m, mf_main_free_B(&bounds), bounds.main.comm_B, free_B);
        double sum_s = others_s(&m) + mf_partition_path_fixed_s(in, &c->mean);
        sum_s += mf_mean_layers_s(&x, in->effort_ns);
        *in->effort_ns += MF_MEAN_NS;
        *bound_s = sum_s > 0.0 ? sum_s * MF_BOUND_SAFETY : 0.0;
    }
    free(m.part_s);
    return status;
}
