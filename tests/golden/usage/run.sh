# Mistakes on the command line: one clear line, exit 2.
. "${0%/*}/../driver.sh"
mf hepl
mf help nothing-like-it
mf help one two
mf --nonsense
mf help --markdwon
mf help --markdown=yes
mf help --tp 4
mf help -x
mf "$(printf 'two\nlines\033[31m')"
golden_end
