/* parse.c - argv against the table of options. */
#include "cli/cli.h"
#include "cli/options.h"
#include "core/cluster/cluster.h"
#include "core/model/model.h"
#include "launch/words/megatron_flags.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- the command line ------------------------------------------------------------------------- */

/* "train", "plan and fit", where few commands have it; else "other commands". */
static void name_owners(mf_option_id id, char *out, size_t size) {
    size_t used = 0;
    int count = 0;
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL && count < 3; c++) {
        if (mf_option_find(mf_option_get(id)->name, strlen(mf_option_get(id)->name),
                           (*c)->options) == id) {
            used += (size_t)snprintf(out + used, size - used, "%s%s", count > 0 ? " and " : "",
                                     (*c)->name);
            count++;
        }
    }
    if (count == 0 || count > 2) {
        snprintf(out, size, "other commands");
    }
}

/* The first option in a text such as "--zero 1 --expert-zero 1" that the command lacks;
 * MF_OPT_COUNT: it has all of them. */
static mf_option_id first_lacking(const char *words, const mf_option_id *allowed) {
    for (const char *p = strstr(words, "--"); p != NULL; p = strstr(p, "--")) {
        p += 2;
        const size_t length = strcspn(p, " ,;");
        const mf_option_id id = mf_option_find(p, length, NULL);
        if (mf_option_find(p, length, allowed) == MF_OPT_COUNT && id != MF_OPT_COUNT) {
            return id;
        }
    }
    return MF_OPT_COUNT;
}

/* Refuses the name of an option of Megatron's or another program's and names the option that this
 * command has for it, or the command that has one. MF_OK: no such name is known. */
static mf_status name_of_others(const char *name, const mf_option_id *allowed, mf_err *e) {
    const char *flag = name + strspn(name, "-"), *plain;
    const char *why = mf_megatron_flag_derived(flag, &plain);
    const char *here = mf_megatron_flag_here(flag);
    char owners[80];
    if (why != NULL) {
        why = first_lacking(why, allowed) != MF_OPT_COUNT ? plain : why;
        return mf_err_set(e, MF_USAGE, "unknown option %s%s%s", name, why != NULL ? ": " : "",
                          why != NULL ? why : "");
    }
    if (here == NULL) {
        return MF_OK;
    }
    if (here[0] == '\0') {
        return mf_err_set(e, MF_USAGE,
                          "%s is a flag of Megatron's: `moefold import` and `tune` read whole jobs",
                          name);
    }
    const mf_option_id lacking = first_lacking(here, allowed);
    if (lacking != MF_OPT_COUNT) {
        name_owners(lacking, owners, sizeof owners);
        return mf_err_set(e, MF_USAGE,
                          "%s is Megatron's name for --%s, an option of %s, not of this command",
                          name, mf_option_get(lacking)->name, owners);
    }
    return mf_err_set(e, MF_USAGE, "%s is Megatron's name: here it is %s", name, here);
}

static mf_status unknown_option(const char *arg, size_t length, const mf_option_id *allowed,
                                mf_err *e) {
    char name[80];
    const char *known[MF_OPT_COUNT];
    size_t count = 0;
    snprintf(name, sizeof name, "%.*s", (int)(length < 64 ? length : 64), arg);
    const char *bare = name + strspn(name, "-");
    for (size_t i = 0; allowed[i] != MF_OPT_COUNT; i++) {
        known[count++] = mf_option_get(allowed[i])->name;
    }
    const char *near = mf_nearest_word(bare, known, count);
    char mean[96] = "";
    snprintf(mean, sizeof mean, near != NULL ? " (did you mean --%.64s?)" : "%s",
             near != NULL ? near : "");
    if (mf_option_find(bare, strlen(bare), NULL) != MF_OPT_COUNT &&
        mf_option_find(bare, strlen(bare), allowed) == MF_OPT_COUNT) {
        const bool is_part =
            near != NULL && (strstr(near, bare) == near || strstr(bare, near) == bare);
        char owners[80];
        name_owners(mf_option_find(bare, strlen(bare), NULL), owners, sizeof owners);
        return mf_err_set(e, MF_USAGE, "%s is an option of %s, not of this command%s", name, owners,
                          is_part || mf_word_elsewhere(bare, known, count) != NULL ? mean : "");
    }
    if (mf_option_find("recipe", 6, allowed) != MF_OPT_COUNT &&
        mf_megatron_flag_here(bare) != NULL) {
        return mf_err_set(e, MF_USAGE, "%s: flags of a job stand behind all else: ... -- %s ...",
                          name, name);
    }
    mf_status s = name_of_others(name, allowed, e);
    return s != MF_OK ? s : mf_err_set(e, MF_USAGE, "unknown option %s%s", name, mean);
}

