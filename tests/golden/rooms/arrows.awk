# arrows.awk - holds who uses whom against the tables of docs/ARCHITECTURE.md.
#
# Input: the tables, then lines "include FILE USED_FILE", "defines FOLDER SYMBOL" and "uses FOLDER SYMBOL".
# Prints one line for every arrow that the tables do not allow, and at the end how many they do.

function room_of(folder) {
    sub("/.*", "", folder)
    return folder
}
# Files right in a room stand in the sub-room of the room's name.
function part_of(folder, room) {
    room = room_of(folder)
    return folder == room ? room : substr(folder, length(room) + 2)
}
function arrow(from, to, what, a, b) {
    if (from == to || seen[from, to]) {
        return
    }
    a = room_of(from)
    b = room_of(to)
    if (!(a in known) || !(b in known)) {
        return
    }
    seen[from, to] = 1
    if (a != b && !may[a, b]) {
        print a " may not use " b ": " what
    } else if (a == b && !((a, part_of(from)) in place && (a, part_of(to)) in place)) {
        print "a sub-room of " a " has no place in the table: " what
    } else if (a == b && place[a, part_of(from)] < place[a, part_of(to)]) {
        print from " may not use " to ": " what
    } else {
        allowed++
    }
}

/^## / { chapter = $2 }
chapter == "Rooms" && /^\| `[a-z]+\/` \|/ {
    split($0, column, "|")
    room = column[2]
    gsub("[` /]", "", room)
    known[room] = 1
    if (column[4] != "") {
        n = split(column[4], list, ",")
        for (i = 1; i <= n; i++) {
            gsub(" ", "", list[i])
            may[room, list[i]] = 1
        }
    } else {
        text = column[3]
        while (match(text, /\([^()]*\)/)) {
            text = substr(text, 1, RSTART - 1) substr(text, RSTART + RLENGTH)
        }
        n = split(text, list, ",")
        for (i = 1; i <= n; i++) {
            gsub(" ", "", list[i])
            place[room, list[i]] = i
        }
    }
    next
}
$1 == "include" {
    from = $2
    to = $3
    sub("/[^/]*$", "", from)
    sub("/[^/]*$", "", to)
    arrow(from, to, $2 " includes " $3)
}
$1 == "defines" { home[$3] = $2; defines[$2, $3] = 1 }
$1 == "uses" { user[++users] = $2; used[users] = $3 }
END {
    for (i = 1; i <= users; i++) {
        if (used[i] in home && !((user[i], used[i]) in defines)) {
            arrow(user[i], home[used[i]], user[i] " uses " used[i])
        }
    }
    print (allowed > 100 ? "more than a hundred" : allowed + 0) " arrows are as drawn"
}
