#!/bin/sh
# fuzz.sh BUILD [NAME...]: fuzzes every parser (or those named) with libFuzzer, one after another, FUZZ_RUNS
# executions each (10,000,000) or FUZZ_SECONDS, whichever comes first (0: no limit of time). What it finds to be
# new goes to BUILD/corpus/NAME, from where the next run goes on; inputs that fail are left in BUILD/failed.
# One line each: executions, edges reached, inputs kept. Exit 1 when anything failed.
set -u
build=$1
shift
runs=${FUZZ_RUNS:-10000000} seconds=${FUZZ_SECONDS:-0}
failed=0
mkdir -p "$build/failed"
for program in "$build"/fuzz/fuzz_*; do
    name=$(basename "$program")
    case $name in *.d) continue ;; esac
    case " $* " in "  " | *" $name "*) ;; *) continue ;; esac
    corpus=$build/corpus/$name log=$build/$name.log
    mkdir -p "$corpus" "$build/tmp"
    TMPDIR=$build/tmp "$program" -runs="$runs" -max_total_time="$seconds" -max_len=8192 -timeout=20 \
        -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$build/failed/$name-" \
        "$corpus" "tests/fuzz/$name.seeds" >"$log" 2>&1 </dev/null
    rc=$?
    done=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    [ "$rc" = 0 ] || failed=1
    printf '%-26s %10s executions  %6s/s  %6s edges  %5s inputs%s\n' "${name#fuzz_}" "${done:-0}" "${rate:-?}" \
        "${edges:-?}" "$(find "$corpus" -type f | wc -l)" "$([ "$rc" = 0 ] || echo "  FAILED (exit $rc): see $log")"
done
exit $failed
