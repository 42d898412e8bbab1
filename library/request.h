/* request.h - a request in JSON as the command line that says the same. */
#ifndef MF_LIBRARY_REQUEST_H
#define MF_LIBRARY_REQUEST_H

#include "cli/cli.h"

/* Where a plan that the request holds can be read from. */
#define MF_REQUEST_PLAN_MAX 48

typedef struct mf_request {
    const char **argv; /* "moefold", the command, "--json", "--NAME=VALUE"..., "--", words */
    int argc;
    char **owned; /* texts that argv refers to */
    int texts, allocated;
    int plan_fd; /* of a file in memory that holds the request's plan; -1 = none */
    char plan_path[MF_REQUEST_PLAN_MAX];
} mf_request;

/* Reads `text`, a JSON object whose keys are options of c (include/moefold.h has the rules); NULL:
 * an empty one. *out is to be cleared, also after an error. Errors: MF_INPUT "request:line:column:
 * ..." where the text is no JSON, MF_USAGE "--NAME: expected ..." where a value has the wrong type,
 * MF_NOMEM, MF_IO. A key that is no option becomes one on the command line, whose parser knows what
 * it is near to. */
mf_status mf_request_read(const char *text, const mf_command *c, mf_request *out, mf_err *e);
void mf_request_clear(mf_request *r);

#endif
