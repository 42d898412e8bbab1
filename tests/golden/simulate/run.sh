# One layout: what is printed, JSON, the plan file written and read again, and a layout over memory.
. "${0%/*}/../driver.sh"
heads='^(mixtral|olmoe|layout| +N micro|rests|step time|rate|MFU|power|memory|where|.*(compute|stage) )'
job='--model mixtral-8x22b --cluster h100 --gpus 128 --global-batch 256 --seq 4096 --tp 2 --pp 8 --ep 8'
mf_lines "$heads" simulate $job
mf_masked simulate --model deepseek-v3 --cluster b200 --gpus 64 --global-batch 512 --seq 4096 --ep 64 --precision mxfp8 --json
# the same input gives the same bytes, and a plan gives what its layout gave
$golden_binary simulate --model mixtral-8x7b --cluster h200 --gpus 64 --global-batch 256 --seq 4096 --ep 8 --pp 2 --json --out "$work/a.json" >"$work/a.txt"
$golden_binary simulate --model mixtral-8x7b --cluster h200 --gpus 64 --global-batch 256 --seq 4096 --ep 8 --pp 2 --json --out "$work/b.json" >"$work/b.txt"
$golden_binary simulate --plan "$work/a.json" --json --out "$work/c.json" >"$work/c.txt"
cmp "$work/a.json" "$work/b.json" && cmp "$work/a.json" "$work/c.json" || exit 1
cmp "$work/a.txt" "$work/b.txt" && cmp "$work/a.txt" "$work/c.txt" || exit 1
# a plan keeps its routing, unless another is given or its file is gone
zipf='--model olmoe-1b-7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --ep 8 --routing zipf:1'
$golden_binary simulate $zipf --json --out "$work/zipf.json" >"$work/a.txt"
$golden_binary simulate --plan "$work/zipf.json" --json >"$work/b.txt"
cmp "$work/a.txt" "$work/b.txt" || exit 1
mf_plain_lines '^rests' simulate --plan "$work/zipf.json"
mf_plain_lines '^rests' simulate --plan "$work/zipf.json" --routing balanced
mf_plain_lines '^busiest|^rests|^layout' explain --plan "$work/zipf.json"
sed 's/zipf:1/gone.csv/' "$work/zipf.json" >"$work/gone.json"
mf_plain_lines '^rests|^!' simulate --plan "$work/gone.json"
# the path of a file of counts is kept whole
deeper=$work/a-folder-of-measured-routings/of-sixty-four-experts-of-a-model/that-trains-on-text
mkdir -p "$deeper"
awk 'BEGIN { for (i = 0; i < 64; i++) printf "%s%d", i ? "," : "", 164 - i; print "" }' >"$deeper/counts.csv"
$golden_binary simulate --model olmoe-1b-7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --ep 8 \
    --routing "$deeper/counts.csv" --json --out "$work/counts.json" >"$work/a.txt"
