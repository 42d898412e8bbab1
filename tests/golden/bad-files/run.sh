# Files that are truncated, huge, binary, deeply nested, of a wrong shape or not there: one clear
# line, exit 2 (1 for a damaged store), never a crash.
. "${0%/*}/../driver.sh"
job='--cluster h100 --gpus 8 --global-batch 8 --seq 4096'
model=profiles/models/mixtral-8x7b.json

head -c 200 $model >"$work/short.json"
mf simulate --model "$work/short.json" $job
: >"$work/empty.json"
mf simulate --model "$work/empty.json" $job
sed 's/"num_local_experts": 8/"num_local_experts": "eight"/' $model >"$work/type.json"
mf simulate --model "$work/type.json" $job
sed 's/"num_local_experts": 8/"num_local_experts": 8.5/' $model >"$work/half.json"
mf simulate --model "$work/half.json" $job
sed 's/"hidden_size": [0-9]*/"hidden_size": -1/' $model >"$work/range.json"
mf simulate --model "$work/range.json" $job
sed 's/"hidden_size"/"hiden_size"/' $model >"$work/key.json"
mf simulate --model "$work/key.json" $job
sed 's/"model_type": "mixtral"/"model_type": "mamba"/' $model >"$work/family.json"
mf simulate --model "$work/family.json" $job
sed 's/"hidden_size"/"hidden_size": 1, "hidden_size"/' $model >"$work/twice.json"
mf simulate --model "$work/twice.json" $job
printf '\177ELF\002\001\001\000\000\377\376' >"$work/binary.json"
mf simulate --model "$work/binary.json" $job
head -c 100000 /dev/zero | tr '\000' '[' >"$work/deep.json"
mf simulate --model "$work/deep.json" $job
truncate -s 80M "$work/huge.json"
mf simulate --model "$work/huge.json" $job
mkdir "$work/folder"
mf simulate --model "$work/folder" $job

$golden_binary simulate --model mixtral-8x7b --cluster h200 --gpus 64 --global-batch 256 --seq 4096 \
    --ep 8 --pp 2 --out "$work/plan.json" >/dev/null
head -c 900 "$work/plan.json" >"$work/plan-short.json"
mf simulate --plan "$work/plan-short.json"
sed 's/"version": 1/"version": 99/' "$work/plan.json" >"$work/plan-new.json"
mf simulate --plan "$work/plan-new.json"
sed 's/"tp": 1/"tp": 3/' "$work/plan.json" >"$work/plan-tp.json"
mf simulate --plan "$work/plan-tp.json"
sed 's/"ep"/"epp"/' "$work/plan.json" >"$work/plan-key.json"
mf simulate --plan "$work/plan-key.json"
sed 's/"first": \[0, /"first": [0, 9/' "$work/plan.json" >"$work/plan-stages.json"
mf simulate --plan "$work/plan-stages.json"
mf simulate --plan "$work/plan.json" --model mixtral-8x22b
mf simulate --plan "$work/plan.json" --tp 3
mf simulate --plan "$work/none.json"
mf simulate --plan $model
mf simulate --plan "$work/plan.json" --out /nowhere/plan.json
# a search does not begin whose plan could not be kept
mf plan --model mixtral-8x7b --cluster h100 --gpus 8 --global-batch 8 --seq 4096 --out /nowhere/plan.json
mf plan --model mixtral-8x7b --cluster h100 --gpus 8 --global-batch 8 --seq 4096 --out "$work"
mf tune --plan "$work/plan.json" --out "$work"

echo 'layer,expert' >"$work/routing.csv"
mf simulate --plan "$work/plan.json" --routing "$work/routing.csv"
echo '[[1, 2, 3]]' >"$work/routing.json"
mf simulate --plan "$work/plan.json" --routing "$work/routing.json"

head -c 20000 /dev/urandom >"$work/noise.db"
mf simulate --plan "$work/plan.json" --store "$work/noise.db"

echo '[[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8]]' >"$work/rows.json"
mf simulate --plan "$work/plan.json" --routing "$work/rows.json"
# a pipe that nobody writes to is refused, one that was handed over is read
mkfifo "$work/pipe"
golden_limit="timeout -s KILL 20"
mf models "$work/pipe"
mf simulate --plan "$work/pipe"
cat profiles/models/qwen3-8b.json | $golden_limit "$golden_binary" models /dev/stdin >"$work/out" 2>&1 || cat "$work/out"
cat profiles/clusters/h100.json | $golden_limit "$golden_binary" clusters /dev/stdin >"$work/out" 2>&1 || cat "$work/out"
golden_end
