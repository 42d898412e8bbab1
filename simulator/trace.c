/* trace.c - Chrome trace events of a step, written as they come. */
#include "simulator/trace.h"

#include "core/base/json_write.h"
#include "simulator/anew.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Threads: the streams of ops in their order, then what runs across blocks. */
enum { TID_SEND_FORWARD = MF_STREAM_COUNT, TID_SEND_BACKWARD, TID_STEP_END, TIDS };
enum { MOST_OPS = 200000, OPS_OF_BLOCK = 4 };
/* Of the most slices of ops, as many passes may be drawn; where there are more, this share of these
 * at either end of a stage's step, and what is between them in as many stretches as are left. */
static const double passes_of_most = 0.3, passes_at_end = 0.375;
/* A wait that takes this share of a whole stretch ends the stretch. */
static const double seen_wait = 0.125;
/* A pass and its counters are as long in the file as three ops. Where passes and the ops of the
 * first and the last micro-batch come to more than this times the most, those of the last are left
 * out. */
static const double ops_of_pass = 3, text_of_most = 2.4;

/* A chunk's pass, or a stretch of several, that is being drawn: its slice is written when the next
 * one begins. */
typedef struct open_pass {
    int64_t first, event; /* of the stage's schedule; -1 = none */
    double start_s, end_s;
    double begun_s, run_s; /* the last pass's beginning; time in the passes before it */
    int64_t ended;         /* stretches of this rank that waits have ended */
    /* Of its blocks that are not drawn: what the GPU draws and the clock of their products, each
     * times their length. */
    double blocks_s, power_J, clock_s;
} open_pass;

/* Share of its highest clock that a block's products keep. */
typedef struct drawn_block {
    const mf_block *block;
    double clock;
} drawn_block;
enum { KNOWN_BLOCKS = 64 };

struct mf_trace {
    FILE *f;
    const mf_program *p;
    const mf_schedule *s;
    int64_t ranks, traced;
    bool all_ops, all_blocks, comma;
    bool ops_of_first;   /* micro-batch alone */
    int64_t end_passes;  /* of a stage that are drawn one by one at either end; -1: all */
    int64_t stretch;     /* most passes between these in one slice */
    open_pass *open;     /* [stages][ranks] */
    const mf_cost *cost; /* NULL: power and clock are not drawn */
    double *busy_s;      /* [stages][ranks]: end of the last block; -1: none yet */
    drawn_block known[KNOWN_BLOCKS];
    int knowns; /* that were kept, the oldest overwritten */
    bool *sent; /* [ranks][2][virtual stages][micro-batches]: an arrow begins there */
};

static int64_t rank_of(const mf_trace *t, int64_t stage, int64_t r) {
    return stage * (t->p->layout.gpus / t->p->layout.pp) + r;
}

static bool drawn(const mf_trace *t, int64_t stage, int64_t r) {
    return t->traced > 0 ? rank_of(t, stage, r) < t->traced : r == 0;
}

/* --- writing ---------------------------------------------------------------------------------- */

static void begin(mf_trace *t) {
    fputs(t->comma ? ",\n" : "\n", t->f);
    t->comma = true;
}

/* Writes the name of a process or thread, and its place in the order of the others. */
static void name_track(mf_trace *t, const char *what, int64_t pid, int tid, const char *name,
                       int64_t place) {
    begin(t);
    fprintf(t->f,
            "{\"name\":\"%s_name\",\"ph\":\"M\",\"pid\":%lld,\"tid\":%d,\"args\":{\"name\":"
            "\"%s\"}},\n{\"name\":\"%s_sort_index\",\"ph\":\"M\",\"pid\":%lld,\"tid\":%d,"
            "\"args\":{\"sort_index\":%lld}}",
            what, (long long)pid, tid, name, what, (long long)pid, tid, (long long)place);
}

