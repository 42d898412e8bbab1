/* mechanisms.c - names of mechanisms. */
#include "planner/tuning/mechanisms.h"

#include <string.h>

static const char *const texts[] = {
#define X(name, text, meaning) [MF_MECHANISM_##name] = (text),
    MF_MECHANISM_MAP(X)
#undef X
};

static const char *const meanings[] = {
#define X(name, text, meaning) [MF_MECHANISM_##name] = (meaning),
    MF_MECHANISM_MAP(X)
#undef X
};

const char *mf_mechanism_text(mf_mechanism m) {
    return texts[m];
}

const char *mf_mechanism_meaning(mf_mechanism m) {
    return meanings[m];
}

bool mf_mechanism_parse(const char *text, mf_mechanism *out) {
    for (int i = 0; i < MF_MECHANISMS; i++) {
        if (strcmp(texts[i], text) == 0) {
            *out = (mf_mechanism)i;
            return true;
        }
    }
    return false;
}
