# The fastest plan of a small problem, its file read again, threads, Ctrl-C, and nowhere to fit.
. "${0%/*}/../driver.sh"
job="--model olmoe-1b-7b --cluster h100 --gpus 8 --global-batch 64 --seq 4096"
pins="--tp 1 --cp 1 --etp 1 --dispatcher fused --schedule 1f1b"
# shellcheck disable=SC2086 # words, not one
mf_lines '^(olmoe|step time|memory N|plans|search|proof|ended|runners-up)' plan $job $pins --top 2 --out "$work/plan.json"

# What was found is shown even where it cannot be saved, and no command rests on it then.
# shellcheck disable=SC2086
mf_lines '^(olmoe|step time|!)|next:' plan $job $pins --effort 1 --out "$work/none/plan.json"
# shellcheck disable=SC2086
mf_lines '^(olmoe|step time|!)|next:|^ *plan.json' plan $job $pins --effort 1 --out /dev/full
# The folder of a report has the plan, written once.
mkdir "$work/page" && ln -s /dev/stdout "$work/page/plan.json"
# shellcheck disable=SC2086
"$golden_binary" plan $job $pins --effort 1 -o "$work/page" 2>/dev/null | grep -c '^  "assignment"' >>"$golden_transcript"

# notes what held, or not, in the transcript
note() {
    if [ "$1" = "$2" ]; then echo "$3" >>"$golden_transcript"; else echo "NOT $3: $1, $2" >>"$golden_transcript"; fi
}
first_step() { # of a plan's or a simulation's JSON
    $golden_limit "$golden_binary" "$@" --json | sed -n 's/.*"step_time_s": *\([-0-9.e]*\).*/\1/p' | head -n 1
}
# shellcheck disable=SC2086
note "$(first_step plan $job $pins)" "$(first_step simulate --plan "$work/plan.json")" \
    "simulate --plan gives the step time of the search"
# shellcheck disable=SC2086
$golden_limit "$golden_binary" plan $job $pins --threads 3 --out "$work/again.json" >"$work/.out" 2>&1
note "$(cksum <"$work/plan.json")" "$(cksum <"$work/again.json")" "three threads write the same bytes"

# A search that would go on for long, interrupted once it has a plan. The limit passes the signal on.
: >"$work/err" # here from the start: the shell that runs the search may open it after the first look
timeout --foreground -s KILL 300 "$golden_binary" plan --model mixtral-8x22b --cluster h100 --gpus 128 \
    --global-batch 256 --seq 4096 --gap 1e-9 --effort 100000 --progress -o "$work/best" >"$work/out" 2>"$work/err" &
search=$!
tries=0
until grep -q 'best' "$work/err" || ! kill -0 $search 2>/dev/null || [ $tries -ge 600 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
kill -INT $search
wait $search
note "$?" 130 "interrupted: exit 130"
note "$(grep -c '^proof.*interrupted' "$work/out")" 1 "the best so far was printed"
note "$(tail -n 1 "$work/err")" "moefold plan: interrupted: the best plan so far was printed" "and said to be"
note "$(grep -c '"interrupted": *true' "$work/best/report.json")" 1 "a report of it is in the folder, and says so"
note "$(grep -c '<b>Interrupted</b>' "$work/best/report.html")" 1 "as the page does"
# A table likewise: rows that are done stand in its folder, too.
: >"$work/err"
timeout --foreground -s KILL 300 "$golden_binary" capacity --models olmoe-1b-7b,mixtral-8x22b --clusters h100 \
    --sizes 128 --global-batch 256 --seq 4096 --gap 1e-9 --effort 100000 --threads 1 --progress \
    -o "$work/table" >"$work/out" 2>"$work/err" &
search=$!
tries=0
until grep -q 'mixtral' "$work/err" || ! kill -0 $search 2>/dev/null || [ $tries -ge 600 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
kill -INT $search
wait $search
note "$?" 130 "capacity, interrupted: exit 130"
note "$(grep -c '^"olmoe-1b-7b"' "$work/table/candidates.csv")" 1 "the row that was done is in the folder"
note "$(grep -c '"interrupted": *true' "$work/table/report.json")" 1 "and the report says so"

echo >>"$golden_transcript"
mf_masked plan --model mixtral-8x22b --cluster h100 --gpus 2 --global-batch 64 --seq 4096
mf_lines '(best|gap|lower_bound_s|smallest_gpus)"' plan --model mixtral-8x22b --cluster h100 --gpus 2 --global-batch 64 --seq 4096 --json
mf plan --model mixtral-8x22b --cluster h100 --gpus 2 --global-batch 64 --seq 4096 --tp 3
mf plan --model mixtral-8x22b --cluster h100 --gpus 2 --global-batch 64 --seq 4096 --gap -1
golden_end
