# train and compare: what is printed, and every way to ask for what cannot be.
. "${0%/*}/../driver.sh"
job="train --init tests/data/hf/mixtral --data tests/data/hf/mixtral/config.json --global-batch 2 --seq 16"
heads='^(mixtral|layout|ranks|stages|types|headroom|weights|data|out|optimizer|rate|balance|predicted|arena|stream|resumed|mean)'
mf_lines "$heads" $job --steps 2 --shuffle off --lr 1e-3 --save-every 1 --keep 1 --out "$work/run"
mf_lines '^[]{}["]|^ "|^ }|^! resumed' $job --steps 3 --shuffle off --resume --out "$work/run" --json
mf_lines '^op by op' compare --run "$work/run" --tolerance 0.01%
echo '$ moefold compare --run TMP/run --tolerance 0.01% >/dev/full' >>"$golden_transcript"
$golden_binary compare --run "$work/run" --tolerance 0.01% 2>>"$golden_transcript" >/dev/full
printf 'exit %s\n\n' "$?" >>"$golden_transcript"
mf_lines '"(within|tolerance|ops_outside)' compare --run "$work/run" --tolerance 10000% --json
# what cannot be
mf_lines '^!' train --model mixtral-8x7b --steps 1
mf_lines '^!' $job
mf_lines '^!' $job --steps 1 --lr-schedule sine
mf_lines '^!' $job --steps 1 --backend cuda
mf_lines '^!' $job --steps 1 --resume
mf_lines '^!' $job --steps 1 --gpus 3 --ep 2
mf_lines '^!' $job --steps 1 --dtype bf16 --precision bf16
mf_lines '^!' $job --steps 1 --out "$work/run"
mf_lines '^!' $job --steps 1 --resume --seed 9 --out "$work/run"
mf_lines '^!' train --init tests/data/hf/mixtral --data 1:README.md,x:README.md --global-batch 2 --seq 16 --steps 1
mf_lines '^!' train --init tests/data/hf/mixtral --data /nowhere/text --global-batch 2 --seq 16 --steps 1
mf_lines '^!' train --model tests/data/hf/llama --init tests/data/hf/mixtral --data README.md --global-batch 2 --seq 16 --steps 1
mf_lines '^!' train --init tests/data/hf/mixtral --data README.md --global-batch 2 --seq 16 --steps 1 --dtype bf16 --grad-dtype bf16
mf_lines '^!' train --model mixtral-8x7b --data README.md --global-batch 2 --seq 16 --steps 1 # more than any host has
small="--global-batch 2 --seq 16 --steps 1"
mf_lines '^!' $job --steps 1 --adam-beta1 1
mf_lines '^!' $job --steps 1 --adam-eps 0
mf_lines '^!' $job --steps 1 --lr 1e-3 --lr-min 2e-3
mf_lines '^!' $job --steps 1 --lr-schedule constant --lr-min 1e-5
# what the line about the rate says is what the steps do: after the warm-up a constant rate stays, others fall
for schedule in constant linear wsd; do
    mf_plain_lines '^rate' $job --steps 10 --lr 1e-3 --warmup 3 --lr-schedule $schedule --out "$work/rate-$schedule"
    sed 's/.*"lr": *\([^,}]*\).*/\1/' "$work/rate-$schedule/metrics.jsonl" | tr '\n' ' ' | sed 's/ $//' >>"$golden_transcript"
    echo >>"$golden_transcript"