/* Both ends are rounded to whole nanoseconds, so that what nests in seconds nests in the file. */
static void slice(mf_trace *t, int64_t pid, int tid, const char *category, const char *name,
                  double start_s, double end_s) {
    long long start = llround(start_s * 1e9), length = llround(end_s * 1e9) - start;
    begin(t);
    fprintf(t->f,
            "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%lld.%03lld,\"dur\":%lld.%03lld,"
            "\"pid\":%lld,\"tid\":%d",
            name, category, start / 1000, start % 1000, length / 1000, length % 1000,
            (long long)pid, tid);
}

/* --- arrows from a message to the pass that it is for ------------------------------------------
 */

typedef enum direction { FORWARD, BACKWARD } direction;

/* The number of the arrow that leaves virtual stage v. */
static int64_t arrow_from(const mf_trace *t, int64_t r, direction d, int64_t v, int64_t mb) {
    return ((r * 2 + d) * t->s->stages * t->s->chunks + v) * t->s->micro_batches + mb;
}

static void arrow_end(mf_trace *t, const char *kind, int64_t arrow, int64_t pid, int tid,
                      double at_s) {
    const long long at = llround(at_s * 1e9);
    begin(t);
    fprintf(t->f,
            "{\"name\":\"message\",\"cat\":\"pp\",%s,\"id\":%lld,\"ts\":%lld.%03lld,\"pid\":%lld,"
            "\"tid\":%d}",
            kind, (long long)arrow, at / 1000, at % 1000, (long long)pid, tid);
}

/* Behind the slice of a message. */
static void begin_arrow(mf_trace *t, const mf_block_instance *i, int tid) {
    const mf_event *ev = &t->s->events[i->stage][i->event];
    const direction d = i->passes == MF_PASS_F ? FORWARD : BACKWARD;
    const bool second = d == BACKWARD && ev->pass == MF_EVENT_FB;
    const int64_t v = mf_layout_vstage(&t->p->layout, i->stage, second ? ev->chunk2 : ev->chunk);
    const int64_t to = mf_layout_stage_of(&t->p->layout, d == FORWARD ? v + 1 : v - 1);
    const int64_t arrow = arrow_from(t, i->rank, d, v, i->micro_batch);
    if (drawn(t, to, i->rank)) {
        t->sent[arrow] = true;
        arrow_end(t, "\"ph\":\"s\"", arrow, rank_of(t, i->stage, i->rank), tid, i->start_s);
    }
}

/* At the beginning of a pass, if a message came in for it. */
static void end_arrow(mf_trace *t, int64_t stage, int64_t r, direction d, int64_t chunk, int64_t mb,
                      double at_s) {
    const int64_t last = t->s->stages * t->s->chunks - 1;
    const int64_t v = mf_layout_vstage(&t->p->layout, stage, chunk);
    const int64_t from = d == FORWARD ? v - 1 : v + 1;
    if (from < 0 || from > last) {
        return;
    }
    const int64_t arrow = arrow_from(t, r, d, from, mb);
    if (t->sent[arrow]) {
        t->sent[arrow] = false;
        arrow_end(t, "\"ph\":\"f\",\"bp\":\"e\"", arrow, rank_of(t, stage, r), MF_STREAM_COMPUTE,
                  at_s);
    }
}

static void end_arrows(mf_trace *t, int64_t stage, int64_t r, const mf_event *ev, double at_s) {
    if (ev->pass == MF_EVENT_F || ev->pass == MF_EVENT_FB) {
        end_arrow(t, stage, r, FORWARD, ev->chunk, ev->micro_batch, at_s);
    }
    if (ev->pass == MF_EVENT_B) {
        end_arrow(t, stage, r, BACKWARD, ev->chunk, ev->micro_batch, at_s);
    } else if (ev->pass == MF_EVENT_FB) {
        end_arrow(t, stage, r, BACKWARD, ev->chunk2, ev->micro_batch2, at_s);
    }
}

/* --- power and clock ---------------------------------------------------------------------------
 */

static void counter(mf_trace *t, int64_t pid, const char *name, const char *unit, double at_s,
                    double value) {
    const long long at = llround(at_s * 1e9);
    begin(t);
    fprintf(t->f,
            "{\"name\":\"%s\",\"ph\":\"C\",\"ts\":%lld.%03lld,\"pid\":%lld,"
            "\"args\":{\"%s\":%.6g}}",
            name, at / 1000, at % 1000, (long long)pid, unit, value);
}

