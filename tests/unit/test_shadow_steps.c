/* test_shadow_steps.c - training steps on a device that behaves as a GPU
 * (tests/support/shadow_device.h) leave what they leave on the CPU, to the bit. */
#include "core/base/clock.h"
#include "core/program/pass_text.h"
#include "executor/checkpoint/checkpoint.h"
#include "tests/support/sampled.h"
#include "tests/support/shadow_case.h"
#include "tests/support/shadow_hold.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <time.h>

static const char *const families[] = {"llama", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3"};
enum { FAMILIES = 5, STEPS = 2 };
static int64_t steps = STEPS;

/* The same run on the CPU and on the shadow. */
static void compare(const shadow_setup *s, const shadow_options *o) {
    shadow_bytes want = {0}, got = {0};
    shadow_twin twin;
    mf_device *shadow = NULL;
    mf_err e = {.text = ""};
    char what[160];
    snprintf(what, sizeof what, "%s %s mbs %d recompute %x offload %x%s", s->family,
             mf_precision_text(s->precision), (int)s->mbs, s->recompute, s->offload,
             s->graph ? " graph" : "");
    mf_status status = shadow_train(s, shadow_twin_open(o, &twin), steps, &want, &e);
    status = status == MF_OK ? shadow_open(o, &shadow, &e) : status;
    if (shadow != NULL) {
        status = shadow_train(s, shadow, steps, &got, &e);
        shadow->ops->close(shadow);
    }
    status = status == MF_OK ? shadow_hold(&want, &got, &e) : status;
    shadow_bytes_clear(&want);
    shadow_bytes_clear(&got);
    if (status != MF_OK) {
        fail_msg("%s: %s", what, e.text);
    }
}

static void steps_leave_the_bits_of_the_cpu(void **state) {
    (void)state;
    for (int f = 0; f < 2 * FAMILIES; f += case_stride(5)) {
        const shadow_setup s = {.family = families[f % FAMILIES],
                                .precision = f < FAMILIES ? MF_PREC_FP32 : MF_PREC_BF16,
                                .aux_coef = 0.02,
                                .z_coef = 1e-3};
        const shadow_options o = {.seed = (uint64_t)f};
        compare(&s, &o);
    }
}

/* LayerNorm and the sparse mixer; factors; chunks, norms without weights, probabilities on the
 * experts' input; queries of low rank; norms that multiply by 1 + weight. */
static void steps_with_ops_of_one_family_leave_the_bits_of_the_cpu(void **state) {
    static const char *const others[] = {"phimoe", "granitemoe", "llama4_text", "step3_text",
                                         "step3p5"};
    (void)state;
    for (size_t f = 0; f < sizeof others / sizeof others[0]; f += (size_t)case_stride(3)) {
        const shadow_setup s = {.family = others[f],
                                .precision = MF_PREC_BF16,
                                .recompute = f % 2 == 0 ? MF_RECOMPUTE_LAYER : 0,
                                .aux_coef = 0.02,
                                .z_coef = 1e-3,
                                .graph = true};
        const shadow_options o = {.seed = (uint64_t)f, .fused_sums = true, .one_type = true};
        compare(&s, &o);
    }
}

/* What memory choices, routers' losses, dropping and MTP add to a step. */
static void choices_of_experts_are_those_of_the_cpu(void **state) {
    static const shadow_setup kinds[] = {
        {.family = "deepseek_v3", .recompute = MF_RECOMPUTE_LAYER, .mbs = 1},
        {.family = "qwen2_moe",
         .recompute = MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT | MF_RECOMPUTE_CORE_ATTN |
                      MF_RECOMPUTE_EXPERTS | MF_RECOMPUTE_SHARED_EXPERT},
        {.family = "mixtral", .recompute = MF_RECOMPUTE_MOE, .mbs = 4},
        {.family = "qwen3_moe",
         .offload = MF_OFFLOAD_INPUT | MF_OFFLOAD_QKV | MF_OFFLOAD_EXPERT_IN},
        {.family = "mixtral", .capacity = 1.0, .aux_coef = 0.02},
        {.family = "deepseek_v3", .mtp = true},
        {.family = "qwen3_moe", .force = true},
        {.family = "olmoe", .aux_coef = 0.02},
    };
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i += (size_t)case_stride(3)) {
        shadow_setup s = kinds[i];
        shadow_options o = {.seed = i};
        s.precision = MF_PREC_BF16;
        compare(&s, &o);
        s.graph = o.fused_sums = o.one_type = true;
        compare(&s, &o);
    }
}

/* One capture, ten plays: learning rates, batches and counts are those of each step. */
static void played_graphs_leave_the_bits_of_steps(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f += case_stride(FAMILIES)) {
        shadow_setup s = {.family = families[f], .precision = MF_PREC_BF16, .graph = true};
        const shadow_options o = {.seed = 0};
        steps = case_count(10, 4);
        compare(&s, &o);
        steps = STEPS;
    }
}