done
mf_lines '^!' $job --steps 1 --aux-loss none --aux-coef 0.1
mf_lines '^!' $job --steps 1 --aux-loss sequence --set router_aux_loss_coef=0
mf_lines '^!' $job --steps 1 --bias-rate 0.1
mf_lines '^!' train --init tests/data/hf/llama --data README.md $small --z-coef 0.1
mf_lines '^!' train --init tests/data/hf/deepseek_v3 --data README.md $small
mf_lines '^!' $job --steps 1 --cluster h100
mf_lines '^!' $job --steps 1 --fp8-attention
mf_lines '^!' train --init tests/data/hf/llama --data README.md $small --capacity-factor 1
# what would be missing at the end is said at the beginning
head -c 5000 README.md >"$work/text.db"
mf_lines '^!|^step' $job --steps 2 --out "$work/late" --record "$work/text.db"
mf_lines '^!|^step' $job --steps 1 --out "$work/late" --record "$work/new.db"
# no CUDA graphs for CPU ranks
mf_lines 'what helps' compare --run "$work/run" --tolerance 10000%
# its folder has each op beside its measured time, and says which files of the run were read
"$golden_binary" compare --run "$work/run" --tolerance 10000% -o "$work/page" >/dev/null 2>&1
sed -n '1,3p' "$work/page/compared.csv" | cut -d, -f1-4 >>"$golden_transcript"
echo "$(($(wc -l <"$work/page/compared.csv") > 20)): there are ops" >>"$golden_transcript"
grep -o '"option": "run", "path": "[^"]*"' "$work/page/inputs.json" | sed "s|$work|TMP|" >>"$golden_transcript"
echo >>"$golden_transcript"
mf compare
mf compare --run /nowhere
# the cluster cpu is measured when it is first used, and kept, by `train` without --cluster, too
here="simulate --model scripts/demo --cluster cpu --global-batch 2 --seq 64 --precision fp32"
MOEFOLD_CPU=$work/kept && export MOEFOLD_CPU
mf_lines '^! (note|warning)|^ranks' $job --steps 1
rm -f "$work"/kept/cpu-*/*.busy # a mark of other programs, if there were any
mf_lines '^!|^rests' $here --gpus 1
# a plan for it, too, which says only when it is read how many ranks it is for
MOEFOLD_CPU=off $golden_binary plan --model scripts/demo --cluster cpu --gpus 1 --global-batch 2 --seq 64 --precision fp32 --out "$work/cpu-plan.json" >/dev/null 2>&1
MOEFOLD_CPU=$work/kept-by-plan
mf_lines '^! (note|warning)|^rests' simulate --plan "$work/cpu-plan.json" --model scripts/demo
MOEFOLD_CPU=$work/kept
# measured again, an op keeps its shorter time: one that was disturbed loses it, one that was not keeps it
db=$(echo "$work"/kept/cpu-*/cpu-1.db)
$golden_binary profile --store "$db" --export "$work/measured.csv" >/dev/null
awk -F, -v OFS=, 'NR == 1 { print }
    $1 == "cpu" && $2 == "memory" && $3 ~ /^op=rmsnorm_fwd/ && !long++ { $4 *= 168; $5 *= 168; $6 *= 168; print }
    $1 == "cpu" && $2 == "gemm" && !short++ { $4 /= 168; $5 /= 168; $6 /= 168; print }' "$work/measured.csv" >"$work/planted.csv"
$golden_binary profile --store "$db" --import "$work/planted.csv" >/dev/null
rm "${db%.db}.json"
mf_lines '^! (note|warning)' $here --gpus 1
$golden_binary profile --store "$db" --export "$work/again.csv" >/dev/null
awk -F, 'NR == FNR { planted[$2 "," $3] = $4; next }
    FNR > 1 && $1 == "cpu" && ($2 "," $3) in planted {
        print $2, $4 < 0.2 * planted[$2 "," $3] ? "measured anew" : $4 == planted[$2 "," $3] ? "as it was" : "otherwise" }' \
    "$work/planted.csv" "$work/again.csv" >>"$golden_transcript"
MOEFOLD_CPU=off
mf_lines '^!|^rests' $here --gpus 1
# where nothing can be kept, nobody waits for a measurement
MOEFOLD_CPU=/dev/null/kept
mf_lines '^! note' $here --gpus 1
MOEFOLD_CPU=off
rm -f "$work"/kept/cpu-*/*.busy
ls "$work"/kept/cpu-*/ >>"$golden_transcript"
sed -i '/^! \(warning\|note\): cluster cpu: .* measures\( it\)* again$/d' "$golden_transcript"
# a checkpoint that lost a bit is named, and not used
printf 'x' | dd of="$work/run/checkpoints/step-00000003/rank-00000.safetensors" bs=1 seek=200000 conv=notrunc 2>/dev/null
golden_run $job --steps 4 --shuffle off --resume --out "$work/run" 2>&1 | sed -n 's/.*\(rank-00000.safetensors: offset [0-9]*: tensor "\).*/\1.../p' >>"$golden_transcript"
golden_end
