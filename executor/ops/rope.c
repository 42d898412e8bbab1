/* rope.c - rotary positions: frequencies of plain and scaled tables. */
#include "executor/ops/rope.h"

#include <math.h>

static const double two_pi = 6.28318530717958647692;

/* Position on the ramp, 0 to 1, between the wavelengths that are kept and those that are
 * stretched. */
static double llama3(const mf_rope_scaling *s, double frequency) {
    double turns = s->original * frequency / two_pi; /* over the first training's length */
    double kept = (turns - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
    kept = fmin(fmax(kept, 0.0), 1.0);
    return (1.0 - kept) * frequency / s->factor + kept * frequency;
}

/* Dimension whose pair makes `turns` rotations over the first training's length. */
static double yarn_dimension(const mf_rope_scaling *s, double turns, double width, double theta) {
    return width * log(s->original / (turns * two_pi)) / (2.0 * log(theta));
}

static double yarn(const mf_rope_scaling *s, double frequency, double pair, double width,
                   double theta) {
    double low = yarn_dimension(s, s->beta_fast, width, theta);
    double high = yarn_dimension(s, s->beta_slow, width, theta);
    if (s->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, width - 1.0);
    high = high > low || high < low ? high : high + 0.001;
    double stretched = fmin(fmax((pair - low) / (high - low), 0.0), 1.0);
    return stretched * frequency / s->factor + (1.0 - stretched) * frequency;
}

double mf_exec_rope_frequency(const mf_model *m, const mf_rope_table *t, int64_t pair) {
    const mf_rope_scaling *s = &m->rope_scaling;
    double width = (double)t->width;
    double frequency = pow(t->theta, -2.0 * (double)pair / width);
    switch (s->kind) {
    case MF_ROPE_LINEAR:
        return frequency / s->factor;
    case MF_ROPE_LLAMA3:
        return llama3(s, frequency);
    case MF_ROPE_YARN:
        return yarn(s, frequency, (double)pair, width, t->theta);
    case MF_ROPE_PLAIN:
    case MF_ROPE_OTHER:
        break;
    }
    return frequency;
}

/* The factor of q at position p (model.h). */
static double temperature(const mf_model *m, int64_t p) {
    return 1.0 + m->temperature_scale * log1p(floor((double)(p + 1) / m->temperature_floor));
}

void mf_exec_rope_table(const mf_model *m, const mf_rope_table *t, int64_t count, float *cos_out,
                        float *sin_out) {
    int64_t half = t->width / 2;
    double scale = m->rope_scaling.kind == MF_ROPE_YARN ? m->rope_scaling.table_scale : 1.0;
    for (int64_t i = 0; i < half; i++) {
        double frequency = t->temperature ? 0.0 : mf_exec_rope_frequency(m, t, i);
        for (int64_t p = 0; p < count; p++) {
            double factor = t->temperature ? temperature(m, p) : scale;
            cos_out[p * half + i] = (float)(factor * cos((double)p * frequency));
            sin_out[p * half + i] = (float)(factor * sin((double)p * frequency));
        }
    }
}
