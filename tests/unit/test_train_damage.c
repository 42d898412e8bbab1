/* Bits that flip and bytes that go missing between two runs: `moefold train` finds them before it
 * uses them, says in which file and where, and takes no step. */
#include "tests/support/damage.h"
#include "tests/support/rng.h"
#include "tests/support/sampled.h"
#include "tests/support/train_run.h"

#include <sys/stat.h>

/* Some text to train on. */
static void make(const char *name) {
    char command[160];
    snprintf(command, sizeof command, "cp /usr/share/common-licenses/GPL-3 %s/%s", scratch, name);
    assert_int_equal(system(command), 0);
}

/* A run on this stream: exit code; what it said is in OUT.log. */
static int train(const char *out, const char *init, const char *data, const char *more) {
    char command[1024];
    snprintf(command, sizeof command,
             "env ASAN_OPTIONS=detect_leaks=0 %s train --init %s --data %s/%s --global-batch 4 "
             "--seq 32 --save-every 1 --out %s/%s %s >%s/%s.log 2>&1",
             binary, init, scratch, data, scratch, out, more, scratch, out);
    int result = system(command);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 128;
}

/* The run is refused, with the file's name and "offset", and takes no further step. */
static void refused(const char *out, const char *init, const char *data, const char *more,
                    const char *file, const char *tensor) {
    int code = train(out, init, data, more);
    bool named = log_has(out, file) && log_has(out, "offset ") && log_has(out, tensor);
    if ((code != 1 && code != 2) || !named || log_has(out, "step 3/")) {
        show_log(out);
        fail_msg("exit code %d, expected a refusal that names %s", code, file);
    }
}

static void data_that_changed_between_runs_are_not_used(void **state) {
    (void)state;
    static const char *const layouts[] = {"--gpus 1", "--gpus 2 --ep 2"};
    char path[128], more[96], name[16];
    rng r = rng_init((uint64_t)getpid());
    for (int k = 0; k < (several_ranks ? 2 : 1); k++) {
        snprintf(name, sizeof name, "text%d", k);
        snprintf(path, sizeof path, "%s/%s", scratch, name);
        make(name);
        snprintf(more, sizeof more, "%s --steps 2", layouts[k]);
        assert_int_equal(train(k ? "two" : "one", "tests/data/hf/qwen3_moe", name, more), 0);
        snprintf(more, sizeof more, "%s --steps 3 --resume", layouts[k]);
        for (int i = 0; i < (k ? 1 : case_count(8, 2));
             i++) { /* a letter for another is a token like any */
            long at = (long)rng_range(&r, 0, damage_size_of(path) - 1);
            unsigned bit = (unsigned)rng_range(&r, 0, 6);
            damage_flip(path, at, bit);
            refused(k ? "two" : "one", "tests/data/hf/qwen3_moe", name, more, path, "CRC-32C");
            damage_flip(path, at, bit);
        }
        assert_int_equal(train(k ? "two" : "one", "tests/data/hf/qwen3_moe", name, more), 0);
    }
    assert_int_equal(truncate(path, damage_size_of(path) - 1), 0);
    snprintf(more, sizeof more, "%s --steps 4 --resume", layouts[several_ranks]);
    assert_int_equal(train(several_ranks ? "two" : "one", "tests/data/hf/qwen3_moe", name, more),
                     2);
}

/* The weights that a run leaves, into another: every tensor's checksum is in the file. */
static void weights_that_changed_are_not_used(void **state) {
    (void)state;
    char path[160], init[128];
    rng r = rng_init((uint64_t)getpid());
    make("words");
    assert_int_equal(train("made", "tests/data/hf/qwen3_moe", "words", "--gpus 1 --steps 2"), 0);
    snprintf(init, sizeof init, "%s/made/hf", scratch);
    snprintf(path, sizeof path, "%s/model.safetensors", init);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    long header = 8 + fgetc(f) + 256 * fgetc(f) + 65536 * fgetc(f);
    fclose(f);
    for (int i = 0; i < case_count(8, 2); i++) {
        long at = (long)rng_range(&r, header, damage_size_of(path) - 1);
        unsigned bit = (unsigned)rng_range(&r, 0, 7);
        damage_flip(path, at, bit);
        refused("used", init, "words", "--gpus 1 --steps 3", path, "tensor \"");
        damage_flip(path, at, bit);
    }
    assert_int_equal(train("used", init, "words", "--gpus 1 --steps 1"), 0);
    assert_int_equal(truncate(path, damage_size_of(path) - 1), 0);
    assert_int_equal(train("cut", init, "words", "--gpus 1 --steps 1"), 2);
    assert_true(log_has("cut", path));
}

static void checkpoints_that_changed_are_not_used(void **state) {
    (void)state;
    char path[200];
    rng r = rng_init((uint64_t)getpid());
    make("lines");
    assert_int_equal(train("kept", "tests/data/hf/qwen3_moe", "lines", "--gpus 1 --steps 2"), 0);
    snprintf(path, sizeof path, "%s/kept/checkpoints/step-00000002/rank-00000.safetensors",
             scratch);
    for (int i = 0; i < case_count(8, 2); i++) {
        long at = (long)rng_range(&r, damage_size_of(path) / 2, damage_size_of(path) - 1);
        unsigned bit = (unsigned)rng_range(&r, 0, 7);
        damage_flip(path, at, bit);
        refused("kept", "tests/data/hf/qwen3_moe", "lines", "--gpus 1 --steps 3 --resume", path,
                "tensor \"");
        damage_flip(path, at, bit);
    }
    assert_int_equal(
        train("kept", "tests/data/hf/qwen3_moe", "lines", "--gpus 1 --steps 3 --resume"), 0);
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_that_changed_between_runs_are_not_used),
        cmocka_unit_test(weights_that_changed_are_not_used),
        cmocka_unit_test(checkpoints_that_changed_are_not_used),
    };
    return train_run_open(argv[0]) ? train_run_close(cmocka_run_group_tests(tests, NULL, NULL)) : 1;
}
