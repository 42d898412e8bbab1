/* version.c - what was built. The Makefile says from which commit. */
#include "cli/cli.h"

#ifndef MF_COMMIT
#define MF_COMMIT "unknown"
#endif

const char mf_cli_commit[] = MF_COMMIT;
