/* correct.c - the factor between a measured and a predicted step. */
#include "launch/log/correct.h"

#include "core/base/file.h"
#include "core/base/json_write.h"
#include "core/base/today.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ROUNDS 20
#define CLOSE 1e-3
#define LEAST 0.1
#define MOST 10.0
/* Machines of one kind differ by less. */
#define LEAST_LIKELY 0.5
#define MOST_LIKELY 2.0

static mf_status step_with(mf_cost *cost, const mf_software *base, const mf_program *p,
                           const mf_routing *routing, double factor, double *step_s, mf_err *e) {
    mf_software slowed = *base;
    mf_sim *sim = NULL;
    mf_software_slow(&slowed, factor);
    mf_cost_set_software(cost, &slowed);
    mf_status s = mf_sim_step(cost, p, &(mf_sim_options){.routing = routing}, &sim, e);
    *step_s = s == MF_OK ? sim->step_time_s : 0;
    mf_sim_destroy(sim);
    return s;
}

/* The next factor to try. The nearer ops are to the limits of GPU and links, the less of a step
 * scales with it: as much as it did between the last two, [0] the newer. */
static double next_factor(const double f[2], const double step_s[2], double measured_s) {
    double scales = 1;
    if (f[1] > 0 && f[0] != f[1]) {
        scales = fmin(fmax(log(step_s[0] / step_s[1]) / log(f[0] / f[1]), 0.02), 1);
    }
    return fmin(fmax(f[0] * pow(measured_s / step_s[0], 1 / scales), LEAST), MOST);
}

mf_status mf_correction_find(mf_cost *cost, const mf_program *p, const mf_routing *routing,
                             double measured_s, double *factor, double *nearest_s, mf_err *e) {
    const mf_software base = *mf_cost_software(cost);
    double f[2] = {1, 0}, step_s[2] = {0, 0}, predicted_s = 0;
    mf_status s = MF_OK;
    for (int round = 0; round < MOST_ROUNDS; round++) {
        s = step_with(cost, &base, p, routing, f[0], &step_s[0], e);
        predicted_s = round == 0 ? step_s[0] : predicted_s;
        if (s != MF_OK || fabs(step_s[0] / measured_s - 1) < CLOSE) {
            break;
        }
        const double next = next_factor(f, step_s, measured_s);
        if (next == f[0]) {
            break; /* an end of the range */
        }
        f[1] = f[0];
        step_s[1] = step_s[0];
        f[0] = next;
    }
    mf_cost_set_software(cost, &base);
    *nearest_s = step_s[0];
    if (s == MF_OK && fabs(step_s[0] / measured_s - 1) >= CLOSE) {
        return mf_err_set(e, MF_INPUT,
                          "measured %.4g s a step, predicted %.4g s: no correction from a tenth to "
                          "ten times brings the prediction there (it comes to %.4g s); is it "
                          "another job, or another machine?",
                          measured_s, predicted_s, step_s[0]);
    }
    *factor = f[0];
    return s;
}

bool mf_correction_is_doubtful(double factor) {
    return factor < LEAST_LIKELY || factor > MOST_LIKELY;
}

static void write_basis(mf_json_writer *w, const mf_software *base, const mf_correction_basis *on,
                        const char *date) {
    mf_json_write_object(w, "measured", false);
    mf_json_write_string(w, "cluster", on->cluster);
    mf_json_write_string(w, "log", on->log);
    mf_json_write_i64(w, "steps", on->steps);
    mf_json_write_string(w, "date", date);
    mf_json_write_string(w, "software_date", base->date);
    mf_json_write_f64(w, "measured_step_time_s", on->measured_s);
    mf_json_write_f64(w, "predicted_step_time_s", on->predicted_s);
    mf_json_write_end(w);
}

mf_status mf_correction_save(const mf_software *base, double factor, const mf_correction_basis *on,
                             const char *path, mf_err *e) {
    char name[sizeof base->name], source[512], date[16];
    mf_json_writer w;
    char *text = NULL;
    size_t length = 0;
    if (strchr(base->name, '@') != NULL) {
        return mf_err_set(e, MF_USAGE, "%s is a correction itself: compare with what it extends",
                          base->name);
    }
    snprintf(name, sizeof name, "%.20s@%.10s", base->name, on->cluster);
    mf_today_text(mf_today(), date);
    snprintf(source, sizeof source,
             "%.200s: %d steps, %.4g s in the median, where %.4g s were predicted on %s; %s",
             on->log, on->steps, on->measured_s, on->predicted_s, on->cluster, date);
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_string(&w, "name", name);
    mf_json_write_string(&w, "extends", base->name);
    mf_json_write_object(&w, "step_factor", true);
    mf_json_write_f64(&w, "value", factor);
    mf_json_write_string(&w, "source", source);
    mf_json_write_end(&w);
    write_basis(&w, base, on, date);
    mf_json_write_end(&w);
    mf_status s = mf_json_writer_finish(&w, &text, &length, e);
    if (s == MF_OK) {
        s = mf_file_save(path, text, length, e);
    }
    free(text);
    return s;
}