/* A copy of all states stands while a step changes them, until it is released. */
static mf_status stage(shadow_case *c, bool *stands, bool *goes, mf_err *e) {
    shadow_bytes before = {0}, staged = {0}, behind = {0}, all = {0};
    const mf_params *list = mf_exec_params(c->exec);
    mf_status status = mf_exec_state_stage(c->exec, e);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < list->count && status == MF_OK; i++) {
            mf_exec_state s = {0};
            status = mf_exec_state_of(c->exec, i, &s, e);
            for (int k = 0; k < MF_EXEC_STATES && status == MF_OK; k++) {
                shadow_bytes_add(turn ? &staged : &before, s.value[k],
                                 (size_t)s.count * mf_kernel_dtype_B(s.dtype[k]));
            }
        }
        status = status == MF_OK && turn == 0 ? shadow_steps(c, 2, &all, e) : status;
    }
    mf_exec_state_release(c->exec);
    status = status == MF_OK ? shadow_keep_states(c, &behind, e) : status;
    *stands = before.size_B > 0 && before.size_B == staged.size_B &&
              memcmp(before.data, staged.data, before.size_B) == 0;
    *goes = behind.size_B >= before.size_B && before.size_B > 0 &&
            memcmp(before.data, behind.data, before.size_B) != 0;
    shadow_bytes_clear(&before);
    shadow_bytes_clear(&staged);
    shadow_bytes_clear(&behind);
    shadow_bytes_clear(&all);
    return status;
}

static void a_copy_of_the_states_stands_while_steps_go_on(void **state) {
    (void)state;
    const shadow_setup s = {.family = "deepseek_v3", .precision = MF_PREC_BF16};
    const shadow_options o = {.seed = 6};
    for (int on_shadow = 0; on_shadow < 2; on_shadow++) {
        shadow_case c = {0};
        mf_device *device = mf_device_cpu();
        mf_err e = {.text = ""};
        bool stands = false, goes = false;
        mf_status status = on_shadow ? shadow_open(&o, &device, &e) : MF_OK;
        status = status == MF_OK ? shadow_case_open(&c, &s, device, &e) : status;
        shadow_bytes all = {0};
        status = status == MF_OK ? shadow_steps(&c, 1, &all, &e) : status;
        status = status == MF_OK ? stage(&c, &stands, &goes, &e) : status;
        shadow_bytes_clear(&all);
        shadow_case_close(&c);
        if (on_shadow) {
            device->ops->close(device);
        }
        if (status != MF_OK || !stands || !goes) {
            fail_msg("%s: %s%s %s", on_shadow ? "shadow" : "CPU", e.text,
                     stands ? "" : "it changed", goes ? "" : "it stayed");
        }
    }
}

/* Two steps ahead of the host, which asks for the second long after the device is done with it. */
static mf_status ask_late(shadow_case *c, double took_s[2], double *asked_s, mf_err *e) {
    const mf_exec_batch batch = {c->sample, c};
    const struct timespec late = {.tv_nsec = 200000000};
    mf_exec_result r[2] = {0};
    const double began_s = mf_clock_s();
    mf_status status = mf_exec_step_begin(c->exec, &batch, 1e-3, e);
    status = status == MF_OK ? mf_exec_step_begin(c->exec, &batch, 1e-4, e) : status;
    status = status == MF_OK ? mf_exec_step_finish(c->exec, &r[0], e) : status;
    nanosleep(&late, NULL);
    status = status == MF_OK ? mf_exec_step_finish(c->exec, &r[1], e) : status;
    *asked_s = mf_clock_s() - began_s;
    took_s[0] = r[0].took_s;
    took_s[1] = r[1].took_s;
    return status;
}

static void a_step_takes_what_the_device_took_however_late_it_is_asked(void **state) {
    (void)state;
    for (int graph = 0; graph < 2; graph++) {
        const shadow_setup s = {
            .family = "mixtral", .precision = MF_PREC_BF16, .graph = graph != 0};
        const shadow_options o = {.seed = 9, .eager = true};
        double took_s[2] = {0}, asked_s = 0;
        shadow_case c = {0};
        mf_device *device = NULL;
        mf_err e = {.text = ""};
        mf_status status = shadow_open(&o, &device, &e);
        status = status == MF_OK ? shadow_case_open(&c, &s, device, &e) : status;
        status = status == MF_OK ? ask_late(&c, took_s, &asked_s, &e) : status;
        shadow_case_close(&c);
        device->ops->close(device);
        if (status != MF_OK) {
            fail_msg("%s", e.text);
        }
        assert_above(took_s[0], 0);
        assert_above(took_s[1], 0);
        assert_at_most(took_s[0] + took_s[1], asked_s - 0.2);
    }
}