static void draw_idle(mf_trace *t, int64_t pid, double at_s) {
    counter(t, pid, "power", "W", at_s, mf_cost_power(t->cost).idle_W);
}

static void draw_busy(mf_trace *t, int64_t pid, double at_s, double power_W, double clock) {
    counter(t, pid, "power", "W", at_s, power_W);
    counter(t, pid, "clock of products", "share", at_s, clock);
}

/* --- passes ------------------------------------------------------------------------------------
 */

/* Does the pass have the first micro-batch or the last one? */
static bool is_edge(const mf_trace *t, int64_t stage, int64_t event) {
    const mf_event *ev = &t->s->events[stage][event];
    const int64_t last = t->s->micro_batches - 1;
    return ev->micro_batch == 0 || ev->micro_batch == last ||
           (ev->pass == MF_EVENT_FB && (ev->micro_batch2 == 0 || ev->micro_batch2 == last));
}

/* Is the pass a slice of its own, not part of a stretch? */
static bool is_single(const mf_trace *t, int64_t stage, int64_t event) {
    return t->end_passes < 0 || event < t->end_passes ||
           event >= t->s->count[stage] - t->end_passes || is_edge(t, stage, event);
}

static void write_pass(mf_trace *t, int64_t stage, int64_t r, const open_pass *o) {
    const mf_event *ev = &t->s->events[stage][o->event];
    static const char *const text[] = {"F", "B", "W", "F+B"};
    char name[64];
    snprintf(name, sizeof name, "%s %d", text[ev->pass], (int)ev->micro_batch);
    slice(t, rank_of(t, stage, r), MF_STREAM_COMPUTE, "pass", name, o->start_s, o->end_s);
    fprintf(t->f, ",\"args\":{\"chunk\":%d,\"micro_batch\":%d", ev->chunk, (int)ev->micro_batch);
    if (ev->pass == MF_EVENT_FB) {
        fprintf(t->f, ",\"chunk2\":%d,\"micro_batch2\":%d", ev->chunk2, (int)ev->micro_batch2);
    }
    fputs("}}", t->f);
}

static void write_stretch(mf_trace *t, int64_t stage, int64_t r, const open_pass *o) {
    int32_t first = INT32_MAX, last = 0;
    char name[64];
    for (int64_t i = o->first; i <= o->event; i++) {
        const mf_event *ev = &t->s->events[stage][i];
        const int32_t of[] = {ev->micro_batch,
                              ev->pass == MF_EVENT_FB ? ev->micro_batch2 : ev->micro_batch};
        for (int k = 0; k < 2; k++) {
            first = of[k] < first ? of[k] : first;
            last = of[k] > last ? of[k] : last;
        }
    }
    const long long count = o->event - o->first + 1;
    snprintf(name, sizeof name, "%lld passes", count);
    slice(t, rank_of(t, stage, r), MF_STREAM_COMPUTE, "passes", name, o->start_s, o->end_s);
    fprintf(t->f,
            ",\"args\":{\"passes\":%lld,\"micro_batch\":%d,\"last_micro_batch\":%d,"
            "\"waiting_us\":%.3f}}",
            count, (int)first, (int)last,
            1e6 * fmax(0, o->end_s - o->start_s - o->run_s - (o->end_s - o->begun_s)));
}

/* Writes the pass or stretch that is open, if any. */
static void end_pass(mf_trace *t, int64_t stage, int64_t r) {
    open_pass *o = &t->open[stage * t->ranks + r];
    if (o->event < 0) {
        return;
    }
    if (o->event > o->first) {
        write_stretch(t, stage, r, o);
    } else {
        write_pass(t, stage, r, o);
    }
    if (o->blocks_s > 0) { /* between blocks the GPU is idle */
        const double length_s = fmax(o->end_s - o->start_s, o->blocks_s);
        const double idle_J = mf_cost_power(t->cost).idle_W * (length_s - o->blocks_s);
        draw_busy(t, rank_of(t, stage, r), o->start_s, (o->power_J + idle_J) / length_s,
                  o->clock_s / o->blocks_s);
    }
    o->event = -1;
}

