/* test_shadow_faults.c - mistakes that a GPU would make something of, planted on purpose: the
 * shadow (tests/support/shadow_device.h) refuses them by name, or its results are other ones. And
 * what it knows of its kernels' bytes is what they do. */
#include "tests/support/sampled.h"
#include "tests/support/shadow_case.h"
#include "tests/support/shadow_hold.h"
#include "tests/support/test.h"

#include <sys/wait.h>
#include <unistd.h>

static const shadow_setup small = {
    .family = "qwen2_moe", .precision = MF_PREC_BF16, .mbs = 4, .aux_coef = 0.02, .z_coef = 1e-3};

static mf_status run(const shadow_setup *s, const shadow_options *o, int64_t steps,
                     shadow_bytes *out, mf_err *e) {
    mf_device *device = NULL;
    *out = (shadow_bytes){0};
    mf_status status = shadow_open(o, &device, e);
    if (device != NULL) {
        status = shadow_train(s, device, steps, out, e);
        device->ops->close(device);
    }
    return status;
}

/* --- kernels' bytes -----------------------------------------------------------------------------
 */

static void kernels_touch_the_bytes_that_they_are_said_to(void **state) {
    static const shadow_setup setups[] = {
        {.family = "qwen2_moe",
         .precision = MF_PREC_BF16,
         .mbs = 4,
         .aux_coef = 0.02,
         .z_coef = 1e-3,
         .recompute = MF_RECOMPUTE_MOE},
        {.family = "deepseek_v3", .precision = MF_PREC_BF16, .mbs = 4},
        {.family = "mixtral", .precision = MF_PREC_FP32, .mbs = 4, .capacity = 1.0, .force = true},
    };
    const shadow_options o = {.checks_spans = true, .fused_sums = true};
    (void)state;
    if (cases_sampled()) {
        return; /* kernels are those of test_shadow_steps, all memory is looked at around each */
    }
    for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i++) {
        shadow_bytes got;
        mf_err e;
        if (run(&setups[i], &o, 1, &got, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
        shadow_bytes_clear(&got);
    }
}

/* --- wrong arguments ----------------------------------------------------------------------------
 */

typedef struct fault {
    shadow_kind kind;
    int64_t which; /* of its kind, from 1 */
    void (*change)(void *args);
    int64_t seen;
} fault;

static void plant(void *user, int64_t number, shadow_kind kind, void *args) {
    fault *f = user;
    (void)number;
    if (kind == f->kind && ++f->seen == f->which) {
        f->change(args);
    }
}

static void overwrite(void *args) {
    mf_device_gemm *a = args;
    a->g.accumulate = !a->g.accumulate;
}

static void other_operand(void *args) {
    mf_kernel_swiglu_grad *a = args;
    a->dy = a->dgate_up;
}

static void other_eps(void *args) {
    ((mf_kernel_rmsnorm *)args)->eps *= 2.0f;
}

static void fewer_rows(void *args) {
    ((mf_kernel_permute *)args)->rows -= 1;
    ((mf_kernel_permute *)args)->row_of_slot = NULL;
}

static void other_column(void *args) {
    mf_kernel_rope_split *a = args;
    a->k = a->v;
}

static void other_scale(void *args) {
    ((mf_kernel_ce_whole *)args)->scale *= 2.0f;
}

static void wrong_arguments_give_other_results(void **state) {
    static const struct {
        shadow_kind kind;
        void (*change)(void *args);
    } faults[] = {{SHADOW_gemm, overwrite},          {SHADOW_swiglu_grad, other_operand},
                  {SHADOW_rmsnorm, other_eps},       {SHADOW_permute, fewer_rows},
                  {SHADOW_rope_split, other_column}, {SHADOW_loss_whole, other_scale}};
    shadow_options o = {.seed = 0};
    shadow_bytes want, got;
    mf_err e;
    (void)state;
    assert_ok(run(&small, &o, 1, &want, &e));
    assert_ok(run(&small, &o, 1, &got, &e));
    assert_ok(shadow_hold(&want, &got, &e));
    shadow_bytes_clear(&got);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        fault f = {faults[i].kind, 2, faults[i].change, 0};
        f.which = faults[i].kind == SHADOW_loss_whole ? 1 : 2;
        o.plant = plant;
        o.user = &f;
        assert_ok(run(&small, &o, 1, &got, &e));
        assert_at_least(f.seen, f.which);
        assert_int_equal(shadow_hold(&want, &got, &e), MF_TOLERANCE);
        shadow_bytes_clear(&got);
    }
    shadow_bytes_clear(&want);
}

/* --- what is captured ---------------------------------------------------------------------------
 */

/* As if the learning rate and the step were arguments of the kernel. */
static void baked_rate(void *args) {
    mf_kernel_adamw *a = args;
    a->state = NULL;
    a->lr = 1e-3f;
    a->step = 1;
}

