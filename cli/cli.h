/* cli.h - the command line: `moefold <command> [options]`.
 *
 * One table of commands (commands.c), one file per command (cmd_*.c), one table of options
 * (options.c) that yields the parser, the help texts and docs/CLI.md. Results go to `out`, messages
 * and progress to `err`. Nothing here ends the process or holds a global: tests call mf_cli_run.
 */
#ifndef MF_CLI_CLI_H
#define MF_CLI_CLI_H

#include "cli/options.h"
#include "core/base/status.h"
#include "core/base/version.h"

#include <stdbool.h>
#include <stdio.h>

/* Commit that the program was built from, or "unknown": for --version alone, so that two builds
 * write the same plan. */
extern const char mf_cli_commit[];

typedef struct mf_cli {
    FILE *out, *err;
    bool err_is_terminal;       /* progress is shown without being asked for */
    int columns;                /* of the terminal that shows `out`; 0: it is none */
    bool colour;                /* it shows colours, and is asked to */
    const volatile int *cancel; /* becomes non-zero on SIGINT, SIGTERM, SIGUSR1; may be NULL */
    int argc;                   /* the whole command line; set by mf_cli_run */
    const char *const *argv;
    const struct mf_command *command;
} mf_cli;

/* A subcommand. `options` ends with MF_OPT_COUNT. */
typedef struct mf_command {
    const char *name;
    const char *summary;         /* one line, no full stop */
    const char *usage[3];        /* what follows "moefold NAME", one per form; NULL ends */
    const char *about;           /* paragraphs, parted by \n */
    const char *example;         /* a command line that works; NULL = none */
    bool searches;               /* layout options pin what is searched, and have no default */
    int words;                   /* most positional words */
    const mf_option_id *options; /* in the order of the help text */
    /* Prints results to cli->out. A result that is no error but an exit code (nothing feasible) is
     * printed and returned with an empty error text. */
    mf_status (*run)(const mf_args *a, const mf_cli *cli, mf_err *e);
} mf_command;

/* Runs argv (argv[0] is the program); returns the exit code. */
int mf_cli_run(int argc, const char *const *argv, const mf_cli *cli);

/* "moefold COMMAND: text" on err, one line whatever the text holds (control characters are shown as
 * \xNN), and clears e; nothing where e is empty. For a command that has to speak before it ends;
 * all others return the error. */
void mf_cli_say(const mf_cli *cli, mf_err *e);

/* The table, in the order of the help text; NULL-terminated. A program has one, and links its file:
 * cli/command_table.c is moefold's, library/command_table.c that of libmoefold.so. */
const mf_command *const *mf_cli_commands(void);
const mf_command *mf_cli_command_find(const char *name);

/* Help texts: of everything, of one command, and docs/CLI.md whole. */
void mf_help_print(FILE *out);
void mf_help_command(FILE *out, const mf_command *c);
void mf_help_markdown(FILE *out);

#endif
