/* price_report.c - prints an op's price, and the list of ops that have one. */
#include "report/inputs/price_report.h"

#include "profiles/ops_table.h"
#include "report/step/report.h"
#include "report/text/show.h"

static const char *const link_text[] = {
    [MF_LINK_NONE] = "none",
    [MF_LINK_SCALEUP] = "scale-up",
    [MF_LINK_NETWORK] = "network",
    [MF_LINK_HOST] = "host",
};

void mf_price_report_print(FILE *out, const mf_op_priced *p, const mf_cost *cost) {
    const mf_price *r = &p->price;
    fprintf(out, "%s on %s, software profile %s\n", p->key, mf_cost_cluster(cost)->name,
            mf_cost_software(cost)->name);
    fprintf(out, "  time    %s  (%s to %s)\n", mf_show_time(r->time_s).s, mf_show_time(r->low_s).s,
            mf_show_time(r->high_s).s);
    if (r->time_s > 0 && r->limit_s > 0) {
        fprintf(out, "  limit   %s; %s of it is reached\n", mf_show_time(r->limit_s).s,
                mf_show_percent(r->limit_s / r->time_s).s);
    }
    if (r->time_s > 0 && p->what.flops > 0) {
        fprintf(out, "  rate    %s\n", mf_show_rate(p->what.flops / r->time_s, "FLOP/s").s);
    } else if (p->busbw_Bps > 0) {
        fprintf(out, "  busbw   %s\n", mf_show_rate(p->busbw_Bps, "B/s").s);
    } else if (r->time_s > 0 && p->what.bytes > 0) {
        fprintf(out, "  rate    %s\n", mf_show_rate(p->what.bytes / r->time_s, "B/s").s);
    }
    if (r->link != MF_LINK_NONE) {
        fprintf(out, "  link    %s, %s of it while it runs; %s of the SMs\n", link_text[r->link],
                mf_show_percent(r->link_share).s, mf_show_percent(r->sm_share).s);
    }
    fprintf(out, "  basis   %s\n", mf_basis_text((mf_basis)r->basis));
    if (p->sustained_s > 0 && !mf_cluster_is_cpu(mf_cost_cluster(cost))) {
        mf_power power = mf_cost_power(cost);
        bool small = p->energy_J < 1;
        fprintf(out, "  energy  %.3g %s (%s); run after run %s, %.0f W of %.0f W\n",
                (small ? 1e3 : 1) * p->energy_J, small ? "mJ" : "J",
                power.measured ? "measured" : "from an H200's", mf_show_time(p->sustained_s).s,
                p->energy_J / p->sustained_s, power.cap_W);
    }
}

void mf_price_report_json(mf_json_writer *w, const mf_op_priced *p, const mf_cost *cost) {
    const mf_price *r = &p->price;
    mf_json_write_string(w, "op", p->key);
    mf_json_write_string(w, "cluster", mf_cost_cluster(cost)->name);
    mf_json_write_string(w, "gpu", mf_cost_cluster(cost)->gpu.name);
    mf_json_write_string(w, "software", mf_cost_software(cost)->name);
    mf_json_write_f64(w, "time_s", r->time_s);
    mf_json_write_f64(w, "time_low_s", r->low_s);
    mf_json_write_f64(w, "time_high_s", r->high_s);
    mf_json_write_f64(w, "limit_s", r->limit_s);
    mf_json_write_f64(w, "flops", p->what.flops);
    mf_json_write_f64(w, "bytes_B", p->what.bytes);
    mf_json_write_f64(w, "tflops", r->time_s > 0 ? p->what.flops / r->time_s / 1e12 : 0);
    mf_json_write_f64(w, "busbw_Bps", p->busbw_Bps);
    mf_json_write_string(w, "basis", mf_basis_text((mf_basis)r->basis));
    mf_json_write_f64(w, "sustained_s", p->sustained_s);
    mf_json_write_f64(w, "energy_J", p->energy_J);
    if (p->energy_J > 0 && !mf_cluster_is_cpu(mf_cost_cluster(cost))) {
        const mf_cluster *c = mf_cost_cluster(cost);
        const mf_step_power power = {.known = true, .measured = mf_cost_power(cost).measured};
        mf_report_energies_json(w, mf_report_carries_energy(&power, c->gpu.name), c->gpu.name);
    }
    mf_json_write_string(w, "link", link_text[r->link]);
    mf_json_write_f64(w, "link_share", r->link_share);
    mf_json_write_f64(w, "sm_share", r->sm_share);
}

void mf_price_report_ops(FILE *out) {
    size_t count;
    const mf_op_row *rows = mf_op_rows(&count);
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "%s: %s\n", rows[i].name, rows[i].meaning);
        for (int k = 0; k < rows[i].dims; k++) {
            const mf_op_dim *d = &rows[i].dim[k];
            int column = fprintf(out, "  %s%s%s", d->key, d->fallback != NULL ? "=" : "",
                                 d->fallback != NULL ? d->fallback : "");
            fprintf(out, "%*s", column < 16 ? 16 - column : 1, "");
            mf_show_wrap(out, d->meaning, 16, 16, 79);
        }
    }
}

void mf_price_report_ops_json(mf_json_writer *w) {
    size_t count;
    const mf_op_row *rows = mf_op_rows(&count);
    mf_json_write_array(w, NULL, false);
    for (size_t i = 0; i < count; i++) {
        mf_json_write_object(w, NULL, false);
        mf_json_write_string(w, "op", rows[i].name);
        mf_json_write_string(w, "meaning", rows[i].meaning);
        mf_json_write_array(w, "keys", false);
        for (int k = 0; k < rows[i].dims; k++) {
            const mf_op_dim *d = &rows[i].dim[k];
            mf_json_write_object(w, NULL, true);
            mf_json_write_string(w, "key", d->key);
            mf_json_write_string(w, "default", d->fallback);
            mf_json_write_string(w, "meaning", d->meaning);
            mf_json_write_end(w);
        }
        mf_json_write_end(w);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
}
