/* test_library.c - libmoefold.so as a user links it: the public header, the shared library, nothing
 * else of ours. What it answers is held against what the program prints. */
/* clang-format off */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
/* clang-format on */

#include "moefold.h"
#include "tests/support/sampled.h"

#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char build[4096], scratch[64];

/* --- the program beside the library ----------------------------------------------------------- */

static char *read_all(const char *path) {
    char *text = NULL, block[4096];
    size_t size = 0, n;
    FILE *in = fopen(path, "rb"), *out = open_memstream(&text, &size);
    assert_non_null(in);
    assert_non_null(out);
    while ((n = fread(block, 1, sizeof block, in)) > 0) {
        fwrite(block, 1, n, out);
    }
    fclose(in);
    fclose(out);
    return text;
}

static int shell(const char *line) {
    int rc = system(line);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

/* How long a search took is of its run, not of its answer: blanked. */
static char *without_times(char *json) {
    static const char *const keys[] = {"\"wall_s\": ", "\"pricing_s\": "};
    for (int k = 0; k < 2; k++) {
        for (char *at = json; (at = strstr(at, keys[k])) != NULL;) {
            at += strlen(keys[k]);
            char *end = at + strcspn(at, ",\n");
            memmove(at, end, strlen(end) + 1);
        }
    }
    return json;
}

/* Returns the exit code. The request must answer what `moefold COMMAND --json LINE` prints and
 * says, and return its exit code. Under sanitizers the program, which golden cases run there, is
 * not asked as well. */
static int assert_same(const char *command, const char *request, const char *line) {
    char text[8192], path[128], *json = NULL, *messages = NULL;
    snprintf(text, sizeof text, "%s/moefold %s --json %s >%s/out 2>%s/err", build, command, line,
             scratch, scratch);
    int expected = cases_sampled() ? 0 : shell(text);
    int code = moefold_call(command, request, NULL, &json, &messages);
    if (cases_sampled()) {
        moefold_free(json);
        moefold_free(messages);
        return code;
    }
    snprintf(path, sizeof path, "%s/out", scratch);
    char *out = read_all(path);
    snprintf(path, sizeof path, "%s/err", scratch);
    char *err = read_all(path);
    assert_string_equal(messages, err);
    assert_string_equal(without_times(json), without_times(out));
    assert_int_equal(code, expected);
    free(out);
    free(err);
    moefold_free(json);
    moefold_free(messages);
    return code;
}

static void assert_answers(const char *command, const char *request, const char *line) {
    assert_int_equal(assert_same(command, request, line), MOEFOLD_DONE);
}

#define JOB                                                                                        \
    "\"model\": \"mixtral-8x7b\", \"cluster\": \"h100\", \"global-batch\": 64, \"seq\": 4096"
#define JOB_LINE "--model mixtral-8x7b --cluster h100 --global-batch 64 --seq 4096"
#define SMALL "\"gpus\": 16, \"tp\": 2, \"pp\": 2, \"ep\": 8, \"vpp\": 1"
#define SMALL_LINE "--gpus 16 --tp 2 --pp 2 --ep 8 --vpp 1"

static void each_command_answers_the_programs_bytes(void **state) {
    (void)state;
    assert_answers("models", NULL, "");
    assert_answers("models", "{\"words\": [\"olmoe-1b-7b\"], \"set\": {\"num_hidden_layers\": 8}}",
                   "olmoe-1b-7b --set num_hidden_layers=8");
    assert_answers("models",
                   "{\"words\": [\"qwen3-30b-a3b\"], \"set\": {\"mlp_only_layers\": [1, 2], "
                   "\"rope_parameters\": {\"rope_theta\": 1e6}, \"rope_scaling\": null}}",
                   "qwen3-30b-a3b --set 'mlp_only_layers=[1,2]' --set "
                   "'rope_parameters={\"rope_theta\":1e6}' --set rope_scaling=null");
    assert_answers("clusters", "{}", "");
    assert_answers("clusters", "{\"words\": [\"h100\"]}", "h100");
    assert_answers("price",
                   "{\"cluster\": \"h100\", \"words\": [\"gemm\", \"m=4096\", \"n=4096\", "
                   "\"k=4096\", \"dtype=bf16\"]}",
                   "gemm m=4096 n=4096 k=4096 dtype=bf16 --cluster h100");
    assert_answers("fit",
                   "{" JOB ", \"gpus\": 16, \"pp\": 2, \"cp\": 1, \"top\": 3, \"effort\": 1}",
                   JOB_LINE " --gpus 16 --pp 2 --cp 1 --top 3 --effort 1");
    assert_answers("simulate", "{" JOB ", " SMALL ", \"recompute\": [\"core_attn\", \"norm\"]}",
                   JOB_LINE " " SMALL_LINE " --recompute core_attn,norm");
    assert_answers("explain", "{" JOB ", " SMALL "}", JOB_LINE " " SMALL_LINE);
    assert_answers("plan",
                   "{" JOB
                   ", \"gpus\": 16, \"tp\": 2, \"pp\": 2, \"ep\": 8, \"gap\": 0.1, \"threads\": 2, "
                   "\"effort\": 1, \"vpp\": 1, \"micro-batch\": 1}",
                   JOB_LINE " --gpus 16 --tp 2 --pp 2 --ep 8 --gap 10% --threads 2 --effort 1 "
                            "--vpp 1 --micro-batch 1");
    assert_answers("capacity",
                   "{\"models\": [\"mixtral-8x7b\"], \"clusters\": \"h100,h200\", \"sizes\": [16], "
                   "\"global-batch\": 64, \"seq\": \"4k\", \"tokens\": \"1T\", \"tp\": 2, \"pp\": "
                   "2, \"ep\": 8, "
                   "\"price\": {\"h100\": 2.5}}",
                   "--models mixtral-8x7b --clusters h100,h200 --sizes 16 --global-batch 64 "
                   "--seq 4k --tokens 1T --tp 2 --pp 2 --ep 8 --price h100=2.5");
}

/* A job of Megatron's, as a script and as a plan. */
static void commands_that_read_a_job_answer_the_programs_bytes(void **state) {
    (void)state;
    char line[16384], request[8192];
    snprintf(line, sizeof line,
             "cd %s && %s/moefold simulate --model olmoe-1b-7b --cluster "
             "h100 --gpus 8 --global-batch 32 --seq 4096 --ep 8 --software megatron-26.06 --out "
             "job.json >out && %s/moefold export --plan job.json --format bridge >job.sh",
             scratch, build, build);
    assert_int_equal(shell(line), 0);
    snprintf(request, sizeof request, "{\"words\": [\"%s/job.sh\"]}", scratch);
    snprintf(line, sizeof line, "%s/job.sh", scratch);
    assert_answers("import", request, line);
    snprintf(request, sizeof request, "{\"plan\": \"%s/job.json\", \"threads\": 2}", scratch);
    snprintf(line, sizeof line, "--plan %s/job.json --threads 2", scratch);
    assert_answers("tune", request, line);
}

static void errors_have_the_programs_words(void **state) {
    (void)state;
    assert_same("plan", "{\"modle\": \"mixtral-8x7b\"}", "--modle=mixtral-8x7b");
    assert_same("plan", "{\"tensor-model-parallel-size\": 2}", "--tensor-model-parallel-size=2");
    assert_same("plan", "{\"trace\": \"t.json\"}", "--trace t.json");
    assert_same("plan", "{" JOB "}", JOB_LINE);
    assert_same("plan", "{" JOB ", \"gpus\": -4}", JOB_LINE " --gpus=-4");
    assert_same("plan", "{" JOB ", \"gpus\": 1.5}", JOB_LINE " --gpus 1.5");
    assert_same("simulate", "{" JOB ", \"gpus\": 16, \"tp\": 3}", JOB_LINE " --gpus 16 --tp 3");
    assert_same("models", "{\"words\": [\"mixtral\"]}", "mixtral");
    assert_same("models", "{\"words\": [\"--help\"]}", "-- --help");
    assert_same("export", "{\"plan\": \"/nowhere/plan.json\"}", "--plan /nowhere/plan.json");
    /* Nothing fits: the JSON says what is missing. */
    int code = assert_same("fit", "{" JOB ", \"gpus\": 1}", JOB_LINE " --gpus 1");
    assert_int_equal(code, MOEFOLD_INFEASIBLE);
}

static void assert_says(const char *command, const char *request, const char *words) {
    char *json = NULL, *messages = NULL;
    int code = moefold_call(command, request, NULL, &json, &messages);
    if (code != MOEFOLD_USAGE || strstr(messages, words) == NULL || json[0] != '\0') {
        fail_msg("%s %s: code %d, \"%s\"", command, request, code, messages);
    }
    assert_ptr_equal(strchr(messages, '\n'), messages + strlen(messages) - 1);
    moefold_free(json);
    moefold_free(messages);
}

static void a_value_of_the_wrong_type_is_refused(void **state) {
    (void)state;
    assert_says("plan", "{\"gpus\": true}",
                "moefold plan: --gpus: expected a number or its text, got true");
    assert_says("plan", "{\"tp\": \"2\"}", "moefold plan: --tp: expected a number, got a string");
    assert_says("plan", "{\"model\": 8}", "--model: expected a string, got a number");
    assert_says("plan", "{\"model\": [\"a\"]}", "--model: expected a string, got an array");
    assert_says("plan", "{\"strict\": 1}", "--strict: expected true or false, got a number");
    assert_says("plan", "{\"set\": \"a=b\"}", "--set: expected an object or an array");
    assert_says("plan", "{\"set\": [8]}",
                "--set: expected strings such as KEY=VALUE, got a number");
    assert_says("plan", "{\"gap\": -0.1}", "got \"-0.1\"");
    assert_says("plan", "{\"overlap\": [\"dp,pp\"]}", "holds a comma");
    assert_says("plan", "{\"json\": true}", "--json is not taken here");
    assert_says("plan", "{\"help\": true}", "--help is not taken here");
    assert_says("plan", "{\"gpus=8\": 1}", "unknown option \"gpus=8\"");
    assert_says("plan", "{\"\": 1}", "unknown option \"\"");
    assert_says("plan", "{\"model\": \"a\", \"model\": \"b\"}", "request:1:16:");
    assert_says("plan", "{\"model\": \"a\\u0000b\"}", "request:1:11:");
    assert_says("plan", "[]", "request:1:1:");
    assert_says("plan", "{\"model\": ", "request:1:");
    assert_says("models", "{\"words\": \"olmoe-1b-7b\"}", "--words: expected an array of strings");
    assert_says("train", "{}", "moefold: unknown command \"train\"");
    assert_says("--version", "{}", "moefold: unknown command");
    assert_says("", NULL, "moefold: unknown command");
}

/* --- a plan from hand to hand ----------------------------------------------------------------- */

static void a_plan_is_exported_without_a_file(void **state) {
    (void)state;
    char *json = NULL, line[8400], request[512];
    snprintf(request, sizeof request, "{" JOB ", " SMALL ", \"out\": \"%s/plan.json\"}", scratch);
    assert_int_equal(moefold_call("simulate", request, NULL, NULL, NULL), MOEFOLD_DONE);
    snprintf(line, sizeof line, "%s/plan.json", scratch);
    char *plan = read_all(line), *text = NULL, *messages = NULL;
    size_t size = strlen(plan) + 64;
    text = malloc(size);
    assert_non_null(text);
    snprintf(text, size, "{\"plan\": %s, \"launcher\": \"srun\"}", plan);
    snprintf(line, sizeof line, "--plan %s/plan.json --launcher srun", scratch);
    assert_answers("export", text, line);
    snprintf(line, sizeof line, "%s/moefold export --plan %s/plan.json >%s/launch.sh", build,
             scratch, scratch);
    assert_int_equal(shell(line), 0);
    snprintf(request, sizeof request, "{\"words\": [\"%s/launch.sh\"], \"cluster\": \"h100\"}",
             scratch);
    snprintf(line, sizeof line, "%s/launch.sh --cluster h100", scratch);
    assert_answers("import", request, line);
    snprintf(text, size, "{\"plan\": {\"format\": \"moefold-plan\"}}");
    assert_int_equal(moefold_call("export", text, NULL, &json, &messages), MOEFOLD_USAGE);
    assert_null(strstr(messages, "/proc/"));
    moefold_free(json);
    moefold_free(messages);
    free(text);
    free(plan);
}

/* --- threads, cancelling, quiet --------------------------------------------------------------- */

static const char searched[] =
    "{" JOB ", \"gpus\": 16, \"tp\": 2, \"pp\": 2, \"ep\": 8, \"gap\": 0.1, \"threads\": 2, "
    "\"effort\": 1, \"vpp\": 1, \"micro-batch\": 1}";

static void *plan_it(void *answer) {
    char **json = answer;
    if (moefold_call("plan", searched, NULL, json, NULL) != MOEFOLD_DONE) {
        moefold_free(*json);
        *json = NULL;
    }
    return NULL;
}

/* Says the first line that differs: cmocka shows the beginning of a text alone. */
static void assert_same_lines(const char *a, const char *b) {
    while (*a != '\0' || *b != '\0') {
        const int na = (int)strcspn(a, "\n"), nb = (int)strcspn(b, "\n");
        if (na != nb || memcmp(a, b, (size_t)na) != 0) {
            fail_msg("%.*s, but %.*s", na, a, nb, b);
        }
        a += na + (a[na] == '\n');
        b += nb + (b[nb] == '\n');
    }
}

static void calls_at_the_same_time_give_the_same_bytes(void **state) {
    (void)state;
    enum { CALLS = 4 };
    pthread_t thread[CALLS];
    char *json[CALLS] = {NULL};
    for (int i = 0; i < CALLS; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, plan_it, &json[i]), 0);
    }
    for (int i = 0; i < CALLS; i++) {
        pthread_join(thread[i], NULL);
        assert_non_null(json[i]);
        assert_same_lines(without_times(json[i]), without_times(json[0]));
    }
    for (int i = 0; i < CALLS; i++) {
        moefold_free(json[i]);
    }
}

