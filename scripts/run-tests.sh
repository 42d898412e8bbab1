#!/bin/sh
# run-tests.sh --plain: the tests that `make san` leaves out, which need not be built for it.
# run-tests.sh BUILD [JOBS]: runs every test program under BUILD/tests and BUILD/fuzz, then the golden
# cases, JOBS at a time (default: one more than there are cores, as some wait for others to end); while
# there are programs that mostly wait, two of them and one less of the others.
# Those under BUILD/gpu/tests run with the GPUs hidden, to say what is left to `make gpu-test`.
# Prints one line a program, in the same order whichever ends first, and ends with "N passed,
# N failed, N skipped". Exit 1 when anything failed.
# Tests are counted by cmocka's lines; "MF_SKIPPED n reason" adds n that were skipped. One that runs
# for longer than MF_TEST_SECONDS (1200) hangs: it is ended with all that it started, exit 124 or 137.
set -u
unset COLUMNS # texts are as wide as they are; cases that mean a width say so
build=$1
jobs=${2:-$(($(nproc 2>/dev/null || echo 1) + 1))}
limit=${MF_TEST_SECONDS:-1200}

# For most of their minute and more they wait for runs that they start, stop and kill.
waits='tests/unit/test_train_stops tests/unit/test_train_kills tests/unit/test_train_folder tests/unit/test_train_restart
 tests/unit/test_train_saves tests/unit/test_train_transient tests/unit/test_train_hosts tests/unit/test_allocations'
# The longest of the others, the longest first: one that begins last would run on a core alone.
long='tests/unit/test_executor_trajectory tests/unit/test_cli_capacity tests/unit/test_cli_report tests/unit/test_cli_fit
 tests/unit/test_executor_grid tests/unit/test_planner_search tests/unit/test_executor_model tests/unit/test_published
 tests/unit/test_executor_ranks tests/unit/test_planner_effort tests/property/test_planner_exhaustive
 tests/property/test_planner_bound tests/unit/test_library tests/unit/test_train_command tests/property/test_launch_steps
 tests/golden/verdict tests/unit/test_shadow_grid tests/unit/test_executor_collectives tests/golden/bad-values
 tests/golden/train tests/unit/test_shadow_races tests/golden/python tests/unit/test_executor_faults'
# Left to the run without sanitizers, as the code that these reach others reach with them: they test effort, accuracy,
# two hosts, killed saves, ten steps of training, what several commands say of one job, and how wide they say it. `make san-all` runs them.
plain='tests/unit/test_planner_effort tests/unit/test_published tests/unit/test_cost_shipped tests/unit/test_train_hosts
 tests/unit/test_train_kills tests/unit/test_train_memory tests/unit/test_executor_trajectory tests/unit/test_cli_fit
 tests/unit/test_cli_simulate tests/unit/test_host_copies tests/golden/import tests/golden/plan tests/golden/export tests/golden/train
 tests/golden/pages tests/golden/width'
# Run last, one by one, because of what they measure: prices a second of processor time, fewer where
# a neighbour shares core and caches. MF_BESIDE: process groups that are stopped meanwhile.
alone='tests/property/test_cost_property'

# One space between two names.
waits=$(echo $waits) long=$(echo $long) plain=$(echo $plain)
[ "$build" != --plain ] || { echo "$plain"; exit 0; }

# Runs of `train` stay on CPU ranks where there are GPUs, too.
export MOEFOLD_CUDA_LIBRARY=none
export MOEFOLD_CPU=off # tests hold what ships, not what this machine measures
export MOEFOLD_CORRECTIONS=off # nor what its user has kept of logs

# mpirun ties two ranks to the first two cores, which those of every program would share.
export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy:-none}"

passed=0 failed=0 skipped=0
live=""              # NUMBER:PID of each that runs
launched=0 printed=0 # how many
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap stop INT TERM
mkfifo "$work/ended" && exec 3<>"$work/ended" || exit 1

