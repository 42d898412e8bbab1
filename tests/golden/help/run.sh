# Help reads as it should, and docs/CLI.md is what the program prints.
. "${0%/*}/../driver.sh"
mf help
mf help help
mf help --help
# the commit is that of the build
"$golden_binary" --version | sed 's/commit [0-9a-f]\{12,\}/commit COMMIT/; s/commit unknown/commit COMMIT/' >>"$golden_transcript"
mf
"$golden_binary" help --markdown >"$work/CLI.md"
diff -u docs/CLI.md "$work/CLI.md" || {
    echo "docs/CLI.md is out of date: build/moefold help --markdown >docs/CLI.md"
    exit 1
}
# the man page: every command and every option of its help, and no complaint of the formatter
"$golden_binary" help --man >"$work/moefold.1"
sed 's/\\-/-/g' "$work/moefold.1" | sed -n 's/^\.B --\([a-z0-9-]*\) .*/\1/p' >"$work/explained"
for command in plan fit simulate capacity train export tune; do
    grep -q "^.SS $command\$" "$work/moefold.1" || { echo "the man page lacks $command"; exit 1; }
    sed -n "/^.SS $command\$/,/^.S[SH] /p" "$work/moefold.1" | grep '^.-.-' | tr -d '\\,.' >"$work/named"
    "$golden_binary" $command --help | sed -n 's/^  --\([a-z0-9-]*\).*/\1/p' >"$work/options"
    awk -v command=$command '
        FILENAME == ARGV[1] { named[$0] = 1; next }
        FILENAME == ARGV[2] { count[$0]++; next }
        !(("--" $0) in named) { print "the man page lacks " command " --" $0 }
        # what it does stands there once, however many commands take it
        count[$0] != 1 { print "the man page explains --" $0 " " count[$0] + 0 " times" }
    ' "$work/named" "$work/explained" "$work/options" >>"$golden_transcript"
done
if command -v groff >/dev/null; then
    groff -man -ww -Tutf8 -z "$work/moefold.1" >>"$golden_transcript" 2>&1
    # words that users copy are not broken
    groff -man -rLL=60n -Tascii "$work/moefold.1" | grep -n '[a-z]-$' | head -n 3 >>"$golden_transcript"
fi
# completion, where there is a bash
"$golden_binary" help --completion bash >"$work/moefold.bash"
complete() {
    bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _moefold; echo "$* -> ${COMPREPLY[*]}"' "$work/moefold.bash" "$@"
}
if command -v bash >/dev/null; then
    {
        complete moefold pl
        complete moefold plan --sch
        complete moefold plan --schedule zb
        complete moefold simulate --model qwen3-2
        complete moefold capacity --clusters gb
        complete moefold plan --gpus ''
        complete moefold capacity --bud
        # in a list, behind a comma, what it does not hold yet; behind "=", whether bash parts words there or not
        complete moefold capacity --clusters h100,h
        complete moefold capacity --models deepseek-v3,qwen3-2
        complete moefold plan --overlap dp,p
        complete moefold plan --cluster = h1
        complete moefold plan --cluster=h1
        complete moefold plan --cuda-graph =
        complete moefold capacity --clusters = h100,gb
        complete moefold capacity --clusters=h100,gb
        complete moefold plan --gpus=
        # names that stand without an option
        complete moefold help ca
        complete moefold models mixtral-
        complete moefold clusters gb
        complete moefold models --j
        complete moefold plan ''
    } >>"$golden_transcript"
fi
# for zsh: every command and every option of its help; no complaint of the shell, where there is one
"$golden_binary" help --completion zsh >"$work/_moefold"
for command in plan fit simulate capacity train export tune; do
    sed -n "/^        $command)\$/,/;;\$/p" "$work/_moefold" >"$work/zsh-command"
    "$golden_binary" $command --help | sed -n 's/^  --\([a-z0-9-]*\).*/\1/p' | while read -r option; do
        grep -q -e "'\*\{0,1\}--$option[=[]" "$work/zsh-command" || echo "completion for zsh lacks $command --$option"
    done >>"$golden_transcript"
done
if command -v zsh >/dev/null; then
    zsh -n "$work/_moefold" >>"$golden_transcript" 2>&1
fi
mf help --completion fish
# the targets that the README names
for target in bench validate lint san gpu install uninstall wheel deb; do
    make -s help | grep -q "^  $target " || { echo "make help does not list $target"; exit 1; }
done
golden_end
