/* routing.c - how unevenly tokens choose experts: balanced, Zipf, or counts from a file. */
#include "core/base/csv.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "simulator/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of a line; with more than MF_ROUTING_MAX_EXPERTS it says so. */
enum { MOST_FIELDS = 1 << 20 };
static const double max_count = 9e15; /* counts are exact in a double up to 2^53 */
static const double max_exponent = 8.0;

void mf_routing_init(mf_routing *r) {
    *r = (mf_routing){.kind = MF_ROUTING_BALANCED, .seed = 1};
}

static void drop_table(mf_routing *r);

void mf_routing_clear(mf_routing *r) {
    free(r->counts);
    drop_table(r);
    mf_routing_init(r);
}

/* --- files ------------------------------------------------------------------------------------ */

/* Rows as they come: the first one fixes the width. */
typedef struct table {
    mf_routing *r;
    size_t allocated;
} table;

static bool reserve(table *t, size_t count) {
    if (count <= t->allocated) {
        return true;
    }
    size_t allocated = t->allocated ? 2 * t->allocated : 1024;
    allocated = allocated < count ? count : allocated;
    double *counts = realloc(t->r->counts, allocated * sizeof *counts);
    if (counts == NULL) {
        return false;
    }
    t->r->counts = counts;
    t->allocated = allocated;
    return true;
}

static mf_status row_fault(int64_t n, int64_t experts, double sum, char *why, size_t size) {
    if (n > MF_ROUTING_MAX_EXPERTS) {
        snprintf(why, size, "more than %d experts", MF_ROUTING_MAX_EXPERTS);
    } else if (experts > 0 && n != experts) {
        snprintf(why, size, "expected %lld counts as in the first layer, got %lld",
                 (long long)experts, (long long)n);
    } else if (!(sum > 0)) {
        snprintf(why, size, "a layer needs a count above 0");
    } else {
        return MF_OK;
    }
    return MF_INPUT;
}

static mf_status json_row(table *t, const mf_json_value *row, mf_err *e) {
    mf_routing *r = t->r;
    mf_status status = mf_json_want(row, MF_JSON_ARRAY, e);
    size_t n = status == MF_OK ? mf_json_size(row) : 0;
    double sum = 0;
    if (status == MF_OK && !reserve(t, (size_t)(r->layers * r->experts) + n)) {
        return mf_err_set(e, MF_NOMEM, "routing: out of memory");
    }
    for (size_t i = 0; i < n && status == MF_OK; i++) {
        double *count = &r->counts[(size_t)(r->layers * r->experts) + i];
        status = mf_json_f64(mf_json_at(row, i), 0, max_count, count, e);
        sum += status == MF_OK ? *count : 0;
    }
    char why[96];
    if (status == MF_OK && row_fault((int64_t)n, r->experts, sum, why, sizeof why) != MF_OK) {
        return mf_json_fail(row, e, "%s", why);
    }
    r->experts = (int64_t)n;
    r->layers++;
    return status;
}

static mf_status from_json(const char *path, const char *text, size_t length, mf_routing *r,
                           mf_err *e) {
    mf_json *doc = NULL;
    table t = {.r = r};
    mf_status status = mf_json_parse(path, text, length, &doc, e);
    if (status != MF_OK) {
        return status;
    }
    const mf_json_value *root = mf_json_root(doc);
    if ((status = mf_json_want(root, MF_JSON_ARRAY, e)) == MF_OK && mf_json_size(root) == 0) {
        status = mf_json_fail(root, e, "expected one array of counts for each MoE layer");
    }
    for (size_t i = 0; status == MF_OK && i < mf_json_size(root); i++) {
        status = json_row(&t, mf_json_at(root, i), e);
    }
    mf_json_destroy(doc);
    return status;
}

/* A count as people write it, blanks around it; false: the text is none. */
static bool read_count(const char *text, double *count) {
    char number[64];
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length > 0 && (text[length - 1] == ' ' || text[length - 1] == '\t')) {
        length--;
    }
    if (length >= sizeof number) {
        return false;
    }
    memcpy(number, text, length);
    number[length] = '\0';
    return mf_text_f64(number, count) && *count >= 0 && *count <= max_count;
}

static mf_status csv_row(table *t, const mf_csv *c, mf_err *e) {
    mf_routing *r = t->r;
    const int n = mf_csv_fields(c);
    double sum = 0;
    if (!reserve(t, (size_t)(r->layers * r->experts) + (size_t)n)) {
        return mf_err_set(e, MF_NOMEM, "routing: out of memory");
    }
    for (int i = 0; i < n; i++) {
        double *count = &r->counts[r->layers * r->experts + i];
        if (!read_count(mf_csv_field(c, i), count)) {
            return mf_csv_fail(c, i, e, "expected a count of tokens, got \"%s\"",
                               mf_csv_field(c, i));
        }
        sum += *count;
    }
    char why[96];
    if (row_fault(n, r->experts, sum, why, sizeof why) != MF_OK) {
        return mf_csv_fail(c, 0, e, "%s", why);
    }
    r->experts = n;
    r->layers++;
    return MF_OK;
}