/* A plan, a model or a cluster without its option in front. */
static mf_status unexpected_word(const char *word, const mf_option_id *allowed, mf_err *e) {
    size_t n, m;
    const char *const *model = mf_model_shipped(&n), *const *cluster = mf_cluster_shipped(&m);
    const char *o = strstr(word, ".json") != NULL                 ? "plan"
                    : mf_word_elsewhere(word, model, n) != NULL   ? "model"
                    : mf_word_elsewhere(word, cluster, m) != NULL ? "cluster"
                                                                  : "";
    char mean[160] = "";
    if (mf_option_find(o, strlen(o), allowed) != MF_OPT_COUNT) {
        snprintf(mean, sizeof mean, " (did you mean --%s %.100s?)", o, word);
    }
    return mf_err_set(e, MF_USAGE, "unexpected \"%s\": only options are taken%s", word, mean);
}

static mf_status parse_value(const mf_option *o, const char *text, mf_value *v, mf_err *e) {
    mf_layout scratch;
    mf_status s = MF_OK;
    v->given = true;
    v->text = text;
    switch (o->kind) {
    case MF_VALUE_INT:
        s = mf_parse_i64(text, (int64_t)o->low, (int64_t)o->high, &v->i, e);
        break;
    case MF_VALUE_SIZE:
        s = mf_parse_size(text, (int64_t)o->low, (int64_t)o->high, &v->i, e);
        break;
    case MF_VALUE_REAL:
        s = mf_parse_f64(text, o->low, o->high, &v->f, e);
        break;
    case MF_VALUE_SHARE:
        s = mf_parse_share(text, o->low, o->high, &v->f, e);
        break;
    case MF_VALUE_COUNT:
        s = mf_parse_count(text, o->low, o->high, &v->f, e);
        break;
    case MF_VALUE_TIME:
        s = mf_parse_time(text, o->low, o->high, &v->f, e);
        break;
    case MF_VALUE_UNTIL:
        s = mf_parse_until(text, (double)time(NULL), o->low, o->high, &v->f, e);
        break;
    case MF_VALUE_TEXT:
    case MF_VALUE_LIST:
        if (text[0] == '\0') {
            s = mf_err_set(e, MF_USAGE, "expected %s, got \"\"", o->argument);
        }
        break;
    case MF_VALUE_FLAG:
        break;
    }
    if (s == MF_OK && o->apply != NULL) {
        mf_layout_init(&scratch);
        s = o->apply(&scratch, v, e);
    }
    return s == MF_OK ? s : mf_err_prefix(e, "--%s", o->name);
}

/* One option at argv[*i]; moves *i over its value. */
static mf_status parse_option(int argc, const char *const *argv, int *i,
                              const mf_option_id *allowed, mf_args *out, mf_err *e) {
    const char *arg = argv[*i];
    const char *equals = strchr(arg, '=');
    size_t length = equals != NULL ? (size_t)(equals - arg) : strlen(arg);
    mf_option_id id = MF_OPT_COUNT;
    if (length > 2 && arg[1] == '-') {
        id = mf_option_find(arg + 2, length - 2, allowed);
    } else if (strcmp(arg, "-o") == 0) {
        id = mf_option_find("report", 6, allowed);
        id = id != MF_OPT_COUNT ? id : mf_option_find("out", 3, allowed);
    } else if (strcmp(arg, "-v") == 0) {
        id = mf_option_find("verbose", 7, allowed);
    }
    if (id == MF_OPT_COUNT) {
        return unknown_option(arg, length, allowed, e);
    }
    const mf_option *o = mf_option_get(id);
    const char *text = "";
    if (o->kind == MF_VALUE_FLAG) {
        if (equals != NULL) {
            return mf_err_set(e, MF_USAGE, "--%s takes no value, got \"%s\"", o->name, equals + 1);
        }
    } else if (equals != NULL) {
        text = equals + 1;
    } else if (*i + 1 < argc) {
        text = argv[++*i];
        if (text[0] == '-' && text[1] == '-' &&
            mf_option_find(text + 2, strcspn(text + 2, "="), NULL) != MF_OPT_COUNT) {
            return mf_err_set(e, MF_USAGE, "--%s: expected %s, got the option %s", o->name,
                              o->argument, text);
        }
    } else {
        return mf_err_set(e, MF_USAGE, "--%s: expected %s after it", o->name, o->argument);
    }
    if (o->kind == MF_VALUE_LIST) {
        int *count = id == MF_OPT_PRICE ? &out->price_count : &out->set_count;
        if (*count == MF_ARGS_MAX_LIST) {
            return mf_err_set(e, MF_USAGE, "--%s: given more than %d times", o->name,
                              MF_ARGS_MAX_LIST);
        }
        (id == MF_OPT_PRICE ? out->price : out->set)[(*count)++] = text;
    } else if (out->value[id].given && o->kind != MF_VALUE_FLAG) {
        return mf_err_set(e, MF_USAGE, "--%s: given twice (\"%s\" and \"%s\")", o->name,
                          out->value[id].text, text);
    }
    return parse_value(o, text, &out->value[id], e);
}

