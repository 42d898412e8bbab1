#!/bin/sh
# validate-commands.sh BUILD: runs the `moefold simulate` line that `validate --commands` prints for each
# published row, and compares step time, band and reported memory with what validate predicts, digit by digit.
set -u
build=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
"$build/validate" --commands >"$work/lines" || exit 1
rows=0 wrong=0
while IFS= read -r line; do
    command=${line%% # *} said=${line##* # }
    eval "$build/$command" --json >"$work/json" || exit 1
    got=$(sed -n 's/^  "\(step_time_s\|step_time_low_s\|step_time_high_s\|reported_memory_B\)": \(.*\),$/\2/p' "$work/json" | paste -sd, - | sed 's/,/, /g')
    rows=$((rows + 1))
    [ "${said#* }" = "[$got]" ] || { wrong=$((wrong + 1)) && echo "$said: simulate says $got"; }
done <"$work/lines"
echo "$rows rows, $wrong differ"
[ "$rows" -gt 0 ] && [ "$wrong" -eq 0 ]
