/* rows_internal.h - what the files that read the published table share.
 *
 * rows.c reads a row; known.c knows the names in it; recipe.c says how it ran; unsaid.c fills in
 * what its neighbours state; command.c writes it as a command line and reads that.
 */
#ifndef MF_PUBLISHED_ROWS_INTERNAL_H
#define MF_PUBLISHED_ROWS_INTERNAL_H

#include "bench/published/rows.h"

bool pub_has(const char *text, const char *part);
bool pub_starts(const char *text, const char *part);
/* The first reason stays. */
void pub_skip(pub_row *r, const char *why);

/* known.c: from the row's source, model name and id. A model of another family is skipped. */
void pub_read_software(pub_row *r, const char *source_text);
void pub_read_model(pub_row *r, const char *name, const char *id, mf_err *e);
void pub_read_reason(pub_row *r);

/* How a recipe that a source names runs: in the words of the table's columns. */
typedef struct pub_recipe {
    const char *recompute, *overlap, *dispatcher, *graph;
    bool grads_bf16;
    bool drops;      /* experts take a fixed number of rows: capacity factor 1, padded */
    unsigned traits; /* MF_TRAIT_* */
} pub_recipe;
/* known.c: of the recipe that the source's text names, all "" where it names none that was read. */
const pub_recipe *pub_named_recipe(const char *source_text);

/* recipe.c: one column each, as text. */
void pub_read_precision(pub_row *r, const char *text, const char *arch);
void pub_read_recompute(pub_row *r, const char *text);
void pub_read_offload(pub_row *r, const char *text);
void pub_read_run(pub_row *r, const char *overlap, const char *dispatcher, const char *graph);
/* What its source's recipes set without printing it. Needs precision, software and fsdp. */
void pub_read_recipe_defaults(pub_row *r);
void pub_read_cp_type(pub_row *r);

/* unsaid.c: what each row leaves out and its neighbours state. Needs all rows. Looks at no speed.
 */
void pub_read_neighbours(pub_row *rows, int count);

/* command.c: the command line of a row, and the job that it says. */
mf_status pub_read_command(pub_row *r, mf_err *e);

#endif
