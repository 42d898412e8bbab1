/* page_step.c - a predicted step: verdict, where it goes, memory by stage, the schedule. */
#include "report/page/page.h"

#include "core/base/text.h"
#include "core/memory/memory.h"

#include <math.h>
#include <string.h>

/* Colour of the n-th member of an object; there are twelve. */
static int colour(size_t n) {
    return (int)(n % 12);
}

static void write_name(const mf_page *p, const char *key) {
    for (; *key != '\0'; key++) {
        putc(*key == '_' ? ' ' : *key, p->f);
    }
}

/* The word for a kind of memory that the text has, of its key in the JSON. */
static const char *memory_name(const char *key) {
    int k = 0;
    while (k < MF_MEM_COUNT && strcmp(key, mf_memory_text((mf_memory_kind)k)) != 0) {
        k++;
    }
    return k < MF_MEM_COUNT ? mf_memory_name((mf_memory_kind)k) : key;
}

/* What stands at `pointer` as a sentence: "of 2 s a step, 2 % exposed_cp" as "Of 2 s a step, 2 %
 * exposed cp." */
static void write_sentence(const mf_page *p, const char *pointer) {
    char text[1024];
    mf_text_copy(text, sizeof text, mf_page_string(mf_page_at(p, "%s", pointer)));
    for (char *at = text; *at != '\0'; at++) {
        *at = *at == '_' ? ' ' : *at;
    }
    if (text[0] >= 'a' && text[0] <= 'z') {
        text[0] = (char)(text[0] - 'a' + 'A');
    }
    mf_page_prose(p, text);
    fputs(text[0] != '\0' ? "." : "", p->f);
}

/* A colour and what it stands for. */
static void write_legend(const mf_page *p, int c, const char *name) {
    fprintf(p->f, "<li><i style=\"background:var(--c%d)\"></i>", c);
    write_name(p, name);
    fputs("</li>", p->f);
}

/* --- verdict ---------------------------------------------------------------------------------- */

static void write_layout(const mf_page *p) {
    static const char *const degrees[] = {"tp", "cp", "pp", "vpp", "ep", "etp", "dp", "edp"};
    static const char *const words[] = {"schedule", "precision", "dispatcher", "overlap"};
    fputs("<p>", p->f);
    for (size_t i = 0; i < sizeof degrees / sizeof degrees[0]; i++) {
        fputs("<span class=\"keep\">", p->f);
        for (const char *c = degrees[i]; *c != '\0'; c++) {
            putc(*c - 'a' + 'A', p->f);
        }
        putc(' ', p->f);
        mf_page_figure(p, MF_UNIT_WHOLE, "/step/layout/%s", degrees[i]);
        fputs("</span> &ensp;", p->f);
    }
    fputs("<br>", p->f);
    mf_page_figure(p, MF_UNIT_WHOLE, "/step/layout/micro_batches");
    const bool one = mf_page_number(mf_page_at(p, "/step/layout/micro_batches")) == 1;
    fputs(one ? " micro-batch of " : " micro-batches of ", p->f);
    mf_page_figure(p, MF_UNIT_WHOLE, "/step/layout/micro_batch");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        fprintf(p->f, ", %s ", words[i]);
        mf_page_text(p, mf_page_string(mf_page_at(p, "/step/layout/%s", words[i])));
    }
    fputs(", ZeRO ", p->f);
    mf_page_figure(p, MF_UNIT_WHOLE, "/step/layout/zero");
    putc('/', p->f);
    mf_page_figure(p, MF_UNIT_WHOLE, "/step/layout/expert_zero");
    const mf_json_value *choices = mf_page_at(p, "/step/memory_choices");
    const size_t count = choices != NULL ? mf_json_size(choices) : 0;
    if (count == 0) {
        fputs(", no layer recomputes", p->f);
    }
    for (size_t i = 0; i < count; i++) {
        fputs("<br>", p->f);
        mf_page_text(p, mf_page_string(mf_json_at(choices, i)));
    }
    fputs("</p>\n", p->f);
}

/* What a log of the user's says of the software on this cluster, where the times rest on it. */
static void write_correction(const mf_page *p) {
    if (mf_page_at(p, "/step/correction") == NULL) {
        return;
    }
    fputs("<p>Corrected: ", p->f);
    mf_page_figure(p, MF_UNIT_FACTOR, "/step/correction/factor");
    fputs(" times the time of ", p->f);
    mf_page_text(p, mf_page_string(mf_page_at(p, "/step/correction/software")));
    fputs(", by ", p->f);
    mf_page_text(p, mf_page_string(mf_page_at(p, "/step/correction/log")));
    fputs(" on ", p->f);
    mf_page_text(p, mf_page_string(mf_page_at(p, "/step/correction/date")));
    fputs("</p>\n", p->f);
}