/* A line of "12,7,0,..." for each layer. */
static mf_status from_csv(const char *path, const char *text, size_t length, mf_routing *r,
                          mf_err *e) {
    table t = {.r = r};
    mf_csv *c = NULL;
    bool more = true;
    mf_status s = mf_csv_open_text(path, text, length, &c, e);
    if (s == MF_OK) {
        mf_csv_allow(c, MOST_FIELDS);
    }
    while (s == MF_OK && (s = mf_csv_next(c, &more, e)) == MF_OK && more) {
        s = csv_row(&t, c, e);
    }
    mf_csv_close(c);
    return s != MF_OK || r->layers > 0
               ? s
               : mf_err_set(e, MF_INPUT, "%s:1:1: expected one line of counts for each MoE layer",
                            path);
}

static mf_status from_file(const char *path, mf_routing *r, mf_err *e) {
    char *text = NULL;
    size_t length = 0;
    mf_status status = mf_file_load(path, MF_TEXT_MAX_BYTES, &text, &length, e);
    if (status == MF_INPUT) {
        char *end;
        const bool number = strtod(path, &end) > 0.0 && *end == '\0';
        return mf_err_prefix(e, "routing is balanced, zipf:S or a file of counts%s%.40s%s",
                             number ? " (was zipf:" : "", number ? path : "",
                             number ? " meant?)" : "");
    }
    if (status == MF_OK && text != NULL) {
        r->kind = MF_ROUTING_HISTOGRAM;
        size_t blank = strspn(text, " \t\r\n");
        status = text[blank] == '[' || text[blank] == '{' ? from_json(path, text, length, r, e)
                                                          : from_csv(path, text, length, r, e);
    }
    free(text);
    return status;
}

mf_status mf_routing_parse(const char *text, mf_routing *out, mf_err *e) {
    mf_routing_init(out);
    if (strcmp(text, "balanced") == 0) {
        return MF_OK;
    }
    if (strncmp(text, "zipf:", 5) == 0) {
        char *end;
        double s = text[5] >= '0' && text[5] <= '9' ? strtod(text + 5, &end) : -1;
        if (!(s >= 0 && s <= max_exponent) || *end != '\0') {
            return mf_err_set(e, MF_USAGE,
                              "\"%s\": expected zipf:S with an exponent S in 0..%g, as in zipf:0.8",
                              text, max_exponent);
        }
        out->kind = MF_ROUTING_ZIPF;
        out->zipf_s = s;
        return MF_OK;
    }
    mf_status status = from_file(text, out, e);
    if (status != MF_OK) {
        mf_routing_clear(out);
    }
    return status;
}

/* --- loads ------------------------------------------------------------------------------------ */

mf_status mf_routing_check(const mf_routing *r, const mf_model *m, mf_err *e) {
    if (r->kind == MF_ROUTING_HISTOGRAM && r->experts != m->experts) {
        return mf_err_set(e, MF_INPUT,
                          "expected %lld counts in a row, one for each expert of %s, got %lld",
                          (long long)m->experts, m->name, (long long)r->experts);
    }
    if (r->kind == MF_ROUTING_ZIPF && m->experts > MF_ROUTING_MAX_EXPERTS) {
        return mf_err_set(e, MF_INPUT, "routing zipf takes at most %d experts, %s has %lld",
                          MF_ROUTING_MAX_EXPERTS, m->name, (long long)m->experts);
    }
    return MF_OK;
}

