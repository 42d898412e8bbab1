/* choose_memory.c - tries a target's memory choices for all layers in place of choices by layer. */
#include "launch/target/choose_memory.h"

#include <math.h>
#include <string.h>

/* Modules that a target knows, beside whole layers. */
#define MODULES                                                                                    \
    (MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT | MF_RECOMPUTE_MLA_UP_PROJ | MF_RECOMPUTE_CORE_ATTN |    \
     MF_RECOMPUTE_SHARED_EXPERT | MF_RECOMPUTE_MOE | MF_RECOMPUTE_MLP)
enum { MOST_FIT = 256, MOST_COPIES = 1 + 2 * 17 /* bits of a mask, and all of them */ };

typedef struct chooser {
    mf_target target;
    const mf_problem *p;
    const mf_plan *plan;
    mf_common_choice fit[MOST_FIT]; /* sets of modules, each with none smaller that fits */
    int fits;
    double alone_s[1 + MODULES]; /* of sets that copy nothing, fitting or not; 0: not played */
    mf_common_choice best;
    double best_s; /* HUGE_VAL: none fits so far */
} chooser;

/* The plan on its way to the target, and whether a choice for all layers changed it. */
typedef struct walk {
    const mf_problem *p;
    mf_layout layout; /* before the step */
    mf_assignment assignment;
    bool replaced;
} walk;

static mf_status predict(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                         mf_plan_prediction *out, mf_err *e) {
    mf_plan plan;
    mf_status s = mf_planner_predict(p, l, a, &plan, NULL, e);
    if (s == MF_OK) {
        *out = plan.prediction;
        out->stage = NULL;
        mf_plan_clear(&plan);
    }
    return s;
}

/* A step that changes neither time nor memory is none: layers say what they have not. */
static mf_status note_memory(void *user, const mf_plan *p, const mf_concession *c, mf_err *e) {
    walk *x = user;
    mf_status s = MF_OK;
    if (strcmp(c->what, MF_CONCESSION_MEMORY) == 0) {
        mf_plan_prediction before, after = {0};
        s = predict(x->p, &x->layout, &x->assignment, &before, e);
        s = s == MF_OK ? predict(x->p, &p->layout, &p->assignment, &after, e) : s;
        x->replaced = x->replaced || (s == MF_OK && (before.step_time_s != after.step_time_s ||
                                                     before.peak_memory_B != after.peak_memory_B));
    }
    x->layout = p->layout;
    x->assignment = p->assignment;
    return s;
}

/* Plays the plan as the target runs it with this choice, and keeps what is fastest. */
static mf_status try_choice(chooser *x, const mf_common_choice *c, bool *fits, mf_err *e) {
    mf_plan said;
    mf_plan_prediction played;
    *fits = false;
    mf_plan_init(&said);
    said.layout = x->plan->layout;
    said.assignment = x->plan->assignment;
    if (mf_target_concede_to(x->target, x->p->model, &said, c, NULL, NULL, NULL) != MF_OK) {
        return MF_OK; /* nothing that these degrees can be run with */
    }
    mf_status s = predict(x->p, &said.layout, &said.assignment, &played, e);
    if (s == MF_OK && c->offload == 0 && c->recompute <= MODULES) {
        x->alone_s[c->recompute] = played.step_time_s;
    }
    *fits = s == MF_OK && played.fits;
    if (*fits && played.step_time_s < x->best_s) {
        x->best = *c;
        x->best_s = played.step_time_s;
    }
    return s;
}

/* As many layers as in the plan offload these modules, or all do. */
static int add_copies(const mf_assignment *a, uint16_t modules, mf_common_choice *out) {
    int offload = 0;
    for (int i = 0; i < a->positions; i++) {
        offload += (a->memory[i].offload & modules) != 0;
    }
    out[0] = (mf_common_choice){.offload = modules,
                                .share = fmin((double)(offload + 1) / a->positions, 1)};
    out[1] = (mf_common_choice){.offload = modules, .share = 1};
    return 2;
}

/* How the layers may offload: not at all, what any layer of the plan does, or one module of that.
 * Returns how many ways. */
static int list_copies(const mf_assignment *a, mf_common_choice out[MOST_COPIES]) {
    uint16_t modules = 0;
    int count = 1;
    for (int i = 0; i < a->positions; i++) {
        modules |= a->memory[i].offload;
    }
    out[0] = (mf_common_choice){.share = 1};
    for (unsigned one = 1; one <= modules; one <<= 1) {
        count += (modules & one) && one != modules ? add_copies(a, (uint16_t)one, out + count) : 0;
    }
    return modules != 0 ? count + add_copies(a, modules, out + count) : count;
}

