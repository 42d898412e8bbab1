/* commands.c - the way from argv to an exit code. */
#include "cli/commands.h"
#include "cli/args_request.h"
#include "report/text/screen.h"

#include "core/base/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const mf_command *mf_cli_command_find(const char *name) {
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL; c++) {
        if (strcmp((*c)->name, name) == 0) {
            return *c;
        }
    }
    return NULL;
}

/* Lines of the error stream, no wider than the terminal. In one piece: ranks share the stream. */
static void say_folded(const mf_cli *cli, const char *lines) {
    const mf_screen how = {.columns = cli->columns, .all = true};
    char *text = NULL;
    size_t size;
    FILE *out = cli->columns > 0 ? open_memstream(&text, &size) : NULL;
    bool folded = out != NULL && mf_screen_write(out, lines, &how, NULL) == MF_OK;
    folded = (out == NULL || fclose(out) == 0) && folded;
    fputs(folded ? text : lines, cli->err);
    fflush(cli->err);
    free(text);
}

void mf_cli_say(const mf_cli *cli, mf_err *e) {
    if (e->text[0] == '\0') {
        return;
    }
    char line[4 * MF_ERR_TEXT_MAX + 64];
    int n = snprintf(line, sizeof line, "moefold%s%s: ", cli->command != NULL ? " " : "",
                     cli->command != NULL ? cli->command->name : "");
    for (const char *p = e->text; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        n += snprintf(line + n, sizeof line - (size_t)n, c < 0x20 || c == 0x7f ? "\\x%02x" : "%c",
                      c);
    }
    line[n++] = '\n';
    line[n] = '\0';
    say_folded(cli, line);
    mf_err_clear(e);
}

mf_status mf_cli_unknown_command(const char *word, mf_err *e) {
    enum { MOST = 32 };
    const char *known[MOST + 1] = {"--version"};
    size_t count = 1;
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL && count <= MOST; c++) {
        known[count++] = (*c)->name;
    }
    const char *near = mf_nearest_word(word, known, count);
    return mf_err_set(e, MF_USAGE, "unknown command \"%s\"%s%s%s; `moefold help` lists them", word,
                      near != NULL ? " (did you mean " : "", near != NULL ? near : "",
                      near != NULL ? "?)" : "");
}

/* -h and --help win wherever they stand in front of "--". */
static bool wants_help(int argc, const char *const *argv) {
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            return true;
        }
    }
    return false;
}

/* Runs the command, its notes and then its results as the terminal shows them. */
static mf_status run_on_screen(mf_args *a, mf_cli *cli, mf_err *e) {
    FILE *out = cli->out;
    char *text = NULL, *notes = NULL;
    size_t size, notes_size;
    cli->out = open_memstream(&text, &size);
    a->notes = open_memstream(&notes, &notes_size);
    if (cli->out == NULL || a->notes == NULL) {
        (void)(cli->out != NULL && fclose(cli->out));
        (void)(a->notes != NULL && fclose(a->notes));
        free(text);
        free(notes);
        cli->out = out;
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = cli->command->run(a, cli, e);
    const bool noted = fclose(a->notes) == 0, complete = fclose(cli->out) == 0;
    cli->out = out;
    a->notes = cli->err;
    if (noted && notes[0] != '\0') {
        say_folded(cli, notes);
    }
    const mf_screen how = {
        .columns = cli->columns, .all = a->value[MF_OPT_VERBOSE].given, .colour = cli->colour};
    mf_status shown = complete && noted
                          ? mf_screen_write(out, text, &how, s == MF_OK ? e : NULL)
                          : mf_err_set(s == MF_OK ? e : NULL, MF_NOMEM, "out of memory");
    free(text);
    free(notes);
    return s == MF_OK ? shown : s;
}

/* Text for people, of a command that has rows to show or to leave out. */
static bool is_for_screen(const mf_cli *cli, const mf_args *a) {
    const mf_option_id *o = cli->command->options;
    while (*o != MF_OPT_COUNT && *o != MF_OPT_VERBOSE) {
        o++;
    }
    return cli->columns > 0 && *o == MF_OPT_VERBOSE && !a->value[MF_OPT_JSON].given;
}

void mf_cli_show_help(const mf_cli *cli, const mf_command *c) {
    char *text = NULL;
    size_t size;
    FILE *out = cli->columns > 0 ? open_memstream(&text, &size) : NULL;
    FILE *to = out != NULL ? out : cli->out;
    if (c != NULL) {
        mf_help_command(to, c);
    } else {
        mf_help_print(to);
    }
    if (out != NULL && fclose(out) == 0) {
        const mf_screen how = {.columns = cli->columns, .all = true};
        (void)mf_screen_write(cli->out, text, &how, NULL);
    }
    free(text);
}

static mf_status run_command(int argc, const char *const *argv, mf_cli *cli, mf_err *e) {
    if (argc < 2 || (argv[1][0] == '-' && wants_help(argc - 1, argv + 1))) {
        if (argc < 2) {
            mf_help_print(cli->err);
            return mf_err_set(e, MF_USAGE, "a command is required");
        }
        mf_cli_show_help(cli, NULL);
        return MF_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        fprintf(cli->out, "%s (commit %s)\n", MF_GENERATOR, mf_cli_commit);
        return MF_OK;
    }
    cli->command = argv[1][0] == '-' ? NULL : mf_cli_command_find(argv[1]);
    if (cli->command == NULL) {
        return mf_cli_unknown_command(argv[1], e);
    }
    if (wants_help(argc - 2, argv + 2)) {
        mf_cli_show_help(cli, cli->command);
        return MF_OK;
    }
    mf_args args;
    mf_status s =
        mf_args_parse(argc - 2, argv + 2, cli->command->options, cli->command->words, &args, e);
    args.notes = cli->err;
    if (s != MF_OK) {
        return s;
    }
    const char *folder = mf_args_text(&args, MF_OPT_REPORT, NULL);
    const bool is_new = folder != NULL && access(folder, F_OK) != 0;
    s = is_for_screen(cli, &args) ? run_on_screen(&args, cli, e) : cli->command->run(&args, cli, e);
    if (s != MF_OK && is_new) {
        (void)rmdir(folder); /* made for a report of which no file was written: it is empty */
    }
    return s;
}

int mf_cli_run(int argc, const char *const *argv, const mf_cli *io) {
    mf_cli cli = *io;
    mf_err e;
    mf_err_clear(&e);
    cli.command = NULL;
    cli.argc = argc;
    cli.argv = argv;
    mf_status s = run_command(argc, argv, &cli, &e);
    errno = 0;
    bool written = fflush(cli.out) == 0 && !ferror(cli.out);
    if ((s == MF_OK || s == MF_TOLERANCE) && !written) { /* why, where it is known still */
        s = mf_err_set(&e, MF_IO, "standard output: %s",
                       errno != 0 ? strerror(errno) : "not all of the results could be written");
    }
    if (s != MF_OK) {
        mf_cli_say(&cli, &e);
    }
    return mf_status_exit_code(s);
}