/* A name above a large figure; what is written until end_tile stands below it. */
static void begin_tile(const mf_page *p, const char *name, mf_page_unit unit, const char *pointer) {
    fprintf(p->f, "<div class=\"tile\"><span>%s</span><b>", name);
    mf_page_figure(p, unit, "%s", pointer);
    fputs("</b><span>", p->f);
}

static void end_tile(const mf_page *p) {
    fputs("</span></div>\n", p->f);
}

static void write_verdict(const mf_page *p) {
    const bool fits = mf_page_true(mf_page_at(p, "/step/fits"));
    const bool beside = mf_page_at(p, "/tune") != NULL || mf_page_at(p, "/compare") != NULL;
    fputs(beside ? "<section><h2>The plan, as predicted</h2>\n" : "<section>", p->f);
    if (p->under[0] != '\0') { /* at the root it is the page's */
        fputs("<h2>", p->f);
        mf_page_text(p, mf_page_string(mf_page_at(p, "/title")));
        fputs("</h2>\n", p->f);
    }
    fputs("<div class=\"tiles\">\n", p->f);
    begin_tile(p, "step time", MF_UNIT_TIME, "/step/step_time_s");
    mf_page_figure(p, MF_UNIT_TIME, "/step/step_time_low_s");
    fputs(" to ", p->f);
    mf_page_figure(p, MF_UNIT_TIME, "/step/step_time_high_s");
    end_tile(p);
    begin_tile(p, "rate", MF_UNIT_TFLOPS, "/step/model_tflops_per_gpu");
    mf_page_figure(p, MF_UNIT_WHOLE, "/step/tokens_per_s_per_gpu");
    fputs(" tokens/s, a GPU", p->f);
    end_tile(p);
    begin_tile(p, "MFU", MF_UNIT_SHARE, "/step/mfu");
    fputs("of ", p->f);
    mf_page_figure(p, MF_UNIT_TFLOPS, "/step/peak_tflops");
    end_tile(p);
    begin_tile(p, "memory", MF_UNIT_BYTES, "/step/peak_memory_B");
    fprintf(p->f, "<strong class=\"%s\">%s</strong> of ", fits ? "good" : "bad",
            fits ? "fits" : "does not fit");
    mf_page_figure(p, MF_UNIT_BYTES, "/step/usable_B");
    end_tile(p);
    if (mf_page_at(p, "/search/gap") != NULL) {
        begin_tile(p, "proof", MF_UNIT_SHARE, "/search/gap");
        fputs("no plan takes less than ", p->f);
        mf_page_figure(p, MF_UNIT_TIME, "/search/lower_bound_s");
        end_tile(p);
    }
    if (mf_page_at(p, "/search/runs_on") != NULL) {
        const double free_s = mf_page_number(mf_page_at(p, "/search/unlimited_step_time_s"));
        begin_tile(p, "without a limit", MF_UNIT_TIME, "/search/unlimited_step_time_s");
        fputs(free_s < mf_page_number(mf_page_at(p, "/step/step_time_s"))
                  ? "found; this plan runs on "
                  : "no faster plan was found than for ",
              p->f);
        mf_page_text(p, mf_page_string(mf_page_at(p, "/search/runs_on")));
        end_tile(p);
    }
    fputs("</div>\n", p->f);
    write_layout(p);
    write_correction(p);
    fputs("</section>\n", p->f);
}

/* --- where the step goes ---------------------------------------------------------------------- */

