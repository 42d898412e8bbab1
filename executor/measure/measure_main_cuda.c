/* measure_main_cuda.c - moefold-measure: reads points from standard input, measures them and writes
 * readings to standard output, in the lines of executor/measure/measure_worker.h. --shared: also
 * while another process uses the GPU; --energy: energies, too. `moefold profile` starts it; by
 * hand: echo '0     gemm dtype=bf16 m=4096 n=4096 k=4096' | moefold-measure */
#include "executor/measure/measure.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 2048 };

static void measured(int64_t index, const mf_measure_reading *r, void *user) {
    const int64_t *number = user;
    if (r->energy_J > 0) {
        printf("energy\t%" PRId64 "\t%.9g\t%.9g\n", number[index], r->energy_J, r->sustained_s);
    }
    printf("point\t%" PRId64 "\t%.9g\t%.9g\t%.9g\t%" PRId64 "\t%d\t%d%s%s\n", number[index],
           r->time_s, r->low_s, r->high_s, r->samples, r->sm_MHz, r->temperature_C,
           r->choice.text[0] != '\0' ? "\t" : "", r->choice.text);
    fflush(stdout);
}

static void refused(int64_t index, const char *why, void *user) {
    const int64_t *number = user;
    printf("refused\t%" PRId64 "\t%.400s\n", number[index], why);
    fflush(stdout);
}

/* Grown to `allocated` elements of `size` bytes; NULL without memory, the old ones left alone. */
static void *grown(void *old, int64_t allocated, size_t size) {
    return realloc(old, (size_t)allocated * size);
}

/* Lines "NUMBER <tab> KEY <tab> CHOICE", the last part of which may be missing; *number and *choice
 * [l->n] to be freed. */
static mf_status read_list(mf_measure_list *l, int64_t **number, mf_measure_choice **choice,
                           mf_err *e) {
    char line[LINE];
    int64_t allocated = 0;
    while (fgets(line, sizeof line, stdin) != NULL) {
        char *key = NULL;
        int64_t n = strtoll(line, &key, 10), before = l->n;
        line[strcspn(line, "\r\n")] = '\0';
        key += strspn(key, "\t ");
        char *tab = strchr(key, '\t');
        if (tab != NULL) {
            *tab = '\0';
        }
        mf_status s = mf_measure_list_add(l, key, false, "", e);
        if (s != MF_OK) {
            return s;
        }
        if (l->n == before) {
            continue; /* said twice */
        }
        if (l->n > allocated) {
            allocated = allocated > 0 ? 2 * allocated : 1024;
            int64_t *numbers = grown(*number, allocated, sizeof *numbers);
            *number = numbers != NULL ? numbers : *number;
            mf_measure_choice *choices = grown(*choice, allocated, sizeof *choices);
            *choice = choices != NULL ? choices : *choice;
            if (numbers == NULL || choices == NULL) {
                return mf_err_set(e, MF_NOMEM, "measuring: out of memory");
            }
        }
        (*number)[before] = n;
        snprintf((*choice)[before].text, sizeof(*choice)->text, "%s", tab != NULL ? tab + 1 : "");
    }
    return MF_OK;
}

static bool said(int argc, char **argv, const char *word) {
    bool there = false;
    for (int i = 1; i < argc; i++) {
        there = there || strcmp(argv[i], word) == 0;
    }
    return there;
}

int main(int argc, char **argv) {
    mf_measure_machine machine;
    mf_measure_list l = {NULL, 0, 0};
    int64_t *number = NULL;
    mf_measure_choice *choice = NULL;
    char line[LINE];
    mf_err e;
    mf_err_clear(&e);
    mf_status s = mf_measure_look(&machine, &e);
    if (s == MF_OK) {
        mf_measure_machine_format(&machine, line, sizeof line);
        puts(line);
        fflush(stdout);
        s = read_list(&l, &number, &choice, &e);
    }
    const mf_measure_options o = {.seed = 1,
                                  .shared = said(argc, argv, "--shared"),
                                  .energy = said(argc, argv, "--energy"),
                                  .choice = choice,
                                  .measured = measured,
                                  .refused = refused,
                                  .user = number};
    bool single = false;
    for (int64_t i = 0; i < l.n; i++) {
        single = single || !mf_measure_op_is_collective(l.point[i].op);
    }
    s = s == MF_OK ? mf_measure_collectives(&o, &l, &e) : s;
    s = s == MF_OK && single ? mf_measure_gpu(&o, &l, &e) : s;
    if (s == MF_OK) {
        puts("end");
    } else {
        printf("error\t%d\t%s\n", mf_status_exit_code(s), e.text);
    }
    mf_measure_list_clear(&l);
    free(number);
    free(choice);
    return mf_status_exit_code(s);
}