/* Is this wait behind an open stretch long enough to be seen? As many may end stretches as a rank
 * has of these. */
static bool is_long(const mf_trace *t, int64_t stage, const open_pass *o, double wait_s) {
    const double each_s = (o->end_s - o->start_s) / (double)(o->event - o->first + 1);
    return wait_s > each_s * (double)t->stretch * seen_wait &&
           o->ended < t->s->count[stage] / t->stretch;
}

/* A pass begins: in the stretch that is open, or as a slice or stretch of its own. */
static void begin_pass(mf_trace *t, const mf_block_instance *i) {
    open_pass *o = &t->open[i->stage * t->ranks + i->rank];
    if (o->event == i->event) {
        return;
    }
    const bool joins = o->event >= 0 && o->event - o->first + 1 < t->stretch &&
                       !is_single(t, i->stage, o->event) && !is_single(t, i->stage, i->event);
    const bool waits = joins && is_long(t, i->stage, o, i->start_s - o->end_s);
    if (joins && !waits) {
        o->run_s += o->end_s - o->begun_s;
    } else {
        end_pass(t, i->stage, i->rank);
        *o = (open_pass){.first = i->event, .start_s = i->start_s, .ended = o->ended + waits};
    }
    o->event = i->event;
    o->begun_s = i->start_s;
    end_arrows(t, i->stage, i->rank, &t->s->events[i->stage][i->event], i->start_s);
}

/* Balanced routing stands for any. */
static double clock_of(mf_trace *t, const mf_block *b) {
    for (int i = 0; i < t->knowns && i < KNOWN_BLOCKS; i++) {
        if (t->known[i].block == b) {
            return t->known[i].clock;
        }
    }
    const double clock = mf_cost_clock_share(mf_cost_stretch(t->cost, b, 1, NULL));
    t->known[t->knowns++ % KNOWN_BLOCKS] = (drawn_block){b, clock};
    return clock;
}

/* What the GPU draws over a block: idle power and the energy of its ops. Of blocks that are not
 * drawn their pass shows the mean. */
static void draw_power(mf_trace *t, const mf_block_instance *i, int64_t pid, bool whole) {
    open_pass *o = &t->open[i->stage * t->ranks + i->rank];
    double *busy_s = &t->busy_s[i->stage * t->ranks + i->rank];
    const mf_power p = mf_cost_power(t->cost);
    const bool begins = (i->micro_batch2 >= 0 ? i->micro_batch2 : i->micro_batch) == 0;
    double joules = 0, flight_s = 0;
    for (int k = 0; k < i->time->nops; k++) {
        const mf_op_time *at = &i->time->op[k];
        const mf_block *of = at->side ? i->beside : i->block;
        const mf_op *op = &of->ops[at->op];
        joules += mf_cost_energy_J(t->cost, op, 1, 0, clock_of(t, of));
        joules -=
            begins ? mf_anew_op_J(t->cost, &t->p->model, &t->p->layout, of, at->op, clock_of(t, of))
                   : 0;
        flight_s += mf_cost_is_collective(op) ? at->end_s - at->start_s : 0;
    }
    joules += p.flight_W * fmin(flight_s, i->end_s - i->start_s);
    if (*busy_s >= 0 && i->start_s > *busy_s && (whole || i->start_s <= o->start_s)) {
        draw_idle(t, pid, *busy_s);
    }
    const double length_s = i->end_s - i->start_s;
    if (length_s > 0) {
        const double power_W = fmin(p.idle_W + joules / length_s, p.cap_W);
        const double clock = i->beside != NULL ? fmin(clock_of(t, i->block), clock_of(t, i->beside))
                                               : clock_of(t, i->block);
        if (whole) {
            draw_busy(t, pid, i->start_s, power_W, clock);
        } else {
            o->blocks_s += length_s;
            o->power_J += power_W * length_s;
            o->clock_s += clock * length_s;
        }
    }
    *busy_s = i->end_s;
}

