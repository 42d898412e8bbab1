/* safetensors: files from outside, refusal of hostile ones, writing, indexes. */
#include "executor/files/safetensors.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static mf_status parse(const char *header, size_t data_B, uint64_t length, mf_safetensors **out,
                       mf_err *e) {
    static unsigned char bytes[4096];
    size_t n = strlen(header);
    memset(bytes, 0, sizeof bytes);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(length >> (8 * i));
    }
    memcpy(bytes + 8, header, n);
    return mf_safetensors_parse("file", bytes, 8 + n + data_B, out, e);
}

static void a_file_of_hugging_face_is_read(void **state) {
    (void)state;
    mf_safetensors *s = NULL;
    mf_err e;
    if (mf_safetensors_open("tests/data/hf/mixtral", &s, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    const mf_st_tensor *t =
        mf_safetensors_find(s, "model.layers.1.block_sparse_moe.experts.3.w2.weight");
    assert_non_null(t);
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->shape[0], 32);
    assert_int_equal(t->shape[1], 48);
    assert_null(mf_safetensors_find(s, "model.layers.1"));
    float part[2 * 3];
    assert_ok(mf_st_read(t, 4, 2, 5, 3, part, 3, NULL));
    assert_true(part[4] == mf_st_get(t, 5 * 48 + 6));
    assert_int_equal(mf_st_read(t, 31, 2, 0, 1, part, 1, &e), MF_INPUT);
    mf_safetensors_close(s);
}

static void hostile_headers_are_refused_with_their_place(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_B;
        const char *text;
    } bad[] = {
        {"[]", 0, "offset 8"},
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 1, "1 bytes belong to no tensor"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "file:1:"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 8, "takes 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "file:1:"},
        {"{\"a\":{\"dtype\":\"F9\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "not supported"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[281474976710656,281474976710656],"
         "\"data_offsets\":[0,8]}}",
         8, "2^48"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}", 4, "gap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 4, "no tensor"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[1,4]}}",
         4, "overlaps"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2],\"x\":1}}", 2, "\"x\""},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
         2, "file:1:"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mf_safetensors *s = NULL;
        mf_err e;
        mf_status status = parse(bad[i].header, bad[i].data_B, strlen(bad[i].header), &s, &e);
        assert_int_equal(status, MF_INPUT);
        assert_null(s);
        if (strstr(e.text, bad[i].text) == NULL) {
            fail_msg("%zu: \"%s\" does not say %s", i, e.text, bad[i].text);
        }
    }
    mf_safetensors *s = NULL;
    assert_int_equal(parse("{}", 0, UINT64_MAX, &s, NULL), MF_INPUT);
    assert_ok(parse("{}", 0, 2, &s, NULL));
    mf_safetensors_close(s);
}

static void what_is_written_reads_back_and_an_index_joins_files(void **state) {
    (void)state;
    char folder[] = "/tmp/mf-safetensors-XXXXXX", path[128], index[128];
    assert_non_null(mkdtemp(folder));
    const float a[6] = {1, 2, 3, 4, 5, -6};
    const uint16_t b[2] = {0x3f80, 0xc000};
    const mf_st_source first = {"a", MF_ST_F32, 2, {2, 3}, a};
    const mf_st_source second = {"b", MF_ST_BF16, 1, {2}, b};
    snprintf(path, sizeof path, "%s/one.safetensors", folder);
    assert_ok(mf_safetensors_write(path, &first, 1, NULL));
    snprintf(path, sizeof path, "%s/two.safetensors", folder);
    assert_ok(mf_safetensors_write(path, &second, 1, NULL));
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder);
    for (int good = 1; good >= 0; good--) {
        FILE *f = fopen(index, "w");
        assert_non_null(f);
        fprintf(f, "{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"%s.safetensors\"}}",
                good ? "two" : "one");
        fclose(f);
        mf_safetensors *s = NULL;
        mf_err e;
        mf_status status = mf_safetensors_open(folder, &s, &e);
        if (good) {
            assert_int_equal(status, MF_OK);
            assert_int_equal(mf_safetensors_count(s), 2);
            assert_true(mf_st_get(mf_safetensors_find(s, "a"), 5) == -6.0f);
            assert_true(mf_st_get(mf_safetensors_find(s, "b"), 1) == -2.0f);
        } else {
            assert_int_equal(status, MF_INPUT);
            assert_non_null(strstr(e.text, "holds no tensor \"b\""));
        }
        mf_safetensors_close(s);
    }
    unlink(index);
    unlink(path);
    snprintf(path, sizeof path, "%s/one.safetensors", folder);
    unlink(path);
    rmdir(folder);
}

