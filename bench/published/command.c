/* command.c - a row as a line of `moefold simulate`, and the job that this line says. What the row
 * leaves unsaid is left out where the software's default fills it in, and given with --unsure where
 * neighbours or a recipe were looked up. */
#include "bench/published/rows_internal.h"
#include "cli/args_request.h"

#include "cli/commands.h"
#include "job/request/stage_text.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

/* --- writing ---------------------------------------------------------------------------------- */

static void add_flag(pub_row *r, const char *option) {
    pub_command *c = &r->command;
    if (c->count + 2 > PUB_WORDS) {
        pub_skip(r, "more words than a command line can hold");
        return;
    }
    snprintf(c->word[c->count++], sizeof c->word[0], "--%s", option);
}

static void add(pub_row *r, const char *option, const char *fmt, ...) MF_PRINTF(3, 4);
static void add(pub_row *r, const char *option, const char *fmt, ...) {
    pub_command *c = &r->command;
    va_list args;
    add_flag(r, option);
    if (r->skipped[0] == '\0') {
        va_start(args, fmt);
        vsnprintf(c->word[c->count++], sizeof c->word[0], fmt, args);
        va_end(args);
    }
}

static void add_job(pub_row *r) {
    const mf_layout *l = &r->layout;
    add(r, "model", "%s", r->shipped);
    for (int i = 0; i < r->sets; i++) {
        add(r, "set", "%s", r->set[i]);
    }
    add(r, "cluster", "%s", r->cluster_name);
    add(r, "gpus", "%lld", LL(l->gpus));
    add(r, "global-batch", "%lld", LL(l->gbs));
    add(r, "seq", "%lld", LL(l->seq));
    add(r, "software", "%s", r->software);
}

/* What the row states, or what was looked up for it. */
static void add_degrees(pub_row *r, const mf_layout *none) {
    const mf_layout *l = &r->layout;
    const struct {
        const char *name;
        int64_t value, absent;
    } degrees[] = {
        {"tp", l->tp, none->tp}, {"cp", l->cp, none->cp},    {"pp", l->pp, none->pp},
        {"ep", l->ep, none->ep}, {"etp", l->etp, none->etp}, {"micro-batch", l->mbs, none->mbs},
    };
    for (size_t i = 0; i < sizeof degrees / sizeof degrees[0]; i++) {
        bool unsaid = strcmp(degrees[i].name, "micro-batch") == 0
                          ? (r->unknown & PUB_UNKNOWN_MBS) != 0
                          : degrees[i].value == degrees[i].absent;
        if (!unsaid || degrees[i].value != degrees[i].absent) {
            add(r, degrees[i].name, "%lld", LL(degrees[i].value));
        }
    }
    if (l->pp > 1 && (l->vpp > 1 || !(r->unknown & PUB_UNKNOWN_VPP))) {
        add(r, "vpp", "%lld", LL(l->vpp));
    }
}

static void add_unsure(char *list, size_t size, const char *option) {
    size_t used = strlen(list);
    snprintf(list + used, size - used, "%s%s", used > 0 ? "," : "", option);
}

