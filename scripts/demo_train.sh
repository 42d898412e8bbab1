#!/bin/sh
# Trains a small Mixture-of-Experts model for about a minute on 4 CPU ranks, under a folded plan:
# attention and the shared parts on TP 2 x DP 2, the experts on EP 4 over the same ranks. TP is
# given so that there is something to fold; the rest is what `plan` finds. Takes the build folder;
# writes BUILD/demo/run. Exit 1 when the loss has not fallen.
#
# The text is that of the licences in Debian's base-files (Essential: on every Debian machine), read
# where it lies: nothing is shipped, changed or fetched, and the licences allow verbatim copies.
# Elsewhere the text is this project's own documentation.
set -eu
build=${1:-build}
steps=${2:-240}
out=$build/demo
licences=/usr/share/common-licenses
ranks=4
mkdir -p "$out"
rm -rf "$out/run"

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

data=""
for name in GPL-3 GFDL-1.3 LGPL-2.1 MPL-2.0 Apache-2.0; do
    if [ -r "$licences/$name" ]; then # weighted by size
        data=$data,$(wc -c <"$licences/$name"):$licences/$name
    fi
done
data=${data#,}
if [ -z "$data" ]; then
    cat README.md docs/*.md >"$out/text"
    data=$out/text
fi
if ! pkg-config --exists ompi-c 2>/dev/null && ! pkg-config --exists mpich 2>/dev/null ||
    ! command -v mpirun >/dev/null 2>&1; then
    echo 'This build has no MPI: the small model trains on one rank.'
    ranks=1
fi
fold="--tp 2 --zero 1 --expert-zero 1"
[ $ranks = 4 ] || fold=""
# $fold is split into its words on purpose.
run "$build/moefold" plan --model scripts/demo --cluster cpu --gpus $ranks --global-batch 8 \
    --seq 128 --precision fp32 $fold --top 1 --out "$out/plan-cpu.json"
run "$build/moefold" train --plan "$out/plan-cpu.json" --model scripts/demo --data "$data" \
    --steps "$steps" --lr 3e-3 --warmup 20 --save-every 100 --out "$out/run" >"$out/train.log" || {
    cat "$out/train.log"
    exit 1
}
sed -n '/^\$/p; /^ranks/,/^stream/p' "$out/train.log"
grep '^step ' "$out/train.log" | awk 'NR == 1 || NR % 20 == 0'
sed -n '/^mean step/,$p' "$out/train.log"
sed 's/.*"lm_loss": \([0-9.e+-]*\),.*/\1/' "$out/run/metrics.jsonl" | awk '
    { loss[NR] = $1 }
    END {
        n = NR < 20 ? 1 : 10
        for (i = 1; i <= n; i++) { first += loss[i] / n; last += loss[NR - n + i] / n }
        printf "\nloss        %.3f over the first %d steps, %.3f over the last: ", first, n, last
        print last < 0.8 * first ? "it falls" : "IT DOES NOT FALL"
        exit !(last < 0.8 * first)
    }'
# On a machine that others keep busy steps may take longer than that: the demo has not failed then.
run "$build/moefold" compare --run "$out/run" --tolerance 30% --top 6 || [ $? = 4 ]
