/* help_man.c - the man page, from the tables of commands and options. */
#include "cli/help_text.h"

#include <string.h>

/* Text as roff takes it: '-' is a minus, so that options can be copied from the page. */
static void print_text(FILE *out, const char *text) {
    bool first = true;
    for (; *text != '\0'; text++) {
        if (first && (*text == '.' || *text == '\'')) {
            fputs("\\&", out);
        }
        first = *text == '\n';
        if (*text == '\\') {
            fputs("\\e", out);
        } else if (*text == '-') {
            fputs("\\-", out);
        } else if (*text == '\n') {
            fputs("\n.PP\n", out);
        } else {
            putc(*text, out);
        }
    }
    putc('\n', out);
}

static void print_options(FILE *out, const mf_command *c) {
    char text[1024];
    for (int g = 0; g < MF_OPTS_GROUPS; g++) {
        for (size_t i = 0; c->options[i] != MF_OPT_COUNT; i++) {
            const mf_option *o = mf_option_get(c->options[i]);
            if (o->group != (mf_option_group)g) {
                continue;
            }
            fputs(".TP\n.B ", out);
            fputs("\\-\\-", out);
            for (const char *p = o->name; *p != '\0'; p++) {
                fputs(*p == '-' ? "\\-" : (char[]){*p, '\0'}, out);
            }
            fprintf(out, "%s%s\n", o->argument != NULL ? " " : "",
                    o->argument != NULL ? o->argument : "");
            mf_help_option_text(o, c, text, sizeof text);
            print_text(out, text);
        }
    }
}

void mf_help_man(FILE *out) {
    int code = 0;
    const char *meaning, *name = NULL;
    fprintf(out,
            ".TH MOEFOLD 1 \"\" \"%s\" \"\"\n.SH NAME\nmoefold \\- plan, predict and run the "
            "training of Mixture\\-of\\-Experts models\n.SH SYNOPSIS\n.B moefold\n"
            ".I command\n[options]\n.SH DESCRIPTION\n",
            MF_GENERATOR);
    print_text(out, mf_help_intro);
    fputs(".PP\nResults go to standard output, messages to standard error. Defaults stand in "
          "square brackets.\n.SH COMMANDS\n",
          out);
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL; c++) {
        fprintf(out, ".SS %s\n", (*c)->name);
        for (int i = 0; i < 3 && (*c)->usage[i] != NULL; i++) {
            fprintf(out, "%s.B moefold %s\n", i > 0 ? ".br\n" : "", (*c)->name);
            print_text(out, (*c)->usage[i]);
        }
        fputs(".PP\n", out);
        print_text(out, (*c)->about);
        print_options(out, *c);
        if ((*c)->example != NULL) {
            fputs(".PP\nExample:\n.PP\n.RS\n", out);
            print_text(out, (*c)->example);
            fputs(".RE\n", out);
        }
    }
    fputs(".SH EXIT STATUS\n", out);
    for (int i = 0; (meaning = mf_help_exit_code(i, &code)) != NULL; i++) {
        fprintf(out, ".TP\n.B %d\n", code);
        print_text(out, meaning);
    }
    fputs(".SH ENVIRONMENT\n", out);
    for (int i = 0; (meaning = mf_help_environment(i, &name)) != NULL; i++) {
        fprintf(out, ".TP\n.B %s\n", name);
        print_text(out, meaning);
    }
}