$golden_binary simulate --plan "$work/counts.json" --json >"$work/b.txt" || exit 1
cmp "$work/a.txt" "$work/b.txt" || exit 1
# files that a plan names stand beside it, where they do not stand here
mkdir "$work/plans"
cp "$deeper/counts.csv" profiles/clusters/h100.json "$work/plans/"
sed -e "s#$deeper/##" -e 's#"cluster": "h100"#"cluster": "h100.json"#' "$work/counts.json" >"$work/plans/plan.json"
mf_plain_lines '^(rests|!|made)' simulate --plan "$work/plans/plan.json"
$golden_binary simulate --plan "$work/plans/plan.json" | grep '^step' >"$work/b.txt"
$golden_binary simulate --plan "$work/counts.json" | grep '^step' | cmp - "$work/b.txt" || exit 1
# a plan keeps what --set changed, and says what is missing where it cannot
deep='--model mixtral-8x7b --cluster h100 --gpus 8 --global-batch 8 --seq 4096 --ep 8'
$golden_binary simulate $deep --set num_hidden_layers=4 --set sliding_window=null --json --out "$work/set.json" >"$work/a.txt"
grep '"set"' "$work/set.json" >>"$golden_transcript"
$golden_binary simulate --plan "$work/set.json" --json --out "$work/set2.json" >"$work/b.txt"
cmp "$work/a.txt" "$work/b.txt" && cmp "$work/set.json" "$work/set2.json" || exit 1
mf_lines '^!|^mixtral' simulate --plan "$work/set.json" --set num_hidden_layers=8
sed -e 's/\("parameters": [0-9]*\),/\1/' -e '/"set": /d' "$work/set.json" >"$work/unset.json"
mf_plain_lines '^!' simulate --plan "$work/unset.json"
sed 's/"set": *\[[^]]*\]/"set": ["layers"]/' "$work/set.json" >"$work/badset.json"
mf_plain_lines '^!' simulate --plan "$work/badset.json"
# a plan that was made for another cluster, or for other figures of this one
sed 's/"cluster_fingerprint": "[^"]*"/"cluster_fingerprint": "0123456789abcdef"/' "$work/a.json" >"$work/other.json"
mf_plain_lines '^made' simulate --plan "$work/a.json" --cluster h200
mf_plain_lines '^made' simulate --plan "$work/a.json" --cluster h100
mf_plain_lines '^made' simulate --plan "$work/other.json"
# what helps is what the layout does not do yet
for more in '--overlap cp,tp' '--cp-type allgather --overlap tp' '--cp-type allgather --overlap cp,tp'; do
    mf_lines 'context-parallel' simulate --model mixtral-8x22b --cluster h100 --gpus 256 --tp 2 --cp 8 --pp 4 --ep 8 \
        --global-batch 64 --seq 8192 $more
done
for ep in 8 16; do # inside the domain, and beyond it
    mf_lines 'expert communication' simulate --model olmoe-1b-7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --ep $ep
done
# Parameters that one rank has alone (EDP 1; DP and CP 1) have a ZeRO level that says nothing, to Megatron neither.
for degrees in '--gpus 32 --pp 4 --ep 8 --zero 1 --expert-zero 0' '--gpus 8 --tp 8 --ep 4 --zero 0 --expert-zero 1' \
    '--gpus 32 --pp 2 --ep 8 --zero 1 --expert-zero 0'; do
    mf_lines 'Megatron cannot|would take' simulate --model mixtral-8x7b --cluster h100 --global-batch 256 --seq 4096 \
        --recompute full --schedule 1f1b $degrees
done
# every rank, with a trace that is one JSON document
mf_lines "$heads" simulate --model olmoe-1b-7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --ep 8 --pp 2 \
    --every-rank --routing zipf:0.8 --trace "$work/trace.json"
$golden_binary models "$work/trace.json" >"$work/out" 2>&1 # refused as a model, but read as JSON
grep -q 'model_type' "$work/out" || { cat "$work/out"; exit 1; }
mf simulate --plan "$work/a.json" --trace /nowhere/trace.json
# what is no plain file is written, not replaced
: >"$work/target" && ln -s target "$work/link" && mkfifo "$work/pipe" && mkdir "$work/folder"
$golden_binary simulate --plan "$work/a.json" --out "$work/link" >"$work/out" 2>&1
[ -L "$work/link" ] && cmp "$work/target" "$work/a.json" || { echo "the link was replaced"; exit 1; }
timeout 20 cat "$work/pipe" >"$work/through" &
$golden_binary simulate --plan "$work/a.json" --out "$work/pipe" >"$work/out" 2>&1
wait
[ -p "$work/pipe" ] && cmp "$work/through" "$work/a.json" || { echo "the pipe was replaced"; exit 1; }
mf_lines '^!' simulate --plan "$work/a.json" --out "$work/folder"
mf profile --store "$work/link" --rebuild
$golden_binary profile --store "$work/a.db" --rebuild >"$work/out" 2>&1
timeout 20 cat "$work/pipe" >"$work/through" &
$golden_binary profile --store "$work/a.db" --export "$work/pipe" >"$work/out" 2>&1
wait
[ -p "$work/pipe" ] && [ -s "$work/through" ] || { echo "the pipe was replaced"; exit 1; }
$golden_binary simulate --model llama3-8b --cluster h100 --gpus 2000000 --global-batch 2000000 --seq 4096 --out "$work/many.json" >/dev/null
$golden_binary simulate --plan "$work/many.json" --cluster h100 >/dev/null || exit 1 # what is written can be read
golden_end
