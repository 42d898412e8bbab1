/* read_internal.h - readers of the several kinds of text. Private to launch/read/. */
#ifndef MF_LAUNCH_READ_INTERNAL_H
#define MF_LAUNCH_READ_INTERNAL_H

#include "launch/read/read.h"
#include "launch/words/words.h"

#include <stdio.h>

/* A script of ModelZoo holds several jobs, a call of its launcher each: blanks all but the nth (0:
 * the last), so that flags and variables of one do not reach another. Returns how many there are.
 */
int mf_read_one_launch(char *text, int nth);

mf_status mf_read_shell(mf_read *r, const char *text, size_t length);

/* One line of an argument dump ("  tensor_model_parallel_size ........ 2"); false when it is none.
 */
bool mf_read_dump_line(mf_read *r, const char *line, size_t length);
/* One line of flags in YAML ("  --tensor-model-parallel-size: 2"); false when it is none. */
bool mf_read_yaml_line(mf_read *r, const char *line, size_t length);
/* Functions of Python files that set a configuration. Errors: MF_NOMEM. */
mf_status mf_read_python(mf_read *r, const char *path, const char *text, const char *recipe);
/* A text whose functions others may call. Errors: MF_NOMEM. */
mf_status mf_read_add_python(mf_read *r, const char *path, const char *text);
/* Adds the modules that the file's text imports, and those that they import, each once, as far as
 * they lie in the same checkout. Errors: MF_NOMEM. */
mf_status mf_read_imports(mf_read *r, const char *path, const char *text, mf_err *e);

#endif
