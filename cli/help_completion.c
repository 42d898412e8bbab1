/* help_completion.c - completion for bash and zsh, from the tables of commands and options. */
#include "cli/help_text.h"

#include "core/cluster/cluster.h"
#include "core/model/model.h"

#include <string.h>

/* --- bash ------------------------------------------------------------------------------------- */

static void print_shipped(FILE *out, bool models) {
    size_t count = 0;
    const char *const *names = models ? mf_model_shipped(&count) : mf_cluster_shipped(&count);
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "%s%s", i > 0 ? " " : "", names[i]);
    }
}

/* Names that a command takes without an option in front of them. */
static void print_plain(FILE *out, const mf_command *c) {
    size_t count = 0;
    if (strcmp(c->name, "models") == 0 || strcmp(c->name, "clusters") == 0) {
        print_shipped(out, c->name[0] == 'm');
    }
    for (const mf_command *const *o = mf_cli_commands(); c->name[0] == 'h' && *o != NULL; o++) {
        fprintf(out, "%s%s", count++ > 0 ? " " : "", (*o)->name);
    }
}

static bool is_list(const mf_option *o) {
    return o->argument != NULL && strcmp(o->argument, "LIST") == 0;
}

/* What may stand behind an option, where that is a word or a list of words. */
static void print_values(FILE *out) {
    fputs("    case $before in\n", out);
    for (int id = 0; id < MF_OPT_COUNT; id++) {
        const mf_option *o = mf_option_get((mf_option_id)id);
        const bool models = id == MF_OPT_MODEL || id == MF_OPT_MODELS;
        if (models || id == MF_OPT_CLUSTER || id == MF_OPT_CLUSTERS) {
            fprintf(out, "    --%s)\n        words=\"", o->name);
            print_shipped(out, models);
        } else if (o->words != NULL) {
            fprintf(out, "    --%s)\n        words=\"%s", o->name,
                    o->words + strspn(o->words, " "));
        } else if (o->kind != MF_VALUE_FLAG) {
            fprintf(out, "    --%s) return ;;\n", o->name); /* a number or a file */
            continue;
        } else {
            continue;
        }
        fputs(is_list(o) ? "\" list=yes ;;\n" : "\" ;;\n", out);
    }
    fputs("    -o) return ;;\n    esac\n", out);
}

/* bash parts words at "=" or not, as COMP_WORDBREAKS says. */
static void completion_bash(FILE *out) {
    fputs("# Completion of moefold for bash. Written by `moefold help --completion`.\n"
          "_moefold() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words= "
          "list= "
          "front= w\n"
          "    COMPREPLY=()\n"
          "    if [ \"$before\" = = ]; then before=${COMP_WORDS[COMP_CWORD - 2]}; fi\n"
          "    if [ \"$word\" = = ]; then word=; fi\n"
          "    case $word in --*=*) before=${word%%=*} front=${word%%=*}= word=${word#*=} ;; esac\n"
          "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
          "        COMPREPLY=($(compgen -W \"",
          out);
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL; c++) {
        fprintf(out, "%s ", (*c)->name);
    }
    fputs("--help --version\" -- \"$word\"))\n        return\n    fi\n", out);
    print_values(out);
    fputs("    if [ -z \"$words\" ]; then\n        case ${COMP_WORDS[1]} in\n", out);
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL; c++) {
        fprintf(out, "        %s) words=\"", (*c)->name);
        print_plain(out, *c);
        for (size_t i = 0; (*c)->options[i] != MF_OPT_COUNT; i++) {
            fprintf(out, " --%s", mf_option_get((*c)->options[i])->name);
        }
        fputs("\" ;;\n", out);
    }
    fputs("        esac\n"
          "        case $word in -*) ;; *) words=${words%% --*} ;; esac\n"
          "    fi\n"
          "    if [ -n \"$list\" ]; then\n"
          "        front=$front${word%\"${word##*,}\"}\n"
          "        compopt -o nospace 2>/dev/null # a comma may follow\n"
          "    fi\n"
          "    for w in $(compgen -W \"$words\" -- \"${word##*,}\"); do\n"
          "        case ,${front#*=}, in *,$w,*) ;; *) COMPREPLY+=(\"$front$w\") ;; esac\n"
          "    done\n"
          "}\n"
          "complete -o bashdefault -o default -F _moefold moefold moefold-mpi\n",
          out);
}

/* --- zsh -------------------------------------------------------------------------------------- */