/* Modules of which some layer has any. */
static uint16_t modules_of(const mf_model *m) {
    uint16_t known = 0;
    for (int i = 0; i < m->classes; i++) {
        known |= mf_target_recomputed(m, &m->layer_classes[i], MODULES);
    }
    return known;
}

static int count_bits(unsigned mask) {
    int bits = 0;
    for (; mask != 0; mask &= mask - 1) {
        bits++;
    }
    return bits;
}

/* What recomputes and copies as much as a choice that fits, and more, is slower; so is what would
 * be without its copies. */
static bool is_slower(const chooser *x, const mf_common_choice *c) {
    if (c->offload != 0 && x->alone_s[c->recompute] >= x->best_s) {
        return true;
    }
    for (int i = 0; i < x->fits; i++) {
        const mf_common_choice *f = &x->fit[i];
        if ((c->recompute & f->recompute) == f->recompute &&
            (c->offload & f->offload) == f->offload && (f->offload == 0 || c->share >= f->share)) {
            return true;
        }
    }
    return false;
}

/* Sets of modules, small ones first. */
static mf_status try_modules(chooser *x, mf_common_choice c, mf_err *e) {
    const uint16_t known = modules_of(x->p->model);
    mf_status s = MF_OK;
    for (int size = 0; size <= count_bits(known) && s == MF_OK; size++) {
        for (unsigned mask = 0; mask <= known && s == MF_OK; mask++) {
            bool fits;
            c.recompute = (uint16_t)mask;
            if ((mask & ~(unsigned)known) != 0 || count_bits(mask) != size || is_slower(x, &c)) {
                continue;
            }
            s = try_choice(x, &c, &fits, e);
            if (s == MF_OK && fits && x->fits < MOST_FIT) {
                x->fit[x->fits++] = c;
            }
        }
    }
    return s;
}

/* Whole layers, as few as fit, of the virtual stages that the target runs. */
static mf_status try_layers(chooser *x, const mf_assignment *a, mf_common_choice c, mf_err *e) {
    int most = 0;
    bool fits = false;
    mf_status s = MF_OK;
    for (int v = 0; v < a->vstages; v++) {
        int held = 0; /* layers: embedding and head have no choice */
        for (int i = a->first[v]; i < a->first[v + 1]; i++) {
            held += mf_position_class(x->p->model, i) != NULL;
        }
        most = held > most ? held : most;
    }
    c.recompute = MF_RECOMPUTE_LAYER;
    for (int first = 1; first <= most && s == MF_OK && !fits; first++) {
        c.first = first < most ? first : 0; /* 0: all */
        s = try_choice(x, &c, &fits, e);
    }
    return s;
}

/* Is the plan without a choice of ours in its place one that fits, and that the user chose for all
 * layers alike? Then it stays, as near as the target can say it. */
static mf_status stays(const mf_problem *p, const mf_plan *plan, const mf_plan *said, bool *out,
                       mf_err *e) {
    mf_plan_prediction played = {.fits = false};
    mf_status s = MF_OK;
    *out = mf_target_chose_alike(p->model, &plan->assignment);
    if (*out) {
        s = predict(p, &said->layout, &said->assignment, &played, e);
        *out = played.fits;
    }
    return s;
}

mf_status mf_target_choose_memory(mf_target t, const mf_problem *p, const mf_plan *plan,
                                  mf_common_choice *out, bool *found, mf_err *e) {
    chooser x = {.target = t, .p = p, .plan = plan, .best_s = HUGE_VAL};
    walk to = {.p = p, .layout = plan->layout, .assignment = plan->assignment};
    mf_common_choice copies[MOST_COPIES];
    mf_plan said;
    *found = false;
    mf_plan_init(&said);
    said.layout = plan->layout;
    said.assignment = plan->assignment;
    mf_status s = mf_target_concede(t, p->model, &said, note_memory, &to, e);
    bool kept = false;
    s = s == MF_OK && to.replaced ? stays(p, plan, &said, &kept, e) : s;
    const int ways = list_copies(&plan->assignment, copies);
    for (int i = 0; i < ways && s == MF_OK && to.replaced && !kept; i++) {
        s = try_modules(&x, copies[i], e);
        s = s == MF_OK ? try_layers(&x, &said.assignment, copies[i], e) : s;
    }
    *found = s == MF_OK && x.best_s < HUGE_VAL;
    *out = x.best;
    return s;
}
