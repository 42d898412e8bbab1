# Rooms and sub-rooms use each other as docs/ARCHITECTURE.md draws it: by includes, and by symbols.
. "${0%/*}/../driver.sh"
arrows() { # files that say who uses whom, behind the tables
    cat "$@" | awk -f "$golden_case/arrows.awk"
}
rooms=$(sed -n 's/^| `\([a-z]*\)\/` |.*/\1/p' docs/ARCHITECTURE.md | sort -u)
for room in $rooms; do
    find "$room" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'
done | xargs grep -H '^#include "[a-z_]*/' |
    sed 's/^\([^:]*\):#include "\([^"]*\)".*/include \1 \2/' >"$work/includes"
# Objects of sources that are gone say nothing.
objects=$(for room in $rooms; do find "$room" -name '*.c'; done | sed "s|^\(.*\)\.c\$|${MF_BUILD:-build}/obj/\1.o|")
for object in $objects; do
    [ -f "$object" ] && echo "$object"
done | xargs nm -A -g | sed "s|^${MF_BUILD:-build}/obj/||" |
    awk '{ folder = $1; sub("/[^/]*$", "", folder) }
         $(NF - 1) ~ /^[TDBRVG]$/ { print "defines", folder, $NF }
         $(NF - 1) == "U" { print "uses", folder, $NF }' >"$work/symbols"
arrows docs/ARCHITECTURE.md "$work/includes" "$work/symbols" >>"$golden_transcript"
# What is not drawn is seen.
echo "include core/base/json.c planner/planner.h
include planner/space/space.c planner/search/search.h
defines planner mf_planner_search
uses simulator mf_planner_search" >"$work/planted"
arrows docs/ARCHITECTURE.md "$work/planted" >>"$golden_transcript"
# what is not reading options, calling and printing has another room
lines=$(cat cli/*.[ch] | wc -l)
[ "$lines" -le 6500 ] && lines="at most 6,500"
echo "cli/ has $lines lines" >>"$golden_transcript"
golden_end