stop() {
    trap '' INT TERM
    beside CONT
    for w in $live; do kill "${w#*:}" 2>/dev/null; done
    wait 2>/dev/null
    exit 130
}
now() { date +%s.%N; }
beside() { # signal
    for g in ${MF_BESIDE:-}; do kill -s "$1" -- "-$g" 2>/dev/null; done
}
programs() { # folder of the build
    find "$build/$1" -type f -perm -u+x 2>/dev/null | grep -v '\.d$' | sort | sed "s|^$build/||"
}
is_in() { case " $1 " in *" $2 "*) ;; *) false ;; esac }

# Its output goes to NUMBER.log, exit status, seconds and name to NUMBER.end. timeout gives it a process
# group of its own, so that ranks go with their program.
run() { # number name
    child="" stopped=""
    trap 'stopped=1; [ -z "$child" ] || kill "$child" 2>/dev/null' TERM
    case $2 in
    gpu/*) set -- "$1" "$2" env CUDA_VISIBLE_DEVICES= "$build/$2" ;;
    fuzz/*) set -- "$1" "$2" "$build/$2" "tests/fuzz/${2#fuzz/}.seeds" ;;
    tests/golden/*) set -- "$1" "$2" env MF_BUILD="$build" sh "$2/run.sh" ;;
    *) set -- "$1" "$2" "$build/$2" ;;
    esac
    number=$1 name=$2 start=$(now)
    shift 2
    [ -z "$stopped" ] || exit 130
    # A folder of its own: one mpirun that ends would pull the one it shares from under another.
    mkdir "$work/$number" && TMPDIR=$work/$number && export TMPDIR
    timeout -k 10 "$limit" "$@" >"$work/$number.log" 2>&1 </dev/null 3>&- &
    child=$!
    [ -z "$stopped" ] || kill "$child" 2>/dev/null
    wait "$child"
    rc=$?
    [ -z "$stopped" ] || { wait "$child"; exit 130; }
    seconds=$(echo "$(now) $start" | awk '{print $1-$2}')
    # Processor time, of what it started and waited for, too.
    times >"$work/$number.times"
    core=$(awk 'NR == 2 { gsub(/[ms]/, " "); print 60 * ($1 + $3) + $2 + $4 }' "$work/$number.times")
    rm "$work/$number.times"
    rm -rf "${work:?}/$number"
    # Under its name only once it is whole: others that end have the reader look for it.
    echo "$rc $seconds $core $name" >"$work/$number.part"
    mv "$work/$number.part" "$work/$number.end"
    echo "$number" >&3
}
launch() { # number name
    launched=$((launched + 1))
    run "$1" "$2" &
    live="$live $1:$!"
}
# Waits until one more has ended; prints what is next to be printed.
reap() {
    read -r ended <&3 || return
    rest=""
    for w in $live; do
        case $w in "$ended":*) wait "${w#*:}" ;; *) rest="$rest $w" ;; esac
    done
    live=$rest
    while [ -f "$work/$((printed + 1)).end" ]; do
        printed=$((printed + 1))
        read -r rc seconds core name <"$work/$printed.end"
        count "$rc" "$name" "$seconds" "$work/$printed.log" "$core"
        rm "$work/$printed.end" "$work/$printed.log"
    done
}
running() { # of the kind: waiting or working
    n=0
    for w in $live; do
        if is_in "$patient" "${w%%:*}"; then [ "$1" = working ] || n=$((n + 1)); else
            [ "$1" = waiting ] || n=$((n + 1))
        fi
    done
    echo "$n"
}
count() { # status name seconds log core-seconds
    p=$(grep -c '^\[       OK \]' "$4")
    f=$(grep -cE '^\[  FAILED  \] [A-Za-z_]+[A-Za-z0-9_]*$' "$4")
    s=$(grep -cE '^\[  SKIPPED \] [A-Za-z_]+[A-Za-z0-9_]*$' "$4")
    said=$(awk '/^MF_SKIPPED [0-9]/ { n += $2 } END { print n + 0 }' "$4")
    if [ "$p" = 0 ] && [ "$1" = 0 ] && [ "$s" = 0 ] && [ "$said" = 0 ]; then p=1; fi
    if [ "$f" = 0 ] && [ "$1" != 0 ]; then f=1; fi
    # Each of these stands twice, at its place and in the list at the end.
    [ "$s" = 0 ] || s=$((s / 2 > 0 ? s / 2 : s))
    [ "$f" -lt 2 ] || f=$((f / 2))
    s=$((s + said))
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$1" = 0 ]; then
        printf 'ok    %-44s %4d tests  %6.1f s, %6.1f of a core\n' "$2" "$p" "$3" "$5"
    else
        printf 'FAIL  %-44s (exit %s)\n' "$2" "$1"
        case $1 in 124 | 137) grep '^\[ RUN ' "$4" | sed -n 's/^.*\] /      ended in /;$p' ;; esac
        sed 's/^/      /' "$4" | grep -vE '\[ +(OK|RUN) ' | tail -n 40
    fi
    grep -E '^(MF_SKIPPED|seed )' "$4" | sed 's/^/      /'
}

golden() { for t in tests/golden/*/run.sh; do [ ! -f "$t" ] || dirname "$t"; done; }
all=$(programs tests && programs gpu/tests && programs fuzz && golden)
left=""
if [ "${MF_SANITIZED:-all}" != all ]; then
    left=" $plain" rest=""
    for t in $all; do
        is_in "$plain" "$t" || rest="$rest $t"
    done
    all=$rest