static volatile int stop;

static void *stop_soon(void *unused) {
    (void)unused;
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED); /* as the library reads it */
    return NULL;
}

static void a_search_is_cancelled_from_another_thread(void **state) {
    (void)state;
    pthread_t thread;
    char *messages = NULL;
    stop = 0;
    assert_int_equal(pthread_create(&thread, NULL, stop_soon, NULL), 0);
    int code = moefold_call("plan",
                            "{\"model\": \"deepseek-v3\", \"cluster\": \"h100\", \"gpus\": 2048, "
                            "\"global-batch\": 8192, \"seq\": 4096, \"gap\": 0}",
                            &stop, NULL, &messages);
    pthread_join(thread, NULL);
    assert_int_equal(code, MOEFOLD_INTERRUPTED);
    assert_non_null(strstr(messages, "moefold plan: interrupted"));
    moefold_free(messages);
}

/* A child that hands its streams to a file: what comes out of it is the library's own. */
static void nothing_is_printed_and_no_signal_handler_changes(void **state) {
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/said", scratch);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct sigaction was, is;
        bool same = true;
        if (freopen(path, "wb", stdout) == NULL || dup2(fileno(stdout), STDERR_FILENO) < 0) {
            _exit(100);
        }
        char *before = strdup(setlocale(LC_ALL, NULL));
        int code = 0;
        sigaction(SIGINT, NULL, &was);
        code += moefold_call("plan", searched, NULL, NULL, NULL);
        code += moefold_call("simulate", "{" JOB ", \"gpus\": 16, \"tp\": 3}", NULL, NULL, NULL);
        sigaction(SIGINT, NULL, &is);
        same = was.sa_handler == is.sa_handler && strcmp(before, setlocale(LC_ALL, NULL)) == 0;
        free(before);
        fflush(NULL);
        _exit(same ? code : 101);
    }
    int rc = 0;
    waitpid(child, &rc, 0);
    assert_true(WIFEXITED(rc));
    assert_int_equal(WEXITSTATUS(rc), MOEFOLD_USAGE);
    char *said = read_all(path);
    assert_string_equal(said, "");
    free(said);
}

