/* search_report.c - what a search did and found. */
#include "report/search/search_report.h"

#include "report/step/report.h"
#include "report/text/screen.h"
#include "report/text/show.h"

#include <math.h>
#include <string.h>

void mf_search_report_print_runs_on(FILE *out, const mf_search_stats *s) {
    if (s->runs_on[0] != '\0' && !(s->unlimited_s < s->limited_s)) {
        fprintf(out, "runs on     %s; no faster plan was found without that limit\n", s->runs_on);
    } else if (s->runs_on[0] != '\0') {
        fprintf(out, "runs on     %s, which costs %s: without the limit the search finds %s\n",
                s->runs_on, mf_show_percent(s->limited_s / s->unlimited_s - 1).s,
                mf_show_time(s->unlimited_s).s);
    }
}

void mf_search_report_print(FILE *out, const mf_search_stats *s) {
    fprintf(out,
            "search      %s layouts, %s of them priced one by one, %s integer programs, %s steps "
            "simulated",
            mf_show_i64(s->space).s, mf_show_i64(s->priced).s, mf_show_i64(s->milp_solved).s,
            mf_show_i64(s->simulated).s);
    if (s->milp_failed > 0) {
        fprintf(out, " (%s given up)", mf_show_i64(s->milp_failed).s);
    }
    if (s->lower_bound_s > 0) {
        fprintf(out,
                "\nproof       no plan of this space takes less than %s under this cost model: gap "
                "%s%s\n",
                mf_show_time(s->lower_bound_s).s, mf_show_percent(s->gap).s,
                s->interrupted ? ", interrupted" : "");
    } else {
        fprintf(out, "\nproof       none: the search ended before it had bounded every layout%s\n",
                s->interrupted ? ", interrupted" : "");
    }
    if (s->ended[0] != '\0') {
        fputs("ended       ", out);
        mf_show_wrap(out, s->ended, 12, 12, 99);
    }
    if (s->unlisted_s > 0) {
        fprintf(out, "runners-up  no plan of degrees that are not listed takes less than %s\n",
                mf_show_time(s->unlisted_s).s);
    }
    mf_search_report_print_runs_on(out, s);
    if (s->left_out[0] != '\0') {
        fputs("left out    ", out);
        mf_show_wrap(out, s->left_out, 12, 12, 99);
    }
}

void mf_search_report_json_runs_on(mf_json_writer *w, const mf_search_stats *s) {
    if (s->runs_on[0] != '\0') {
        mf_json_write_string(w, "runs_on", s->runs_on);
        mf_json_write_f64(w, "unlimited_step_time_s", s->unlimited_s);
    }
}

/* --- what differs between plans of the same degrees ------------------------------------------- */

enum { CHOICE = 480 };

static void say_memory(const mf_plan *p, char *out) {
    char one[448];
    size_t used = 0;
    snprintf(out, CHOICE, "nothing recomputed or offloaded");
    for (int at = 0;
         used < CHOICE && mf_report_memory_choice(&p->assignment, &at, one, sizeof one);) {
        used += (size_t)snprintf(out + used, CHOICE - used, "%s%s", used > 0 ? ", " : "", one);
    }
}

static void say_cp(const mf_plan *p, char *out) {
    const mf_layout *l = &p->layout;
    snprintf(out, CHOICE, "%s CP", l->cp > 1 ? mf_cp_type_text(l->cp_type) : "no");
}

static void say_overlap(const mf_plan *p, char *out) {
    char text[64];
    mf_overlap_format(p->layout.overlap, text, sizeof text);
    snprintf(out, CHOICE, "overlap %s", text);
}

static void say_graph(const mf_plan *p, char *out) {
    snprintf(out, CHOICE, "%s CUDA graphs",
             p->layout.graph == MF_GRAPH_NONE ? "no" : mf_graph_text(p->layout.graph));
}

static void say_gradients(const mf_plan *p, char *out) {
    snprintf(out, CHOICE, "%s gradients", p->layout.grads_bf16 ? "BF16" : "FP32");
}

static void say_moments(const mf_plan *p, char *out) {
    snprintf(out, CHOICE, "%s moments", p->layout.moments_bf16 ? "BF16" : "FP32");
}

static void say_host_states(const mf_plan *p, char *out) {
    snprintf(out, CHOICE, "%.0f %% of the optimizer on the host",
             100 * p->layout.offload_optimizer);
}

static void say_headroom(const mf_plan *p, char *out) {
    snprintf(out, CHOICE, "token headroom %g", mf_layout_token_headroom(&p->layout));
}

static void say_fp8(const mf_plan *p, char *out) {
    const mf_layout *l = &p->layout;
    snprintf(out, CHOICE, "attention in %s, %sFP8 primary weights",
             l->fp8_attention ? "FP8" : "BF16", l->fp8_primary_weights ? "" : "no ");
}

/* Choices that have no column, each in words that stand alone. */
static void (*const choices[])(const mf_plan *p, char *out) = {
    say_memory,  say_cp,          say_overlap,  say_graph, say_gradients,
    say_moments, say_host_states, say_headroom, say_fp8};

static bool same_split(const mf_assignment *a, const mf_assignment *b) {
    return a->vstages == b->vstages &&
           memcmp(a->first, b->first, (size_t)(a->vstages + 1) * sizeof a->first[0]) == 0;
}

/* Do the columns of both say the same? */
static bool look_alike(const mf_layout *a, const mf_layout *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->vpp == b->vpp &&
           a->ep == b->ep && a->etp == b->etp && a->mbs == b->mbs && a->zero == b->zero &&
           a->expert_zero == b->expert_zero && a->schedule == b->schedule &&
           a->dispatcher == b->dispatcher && a->precision == b->precision;
}

