/* profile_file.c - fitted values written back into profiles/software/NAME.json. */
#include "bench/published/fit_parameters.h"
#include "core/base/paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Replaces the number behind the next "value" after `from`; NULL when there is none. */
static char *replace_value(char *text, size_t size, char *from, double value) {
    char *at = from ? strstr(from, "\"value\":") : NULL;
    if (at == NULL) {
        return NULL;
    }
    at += strlen("\"value\":");
    while (*at == ' ') {
        at++;
    }
    char *end = at + strcspn(at, ",}");
    char number[32];
    int n = snprintf(number, sizeof number, "%.4g", value);
    size_t tail = strlen(end) + 1;
    if ((size_t)(at - text) + (size_t)n + tail > size) {
        return NULL;
    }
    memmove(at + n, end, tail);
    memcpy(at, number, (size_t)n);
    return at + n;
}

static mf_status save_profile(const mf_software *s, mf_err *e) {
    char path[512];
    enum { SIZE = 65536 };
    snprintf(path, sizeof path, "%s/software/%s.json", mf_data_dir(), s->name);
    char *text = calloc(SIZE, 1);
    FILE *f = fopen(path, "r");
    mf_status status = MF_OK;
    if (text == NULL || f == NULL || fread(text, 1, SIZE / 2, f) == 0) {
        status = mf_err_set(e, MF_IO, "%s: cannot be read", path);
        goto out;
    }
    fclose(f);
    f = NULL;
    for (int q = 0; q < pub_parameter_count; q++) {
        mf_software copy = *s;
        char *at = text;
        for (const char *part = pub_parameters[q].key; at != NULL && *part != '\0';) {
            char key[48];
            size_t n = strcspn(part, ".");
            snprintf(key, sizeof key, "\"%.*s\":", (int)n, part);
            at = strstr(at, key);
            part += part[n] == '.' ? n + 1 : n;
        }
        for (int i = 0; i < pub_parameters[q].width && at != NULL; i++) {
            at = replace_value(text, SIZE, at, *pub_parameter(&copy, &pub_parameters[q], i));
        }
        if (at == NULL) {
            status = mf_err_set(e, MF_IO, "%s: %s not found", path, pub_parameters[q].key);
            goto out;
        }
    }
    f = fopen(path, "w");
    if (f == NULL || fputs(text, f) < 0) {
        status = mf_err_set(e, MF_IO, "%s: cannot be written", path);
    }
out:
    if (f != NULL && fclose(f) != 0 && status == MF_OK) {
        status = mf_err_set(e, MF_IO, "%s: cannot be written", path);
    }
    free(text);
    return status;
}

mf_status pub_profiles_save(const pub_profiles *p, mf_err *e) {
    for (int k = 0; k < p->count; k++) {
        mf_status status = save_profile(&p->software[k], e);
        if (status != MF_OK) {
            return status;
        }
    }
    return MF_OK;
}
