# What decides stands last: plan, fit, simulate, explain and tune end with one sentence, at every width. Its figures
# are looked at by test_cli_simulate.
. "${0%/*}/../driver.sh"
if golden_sampled; then
    echo "MF_SKIPPED 1 where lines end is no matter of sanitizers, which see each of these commands in its own case"
    exit 0
fi
golden_in_work
job="--model olmoe-1b-7b --cluster h100 --gpus 8 --global-batch 64 --seq 4096"
pins="--tp 1 --cp 1 --pp 1 --etp 1 --dispatcher fused --schedule 1f1b"
short="--model mixtral-8x7b --cluster h100 --gpus 8 --global-batch 64 --seq 4096 --ep 8"

# The last paragraph, which is the verdict, as one line with its numbers masked: prices move them, and where the
# lines end with them. No line is wider than the terminal, and there are 40 at most.
decides() {
    golden_run "$@" >"$work/said"
    awk -v columns="$COLUMNS" '/^\$ / { print; next } /^exit / { code = $0; ended = 1; next } /^! / { next }
        /^$/ { if (!ended) part = ""; next }
        { lines++; wide = wide || length($0) > columns; sub(/^ +/, ""); part = part (part == "" ? "" : " ") $0 }
        END { print part ~ /^verdict  / ? part : "NO VERDICT LAST: " part
            printf "%s, %s lines%s\n\n", code, lines <= 40 ? "at most 40" : "TOO MANY", wide ? ", TOO WIDE" : "" }' \
        "$work/said" | sed -e '/^\$ /b' -e '/^exit /b' -e 's/  */ /g' \
        -e 's/[0-9][0-9.,]* \([mu]*s\b\)/N s/g' -e 's/[0-9][0-9.,]* [kMG]B/N B/g' -e 's/[0-9][0-9.]* %/N %/g' \
        -e 's/(TP [^)]*)/(LAYOUT)/' -e 's/[0-9.]* x as/N x as/' >>"$golden_transcript"
}
# shellcheck disable=SC2086 # words, not one
for COLUMNS in 60 80 120; do # at each of them the same words
    export COLUMNS
    echo "--- $COLUMNS columns" >>"$golden_transcript"
    decides plan $job $pins --out plan.json
    decides explain --plan plan.json
done
COLUMNS=60
{
    decides plan $job $pins
    decides plan --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --runs-on megatron --pp 2 --ep 8
    decides simulate --plan plan.json
    decides simulate $short
    decides simulate $job $pins -o page
    decides explain $short
    decides fit $job $pins --recompute none
    decides fit --model mixtral-8x22b --cluster h100 --gpus 2 --global-batch 64 --seq 4096 --tp 2 --ep 2
    decides tune --plan plan.json --threads 2 -o page
    decides tune --plan plan.json --threads 2
}
unset COLUMNS
# The routing of a plan is kept, and named.
# shellcheck disable=SC2086
"$golden_binary" simulate $job $pins --routing zipf:1 --out uneven.json >/dev/null 2>&1
mf_plain_lines '^olmoe|^rests' tune --plan uneven.json --threads 2
mf_plain_lines '^rests' explain --plan uneven.json
mf_plain_lines '^rests' simulate --plan uneven.json
printf ' iteration %d/ 9 | elapsed time per iteration (ms): 2800.0 |\n' 1 2 3 >train.log
mf_plain_lines '^olmoe' compare --plan uneven.json --log train.log --tolerance 10000%
golden_end
