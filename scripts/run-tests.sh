#!/bin/sh
# Runs every test program under BUILD/tests and BUILD/fuzz, then the golden cases; prints one line
# a program and ends with "N passed, N failed, N skipped". Exit 1 when anything failed.
# A program may print "MF_SKIPPED n reason"; its cmocka summary is counted otherwise. One that runs
# for longer than MF_TEST_SECONDS (1200) hangs: it is ended with all that it started, exit 124 or 137.
set -u
build=$1
limit=${MF_TEST_SECONDS:-1200}
passed=0 failed=0 skipped=0
log=$(mktemp)
running=""
trap 'rm -f "$log"' EXIT
trap '[ -z "$running" ] || kill "$running"; exit 130' INT TERM
# In a process group of its own, so that ranks go with their program; hence the wait, which a
# Ctrl-C reaches.
bounded() {
    timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null &
    running=$!
    wait "$running"
    rc=$?
    running=""
}
count() { # status name
    p=$(grep -c '^\[       OK \]' "$log")
    f=$(grep -cE '^\[  FAILED  \] [A-Za-z_]+[A-Za-z0-9_]*$' "$log")
    s=$(grep -cE '^\[  SKIPPED \] [A-Za-z_]+[A-Za-z0-9_]*$' "$log")
    if [ "$p" = 0 ] && [ "$1" = 0 ] && [ "$s" = 0 ]; then p=1; fi
    if [ "$f" = 0 ] && [ "$1" != 0 ]; then f=1; fi
    [ "$s" = 0 ] || s=$((s / 2 > 0 ? s / 2 : s))
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$1" = 0 ]; then
        printf 'ok    %-44s %4d tests  %6.1f s\n' "$2" "$p" "$3"
    else
        printf 'FAIL  %-44s (exit %s)\n' "$2" "$1"
        sed 's/^/      /' "$log" | grep -vE '\[ +(OK|RUN) ' | tail -n 40
    fi
}
now() { date +%s.%N; }
for t in $(find "$build/tests" -type f -perm -u+x 2>/dev/null | grep -v '\.d$' | sort); do
    start=$(now)
    bounded "$t"
    count $rc "${t#"$build"/}" "$(echo "$(now) $start" | awk '{print $1-$2}')"
    grep -E '^(MF_SKIPPED|seed )' "$log" | sed 's/^/      /'
done
for t in $(find "$build/fuzz" -type f -perm -u+x 2>/dev/null | grep -v '\.d$' | sort); do
    start=$(now)
    seeds="tests/fuzz/$(basename "$t").seeds"
    bounded "$t" "$seeds"
    count $rc "${t#"$build"/}" "$(echo "$(now) $start" | awk '{print $1-$2}')"
done
for t in tests/golden/*/run.sh; do
    [ -f "$t" ] || continue
    start=$(now)
    bounded env MF_BUILD="$build" sh "$t"
    count $rc "$(dirname "$t")" "$(echo "$(now) $start" | awk '{print $1-$2}')"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
