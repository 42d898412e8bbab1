/* main.c - the program: terminal, signals, memory, exit code. */
#include "cli/cli.h"

#include <signal.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static volatile int interrupted; /* written by the handler, read by searches and simulations */

/* The first SIGINT, SIGTERM or SIGUSR1 (the one that mpirun passes on) asks to stop and print or
 * save what there is; a second SIGINT or SIGTERM ends the process. */
static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

/* A search keeps what it finds, block by block, on several threads. The heap grows in large steps
 * for that: glibc's of other threads would otherwise ask the kernel for each page and stop each
 * other doing so. What nobody has written takes no memory. Large tables, most of which nobody
 * writes, stay apart, and what is free is not handed back only to be asked for again. */
static void set_up_memory(void) {
#ifdef __GLIBC__
    mallopt(M_TOP_PAD, 64 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
#endif
}

int main(int argc, char **argv) {
    set_up_memory();
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_flags = (int)SA_RESTART; /* launch.c says it again and again */
    sigaction(SIGUSR1, &action, NULL);
    mf_cli cli = {
        .out = stdout,
        .err = stderr,
        .err_is_terminal = isatty(STDERR_FILENO) != 0,
        .cancel = &interrupted,
    };
    return mf_cli_run(argc, (const char *const *)argv, &cli);
}
