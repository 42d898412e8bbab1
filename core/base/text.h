/* text.h - small questions about words. */
#ifndef MF_CORE_BASE_TEXT_H
#define MF_CORE_BASE_TEXT_H

#include <stdbool.h>
#include <string.h>

static inline bool mf_text_ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

#endif
