/* help_completion.c - completion for bash, from the tables of commands and options. */
#include "cli/help_text.h"

#include "core/cluster/cluster.h"
#include "core/model/model.h"

#include <string.h>

static void print_names(FILE *out, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "%s%s", i > 0 ? " " : "", names[i]);
    }
}

/* What may stand behind an option, where that is a list of words. */
static void print_values(FILE *out) {
    size_t count = 0;
    fputs("    case $before in\n    --model | --models)\n        words=\"", out);
    const char *const *models = mf_model_shipped(&count);
    print_names(out, models, count);
    fputs("\" ;;\n    --cluster | --clusters)\n        words=\"", out);
    const char *const *clusters = mf_cluster_shipped(&count);
    print_names(out, clusters, count);
    fputs("\" ;;\n", out);
    for (int id = 0; id < MF_OPT_COUNT; id++) {
        const mf_option *o = mf_option_get((mf_option_id)id);
        if (o->words != NULL) {
            fprintf(out, "    --%s) words=\"%s\" ;;\n", o->name, o->words + strspn(o->words, " "));
        } else if (o->kind != MF_VALUE_FLAG && id != MF_OPT_MODEL && id != MF_OPT_MODELS &&
                   id != MF_OPT_CLUSTER && id != MF_OPT_CLUSTERS) {
            fprintf(out, "    --%s) return ;;\n", o->name); /* a number or a file */
        }
    }
    fputs("    -o) return ;;\n    esac\n", out);
}

void mf_help_completion(FILE *out) {
    fputs("# Completion of moefold for bash. Written by `moefold help --completion`.\n"
          "_moefold() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
          "    COMPREPLY=()\n"
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
        for (size_t i = 0; (*c)->options[i] != MF_OPT_COUNT; i++) {
            fprintf(out, "%s--%s", i > 0 ? " " : "", mf_option_get((*c)->options[i])->name);
        }
        fputs("\" ;;\n", out);
    }
    fputs("        esac\n"
          "        case $word in -*) ;; *) return ;; esac\n"
          "    fi\n"
          "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
          "}\n"
          "complete -o bashdefault -o default -F _moefold moefold\n",
          out);
}