static void write_breakdown(const mf_page *p) {
    const mf_json_value *parts = mf_page_at(p, "/step/breakdown_s");
    const double whole = mf_page_number(mf_page_at(p, "/step/step_time_s"));
    if (parts == NULL || whole <= 0) {
        return;
    }
    fputs("<section><h2>Where the step goes</h2>\n<div class=\"rows\">\n", p->f);
    for (size_t i = 0; i < mf_json_size(parts); i++) {
        const char *key = mf_json_key_at(parts, i);
        const double share = mf_page_number(mf_json_at(parts, i)) / whole;
        if (share < 5e-4) {
            continue;
        }
        fputs("<span class=\"name\">", p->f);
        write_name(p, key);
        fprintf(p->f,
                "</span><div class=\"bar\"><i style=\"width:%.2f%%;background:var(--c%d)\"></i>"
                "</div><span>",
                100 * share, colour(i));
        mf_page_figure(p, MF_UNIT_TIME, "/step/breakdown_s/%s", key);
        fputs("</span>\n", p->f);
    }
    fputs("</div>\n<p class=\"note\">", p->f);
    write_sentence(p, "/explanation/time");
    fputs("</p></section>\n", p->f);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Does any stage hold as much of it as shows? */
static bool shows(const mf_page *p, const char *key, size_t stages, double capacity_B) {
    double most = 0;
    for (size_t s = 0; s < stages; s++) {
        most = fmax(most, mf_page_number(mf_page_at(p, "/step/stages/%zu/memory_B/%s", s, key)));
    }
    return most >= 2e-3 * capacity_B;
}

static void write_memory_row(const mf_page *p, size_t stage, double scale_B) {
    const mf_json_value *kinds = mf_page_at(p, "/step/stages/%zu/memory_B", stage);
    const double usable_B = mf_page_number(mf_page_at(p, "/step/usable_B"));
    char text[32];
    fprintf(p->f, "<span class=\"name\">stage %zu</span><div class=\"bar\">", stage);
    for (size_t k = 0; kinds != NULL && k < mf_json_size(kinds); k++) {
        const double bytes = mf_page_number(mf_json_at(kinds, k));
        if (bytes <= 0) {
            continue;
        }
        mf_page_show(MF_UNIT_BYTES, bytes, text);
        fprintf(p->f,
                "<i data-at=\"%s/step/stages/%zu/memory_B/%s\" style=\"width:%.2f%%;"
                "background:var(--c%d)\" title=\"",
                p->under, stage, mf_json_key_at(kinds, k), 100 * bytes / scale_B, colour(k));
        write_name(p, memory_name(mf_json_key_at(kinds, k)));
        fprintf(p->f, ": %s\"></i>", text);
    }
    fprintf(p->f, "<u style=\"left:%.2f%%\"></u></div><span>", 100 * usable_B / scale_B);
    mf_page_figure(p, MF_UNIT_BYTES, "/step/stages/%zu/peak_memory_B", stage);
    fputs("</span>\n", p->f);
}

static void write_memory(const mf_page *p) {
    const mf_json_value *stages = mf_page_at(p, "/step/stages");
    double scale_B = mf_page_number(mf_page_at(p, "/step/capacity_B"));
    if (stages == NULL || scale_B <= 0) {
        return;
    }
    scale_B = fmax(scale_B, mf_page_number(mf_page_at(p, "/step/peak_memory_B")));
    fputs("<section><h2>Memory by stage</h2>\n<div class=\"rows\">\n", p->f);
    for (size_t s = 0; s < mf_json_size(stages); s++) {
        write_memory_row(p, s, scale_B);
    }
    fputs("</div>\n<ul class=\"legend\">", p->f);
    const mf_json_value *kinds = mf_page_at(p, "/step/stages/0/memory_B");
    for (size_t k = 0; kinds != NULL && k < mf_json_size(kinds); k++) {
        if (shows(p, mf_json_key_at(kinds, k), mf_json_size(stages), scale_B)) {
            write_legend(p, colour(k), memory_name(mf_json_key_at(kinds, k)));
        }
    }
    fputs("</ul>\n<p class=\"note\">At the peak of each stage; the line is what is usable, ", p->f);
    mf_page_figure(p, MF_UNIT_BYTES, "/step/usable_B");
    fputs(" of ", p->f);
    mf_page_figure(p, MF_UNIT_BYTES, "/step/capacity_B");
    fputs(". ", p->f);
    write_sentence(p, "/explanation/memory");
    fputs("</p></section>\n", p->f);
}

void mf_page_step(const mf_page *p) {
    if (mf_page_at(p, "/step") != NULL) {
        write_verdict(p);
        write_breakdown(p);
        write_memory(p);
    }
}

/* --- the schedule ----------------------------------------------------------------------------- */

static const struct {
    const char *pass, *name; /* the last one: any other pass */
    int colour;
} passes[] = {
    {"F", "forward", 0},
    {"B", "backward", 3},
    {"W", "weight gradient", 5},
    {"mixed", "several passes together", 11},
    {"", "forward of one beside backward of another", 7},
};
enum { PASSES = sizeof passes / sizeof passes[0] };

static int pass_of(const char *pass) {
    int i = 0;
    while (i < PASSES - 1 && strcmp(pass, passes[i].pass) != 0) {
        i++;
    }
    return i;
}

/* Of the passes that are drawn. */
static void write_passes(const mf_page *p, const mf_json_value *all) {
    bool drawn[PASSES] = {false};
    for (size_t i = 0; i < mf_json_size(all); i++) {
        drawn[pass_of(mf_page_string(mf_json_find(mf_json_at(all, i), "pass")))] = true;
    }
    for (int i = 0; i < PASSES; i++) {
        if (drawn[i]) {
            write_legend(p, passes[i].colour, passes[i].name);
        }
    }
}

static void write_title(const mf_page *p, const mf_json_value *slice, const char *pass) {
    const double first = mf_page_number(mf_json_find(slice, "micro_batch"));
    const double last = mf_page_number(mf_json_find(slice, "last_micro_batch"));
    char start[32], end[32];
    mf_page_show(MF_UNIT_TIME, mf_page_number(mf_json_find(slice, "start_s")), start);
    mf_page_show(MF_UNIT_TIME, mf_page_number(mf_json_find(slice, "end_s")), end);
    fprintf(p->f, "%s: %s to %s, ", pass, start, end);
    if (strcmp(pass, "mixed") != 0) {
        fprintf(p->f, "chunk %.0f, ", mf_page_number(mf_json_find(slice, "chunk")));
    }
    fprintf(p->f, "micro-batch %.0f", first);
    if (last > first) {
        fprintf(p->f, " to %.0f", last);
    }
    const mf_json_value *waiting = mf_json_find(slice, "waiting_s");
    if (waiting != NULL) {
        mf_page_show(MF_UNIT_TIME, mf_page_number(waiting), start);
        fprintf(p->f, ", waiting %s of it", start);
    }
    fputs("</title></rect>\n", p->f);
}

/* The slices of a stage, which stand together; returns where the next stage's begin. */
static size_t write_lane(const mf_page *p, const mf_json_value *all, size_t from, double whole_s) {
    const double stage = mf_page_number(mf_json_find(mf_json_at(all, from), "stage"));
    size_t i = from;
    fprintf(p->f,
            "<span class=\"name\">stage %.0f</span><svg viewBox=\"0 0 10000 10\" "
            "preserveAspectRatio=\"none\" role=\"img\" aria-label=\"stage %.0f\">",
            stage, stage);
    for (; i < mf_json_size(all); i++) {
        const mf_json_value *s = mf_json_at(all, i);
        const char *pass = mf_page_string(mf_json_find(s, "pass"));
        const bool many = mf_json_find(s, "waiting_s") != NULL;
        const double start_s = mf_page_number(mf_json_find(s, "start_s"));
        const double end_s = mf_page_number(mf_json_find(s, "end_s"));
        if (fabs(mf_page_number(mf_json_find(s, "stage")) - stage) > 0.5) {
            break;
        }
        fprintf(p->f,
                "<rect data-at=\"%s/schedule/%zu\" x=\"%.0f\" width=\"%.0f\" y=\"0\" height=\"10\" "
                "fill=\"var(--c%d)\" fill-opacity=\"%s\"><title>",
                p->under, i, 1e4 * start_s / whole_s,
                fmax(1, 1e4 * (end_s - start_s) / whole_s - 4), passes[pass_of(pass)].colour,
                many || (long)mf_page_number(mf_json_find(s, "micro_batch")) % 2 == 0 ? "1"
                                                                                      : ".72");
        write_title(p, s, pass);
    }
    fputs("</svg>\n", p->f);
    return i;
}

void mf_page_schedule(const mf_page *p) {
    const mf_json_value *all = mf_page_at(p, "/schedule");
    const double whole_s = mf_page_number(mf_page_at(p, "/step/step_time_s"));
    if (all == NULL || mf_json_size(all) == 0 || whole_s <= 0) {
        return;
    }
    fputs("<section><h2>The schedule</h2>\n<div class=\"gantt\">\n", p->f);
    for (size_t i = 0; i < mf_json_size(all);) {
        i = write_lane(p, all, i, whole_s);
    }
    fputs("<span></span><div class=\"axis\"><span>0 s</span><span>", p->f);
    mf_page_figure(p, MF_UNIT_TIME, "/step/step_time_s");
    fputs("</span></div></div>\n<ul class=\"legend\">", p->f);
    write_passes(p, all);
    fputs("</ul>\n<p class=\"note\">One rank of each stage; point at a slice for its micro-batch "
          "and times. What is left blank is waiting.</p></section>\n",
          p->f);
}
