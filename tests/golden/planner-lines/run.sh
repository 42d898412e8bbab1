# docs/planner.md counts the planner's lines by room: within 2 % of the files, and what is in rows adds up to the
# lines of the mechanisms, of which none has more than the files that its row names. At most 12,500 lines have no
# row. MF_GOLDEN_UPDATE=1 writes the rooms' lines anew.
. "${0%/*}/../driver.sh"
page=docs/planner.md
for room in planner/*; do
    room=${room##*/}
    case $room in
    *.c) continue ;;
    *.h) files="planner/planner.h planner/predict.c" ;;
    *) files="planner/$room/*.[ch]" ;;
    esac
    echo "$room $(cat $files | wc -l)"
done >"$work/counted"
# Lines by file, as rows name it: its name without a room, and without an ending.
wc -l planner/*/*.[ch] | sed '$d; s,planner/\([^/]*\)/,\1 ,; s/\.[ch]$//' >"$work/files"
if [ "${MF_GOLDEN_UPDATE:-0}" = 1 ]; then
    while read -r room lines; do
        lines=$(echo "$lines" | sed 's/\([0-9]\)\([0-9][0-9][0-9]\)$/\1,\2/')
        sed -i "s/^\(| \`$room\`[^|]*|\) [0-9,]* | \([0-9,]* |\)/\1 $lines | \2/" $page
    done <"$work/counted"
fi
check() { # PAGE
    sed 's/\([0-9]\),\([0-9][0-9][0-9]\)/\1\2/g' "$1" | awk -F'|' -v counted="$work/counted" -v files="$work/files" '
        BEGIN {
            while ((getline line <counted) > 0) { split(line, x, " "); lines[x[1]] = x[2]; rooms++; all += x[2] }
            while ((getline line <files) > 0) { split(line, x, " "); of[x[3]] += x[1]; of[x[2] "/"] += x[1] }
        }
        # Lines of the files that a cell names: `room/file`, `file`, `file.c`, `room/`, `room/begins_*`.
        function named(cell,    n, i, part, name, sum) {
            n = split(cell, part, "`")
            for (i = 2; i <= n; i += 2) {
                name = part[i]
                if (name !~ /\/$/) sub(/.*\//, "", name)
                sub(/\.[ch]$/, "", name)
                if (name in of) sum += of[name]
                else if (sub(/\*$/, "", name)) for (f in of) if (index(f, name) == 1) sum += of[f]
            }
            return sum + 0
        }
        /^\| room \| lines \|/ { table = "rooms" }
        /^\| without \| lines \|/ { table = "mechanisms" }
        !/^\|/ { table = "" }
        table == "rooms" && $3 ~ /[0-9]/ {
            room = $2
            gsub(/^ *`|`.*/, "", room)
            off = $3 / lines[room] - 1
            if (off * off > 0.02 ^ 2) print room ": the page says " $3 + 0 " lines, the files have " lines[room]
            else right++
            inside += $4
        }
        table == "mechanisms" && $3 ~ /[0-9]/ {
            rows += $3
            if ($3 > named($4)) print "the row of" $2 "has " $3 + 0 " lines, its files have " named($4)
        }
        END {
            print (right == rooms ? "all" : right + 0) " rooms have the lines that the page says"
            print "mechanisms have " (rows > 0 && rows == inside ? "the" : "not the") " lines that rooms have in rows"
            print (all - rows <= 12500 ? "no more than 12500 lines have no row" : "more than 12500 lines have no row")
        }'
}
check $page >>"$golden_transcript"
# Wrong figures are seen.
sed 's/^\(| `space`[^|]*|\) [0-9,]* |/\1 1,000,000 |/; s/^\(| `halves`[^|]*|\) [0-9]* |/\1 1 |/
    s/^\(| `give-away`[^|]*|\) [0-9]* |/\1 200 |/; s/^\(| `splits`[^|]*|\) [0-9]* |/\1 1 |/' $page >"$work/wrong.md"
check "$work/wrong.md" | sed 's/have [0-9]*$/have N/; s/^[0-9]* rooms/some rooms/' >>"$golden_transcript"
golden_end