/* Options that a row may leave unsaid. */
static void add_open(pub_row *r, const mf_layout *none) {
    const mf_layout *l = &r->layout;
    char unsure[64] = "", recompute[64], overlap[64];
    bool graph = r->unknown & PUB_UNKNOWN_GRAPH, sent = r->unknown & PUB_UNKNOWN_DISPATCHER;
    mf_recompute_format(l->memory.recompute, recompute, sizeof recompute);
    mf_overlap_format(l->overlap, overlap, sizeof overlap);
    const struct {
        const char *name, *text;
        bool unsaid, open; /* open: left to the software's default, or at moefold's own */
    } options[] = {
        {"cuda-graph", mf_graph_text(l->graph), graph, !r->in_recipe},
        {"dispatcher", r->moe ? mf_dispatcher_text(l->dispatcher) : NULL, sent,
         r->dispatcher_open && !r->in_recipe},
        {"recompute", recompute, r->unknown & PUB_UNKNOWN_RECOMPUTE, l->memory.recompute == 0},
        {"overlap", overlap, r->unknown & PUB_UNKNOWN_OVERLAP, l->overlap == none->overlap},
        {"cp-type", l->cp > 1 ? mf_cp_type_text(l->cp_type) : NULL,
         r->unknown & PUB_UNKNOWN_CP_TYPE, false},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (options[i].text != NULL && !(options[i].unsaid && options[i].open)) {
            add(r, options[i].name, "%s", options[i].text);
        }
        if (options[i].text != NULL && options[i].unsaid && !options[i].open) {
            add_unsure(unsure, sizeof unsure, options[i].name);
        }
    }
    if ((r->unknown & PUB_UNKNOWN_VPP) && l->vpp > 1) {
        add_unsure(unsure, sizeof unsure, "vpp");
    }
    if ((r->unknown & PUB_UNKNOWN_MBS) && l->mbs != none->mbs) {
        add_unsure(unsure, sizeof unsure, "micro-batch");
    }
    if (unsure[0] != '\0') {
        add(r, "unsure", "%s", unsure);
    }
}

static void add_choices(pub_row *r, const mf_layout *none) {
    const mf_layout *l = &r->layout;
    char words[128];
    bool as_vpp = l->schedule == (l->vpp > 1 ? MF_SCHED_INTERLEAVED : MF_SCHED_1F1B);
    add(r, "precision", "%s", mf_precision_text(l->precision));
    if (!as_vpp) {
        add(r, "schedule", "%s", mf_schedule_text(l->schedule));
    }
    if (l->zero != none->zero) {
        add(r, "zero", "%d", l->zero);
    }
    if (l->expert_zero != none->expert_zero && r->moe) {
        add(r, "expert-zero", "%d", l->expert_zero);
    }
    if (r->recompute_layers > 0) {
        add(r, "recompute-layers", "%lld", LL(r->recompute_layers));
    }
    if (l->memory.offload != 0) {
        mf_offload_format(l->memory.offload, words, sizeof words);
        add(r, "offload", "%s", words);
    }
    if (l->offload_optimizer > 0) {
        add(r, "offload-optimizer", "%g", l->offload_optimizer);
    }
    const struct {
        const char *option, *value;
        bool on;
    } flags[] = {{"moments", "bf16", l->moments_bf16},
                 {"grad-dtype", "bf16", l->grads_bf16},
                 {"fp8-attention", "", l->fp8_attention},
                 {"fp8-primary-weights", "", l->fp8_primary_weights},
                 {"capacity-factor", "1", l->capacity_factor > 0},
                 {"pad-to-capacity", "", l->pad_to_capacity},
                 {"token-headroom", "1", true}, /* forced balance, or capacity factor 1 */
                 {"reserve", "0", true}};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (flags[i].on && flags[i].value[0] == '\0') {
            add_flag(r, flags[i].option);
        } else if (flags[i].on) {
            add(r, flags[i].option, "%s", flags[i].value);
        }
    }
    if (l->traits != 0) {
        mf_traits_format(l->traits, words, sizeof words);
        add(r, "traits", "%s", words);
    }
}

/* --- pipeline layouts ------------------------------------------------------------------------- */

/* DeepSeek-V3, whose 61 layers divide by nothing, has fixed ones in NeMo and Megatron-Bridge, by
 * number of virtual stages: full stages from the front, what is left with the head. */
static const struct {
    int64_t vstages;
    const char *text;
} deepseek[] = {
    {4, "Et*16|t*16|t*16|t*13mL"},
    {8, "Et*8|(t*8|)*6t*5mL"},
    {16, "Et*4|(t*4|)*14tmL"},
    {32, "Et|(tt|)*30mL"},
};