static uint64_t next_random(uint64_t *state) { /* splitmix64 (Steele et al. 2014) */
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Rows that an expert works on, of its own rows; all experts together have `sum` rows. */
static double taken(const mf_routing *r, double rows, double sum, int64_t experts) {
    return r->most > 0 ? fmin(rows, r->most * sum / (double)experts) : rows;
}

/* share[i]: of all choices those of the i-th most popular expert, as 1 / (i + 1)^s, but no more
 * than one of each token, which chooses top_k different ones: what is above that goes to the
 * others. */
static void zipf_shares(double s, int64_t experts, int64_t top_k, double *share) {
    const double most = 1 / (double)top_k;
    double rest = 0, left = 1;
    for (int64_t i = 0; i < experts; i++) {
        share[i] = pow((double)i + 1.0, -s);
        rest += share[i];
    }
    for (int64_t i = 0; i < experts; i++) {
        const double weight = share[i];
        share[i] = fmin(most, left * fmin(weight / rest, 1));
        left = fmax(left - share[i], 0);
        rest -= weight;
    }
}

/* Which expert is the i-th most popular one is drawn anew for every layer. */
static void zipf_loads(const mf_routing *r, const mf_model *m, int64_t ep, int64_t layer,
                       double *load) {
    int16_t rank[MF_ROUTING_MAX_EXPERTS];
    double share[MF_ROUTING_MAX_EXPERTS];
    const int64_t experts = m->experts;
    uint64_t state = r->seed ^ ((uint64_t)layer + 1) * 0xD1342543DE82EF95u;
    for (int64_t i = 0; i < experts; i++) { /* Fisher-Yates, inside out */
        int64_t j = (int64_t)(next_random(&state) % (uint64_t)(i + 1));
        rank[i] = rank[j];
        rank[j] = (int16_t)i;
    }
    zipf_shares(r->zipf_s, experts, m->top_k, share);
    for (int64_t i = 0; i < experts; i++) {
        load[rank[i] / (experts / ep)] += taken(r, share[i], 1, experts) * (double)ep;
    }
}

void mf_routing_loads(const mf_routing *r, const mf_model *m, int64_t ep, int64_t layer,
                      double *load) {
    bool even = r == NULL || r->kind == MF_ROUTING_BALANCED || m->experts < ep || ep <= 1;
    for (int64_t k = 0; k < ep; k++) {
        load[k] = even ? 1.0 : 0.0;
    }
    if (even) {
        return;
    }
    if (r->kind == MF_ROUTING_ZIPF) {
        zipf_loads(r, m, ep, layer, load);
        return;
    }
    const double *row = &r->counts[layer % r->layers * r->experts];
    const int64_t each = m->experts / ep;
    double sum = 0;
    for (int64_t i = 0; i < r->experts; i++) {
        sum += row[i];
    }
    for (int64_t k = 0; k < ep; k++) {
        for (int64_t i = k * each; i < (k + 1) * each && i < r->experts; i++) {
            load[k] += taken(r, row[i], sum, r->experts);
        }
    }
    for (int64_t k = 0; k < ep; k++) {
        load[k] *= (double)ep / sum;
    }
}

static double max_load(const mf_routing *r, const mf_model *m, int64_t ep, int64_t layer) {
    double load[MF_ROUTING_MAX_EXPERTS], most = 1.0;
    if (ep > MF_ROUTING_MAX_EXPERTS) {
        return most;
    }
    mf_routing_loads(r, m, ep, layer, load);
    for (int64_t k = 0; k < ep; k++) {
        most = fmax(most, load[k]);
    }
    return most;
}

/* --- the largest loads, worked out before ------------------------------------------------------
 */

enum { MOST_EPS = 64 /* divisors of up to MF_ROUTING_MAX_EXPERTS: 40 */ };

struct mf_routing_table {
    mf_routing of; /* what the loads follow from */
    int64_t experts, top_k, layers;
    int eps;
    int64_t ep[MOST_EPS];
    double most[]; /* [eps][layers] */
};

static void drop_table(mf_routing *r) {
    free(r->table);
    r->table = NULL;
}

static int64_t count_moe(const mf_model *m) {
    int64_t layers = 0;
    for (int at = 0; at < mf_model_positions(m); at++) {
        layers += mf_position_is_moe(m, at);
    }
    return layers;
}

void mf_routing_tabulate(mf_routing *r, const mf_model *m) {
    const int64_t layers = count_moe(m);
    int64_t ep[MOST_EPS];
    int eps = 0;
    drop_table(r);
    if (r->kind == MF_ROUTING_BALANCED || mf_routing_check(r, m, NULL) != MF_OK || layers == 0) {
        return;
    }
    for (int64_t d = 2; d <= m->experts && eps < MOST_EPS; d++) {
        if (m->experts % d == 0) {
            ep[eps++] = d;
        }
    }
    struct mf_routing_table *t =
        malloc(sizeof *t + (size_t)eps * (size_t)layers * sizeof t->most[0]);
    if (t == NULL) {
        return;
    }
    *t = (struct mf_routing_table){
        .of = *r, .experts = m->experts, .top_k = m->top_k, .layers = layers, .eps = eps};
    for (int i = 0; i < eps; i++) {
        t->ep[i] = ep[i];
        for (int64_t layer = 0; layer < layers; layer++) {
            t->most[i * layers + layer] = max_load(r, m, ep[i], layer);
        }
    }
    r->table = t;
}

/* The place of the answer in the table; NULL: it is not there. */
static const double *find_load(const mf_routing *r, const mf_model *m, int64_t ep, int64_t layer) {
    const struct mf_routing_table *t = r != NULL ? r->table : NULL;
    if (t == NULL || t->of.kind != r->kind || t->of.zipf_s != r->zipf_s || t->of.seed != r->seed ||
        t->of.counts != r->counts || t->of.most != r->most || t->experts != m->experts ||
        t->top_k != m->top_k || layer >= t->layers) {
        return NULL;
    }
    for (int i = 0; i < t->eps; i++) {
        if (t->ep[i] == ep) {
            return &t->most[i * t->layers + layer];
        }
    }
    return NULL;
}

double mf_routing_max_load(const mf_routing *r, const mf_model *m, int64_t ep, int64_t layer) {
    const double *known = find_load(r, m, ep, layer);
    return known != NULL ? *known : max_load(r, m, ep, layer);
}
