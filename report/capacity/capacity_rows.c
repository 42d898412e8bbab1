/* capacity_rows.c - the rows of `moefold capacity`: which columns they have. Where the screen is
 * too narrow for all of them, those that say least make way; what all rows share is said below
 * them. */
#include "report/capacity/capacity_text.h"

#include "report/text/screen.h"
#include "report/text/show.h"

#include <string.h>

#define LL(x) ((long long)(x))

enum { CELL = 80 }; /* characters of a cell: names of clusters are the longest */

/* --- what stands in a cell -------------------------------------------------------------------- */

static void show_cluster(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", t->cell[at].cluster);
}

static void show_gpus(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_show_i64(t->cell[at].gpus).s);
}

static void show_step(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_show_time(t->cell[at].step_time_s).s);
}

static void show_routed(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_show_time(mf_capacity_step_s(&t->cell[at])).s);
}

static void show_band(const mf_capacity_table *t, int at, char *out) {
    const mf_capacity_cell *c = &t->cell[at];
    snprintf(out, CELL, "-%.0f +%.0f %%", 100 * (1 - c->low_s / c->step_time_s),
             100 * (c->high_s / c->step_time_s - 1));
}

static void show_run(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_capacity_show_days(t->cell[at].run_s).s);
}

static void show_gpu_h(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_show_count(t->cell[at].gpu_h).s);
}

static void show_usd(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_capacity_show_usd(&t->cell[at], t->tokens != NULL).s);
}

static void show_energy(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_show_rate(t->cell[at].energy_J / 3600, "Wh").s);
}

static void show_rate(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_show_count(t->cell[at].tokens_per_s).s);
}

/* "41.2 d", or of a step "1.23 s", with a ! where it does not keep what was asked for; "none" where
 * nothing fits. */
static void show_strain(const mf_capacity_table *t, const mf_capacity_strain *x, char *out) {
    if (!x->tried) {
        snprintf(out, CELL, "-");
    } else if (!x->fits) {
        snprintf(out, CELL, mf_capacity_has_lost(t) ? "none!" : "none");
    } else {
        snprintf(out, CELL, "%s%s",
                 t->tokens != NULL ? mf_capacity_show_days(x->run_s).s
                                   : mf_show_time(x->step_time_s).s,
                 x->in_time && x->in_budget ? "" : "!");
    }
}

static void show_skewed(const mf_capacity_table *t, int at, char *out) {
    show_strain(t, &t->cell[at].skewed, out);
}

static void show_lost(const mf_capacity_table *t, int at, char *out) {
    show_strain(t, &t->cell[at].lost, out);
}

static void show_mfu(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_show_percent(t->cell[at].mfu).s);
}

static void show_goodput(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_show_percent(t->cell[at].goodput.share).s);
}

static void show_search(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_search_end_text(t->cell[at].end));
}

static void show_layout(const mf_capacity_table *t, int at, char *out) {
    const mf_layout *l = &t->cell[at].layout;
    snprintf(out, CELL, "%lld/%lld/%lld/%lld/%lld/%lld", LL(l->tp), LL(l->cp), LL(l->pp),
             LL(l->vpp), LL(l->ep), LL(l->etp));
}

static void show_schedule(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_schedule_text(t->cell[at].layout.schedule));
}

static void show_host_copies(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", t->cell[at].host.used ? "yes" : "no");
}

static void show_gap(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_show_percent(t->cell[at].gap).s);
}

static void show_precision(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_precision_text(t->cell[at].layout.precision));
}

static void show_profile(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", t->cell[at].software);
}

static void show_price(const mf_capacity_table *t, int at, char *out) {
    const mf_capacity_price *p = &t->cell[at].price;
    snprintf(out, CELL, p->known ? "%.2f" : "-", p->usd_gpu_h);
}

static void show_price_date(const mf_capacity_table *t, int at, char *out) {
    snprintf(out, CELL, "%s", mf_capacity_price_date(&t->cell[at].price));
}

/* --- columns ---------------------------------------------------------------------------------- */

static bool has_run(const mf_capacity_table *t) {
    return t->tokens != NULL;
}

static bool has_rate(const mf_capacity_table *t) {
    return t->tokens == NULL;
}

/* Dense models have no router. */
static bool has_skew(const mf_capacity_table *t) {
    bool some = false;
    for (int i = 0; i < t->count; i++) {
        some |= t->cell[i].skewed.tried;
    }
    return some;
}

static bool has_draws(const mf_capacity_table *t) {
    bool some = false;
    for (int i = 0; i < t->count; i++) {
        some |= t->cell[i].feasible && t->cell[i].routed.draws > 0;
    }
    return some;
}

