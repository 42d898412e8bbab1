/* today.c - the day, from the host's clock or from SOURCE_DATE_EPOCH. */
#include "core/base/today.h"

#include "core/base/number_text.h"

#include <stdlib.h>
#include <time.h>

enum { DAY_S = 86400 };

int64_t mf_today(void) {
    const char *said = getenv("SOURCE_DATE_EPOCH");
    int64_t second;
    if (said == NULL || mf_parse_i64(said, 0, (int64_t)1 << 40, &second, NULL) != MF_OK) {
        second = (int64_t)time(NULL);
    }
    return second / DAY_S;
}

void mf_today_text(int64_t days, char out[16]) {
    const time_t second = (time_t)(days * DAY_S);
    struct tm day;
    out[0] = '\0';
    if (gmtime_r(&second, &day) != NULL && strftime(out, 16, "%Y-%m-%d", &day) == 0) {
        out[0] = '\0';
    }
}
