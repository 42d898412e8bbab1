/* measure_file.h - the CSV file that measuring appends to. */
#ifndef MF_EXECUTOR_MEASURE_FILE_H
#define MF_EXECUTOR_MEASURE_FILE_H

#include "profiles/store.h"

#include <stdbool.h>

typedef struct mf_measure_file mf_measure_file;

/* Reads the keys of a file that is there, else creates it with a header. Errors: MF_INPUT with
 * position, MF_IO, MF_NOMEM. */
mf_status mf_measure_file_open(const char *path, mf_measure_file **out, mf_err *e);
/* True when the file held the point's op and dims when it was opened. */
bool mf_measure_file_has(const mf_measure_file *f, const mf_point *p);
/* Writes a line and flushes it. MF_IO. */
mf_status mf_measure_file_append(mf_measure_file *f, const mf_point *p, mf_err *e);
void mf_measure_file_close(mf_measure_file *f);

#endif