static bool has_host_copies(const mf_capacity_table *t) {
    bool some = false;
    for (int i = 0; i < t->count; i++) {
        some |= t->cell[i].feasible && t->cell[i].host.used;
    }
    return some;
}

/* Is a plan further from what is proven than was asked for? A buyer is to see it in its row. */
static bool has_open_gap(const mf_capacity_table *t) {
    bool some = false;
    for (int i = 0; i < t->count; i++) {
        some |= mf_capacity_is_open(t, &t->cell[i]);
    }
    return some;
}

typedef struct column {
    const char *head;
    int way; /* on a narrow screen columns make way in this order; 0: this one stays */
    bool left;
    const char *once; /* what it is, where all rows share it and it is said below them; "": a line
                       * of its own says it; NULL: it is no matter of all rows */
    bool (*has)(const mf_capacity_table *t); /* NULL: always */
    void (*show)(const mf_capacity_table *t, int at, char *out);
} column;

static const column columns[] = {
    {"cluster", 0, true, NULL, NULL, show_cluster},
    {"GPUs", 0, false, NULL, NULL, show_gpus},
    {"step time", 11, false, NULL, NULL, show_step},
    {"P95 step", 11, false, NULL, has_draws, show_routed},
    {"band", 0, false, NULL, NULL, show_band},
    {"gap", 0, false, NULL, has_open_gap, show_gap},
    {"run time", 0, false, NULL, has_run, show_run},
    {"GPU-h", 9, false, NULL, has_run, show_gpu_h},
    {"USD", 0, false, NULL, has_run, show_usd},
    {"energy", 6, false, NULL, has_run, show_energy},
    {"tokens/s", 0, false, NULL, has_rate, show_rate},
    {"USD/Mtok", 0, false, NULL, has_rate, show_usd},
    {"skewed", 0, false, NULL, has_skew, show_skewed},
    {"node lost", 0, false, NULL, mf_capacity_has_lost, show_lost},
    {"MFU", 8, false, NULL, NULL, show_mfu},
    {"goodput", 3, false, NULL, NULL, show_goodput},
    {"TP/CP/PP/VPP/EP/ETP", 12, true, NULL, NULL, show_layout},
    {"profile", 10, true, "profile", NULL, show_profile},
    {"precision", 10, true, "precision", NULL, show_precision},
    {"schedule", 7, true, "schedule", NULL, show_schedule},
    {"host copies", 5, true, "host copies", has_host_copies, show_host_copies},
    {"search", 4, true, "search", NULL, show_search},
    {"USD/GPU-h", 2, false, "", NULL, show_price},
    {"price of", 1, true, "", NULL, show_price_date},
};
enum { COLUMNS = sizeof columns / sizeof columns[0], GPUS = 1, WIDE = 2, MARK = 2 };

static bool has_plans(const mf_capacity_table *t) {
    bool some = false;
    for (int i = 0; i < t->count; i++) {
        some |= t->cell[i].feasible;
    }
    return some;
}

/* Do all rows say the same there? text: what. */
static bool is_shared(const mf_capacity_table *t, const column *c, char *text) {
    bool some = false;
    for (int i = 0; i < t->count; i++) {
        char other[CELL];
        if (!t->cell[i].feasible) {
            continue;
        }
        c->show(t, i, other);
        if (some && strcmp(text, other) != 0) {
            return false;
        }
        memcpy(text, other, CELL);
        some = true;
    }
    return some;
}

/* As wide as its widest cell. */
static int width_of(const mf_capacity_table *t, const column *c, bool always) {
    int width = (int)strlen(c->head);
    for (int i = 0; i < t->count; i++) {
        if (t->cell[i].feasible || always) {
            char text[CELL];
            c->show(t, i, text);
            width = (int)strlen(text) > width ? (int)strlen(text) : width;
        }
    }
    return width;
}

/* What rows look like. */
typedef struct look {
    int width[COLUMNS]; /* 0: no such column in this table */
    bool dropped[COLUMNS];
    int gap; /* blanks between two columns */
} look;

static bool is_shown(const look *k, int i) {
    return k->width[i] > 0 && !k->dropped[i];
}

static int total(const look *k) {
    int width = MARK;
    for (int i = 0; i < COLUMNS; i++) {
        width += is_shown(k, i) ? k->width[i] + (i > 0 ? k->gap : 0) : 0;
    }
    return width;
}