mf_status mf_trace_power(mf_trace *t, const mf_cost *cost, mf_err *e) {
    const size_t n = (size_t)(t->s->stages * t->ranks);
    t->busy_s = malloc((n + 1) * sizeof *t->busy_s);
    if (t->busy_s == NULL) {
        return mf_err_set(e, MF_NOMEM, "trace: out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        t->busy_s[i] = -1;
    }
    t->cost = cost;
    return MF_OK;
}

/* --- instances -------------------------------------------------------------------------------- */

static void draw_ops(mf_trace *t, const mf_block_instance *i, int64_t pid) {
    for (int k = 0; k < i->time->nops; k++) {
        const mf_op_time *at = &i->time->op[k];
        const mf_op *op = &(at->side ? i->beside : i->block)->ops[at->op];
        slice(t, pid, op->stream, mf_module_text((mf_module)op->module), op->name,
              i->start_s + at->start_s, i->start_s + at->end_s);
        fprintf(t->f, ",\"args\":{\"kind\":\"%s\",\"pass\":\"%s\",\"micro_batch\":%d}}",
                mf_op_text((mf_op_kind)op->kind),
                op->pass == MF_PASS_F   ? "F"
                : op->pass == MF_PASS_R ? "R"
                : op->pass == MF_PASS_B ? "B"
                                        : "W",
                (int)(at->side ? i->micro_batch2 : i->micro_batch));
    }
}

/* Are ops of the block drawn in a step of which not all are? */
static bool has_ops(const mf_trace *t, const mf_block_instance *i) {
    const int64_t last = t->s->micro_batches - 1;
    const bool second = i->position2 >= 0;
    if (t->ops_of_first) {
        return i->micro_batch == 0 || (second && i->micro_batch2 == 0);
    }
    return !t->all_blocks ? is_edge(t, i->stage, i->event)
                          : i->micro_batch < 2 || i->micro_batch == last ||
                                (second && i->micro_batch2 == last);
}

static void draw_block(mf_trace *t, const mf_block_instance *i, int64_t pid) {
    const bool whole = t->all_blocks || is_edge(t, i->stage, i->event);
    begin_pass(t, i);
    t->open[i->stage * t->ranks + i->rank].end_s = i->end_s;
    if (whole) {
        slice(t, pid, MF_STREAM_COMPUTE, "block", i->block->label, i->start_s, i->end_s);
        fprintf(t->f, ",\"args\":{\"position\":%d", i->position);
        if (i->position2 >= 0) {
            fprintf(t->f, ",\"beside\":%d", i->position2);
        }
        fputs("}}", t->f);
    }
    if (i->time->op != NULL && (t->all_ops || has_ops(t, i))) {
        draw_ops(t, i, pid);
    }
    if (i->time->op != NULL && t->cost != NULL) {
        draw_power(t, i, pid, whole);
    }
}

void mf_trace_draw(mf_trace *t, const mf_block_instance *i) {
    if (!drawn(t, i->stage, i->rank)) {
        return;
    }
    int64_t pid = rank_of(t, i->stage, i->rank);
    if (i->op == NULL) {
        draw_block(t, i, pid);
        return;
    }
    if (i->event >= 0 && !t->all_blocks && !is_edge(t, i->stage, i->event)) {
        return; /* a message between passes of which no block is drawn */
    }
    int tid = i->event >= 0      ? (i->passes == MF_PASS_F ? TID_SEND_FORWARD : TID_SEND_BACKWARD)
              : i->position >= 0 ? TID_STEP_END
                                 : i->op->stream;
    slice(t, pid, tid, mf_module_text((mf_module)i->op->module), i->op->name, i->start_s, i->end_s);
    fprintf(t->f, ",\"args\":{\"kind\":\"%s\",\"bytes\":%.0f", mf_op_text((mf_op_kind)i->op->kind),
            i->op->bytes);
    if (i->position >= 0) {
        fprintf(t->f, ",\"position\":%d", i->position);
    }
    fputs("}}", t->f);
    if (i->event >= 0) {
        begin_arrow(t, i, tid);
    }
}

/* Of passes that are drawn as one stretch the one with the most bytes. */
static bool has_most_bytes(const mf_trace *t, int64_t stage, const double *bytes, int64_t event) {
    if (is_single(t, stage, event)) {
        return true;
    }
    const int64_t first = event - event % t->stretch;
    for (int64_t i = first; i < first + t->stretch && i < t->s->count[stage]; i++) {
        if (i != event && !is_single(t, stage, i) &&
            (bytes[i] > bytes[event] || (i < event && bytes[i] >= bytes[event]))) {
            return false;
        }
    }
    return true;
}

void mf_trace_memory(mf_trace *t, int64_t stage, const double *start_s, const double *bytes,
                     int64_t count) {
    for (int64_t r = 0; r < t->ranks; r++) {
        for (int64_t k = 0; drawn(t, stage, r) && k < count; k++) {
            if (start_s[k] >= 0 && has_most_bytes(t, stage, bytes, k)) {
                long long at = llround(start_s[k] * 1e9);
                begin(t);
                fprintf(t->f,
                        "{\"name\":\"memory\",\"ph\":\"C\",\"ts\":%lld.%03lld,\"pid\":%lld,"
                        "\"args\":{\"bytes\":%.0f}}",
                        at / 1000, at % 1000, (long long)rank_of(t, stage, r), bytes[k]);
            }
        }
    }
}

void mf_trace_host(mf_trace *t, double start_s, double end_s) {
    for (int64_t p = 0; p < t->s->stages && end_s > start_s; p++) {
        for (int64_t r = 0; r < t->ranks; r++) {
            if (drawn(t, p, r)) {
                slice(t, rank_of(t, p, r), TID_STEP_END, "host", "host", start_s, end_s);
                fputs(",\"args\":{\"kind\":\"once a step\"}}", t->f);
            }
        }
    }
}

/* --- the file --------------------------------------------------------------------------------- */

static void name_tracks(mf_trace *t) {
    static const char *const beyond[] = {"pp forward", "pp backward", "once a step"};
    for (int64_t p = 0; p < t->s->stages; p++) {
        for (int64_t r = 0; r < t->ranks; r++) {
            if (!drawn(t, p, r)) {
                continue;
            }
            char name[64];
            int64_t pid = rank_of(t, p, r);
            snprintf(name, sizeof name, "stage %lld, rank %lld", (long long)p, (long long)pid);
            name_track(t, "process", pid, 0, name, pid);
            for (int tid = 0; tid < TIDS; tid++) {
                name_track(t, "thread", pid, tid,
                           tid < MF_STREAM_COUNT ? mf_stream_text((mf_stream)tid)
                                                 : beyond[tid - MF_STREAM_COUNT],
                           tid);
            }
        }
    }
}

/* Decides which of ops, blocks and passes are drawn one by one, by how many slices they would take.
 */
static void choose_detail(mf_trace *t, double most) {
    double ops = 0, ranks = 0, passes = 0, longest = 0;
    for (int i = 0; i < t->p->assignment.positions; i++) {
        ops += t->p->blocks[t->p->block_of[i]]->nops;
    }
    for (int64_t p = 0; p < t->s->stages; p++) {
        longest = fmax(longest, (double)t->s->count[p]);
        for (int64_t r = 0; r < t->ranks; r++) {
            ranks += drawn(t, p, r);
            passes += drawn(t, p, r) ? (double)t->s->count[p] : 0;
        }
    }
    const double each = (double)t->s->micro_batches * ranks / (double)t->s->stages;
    t->all_ops = ops * each <= most;
    t->all_blocks = 2.0 * t->p->assignment.positions * each <= most / OPS_OF_BLOCK;
    /* passes of the first and last micro-batch, in merged schedules half of them with another's */
    const double ops_at_edges = ops * each / (double)t->s->micro_batches *
                                (t->p->layout.schedule == MF_SCHED_MERGED ? 3 : 2);
    const double of_passes = ops_of_pass * fmin(passes, passes_of_most * most);
    t->ops_of_first = !t->all_blocks && ops_at_edges + of_passes > text_of_most * most;
    t->end_passes = -1;
    if (!t->all_blocks && passes > passes_of_most * most) {
        const double of_rank = passes_of_most * most / ranks;
        const double stretches = fmax(1, floor((1 - 2 * passes_at_end) * of_rank));
        t->end_passes = (int64_t)(passes_at_end * of_rank);
        t->stretch = (int64_t)ceil(longest / stretches);
    }
}

mf_status mf_trace_open(FILE *f, const mf_program *p, const mf_schedule *s, int64_t ranks,
                        int64_t traced, int64_t most_ops, mf_trace **out, mf_err *e) {
    mf_trace *t = calloc(1, sizeof *t);
    size_t n = (size_t)(s->stages * ranks);
    *out = NULL;
    const size_t arrows = (size_t)(ranks * 2 * s->stages * s->chunks * s->micro_batches);
    if (t == NULL || (t->open = calloc(n + 1, sizeof *t->open)) == NULL ||
        (t->sent = calloc(arrows + 1, sizeof *t->sent)) == NULL) {
        free(t != NULL ? t->open : NULL);
        free(t);
        return mf_err_set(e, MF_NOMEM, "trace: out of memory");
    }
    t->f = f;
    t->p = p;
    t->s = s;
    t->ranks = ranks;
    t->traced = traced;
    for (size_t i = 0; i < n; i++) {
        t->open[i].event = -1;
    }
    choose_detail(t, (double)(most_ops > 0 ? most_ops : MOST_OPS));
    fputs("{\"displayTimeUnit\":\"ms\",\n\"traceEvents\":[", f);
    name_tracks(t);
    *out = t;
    return MF_OK;
}

/* Describes the traced step. A model's name may hold any character that a folder's name may. */
static mf_status write_about(const mf_trace *t, mf_err *e) {
    mf_json_writer w;
    char *text = NULL;
    size_t length = 0;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, true);
    mf_json_write_string(&w, "generator", "moefold");
    mf_json_write_string(&w, "model", t->p->model.name);
    mf_json_write_string(&w, "ops",
                         t->all_ops        ? "every micro-batch"
                         : t->ops_of_first ? "first micro-batch"
                         : t->all_blocks   ? "first two and last micro-batch"
                                           : "first and last micro-batch");
    mf_json_write_string(&w, "blocks",
                         t->all_blocks ? "every micro-batch" : "first and last micro-batch");
    char text_of_passes[160] = "every one";
    if (t->end_passes >= 0) {
        snprintf(text_of_passes, sizeof text_of_passes,
                 "the first and last %lld of a stage, and those of the first and last micro-batch; "
                 "up to %lld others in one slice",
                 (long long)t->end_passes, (long long)t->stretch);
    }
    mf_json_write_string(&w, "passes", text_of_passes);
    if (t->cost != NULL) {
        mf_json_write_string(&w, "power",
                             mf_cost_power(t->cost).measured
                                 ? "energies measured on this GPU, balanced routing"
                                 : "energies of an H200's kernels, balanced routing");
    }
    mf_json_write_end(&w);
    mf_status status = mf_json_writer_finish(&w, &text, &length, e);
    if (status == MF_OK) {
        fwrite(text, 1, length, t->f);
    }
    free(text);
    return status;
}

mf_status mf_trace_close(mf_trace *t, mf_err *e) {
    if (t == NULL) {
        return MF_OK;
    }
    for (int64_t p = 0; p < t->s->stages; p++) {
        for (int64_t r = 0; r < t->ranks; r++) {
            const double busy_s = t->cost != NULL ? t->busy_s[p * t->ranks + r] : -1;
            end_pass(t, p, r);
            if (busy_s >= 0) {
                draw_idle(t, rank_of(t, p, r), busy_s);
            }
        }
    }
    fputs("\n],\n\"otherData\":", t->f);
    mf_status status = write_about(t, e);
    fputs("}\n", t->f);
    if (status == MF_OK && (fflush(t->f) != 0 || ferror(t->f))) {
        status = mf_err_set(e, MF_IO, "trace: %s", strerror(errno));
    }
    free(t->open);
    free(t->sent);
    free(t->busy_s);
    free(t);
    return status;
}
