/* pass_text.h - passes in words. */
#ifndef MF_PASS_TEXT_H
#define MF_PASS_TEXT_H

/* "forward", "recomputation", "input gradient", "weight gradient", "optimizer". */
const char *mf_pass_text(int pass);

#endif
