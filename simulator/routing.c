/* routing.c - how routed tokens spread over experts: balanced, Zipf, or counts from a file. */
#include "simulator/sim.h"

#include "profiles/csv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LAYERS 1024
#define MAX_EXPERTS 65536

void mf_routing_init(mf_routing *r) {
    memset(r, 0, sizeof *r);
    r->kind = MF_ROUTING_BALANCED;
    r->seed = 1;
}

void mf_routing_clear(mf_routing *r) {
    free(r->counts);
    mf_routing_init(r);
}

/* One row of counts behind the others; all rows have the same length. */
static mf_status add_row(mf_routing *r, const double *row, int64_t experts, mf_err *e) {
    if (r->layers == MAX_LAYERS) {
        return mf_err_set(e, MF_INPUT, "more than %d layers", MAX_LAYERS);
    }
    double *counts = realloc(r->counts, (size_t)(r->layers + 1) * (size_t)experts * sizeof *counts);
    if (counts == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    memcpy(&counts[r->layers * experts], row, (size_t)experts * sizeof *row);
    r->counts = counts;
    r->experts = experts;
    r->layers++;
    return MF_OK;
}

static mf_status read_json(const char *path, mf_routing *r, mf_err *e) {
    mf_json *doc = NULL;
    double *row = NULL;
    mf_status status = mf_json_load(path, &doc, e);
    const mf_json_value *root = doc ? mf_json_root(doc) : NULL;
    if (status == MF_OK && (status = mf_json_want(root, MF_JSON_ARRAY, e)) == MF_OK &&
        mf_json_size(root) == 0) {
        status = mf_json_fail(root, e, "expected one array of expert counts for each MoE layer");
    }
    for (size_t i = 0; status == MF_OK && i < mf_json_size(root); i++) {
        const mf_json_value *layer = mf_json_at(root, i);
        if ((status = mf_json_want(layer, MF_JSON_ARRAY, e)) != MF_OK) {
            break;
        }
        size_t n = mf_json_size(layer);
        if (n == 0 || n > MAX_EXPERTS || (i > 0 && (int64_t)n != r->experts)) {
            status = mf_json_fail(layer, e, "expected %lld counts, got %zu",
                                  i ? (long long)r->experts : 1LL, n);
            break;
        }
        double *grown = realloc(row, n * sizeof *row);
        if (grown == NULL) {
            status = mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
            break;
        }
        row = grown;
        for (size_t k = 0; status == MF_OK && k < n; k++) {
            status = mf_json_f64(mf_json_at(layer, k), 0, 1e15, &row[k], e);
        }
        if (status == MF_OK) {
            status = add_row(r, row, (int64_t)n, e);
        }
    }
    free(row);
    mf_json_destroy(doc);
    return status;
}

static mf_status read_csv(const char *path, mf_routing *r, mf_err *e) {
    mf_csv *csv = NULL;
    bool more = false;
    mf_status status = mf_csv_open(path, &csv, e);
    while (status == MF_OK && (status = mf_csv_next(csv, &more, e)) == MF_OK && more) {
        double row[MF_CSV_MAX_FIELDS];
        int n = mf_csv_fields(csv);
        if (r->layers > 0 && n != r->experts) {
            status =
                mf_csv_fail(csv, 0, e, "expected %lld counts, got %d", (long long)r->experts, n);
            break;
        }
        for (int i = 0; i < n && status == MF_OK; i++) {
            char *end = NULL;
            const char *text = mf_csv_field(csv, i);
            row[i] = strtod(text, &end);
            if (end == text || *end != '\0' || !(row[i] >= 0) || row[i] > 1e15) {
                status = mf_csv_fail(csv, i, e, "expected a count >= 0, got \"%.40s\"", text);
            }
        }
        if (status == MF_OK) {
            status = add_row(r, row, n, e);
        }
    }
    if (status == MF_OK && r->layers == 0) {
        status = mf_err_set(e, MF_INPUT,
                            "%s: expected one line of expert counts for each MoE layer", path);
    }
    mf_csv_close(csv);
    return status;
}

mf_status mf_routing_parse(const char *text, mf_routing *out, mf_err *e) {
    mf_routing_init(out);
    if (strcmp(text, "balanced") == 0) {
        return MF_OK;
    }
    if (strncmp(text, "zipf:", 5) == 0) {
        char *end = NULL;
        out->zipf_s = strtod(text + 5, &end);
        if (end == text + 5 || *end != '\0' || !(out->zipf_s >= 0) || out->zipf_s > 10) {
            return mf_err_set(e, MF_USAGE, "expected zipf:S with S between 0 and 10, got \"%.60s\"",
                              text);
        }
        out->kind = MF_ROUTING_ZIPF;
        return MF_OK;
    }
    size_t n = strlen(text);
    bool json = n > 5 && strcmp(text + n - 5, ".json") == 0;
    bool csv = n > 4 && strcmp(text + n - 4, ".csv") == 0;
    if (!json && !csv) {
        return mf_err_set(e, MF_USAGE,
                          "expected balanced, zipf:S or a file ending in .json or .csv, got "
                          "\"%.60s\"",
                          text);
    }
    mf_status status = json ? read_json(text, out, e) : read_csv(text, out, e);
    if (status != MF_OK) {
        mf_routing_clear(out);
        return status;
    }
    out->kind = MF_ROUTING_HISTOGRAM;
    return MF_OK;
}

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Share of the layer's routed rows that each expert gets. */
static void expert_shares(const mf_routing *r, int64_t experts, int64_t layer, double *share) {
    double sum = 0;
    for (int64_t x = 0; x < experts; x++) {
        share[x] = r->kind == MF_ROUTING_ZIPF ? pow((double)(x + 1), -r->zipf_s)
                                              : r->counts[(layer % r->layers) * r->experts + x];
        sum += share[x];
    }
    for (int64_t x = 0; x < experts; x++) {
        share[x] = sum > 0 ? share[x] / sum : 1.0 / (double)experts;
    }
    for (int64_t x = experts - 1; x > 0 && r->kind == MF_ROUTING_ZIPF; x--) {
        /* Which experts are hot differs from layer to layer. */
        uint64_t h = mix(r->seed * 0x9E3779B97F4A7C15u + (uint64_t)layer * 0x632BE59BD9B4E019u +
                         (uint64_t)x);
        int64_t y = (int64_t)(h % (uint64_t)(x + 1));
        double t = share[x];
        share[x] = share[y];
        share[y] = t;
    }
}

void mf_routing_loads(const mf_routing *r, const mf_model *m, int64_t ep, int64_t layer,
                      double *load) {
    for (int64_t rank = 0; rank < ep; rank++) {
        load[rank] = 1.0;
    }
    bool skewed = r != NULL && r->kind != MF_ROUTING_BALANCED && m->experts > 0;
    if (!skewed || (r->kind == MF_ROUTING_HISTOGRAM && r->experts != m->experts)) {
        return;
    }
    double *share = calloc((size_t)m->experts, sizeof *share);
    if (share == NULL) {
        return;
    }
    expert_shares(r, m->experts, layer, share);
    int64_t local = m->experts / ep;
    for (int64_t rank = 0; rank < ep; rank++) {
        load[rank] = 0;
        for (int64_t x = 0; x < local; x++) {
            load[rank] += share[rank * local + x] * (double)ep;
        }
    }
    free(share);
}

double mf_routing_max_load(const mf_routing *r, const mf_model *m, int64_t ep, int64_t layer) {
    double *load = calloc((size_t)ep, sizeof *load), most = 1.0;
    if (load != NULL) {
        mf_routing_loads(r, m, ep, layer, load);
        for (int64_t i = 0; i < ep; i++) {
            most = load[i] > most ? load[i] : most;
        }
    }
    free(load);
    return most;
}
