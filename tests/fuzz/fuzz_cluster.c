/* Fuzz target: any bytes as a cluster file. What is accepted holds together: positive capacities
 * and rates, tiers from near to far, links that can be priced; a refusal is one line. */
#define MF_FUZZ_WORDS                                                                              \
    "\"extends\": \"h100\",", "\"gpu\": {", "\"tiers\": [", "{\"value\": 1, \"source\": \"x\"}",   \
        "\"gpus_per_node\": 8,", "\"nic_Gbitps\": 400,", "\"memory_GiB\": 80,",                    \
        "\"oversubscription\": 2", "null", "-1", "0", "1e999", "9007199254740993", "{", "}", "[",  \
        "]", ",", ":", "\"", "_us", "_GBps"
#include "tests/fuzz/driver.h"

#include "core/cluster/cluster.h"

#include <math.h>

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf_json *doc = NULL;
    mf_cluster c;
    mf_err e;
    mf_err_clear(&e);
    if (mf_json_parse("fuzz", (const char *)data, size, &doc, &e) != MF_OK) {
        return 0;
    }
    mf_status st = mf_cluster_from_json(doc, &c, &e);
    mf_json_destroy(doc);
    if (st != MF_OK) {
        require(st == MF_INPUT && e.text[0] != '\0' && strchr(e.text, '\n') == NULL);
        return 0;
    }
    require(c.gpu.memory_B > 0 && c.gpu.memory_Bps > 0 && c.gpu.peak_flops[MF_MATH_BF16] > 0);
    require(c.gpus_per_node > 0 && c.domain_gpus > 0 && c.domain_gpus_used <= c.domain_gpus);
    require(c.tiers > 0 && c.tiers <= MF_CLUSTER_MAX_TIERS);
    require(c.tier[c.tiers - 1].gpus == INT64_MAX && c.name[0] != '\0' && c.gpu.name[0] != '\0');
    for (int64_t span = 1; span < (1 << 20); span *= 2) {
        double Bps, latency_s;
        bool inside = mf_cluster_link(&c, span, &Bps, &latency_s);
        require(isfinite(Bps) && isfinite(latency_s) && latency_s >= 0);
        require(inside ? Bps > 0 : Bps >= 0);
    }
    return 0;
}
