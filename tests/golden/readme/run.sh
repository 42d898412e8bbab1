# Every command of the transcripts in README.md and docs/TOUR.md runs, in their order, and says what stands
# there: each line of theirs is one of the output, numbers (which follow the cost model) and bars aside. What they
# write goes to a scratch folder.
. "${0%/*}/../driver.sh"
if golden_sampled; then
    echo "MF_SKIPPED 1 what texts say is no matter of sanitizers, which see each of these commands in its own case"
    exit 0
fi
mask() {
    sed -e 's/-*[0-9][0-9.]*\(,[0-9][0-9.]*\)*/N/g' -e 's/N [mu]*s\([ ),;]\|$\)/N s\1/g' \
        -e 's/N [kMGTP]*\(B\|FLOP\|USD\|tokens\)/N \1/g' -e 's/N[kMGT]\([ /]\|$\)/N\1/g' \
        -e 's/ETP N [a-z0-9-]*$/ETP N/' -e 's/#//g' -e 's/+N/N/g' -e 's/  */ /g' -e 's/ *$//' -e 's/^ //'
}
: >"$work/real"
mkdir "$work/build"
cat README.md docs/TOUR.md | while IFS= read -r line; do
    case $line in
    '    $ build/moefold '*)
        # shellcheck disable=SC2086 # words, not one
        (
            golden_in_work
            $golden_limit "$golden_binary" ${line#*build/moefold } >out 2>&1 </dev/null
        )
        code=$?
        command=${line#*build/moefold }
        echo "exit $code of ${command%% *}"
        mask <"$work/out" >"$work/real"
        ;;
    '    ...' | '') ;;
    '    '*)
        said=$(printf '%s\n' "$line" | mask)
        [ ! -s "$work/real" ] || grep -Fxq -- "$said" "$work/real" || echo "is not what it says: $line"
        ;;
    *) : >"$work/real" ;;
    esac
done >"$golden_transcript"
golden_end