/* A batch of millions is one of tokens: "4M" of sequences of 4,096 are 1,024 samples. */
static mf_status batch_of_tokens(mf_args *a, mf_err *e) {
    mf_value *v = &a->value[MF_OPT_GLOBAL_BATCH];
    const mf_value *seq = &a->value[MF_OPT_SEQ];
    if (!v->given || strchr("Mm", v->text[strlen(v->text) - 1]) == NULL) {
        return MF_OK;
    }
    if (!seq->given || v->i % seq->i != 0) {
        return mf_err_set(
            e, MF_USAGE, "--global-batch: %s means %lld tokens, which %s divide into samples",
            v->text, (long long)v->i, seq->given ? "--seq does not" : "need --seq to");
    }
    v->i /= seq->i;
    return MF_OK;
}

mf_status mf_args_parse(int argc, const char *const *argv, const mf_option_id *allowed,
                        int max_words, mf_args *out, mf_err *e) {
    bool options = true;
    mf_status s = MF_OK;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < argc && s == MF_OK; i++) {
        if (options && strcmp(argv[i], "--") == 0) {
            options = false;
        } else if (options && argv[i][0] == '-' && argv[i][1] != '\0') {
            s = parse_option(argc, argv, &i, allowed, out, e);
        } else if (out->words == max_words || out->words == MF_ARGS_MAX_WORDS) {
            s = max_words == 0
                    ? unexpected_word(argv[i], allowed, e)
                    : mf_err_set(e, MF_USAGE, "unexpected \"%s\": one word too many", argv[i]);
        } else {
            out->word[out->words++] = argv[i];
        }
    }
    for (int i = 0; allowed[i] != MF_OPT_COUNT; i++) {
        out->corrected |= allowed[i] == MF_OPT_NO_CORRECTIONS;
    }
    out->corrected &= !out->value[MF_OPT_NO_CORRECTIONS].given;
    return s == MF_OK ? batch_of_tokens(out, e) : s;
}

mf_status mf_args_apply(const mf_args *a, mf_layout *l, mf_err *e) {
    for (int id = 0; id < MF_OPT_COUNT; id++) {
        const mf_option *o = mf_option_get((mf_option_id)id);
        if (a->value[id].given && o->apply != NULL) {
            mf_status s = o->apply(l, &a->value[id], e);
            if (s != MF_OK) {
                return mf_err_prefix(e, "--%s", o->name);
            }
        }
    }
    if (!a->value[MF_OPT_SCHEDULE].given && a->value[MF_OPT_VPP].given) {
        l->schedule = l->vpp > 1 ? MF_SCHED_INTERLEAVED : MF_SCHED_1F1B;
    }
    return MF_OK;
}

uint32_t mf_args_pinned(const mf_args *a) {
    uint32_t pinned = 0;
    for (int id = 0; id < MF_OPT_COUNT; id++) {
        pinned |= a->value[id].given ? mf_option_get((mf_option_id)id)->pin : 0;
    }
    return pinned;
}

int mf_args_threads(const mf_args *a) {
    const mf_value *v = &a->value[MF_OPT_THREADS];
    return v->given ? (int)v->i : 0;
}

mf_status mf_args_require(const mf_args *a, mf_option_id id, mf_err *e) {
    if (a->value[id].given) {
        return MF_OK;
    }
    const mf_option *o = mf_option_get(id);
    return mf_err_set(e, MF_USAGE, "--%s %s is required", o->name, o->argument);
}
