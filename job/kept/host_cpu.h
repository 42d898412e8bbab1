/* host_cpu.h - measurements of ranks on this machine's CPU cores, made once and kept for its user,
 * on which prices of the cluster `cpu` rest.
 *
 * They are kept in $MOEFOLD_CPU, else $XDG_CACHE_HOME/moefold, else ~/.cache/moefold, by version,
 * processor, cores and number of ranks (ranks that share cores wait for each other): a profile
 * store, and a software profile with the factor by which whole steps take longer than the store's
 * ops. What was disturbed is marked, to be measured again when other programs leave the cores free.
 * MOEFOLD_CPU=off: nothing is measured, and no earlier measurement is used.
 */
#ifndef MF_JOB_HOST_CPU_H
#define MF_JOB_HOST_CPU_H

#include "core/base/status.h"
#include "costmodel/cost.h"
#include "job/request/request.h"

#include <stdbool.h>
#include <stdint.h>

/* More ranks than this, or than twice the cores, are not measured. */
enum { MF_HOST_CPU_MOST = 16 };

typedef struct mf_host_cpu {
    char base[512], folder[576];    /* of all machines, of this one */
    char store[640], software[640]; /* files */
    char busy[640];                 /* a file: the mark */
    bool known;                     /* store and software are there */
} mf_host_cpu;

/* Finds where the measurements for so many ranks are kept. False: switched off, no folder for them,
 * or too many ranks. */
bool mf_host_cpu_find(int64_t ranks, mf_host_cpu *out);

/* What disturbed a measurement. All zero: nothing. */
typedef struct mf_host_cpu_mark {
    double others; /* share of the cores' work that other programs did meanwhile */
    int noisy;     /* ops whose times differ so much that their mean says little */
    int repeats;   /* how often it was repeated on free cores because of noisy ops */
} mf_host_cpu_mark;

/* Others do less than this share: the cores are free. */
#define MF_HOST_CPU_QUIET 0.2
/* Noisy ops alone are measured again this often: some differ on free cores, too. */
enum { MF_HOST_CPU_REPEATS = 1 };

/* Marks what was just measured, the mark before being `before`. What was disturbed by others, or
 * has noisy ops and repeats left, keeps a mark; of the rest it goes. */
void mf_host_cpu_mark_write(const mf_host_cpu *h, mf_host_cpu_mark before, double others,
                            int noisy);
/* True: there is one. One that cannot be read says that others did all work. */
bool mf_host_cpu_mark_read(const mf_host_cpu *h, mf_host_cpu_mark *out);

/* Is there nothing measured yet, or something disturbed while the cores are free? is_busy: asked
 * only where it matters (mf_host_load_is_busy). */
bool mf_host_cpu_is_due(const mf_host_cpu *h, bool (*is_busy)(void));

/* Does a request use prices of this machine, that is the shipped cluster `cpu` and no store? */
bool mf_host_cpu_is_asked(const mf_job_request *r, const char *cluster);

/* Gives each of so many ranks an equal share of this machine's memory, as GPU memory of the
 * cluster. */
void mf_host_cpu_memory(mf_cluster *c, int64_t ranks);

/* Puts the measured factor of whole steps into `s`, the profile "moefold". Leaves it unchanged when
 * the factor cannot be read. */
void mf_host_cpu_correct(const mf_host_cpu *h, mf_software *s);

#endif
