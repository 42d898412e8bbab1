# What reports say of predictions of their kind is what docs/ACCURACY.md says: report/basis/accuracy_rows.c is made of that page.
# MF_GOLDEN_UPDATE=1 writes it anew (build again afterwards).
. "${0%/*}/../driver.sh"
rows=report/basis/accuracy_rows.c
sh scripts/accuracy_rows.sh >"$work/rows.c"
[ "${MF_GOLDEN_UPDATE:-0}" = 1 ] && cp "$work/rows.c" $rows
cmp -s "$work/rows.c" $rows && echo "the rows are those of the page" >>"$golden_transcript" ||
    diff $rows "$work/rows.c" >>"$golden_transcript"
# Every kind of row is there, with numbers.
for kind in SPLIT SOFTWARE GPU OWN; do
    n=$(grep -A1 "MF_ACCURACY_$kind" "$work/rows.c" | grep -c '^     [0-9]*, [0-9.]*, ')
    [ "$n" -gt 1 ] && echo "$kind: some" >>"$golden_transcript"
done
golden_end