/* Text inside '...' of a specification of _arguments or of an item of _describe. */
static void print_quoted(FILE *out, const char *text, const char *escaped) {
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            fputs("'\\''", out);
        } else {
            fprintf(out, "%s%c", strchr(escaped, *text) != NULL ? "\\" : "", *text);
        }
    }
}

/* The first sentence, without what stands in brackets behind it. */
static void print_summary(FILE *out, const char *help) {
    char text[96];
    size_t length = strcspn(help, ".:\n");
    while (help[length] == '.' && help[length + 1] != ' ' && help[length + 1] != '\0') {
        length += 1 + strcspn(help + length + 1, ".:\n"); /* config.json ends no sentence */
    }
    snprintf(text, sizeof text, "%.*s", (int)length, help);
    char *last = strrchr(text, ' ');
    if (length >= sizeof text && last != NULL) {
        snprintf(last, sizeof text - (size_t)(last - text), "...");
    }
    print_quoted(out, text, "[]:");
}

static bool is_path(const mf_option *o) {
    return o->argument != NULL &&
           (strstr(o->argument, "FILE") != NULL || strstr(o->argument, "DIR") != NULL);
}

/* What _arguments does at a value: "(a b c)", or a function. */
static void print_action(FILE *out, const mf_option *o, mf_option_id id) {
    const bool models = id == MF_OPT_MODEL || id == MF_OPT_MODELS;
    if (models || id == MF_OPT_CLUSTER || id == MF_OPT_CLUSTERS) {
        fputs(is_list(o) ? " _values -s , name " : " _moefold_or_file ", out);
        print_shipped(out, models);
    } else if (o->words != NULL && is_list(o)) {
        fprintf(out, " _values -s , word %s", o->words + strspn(o->words, " "));
    } else if (o->words != NULL) {
        fprintf(out, "(%s)", o->words + strspn(o->words, " "));
    } else if (is_path(o)) {
        fputs("_files", out);
    } else {
        fputs(" ", out);
    }
}

static void zsh_option(FILE *out, mf_option_id id) {
    const mf_option *o = mf_option_get(id);
    fprintf(out, " \\\n            '%s--%s%s[", o->kind == MF_VALUE_LIST ? "*" : "", o->name,
            o->kind == MF_VALUE_FLAG ? "" : "=");
    print_summary(out, o->help);
    fputs("]", out);
    if (o->kind != MF_VALUE_FLAG) {
        fputs(":", out);
        print_quoted(out, o->argument, "[]:");
        fputs(":", out);
        print_action(out, o, id);
    }
    fputs("'", out);
}

static void zsh_command(FILE *out, const mf_command *c) {
    fprintf(out, "        %s)\n            _arguments", c->name);
    for (size_t i = 0; c->options[i] != MF_OPT_COUNT; i++) {
        zsh_option(out, c->options[i]);
    }
    if (c->words > 0) {
        fputs(" \\\n            '*:word: _moefold_or_file ", out);
        print_plain(out, c);
        fputs("'", out);
    }
    fputs(" ;;\n", out);
}

static void completion_zsh(FILE *out) {
    fputs("#compdef moefold moefold-mpi\n"
          "# Completion of moefold for zsh. Written by `moefold help --completion zsh`.\n"
          "_moefold_or_file() {\n"
          "    _alternative \"names:name:($*)\" 'files:file:_files'\n"
          "}\n"
          "_moefold() {\n"
          "    local -a commands\n"
          "    local curcontext=$curcontext\n"
          "    if (( CURRENT == 2 )); then\n"
          "        commands=(\n",
          out);
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL; c++) {
        fprintf(out, "            '%s:", (*c)->name);
        print_quoted(out, (*c)->summary, ":");
        fputs("'\n", out);
    }
    fputs("        )\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    local command=$words[2]\n"
          "    shift words\n"
          "    (( CURRENT-- ))\n"
          "    case $command in\n",
          out);
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL; c++) {
        zsh_command(out, *c);
    }
    fputs("    esac\n"
          "}\n"
          "if [ \"$funcstack[1]\" = _moefold ]; then\n"
          "    _moefold \"$@\"\n"
          "else\n"
          "    compdef _moefold moefold moefold-mpi\n"
          "fi\n",
          out);
}

void mf_help_completion(FILE *out, bool zsh) {
    if (zsh) {
        completion_zsh(out);
    } else {
        completion_bash(out);
    }
}
