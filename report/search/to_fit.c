/* to_fit.c - steps that make a layout fit, least time first. */
#include "report/search/to_fit.h"

#include "report/basis/host_copies_text.h"
#include "report/text/show.h"

#include <string.h>

void mf_to_fit_print(FILE *out, const mf_job *j, const mf_steps *steps, double now_s) {
    if (steps->count == 0) {
        fputs("\nno single step, and no pair of those that were tried, makes it fit\n", out);
        return;
    }
    int width = 46;
    for (int i = 0; i < steps->count; i++) {
        const int length = (int)strlen(steps->step[i].what);
        width = length > width ? length : width;
    }
    fprintf(out, "\nwhat would make it fit, least time first\n  %-*s %10s %10s%s\n", width, "with",
            "step time", "memory", now_s > 0 ? "      cost" : "");
    for (int i = 0; i < steps->count; i++) {
        const mf_one_step *s = &steps->step[i];
        fprintf(out, "  %-*s %10s %10s", width, s->what, mf_show_time(s->step_time_s).s,
                mf_show_bytes(s->peak_B).s);
        if (now_s > 0) {
            fprintf(out, "  %+6.1f %%", 100 * (s->step_time_s / now_s - 1));
        }
        putc('\n', out);
    }
    mf_host_copies_print_steps(out, j, steps);
}

void mf_to_fit_json(mf_json_writer *w, const mf_job *j, const mf_steps *steps) {
    mf_json_write_array(w, "to_fit", false);
    for (int i = 0; i < steps->count; i++) {
        mf_json_write_object(w, NULL, true);
        mf_json_write_string(w, "what", steps->step[i].what);
        mf_json_write_f64(w, "step_time_s", steps->step[i].step_time_s);
        mf_json_write_f64(w, "peak_memory_B", steps->step[i].peak_B);
        mf_host_copies_json_step(w, j, &steps->step[i]);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
}
