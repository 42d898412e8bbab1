/* progress.c - one line about a running search: overwritten on a terminal, a new one every second
 * elsewhere. */
#include "cli/progress.h"

#include "cli/show.h"

#include <math.h>

void mf_progress_init(mf_progress *p, const mf_cli *cli, const mf_args *a) {
    *p = (mf_progress){
        .err = cli->err,
        .terminal = cli->err_is_terminal,
        .wanted = cli->err_is_terminal || a->value[MF_OPT_PROGRESS].given,
    };
}

/* Seconds left if layouts go on being closed at the mean speed so far; < 0 when nothing can be
 * said. */
static double time_left(const mf_search_stats *now) {
    double closed = (double)now->pruned, space = (double)now->space;
    if (closed <= 0 || now->wall_s < 0.5 || closed >= space) {
        return -1;
    }
    return now->wall_s * (space - closed) / closed;
}

void mf_progress_search(const mf_search_stats *now, double best_s, void *user) {
    mf_progress *p = user;
    if (!p->wanted || now->wall_s < p->next_s) {
        return;
    }
    p->next_s = now->wall_s + (p->terminal ? 0.2 : 1.0);
    double closed = now->space > 0 ? (double)now->pruned / (double)now->space : 0;
    fprintf(p->err, "%s%.1f s: %s of %s layouts closed", p->terminal ? "\r\033[K" : "", now->wall_s,
            mf_show_percent(closed).s, mf_show_count((double)now->space).s);
    if (isfinite(best_s) && best_s > 0) {
        fprintf(p->err, ", best %s", mf_show_time(best_s).s);
        if (now->lower_bound_s > 0) {
            fprintf(p->err, ", gap %s", mf_show_percent(now->gap).s);
        }
    }
    double left = time_left(now);
    if (left >= 0 && left < 86400) {
        fprintf(p->err, ", about %.0f s left", ceil(left));
    }
    if (!p->terminal) {
        putc('\n', p->err);
    }
    fflush(p->err);
    p->shown = true;
}

void mf_progress_end(mf_progress *p) {
    if (p->shown && p->terminal) {
        fputs("\r\033[K", p->err);
        fflush(p->err);
    }
    p->shown = false;
}
