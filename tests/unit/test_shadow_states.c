/* test_shadow_states.c - optimizer states that wait in host memory: while pieces of them are
 * loaded, updated and stored beside each other, no two touch the same bytes unless one waits for
 * the other; a wait that is left out is found; and nothing waits for a piece that it does not need.
 */
#include "tests/support/sampled.h"
#include "tests/support/shadow_case.h"
#include "tests/support/shadow_races.h"
#include "tests/support/test.h"

enum {
    LOADS = MF_STREAM_COUNT + 1 + MF_DEVICE_STATES_IN,
    STORES = MF_STREAM_COUNT + 1 + MF_DEVICE_STATES_OUT,
    SLOTS = 4,
    STATES = 3, /* of a piece, each one copy where all are on the host */
    MOST = 512,
    RACES = 8
};

/* All states on the host, or a part, so that some pieces are cut. */
static void all_on_host(mf_layout *l) {
    l->offload_optimizer = 1.0;
}

static void part_on_host(mf_layout *l) {
    l->offload_optimizer = 0.4;
}

/* Three fifths of the second moments, and nothing else. */
static void little_on_host(mf_layout *l) {
    l->offload_optimizer = 0.2;
}

static void bf16_on_host(mf_layout *l) {
    l->offload_optimizer = 0.7;
    l->moments_bf16 = true;
}

/* Where in a recording copies and updates of pieces are, in the order of entry. */
typedef struct pieces {
    int loads, stores, updates;
    int64_t load[MOST], store[MOST], update[MOST];
} pieces;

typedef struct states_run {
    int64_t no_order, no_await; /* calls in a step that are left out; 0: none */
    int64_t orders, awaits, races;
    pieces at;
    bool late; /* something waits for a piece that it does not need */
    char text[600];
} states_run;

static void find_pieces(const mf_device *device, pieces *out) {
    const shadow_work *w;
    const int64_t n = shadow_recorded(device, &w);
    for (int64_t i = 0; i < n; i++) {
        int *count = w[i].queue == LOADS         ? &out->loads
                     : w[i].queue == STORES      ? &out->stores
                     : w[i].kind == SHADOW_adamw ? &out->updates
                                                 : NULL;
        int64_t *list = count == &out->loads    ? out->load
                        : count == &out->stores ? out->store
                                                : out->update;
        if (count != NULL) {
            assert_below(*count, MOST);
            list[(*count)++] = i;
        }
    }
}

/* Of pieces that all travel: a load waits for stores of pieces that had its slot and for those
 * before them, an update for no load behind its own. */
static bool waits_for_too_much(const mf_device *device, const pieces *p) {
    bool much = false;
    for (int i = 0; i < p->loads; i++) {
        for (int k = 0; k < p->stores; k++) {
            const bool had_slot = k / STATES <= i / STATES - SLOTS;
            much |= !had_slot && p->store[k] < p->load[i] &&
                    shadow_ordered(device, p->store[k], p->load[i]);
        }
    }
    for (int i = 0; i < p->updates; i++) {
        for (int k = STATES * (i + 1); k < p->loads; k++) {
            much |= p->load[k] < p->update[i] && shadow_ordered(device, p->load[k], p->update[i]);
        }
    }
    return much;
}

static void run(const shadow_setup *s, states_run *r) {
    const shadow_options o = {.records = true};
    shadow_case c;
    shadow_race race[RACES];
    shadow_bytes left = {0};
    mf_device *device = NULL;
    mf_err e;
    assert_ok(shadow_open(&o, &device, &e));
    assert_ok(shadow_case_open(&c, s, device, &e));
    const int64_t orders = shadow_orders(device), awaits = shadow_awaits(device);
    shadow_drop_recording(device);
    shadow_leave_out(device, r->no_order > 0 ? orders + r->no_order : 0,
                     r->no_await > 0 ? awaits + r->no_await : 0);
    assert_ok(shadow_steps(&c, 1, &left, &e));
    assert_ok(device->ops->wait(device, &e));
    r->orders = shadow_orders(device) - orders;
    r->awaits = shadow_awaits(device) - awaits;
    r->races = shadow_find_races(device, race, RACES);
    if (r->races > 0) {
        shadow_race_text(device, &race[0], r->text, sizeof r->text);
    }
    find_pieces(device, &r->at);
    r->late = waits_for_too_much(device, &r->at);
    shadow_bytes_clear(&left);
    shadow_case_close(&c);
    device->ops->close(device);
}

static void pieces_beside_each_other_have_no_races(void **state) {
    static const shadow_setup setups[] = {
        {.family = "llama", .precision = MF_PREC_BF16, .layout = all_on_host},
        {.family = "qwen3_moe", .precision = MF_PREC_BF16, .layout = part_on_host},
        {.family = "qwen2_moe", .precision = MF_PREC_BF16, .layout = bf16_on_host, .graph = true},
        {.family = "llama", .precision = MF_PREC_FP32, .layout = part_on_host, .graph = true},
        {.family = "llama", .precision = MF_PREC_BF16, .layout = little_on_host},
    };
    (void)state;
    for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i += (size_t)case_stride(3)) {
        states_run r = {0};
        run(&setups[i], &r);
        if (r.races > 0) {
            fail_msg("setup %zu: %s", i, r.text);
        }
        assert_above(r.at.loads, SLOTS * (setups[i].layout == little_on_host ? 1 : STATES));
        assert_int_equal(r.at.stores, r.at.loads);
    }
}

