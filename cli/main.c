/* main.c - the program: terminal, signals, memory, exit code. */
#include "cli/cli.h"

#include "core/base/flag.h"
#include "core/base/heap_prefault.h"
#include "report/text/screen.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static volatile int interrupted; /* written by the handler, read by searches and simulations */

/* The first SIGINT, SIGTERM, SIGHUP (a terminal that closes; nohup has it ignored) or SIGUSR1 (the
 * one that mpirun passes on) asks to stop and print or save what there is; a second one of the
 * first three ends the process. */
static void on_interrupt(int signal_number) {
    (void)signal_number;
    mf_flag_set(&interrupted, true);
}

/* The number of a standard stream that is closed would go to the next file that is opened, and what
 * is printed into that file. A stream that cannot be written says so when it is. */
static void keep_numbers(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0) {
            (void)!open("/dev/null", O_RDONLY); /* the lowest number that is free: this one */
        }
    }
}

/* $COLUMNS says how wide to print; without it a terminal does, and is written there, where all that
 * wraps text looks. 0: nobody says so. */
static int columns(void) {
    struct winsize size;
    char text[16];
    if (mf_screen_columns(0) == 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
        size.ws_col >= MF_SCREEN_LEAST) {
        snprintf(text, sizeof text, "%u", size.ws_col);
        (void)setenv("COLUMNS", text, 1);
    }
    return mf_screen_columns(0);
}

/* A terminal that knows them, unless somebody says NO_COLOR. */
static bool wants_colour(void) {
    const char *none = getenv("NO_COLOR"), *kind = getenv("TERM");
    return isatty(STDOUT_FILENO) != 0 && (none == NULL || none[0] == '\0') && kind != NULL &&
           strcmp(kind, "dumb") != 0;
}

int main(int argc, char **argv) {
    keep_numbers();
    mf_heap_set_up();
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction before;
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
        sigaction(SIGHUP, &action, NULL);
    }
    action.sa_flags = (int)SA_RESTART; /* launch.c says it again and again */
    sigaction(SIGUSR1, &action, NULL);
    mf_cli cli = {
        .out = stdout,
        .err = stderr,
        .err_is_terminal = isatty(STDERR_FILENO) != 0,
        .columns = columns(),
        .colour = wants_colour(),
        .cancel = &interrupted,
    };
    return mf_cli_run(argc, (const char *const *)argv, &cli);
}
