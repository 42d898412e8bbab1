/* main.c - `make validate`: predicts every complete published row of a known family and writes
 * docs/ACCURACY.md. With --fit the software profiles are fitted first and written back; with
 * --cross-validate other widths of the priors are tried besides, inside the fitted rows; with
 * --rows one line a row, with --ops what a row's ops take goes to stdout and nothing is written;
 * --commands prints the line of `moefold simulate` that gives each row's number, and nothing else.
 */
#include "bench/published/report.h"

#include <stdlib.h>
#include <string.h>

static void print_rows(const pub_row *rows, int count) {
    for (int i = 0; i < count; i++) {
        const pub_row *r = &rows[i];
        const mf_layout *l = &r->layout;
        if (r->skipped[0]) {
            printf("%-9s %-22s skipped: %s\n", r->id, r->model_name, r->skipped);
            continue;
        }
        printf("%-9s %-18s %-6s x%-5lld %-10s T%lldC%lldP%lldV%lldE%lldX%lldm%lld %-11s %-9s g%d "
               "%-14s %s u%02x  %8.3f %8.3f %+6.1f%% [",
               r->id, r->model_name, r->gpu, (long long)l->gpus, mf_precision_text(l->precision),
               (long long)l->tp, (long long)l->cp, (long long)l->pp, (long long)l->vpp,
               (long long)l->ep, (long long)l->etp, (long long)l->mbs,
               mf_schedule_text(l->schedule), mf_dispatcher_text(l->dispatcher), (int)l->graph,
               r->software, r->held_out ? "held" : "fit ", r->unknown, r->step_s, r->predicted_s,
               100 * (r->predicted_s / r->step_s - 1));
        for (int k = 0; k < 11; k++) {
            printf(" %.0f", 100 * r->breakdown_s[k] / r->predicted_s);
        }
        printf(" ]\n");
    }
}

/* One line a row: what `moefold simulate` is to be asked, and what it answers: step time, band
 * and the peak of memory that the row's program prints, with the digits of its --json. */
static mf_status print_commands(const pub_row *rows, int count, mf_err *e) {
    for (int i = 0; i < count; i++) {
        const pub_row *r = &rows[i];
        mf_json_writer w;
        char *text = NULL;
        size_t length;
        if (r->skipped[0]) {
            continue;
        }
        mf_json_writer_init(&w);
        mf_json_write_array(&w, NULL, true);
        mf_json_write_f64(&w, NULL, r->predicted_s);
        mf_json_write_f64(&w, NULL, r->low_s);
        mf_json_write_f64(&w, NULL, r->high_s);
        mf_json_write_f64(&w, NULL, r->predicted_memory_B);
        mf_json_write_end(&w);
        mf_status s = mf_json_writer_finish(&w, &text, &length, e);
        if (s != MF_OK) {
            return s;
        }
        pub_command_print(stdout, r);
        printf(" # %s %s", r->id, text);
        free(text);
    }
    return MF_OK;
}

int main(int argc, char **argv) {
    const char *table = "bench/published/published.csv", *out = "docs/ACCURACY.md", *ops = NULL;
    bool fit = false, list = false, cross = false, commands = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--fit") == 0) {
            fit = true;
        } else if (strcmp(argv[i], "--cross-validate") == 0) {
            cross = true;
        } else if (strcmp(argv[i], "--ops") == 0 && i + 1 < argc) {
            ops = argv[++i];
        } else if (strcmp(argv[i], "--commands") == 0) {
            commands = true;
        } else if (strcmp(argv[i], "--rows") == 0) {
            list = true;
        } else if (strcmp(argv[i], "--out") == 0 && i + 1 < argc) {
            out = argv[++i];
        } else {
            fprintf(stderr,
                    "validate: unknown argument %s (known: --fit --cross-validate "
                    "--rows --commands --ops ID --out FILE)\n",
                    argv[i]);
            return 2;
        }
    }
    mf_err e;
    mf_err_clear(&e);
    pub_row *rows = NULL;
    int count = 0;
    pub_profiles profiles;
    pub_costs *costs = NULL;
    FILE *f = NULL;
    mf_status status = pub_rows_load(table, &rows, &count, &e);
    if (status == MF_OK) {
        status = pub_profiles_load(&profiles, rows, count, &e);
    }
    if (status == MF_OK) {
        status = pub_costs_create(&profiles, rows, count, &costs, &e);
    }
    if (status == MF_OK && fit) {
        status = pub_fit(costs, &profiles, rows, count, &e);
    } else if (status == MF_OK) {
        pub_predict(costs, &profiles, rows, count, false);
    }
    if (status == MF_OK && cross) {
        status = pub_cross_validate(costs, &profiles, rows, count, &e);
    }
    if (status == MF_OK && fit) {
        status = pub_profiles_save(&profiles, &e);
    }
    for (int i = 0; status == MF_OK && ops != NULL && i < count; i++) {
        if (strcmp(rows[i].id, ops) == 0 && !rows[i].skipped[0]) {
            status = pub_print_ops(&profiles, &rows[i], &e);
        }
    }
    if (status == MF_OK && commands) {
        status = print_commands(rows, count, &e);
        goto out;
    }
    const bool writes = !list && ops == NULL;
    if (status == MF_OK && writes && (f = fopen(out, "w")) == NULL) {
        status = mf_err_set(&e, MF_IO, "%s: cannot be written", out);
    }
    if (status == MF_OK) {
        if (writes) {
            pub_report(f, &profiles, rows, count);
            fprintf(stderr, "validate: wrote %s\n", out);
        }
        pub_summary(stdout, rows, count);
        if (list) {
            print_rows(rows, count);
        }
    } else {
        fprintf(stderr, "validate: %s\n", e.text);
    }
out:
    if (f != NULL && fclose(f) != 0) {
        status = MF_IO;
    }
    pub_costs_destroy(costs);
    pub_rows_free(rows, count);
    return mf_status_exit_code(status);
}
