# Help reads as it should, and docs/CLI.md is what the program prints.
. "${0%/*}/../driver.sh"
mf help
mf help help
mf help --help
mf --version
mf
"$golden_binary" help --markdown >"$work/CLI.md"
diff -u docs/CLI.md "$work/CLI.md" || {
    echo "docs/CLI.md is out of date: build/moefold help --markdown >docs/CLI.md"
    exit 1
}
# the targets that the README names
for target in bench validate lint san gpu install; do
    make -s help | grep -q "^  $target " || { echo "make help does not list $target"; exit 1; }
done
golden_end
