/* commands.h - what the command table shares with the commands that talk about it. */
#ifndef MF_CLI_COMMANDS_H
#define MF_CLI_COMMANDS_H

#include "cli/cli.h"

/* MF_USAGE 'unknown command "x" (did you mean y?)'. */
mf_status mf_cli_unknown_command(const char *word, mf_err *e);

/* Help as the terminal shows it, of one command or (NULL) of everything. */
void mf_cli_show_help(const mf_cli *cli, const mf_command *c);

extern const mf_command mf_cmd_help, mf_cmd_models, mf_cmd_clusters, mf_cmd_price, mf_cmd_simulate,
    mf_cmd_explain, mf_cmd_fit, mf_cmd_plan, mf_cmd_profile, mf_cmd_export, mf_cmd_capacity,
    mf_cmd_train, mf_cmd_compare, mf_cmd_import, mf_cmd_tune;

#endif