/* --- what the file consists of ---------------------------------------------------------------- */

static void four_symbols_are_exported_and_no_others(void **state) {
    (void)state;
    char line[8400], path[128];
    snprintf(line, sizeof line,
             "nm -D --defined-only %s/libmoefold.so | awk '$2 != \"A\" {sub(/@.*/, \"\", $3); "
             "print $3}' | "
             "LC_ALL=C sort >%s/symbols",
             build, scratch);
    assert_int_equal(shell(line), 0);
    snprintf(path, sizeof path, "%s/symbols", scratch);
    char *symbols = read_all(path);
    assert_string_equal(symbols, "moefold_call\nmoefold_free\nmoefold_set_data\nmoefold_version\n");
    free(symbols);
}

static void neither_mpi_nor_cuda_is_linked(void **state) {
    (void)state;
    char line[8400], path[128];
    snprintf(line, sizeof line,
             "readelf -d %s/libmoefold.so | sed -n 's/.*NEEDED.*\\[\\(lib[a-z0-9]*\\).*/\\1/p' | "
             "grep -vE '^lib(asan|ubsan|tsan|gcov|gcc)' | LC_ALL=C sort >%s/needed",
             build, scratch);
    assert_int_equal(shell(line), 0);
    snprintf(path, sizeof path, "%s/needed", scratch);
    char *needed = read_all(path);
    assert_string_equal(needed, "libc\nlibcjson\nlibglpk\nlibm\nlibsqlite3\n");
    free(needed);
}

