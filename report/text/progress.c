/* progress.c - one line about a running search: overwritten on a terminal, a new one every second
 * elsewhere. */
#include "report/text/progress.h"

#include "report/text/show.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>

static int columns_of(FILE *terminal) {
    struct winsize size;
    return ioctl(fileno(terminal), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void mf_progress_init(mf_progress *p, FILE *err, bool terminal, bool asked) {
    *p = (mf_progress){
        .err = err,
        .terminal = terminal,
        .wanted = terminal || asked,
        .columns = terminal ? columns_of(err) : 0,
    };
}

/* Adds to the line; what it has no space for is left out. */
__attribute__((format(printf, 2, 3))) static void add(mf_progress *p, const char *format, ...) {
    const size_t used = strlen(p->line);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(p->line + used, sizeof p->line - used, format, args);
    va_end(args);
}

/* Begins a line when it is time for one. */
static bool begin(mf_progress *p, double wall_s) {
    if (!p->wanted || wall_s < p->next_s) {
        return false;
    }
    p->next_s = wall_s + (p->terminal ? 0.2 : 1.0);
    p->line[0] = '\0';
    add(p, "%s%s%.1f s: ", p->about, p->about[0] != '\0' ? ", " : "", wall_s);
    return true;
}

/* Of a line that a terminal would fold only its last row could be wiped: it is truncated. */
static void end(mf_progress *p) {
    size_t length = strlen(p->line);
    if (p->columns > 1 && length >= (size_t)p->columns) {
        length = (size_t)p->columns - 1;
        while (length > 0 && ((unsigned char)p->line[length] & 0xc0) == 0x80) {
            length--; /* inside a letter of several bytes */
        }
    }
    fprintf(p->err, "%s%.*s%s", p->terminal ? "\r\033[K" : "", (int)length, p->line,
            p->terminal ? "" : "\n");
    fflush(p->err);
    p->shown = true;
}

void mf_progress_search(const mf_search_stats *now, double best_s, void *user) {
    mf_progress *p = user;
    if (!begin(p, now->wall_s)) {
        return;
    }
    add(p, "%s layouts priced, %s integer programs", mf_show_count((double)now->priced).s,
        mf_show_i64(now->milp_solved).s);
    if (isfinite(best_s) && best_s > 0) {
        add(p, ", best %s", mf_show_time(best_s).s);
        if (now->lower_bound_s > 0) {
            add(p, ", gap %s", mf_show_percent(now->gap).s);
        }
    }
    end(p);
}

void mf_progress_fit(const mf_fit_progress *now, void *user) {
    mf_progress *p = user;
    if (!begin(p, now->wall_s)) {
        return;
    }
    add(p, "%s of %s combinations of degrees at %s GPUs, %s fit", mf_show_i64(now->done).s,
        mf_show_i64(now->total).s, mf_show_i64(now->gpus).s, mf_show_i64(now->feasible).s);
    if (now->wall_s > 0.5 && now->done > 0 && now->done < now->total) {
        add(p, ", about %.0f s left",
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
