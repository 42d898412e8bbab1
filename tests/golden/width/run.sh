# Every command at 60, 80 and 120 columns: nothing wider, at most 40 lines, the verdict last; -v shows
# all of it, notes on standard error are as narrow, and files and --json are as they are without a terminal. Sanitizers
# see the narrowest.
. "${0%/*}/../driver.sh"
job="--model olmoe-1b-7b --cluster h100 --gpus 8 --global-batch 64 --seq 4096"
pins="--tp 1 --cp 1 --pp 1 --etp 1 --dispatcher fused --schedule 1f1b"

# at COLUMNS LINES ARGS...: what does not hold of the output.
at() {
    columns=$1 most=$2
    shift 2
    COLUMNS=$columns $golden_limit "$golden_binary" "$@" >"$work/out" 2>"$work/err"
    rc=$?
    awk -v columns="$columns" -v most="$most" -v rc="$rc" -v what="$1 ${2:-}" '
        length($0) > widest { widest = length($0) }
        FILENAME != ARGV[1] { NR-- } # what is noted counts no lines
        END {
            printf "%s at %d: exit %d", what, columns, rc
            if (widest > columns) printf ", %d COLUMNS WIDE", widest
            if (NR > most) printf ", %d LINES", NR
            if (NR == 0) printf ", EMPTY"
            print ""
        }' "$work/out" "$work/err" >>"$golden_transcript"
}
# shellcheck disable=SC2086 # words, not one
$golden_limit "$golden_binary" plan $job $pins --out "$work/plan.json" >"$work/.out" 2>&1
"$golden_binary" export --plan "$work/plan.json" --format bridge --force >"$work/launch.sh" 2>/dev/null
"$golden_binary" train --init tests/data/hf/mixtral --data README.md --global-batch 2 --seq 16 --steps 3 --out "$work/run" \
    >"$work/.out" 2>&1
printf ' iteration %d/ 9 | elapsed time per iteration (ms): 2800.0 | throughput per GPU (TFLOP/s/GPU): 390.0 |\n' 1 2 3 >"$work/train.log"
widths="60 80 120"
if golden_sampled; then
    widths=60
    grep -vE ' at (80|120): ' "$golden_case/expected" >"$work/expected"
    golden_case=$work
fi
for columns in $widths; do
    # shellcheck disable=SC2086
    {
        at $columns 40 plan $job $pins
        at $columns 40 simulate --plan "$work/plan.json"
        at $columns 40 fit $job
        at $columns 40 explain --plan "$work/plan.json"
        at $columns 40 tune --plan "$work/plan.json" --threads 2
        at $columns 40 capacity --models olmoe-1b-7b,qwen3-8b --clusters h100,gb200 --sizes 8..32 --global-batch 64 \
            --seq 4096 --pp 1 --cp 1 --tp 1 --tokens 1T --deadline 9d --skew zipf:0.3
        at $columns 40 import --cluster h100 "$work/launch.sh"
        at $columns 40 compare --run "$work/run" --tolerance 10000%
        at $columns 40 compare --plan "$work/plan.json" --log "$work/train.log" --tolerance 10000%
        at $columns 40 models
        at $columns 40 models deepseek-v3
        at $columns 40 clusters
        at $columns 40 clusters h100
        at $columns 40 price gemm m=4096 n=7168 k=2048 dtype=bf16 --cluster h200
        at $columns 60 help
        at $columns 400 capacity -h
    }
done
note() {
    if [ "$1" = "$2" ]; then echo "$3" >>"$golden_transcript"; else echo "NOT $3: $1, $2" >>"$golden_transcript"; fi
}
# Rows of tables are read first: none is left out, none folded, for what stands around them.
COLUMNS=80 "$golden_binary" capacity --models olmoe-1b-7b,qwen3-8b --clusters h100,gb200 --sizes 8..32 --global-batch 64 \
    --seq 4096 --pp 1 --cp 1 --tp 1 >"$work/out" 2>"$work/err"
note "$(grep -cE '^[* ] (h100|gb200) .* [0-9]+/[0-9/]+$' "$work/out")" 12 "capacity at 80 shows every row of two models in a line"
note "$(tail -n 4 "$work/out" | head -n 1)" "verdict on all models" "its verdict ends it"
note "$(grep -c '^every row   profile moefold, precision bf16' "$work/out")" 1 "what all rows share is said below them"
COLUMNS=80 "$golden_binary" plan --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --tp 1 --etp 1 --pp 2 \
    --ep 8 --schedule interleaved --effort 2 >"$work/out" 2>"$work/err"
note "$(grep -cE '^ +[1-4] .* interleaved$' "$work/out")" 4 "plan at 80 shows each plan in a line"
"$golden_binary" models >"$work/wide"
COLUMNS=80 "$golden_binary" models -v >"$work/all"
COLUMNS=80 "$golden_binary" models >"$work/short"
note "$(grep -c . "$work/all" | awk -v n="$(grep -c . "$work/wide")" '{print ($1 >= n)}')" 1 "-v shows every row"
note "$(grep -c 'more (-v)$' "$work/short")" 1 "without it a line says how many are left out"
shown=$(grep -c '^[a-z]' "$work/short")
note "$(sed -n 's/^ *\.\.\. \([0-9]*\) more (-v)$/\1/p' "$work/short" | awk -v s="$shown" '{print $1 + s}')" \
    "$(grep -c '^[a-z]' "$work/all")" "shown and left out are all"
# shellcheck disable=SC2086
note "$(COLUMNS=80 "$golden_binary" simulate --plan "$work/plan.json" --json | cksum)" \
    "$("$golden_binary" simulate --plan "$work/plan.json" --json | cksum)" "--json has no width"
note "$(COLUMNS=60 "$golden_binary" help --markdown | cksum)" "$(cksum <docs/CLI.md)" "neither has docs/CLI.md"

echo >>"$golden_transcript"
COLUMNS=60
export COLUMNS
golden_in_work
mf_masked simulate --plan plan.json
mf_masked capacity --models olmoe-1b-7b --clusters h100 --sizes 8,16 --global-batch 64 --seq 4096 --pp 1 --cp 1 --tp 1 \
    --tokens 1T --deadline 30d
golden_end