/* The column that makes way next; -1: none is left that may. */
static int next_to_go(const look *k) {
    int next = -1;
    for (int i = 0; i < COLUMNS; i++) {
        if (is_shown(k, i) && columns[i].way > 0 &&
            (next < 0 || columns[i].way < columns[next].way)) {
            next = i;
        }
    }
    return next;
}

/* Drops columns until rows fit; a wide one that went may leave space for narrow ones again. */
static void drop_columns(look *k, int screen) {
    int next, most = 0;
    k->gap = total(k) > screen ? 1 : WIDE;
    while (total(k) > screen && (next = next_to_go(k)) >= 0) {
        k->dropped[next] = true;
        most = columns[next].way;
    }
    for (int way = most - 1; way > 0; way--) {
        for (int i = 0; i < COLUMNS; i++) {
            if (columns[i].way == way && k->dropped[i]) {
                k->dropped[i] = false;
                k->dropped[i] = total(k) > screen;
            }
        }
    }
    k->gap = WIDE;
    k->gap = total(k) > screen ? 1 : WIDE;
}

/* Where nothing fits, rows have no figures. */
static look look_of(const mf_capacity_table *t) {
    const int screen = t->all_columns ? 0 : mf_screen_columns(0);
    const bool some = has_plans(t);
    look k = {.gap = WIDE};
    char text[CELL];
    for (int i = 0; i < (some ? COLUMNS : GPUS + 1); i++) {
        const column *c = &columns[i];
        if ((c->has == NULL || c->has(t)) && !(c->once != NULL && is_shared(t, c, text))) {
            k.width[i] = width_of(t, c, i <= GPUS);
        }
    }
    if (screen > 0) {
        drop_columns(&k, screen);
    }
    return k;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Columns [0, end) of a row; no blanks behind the last. */
static void print_columns(FILE *out, const mf_capacity_table *t, const look *k, int at, int end) {
    int blanks = 0;
    for (int i = 0; i < end; i++) {
        char text[CELL];
        if (!is_shown(k, i)) {
            continue;
        }
        if (at < 0) {
            snprintf(text, sizeof text, "%s", columns[i].head);
        } else {
            columns[i].show(t, at, text);
        }
        const int pad = k->width[i] - (int)strlen(text);
        fprintf(out, "%*s%s", blanks + (columns[i].left ? 0 : pad), "", text);
        blanks = k->gap + (columns[i].left ? pad : 0);
    }
}

void mf_capacity_print_rows(FILE *out, const mf_capacity_table *t, int model) {
    const look k = look_of(t);
    bool begun = false;
    for (int i = 0; i < t->count; i++) {
        const mf_capacity_cell *c = &t->cell[i];
        if (t->offer[i].model != model) {
            continue;
        }
        if (!begun) {
            fprintf(out, "\n%s\n%*s", c->model, MARK, "");
            print_columns(out, t, &k, -1, COLUMNS);
            putc('\n', out);
            begun = true;
        }
        fprintf(out, "%c ", t->offer[i].on_front ? '*' : ' ');
        print_columns(out, t, &k, i, c->feasible ? COLUMNS : GPUS + 1);
        if (c->feasible) {
            putc('\n', out);
        } else {
            const int from = MARK + k.width[0] + k.gap + k.width[GPUS] + WIDE;
            const bool again = i > 0 && strcmp(t->cell[i - 1].why, c->why) == 0;
            fprintf(out, "%*s", WIDE, "");
            mf_show_wrap(out, again ? "the same" : c->why, from, from, 99);
        }
    }
}

/* "every row   profile moefold, precision bf16"; and which columns there was no space for. */
void mf_capacity_print_shared(FILE *out, const mf_capacity_table *t) {
    char text[512] = "", value[CELL], left_out[320] = "";
    size_t used = 0, gone = 0;
    const look k = look_of(t);
    for (int i = 0; i < COLUMNS; i++) {
        const column *c = &columns[i];
        const bool has = c->has == NULL || c->has(t);
        if (has && c->once != NULL && c->once[0] != '\0' && is_shared(t, c, value)) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s",
                                     used > 0 ? ", " : "", c->once, value);
        }
        if (k.dropped[i] && (c->once == NULL || c->once[0] != '\0')) {
            gone += (size_t)snprintf(left_out + gone, sizeof left_out - gone, "%s%s",
                                     gone > 0 ? ", " : "", c->head);
        }
    }
    if (used > 0) {
        fputs("every row   ", out);
        mf_show_wrap(out, text, 12, 12, 99);
    }
    if (gone > 0) {
        snprintf(left_out + gone, sizeof left_out - gone, " (-v shows them)");
        fputs("not shown   ", out);
        mf_show_wrap(out, left_out, 12, 12, 99);
    }
}
