/* rank_watch_thread.c - the thread of a rank that watches the others of its host: which rank has
 * ended, whose process does not run, which one works at one op for ever. */
#include "executor/comm/rank_watch_hosts.h"

#include "core/base/clock.h"
#include "core/base/flag.h"
#include "core/program/pass_text.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* An op may take so many times as long as the longest before. */
#define LONGER 4.0
/* A waiting rank polls: after so much time on a core it has seen whatever there is to see. */
enum { LOOKS_us = 10000 };
/* Hosts send every 0.25 s. The shorter silence is reported; where a call has failed as well, the
 * longer silence is taken for the cause (hosts with busy cores send late). */
#define MOMENT_S 0.6
#define SILENCE_S 2.0

static void nap(double s) {
    const struct timespec t = {(time_t)s, (long)((s - floor(s)) * 1e9)};
    nanosleep(&t, NULL);
}

/* --- what is said -------------------------------------------------------------------------------
 */

/* "expert_fc1 (forward) of layer 3" */
static void describe(const mf_rank_watch *b, const rank_watch_slot *s, char *out, size_t size) {
    char place[32];
    if (s->position >= 0) {
        snprintf(place, sizeof place, "position %d", s->position);
        if (b->model != NULL && s->position < mf_model_positions(b->model)) {
            mf_position_text(b->model, s->position, place, sizeof place);
        }
        snprintf(out, size, "%.47s (%s) of %s", s->doing, mf_pass_text(s->pass), place);
    } else {
        snprintf(out, size, "%.47s", s->doing);
    }
}

/* The state of a process as the system has it: T stopped, t in a debugger, R, S, D; '?'. */
static char state_of(int process) {
    char path[40], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *f = fopen(path, "r");
    size_t size = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f != NULL) {
        fclose(f);
    }
    text[size] = '\0';
    const char *name_ends = strrchr(text, ')'); /* the name may have any character */
    return name_ends != NULL && name_ends[1] == ' ' ? name_ends[2] : '?';
}

/* One rank of the host reports why the run ends, and kills the rank that would not end by itself;
 * the others give it the time to. */
static void end_all(const mf_rank_watch *b, const char *line, int process) {
    if (atomic_exchange(&b->all->reported, 1) != 0) {
        nap(0.5);
        _exit(1);
    }
    if (b->lost != NULL) {
        b->lost(b->user, line);
    }
    if (process > 0) {
        kill((pid_t)process, SIGKILL);
    }
    _exit(1);
}

static void tell_gone(const mf_rank_watch *b, const rank_watch_slot *s) {
    char line[320], doing[128];
    describe(b, s, doing, sizeof doing);
    snprintf(line, sizeof line, "rank %d (process %d on %s) is gone: step %lld, %s", s->rank,
             atomic_load(&s->process), b->host, (long long)s->step, doing);
    end_all(b, line, 0);
}

static void tell_silent(const mf_rank_watch *b, const rank_watch_slot *s, double silent_s) {
    char line[400], doing[128];
    const int process = atomic_load(&s->process);
    const char state = state_of(process);
    describe(b, s, doing, sizeof doing);
    snprintf(line, sizeof line,
             "rank %d (process %d on %s) hangs: step %lld, %s for %.3g s; what it did last: %s%s",
             s->rank, process, b->host, (long long)s->step,
             state == 'T'   ? "its process is stopped"
             : state == 't' ? "its process is stopped by a debugger"
                            : "its process has had no time on a core",
             silent_s, doing,
             atomic_load(&s->waits) == MF_RANK_WATCH_FOR_RANKS ? ", waiting for others" : "");
    end_all(b, line, process);
}

static void tell_still(const mf_rank_watch *b, const rank_watch_slot *s, double still_s) {
    char line[400], doing[128];
    const int process = atomic_load(&s->process);
    describe(b, s, doing, sizeof doing);
    snprintf(line, sizeof line,
             "rank %d (process %d on %s) hangs: step %lld, for %.3g s at %s; others wait for it, "
             "and nothing took it longer than %.3g s before",
             s->rank, process, b->host, (long long)s->step, still_s, doing,
             1e-3 * atomic_load(&s->longest_ms[0]));
    end_all(b, line, process);
}

