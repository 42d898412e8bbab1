/* host_copies_text.c - what rests on copies to host memory. */
#include "report/basis/host_copies_text.h"

#include "report/text/show.h"

#include <math.h>
#include <string.h>

/* A gain that is told, of copies that are not used. */
#define LEAST_GAIN 0.995

/* What they share of the host's memory, as they are priced. */
static void say_shared(const mf_host_copies *h, char *out, size_t size) {
    if (h->gpus <= 1) {
        out[0] = '\0';
    } else if (h->shared_Bps > 0) {
        snprintf(out, size, "; priced as sharing %s of its memory",
                 mf_show_rate(h->shared_Bps, "B/s").s);
    } else {
        snprintf(out, size,
                 "; what they share of its memory is not known (host_shared_GBps of the cluster): "
                 "each is priced as if alone");
    }
}

/* What is known of how fast such copies are. */
static void say_measured(const mf_host_copies *h, char *out, size_t size) {
    if (mf_host_copies_measured(h)) {
        snprintf(out, size, "measured on one %s", h->gpu);
    } else if (h->known_gpu) {
        snprintf(out, size,
                 "how fast %lld GPUs of a host copy at once, beside compute, was not "
                 "measured",
                 (long long)h->gpus);
    } else if (h->gpus > 1) {
        snprintf(out, size, "how fast a %s copies, and %lld of a host at once, was not measured",
                 h->gpu, (long long)h->gpus);
    } else {
        snprintf(out, size, "how fast a %s copies was not measured", h->gpu);
    }
}

static void say_known(const mf_host_copies *h, char *out, size_t size) {
    say_measured(h, out, size);
    const size_t used = strlen(out);
    say_shared(h, out + used, size - used);
}

/* Of a plan that copies: what copies take, and what a search found without them. */
static void say_used(const mf_host_copies *h, char *out, size_t size) {
    int n = snprintf(out, size, "%s of copies a step", mf_show_time(h->copies_s).s);
    if (h->copies_s < h->step_s) { /* else both ways at once: a share would say little */
        n += snprintf(out + n, size - (size_t)n, ", %s of its time",
                      mf_show_percent(h->copies_s / h->step_s).s);
    }
    if (isfinite(h->exposed_s)) {
        n += snprintf(out + n, size - (size_t)n, "; it waits %s for them",
                      mf_show_time(h->exposed_s).s);
    }
    out += n, size -= (size_t)n;
    if (h->searched && h->without_s > 0) {
        snprintf(out, size, "; without them it takes %s: a gain of %s rests on them",
                 mf_show_time(h->without_s).s, mf_show_percent(1 - h->step_s / h->without_s).s);
    } else if (h->searched && h->optimizer) {
        snprintf(out, size,
                 "; nothing fits without optimizer states on the host (--offload-optimizer 1)");
    } else if (h->searched) {
        snprintf(out, size, "; %s", h->infeasible ? "nothing fits without them" : "asked for");
    }
}

void mf_host_copies_print(FILE *out, const mf_host_copies *h) {
    char text[600], known[300];
    if (h->gpus == 0) {
        return;
    }
    if (h->used) {
        say_used(h, text, sizeof text);
    } else if (h->with_s > 0 && h->with_s < LEAST_GAIN * h->step_s) {
        snprintf(text, sizeof text,
                 "with activations on the host this layout takes %s, %s less (--search-offload)",
                 mf_show_time(h->with_s).s, mf_show_percent(1 - h->with_s / h->step_s).s);
    } else {
        return;
    }
    say_known(h, known, sizeof known);
    const size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "; %s", known);
    fputs("host copies ", out);
    mf_show_wrap(out, text, 12, 12, 99);
}

void mf_host_copies_print_note(FILE *out, const mf_host_copies *h, const char *who) {
    char text[500], known[300];
    if (h->used && h->gpus > 0 && !mf_host_copies_measured(h)) {
        say_known(h, known, sizeof known);
        snprintf(text, sizeof text, "%s on copies between GPU and host; %s", who, known);
        fputs("host copies ", out);
        mf_show_wrap(out, text, 12, 12, 99);
    }
}

void mf_host_copies_print_steps(FILE *out, const mf_job *j, const mf_steps *steps) {
    mf_host_copies h = {0};
    for (int i = 0; i < steps->count && !h.used; i++) {
        h = mf_host_copies_known(j, &steps->step[i].layout, &steps->step[i].assignment);
    }
    mf_host_copies_print_note(out, &h, "steps with activations or optimizer states there rest");
}

void mf_host_copies_print_plans(FILE *out, const mf_job *j, const mf_search_result *r) {
    mf_host_copies h = {0};
    for (int i = 0; i < r->count && !h.used; i++) {
        h = mf_host_copies_known(j, &r->plan[i].layout, &r->plan[i].assignment);
    }
    mf_host_copies_print_note(out, &h, "plans with activations or optimizer states there rest");
}

static void write_or_null(mf_json_writer *w, const char *key, double value) {
    mf_json_write_f64(w, key, value > 0 ? value : (double)NAN);
}

void mf_host_copies_json(mf_json_writer *w, const mf_host_copies *h) {
    mf_json_write_object(w, "host_copies", false);
    mf_json_write_bool(w, "used", h->used);
    mf_json_write_bool(w, "measured", mf_host_copies_measured(h));
    mf_json_write_i64(w, "gpus_of_a_host", h->gpus);
    write_or_null(w, "host_shared_Bps", h->shared_Bps);
    mf_json_write_f64(w, "copies_s", h->copies_s);
    mf_json_write_f64(w, "exposed_s", h->exposed_s);
    if (h->searched) {
        mf_json_write_bool(w, "fits_without", !h->infeasible);
        mf_json_write_bool(w, "optimizer", h->optimizer);
        write_or_null(w, "step_time_without_s", h->without_s);
        write_or_null(w, "step_time_with_s", h->with_s);
    }
    mf_json_write_end(w);
}

void mf_host_copies_json_step(mf_json_writer *w, const mf_job *j, const mf_one_step *s) {
    const mf_host_copies h = mf_host_copies_known(j, &s->layout, &s->assignment);
    if (h.used) {
        mf_host_copies_json(w, &h);
    }
}
