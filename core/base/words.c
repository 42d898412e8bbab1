/* words.c - the nearest known word, for "did you mean" texts. */
#include "core/base/json.h"

#include <ctype.h>
#include <string.h>

#define WORD_MAX 63 /* longer words have no neighbour */

/* '-' and '_' count as one character, and so do the two cases of a letter. */
static int folded(char c) {
    return c == '-' ? '_' : tolower((unsigned char)c);
}

/* Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours
 * cost 1 each. a and b hold at most WORD_MAX characters. */
static size_t distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    size_t rows[3][WORD_MAX + 1];
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= b_length; j++) {
        before[j] = last[j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        now[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            int x = folded(a[i - 1]), y = folded(b[j - 1]);
            size_t best = last[j - 1] + (x != y);
            best = last[j] + 1 < best ? last[j] + 1 : best;
            best = now[j - 1] + 1 < best ? now[j - 1] + 1 : best;
            if (i > 1 && j > 1 && x == folded(b[j - 2]) && folded(a[i - 2]) == y &&
                before[j - 2] + 1 < best) {
                best = before[j - 2] + 1;
            }
            now[j] = best;
        }
        size_t *old = before;
        before = last;
        last = now;
        now = old;
    }
    return last[b_length];
}

/* The one known word that begins so; NULL where several do, or none. */
static const char *only_longer(const char *word, size_t length, const char *const *known,
                               size_t count) {
    const char *longer = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t same = 0;
        while (same < length && folded(known[i][same]) == folded(word[same])) {
            same++;
        }
        if (same == length && longer != NULL) {
            return NULL;
        }
        longer = same == length ? known[i] : longer;
    }
    return longer;
}

const char *mf_nearest_word(const char *word, const char *const *known, size_t count) {
    size_t length = strlen(word);
    if (length == 0 || length > WORD_MAX) {
        return NULL;
    }
    const char *nearest = mf_word_elsewhere(word, known, count);
    if (nearest == NULL && length > 2) {
        nearest = only_longer(word, length, known, count);
    }
    if (nearest != NULL) {
        return nearest;
    }
    size_t least = (length + 2) / 3 + 1; /* one slip in three characters is still a slip */
    for (size_t i = 0; i < count; i++) {
        size_t known_length = strlen(known[i]);
        size_t apart = known_length > length ? known_length - length : length - known_length;
        if (known_length > WORD_MAX || apart >= least) { /* so many insertions at least */
            continue;
        }
        size_t d = distance(word, length, known[i], known_length);
        bool alike = d < length || d < known_length; /* one letter for another is not */
        if (d < least && alike) {
            least = d;
            nearest = known[i];
        }
    }
    return nearest;
}
