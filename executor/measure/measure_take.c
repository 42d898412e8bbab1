/* measure_take.c - every reading into the store. */
#include "executor/measure/measure_take.h"

#include "executor/measure/measure_store.h"

#include <time.h>

mf_status mf_measure_take(mf_measure_worker *w, mf_measure_list *l, mf_store *store,
                          const mf_measure_machine *machine, mf_measure_progress_fn progress,
                          void *user, int64_t *measured, int64_t *refused, mf_err *e) {
    char date[16];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &utc));
    for (;;) {
        mf_measure_word word;
        mf_measure_reading r;
        int64_t index;
        mf_status s = mf_measure_worker_next(w, &word, &index, &r, e);
        if (s != MF_OK || word == MF_WORD_END) {
            return s;
        }
        mf_point *point = &l->point[index];
        if (word == MF_WORD_REFUSED) {
            ++*refused;
        } else {
            s = mf_measure_store_reading(store, point, machine, date, &r, e);
            if (s != MF_OK) {
                return s;
            }
            ++*measured;
        }
        progress(user, *measured + *refused, l->n, point->op);
    }
}
