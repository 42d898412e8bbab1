# Every command of the README's session runs, in its order; what it writes goes to a scratch folder.
. "${0%/*}/../driver.sh"
grep '^    \$ build/moefold ' README.md | sed -e 's/^    \$ build\/moefold //' -e "s| build/| $work/|g" |
    while read -r line; do
        # shellcheck disable=SC2086
        "$golden_binary" $line >"$work/out" 2>&1 </dev/null
        echo "exit $? of ${line%% *}"
    done >"$golden_transcript"
golden_end
