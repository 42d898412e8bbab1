/* measure_points_energy.c - which points of a list energies are measured of. */
#include "core/base/crc32c.h"
#include "executor/measure/measure.h"

#include <stdlib.h>
#include <string.h>

/* What the key says, whatever the order and length of the list: the same for a point every time. */
static uint32_t draw(const mf_point *p) {
    char key[512];
    mf_point_format(p, key, sizeof key);
    return mf_crc32c(0, key, strlen(key));
}

static const char *const ops[] = {"gemm", "grouped_gemm", "attention", "memory", "copy"};
enum { OPS = sizeof ops / sizeof ops[0], LEAST = 4 /* of each */ };

/* Place among ops; OPS: it does not work on the GPU alone. */
static int op_of(const mf_point *p) {
    int i = 0;
    while (i < OPS && strcmp(ops[i], p->op) != 0) {
        i++;
    }
    return i;
}

static int drawn_order(const void *a, const void *b) {
    uint32_t p = draw(a), q = draw(b);
    return (p > q) - (p < q);
}

void mf_measure_keep_energy(mf_measure_list *l) {
    int64_t kept = 0;
    int of[OPS] = {0};
    if (l->n > 0) {
        qsort(l->point, (size_t)l->n, sizeof *l->point, drawn_order);
    }
    for (int64_t i = 0; i < l->n; i++) {
        int op = op_of(&l->point[i]);
        if (op < OPS && (of[op] < LEAST || draw(&l->point[i]) < UINT32_MAX / MF_ENERGY_SHARE)) {
            of[op]++;
            l->point[kept++] = l->point[i];
        }
    }
    l->n = kept;
}
