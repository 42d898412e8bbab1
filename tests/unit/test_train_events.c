/* TensorBoard's event file, read by its definition (TFRecord frames with masked CRC-32C, Event and
 * Summary messages of protocol buffers), holds what metrics.jsonl holds. MF_TEST: the one test to
 * run (a pattern). */
#include "tests/support/train_run.h"

#include <dirent.h>
#include <math.h>

static uint32_t bitwise_crc(const unsigned char *at, size_t size) {
    uint32_t v = ~0u;
    for (size_t i = 0; i < size; i++) {
        v ^= at[i];
        for (int k = 0; k < 8; k++) {
            v = (v >> 1) ^ (v & 1 ? 0x82f63b78u : 0);
        }
    }
    v = ~v;
    return ((v >> 15) | (v << 17)) + 0xa282ead8u;
}

static uint64_t little(const unsigned char *at, int bytes) {
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        v = v << 8 | at[i];
    }
    return v;
}

typedef struct field {
    unsigned number, wire;
    uint64_t value;
    const unsigned char *bytes; /* wire type 2 */
} field;

static uint64_t varint(const unsigned char **at) {
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        unsigned char b = *(*at)++;
        v |= (uint64_t)(b & 127) << shift;
        if (b < 128) {
            return v;
        }
    }
}

static field next_field(const unsigned char **at) {
    uint64_t key = varint(at);
    field f = {.number = (unsigned)(key >> 3), .wire = (unsigned)(key & 7)};
    if (f.wire == 0) {
        f.value = varint(at);
    } else if (f.wire == 2) {
        f.value = varint(at);
        f.bytes = *at;
        *at += f.value;
    } else {
        int bytes = f.wire == 1 ? 8 : 4;
        f.value = little(*at, bytes);
        *at += bytes;
    }
    return f;
}

/* Of a Summary: the value of `tag`. */
static float scalar_of(const field *summary, const char *tag) {
    const unsigned char *at = summary->bytes, *last = at + summary->value;
    while (at < last) {
        field value = next_field(&at);
        const unsigned char *in = value.bytes;
        bool mine = false;
        float number = NAN;
        while (in < value.bytes + value.value) {
            field f = next_field(&in);
            mine = mine || (f.number == 1 && f.value == strlen(tag) &&
                            memcmp(f.bytes, tag, (size_t)f.value) == 0);
            if (f.number == 2) {
                uint32_t bits = (uint32_t)f.value;
                memcpy(&number, &bits, sizeof number);
            }
        }
        if (mine) {
            return number;
        }
    }
    return NAN;
}

static void the_event_file_holds_what_the_lines_hold(void **state) {
    (void)state;
    char path[512] = "", folder[128];
    static double x[MAX_STEPS][3];
    static unsigned char bytes[1 << 18];
    run("events", 4, several_ranks ? folded() : single, 0);
    snprintf(folder, sizeof folder, "%s/events", scratch);
    int steps = read_losses("events", x), seen = 0, records = 0;
    DIR *d = opendir(folder);
    struct dirent *entry;
    while ((entry = readdir(d)) != NULL) {
        if (strstr(entry->d_name, "tfevents") != NULL) {
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        }
    }
    closedir(d);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t size = fread(bytes, 1, sizeof bytes, f), at = 0;
    fclose(f);
    for (; at + 12 <= size; records++) {
        size_t length = (size_t)little(bytes + at, 8);
        assert_int_equal(little(bytes + at + 8, 4), bitwise_crc(bytes + at, 8));
        assert_at_most(at + 16 + length, size);
        assert_int_equal(little(bytes + at + 12 + length, 4), bitwise_crc(bytes + at + 12, length));
        const unsigned char *in = bytes + at + 12, *last = in + length;
        int64_t step = -1;
        while (in < last) {
            field e = next_field(&in);
            step = e.number == 2 ? (int64_t)e.value : step;
            if (e.number == 3) {
                assert_int_equal(records, 0);
                assert_memory_equal(e.bytes, "brain.Event:2", 13);
            }
            if (e.number == 5) {
                assert_true((double)scalar_of(&e, "lm_loss") == (double)(float)x[seen][0]);
                assert_true((double)scalar_of(&e, "grad_norm") == (double)(float)x[seen][2]);
                assert_int_equal(step, ++seen);
            }
        }
        at += 16 + length;
    }
    assert_int_equal(at, size);
    assert_int_equal(seen, steps);
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_event_file_holds_what_the_lines_hold)};
    return train_run_open(argv[0]) ? train_run_close(cmocka_run_group_tests(tests, NULL, NULL)) : 1;
}
