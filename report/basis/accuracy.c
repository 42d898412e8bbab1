/* accuracy.c - which runs tell how good a prediction is. */
#include "report/basis/accuracy.h"

#include <math.h>
#include <string.h>

/* A profile that `compare --log` corrected, NAME@CLUSTER, is still that program. */
static bool is_profile(const char *software, const char *name) {
    const size_t length = strcspn(software, "@");
    return strlen(name) == length && strncmp(software, name, length) == 0;
}

bool mf_accuracy_tells_of(const mf_accuracy_row *row, const char *software, const char *gpu,
                          bool moe) {
    const bool own = is_profile(software, "moefold");
    if (own || is_profile(software, "ideal")) {
        return own && row->kind == MF_ACCURACY_OWN && strcmp(row->key, gpu) == 0;
    }
    switch (row->kind) {
    case MF_ACCURACY_SPLIT:
        return strcmp(row->key, moe ? "moe" : "dense") == 0;
    case MF_ACCURACY_SOFTWARE:
        return is_profile(software, row->key);
    case MF_ACCURACY_GPU:
        return strcmp(row->key, gpu) == 0;
    case MF_ACCURACY_OWN:
        break;
    }
    return false;
}

static void write_share(mf_json_writer *w, const char *key, double percent) {
    mf_json_write_f64(w, key, percent >= 0 ? percent / 100 : (double)NAN);
}

void mf_accuracy_json_row(mf_json_writer *w, const mf_accuracy_row *row) {
    mf_json_write_object(w, NULL, true);
    mf_json_write_string(w, "of", row->of);
    mf_json_write_i64(w, "runs", row->runs);
    write_share(w, "mean_error", row->mean);
    write_share(w, "p90_error", row->p90);
    write_share(w, "worst_error", row->worst);
    mf_json_write_f64(w, "bias", row->bias / 100);
    write_share(w, "inside_band", row->inside);
    mf_json_write_end(w);
}

void mf_accuracy_json(mf_json_writer *w, const mf_software *s, const char *gpu, const mf_model *m) {
    mf_json_write_array(w, "accuracy", false);
    for (int i = 0; i < mf_accuracy_row_count; i++) {
        if (mf_accuracy_tells_of(&mf_accuracy_rows[i], s->name, gpu, m->experts > 0)) {
            mf_accuracy_json_row(w, &mf_accuracy_rows[i]);
        }
    }
    mf_json_write_end(w);
}
