/* Token streams: samples, shuffling, Megatron files, refusals. */
#include "core/base/crc32c.h"
#include "executor/data/data_mix.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static void a_named_pipe_is_refused_and_not_waited_for(void **state) {
    (void)state;
    char path[] = "/tmp/mf-pipe-XXXXXX";
    mf_data *d = NULL;
    mf_err e;
    close(mkstemp(path));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20); /* it would wait for ever */
    assert_int_equal(mf_data_open(path, 256, &d, &e), MF_INPUT);
    alarm(0);
    assert_non_null(strstr(e.text, ": not a file"));
    assert_int_equal(unlink(path), 0);
}

static void shuffling_is_a_permutation_that_depends_on_seed_and_pass(void **state) {
    (void)state;
    for (int64_t count = 1; count < 300; count += 7) {
        bool seen[300] = {false};
        for (int64_t i = 0; i < count; i++) {
            int64_t at = mf_data_shuffled(5, 2, count, i);
            assert_at_least(at, 0);
            assert_below(at, count);
            assert_true(!seen[at]);
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
    assert_below(same[0], 10);
    assert_below(same[1], 10);
    assert_below(same[2], 10);
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
    assert_at_least(refused, (int)n - 8);
    unlink(path);
    snprintf(path, sizeof path, "%s.bin", prefix);
    unlink(path);
    rmdir(folder);
}

/* Streams of 'a' and 'b' bytes: which one a sample came from can be read off it. */
static void streams_are_mixed_by_weight_as_a_function_of_the_sample_alone(void **state) {
    (void)state;
    char path[2][32] = {"/tmp/mf-mix-a-XXXXXX", "/tmp/mf-mix-b-XXXXXX"}, text[128];
    static char bytes[5000];
    for (int k = 0; k < 2; k++) {
        close(mkstemp(path[k]));
        for (size_t i = 0; i < sizeof bytes; i++) { /* every sample differs */
            bytes[i] = (char)('a' + 13 * k + (int)(i * (i + 1) / 2 % 13));
        }
        write_file(path[k], bytes, sizeof bytes);
    }
    mf_data_mix *m = NULL, *again = NULL;
    mf_err e;
    snprintf(text, sizeof text, "3:%s,1:%s", path[0], path[1]);
    assert_ok(mf_data_mix_open(text, 256, &m, &e));
    assert_ok(mf_data_mix_open(text, 256, &again, &e));
    const mf_data_order order = {.seq = 8, .seed = 5, .shuffle = true};
    int64_t next[2] = {0, 0}, from_second = 0;
    enum { N = 3 * MF_DATA_MIX_BLOCK };
    static bool seen[2][N];
    for (int64_t i = 0; i < N; i++) {
        int stream;
        int64_t sample;
        mf_data_mix_place(m, 5, i, &stream, &sample);
        assert_at_least(sample, 0);
        assert_below(sample, N);
        assert_true(!seen[stream][sample]);
        seen[stream][sample] = true;
        next[stream]++;
        int32_t tokens[9], same[9];
        assert_ok(mf_data_mix_sample(m, &order, i, tokens, &e));
        assert_int_equal(tokens[0] >= 'a' + 13, stream == 1);
        from_second += i < 64 && stream == 1;
        /* From the middle, by another reader: the same. */
        assert_ok(mf_data_mix_sample(again, &order, i, same, &e));
        assert_memory_equal(tokens, same, sizeof tokens);
    }
    assert_int_equal(next[0], N / 4 * 3); /* to the sample, in every block */
    assert_int_equal(next[1], N / 4);
    assert_in_range(from_second, 4, 32); /* and mixed, not one after the other */
    for (int64_t i = 0; i < next[1]; i++) {
        assert_true(seen[1][i]);
    }
    mf_data_mix_close(m);
    mf_data_mix_close(again);
    static const char *const wrong[][2] = {{"0:", "1:"}, {"-1:", "2:"}, {"1:", ""}, {"1e9:", "1:"}};
    for (int k = 0; k < 4; k++) {
        snprintf(text, sizeof text, "%s%s,%s%s", wrong[k][0], path[0], wrong[k][1], path[1]);
        assert_int_equal(mf_data_mix_open(text, 256, &m, &e), MF_USAGE);
    }
    assert_ok(mf_data_mix_open(path[0], 256, &m, &e));
    assert_int_equal(mf_data_mix_streams(m), 1);
    assert_int_equal(mf_data_mix_share(m, 0), MF_DATA_MIX_BLOCK);
    mf_data_mix_close(m);
    unlink(path[0]);
    unlink(path[1]);
}

static void the_checksum_is_castagnolis(void **state) {
    (void)state;
    unsigned char zeros[32] = {0}, ones[32], text[] = "123456789";
    memset(ones, 0xff, sizeof ones);
    assert_int_equal(mf_crc32c(0, text, 9), 0xe3069283); /* RFC 3720, B.4 and the catalogue */
    assert_int_equal(mf_crc32c(0, zeros, 32), 0x8a9136aa);
    assert_int_equal(mf_crc32c(0, ones, 32), 0x62a8ab43);
    assert_int_equal(mf_crc32c(mf_crc32c(0, text, 4), text + 4, 5), 0xe3069283);
}

/* Any length, any alignment, behind anything. */
static void checksums_by_instruction_and_by_tables_agree(void **state) {
    (void)state;
    unsigned char bytes[100];
    assert_int_equal(mf_crc32c_by_tables(0, "123456789", 9), 0xe3069283);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)(i * i * 37 + 11);
    }
    for (size_t from = 0; from < 9; from++) {
        for (size_t size = 0; from + size <= sizeof bytes; size++) {
            const uint32_t before = (uint32_t)(from * 0x9e3779b9u);
            assert_int_equal(mf_crc32c(before, bytes + from, size),
                             mf_crc32c_by_tables(before, bytes + from, size));
        }
    }
}

