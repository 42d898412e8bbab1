/* progress.c - one line about a running search: overwritten on a terminal, a new one every second
 * elsewhere. */
#include "cli/progress.h"

#include "report/text/show.h"

#include <math.h>

void mf_progress_init(mf_progress *p, const mf_cli *cli, const mf_args *a) {
    *p = (mf_progress){
        .err = cli->err,
        .terminal = cli->err_is_terminal,
        .wanted = cli->err_is_terminal || a->value[MF_OPT_PROGRESS].given,
    };
}

/* Begins a line when it is time for one. */
static bool begin(mf_progress *p, double wall_s) {
    if (!p->wanted || wall_s < p->next_s) {
        return false;
    }
    p->next_s = wall_s + (p->terminal ? 0.2 : 1.0);
    fprintf(p->err, "%s%s%s%.1f s: ", p->terminal ? "\r\033[K" : "", p->about,
            p->about[0] != '\0' ? ", " : "", wall_s);
    return true;
}

static void end(mf_progress *p) {
    if (!p->terminal) {
        putc('\n', p->err);
    }
    fflush(p->err);
    p->shown = true;
}

void mf_progress_search(const mf_search_stats *now, double best_s, void *user) {
    mf_progress *p = user;
    if (!begin(p, now->wall_s)) {
        return;
    }
    fprintf(p->err, "%s layouts priced, %s integer programs", mf_show_count((double)now->priced).s,
            mf_show_i64(now->milp_solved).s);
    if (isfinite(best_s) && best_s > 0) {
        fprintf(p->err, ", best %s", mf_show_time(best_s).s);
        if (now->lower_bound_s > 0) {
            fprintf(p->err, ", gap %s", mf_show_percent(now->gap).s);
        }
    }
    end(p);
}

void mf_progress_fit(const mf_fit_progress *now, void *user) {
    mf_progress *p = user;
    if (!begin(p, now->wall_s)) {
        return;
    }
    fprintf(p->err, "%s of %s combinations of degrees at %s GPUs, %s fit", mf_show_i64(now->done).s,
            mf_show_i64(now->total).s, mf_show_i64(now->gpus).s, mf_show_i64(now->feasible).s);
    if (now->wall_s > 0.5 && now->done > 0 && now->done < now->total) {
        fprintf(p->err, ", about %.0f s left",
                ceil(now->wall_s * (double)(now->total - now->done) / (double)now->done));
    }
    end(p);
}

void mf_progress_end(mf_progress *p) {
    if (p->shown && p->terminal) {
        fputs("\r\033[K", p->err);
        fflush(p->err);
    }
    p->shown = false;
    p->next_s = 0;
}
