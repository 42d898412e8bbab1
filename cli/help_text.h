/* help_text.h - private to help: what its forms (terminal, Markdown, man page, completion) share.
 */
#ifndef MF_CLI_HELP_TEXT_H
#define MF_CLI_HELP_TEXT_H

#include "cli/cli.h"

extern const char mf_help_intro[];

/* The i-th exit code and what it means; NULL past the last. */
const char *mf_help_exit_code(int i, int *code);

/* What the i-th variable of the environment does, and its name; NULL past the last. */
const char *mf_help_environment(int i, const char **name);

/* Help, choices and default of an option as one text, of a command or (NULL) of all. */
void mf_help_option_text(const mf_option *o, const mf_command *c, char *out, size_t size);

/* moefold(1) in roff, and a completion script for zsh or bash: `make install` installs them. */
void mf_help_man(FILE *out);
void mf_help_completion(FILE *out, bool zsh);

#endif
