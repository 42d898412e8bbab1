/* Progress lines on a terminal: none is as wide as it, or what folded would stay when the next is
 * written; into a file they are whole. */
#define _XOPEN_SOURCE 700 /* posix_openpt */
#define _DEFAULT_SOURCE   /* TIOCSWINSZ */
#include "report/text/progress.h"
#include "tests/support/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char about[] = "7 of 60: deepseek-v3 on 1,024 x gb200, \xc3\xa9\xc3\xa9\xc3\xa9";

/* A search tells how far it is. */
static void progress(mf_progress *p) {
    const mf_search_stats now = {
        .wall_s = 1, .priced = 123456, .milp_solved = 12, .lower_bound_s = 3, .gap = 0.04};
    snprintf(p->about, sizeof p->about, "%s", about);
    mf_progress_search(&now, 3.12, p);
}

/* What a terminal of so many columns gets for one line; it says so itself. */
static char *on_terminal(unsigned short columns) {
    const struct winsize size = {.ws_row = 50, .ws_col = columns};
    mf_progress p;
    char *text = calloc(1, 1024);
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_non_null(text);
    assert_at_least(master, 0);
    assert_int_equal(grantpt(master), 0);
    assert_int_equal(unlockpt(master), 0);
    FILE *slave = fdopen(open(ptsname(master), O_RDWR | O_NOCTTY), "w");
    assert_non_null(slave);
    assert_int_equal(ioctl(fileno(slave), TIOCSWINSZ, &size), 0);
    mf_progress_init(&p, slave, true, false);
    progress(&p);
    assert_above(read(master, text, 1023), 0);
    fclose(slave);
    close(master);
    return text;
}

/* Columns that the text takes: letters, of whatever bytes. */
static size_t columns_of(const char *text) {
    size_t n = 0;
    for (; *text != '\0'; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return n;
}

static void a_line_is_narrower_than_its_terminal(void **state) {
    (void)state;
    for (unsigned short columns = 30; columns <= 120; columns++) {
        char *text = on_terminal(columns);
        assert_memory_equal(text, "\r\033[K7 of 60: ", 13);
        assert_below(columns_of(text + 4), columns);
        /* no letter is split in two */
        const size_t n = strlen(text);
        assert_int_not_equal((unsigned char)text[n - 1], 0xc3);
        free(text);
    }
}

static void a_file_gets_whole_lines(void **state) {
    (void)state;
    char text[1024] = "";
    FILE *file = fmemopen(text, sizeof text, "w");
    mf_progress p;
    assert_non_null(file);
    mf_progress_init(&p, file, false, true);
    progress(&p);
    fclose(file);
    assert_non_null(strstr(text, "gap 4.0 %\n"));
    assert_null(strchr(text, '\r'));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_narrower_than_its_terminal),
        cmocka_unit_test(a_file_gets_whole_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