static const shadow_setup whole = {
    .family = "llama", .precision = MF_PREC_BF16, .layout = all_on_host};

static void copies_run_ahead_by_all_slots(void **state) {
    states_run r = {0};
    (void)state;
    run(&whole, &r);
    assert_above(r.at.updates, 2 * SLOTS);
    assert_int_equal(r.at.loads, STATES * r.at.updates);
    assert_int_equal(r.at.stores, STATES * r.at.updates);
    assert_false(r.late);
}

/* Is an update followed by the store of its piece, before the next one? */
static bool is_stored(const pieces *p, int update) {
    const int64_t from = p->update[update];
    const int64_t to = update + 1 < p->updates ? p->update[update + 1] : INT64_MAX;
    bool stored = false;
    for (int k = 0; k < p->stores; k++) {
        stored |= p->store[k] > from && p->store[k] < to;
    }
    return stored;
}

/* No more of them together than there are for each that travels: else copies would wait. */
static void pieces_that_stay_are_updated_between_others(void **state) {
    const shadow_setup s = {.family = "llama", .precision = MF_PREC_BF16, .layout = little_on_host};
    states_run r = {0};
    int travelling = 0, together = 0, most = 0;
    (void)state;
    run(&s, &r);
    for (int i = 0; i < r.at.updates; i++) {
        const bool stored = is_stored(&r.at, i);
        travelling += stored;
        together = stored ? 0 : together + 1;
        most = together > most ? together : most;
    }
    assert_above(travelling, SLOTS);
    assert_above(r.at.updates - travelling, SLOTS);
    assert_at_most(most, (r.at.updates - 1) / travelling);
}

/* An update waits for its piece. */
static void an_update_that_comes_too_early_is_named(void **state) {
    states_run all = {0};
    (void)state;
    run(&whole, &all);
    assert_int_equal(all.awaits, all.at.updates);
    for (int64_t k = 1; k <= all.awaits; k += case_stride(7)) {
        states_run r = {.no_await = k};
        run(&whole, &r);
        assert_above(r.races, 0);
        assert_true(strstr(r.text, "copy") != NULL);
    }
}

/* Behind two calls around the batch and two before the first load, two for each piece: its store
 * waits for its update, and the load of the piece that has its slot next for its store. At the end
 * compute waits for both queues. */
static void a_copy_that_comes_too_early_is_named(void **state) {
    enum { BEFORE = 4, END = 2 };
    states_run all = {0};
    (void)state;
    run(&whole, &all);
    assert_int_equal(all.orders, BEFORE + 2 * all.at.updates + END);
    for (int64_t i = 0; i < all.at.updates; i += case_stride(7)) {
        for (int64_t k = 0; k < 2; k++) {
            states_run r = {.no_order = BEFORE + 2 * i + k + 1};
            const bool needed = k == 0 || i + SLOTS < all.at.updates;
            run(&whole, &r);
            assert_true(needed ? r.races > 0 : r.races == 0);
            assert_true(!needed || strstr(r.text, "copy") != NULL);
        }
    }
}

/* --- results ------------------------------------------------------------------------------------
 */

static void on_device(mf_layout *l) {
    l->offload_optimizer = 0.0;
}

/* The states that three steps leave, in an order of work that is drawn; seed 0: that of entry. */
static void states_of(shadow_setup s, void (*layout)(mf_layout *l), uint64_t seed,
                      shadow_bytes *out) {
    const shadow_options o = {.seed = seed};
    shadow_bytes ignored = {0};
    shadow_case c;
    mf_device *device = NULL;
    mf_err e;
    s.layout = layout;
    *out = (shadow_bytes){0};
    assert_ok(shadow_open(&o, &device, &e));
    assert_ok(shadow_case_open(&c, &s, device, &e));
    assert_ok(shadow_steps(&c, 3, &ignored, &e));
    assert_ok(shadow_keep_states(&c, out, &e));
    shadow_bytes_clear(&ignored);
    shadow_case_close(&c);
    device->ops->close(device);
}

static void pieces_in_any_order_leave_the_same_bits(void **state) {
    static const shadow_setup setups[] = {
        {.family = "llama", .precision = MF_PREC_BF16},
        {.family = "qwen3_moe", .precision = MF_PREC_BF16, .graph = true},
    };
    void (*const layouts[])(mf_layout * l) = {all_on_host, part_on_host};
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed += (uint64_t)case_stride(2)) {
        for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i++) {
            shadow_bytes here, there;
            states_of(setups[i], on_device, 0, &here);
            states_of(setups[i], layouts[(seed + i) % 2], seed, &there);
            assert_int_equal(there.size_B, here.size_B);
            assert_memory_equal(there.data, here.data, here.size_B);
            shadow_bytes_clear(&here);
            shadow_bytes_clear(&there);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_beside_each_other_have_no_races),
        cmocka_unit_test(copies_run_ahead_by_all_slots),
        cmocka_unit_test(pieces_that_stay_are_updated_between_others),
        cmocka_unit_test(an_update_that_comes_too_early_is_named),
        cmocka_unit_test(a_copy_that_comes_too_early_is_named),
        cmocka_unit_test(pieces_in_any_order_leave_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
