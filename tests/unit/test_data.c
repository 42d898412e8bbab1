/* Token streams: samples, shuffling, Megatron files, refusals. */
#include "executor/data.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void write_file(const char *path, const void *bytes, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
}

static size_t put(unsigned char *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        at[i] = (unsigned char)(value >> (8 * i));
    }
    return (size_t)bytes;
}

/* Two sequences, 5 and 4 tokens of two bytes, one document. */
static size_t small_index(unsigned char *b) {
    size_t n = 9;
    memcpy(b, "MMIDIDX\0\0", 9);
    n += put(b + n, 1, 8);
    n += put(b + n, 8, 1);
    n += put(b + n, 2, 8);
    n += put(b + n, 2, 8);
    n += put(b + n, 5, 4);
    n += put(b + n, 4, 4);
    n += put(b + n, 0, 8);
    n += put(b + n, 10, 8);
    n += put(b + n, 0, 8);
    n += put(b + n, 2, 8);
    return n;
}

static void bytes_of_text_are_tokens_and_samples_share_their_ends(void **state) {
    (void)state;
    char path[] = "/tmp/mf-text-XXXXXX";
    close(mkstemp(path));
    write_file(path, "abcdefghij", 10);
    mf_data *d = NULL;
    const mf_data_order order = {.seq = 3};
    int32_t tokens[4];
    assert_ok(mf_data_open(path, 256, &d, NULL));
    assert_int_equal(mf_data_samples(d, 3), 3);
    assert_ok(mf_data_sample(d, &order, 1, tokens, NULL));
    assert_int_equal(tokens[0], 'd');
    assert_int_equal(tokens[3], 'g');
    assert_ok(mf_data_sample(d, &order, 3, tokens, NULL)); /* the next pass */
    assert_int_equal(tokens[0], 'a');
    mf_data_close(d);
    mf_err e;
    assert_ok(mf_data_open(path, 100, &d, NULL));
    assert_int_equal(mf_data_sample(d, &order, 1, tokens, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "offset 3"));
    mf_data_close(d);
    unlink(path);
}

static void shuffling_is_a_permutation_that_depends_on_seed_and_pass(void **state) {
    (void)state;
    for (int64_t count = 1; count < 300; count += 7) {
        bool seen[300] = {false};
        for (int64_t i = 0; i < count; i++) {
            int64_t at = mf_data_shuffled(5, 2, count, i);
            assert_true(at >= 0 && at < count && !seen[at]);
            seen[at] = true;
        }
    }
    int same[3] = {0};
    for (int64_t i = 0; i < 1000; i++) {
        int64_t at = mf_data_shuffled(1, 0, 1000, i);
        same[0] += at == i;
        same[1] += at == mf_data_shuffled(2, 0, 1000, i);
        same[2] += at == mf_data_shuffled(1, 1, 1000, i);
    }
    assert_true(same[0] < 10 && same[1] < 10 && same[2] < 10);
}

static void megatron_files_are_read_and_damaged_ones_refused(void **state) {
    (void)state;
    char folder[] = "/tmp/mf-megatron-XXXXXX", prefix[64], path[80];
    assert_non_null(mkdtemp(folder));
    snprintf(prefix, sizeof prefix, "%s/text_document", folder);
    unsigned char index[128], bin[18];
    size_t n = small_index(index);
    for (unsigned i = 0; i < 9; i++) {
        put(bin + 2 * i, 300 + i, 2);
    }
    snprintf(path, sizeof path, "%s.bin", prefix);
    write_file(path, bin, sizeof bin);
    snprintf(path, sizeof path, "%s.idx", prefix);
    write_file(path, index, n);
    mf_data *d = NULL;
    const mf_data_order order = {.seq = 4};
    int32_t tokens[5];
    assert_ok(mf_data_open(prefix, 1000, &d, NULL));
    assert_int_equal(mf_data_tokens(d), 9);
    assert_ok(mf_data_sample(d, &order, 1, tokens, NULL));
    assert_int_equal(tokens[0], 304);
    assert_int_equal(tokens[4], 308);
    mf_data_close(d);
    /* Every byte of header, lengths and offsets matters. */
    int refused = 0;
    for (size_t i = 0; i < n; i++) {
        mf_data_index out;
        mf_err e;
        unsigned char keep = index[i];
        index[i] ^= 0x41;
        refused += mf_data_index_parse("x", index, n, sizeof bin, &out, &e) == MF_INPUT;
        index[i] = keep;
        assert_int_equal(mf_data_index_parse("x", index, i, sizeof bin, &out, &e), MF_INPUT);
    }
    assert_true(refused >= (int)n - 8);
    unlink(path);
    snprintf(path, sizeof path, "%s.bin", prefix);
    unlink(path);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_text_are_tokens_and_samples_share_their_ends),
        cmocka_unit_test(shuffling_is_a_permutation_that_depends_on_seed_and_pass),
        cmocka_unit_test(megatron_files_are_read_and_damaged_ones_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
