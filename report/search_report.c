/* search_report.c - what a search did and found. */
#include "report/search_report.h"

#include "report/text/show.h"

#include <math.h>

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
    if (s->runs_on[0] != '\0') {
        fprintf(out, "runs on     %s, which costs %s: without the limit the search finds %s\n",
                s->runs_on, mf_show_percent(s->limited_s / s->unlimited_s - 1).s,
                mf_show_time(s->unlimited_s).s);
    }
    if (s->left_out[0] != '\0') {
        fputs("left out    ", out);
        mf_show_wrap(out, s->left_out, 12, 12, 99);
    }
}

void mf_search_report_ranking(FILE *out, const mf_search_result *r) {
    bool differ = false; /* in what stands in the last columns */
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
            "\n      step time     memory   headroom     MFU   TP CP PP VPP EP ETP   DP mbs  ZeRO "
            " schedule%s\n",
            differ ? "     dispatcher  precision" : "");
    for (int i = 0; i < r->count; i++) {
        const mf_plan *p = &r->plan[i];
        const mf_layout *l = &p->layout;
        fprintf(out,
                "  %2d  %9s  %9s  %9s  %6s  %3lld %2lld %2lld %3lld %2lld %3lld %4lld %3lld   "
                "%d/%d  ",
                i + 1, mf_show_time(p->prediction.step_time_s).s,
                mf_show_bytes(p->prediction.peak_memory_B).s,
                mf_show_bytes(p->prediction.usable_B - p->prediction.peak_memory_B).s,
                mf_show_percent(p->prediction.mfu).s, (long long)l->tp, (long long)l->cp,
                (long long)l->pp, (long long)l->vpp, (long long)l->ep, (long long)l->etp,
                (long long)l->dp, (long long)l->mbs, l->zero, l->expert_zero);
        if (differ) {
            fprintf(out, "%-11s  %-10s  %s\n", mf_schedule_text(l->schedule),
                    mf_dispatcher_text(l->dispatcher), mf_precision_text(l->precision));
        } else {
            fprintf(out, "%s\n", mf_schedule_text(l->schedule));
        }
    }
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
    if (s->runs_on[0] != '\0') {
        mf_json_write_string(w, "runs_on", s->runs_on);
        mf_json_write_f64(w, "unlimited_step_time_s", s->unlimited_s);
    }
    mf_json_write_string(w, "left_out", s->left_out);
    mf_json_write_f64(w, "pricing_s", s->pricing_s);
    mf_json_write_f64(w, "wall_s", s->wall_s);
    mf_json_write_end(w);
}
