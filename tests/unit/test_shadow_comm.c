/* test_shadow_comm.c - communication of shadows (tests/support/shadow_device.h): every operation
 * over every group gives the defined result, and what would hang on GPUs is an error. Ranks are
 * processes of this program. */
#include "executor/comm/comm_launch.h"
#include "tests/support/comm_case.h"
#include "tests/support/shadow_device.h"
#include "tests/support/test.h"

#include <unistd.h>

static mf_device *device;

static mf_queue *queue(void) {
    return device->ops->queue(device, MF_STREAM_COMPUTE);
}

static void must(mf_status s, const mf_err *e) {
    if (s != MF_OK) {
        printf("%s\n", e->text);
        exit(1);
    }
}

static void *place(const void *data, size_t size_B) {
    mf_err e;
    void *memory;
    must(device->ops->allocate(device, (int64_t)size_B, &memory, &e), &e);
    must(device->ops->copy(queue(), memory, data, size_B, &e), &e);
    return memory;
}

static void fetch(void *data, void *from, size_t size_B) {
    mf_err e;
    must(device->ops->copy(queue(), data, from, size_B, &e), &e);
}

static void drop(void *p) {
    device->ops->release(device, p);
}

static const comm_memory memory = {
    .place = place, .fetch = fetch, .drop = drop, .streams = true, .sums_bf16 = true};

typedef struct ranks {
    mf_layout layout;
    mf_comm *host, *wire;
    mf_group_kind added;
    int64_t rank;
} ranks;

static void join(ranks *r, int64_t n, double timeout_s) {
    const shadow_options o = {.seed = 5, .timeout_s = timeout_s};
    int64_t size = 1;
    mf_err e;
    r->layout = case_layout(n);
    must(mf_comm_start(&r->rank, &size, &e), &e);
    must(mf_comm_create(&r->layout, &r->host, &e), &e);
    must(shadow_open(&o, &device, &e), &e);
    must(shadow_comm_create(device, r->host, &r->layout, &r->wire, &e), &e);
    must(mf_comm_add(r->wire, r->rank % 2, &r->added, &e), &e);
    mf_comm_use_stream(r->wire, queue()->stream);
}

static void leave(ranks *r) {
    mf_comm_destroy(r->wire);
    device->ops->close(device);
    mf_comm_destroy(r->host);
    mf_comm_stop();
}

static int operations(int64_t n) {
    ranks r;
    int checks = 0;
    join(&r, n, 0.0);
    int failed = case_run(r.wire, &r.layout, r.added, &memory, 37, &checks);
    if (r.rank == 0) {
        printf("%d ranks: %d operations, %d wrong\n", (int)n, checks, failed);
    }
    leave(&r);
    return failed > 0;
}

/* Both send before they receive: on GPUs each send waits for the other's receive. */
static int deadlock(void) {
    ranks r;
    mf_err e = {.text = ""};
    float values[8] = {0};
    join(&r, 2, 0.5);
    char *in = place(values, sizeof values), *out = place(values, sizeof values);
    must(mf_comm_send(r.wire, 1, 1 - r.rank, 0, in, sizeof values, &e), &e);
    must(mf_comm_receive(r.wire, 1, 1 - r.rank, 0, out, sizeof values, &e), &e);
    bool reported = device->ops->wait(device, &e) == MF_LIBRARY && strstr(e.text, "deadlock") &&
                    strstr(e.text, "to receive, slot 1");
    printf("rank %d: %s\n", (int)r.rank, e.text);
    leave(&r);
    return reported ? 0 : 1;
}

/* One rank sums, the other gathers. */
static int mismatch(void) {
    ranks r;
    mf_err e = {.text = ""};
    float values[8] = {0};
    join(&r, 2, 0.0);
    char *in = place(values, sizeof values), *out = place(values, sizeof values);
    must(r.rank == 0
             ? mf_comm_all_reduce(r.wire, MF_GROUP_WORLD, MF_COMM_F32, MF_COMM_SUM, in, 4, &e)
             : mf_comm_all_gather(r.wire, MF_GROUP_WORLD, MF_COMM_F32, in, out, 4, &e),
         &e);
    bool reported = device->ops->wait(device, &e) == MF_LIBRARY && strstr(e.text, "all_reduce") &&
                    strstr(e.text, "all_gather");
    printf("rank %d: %s\n", (int)r.rank, e.text);
    leave(&r);
    return reported ? 0 : 1;
}

/* On a stream that nothing else is ordered with, what is sent is not there yet. */
static int no_stream(void) {
    ranks r;
    mf_err e = {.text = ""};
    float one = 1.0f, got = 0.0f;
    join(&r, 2, 0.0);
    char *sum = place(&got, sizeof got);
    must(device->ops->copy(queue(), sum, &one, sizeof one, &e), &e);
    must(device->ops->wait(device, &e), &e);
    mf_comm_use_stream(r.wire, NULL);
    must(mf_comm_all_reduce(r.wire, MF_GROUP_WORLD, MF_COMM_F32, MF_COMM_SUM, sum, 1, &e), &e);
    fetch(&got, sum, sizeof got); /* on the other queue: the sum is not waited for */
    bool early = got < 1.5f;
    must(device->ops->wait(device, &e), &e);
    fetch(&got, sum, sizeof got);
    leave(&r);
    return early && got > 1.5f ? 0 : 1;
}

static int child(const char *what, int n) {
    return strcmp(what, "deadlock") == 0   ? deadlock()
           : strcmp(what, "mismatch") == 0 ? mismatch()
           : strcmp(what, "stream") == 0   ? no_stream()
                                           : operations(n);
}

static int launch(int n, const char *what) {
    char count[16], word[16], self[4096], child_word[] = "--child";
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_above(length, 0);
    self[length] = '\0';
    snprintf(count, sizeof count, "%d", n);
    snprintf(word, sizeof word, "%s", what);
    char *argv[] = {self, child_word, count, word, NULL};
    int code = -1;
    mf_err e;
    assert_ok(mf_comm_launch(n, argv, NULL, &code, &e));
    return code;
}

static void operations_return_the_expected_values(void **state) {
    (void)state;
    for (int n = 1; n <= 8; n *= 2) {
        assert_int_equal(launch(n, "operations"), 0);
    }
}

static void sends_that_wait_for_each_other_are_named(void **state) {
    (void)state;
    assert_int_equal(launch(2, "deadlock"), 0);
}

static void collectives_that_do_not_meet_are_named(void **state) {
    (void)state;
    assert_int_equal(launch(2, "mismatch"), 0);
}

static void work_without_a_stream_is_ordered_with_nothing(void **state) {
    (void)state;
    assert_int_equal(launch(2, "stream"), 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_return_the_expected_values),
        cmocka_unit_test(sends_that_wait_for_each_other_are_named),
        cmocka_unit_test(collectives_that_do_not_meet_are_named),
        cmocka_unit_test(work_without_a_stream_is_ordered_with_nothing),
    };
    if (argc > 3 && strcmp(argv[1], "--child") == 0) {
        return child(argv[3], atoi(argv[2]));
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