static void data_is_found_where_a_caller_says(void **state) {
    (void)state;
    assert_int_equal(moefold_set_data("/nowhere"), MOEFOLD_USAGE);
    assert_int_equal(moefold_set_data(NULL), MOEFOLD_USAGE);
    assert_int_equal(moefold_call("models", NULL, NULL, NULL, NULL), MOEFOLD_DONE);
    assert_non_null(strstr(moefold_version(), "(commit "));
}

/* BUILD/tests/unit/test_library -> BUILD */
static int find_build(void **state) {
    (void)state;
    ssize_t n = readlink("/proc/self/exe", build, sizeof build - 1);
    build[n > 0 ? n : 0] = '\0';
    for (int up = 0; up < 3 && strrchr(build, '/') != NULL; up++) {
        *strrchr(build, '/') = '\0';
    }
    snprintf(scratch, sizeof scratch, "/tmp/moefold-library-XXXXXX");
    return mkdtemp(scratch) != NULL ? 0 : -1;
}

static int clear_scratch(void **state) {
    char line[128];
    (void)state;
    snprintf(line, sizeof line, "rm -rf %s", scratch);
    return shell(line);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_is_found_where_a_caller_says),
        cmocka_unit_test(each_command_answers_the_programs_bytes),
        cmocka_unit_test(commands_that_read_a_job_answer_the_programs_bytes),
        cmocka_unit_test(errors_have_the_programs_words),
        cmocka_unit_test(a_value_of_the_wrong_type_is_refused),
        cmocka_unit_test(a_plan_is_exported_without_a_file),
        cmocka_unit_test(calls_at_the_same_time_give_the_same_bytes),
        cmocka_unit_test(a_search_is_cancelled_from_another_thread),
        cmocka_unit_test(nothing_is_printed_and_no_signal_handler_changes),
        cmocka_unit_test(four_symbols_are_exported_and_no_others),
        cmocka_unit_test(neither_mpi_nor_cuda_is_linked),
    };
    return cmocka_run_group_tests(tests, find_build, clear_scratch);
}
