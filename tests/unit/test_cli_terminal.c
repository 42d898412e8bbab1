/* What a command does of itself on a terminal: colour unless NO_COLOR or TERM says otherwise, the
 * terminal's width, and neither into a pipe. */
#define _XOPEN_SOURCE 700 /* posix_openpt */
#define _DEFAULT_SOURCE   /* TIOCSWINSZ */
#include "tests/support/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

static char program[512];

/* The program, its standard output on `to`; every other variable as here. */
static pid_t start(int to, const char *set, const char *value) {
    pid_t child = fork();
    if (child == 0) {
        unsetenv("COLUMNS");
        unsetenv("NO_COLOR");
        setenv("TERM", "xterm", 1);
        if (set != NULL) {
            setenv(set, value, 1);
        }
        setenv("MOEFOLD_CUDA_LIBRARY", "/nowhere/libmoefold_cuda.so", 1);
        dup2(to, STDOUT_FILENO);
        execl(program, "moefold", "simulate", "--model", "mixtral-8x7b", "--cluster", "h100",
              "--gpus", "8", "--global-batch", "8", "--seq", "4096", "--ep", "8", (char *)NULL);
        _exit(99);
    }
    assert_above(child, 0);
    return child;
}

/* What it prints, without the terminal's carriage returns. */
static char *read_all(int from, pid_t child) {
    char *text = calloc(1, 1 << 16);
    size_t used = 0;
    ssize_t n;
    int status;
    assert_non_null(text);
    while ((n = read(from, text + used, (1 << 16) - 1 - used)) > 0) {
        used += (size_t)n;
    }
    size_t kept = 0;
    for (size_t i = 0; i < used; i++) {
        if (text[i] != '\r') {
            text[kept++] = text[i];
        }
    }
    text[kept] = '\0';
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    return text;
}

static char *on_terminal(unsigned short columns, const char *set, const char *value) {
    const struct winsize size = {.ws_row = 50, .ws_col = columns};
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_at_least(master, 0);
    assert_int_equal(grantpt(master), 0);
    assert_int_equal(unlockpt(master), 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_at_least(slave, 0);
    assert_int_equal(ioctl(slave, TIOCSWINSZ, &size), 0);
    pid_t child = start(slave, set, value);
    close(slave); /* the child's is the last: reading ends when it does */
    char *text = read_all(master, child);
    close(master);
    return text;
}

static char *through_pipe(const char *set, const char *value) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = start(ends[1], set, value);
    close(ends[1]);
    char *text = read_all(ends[0], child);
    close(ends[0]);
    return text;
}

/* Takes "ESC [ ... m" out. */
static void strip(char *text) {
    char *to = text;
    for (const char *p = text; *p != '\0'; p++) {
        if (p[0] == '\033' && p[1] == '[') {
            p += strcspn(p, "m");
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
}

static size_t widest(const char *text) {
    size_t most = 0;
    while (*text != '\0') {
        const size_t n = strcspn(text, "\n");
        most = n > most ? n : most;
        text += n + (text[n] == '\n');
    }
    return most;
}

static void a_terminal_gets_colour_and_a_pipe_none(void **state) {
    (void)state;
    char *coloured = on_terminal(80, NULL, NULL), *piped = through_pipe(NULL, NULL);
    assert_non_null(strstr(coloured, "\033[1mverdict"));
    assert_non_null(strstr(coloured, "\033[1;31mDOES NOT FIT\033[0m"));
    assert_null(strchr(piped, '\033'));
    assert_non_null(strstr(piped, "DOES NOT FIT"));
    free(coloured);
    free(piped);
}

static void who_wants_no_colour_gets_the_same_words(void **state) {
    (void)state;
    static const char *const quiet[][2] = {{"NO_COLOR", "1"}, {"TERM", "dumb"}};
    char *coloured = on_terminal(80, NULL, NULL);
    char *empty = on_terminal(80, "NO_COLOR", ""); /* set to nothing it says nothing */
    assert_string_equal(coloured, empty);
    strip(coloured);
    for (size_t i = 0; i < 2; i++) {
        char *plain = on_terminal(80, quiet[i][0], quiet[i][1]);
        assert_null(strchr(plain, '\033'));
        assert_string_equal(coloured, plain);
        free(plain);
    }
    free(coloured);
    free(empty);
}

static void the_width_is_the_terminals(void **state) {
    (void)state;
    for (unsigned short columns = 60; columns <= 120; columns = (unsigned short)(columns + 20)) {
        char *text = on_terminal(columns, NULL, NULL);
        strip(text);
        assert_in_range(widest(text), columns / 2, columns);
        free(text);
    }
    char *wide = through_pipe(NULL, NULL), *narrow = through_pipe("COLUMNS", "60");
    assert_above(widest(wide), 100);
    assert_at_most(widest(narrow), 60);
    free(wide);
    free(narrow);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_terminal_gets_colour_and_a_pipe_none),
        cmocka_unit_test(who_wants_no_colour_gets_the_same_words),
        cmocka_unit_test(the_width_is_the_terminals),
    };
    char *slash;
    snprintf(program, sizeof program, "%s", argc > 0 ? argv[0] : ""); /* BUILD/tests/unit/... */
    for (int up = 0; up < 3 && (slash = strrchr(program, '/')) != NULL; up++) {
        *slash = '\0';
    }
    strncat(program, "/moefold", sizeof program - strlen(program) - 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
