/* host_cpu.h - what ranks on this machine's CPU cores were measured to take, once, and kept for its
 * user: prices of the cluster `cpu` then rest on it.
 *
 * Kept in $MOEFOLD_CPU, else $XDG_CACHE_HOME/moefold, else ~/.cache/moefold, by version, processor,
 * cores and number of ranks (ranks that share cores wait for each other): a profile store, and a
 * software profile with the factor by which whole steps take longer than the ops of the store say.
 * What was measured while other programs had the cores is marked, to be measured again.
 * MOEFOLD_CPU=off: nothing is measured, nothing that was is used.
 */
#ifndef MF_JOB_HOST_CPU_H
#define MF_JOB_HOST_CPU_H

#include "core/base/status.h"
#include "costmodel/cost.h"
#include "job/request.h"

#include <stdbool.h>
#include <stdint.h>

/* More ranks than this, or than twice the cores, are not measured. */
enum { MF_HOST_CPU_MOST = 16 };

typedef struct mf_host_cpu {
    char base[512], folder[576];    /* of all machines, of this one */
    char store[640], software[640]; /* files */
    char busy[640];                 /* a file that says how busy others were meanwhile */
    bool known;                     /* store and software are there */
} mf_host_cpu;

/* Where the figures of so many ranks are kept. False: switched off, no folder to keep them in, or
 * too many ranks. */
bool mf_host_cpu_find(int64_t ranks, mf_host_cpu *out);

/* Marks what was just measured: others did this share of the cores' work; below
 * MF_HOST_CPU_QUIET the mark goes. */
#define MF_HOST_CPU_QUIET 0.2
void mf_host_cpu_mark(const mf_host_cpu *h, double others);

/* The share that a mark names; 0: the cores were free. */
double mf_host_cpu_marked(const mf_host_cpu *h);

/* Does a request ask for prices of this machine: the shipped cluster `cpu` and no store? */
bool mf_host_cpu_is_asked(const mf_job_request *r, const char *cluster);

/* Makes `s`, which is the profile "moefold", as slow as whole steps were measured to be. What
 * cannot be read changes nothing. */
void mf_host_cpu_correct(const mf_host_cpu *h, mf_software *s);

#endif