/* Rows print theirs in their notes; one that is not of this layout is not taken. */
static void add_stages(pub_row *r) {
    const mf_layout *l = &r->layout;
    const char *printed = strstr(r->notes, "layout E");
    char text[64] = "";
    if (printed != NULL) {
        printed += strlen("layout ");
        snprintf(text, sizeof text, "%.*s", (int)strcspn(printed, ";, "), printed);
    } else if (strcmp(r->model_name, "DeepSeek-V3") == 0 && pub_starts(r->software, "megatron")) {
        for (size_t i = 0; i < sizeof deepseek / sizeof deepseek[0]; i++) {
            if (deepseek[i].vstages == l->pp * l->vpp) {
                snprintf(text, sizeof text, "%s", deepseek[i].text);
            }
        }
    }
    mf_assignment a;
    if (text[0] != '\0' && mf_assignment_even(&r->model, l, &a, NULL) == MF_OK &&
        mf_stage_text_apply(&r->model, text, &a, NULL) == MF_OK) {
        add(r, "pipeline-layout", "%s", text);
    }
}

/* --- reading ---------------------------------------------------------------------------------- */

static mf_status read_job(pub_row *r, mf_err *e) {
    const char *argv[PUB_WORDS];
    mf_args args;
    for (int i = 0; i < r->command.count; i++) {
        argv[i] = r->command.word[i];
    }
    r->job = calloc(1, sizeof *r->job);
    if (r->job == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = mf_args_parse(r->command.count, argv, mf_cmd_simulate.options, 0, &args, e);
    return s == MF_OK ? mf_args_load(r->job, &args, mf_job_read_layout, e) : s;
}

/* Of what the row says, the line says the same; what it leaves open is the software's. */
static bool says_the_same(const pub_row *r) {
    mf_layout mine = r->layout, read = r->job->plan.layout;
    mine.graph = r->unknown & PUB_UNKNOWN_GRAPH ? read.graph : mine.graph;
    mine.dispatcher = r->dispatcher_open || !r->moe ? read.dispatcher : mine.dispatcher;
    mine.cp_type = mine.cp == 1 ? read.cp_type : mine.cp_type;
    mine.expert_zero = !r->moe ? read.expert_zero : mine.expert_zero;
    mine.software_traits = read.software_traits;
    char *text[2] = {NULL, NULL};
    bool same = mf_layout_resolve(&mine, &r->model, NULL) == MF_OK;
    for (int i = 0; i < 2; i++) {
        mf_json_writer w;
        size_t length;
        mf_json_writer_init(&w);
        mf_plan_write_layout(&w, NULL, i == 0 ? &mine : &read);
        same = mf_json_writer_finish(&w, &text[i], &length, NULL) == MF_OK && same;
    }
    same = same && strcmp(text[0], text[1]) == 0;
    free(text[0]);
    free(text[1]);
    return same;
}

mf_status pub_read_command(pub_row *r, mf_err *e) {
    mf_layout none;
    mf_layout_init(&none);
    add_job(r);
    add_degrees(r, &none);
    add_choices(r, &none);
    add_open(r, &none);
    add_stages(r);
    mf_status s = read_job(r, e);
    if (s == MF_OK && !says_the_same(r)) {
        s = mf_err_set(e, MF_INTERNAL, "the command line says another layout than the row");
    }
    if (s != MF_OK) {
        return mf_err_prefix(e, "%s", r->id);
    }
    r->layout = r->job->plan.layout;
    r->model = r->job->model;
    r->cluster = r->job->cluster;
    return MF_OK;
}

void pub_command_print(FILE *out, const pub_row *r) {
    fputs("moefold simulate", out);
    for (int i = 0; i < r->command.count; i++) {
        const char *word = r->command.word[i];
        bool quoted = strpbrk(word, "|*()' ") != NULL;
        fprintf(out, quoted ? " '%s'" : " %s", word);
    }
}
