/* unsaid.c - defaults of other programs, and how far they leave a step open. */
#include "job/load/unsaid.h"

#include <stdio.h>
#include <string.h>

/* Options that move a step and that reports of runs leave out. `open`: whether the question arises
 * for this job. */
static const struct {
    mf_given_option id;
    bool of_experts;
} asked[] = {
    {MF_GIVEN_CUDA_GRAPH, false}, {MF_GIVEN_DISPATCHER, true},   {MF_GIVEN_RECOMPUTE, false},
    {MF_GIVEN_OVERLAP, true},     {MF_GIVEN_MICRO_BATCH, false}, {MF_GIVEN_VPP, false},
    {MF_GIVEN_CP_TYPE, false},
};
const char mf_unsaid_words[] = " cuda-graph dispatcher recompute overlap micro-batch vpp cp-type";
enum { ASKED = sizeof asked / sizeof asked[0], GRAPH = 0, DISPATCHER = 1 };

static bool arises(const mf_job *j, int k) {
    const mf_layout *l = &j->plan.layout;
    bool ring_leaves = l->cp > 2 && l->cp * l->tp > (int64_t)j->cluster.domain_gpus_used;
    return (!asked[k].of_experts || j->model.experts > 0) &&
           (asked[k].id != MF_GIVEN_VPP || l->pp > 1) &&
           (asked[k].id != MF_GIVEN_CP_TYPE || ring_leaves);
}

static mf_status read_unsure(const char *text, unsigned *out, mf_err *e) {
    for (const char *p = text; *p != '\0';) {
        size_t length = strcspn(p, ",");
        int k = 0;
        while (k < ASKED && (strlen(mf_given_option_name(asked[k].id)) != length ||
                             strncmp(mf_given_option_name(asked[k].id), p, length) != 0)) {
            k++;
        }
        if (k == ASKED) {
            return mf_err_set(e, MF_USAGE, "--unsure: unknown option \"%.*s\": expected one of%s",
                              (int)(length < 40 ? length : 40), p, mf_unsaid_words);
        }
        *out |= 1u << k;
        p += length + (p[length] == ',');
    }
    return MF_OK;
}

/* Place of this job in the lists of a profile. */
static int graph_kind(const mf_job *j) {
    return j->model.experts > 0;
}

static bool can_capture(mf_graph_mode graph, uint16_t recompute) {
    return graph != MF_GRAPH_PARTIAL || (recompute & MF_RECOMPUTE_LAYER) == 0;
}

mf_graph_mode mf_unsaid_graph(const mf_profile_defaults *u, const mf_model *m, uint16_t recompute,
                              mf_graph_mode otherwise) {
    const int kind = m->experts > 0;
    for (int i = 0; i < u->graphs[kind]; i++) {
        if (can_capture(u->graph[kind][i], recompute)) {
            return u->graph[kind][i];
        }
    }
    return otherwise;
}

void mf_unsaid_hold(mf_job *j) {
    mf_layout *l = &j->plan.layout;
    if (!j->from_file && !mf_request_gives(&j->asked, MF_GIVEN_CUDA_GRAPH)) {
        l->graph = mf_unsaid_graph(&j->software.unsaid, &j->model, l->memory.recompute, l->graph);
    }
}

static int dispatcher_kind(const mf_job *j) {
    const mf_layout *l = &j->plan.layout;
    const int64_t ranks = l->ep * l->etp;
    return (ranks > j->cluster.gpus_per_node) + (ranks > j->cluster.domain_gpus_used);
}

mf_status mf_unsaid_fill(mf_job *j, mf_err *e) {
    const mf_profile_defaults *u = &j->software.unsaid;
    mf_layout *l = &j->plan.layout;
    unsigned open = 0, unsure = 0;
    j->unsaid = 0;
    mf_status s = j->asked.unsure != NULL ? read_unsure(j->asked.unsure, &unsure, e) : MF_OK;
    if (j->from_file || s != MF_OK) { /* a plan says everything */
        j->unsaid = unsure;
        return s;
    }
    for (int k = 0; k < ASKED; k++) {
        open |= arises(j, k) && !mf_request_gives(&j->asked, asked[k].id) ? 1u << k : 0;
    }
    mf_unsaid_hold(j);
    if ((open & 1u << DISPATCHER) && u->dispatchers[dispatcher_kind(j)] > 0) {
        l->dispatcher = u->dispatcher[dispatcher_kind(j)][0];
    }
    bool others = u->band[graph_kind(j)] > 0;
    j->open = others ? open : 0;
    j->unsaid = others ? open | unsure : unsure;
    return MF_OK;
}

int mf_unsaid_others(const mf_job *j, mf_layout *out) {
    const mf_profile_defaults *u = &j->software.unsaid;
    const int g = graph_kind(j), d = dispatcher_kind(j);
    int graphs = j->open & 1u << GRAPH ? u->graphs[g] : 0;
    int dispatchers = j->open & 1u << DISPATCHER ? u->dispatchers[d] : 0, n = 0;
    for (int i = 0; i < (graphs > 0 ? graphs : 1); i++) {
        for (int k = 0; k < (dispatchers > 0 ? dispatchers : 1); k++) {
            mf_layout l = j->plan.layout;
            l.graph = graphs > 0 ? u->graph[g][i] : l.graph;
            l.dispatcher = dispatchers > 0 ? u->dispatcher[d][k] : l.dispatcher;
            bool itself =
                l.graph == j->plan.layout.graph && l.dispatcher == j->plan.layout.dispatcher;
            if (!itself && can_capture(l.graph, l.memory.recompute) &&
                mf_layout_resolve(&l, &j->model, NULL) == MF_OK) {
                out[n++] = l;
            }
        }
    }
    return n;
}

double mf_unsaid_widening(const mf_job *j) {
    enum { MOST = 2 }; /* more of them do not add up: they go both ways */
    int unsaid = 0;
    for (unsigned bits = j->unsaid; bits != 0; bits &= bits - 1) {
        unsaid++;
    }
    return j->software.unsaid.band[graph_kind(j)] * (unsaid > MOST ? MOST : unsaid);
}

void mf_unsaid_format(unsigned unsaid, char *out, size_t size) {
    size_t used = 0;
    out[0] = '\0';
    for (int k = 0; k < ASKED; k++) {
        if (unsaid & 1u << k) {
            int n = snprintf(out + used, size - used, "%s%s", used > 0 ? ", " : "",
                             mf_given_option_name(asked[k].id));
            used += n > 0 && (size_t)n < size - used ? (size_t)n : 0;
        }
    }
}