/* Every bit of the data, one at a time. */
static void a_bit_that_changed_in_a_file_with_checksums_is_named(void **state) {
    (void)state;
    char path[] = "/tmp/mf-sealed-XXXXXX";
    static unsigned char bytes[4096];
    const float a[6] = {1, 2, 3, 4, 5, -6};
    const uint16_t b[2] = {0x3f80, 0xc000};
    const mf_st_source list[] = {{"a", MF_ST_F32, 2, {2, 3}, a}, {"b", MF_ST_BF16, 1, {2}, b}};
    mf_safetensors *s = NULL;
    mf_err e;
    int fd = mkstemp(path);
    assert_at_least(fd, 0);
    assert_true(close(fd) == 0);
    assert_ok(mf_safetensors_write_checksums(path, list, 2, NULL));
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t size = fread(bytes, 1, sizeof bytes, f), data_at = 8 + bytes[0] + 256u * bytes[1];
    fclose(f);
    unlink(path);
    assert_int_equal(size, data_at + sizeof a + sizeof b);
    assert_ok(mf_safetensors_parse("file", bytes, size, &s, NULL));
    assert_ok(mf_safetensors_verify(s, 0, 1, NULL));
    mf_safetensors_close(s);
    for (size_t bit = 8 * data_at; bit < 8 * size; bit++) {
        bool of_a = bit / 8 < data_at + sizeof a;
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_ok(mf_safetensors_parse("file", bytes, size, &s, NULL));
        assert_int_equal(mf_safetensors_verify(s, 0, 1, &e), MF_INPUT);
        assert_non_null(strstr(e.text, of_a ? "tensor \"a\"" : "tensor \"b\""));
        assert_int_equal(mf_safetensors_verify(s, 1, 2, NULL), of_a ? MF_OK : MF_INPUT);
        mf_safetensors_close(s);
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

static void weights_that_are_no_numbers_are_named_by_element(void **state) {
    (void)state;
    static const char header[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
    static unsigned char bytes[256];
    static const uint32_t bad[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u};
    size_t n = sizeof header - 1;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mf_safetensors *s = NULL;
        mf_err e;
        char at[40];
        memset(bytes, 0, sizeof bytes);
        bytes[0] = (unsigned char)n;
        memcpy(bytes + 8, header, n);
        memcpy(bytes + 8 + n + 4 * i, &bad[i], 4);
        assert_ok(mf_safetensors_parse("file", bytes, 8 + n + 16, &s, NULL));
        assert_int_equal(mf_safetensors_verify(s, 0, 1, &e), MF_INPUT);
        snprintf(at, sizeof at, "file: offset %zu: tensor \"w\"", 8 + n + 4 * i);
        assert_non_null(strstr(e.text, at));
        mf_safetensors_close(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_of_hugging_face_is_read),
        cmocka_unit_test(hostile_headers_are_refused_with_their_place),
        cmocka_unit_test(a_bit_that_changed_in_a_file_with_checksums_is_named),
        cmocka_unit_test(weights_that_are_no_numbers_are_named_by_element),
        cmocka_unit_test(what_is_written_reads_back_and_an_index_joins_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
