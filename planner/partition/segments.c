/* segments.c - runs of a repeating pattern of layer classes. */
#include "planner/partition/partition.h"

/* Repeats of the pattern [at, at + period) from `at`. */
static int repeats_at(const mf_model *m, int at, int period) {
    int n = 1;
    if (at + period > m->layers) {
        return 0;
    }
    for (int i = at + period; i + period <= m->layers; i += period, n++) {
        for (int k = 0; k < period; k++) {
            if (m->layer_class[i + k] != m->layer_class[at + k]) {
                return n;
            }
        }
    }
    return n;
}

int mf_segments(const mf_model *m, mf_segment *out, int max) {
    int n = 0;
    mf_segment next = {0, 1, 1}; /* embedding */
    for (int at = 0; n < max;) {
        out[n++] = next;
        if (at >= m->layers) {
            break;
        }
        /* the pattern that covers most layers; a longer one has to cover more and to repeat */
        int period = 1, most = repeats_at(m, at, 1);
        for (int k = 2; k <= MF_PARTITION_MAX_PERIOD; k++) {
            int repeats = repeats_at(m, at, k);
            if (repeats >= 2 && repeats * k > most) {
                most = repeats * k;
                period = k;
            }
        }
        next = (mf_segment){1 + at, most / period, period};
        at += most;
        if (at >= m->layers && n < max) {
            out[n++] = next;
            break;
        }
    }
    if (m->mtp_layers > 0 && n < max) {
        out[n++] = (mf_segment){1 + (int)m->layers, (int)m->mtp_layers, 1};
    }
    if (n < max) {
        out[n++] = (mf_segment){1 + (int)(m->layers + m->mtp_layers), 1, 1};
    }
    return n;
}
