/* compare_steps.c - means over lines of metrics.jsonl. */
#include "compare/compare_steps.h"

#include "core/base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Steps of a run that do not count: those whose ops were timed, and the one behind them, which
 * waits for what was timed before it. */
enum { LEFT_OUT = MF_OP_TIMED_STEPS + 1 };

typedef struct reading {
    int64_t first_step; /* 0: not known yet */
    int64_t powers, clocks;
    mf_compare_steps *sum;
} reading;

/* What the driver did not say is 0 in a line, or not in it. */
static void add_gpu(reading *r, double used_B, double power_W, double clock_MHz) {
    r->sum->used_B = fmax(r->sum->used_B, used_B);
    r->sum->power_W += power_W;
    r->powers += power_W > 0;
    r->sum->clock_MHz += clock_MHz;
    r->clocks += clock_MHz > 0;
}

static mf_status add_line(const mf_json_value *line, reading *r, mf_err *e) {
    int64_t step = 0;
    double time_s = 0, used_B = 0, power_W = 0, clock_MHz = 0;
    const bool gpu = mf_json_find(line, "used_B") != NULL ||
                     mf_json_find(line, "power_W") != NULL ||
                     mf_json_find(line, "clock_MHz") != NULL;
    mf_status s = mf_json_get_i64(line, "step", 1, INT64_C(1) << 52, &step, e);
    s = s == MF_OK ? mf_json_get_f64(line, "step_time_s", 0, 1e9, &time_s, e) : s;
    s = s == MF_OK ? mf_json_opt_f64(line, "used_B", 0, 1e15, &used_B, e) : s;
    s = s == MF_OK ? mf_json_opt_f64(line, "power_W", 0, 1e6, &power_W, e) : s;
    s = s == MF_OK ? mf_json_opt_f64(line, "clock_MHz", 0, 1e6, &clock_MHz, e) : s;
    r->first_step = s == MF_OK && r->first_step == 0 ? step : r->first_step;
    if (s == MF_OK && gpu && step >= r->first_step + LEFT_OUT) {
        r->sum->steps++;
        r->sum->step_time_s += time_s;
        add_gpu(r, used_B, power_W, clock_MHz);
    }
    return s;
}

mf_status mf_compare_steps_read(const char *folder, int64_t first_step, mf_compare_steps *out,
                                mf_err *e) {
    char path[4096], name[4128], *line = NULL;
    size_t allocated = 0;
    ssize_t length = 0;
    mf_status s = MF_OK;
    reading r = {.first_step = first_step, .sum = out};
    *out = (mf_compare_steps){0};
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *f = fopen(path, "r");
    for (int64_t i = 1; f != NULL && s == MF_OK && (length = getline(&line, &allocated, f)) > 0;
         i++) {
        mf_json *doc = NULL;
        snprintf(name, sizeof name, "%s, line %lld", path, (long long)i);
        if (line[length - 1] == '\n') {
            s = mf_json_parse(name, line, (size_t)length, &doc, e);
            s = s == MF_OK ? add_line(mf_json_root(doc), &r, e) : s;
            mf_json_destroy(doc);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    free(line);
    if (out->steps > 0) {
        out->step_time_s /= (double)out->steps;
        out->power_W /= r.powers > 0 ? (double)r.powers : 1;
        out->clock_MHz /= r.clocks > 0 ? (double)r.clocks : 1;
    }
    return s;
}

void mf_compare_steps_use(const mf_compare_steps *s, double tolerance, mf_compare *c) {
    if (s->steps > 0) {
        c->measured_s = s->step_time_s;
        c->error = c->predicted_s / c->measured_s - 1.0;
        c->outside = fabs(c->error) > tolerance;
    }
}
