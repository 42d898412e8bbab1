/* help_man.c - the man page, from the tables of commands and options. */
#include "cli/help_text.h"
#include "report/text/show.h"

/* Every option once: many commands take the same. */
static void print_options(FILE *out) {
    char text[1024];
    for (int at = 0; at < MF_OPTS_GROUPS * MF_OPT_COUNT; at++) {
        const int group = at / MF_OPT_COUNT, id = at % MF_OPT_COUNT;
        const mf_option *o = mf_option_get((mf_option_id)id);
        if (id == 0) {
            fprintf(out, ".SS %s\n", mf_option_group_text((mf_option_group)group));
        }
        if (o->group == (mf_option_group)group) {
            snprintf(text, sizeof text, "--%s %s", o->name, o->argument != NULL ? o->argument : "");
            fputs(".TP\n.B ", out);
            mf_show_roff(out, text);
            mf_help_option_text(o, NULL, text, sizeof text);
            mf_show_roff(out, text);
        }
    }
}

static void print_names(FILE *out, const mf_command *c) {
    char text[80];
    fputs(".PP\nOptions:\n", out);
    for (size_t i = 0; c->options[i] != MF_OPT_COUNT; i++) {
        const bool last = c->options[i + 1] == MF_OPT_COUNT;
        snprintf(text, sizeof text, "--%s%s", mf_option_get(c->options[i])->name, last ? "." : ",");
        mf_show_roff(out, text);
    }
}

void mf_help_man(FILE *out) {
    int code = 0;
    const char *meaning, *name = NULL;
    fprintf(out,
            ".TH MOEFOLD 1 \"\" \"%s\" \"\"\n.nh\n.ad l\n.SH NAME\nmoefold \\- plan, predict and "
            "run the training of Mixture\\-of\\-Experts models\n.SH SYNOPSIS\n.B moefold\n"
            ".I command\n[options]\n.SH DESCRIPTION\n",
            MF_GENERATOR);
    mf_show_roff(out, mf_help_intro);
    fputs(".PP\nResults go to standard output, messages to standard error. Defaults stand in "
          "square brackets; commands that search choose layout options that are not given.\n"
          ".SH COMMANDS\n",
          out);
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL; c++) {
        fprintf(out, ".SS %s\n", (*c)->name);
        for (int i = 0; i < 3 && (*c)->usage[i] != NULL; i++) {
            fprintf(out, "%s.B moefold %s\n", i > 0 ? ".br\n" : "", (*c)->name);
            mf_show_roff(out, (*c)->usage[i]);
        }
        fputs(".PP\n", out);
        mf_show_roff(out, (*c)->about);
        print_names(out, *c);
        if ((*c)->example != NULL) {
            fputs(".PP\nExample:\n.PP\n.RS\n", out);
            mf_show_roff(out, (*c)->example);
            fputs(".RE\n", out);
        }
    }
    fputs(".SH OPTIONS\n", out);
    print_options(out);
    fputs(".SH EXIT STATUS\n", out);
    for (int i = 0; (meaning = mf_help_exit_code(i, &code)) != NULL; i++) {
        fprintf(out, ".TP\n.B %d\n", code);
        mf_show_roff(out, meaning);
    }
    fputs(".SH ENVIRONMENT\n", out);
    for (int i = 0; (meaning = mf_help_environment(i, &name)) != NULL; i++) {
        fprintf(out, ".TP\n.B %s\n", name);
        mf_show_roff(out, meaning);
    }
}
