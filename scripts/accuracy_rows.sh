#!/bin/sh
# accuracy_rows.sh: prints report/basis/accuracy_rows.c, of the tables of docs/ACCURACY.md. `make validate` and
# `make runs-accuracy` write it anew; tests/golden/accuracy holds it against the page.
cd "$(dirname "$0")/.." || exit 1
cat <<'HEAD'
/* accuracy_rows.c - made by scripts/accuracy_rows.sh of docs/ACCURACY.md; do not edit. */
#include "report/basis/accuracy.h"

/* clang-format off */
/* Kind, key, runs of what; how many, mean and 90th percentile of the errors, bias, worst, share
 * inside the band, in %. */
const mf_accuracy_row mf_accuracy_rows[] = {
HEAD
# Columns: | name | n | mean | median | p90 | bias | worst (row) | inside |, and of our own runs
# | name | n | mean % | bias % | worst % | ...; those are the ones that nothing was fitted to.
awk -F' *[|] *' '
    /^#/ { section = "" }
    /^# Accuracy/ { section = "SPLIT" }
    /^## By software/ { section = "SOFTWARE" }
    /^## By GPU/ { section = "GPU" }
    /^# Runs of our own/ { section = "OWN" }
    $3 !~ /^[0-9]+$/ || $3 == 0 { next }
    section == "SPLIT" && $2 == "dense, held out" { row("dense", "published runs of dense models, held out of the fit") }
    section == "SPLIT" && $2 == "MoE, all held out" { row("moe", "published runs of MoE models, held out of the fit") }
    section == "SOFTWARE" { row($2, "published runs under " $2) }
    section == "GPU" { row(tolower($2), "published runs on " $2) }
    section == "OWN" && /: held out [|]/ { own(", held out of the fit") }
    section == "OWN" && /^[|] other models, .*: all [|]/ { own(", models held out of the fit") }
    function own(which) { # "two H200: held out"
        sub(/^other models, /, "", $2)
        sub(/:.*/, "", $2)
        gpu = tolower($2)
        sub(/.* /, "", gpu)
        print_row(gpu, "runs of moefold on " $2 which, $4, "-1", $5, $6, "-1")
    }
    function row(key, of) { print_row(key, of, $4, $6, $7, $8, $9) }
    function print_row(key, of, mean, p90, bias, worst, inside) {
        worst += 0 # without the row that it is of
        worst = worst < 0 ? -worst : worst
        printf "    {MF_ACCURACY_%s, \"%s\", \"%s\",\n     %d, %g, %g, %g, %g, %g},\n", section, key, of, $3, mean, p90, bias, worst, inside
    }' docs/ACCURACY.md
cat <<'TAIL'
};
const int mf_accuracy_row_count = sizeof mf_accuracy_rows / sizeof mf_accuracy_rows[0];
TAIL
