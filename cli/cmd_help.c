/* cmd_help.c - `moefold help`, and how help reads on a terminal and in docs/CLI.md. */
#include "cli/commands.h"
#include "cli/help_text.h"
#include "planner/space/space.h"
#include "report/text/show.h"

#include <string.h>

enum { WIDTH = 79, INDENT = 26 };

static const struct {
    int code;
    const char *text;
} exit_codes[] = {
    {0, "done"},
    {1, "failed while running"},
    {2, "bad usage, malformed input, or degrees that do not divide"},
    {3, "nothing feasible"},
    {4, "compare: measured outside --tolerance"},
    {5, "train --rerun: a bad step came out differently when it was run again"},
    {6, "train --rerun: bad steps stayed bad"},
    {130, "interrupted: the best so far was printed, or the run was saved"},
};
enum { EXIT_CODES = sizeof exit_codes / sizeof exit_codes[0] };

static const struct {
    const char *name, *text;
} environment[] = {
    {"COLUMNS", "width where standard output is no terminal"},
    {"NO_COLOR", "set to anything: no colour on terminals"},
    {"MOEFOLD_DATA", "folder with models, clusters and measurements, in place of what ships"},
    {"MOEFOLD_CPU",
     "folder for measurements of cluster cpu [~/.cache/moefold]; off: none are made"},
    {"MOEFOLD_CORRECTIONS", "folder of corrections; off: none"},
    {"MOEFOLD_CUDA_LIBRARY", "library of GPU kernels; none: no GPU"},
};
enum { ENVIRONMENT = sizeof environment / sizeof environment[0] };

const char mf_help_intro[] = "moefold finds the fastest way to fold a Mixture-of-Experts training "
                             "job onto a GPU cluster, and "
                             "predicts what a step will cost in time, memory and money.";

const char *mf_help_exit_code(int i, int *code) {
    if (i >= EXIT_CODES) {
        return NULL;
    }
    *code = exit_codes[i].code;
    return exit_codes[i].text;
}

const char *mf_help_environment(int i, const char **name) {
    if (i >= ENVIRONMENT) {
        return NULL;
    }
    *name = environment[i].name;
    return environment[i].text;
}

/* --- on a terminal ---------------------------------------------------------------------------- */

void mf_help_print(FILE *out) {
    mf_show_wrap(out, mf_help_intro, 0, 0, WIDTH);
    fputs("\nUsage: moefold <command> [options]\n\nCommands\n", out);
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL; c++) {
        fprintf(out, "  %-10s  ", (*c)->name);
        mf_show_wrap(out, (*c)->summary, 14, 14, WIDTH);
    }
    putc('\n', out);
    mf_show_wrap(out,
                 "`moefold <command> -h` explains a command. Results go to standard output, "
                 "messages to standard error. Exit codes:",
                 0, 0, WIDTH);
    for (int i = 0; i < EXIT_CODES; i++) {
        fprintf(out, "  %3d  %s\n", exit_codes[i].code, exit_codes[i].text);
    }
    fputs("Environment:\n", out);
    for (int i = 0; i < ENVIRONMENT; i++) {
        fprintf(out, "  %-12s  ", environment[i].name);
        mf_show_wrap(out, environment[i].text, 16, 16, WIDTH);
    }
}

/* " a b c" as "a, b or c". */
static void print_words(const char *words, FILE *out) {
    for (const char *p = words + strspn(words, " "); *p != '\0';) {
        size_t length = strcspn(p, " ");
        const char *next = p + length + strspn(p + length, " ");
        const char *after = next + strcspn(next, " ");
        fprintf(out, "%.*s", (int)length, p);
        if (*next != '\0') {
            fputs(*after == '\0' ? " or " : ", ", out);
        }
        p = next;
    }
}

/* Help, choices and default as one text. */
void mf_help_option_text(const mf_option *o, const mf_command *c, char *out, size_t size) {
    FILE *f = fmemopen(out, size, "w");
    if (f == NULL) {
        out[0] = '\0';
        return;
    }
    fputs(o->help, f);
    fputs(". ", f);
    if (o->words != NULL) {
        fputs(o->argument != NULL && o->argument[0] == 'L' ? "A comma list of " : "One of ", f);
        print_words(o->words, f);
        fputs(". ", f);
    }
    const bool searched = o->pin != 0 && o->pin != MF_PIN(PRECISION); /* that: --precisions */
    if (o->fallback != NULL && !(c != NULL && c->searches && searched)) {
        fprintf(f, "[%s]", o->fallback);
    }
    fclose(f);
    size_t used = strlen(out);
    if (used > 0 && out[used - 1] == ' ') {
        out[used - 1] = '\0';
    }
}

static bool command_has(const mf_command *c, mf_option_group g) {
    for (size_t i = 0; c->options[i] != MF_OPT_COUNT; i++) {
        if (mf_option_get(c->options[i])->group == g) {
            return true;
        }
    }
    return false;
}

