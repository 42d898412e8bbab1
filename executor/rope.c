/* rope.c - rotary positions: frequencies of plain and scaled tables. */
#include "executor/rope.h"

#include <math.h>

static const double two_pi = 6.28318530717958647692;

int64_t mf_exec_rope_width(const mf_model *m) {
    return m->attn == MF_ATTN_MLA
               ? m->qk_rope_head_dim
               : (int64_t)((double)m->head_dim * m->partial_rotary + 0.5) / 2 * 2;
}

/* Share of the ramp between the wavelengths that are kept and those that are stretched. */
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

double mf_exec_rope_frequency(const mf_model *m, int64_t pair) {
    const mf_rope_scaling *s = &m->rope_scaling;
    double width = (double)mf_exec_rope_width(m);
    double frequency = pow(m->rope_theta, -2.0 * (double)pair / width);
    switch (s->kind) {
    case MF_ROPE_LINEAR:
        return frequency / s->factor;
    case MF_ROPE_LLAMA3:
        return llama3(s, frequency);
    case MF_ROPE_YARN:
        return yarn(s, frequency, (double)pair, width, m->rope_theta);
    case MF_ROPE_PLAIN:
    case MF_ROPE_OTHER:
        break;
    }
    return frequency;
}

void mf_exec_rope_table(const mf_model *m, int64_t count, float *cos_out, float *sin_out) {
    int64_t half = mf_exec_rope_width(m) / 2;
    double scale = m->rope_scaling.kind == MF_ROPE_YARN ? m->rope_scaling.table_scale : 1.0;
    for (int64_t i = 0; i < half; i++) {
        double frequency = mf_exec_rope_frequency(m, i);
        for (int64_t p = 0; p < count; p++) {
            cos_out[p * half + i] = (float)(scale * cos((double)p * frequency));
            sin_out[p * half + i] = (float)(scale * sin((double)p * frequency));
        }
    }
}

double mf_exec_softmax_scale(const mf_model *m) {
    double scale = m->rope_scaling.kind == MF_ROPE_YARN ? m->rope_scaling.softmax_scale : 1.0;
    return scale / sqrt((double)m->head_dim);
}
