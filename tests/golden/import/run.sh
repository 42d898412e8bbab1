# A job that exists as a plan: a script, flags, a log beside it; what is not known is listed; a report
# on what would be faster.
. "${0%/*}/../driver.sh"
$golden_binary simulate --model mixtral-8x7b --cluster h100 --gpus 32 --global-batch 128 --seq 4096 \
    --tp 2 --pp 2 --ep 8 --recompute norm,act --out "$work/plan.json" >/dev/null
$golden_binary export --plan "$work/plan.json" >"$work/launch.sh"
mf_lines '^layout|micro-batch|1f1b|recompute' import "$work/launch.sh"
# What Megatron does besides is in its profile, not in the plan: it comes back all the same. A script leaves
# nothing open, so that its band is narrower.
theirs=$($golden_binary simulate --model mixtral-8x7b --cluster h100 --gpus 32 --global-batch 128 --seq 4096 \
    --tp 2 --pp 2 --ep 8 --software megatron-26.06 --out "$work/theirs.json" | sed -n 's/^\(step time\|memory  \)\( *[0-9.]* [a-zA-Z]*\).*/\1\2/p')
$golden_binary export --plan "$work/theirs.json" >"$work/theirs.sh"
back=$($golden_binary import "$work/theirs.sh" | sed -n 's/^\(step time\|memory  \)\( *[0-9.]* [a-zA-Z]*\).*/\1\2/p')
if [ -n "$theirs" ] && [ "$theirs" = "$back" ]; then
    echo "a plan priced for Megatron comes back with its time and memory" >>"$golden_transcript"
else
    echo "NOT what went out: $theirs; what came back: $back" >>"$golden_transcript"
fi
cat >"$work/train.log" <<'LOG'
 iteration 1/ 9 | elapsed time per iteration (ms): 90000.0 | throughput per GPU (TFLOP/s/GPU): 10.0 |
 iteration 2/ 9 | elapsed time per iteration (ms): 2800.0 | throughput per GPU (TFLOP/s/GPU): 400.0 |
 iteration 3/ 9 | elapsed time per iteration (ms): 2900.0 | throughput per GPU (TFLOP/s/GPU): 380.0 |
LOG
mf_lines '^measured|TFLOP/s/GPU as' import "$work/launch.sh" "$work/train.log"
mf_lines 'measured|step time|TFLOP|correction' compare --plan "$work/plan.json" --log "$work/train.log" \
    --tolerance 90% --out "$work/fix.json"
mf_lines '^rests on' simulate --plan "$work/plan.json" --software "$work/fix.json"
mf_lines '^1\.|^2\.|^3\.|^verdict' tune --plan "$work/plan.json" --runs-on megatron --threads 2
mf_lines 'not read|--no-such|^layout' import TP=2 --model mixtral-8x7b --gpus 32 --cluster h100 -- \
    --tensor-model-parallel-size 2 --seq-length 4096 --no-such-flag 3 --bf16
mf import
mf import "$work/none.sh"
mf import --cluster h100 --gpus 8 -- --hidden-size 77 --seq-length 128
mf import --cluster h100 --gpus 8 --model mixtral-8x7b -- --seq-length 128x
mf import --cluster h100 --model mixtral-8x7b -- --seq-length 128
mf compare --plan "$work/plan.json" --log "$work/launch.sh"
golden_end
