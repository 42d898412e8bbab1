/* test_measure_kinds.c - every memory-bound op that lowering can emit has a kernel that measures
 * it. Needs the CUDA side, and no GPU.
 */
#include "core/program/program.h"
#include "executor/measure/measure_memory_cuda.h"

#include <stdio.h>

int main(void) {
    int passed = 0, failed = 0;
    for (int k = 0; k < MF_OP_COUNT; k++) {
        const char *name = mf_op_text((mf_op_kind)k);
        bool planned_alone = k >= MF_OP_RELU2_FWD && k <= MF_OP_INDEX_BWD; /* no kernels yet */
        if (mf_op_kind_class((mf_op_kind)k) != MF_CLASS_MEMORY || planned_alone) {
            continue;
        }
        const mf_measure_kind *rows = mf_measure_kind_of_rows(name);
        const mf_measure_kind *tokens = mf_measure_kind_of_tokens(name);
        const mf_measure_kind *kind = rows != NULL ? rows : tokens;
        bool good = (rows == NULL) != (tokens == NULL) && kind->make != NULL && kind->run != NULL &&
                    kind->row_B > 0;
        good ? passed++ : failed++;
        if (!good) {
            printf("FAIL  %s: %s\n", name,
                   kind == NULL ? "no kernel measures it" : "two kernels, or half of one");
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