/* The first plan whose row looks like that of plan `at`; at: none does. */
static int alike_above(const mf_search_result *r, int at) {
    int as = 0;
    while (as < at && !look_alike(&r->plan[at].layout, &r->plan[as].layout)) {
        as++;
    }
    return as;
}

/* What a plan does otherwise than one whose row looks the same. */
static void say_difference(const mf_plan *p, const mf_plan *other, char *out, size_t size) {
    char one[CHOICE], theirs[CHOICE];
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof choices / sizeof choices[0] && used < size; i++) {
        choices[i](p, one);
        choices[i](other, theirs);
        if (strcmp(one, theirs) != 0) {
            used += (size_t)snprintf(out + used, size - used, "%s%s", used > 0 ? ", " : "", one);
        }
    }
    if (used < size && !same_split(&p->assignment, &other->assignment)) {
        snprintf(out + used, size - used, "%slayers split otherwise", used > 0 ? ", " : "");
    }
}

/* Below the table, of rows that look like one above: what differs. */
static void print_differences(FILE *out, const mf_search_result *r) {
    const char *label = "alike";
    for (int i = 1; i < r->count; i++) {
        const int as = alike_above(r, i);
        char text[2 * CHOICE + 64], what[2 * CHOICE];
        if (as == i) {
            continue;
        }
        say_difference(&r->plan[i], &r->plan[as], what, sizeof what);
        snprintf(text, sizeof text, "plan %d is plan %d, but %s", i + 1, as + 1, what);
        fprintf(out, "%-12s", label);
        mf_show_wrap(out, text, 12, 12, 99);
        label = "";
    }
}

/* Rows of all columns, moved together as far as they go, are so wide. */
enum { NARROW = 86 };

/* --- the table -------------------------------------------------------------------------------- */

/* A plan's row; mfu, others: with these columns. */
static void print_plan(FILE *out, const mf_plan *p, int number, bool mfu, bool others) {
    const mf_plan_prediction *t = &p->prediction;
    const mf_layout *l = &p->layout;
    char share[40] = "";
    if (mfu) {
        snprintf(share, sizeof share, "  %6s", mf_show_percent(t->mfu).s);
    }
    fprintf(out,
            "  %2d  %9s  %9s  %9s%s  %3lld %2lld %2lld %3lld %2lld %3lld %4lld %3lld   %d/%d  ",
            number, mf_show_time(t->step_time_s).s, mf_show_bytes(t->peak_memory_B).s,
            mf_show_bytes(t->usable_B - t->peak_memory_B).s, share, (long long)l->tp,
            (long long)l->cp, (long long)l->pp, (long long)l->vpp, (long long)l->ep,
            (long long)l->etp, (long long)l->dp, (long long)l->mbs, l->zero, l->expert_zero);
    if (others) {
        fprintf(out, "%-11s  %-10s  %s\n", mf_schedule_text(l->schedule),
                mf_dispatcher_text(l->dispatcher), mf_precision_text(l->precision));
    } else {
        fprintf(out, "%s\n", mf_schedule_text(l->schedule));
    }
}

void mf_search_report_ranking(FILE *out, const mf_search_result *r) {
    const bool mfu = mf_screen_columns(NARROW) >= NARROW; /* else rows would take two lines */
    bool differ = false;                                  /* in what stands in the last columns */
    for (int i = 1; i < r->count; i++) {
        const mf_layout *first = &r->plan[0].layout, *l = &r->plan[i].layout;
        differ |= l->dispatcher != first->dispatcher || l->precision != first->precision;
    }
    fputs("\nplans", out);
    if (!differ && r->count > 0) {
        fprintf(out, " (%s dispatcher, %s)", mf_dispatcher_text(r->plan[0].layout.dispatcher),
                mf_precision_text(r->plan[0].layout.precision));
    }
    fprintf(out,
            "\n      step time     memory   headroom%s   TP CP PP VPP EP ETP   DP mbs  ZeRO "
            " schedule%s\n",
            mfu ? "     MFU" : "", differ ? "     dispatcher  precision" : "");
    for (int i = 0; i < r->count; i++) {
        print_plan(out, &r->plan[i], i + 1, mfu, differ);
    }
    print_differences(out, r);
}

void mf_search_report_json_end(mf_json_writer *w, const mf_search_stats *s) {
    mf_json_write_string(w, "ended_by",
                         s->end != MF_SEARCH_END_NONE ? mf_search_end_text(s->end) : NULL);
    mf_json_write_string(w, "ended", s->ended);
}

void mf_search_report_json(mf_json_writer *w, const mf_search_stats *s, bool found) {
    mf_json_write_object(w, "search", false);
    mf_json_write_i64(w, "space", s->space);
    mf_json_write_i64(w, "priced", s->priced);
    mf_json_write_i64(w, "pruned", s->pruned);
    mf_json_write_i64(w, "milp_solved", s->milp_solved);
    mf_json_write_i64(w, "milp_failed", s->milp_failed);
    mf_json_write_i64(w, "simulated", s->simulated);
    mf_json_write_f64(w, "lower_bound_s", s->lower_bound_s);
    mf_json_write_f64(w, "gap", found ? s->gap : (double)NAN); /* null */
    mf_json_write_bool(w, "interrupted", s->interrupted);
    mf_search_report_json_end(w, s);
    mf_json_write_f64(w, "unlisted_s", s->unlisted_s > 0 ? s->unlisted_s : (double)NAN);
    mf_search_report_json_runs_on(w, s);
    mf_json_write_string(w, "left_out", s->left_out);
    mf_json_write_f64(w, "pricing_s", s->pricing_s);
    mf_json_write_f64(w, "wall_s", s->wall_s);
    mf_json_write_end(w);
}
