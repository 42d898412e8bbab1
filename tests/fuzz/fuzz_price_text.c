/* Fuzz target: any text as the price of an op. What is accepted has a finite price above its limit.
 */
#include "tests/fuzz/driver.h"

#include "costmodel/price_text.h"
#include "tests/support/cost_fixture.h"

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static mf_cost *cost; /* built once; read only */
    char text[512];
    mf_op op;
    mf_price p;
    mf_err e;
    if (cost == NULL) {
        const mf_cluster c = fixture_h200();
        const mf_software software = fixture_software();
        mf_cost_device device;
        mf_device_init(&device, &c);
        require(mf_cost_build(&c, &software, &device, 1, NULL, 0, &cost, NULL) == MF_OK);
    }
    size = size < sizeof text ? size : sizeof text - 1;
    memcpy(text, data, size);
    text[size] = '\0';
    mf_err_clear(&e);
    mf_status st = mf_cost_price_text(cost, text, &op, &p, &e);
    if (st != MF_OK) {
        require((st == MF_INPUT || st == MF_USAGE) && e.text[0] != '\0');
        return 0;
    }
    require(isfinite(p.time_s) && isfinite(p.high_s) && p.limit_s >= 0);
    require(p.limit_s <= p.low_s && p.low_s <= p.time_s && p.time_s <= p.high_s);
    return 0;
}
