#!/bin/sh
# Runs every program under BUILD/bench: plan and simulation times, memory, events per second.
# Exit 1 when one fails.
set -u
build=$1
status=0
for b in "$build"/bench/*; do
    case $b in
    *.d) continue ;;
    esac
    [ -x "$b" ] && [ -f "$b" ] || continue
    printf '== %s\n' "$(basename "$b")"
    case $b in
    */bench_cli) "$b" "$build/moefold" || status=1 ;;
    *) "$b" || status=1 ;;
    esac
done
exit $status