fi
# Numbers are places in what is printed.
number=0 early="" usual="" late="" waiting=""
patient="" known="" # numbers of those that wait; all
for t in $all; do
    is_in "$alone" "$t" && continue
    number=$((number + 1))
    if is_in "$waits" "$t"; then
        patient="$patient $number"
    elif ! is_in "$long" "$t"; then
        usual="$usual $number:$t"
    fi
    known="$known $number:$t"
done
# In the order of the lists.
for t in $waits $long; do
    for k in $known; do
        [ "${k#*:}" = "$t" ] || continue
        if is_in "$waits" "$t"; then waiting="$waiting $k"; else early="$early $k"; fi
    done
done
for t in $all; do
    is_in "$alone" "$t" || continue
    number=$((number + 1))
    late="$late $number:$t"
done
[ "$jobs" -gt 1 ] || early="$waiting $early" waiting="" patient=""
set -- $early $usual
while [ $# -gt 0 ] || [ -n "$waiting" ]; do
    most=$jobs
    [ -z "$waiting" ] && [ "$(running waiting)" = 0 ] || most=$((jobs - 1))
    if [ -n "$waiting" ] && [ "$(running waiting)" -lt 2 ]; then
        waiting=${waiting# } t=${waiting%% *}
        case $waiting in *" "*) waiting=${waiting#* } ;; *) waiting="" ;; esac
        launch "${t%%:*}" "${t#*:}"
    elif [ $# -gt 0 ] && [ "$(running working)" -lt "$most" ]; then
        launch "${1%%:*}" "${1#*:}"
        shift
    else
        reap
    fi
done
for t in $late; do
    while [ -n "$live" ]; do reap; done
    beside STOP
    launch "${t%%:*}" "${t#*:}"
done
while [ -n "$live" ]; do reap; done
beside CONT
[ "$printed" = "$launched" ] || {
    echo "FAIL  $((launched - printed)) programs left no result in $work"
    failed=$((failed + launched - printed))
}
[ -z "$left" ] || echo "      left to tests without sanitizers:$left"
[ -n "$(programs gpu/tests)" ] || echo "      CUDA's side: not compiled in this build, its tests were not run"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
