/* mixer_costs.c - FLOPs and traffic of scans and indexers. */
#include "core/program/mixer_costs.h"

static double per_position(const mf_scan_shape *s) {
    double dk = (double)s->key_dim, dv = (double)s->value_dim, c = (double)s->chunk;
    double heads = (double)s->value_heads, groups = (double)s->key_heads;
    switch (s->rule) {
    case MF_MIXER_GDN:
    case MF_MIXER_KDA:
        return heads * (6.0 * dk * dv + c * (6.0 * dk + 4.0 * dv));
    case MF_MIXER_MAMBA2:
        return heads * (2.0 * c * dv + 4.0 * dk * dv) + groups * 2.0 * c * dk;
    case MF_MIXER_LIGHTNING:
        return heads * (c * (2.0 * dk + 2.0 * dv) + 4.0 * dk * dv);
    case MF_MIXER_ATTENTION:
    case MF_MIXER_NONE:
    case MF_MIXER_COMPRESSED:
        break;
    }
    return 0.0;
}

double mf_scan_flops(const mf_scan_shape *s) {
    return (double)s->rows * per_position(s);
}

double mf_scan_gradient(const mf_scan_shape *s) {
    double dk = (double)s->key_dim, dv = (double)s->value_dim, c = (double)s->chunk;
    double anew =
        (4.0 * dk * dv + c * (2.0 * dk + 2.0 * dv)) / (6.0 * dk * dv + c * (6.0 * dk + 4.0 * dv));
    bool delta = s->rule == MF_MIXER_GDN || s->rule == MF_MIXER_KDA;
    return 2.0 + (delta ? anew : 1.0 / 3.0);
}

/* The inverse; of Kimi's also the products of keys, which its decays by channel make it keep. */
int64_t mf_scan_matrices(mf_mixer_kind rule) {
    return rule == MF_MIXER_KDA ? 2 : rule == MF_MIXER_GDN ? 1 : 0;
}

int64_t mf_scan_decays(const mf_scan_shape *s) {
    switch (s->rule) {
    case MF_MIXER_GDN:
        return 2 * s->value_heads; /* decay and step of each head */
    case MF_MIXER_KDA:
        return s->key_heads * s->key_dim + s->value_heads; /* decay of each channel, steps */
    case MF_MIXER_MAMBA2:
        return s->value_heads;
    case MF_MIXER_ATTENTION:
    case MF_MIXER_NONE:
    case MF_MIXER_COMPRESSED:
    case MF_MIXER_LIGHTNING: /* decays are fixed */
        break;
    }
    return 0;
}

double mf_scan_bytes(const mf_scan_shape *s, double element_B) {
    double rows = (double)s->rows, values = (double)(s->value_heads * s->value_dim);
    double keys = (double)(s->key_heads * s->key_dim), decays = (double)mf_scan_decays(s);
    double kept = (double)(mf_scan_matrices(s->rule) * s->value_heads * s->chunk);
    const int64_t begun = (s->rows + s->chunk - 1) / s->chunk;
    double chunks = (double)begun;
    double states = chunks * values * (double)s->key_dim;
    return rows * ((2.0 * keys + 2.0 * values + kept) * element_B + 4.0 * decays) +
           2.0 * states * element_B;
}

double mf_index_flops(double pairs, int64_t heads, int64_t width) {
    return 2.0 * pairs * (double)heads * ((double)width + 1.0);
}

double mf_index_score_bytes(double pairs) {
    return 8.0 * pairs;
}

double mf_index_gradient_flops(double chosen, int64_t heads, int64_t width, double teacher) {
    return 2.0 * mf_index_flops(chosen, heads, width) + 2.0 * chosen * teacher;
}
