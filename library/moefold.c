/* moefold.c - the functions of libmoefold.so: a call is a command line of its own, run on a thread
 * of its own, whose output goes to two texts. */
#define _GNU_SOURCE /* newlocale, uselocale */
#include "include/moefold.h"

#include "cli/cli.h"
#include "core/base/paths.h"
#include "library/request.h"
#include "planner/lp/milp.h"

#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* As much as a program has. */
#define STACK_B ((size_t)16 << 20)

typedef struct call {
    const char *command, *request;
    const volatile int *cancel;
    char *json, *messages;
    size_t json_B, messages_B;
    int code;
} call;

/* --- a call ----------------------------------------------------------------------------------- */

static int run(const call *c, mf_request *r, const mf_cli *cli) {
    mf_cli asking = *cli;
    mf_err e;
    mf_err_clear(&e);
    asking.command = mf_cli_command_find(c->command);
    if (asking.command == NULL) { /* one that the parser knows as none, either */
        const char *const argv[] = {"moefold", c->command[0] == '-' ? "" : c->command};
        return mf_cli_run(2, argv, cli);
    }
    mf_status s = mf_request_read(c->request, asking.command, r, &e);
    if (s != MF_OK) {
        mf_cli_say(&asking, &e);
        return mf_status_exit_code(s);
    }
    return mf_cli_run(r->argc, r->argv, cli);
}

/* A plan that came with the request has no path: its place in memory is nobody's business. */
static void name_plan(char *text, const char *path) {
    static const char name[] = "plan";
    const size_t length = strlen(path);
    for (char *at = text; length > 0 && (at = strstr(at, path)) != NULL;) {
        memcpy(at, name, sizeof name - 1);
        at += sizeof name - 1;
        memmove(at, at + length - (sizeof name - 1), strlen(at + length - (sizeof name - 1)) + 1);
    }
}

/* The thread of a call: in the C locale, whatever its caller's is, and with an environment of
 * GLPK's that is not its caller's. */
static void *work(void *user) {
    call *c = user;
    mf_request r = {.plan_fd = -1};
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain != (locale_t)0) {
        uselocale(plain);
    }
    FILE *out = open_memstream(&c->json, &c->json_B);
    FILE *err = open_memstream(&c->messages, &c->messages_B);
    if (out != NULL && err != NULL) {
        const mf_cli cli = {.out = out, .err = err, .cancel = c->cancel};
        c->code = run(c, &r, &cli);
    }
    bool whole = out != NULL && fclose(out) == 0;
    whole = err != NULL && fclose(err) == 0 && whole;
    if (!whole) {
        c->code = MOEFOLD_FAILED;
    } else {
        name_plan(c->messages, r.plan_path);
    }
    mf_request_clear(&r);
    mf_milp_thread_end();
    if (plain != (locale_t)0) {
        uselocale(LC_GLOBAL_LOCALE);
        freelocale(plain);
    }
    return NULL;
}

/* Signals are the caller's: none ends up on threads that a call starts. */
static int start(pthread_t *thread, call *c) {
    pthread_attr_t attributes;
    sigset_t all, before;
    int rc = pthread_attr_init(&attributes);
    if (rc != 0) {
        return rc;
    }
    sigfillset(&all);
    pthread_attr_setstacksize(&attributes, STACK_B);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(thread, &attributes, work, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return rc;
}

int moefold_call(const char *command, const char *request, const volatile int *cancel, char **json,
                 char **messages) {
    call c = {.command = command != NULL ? command : "",
              .request = request,
              .cancel = cancel,
              .code = MOEFOLD_FAILED};
    pthread_t thread;
    if (start(&thread, &c) == 0) {
        pthread_join(thread, NULL);
    } else {
        c.messages = strdup("moefold: no thread could be started\n");
    }
    if (json != NULL) {
        *json = c.json;
    } else {
        free(c.json);
    }
    if (messages != NULL) {
        *messages = c.messages;
    } else {
        free(c.messages);
    }
    return c.code;
}

void moefold_free(char *text) {
    free(text);
}

/* --- what it is, and where its data lies ------------------------------------------------------ */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char version[96]; /* written once, then only read */

static void write_version(void) {
    snprintf(version, sizeof version, "%s (commit %s)", MF_VERSION, mf_cli_commit);
}

const char *moefold_version(void) {
    pthread_once(&once, write_version);
    return version;
}

int moefold_set_data(const char *folder) {
    return folder != NULL && mf_data_dir_set(folder) ? MOEFOLD_DONE : MOEFOLD_USAGE;
}
