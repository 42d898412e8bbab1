/* command_table.c - the commands of the program. Adding one is a cmd_*.c file and a line here;
 * those that need no ranks have one in library/command_table.c, too. */
#include "cli/commands.h"

static const mf_command *const table[] = {
    &mf_cmd_plan,    &mf_cmd_fit,      &mf_cmd_simulate, &mf_cmd_price,
    &mf_cmd_explain, &mf_cmd_capacity, &mf_cmd_train,    &mf_cmd_compare,
    &mf_cmd_export,  &mf_cmd_import,   &mf_cmd_tune,     &mf_cmd_profile,
    &mf_cmd_models,  &mf_cmd_clusters, &mf_cmd_help,     NULL,
};

const mf_command *const *mf_cli_commands(void) {
    return table;
}
