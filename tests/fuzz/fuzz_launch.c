/* fuzz_launch.c - scripts, dumps, YAML, recipes and logs of jobs: any text is read or refused. The
 * model is read once; which shipped one the widths belong to is looked for in one text of 16.
 */
#include "launch/log/log.h"
#include "launch/read/read.h"
#include "tests/fuzz/driver.h"

#include <stdlib.h>
#include <string.h>

static const mf_model *usual_model(void) {
    static mf_model m; /* read only */
    if (m.layers == 0 && mf_model_load("mixtral-8x7b", &m, NULL) != MF_OK) {
        abort();
    }
    return &m;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf_read r = {0};
    mf_read_model found;
    mf_log l = {0};
    mf_plan plan;
    mf_err e;
    char *text = malloc(size + 1);
    if (text == NULL) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    bool good = mf_read_text(&r, "text", text, NULL, &e) == MF_OK;
    good = good && mf_read_modelzoo(&r, &e) == MF_OK;
    if (good && size % 16 == 0 && mf_read_find_model(&r, "mixtral-8x7b", &found, &e) == MF_OK) {
        (void)mf_read_plan(&r, &found.model, 64, &plan, &e);
    } else if (good) {
        (void)mf_read_plan(&r, usual_model(), 64, &plan, &e);
    }
    mf_log_read(&l, text);
    mf_log_clear(&l);
    mf_read_clear(&r);
    free(text);
    return 0;
}