/* The first few ranks and what each is at. */
static void tell_deadlock(const mf_rank_watch *b, double still_s) {
    enum { SOME = 4 };
    char line[1024], doing[128];
    int length = snprintf(line, sizeof line,
                          "the %d ranks of %s wait for one another, and none has come on for "
                          "%.3g s:",
                          b->ranks, b->host, still_s);
    for (int i = 0; i < b->ranks && i < SOME; i++) {
        const rank_watch_slot *s = &b->all->of[i];
        describe(b, s, doing, sizeof doing);
        length += snprintf(line + length, sizeof line - (size_t)length,
                           "%s rank %d (process %d) hangs: step %lld, %s", i > 0 ? ";" : "",
                           s->rank, atomic_load(&s->process), (long long)s->step, doing);
    }
    end_all(b, line, 0);
}

/* --- who is missed ------------------------------------------------------------------------------
 */

static bool is_there(const rank_watch_slot *s) {
    return atomic_load(&s->process) != 0 && atomic_load(&s->left) == 0;
}

static const rank_watch_slot *gone(const mf_rank_watch *b) {
    for (int i = 0; i < b->ranks; i++) {
        const rank_watch_slot *s = &b->all->of[i];
        if (i != b->me && is_there(s) && kill((pid_t)atomic_load(&s->process), 0) != 0 &&
            errno == ESRCH && atomic_load(&s->left) == 0) {
            return s;
        }
    }
    return NULL;
}

static void look(mf_rank_watch *b, int i, double now_s, bool anew) {
    const rank_watch_slot *s = &b->all->of[i];
    rank_watch_view *v = &b->view[i];
    const int64_t beats = atomic_load(&s->beats), moves = atomic_load(&s->moves);
    if (anew || beats != v->beats || !is_there(s)) {
        v->beats = beats;
        v->beat_s = now_s;
    }
    if (anew || moves != v->moves) {
        v->moves = moves;
        v->ran_us = atomic_load(&s->ran_us);
        v->move_s = now_s;
    }
}

/* Does a rank other than this one wait, on this host or on another? */
static bool others_wait(const mf_rank_watch *b, int but) {
    if (atomic_load(&b->all->others.wait) != 0) {
        return true;
    }
    for (int i = 0; i < b->ranks; i++) {
        const rank_watch_slot *s = &b->all->of[i];
        if (i != but && is_there(s) && atomic_load(&s->waits) != MF_RANK_WATCH_WORKS) {
            return true;
        }
    }
    return false;
}

static double patience_s(const mf_rank_watch *b, const rank_watch_slot *s, int waits) {
    return fmax(b->hang_s, LONGER * 1e-3 * atomic_load(&s->longest_ms[waits]));
}

/* In a step that can be judged, and without progress for too long, at work or waiting. */
static bool stands(const mf_rank_watch *b, int i, double now_s, mf_rank_watch_waits waits) {
    const rank_watch_slot *s = &b->all->of[i];
    return is_there(s) && atomic_load(&s->stage) == MF_WATCH_IN_STEP &&
           atomic_load(&s->waits) == (int)waits && atomic_load(&s->moves) == b->view[i].moves &&
           now_s - b->view[i].move_s > patience_s(b, s, waits != MF_RANK_WATCH_WORKS);
}

/* It waits for others, and has had a core of its own to see that they have come. */
static bool waits(const mf_rank_watch *b, int i, double now_s) {
    return stands(b, i, now_s, MF_RANK_WATCH_FOR_RANKS) &&
           atomic_load(&b->all->of[i].ran_us) - b->view[i].ran_us > LOOKS_us;
}

static void judge(const mf_rank_watch *b, int i, double now_s) {
    const rank_watch_slot *s = &b->all->of[i];
    if (!is_there(s) || (i == b->me && b->whole)) {
        return;
    }
    const double silent_s = now_s - b->view[i].beat_s;
    if (silent_s > b->hang_s && others_wait(b, i)) {
        tell_silent(b, s, silent_s);
    }
    if (stands(b, i, now_s, MF_RANK_WATCH_WORKS) && others_wait(b, i)) {
        tell_still(b, s, now_s - b->view[i].move_s);
    }
}

