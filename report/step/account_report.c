/* account_report.c - what the ops of a stage cost one by one. */
#include "report/step/account_report.h"

#include "report/text/show.h"

static const char *pass_text(uint8_t pass) {
    switch (pass) {
    case MF_PASS_F:
        return "forward";
    case MF_PASS_R:
        return "recompute";
    case MF_PASS_B:
        return "input gradient";
    case MF_PASS_W:
        return "weight gradient";
    default:
        return "once a step";
    }
}

static void print_modules(FILE *out, const mf_account *a) {
    fprintf(out,
            "\nwhat the ops of stage %lld cost one by one (no overlap, no waiting)\n"
            "  %-14s %10s %14s\n",
            (long long)a->stage, "module", "compute", "communication");
    for (int m = 0; m < MF_MODULE_COUNT; m++) {
        double both = a->compute_s[m] + a->communication_s[m];
        if (both < 0.0005 * a->total_s) {
            continue;
        }
        fprintf(out, "  %-14s %10s %14s  %7s", mf_module_text((mf_module)m),
                mf_show_time(a->compute_s[m]).s, mf_show_time(a->communication_s[m]).s,
                mf_show_percent(both / a->total_s).s);
        mf_show_bar(out, both, a->total_s, 32);
        putc('\n', out);
    }
}

static void print_ops(FILE *out, const mf_account *a, int top) {
    fprintf(out, "\nits costliest ops\n  %-18s %-16s %9s %10s %10s %7s  %s\n", "op", "pass",
            "times", "each", "in all", "limit", "rests on");
    for (int i = 0; i < a->nops && i < top; i++) {
        const mf_account_op *o = &a->op[i];
        fprintf(out, "  %-18s %-16s %9s %10s %10s %7s  %s\n", o->name, pass_text(o->pass),
                mf_show_i64(o->count).s, mf_show_time(o->time_s / (double)o->count).s,
                mf_show_time(o->time_s).s, mf_show_percent(o->limit_s / o->time_s).s,
                mf_basis_text((mf_basis)o->basis));
    }
    fputs("prices rest on:", out);
    const char *gap = " ";
    for (int b = 0; b < MF_BASIS_COUNT; b++) {
        if (a->basis_s[b] >= 0.0005 * a->total_s && a->total_s > 0) {
            fprintf(out, "%s%s: %s", gap, mf_basis_text((mf_basis)b),
                    mf_show_percent(a->basis_s[b] / a->total_s).s);
            gap = "; ";
        }
    }
    putc('\n', out);
}

void mf_account_report_print(FILE *out, const mf_account *a, int top) {
    print_modules(out, a);
    print_ops(out, a, top);
}

void mf_account_report_json_bases(mf_json_writer *w, const mf_account *a) {
    mf_json_write_array(w, "prices_rest_on", false);
    for (int b = 0; b < MF_BASIS_COUNT; b++) {
        if (a->basis_s[b] > 0) {
            mf_json_write_object(w, NULL, true);
            mf_json_write_string(w, "basis", mf_basis_text((mf_basis)b));
            mf_json_write_f64(w, "time_s", a->basis_s[b]);
            mf_json_write_f64(w, "share", a->basis_s[b] / a->total_s);
            mf_json_write_end(w);
        }
    }
    mf_json_write_end(w);
}

void mf_account_report_json(mf_json_writer *w, const mf_account *a, int top) {
    mf_json_write_i64(w, "account_stage", a->stage);
    mf_json_write_array(w, "modules", false);
    for (int m = 0; m < MF_MODULE_COUNT; m++) {
        if (a->compute_s[m] + a->communication_s[m] > 0) {
            mf_json_write_object(w, NULL, true);
            mf_json_write_string(w, "module", mf_module_text((mf_module)m));
            mf_json_write_f64(w, "compute_s", a->compute_s[m]);
            mf_json_write_f64(w, "communication_s", a->communication_s[m]);
            mf_json_write_end(w);
        }
    }
    mf_json_write_end(w);
    mf_json_write_array(w, "ops", false);
    for (int i = 0; i < a->nops && i < top; i++) {
        const mf_account_op *o = &a->op[i];
        mf_json_write_object(w, NULL, true);
        mf_json_write_string(w, "op", o->name);
        mf_json_write_string(w, "kind", mf_op_text((mf_op_kind)o->kind));
        mf_json_write_string(w, "module", mf_module_text((mf_module)o->module));
        mf_json_write_string(w, "pass", pass_text(o->pass));
        mf_json_write_i64(w, "count", o->count);
        mf_json_write_f64(w, "time_s", o->time_s);
        mf_json_write_f64(w, "limit_s", o->limit_s);
        mf_json_write_string(w, "basis", mf_basis_text((mf_basis)o->basis));
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
    mf_account_report_json_bases(w, a);
}
