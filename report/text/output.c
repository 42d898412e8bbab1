/* output.c - the end of every --json, and the words that stand beside every FLOP rate. */
#include "report/text/output.h"

#include <stdlib.h>

const char mf_flops_convention[] =
    "as Megatron-LM counts: activated experts, causal half attention, logits, MTP; no router, no "
    "recomputation";

mf_status mf_output_json(mf_json_writer *w, FILE *out, mf_err *e) {
    char *text = NULL;
    size_t length = 0;
    mf_status s = mf_json_writer_finish(w, &text, &length, e);
    if (s == MF_OK) {
        fwrite(text, 1, length, out); /* the stream is checked once, at the end */
    }
    free(text);
    return s;
}

mf_status mf_output_object(FILE *out, mf_json_members_fn members, const void *user, mf_err *e) {
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    members(&w, user);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}
