/* pass_text.c - passes in words. */
#include "core/program/pass_text.h"

#include "core/program/program.h"

const char *mf_pass_text(int pass) {
    return pass == MF_PASS_F   ? "forward"
           : pass == MF_PASS_R ? "recomputation"
           : pass == MF_PASS_B ? "input gradient"
           : pass == MF_PASS_W ? "weight gradient"
                               : "optimizer";
}
