#!/bin/sh
# fuzz.sh BUILD [NAME...]: fuzzes every parser (or those named) with libFuzzer, FUZZ_JOBS (1) at a time, FUZZ_RUNS
# executions each (10,000,000) or FUZZ_SECONDS of processor time, whichever comes first (0: no limit of time). What
# it finds to be new goes to BUILD/corpus/NAME, from where the next run goes on; inputs that fail are left in
# BUILD/failed. One line each: executions, processor time, edges reached, inputs kept; of one that fails its input
# and what was said of it, too. Exit 1 when anything failed. An execution of FUZZ_HANG (20) seconds hangs.
set -u
build=$1
shift
if [ "${1:-}" != --one ]; then
    mkdir -p "$build/failed" "$build/tmp"
    for program in "$build"/fuzz/fuzz_*; do
        name=$(basename "$program")
        case $name in *.d) continue ;; esac
        case " $* " in "  " | *" $name "*) echo "$name" ;; esac
    done | xargs -P "${FUZZ_JOBS:-1}" -I{} sh "$0" "$build" --one {} || exit 1
    exit 0
fi
name=$2 corpus=$build/corpus/$2 log=$build/$2.log
mkdir -p "$corpus"
# In memory where the system has such a place; libFuzzer may leave without cleaning up.
MF_FUZZ_FOLDER=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)" mf-fuzz-XXXXXX) || exit 1
export MF_FUZZ_FOLDER
trap 'rm -rf "$MF_FUZZ_FOLDER"' EXIT
# Its own time: beside others it may wait for a core for long.
times=$build/tmp/$name.times
MF_FUZZ_CPU_SECONDS=${FUZZ_SECONDS:-0} TMPDIR=$build/tmp "$build/fuzz/$name" -runs="${FUZZ_RUNS:-10000000}" \
    -max_len=8192 -timeout="${FUZZ_HANG:-20}" -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$build/failed/$name-" "$corpus" "tests/fuzz/$name.seeds" >"$log" 2>&1 </dev/null
rc=$?
times >"$times"
done=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
took=$(awk 'NR == 2 { gsub(/[ms]/, " "); print 60 * ($1 + $3) + $2 + $4 }' "$times")
printf '%-22s %10s executions %6.1f s %6s edges %5s inputs%s\n' "${name#fuzz_}" "${done:-0}" "${took:-0}" \
    "${edges:-?}" "$(find "$corpus" -type f | wc -l)" "$([ "$rc" = 0 ] || echo "  FAILED (exit $rc): see $log")"
[ "$rc" = 0 ] && exit 0
tail -n 40 "$log" | sed "s/^/    /"
input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
if [ -f "$input" ]; then
    echo "fuzz: $name fails on $input, again by: $build/fuzz/$name $input"
    od -A d -c "$input" | head -n 40
fi
exit 1