/* Two saves of one moment, the second written while a step changes all that it saves. */
static mf_status save_twice(const shadow_setup *s, mf_device *device, const char *folder,
                            mf_err *e) {
    const mf_train_progress progress = {.step = 1, .samples = 4, .seq = 1};
    shadow_case c;
    shadow_bytes all = {0};
    mf_checkpoint_saving *w = NULL;
    bool complete = false;
    char still[128], beside[128];
    snprintf(still, sizeof still, "%s/still", folder);
    snprintf(beside, sizeof beside, "%s/beside", folder);
    mf_status status = shadow_case_open(&c, s, device, e);
    status = status == MF_OK ? shadow_steps(&c, 1, &all, e) : status;
    status = status == MF_OK ? mf_checkpoint_save(c.exec, still, &progress, 0, e) : status;
    status =
        status == MF_OK ? mf_checkpoint_begin(c.exec, beside, &progress, 0, true, &w, e) : status;
    status = status == MF_OK ? shadow_steps(&c, 2, &all, e) : status;
    while (status == MF_OK && !complete) {
        status = mf_checkpoint_advance(w, &complete, e);
    }
    mf_checkpoint_saving_destroy(w);
    shadow_case_close(&c);
    shadow_bytes_clear(&all);
    return status;
}

static void a_save_beside_a_step_is_of_the_moment_before(void **state) {
    (void)state;
    const shadow_setup s = {.family = "deepseek_v3", .precision = MF_PREC_BF16};
    const shadow_options o = {.seed = 5};
    for (int on_shadow = 0; on_shadow < 2; on_shadow++) {
        char folder[] = "/tmp/mf-beside-XXXXXX", command[200];
        mf_device *device = mf_device_cpu();
        mf_err e = {.text = ""};
        assert_non_null(mkdtemp(folder));
        mf_status status = on_shadow ? shadow_open(&o, &device, &e) : MF_OK;
        status = status == MF_OK ? save_twice(&s, device, folder, &e) : status;
        if (status != MF_OK) {
            fail_msg("%s: %s", on_shadow ? "shadow" : "CPU", e.text);
        }
        if (on_shadow) {
            device->ops->close(device);
        }
        snprintf(command, sizeof command, "test -f %s/still/step-00000001/manifest.json", folder);
        assert_int_equal(system(command), 0);
        snprintf(command, sizeof command, "diff -r %s/still %s/beside", folder, folder);
        assert_int_equal(system(command), 0);
        snprintf(command, sizeof command, "rm -r %s", folder);
        assert_int_equal(system(command), 0);
    }
}

/* What the host hears while an op of compute runs. */
typedef struct heard {
    const shadow_case *c;
    int64_t looks;
    bool others; /* were named instead */
} heard;

static void look(void *user, const mf_exec_op *op) {
    heard *t = user;
    mf_err e = {.text = ""};
    char text[256], want[64];
    if (t->c->exec == NULL || op->block == NULL || op->op->stream != MF_STREAM_COMPUTE) {
        return;
    }
    assert_int_equal(t->c->device->ops->wait(t->c->device, &e), MF_OK);
    mf_exec_progress_text(t->c->exec, mf_exec_progress(t->c->exec), text, sizeof text);
    snprintf(want, sizeof want, "%s (%s) of ", op->op->name, mf_pass_text(op->op->pass));
    t->others = t->others || strstr(text, want) == NULL;
    t->looks++;
}

static void run_listening(double word_s, heard *t, mf_err *e) {
    const shadow_setup s = {.family = "mixtral", .precision = MF_PREC_BF16, .aux_coef = 0.02};
    const shadow_options o = {.seed = 3};
    shadow_bytes bytes = {0};
    shadow_case c;
    mf_device *shadow = NULL;
    mf_exec_options more;
    shadow_case_options(&s, &more);
    more.word_s = word_s;
    more.after_op = look;
    more.user = t;
    *t = (heard){.c = &c};
    mf_status status = shadow_open(&o, &shadow, e);
    status = status == MF_OK ? shadow_case_lower(&c, &s, shadow, e) : status;
    status = status == MF_OK ? shadow_case_start(&c, shadow, &more, e) : status;
    status = status == MF_OK ? shadow_steps(&c, 1, &bytes, e) : status;
    assert_int_equal(status, MF_OK);
    shadow_case_close(&c);
    shadow_bytes_clear(&bytes);
    shadow->ops->close(shadow);
}

static void a_device_that_stands_still_is_in_the_op_that_the_host_last_heard_of(void **state) {
    mf_err e = {.text = ""};
    heard t;
    (void)state;
    run_listening(1e-15, &t, &e); /* each op is worth a word */
    assert_above(t.looks, 100);
    assert_false(t.others);
    run_listening(1.0, &t, &e); /* none is: the block before is all that is known */
    assert_true(t.others);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_stands_still_is_in_the_op_that_the_host_last_heard_of),
        cmocka_unit_test(steps_leave_the_bits_of_the_cpu),
        cmocka_unit_test(steps_with_ops_of_one_family_leave_the_bits_of_the_cpu),
        cmocka_unit_test(choices_of_experts_are_those_of_the_cpu),
        cmocka_unit_test(played_graphs_leave_the_bits_of_steps),
        cmocka_unit_test(a_step_takes_what_the_device_took_however_late_it_is_asked),
        cmocka_unit_test(a_copy_of_the_states_stands_while_steps_go_on),
        cmocka_unit_test(a_save_beside_a_step_is_of_the_moment_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