/* Have all ranks of this host waited for too long? */
static bool judge_all(const mf_rank_watch *b, double now_s) {
    bool deadlock = true;
    double still_s = INFINITY;
    for (int i = 0; i < b->ranks; i++) {
        judge(b, i, now_s);
        deadlock = deadlock && waits(b, i, now_s);
        still_s = fmin(still_s, now_s - b->view[i].move_s);
    }
    if (deadlock && (b->whole || atomic_load(&b->all->others.deadlock) != 0)) {
        tell_deadlock(b, still_s);
    }
    return deadlock;
}

/* The first rank of a host watches the other hosts, and passes on to its own host what it has
 * heard. */
static void look_at_hosts(mf_rank_watch *b, double now_s, bool anew, bool deadlock) {
    char line[400];
    bool wait = false;
    for (int i = 0; i < b->ranks && !wait; i++) {
        const rank_watch_slot *s = &b->all->of[i];
        wait = is_there(s) && atomic_load(&s->waits) == MF_RANK_WATCH_FOR_RANKS;
    }
    rank_watch_hosts_beat(b->hosts, now_s, anew, wait, deadlock);
    atomic_store(&b->all->others.wait, rank_watch_hosts_wait(b->hosts));
    atomic_store(&b->all->others.deadlock, rank_watch_hosts_deadlock(b->hosts));
    if (wait && b->hang_s > 0.0 &&
        rank_watch_hosts_lost(b->hosts, now_s, b->hang_s, line, sizeof line)) {
        end_all(b, line, 0);
    }
    if (atomic_load(&b->all->suspects) != 0 &&
        rank_watch_hosts_lost(b->hosts, now_s, SILENCE_S, line, sizeof line)) {
        end_all(b, line, 0);
    }
    const volatile int *asked = atomic_load(&b->asked);
    if (wait && !b->spoken && mf_flag_is_set(asked) && b->lost != NULL &&
        rank_watch_hosts_lost(b->hosts, now_s, MOMENT_S, line, sizeof line)) {
        b->spoken = true;
        b->lost(b->user, line);
    }
}

static void beat(const mf_rank_watch *b) {
    rank_watch_slot *own = &b->all->of[b->me];
    clockid_t clock;
    struct timespec ran;
    if (pthread_getcpuclockid(b->main, &clock) == 0 && clock_gettime(clock, &ran) == 0) {
        atomic_store(&own->ran_us, (long long)ran.tv_sec * 1000000 + ran.tv_nsec / 1000);
    }
    atomic_fetch_add(&own->beats, 1);
}

void *mf_rank_watch_thread(void *watch) {
    mf_rank_watch *b = watch;
    /* If more time than that is between two looks, this process itself did not run. */
    const double jump_s = fmax(4.0 * MF_RANK_WATCH_PERIOD_S, 0.25 * b->hang_s);
    double last_s = -INFINITY;
    while (atomic_load(&b->stop) == 0) {
        const double now_s = mf_clock_s();
        const bool anew = now_s - last_s > jump_s;
        last_s = now_s;
        beat(b);
        for (int i = 0; i < b->ranks; i++) {
            look(b, i, now_s, anew);
        }
        const rank_watch_slot *s = gone(b);
        if (s != NULL) {
            tell_gone(b, s);
        }
        const bool deadlock = b->hang_s > 0.0 && judge_all(b, now_s);
        if (b->hosts != NULL) {
            look_at_hosts(b, now_s, anew, deadlock);
        }
        nap(MF_RANK_WATCH_PERIOD_S);
    }
    return NULL;
}

void mf_rank_watch_find_stopped(mf_rank_watch *b) {
    enum { PERIODS = 20 };
    if (b == NULL) {
        return;
    }
    for (int i = 0; i < b->ranks; i++) {
        const rank_watch_slot *s = &b->all->of[i];
        const int64_t beats = atomic_load(&s->beats);
        int waited = 0;
        while (waited < PERIODS && atomic_load(&s->beats) == beats) {
            nap(MF_RANK_WATCH_PERIOD_S);
            waited++;
        }
        if (waited == PERIODS && i != b->me && is_there(s)) {
            tell_silent(b, s, b->hang_s);
        }
    }
}