/* Every bit of what has checksums, one at a time, and bytes that are missing. */
static void a_bit_that_changed_since_data_got_checksums_is_named(void **state) {
    (void)state;
    enum { SIZE = 40, BLOCK = 16 };
    char path[] = "/tmp/mf-sealed-XXXXXX", beside[64], expected[96];
    unsigned char bytes[SIZE];
    close(mkstemp(path));
    snprintf(beside, sizeof beside, "%s.crc32c", path);
    for (unsigned i = 0; i < SIZE; i++) {
        bytes[i] = (unsigned char)('a' + i % 26);
    }
    mf_block_checksums *s = mf_block_checksums_create(SIZE);
    s->block_B = BLOCK; /* small ones: three, the last one short */
    s->blocks = 3;
    s->crc = realloc(s->crc, 4 * sizeof *s->crc);
    s->seen = realloc(s->seen, 4);
    mf_block_checksums_take(s, bytes, 0, 2);
    mf_block_checksums_take(s, bytes, 1, 2);
    assert_ok(mf_block_checksums_write(beside, s, NULL));
    mf_block_checksums_destroy(s);
    const mf_data_order order = {.seq = 3};
    for (int bit = -1; bit < 8 * SIZE; bit++) {
        mf_data *d = NULL;
        mf_err e;
        int32_t tokens[4];
        if (bit >= 0) {
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        write_file(path, bytes, SIZE);
        assert_ok(mf_data_open(path, 256, &d, &e));
        int found = 0;
        for (int64_t i = 0; i < mf_data_samples(d, order.seq); i++) {
            /* Tokens [3 i, 3 i + 3]: refused when their blocks are those of the bit. */
            int64_t block = bit / 8 / BLOCK;
            bool touches = bit >= 0 && 3 * i / BLOCK <= block && (3 * i + 3) / BLOCK >= block;
            mf_status status = mf_data_sample(d, &order, i, tokens, &e);
            assert_int_equal(status, touches ? MF_INPUT : MF_OK);
            snprintf(expected, sizeof expected, "%s: offset %lld: ", path,
                     (long long)(block * BLOCK));
            if (touches && (strstr(e.text, expected) == NULL || strstr(e.text, beside) == NULL)) {
                fail_msg("bit %d: %s", bit, e.text);
            }
            found += touches;
        }
        assert_true((found > 0) == (bit >= 0));
        mf_data_close(d);
        if (bit >= 0) {
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
    }
    for (int cut = 1; cut < SIZE; cut++) {
        mf_data *d = NULL;
        mf_err e;
        write_file(path, bytes, (size_t)(SIZE - cut));
        assert_int_equal(mf_data_open(path, 256, &d, &e), MF_INPUT);
        assert_non_null(strstr(e.text, path));
        assert_non_null(strstr(e.text, "was made for 40"));
    }
    unlink(path);
    unlink(beside);
}

/* Checksums that are damaged say so: any bit of it, any length. */
static void damaged_checksums_are_refused(void **state) {
    (void)state;
    char path[] = "/tmp/mf-seal-XXXXXX", text[256];
    static const char bytes[100] = "sealed";
    mf_block_checksums *s = mf_block_checksums_create(sizeof bytes), *back = NULL;
    mf_err e;
    close(mkstemp(path));
    mf_block_checksums_take(s, bytes, 0, 1);
    assert_ok(mf_block_checksums_write(path, s, NULL));
    FILE *f = fopen(path, "rb");
    size_t size = fread(text, 1, sizeof text, f);
    fclose(f);
    unlink(path);
    assert_ok(mf_block_checksums_parse("x", text, size, &back, &e));
    assert_int_equal(back->crc[0], s->crc[0]);
    assert_ok(mf_block_checksums_check(back, "f", 0, bytes, 0, sizeof bytes, &e));
    mf_block_checksums_destroy(back);
    mf_block_checksums_destroy(s);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        text[bit / 8] = (char)(text[bit / 8] ^ (1 << bit % 8));
        assert_int_equal(mf_block_checksums_parse("x", text, size, &back, &e), MF_INPUT);
        assert_non_null(strstr(e.text, "x: offset "));
        text[bit / 8] = (char)(text[bit / 8] ^ (1 << bit % 8));
    }
    for (size_t cut = 0; cut < size; cut++) {
        assert_int_equal(mf_block_checksums_parse("x", text, cut, &back, &e), MF_INPUT);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_text_are_tokens_and_samples_share_their_ends),
        cmocka_unit_test(a_named_pipe_is_refused_and_not_waited_for),
        cmocka_unit_test(shuffling_is_a_permutation_that_depends_on_seed_and_pass),
        cmocka_unit_test(streams_are_mixed_by_weight_as_a_function_of_the_sample_alone),
        cmocka_unit_test(the_checksum_is_castagnolis),
        cmocka_unit_test(checksums_by_instruction_and_by_tables_agree),
        cmocka_unit_test(megatron_files_are_read_and_damaged_ones_refused),
        cmocka_unit_test(a_bit_that_changed_since_data_got_checksums_is_named),
        cmocka_unit_test(damaged_checksums_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
