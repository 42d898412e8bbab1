/* host_measure.c - measures CPU ranks, marks what disturbed that, and says so. */
#include "cli/host_measure.h"

#include "cli/commands.h"
#include "executor/measure/measure_ranks.h"
#include "job/kept/host_cpu.h"
#include "job/kept/host_load.h"

#include <unistd.h>

static void warn_of_mark(const mf_host_cpu *h, FILE *notes) {
    mf_host_cpu_mark mark;
    if (notes == NULL || !h->known || !mf_host_cpu_mark_read(h, &mark)) {
        return;
    }
    if (mark.others >= MF_HOST_CPU_QUIET) {
        fprintf(notes,
                "warning: cluster cpu: while it was measured other programs did %.0f %% of this "
                "machine's work, so step times may be far off: the first command that finds the "
                "cores free measures it again\n",
                100 * mark.others);
    } else {
        fprintf(notes,
                "note: cluster cpu: %d op%s took very different times when measured: the next "
                "command that finds the cores free measures again\n",
                mark.noisy, mark.noisy == 1 ? "" : "s");
    }
}

static void measure(int64_t ranks, const mf_host_cpu *h, FILE *notes) {
    mf_host_cpu_mark before;
    const bool repeats = mf_host_cpu_mark_read(h, &before) && before.others < MF_HOST_CPU_QUIET;
    before.repeats += repeats;
    const mf_host_load from = mf_host_load_now();
    mf_ranks_measured m;
    const bool terminal = notes != NULL && isatty(fileno(notes)) == 1;
    if (terminal) { /* wiped when it is done */
        fputs("measuring the cores of this machine, once, for some seconds", notes);
        fflush(notes);
    }
    const char *why = mf_measure_ranks(ranks, h->folder, h->store, h->software, &m);
    const mf_host_load to = mf_host_load_now();
    if (terminal) {
        fputs("\r\033[K", notes);
    }
    if (why == NULL) {
        mf_host_cpu_mark_write(h, before, mf_host_load_of_others(&from, &to), m.noisy);
    }
    if (notes != NULL && why == NULL) {
        fprintf(notes,
                "note: cluster cpu: %lld rank%s of this machine measured%s in %.1f s and kept in "
                "%s (MOEFOLD_CPU=off: shipped assumptions)\n",
                (long long)ranks, ranks == 1 ? "" : "s", h->known ? " again" : "", m.took_s,
                h->base);
    } else if (notes != NULL) {
        fprintf(notes, "note: cluster cpu: this machine was not measured (%s; folder %s)\n", why,
                h->base);
    }
}

static bool measure_if_due(int64_t ranks, const mf_host_cpu *h, FILE *notes) {
    const bool due =
        mf_cli_command_find("train") != NULL && mf_host_cpu_is_due(h, mf_host_load_is_busy);
    if (due) {
        measure(ranks, h, notes);
    }
    return due;
}

/* A plan says only when it is loaded how many ranks it is for. */
static void measure_for_request(const mf_job_request *r, FILE *notes) {
    mf_host_cpu h;
    if (r->cluster != NULL && r->plan == NULL && mf_request_gives(r, MF_GIVEN_GPUS) &&
        mf_host_cpu_is_asked(r, r->cluster) && mf_host_cpu_find(r->layout.gpus, &h)) {
        (void)measure_if_due(r->layout.gpus, &h, notes);
    }
}

mf_status mf_host_load_job(mf_job *j, const mf_job_request *r, mf_job_load_fn load, FILE *notes,
                           mf_err *e) {
    measure_for_request(r, notes);
    mf_status s = load(j, r, e);
    if (s == MF_OK && r->plan != NULL && j->host.store[0] != '\0' &&
        measure_if_due(j->plan.layout.gpus, &j->host, notes)) {
        mf_job_request again = *r;
        again.notes = NULL; /* all was said */
        mf_job_clear(j);
        s = load(j, &again, e);
        j->asked.notes = r->notes;
    }
    if (s == MF_OK) {
        warn_of_mark(&j->host, notes);
    }
    return s;
}
