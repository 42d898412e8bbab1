/* host_copies_text.c - what rests on copies to host memory. */
#include "report/host_copies_text.h"

#include "report/text/show.h"

#include <math.h>
#include <string.h>

/* A gain that is told, of copies that are not used. */
#define LEAST_GAIN 0.995

void mf_host_copies_print(FILE *out, const mf_host_copies *h, double step_s) {
    char text[240] = "nothing fits without them";
    if (!h->used && !(h->with_s > 0 && h->with_s < LEAST_GAIN * step_s)) {
        return;
    }
    if (!h->used) {
        snprintf(text, sizeof text,
                 "with activations on the host this layout takes %s, %s less (--search-offload)",
                 mf_show_time(h->with_s).s, mf_show_percent(1 - h->with_s / step_s).s);
    } else if (h->without_s > 0) {
        snprintf(text, sizeof text, "without them the step takes %s: a gain of %s rests on them",
                 mf_show_time(h->without_s).s, mf_show_percent(1 - step_s / h->without_s).s);
    } else if (h->optimizer) {
        snprintf(text, sizeof text,
                 "nothing fits without optimizer states on the host (--offload-optimizer 1)");
    } else if (!h->infeasible) {
        snprintf(text, sizeof text, "asked for");
    }
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used,
             "; how fast all GPUs of a host copy at once, beside compute, was not measured");
    fputs("host copies ", out);
    mf_show_wrap(out, text, 12, 12, 99);
}

void mf_host_copies_json(mf_json_writer *w, const mf_host_copies *h) {
    mf_json_write_object(w, "host_copies", false);
    mf_json_write_bool(w, "used", h->used);
    mf_json_write_bool(w, "measured", false);
    mf_json_write_bool(w, "fits_without", !h->infeasible);
    mf_json_write_bool(w, "optimizer", h->optimizer);
    mf_json_write_f64(w, "step_time_without_s",
                      h->without_s > 0 ? h->without_s : (double)NAN); /* null */
    mf_json_write_f64(w, "step_time_with_s", h->with_s > 0 ? h->with_s : (double)NAN);
    mf_json_write_end(w);
}
