# driver.sh - sourced by every tests/golden/*/run.sh: runs moefold and compares what was said.
#
#   mf ARGS...          runs moefold; the transcript gets the command line, standard output, every
#                       line of standard error behind "! ", and the exit code
#   mf_masked ARGS...   the same with every number written as N, units without prefix, blanks as one: for
#                       output whose numbers follow the cost model; equal lines in a row become one
#   mf_lines RE ARGS... the same, of the output only the lines that match the pattern
#   mf_plain_lines RE ARGS...  the same, nothing masked
#   golden_in_work      goes to the scratch folder, where files have short names: where lines end, and how many are
#                       left out, does not depend on TMPDIR then
#   golden_end          compares the transcript with the case's `expected`
#
# A command that runs for longer than MF_GOLDEN_SECONDS (300) is ended: exit 137 in the transcript.
# $work is a scratch folder, written as TMP in transcripts. MF_GOLDEN_UPDATE=1 rewrites `expected`:
# read the difference before you commit it.
# No case sees a GPU or loads the CUDA side: transcripts are the same everywhere.
set -u
unset COLUMNS # cases that mean a width say so
export MOEFOLD_CUDA_LIBRARY=/nowhere/libmoefold_cuda.so
export SOURCE_DATE_EPOCH=1795996800 # 2026-11-30: how old prices are does not depend on the day
export MOEFOLD_CPU=off # prices do not depend on the machine
export MOEFOLD_CORRECTIONS=off # nor on its user
golden_case=${0%/*}
golden_binary=${MF_BUILD:-build}/moefold
golden_limit="timeout -s KILL ${MF_GOLDEN_SECONDS:-300}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
golden_transcript=$work/.transcript
: >"$golden_transcript"

golden_in_work() {
    golden_binary=$(realpath "$golden_binary")
    golden_case=$(realpath "$golden_case")
    cd "$work" || exit 1
}
golden_run() {
    printf '$ moefold'
    for golden_word in "$@"; do
        case $golden_word in
        *[!A-Za-z0-9_./:=,%+-]* | '') printf " '%s'" "$golden_word" ;;
        *) printf ' %s' "$golden_word" ;;
        esac
    done
    echo
    $golden_limit "$golden_binary" "$@" >"$work/.out" 2>"$work/.err"
    golden_code=$?
    cat "$work/.out"
    sed 's/^/! /' "$work/.err"
    echo "exit $golden_code"
    echo
}
mf() {
    golden_run "$@" | sed "s|$work|TMP|g" >>"$golden_transcript"
}
mf_masked() {
    golden_run "$@" | sed -e "s|$work|TMP|g" -e '/^\$ /b' -e '/^exit /b' \
        -e 's/-*[0-9][0-9.]*\(,[0-9][0-9.]*\)*\(e[-+]*[0-9]*\)*/N/g' \
        -e 's/N [mu]*s\([ ),;]\|$\)/N s\1/g' -e 's/N [kMGT]*B/N B/g' -e 's/##*/#/g' \
        -e 's/  */ /g' -e 's/ *$//' | uniq >>"$golden_transcript"
}
mf_lines() {
    golden_pattern="^[$] |^exit |^$|$1"
    golden_whole=$golden_transcript
    golden_transcript=$work/.part
    : >"$golden_transcript"
    shift
    mf_masked "$@"
    grep -E "$golden_pattern" "$golden_transcript" | uniq >>"$golden_whole"
    golden_transcript=$golden_whole
}
mf_plain_lines() {
    golden_pattern="^[$] |^exit |^$|$1"
    shift
    golden_run "$@" | sed "s|$work|TMP|g" | grep -E "$golden_pattern" | uniq >>"$golden_transcript"
}
# Under sanitizers, but for `make san-all`: what they look for is in one case of a kind.
golden_sampled() { [ "${MF_SANITIZED:-all}" != all ]; }
golden_end() {
    if [ "${MF_GOLDEN_UPDATE:-}" = 1 ]; then
        cp "$golden_transcript" "$golden_case/expected"
    fi
    diff -u "$golden_case/expected" "$golden_transcript"
    exit $?
}