static void values_that_a_graph_keeps_show_in_its_second_play(void **state) {
    shadow_setup s = small;
    fault f = {SHADOW_adamw, 1, baked_rate, 0};
    const shadow_options plain = {.seed = 0}, o = {
                                                  .plant = plant,
                                                  .user = &f,
                                              };
    shadow_bytes want, got;
    mf_err e;
    (void)state;
    s.graph = true;
    s.aux_coef = s.z_coef = 0.0;
    assert_ok(run(&s, &plain, 2, &want, &e));
    assert_ok(run(&s, &o, 2, &got, &e));
    assert_int_equal(f.seen > 0, 1);
    assert_int_equal(shadow_hold(&want, &got, &e), MF_TOLERANCE);
    shadow_bytes_clear(&want);
    shadow_bytes_clear(&got);
}

typedef enum refused { WAITS, ALLOCATES, COPIES, HOST_OPERAND, OTHER_QUEUE } refused;

static refused now;
static mf_status what_came;
static mf_err report;

/* Does once what is refused in a capture, behind the first norm. */
static void misbehave(void *user, const mf_exec_op *x) {
    mf_device *d = user;
    void *p = NULL;
    float word = 0.0f;
    const mf_kernel_add a = {.count = 1, .a = &word, .b = &word, .y = &word};
    if (x->block == NULL || x->op->kind != MF_OP_RMSNORM_FWD || what_came != MF_OK) {
        return;
    }
    switch (now) {
    case WAITS:
        what_came = d->ops->wait(d, &report);
        break;
    case ALLOCATES:
        what_came = d->ops->allocate(d, 64, &p, &report);
        break;
    case COPIES:
        what_came = d->ops->copy(x->queue, &word, x->out[0].data, sizeof word, &report);
        break;
    case HOST_OPERAND:
        what_came = d->ops->add(x->queue, &a, &report);
        break;
    case OTHER_QUEUE:
        what_came = d->ops->zero(d->ops->queue(d, MF_STREAM_D2H), x->out[0].data, 4, &report);
        break;
    }
}

static void calls_that_a_capture_refuses_are_named(void **state) {
    static const char *const words[] = {"the host waits inside a capture",
                                        "memory is allocated inside a capture",
                                        "memory that is not pinned is copied inside a capture",
                                        "no device memory", "which the capture does not hold"};
    shadow_setup s = small;
    (void)state;
    s.graph = true;
    for (int k = WAITS; k <= OTHER_QUEUE; k++) {
        const shadow_options o = {0};
        shadow_case c;
        shadow_bytes left = {0};
        mf_device *device = NULL;
        mf_exec_options x;
        mf_err e;
        now = (refused)k;
        what_came = MF_OK;
        shadow_case_options(&s, &x);
        assert_ok(shadow_open(&o, &device, &e));
        x.after_op = misbehave;
        x.user = device;
        assert_ok(shadow_case_lower(&c, &s, device, &e));
        assert_ok(shadow_case_start(&c, device, &x, &e));
        (void)shadow_steps(&c, 1, &left, &e);
        assert_int_equal(what_came, MF_LIBRARY);
        if (strstr(report.text, words[k]) == NULL) {
            fail_msg("\"%s\" is not in \"%s\"", words[k], report.text);
        }
        shadow_bytes_clear(&left);
        shadow_case_close(&c);
        device->ops->close(device);
    }
}

/* --- a host that looks --------------------------------------------------------------------------
 */

static void peek(void *user, const mf_exec_op *x) {
    (void)user;
    if (x->block != NULL && x->op->kind == MF_OP_ROUTER_FWD) {
        printf("%g\n", (double)*(const volatile float *)x->out[1].data);
    }
}

static void a_host_that_reads_device_memory_ends(void **state) {
    const shadow_options o = {.seed = 0};
    int pipe_of[2], status = 0;
    char text[400] = "";
    (void)state;
    assert_int_equal(pipe(pipe_of), 0);
    pid_t child = fork();
    if (child == 0) {
        shadow_case c;
        shadow_bytes left = {0};
        mf_device *device = NULL;
        mf_exec_options x;
        mf_err e;
        dup2(pipe_of[1], STDERR_FILENO);
        shadow_case_options(&small, &x);
        x.after_op = peek;
        bool ok = shadow_open(&o, &device, &e) == MF_OK &&
                  shadow_case_lower(&c, &small, device, &e) == MF_OK &&
                  shadow_case_start(&c, device, &x, &e) == MF_OK &&
                  shadow_steps(&c, 1, &left, &e) == MF_OK;
        _exit(ok ? 0 : 1);
    }
    close(pipe_of[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_above(read(pipe_of[0], text, sizeof text - 1), 0);
    close(pipe_of[0]);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), SHADOW_TOUCHED);
    assert_non_null(strstr(text, "the host touched device memory"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_touch_the_bytes_that_they_are_said_to),
        cmocka_unit_test(wrong_arguments_give_other_results),
        cmocka_unit_test(values_that_a_graph_keeps_show_in_its_second_play),
        cmocka_unit_test(calls_that_a_capture_refuses_are_named),
        cmocka_unit_test(a_host_that_reads_device_memory_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