void mf_help_command(FILE *out, const mf_command *c) {
    char text[1024];
    fprintf(out, "moefold %s: %s\n\n", c->name, c->summary);
    for (int i = 0; i < 3 && c->usage[i] != NULL; i++) {
        int column = fprintf(out, "%s moefold %s ", i == 0 ? "Usage:" : "      ", c->name);
        mf_show_wrap(out, c->usage[i], column, 11, WIDTH);
    }
    putc('\n', out);
    mf_show_wrap(out, c->about, 0, 0, WIDTH);
    for (int g = 0; g < MF_OPTS_GROUPS; g++) {
        if (!command_has(c, (mf_option_group)g)) {
            continue;
        }
        bool pins = c->searches && (g == MF_OPTS_DEGREES || g == MF_OPTS_CHOICES);
        fprintf(out, "\n%s%s\n", mf_option_group_text((mf_option_group)g),
                pins ? " (without a default: chosen by the search unless given)" : "");
        for (size_t i = 0; c->options[i] != MF_OPT_COUNT; i++) {
            const mf_option *o = mf_option_get(c->options[i]);
            if (o->group != (mf_option_group)g) {
                continue;
            }
            int column = fprintf(out, "  --%s%s%s", o->name, o->argument != NULL ? " " : "",
                                 o->argument != NULL ? o->argument : "");
            mf_help_option_text(o, c, text, sizeof text);
            if (column > INDENT - 2) {
                putc('\n', out);
                column = 0;
            }
            fprintf(out, "%*s", INDENT - column, "");
            mf_show_wrap(out, text, INDENT, INDENT, WIDTH);
        }
    }
    if (c->example != NULL) {
        fputs("\nExample\n  ", out);
        mf_show_wrap(out, c->example, 2, 6, WIDTH);
    }
}

/* --- as Markdown ------------------------------------------------------------------------------ */

/* '|' ends a cell of a table. */
static void print_cell(FILE *out, const char *text) {
    for (const char *p = text; *p != '\0'; p++) {
        fputs(*p == '|' ? "\\|" : (char[]){*p, '\0'}, out);
    }
}

static void markdown_options(FILE *out, const mf_command *c) {
    char text[1024];
    fputs("| option | meaning |\n|---|---|\n", out);
    for (int g = 0; g < MF_OPTS_GROUPS; g++) {
        for (size_t i = 0; c->options[i] != MF_OPT_COUNT; i++) {
            const mf_option *o = mf_option_get(c->options[i]);
            if (o->group == (mf_option_group)g) {
                fprintf(out, "| `--%s%s", o->name, o->argument != NULL ? " " : "");
                print_cell(out, o->argument != NULL ? o->argument : "");
                fputs("` | ", out);
                mf_help_option_text(o, c, text, sizeof text);
                print_cell(out, text);
                fputs(" |\n", out);
            }
        }
    }
}

void mf_help_markdown(FILE *out) {
    fputs("# The command line\n\n<!-- Written by `moefold help --markdown`. Do not edit. -->\n\n",
          out);
    mf_show_wrap_at(out, mf_help_intro, 0, 0, WIDTH);
    fputs("\n    moefold <command> [options]\n\n"
          "Results go to standard output, messages to standard error. Defaults stand in square\n"
          "brackets.\n\n| exit code | meaning |\n|---|---|\n",
          out);
    for (int i = 0; i < EXIT_CODES; i++) {
        fprintf(out, "| %d | %s |\n", exit_codes[i].code, exit_codes[i].text);
    }
    fputs("\n| variable | meaning |\n|---|---|\n", out);
    for (int i = 0; i < ENVIRONMENT; i++) {
        fprintf(out, "| `%s` | %s |\n", environment[i].name, environment[i].text);
    }
    fputs("\n| command | use |\n|---|---|\n", out);
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL; c++) {
        fprintf(out, "| [`%s`](#%s) | %s |\n", (*c)->name, (*c)->name, (*c)->summary);
    }
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL; c++) {
        fprintf(out, "\n## %s\n\n", (*c)->name);
        for (int i = 0; i < 3 && (*c)->usage[i] != NULL; i++) {
            fprintf(out, "    moefold %s %s\n", (*c)->name, (*c)->usage[i]);
        }
        putc('\n', out);
        for (const char *p = (*c)->about; *p != '\0';) {
            size_t length = strcspn(p, "\n");
            char paragraph[2048];
            snprintf(paragraph, sizeof paragraph, "%.*s", (int)length, p);
            mf_show_wrap_at(out, paragraph, 0, 0, 100);
            putc('\n', out);
            p += length + strspn(p + length, "\n");
        }
        markdown_options(out, *c);
        if ((*c)->example != NULL) {
            fprintf(out, "\n    %s\n", (*c)->example);
        }
    }
}

/* --- the command ------------------------------------------------------------------------------ */

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    if (a->value[MF_OPT_MARKDOWN].given) {
        mf_help_markdown(cli->out);
        return MF_OK;
    }
    if (a->value[MF_OPT_MAN].given) {
        mf_help_man(cli->out);
        return MF_OK;
    }
    if (a->value[MF_OPT_COMPLETION].given) {
        const char *shell = a->value[MF_OPT_COMPLETION].text;
        if (strcmp(shell, "bash") != 0 && strcmp(shell, "zsh") != 0) {
            return mf_err_set(e, MF_USAGE, "--completion: expected bash or zsh, got \"%s\"", shell);
        }
        mf_help_completion(cli->out, shell[0] == 'z');
        return MF_OK;
    }
    if (a->words == 0) {
        mf_cli_show_help(cli, NULL);
        return MF_OK;
    }
    const mf_command *c = mf_cli_command_find(a->word[0]);
    if (c == NULL) {
        return mf_cli_unknown_command(a->word[0], e);
    }
    mf_cli_show_help(cli, c);
    return MF_OK;
}

static const mf_option_id options[] = {MF_OPT_MARKDOWN, MF_OPT_MAN, MF_OPT_COMPLETION, MF_OPT_HELP,
                                       MF_OPT_COUNT};

const mf_command mf_cmd_help = {
    .name = "help",
    .summary = "this list, or the help of one command",
    .usage = {"[COMMAND]", "--markdown | --man | --completion bash|zsh"},
    .about = "Explains a command, or lists all of them.",
    .words = 1,
    .options = options,
    .run = run,
};
