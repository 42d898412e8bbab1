# A job that exists as a plan: a script, flags, a log beside it; what is not known is listed; a report
# on what would be faster.
. "${0%/*}/../driver.sh"
$golden_binary simulate --model mixtral-8x7b --cluster h100 --gpus 32 --global-batch 128 --seq 4096 \
    --tp 2 --pp 2 --ep 8 --recompute norm,act --out "$work/plan.json" >/dev/null
$golden_binary export --plan "$work/plan.json" >"$work/launch.sh"
mf_lines '^layout|micro-batch|1f1b|recompute' import "$work/launch.sh"
# It was priced as moefold trains, and is read so; who runs it is said, unless a profile is asked for.
mf_lines '^! ' import "$work/launch.sh"
mf_lines '^! ' import "$work/launch.sh" --software moefold
mf_lines '"warnings|times are' import "$work/launch.sh" --json
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
# The routing that it was planned for comes back, too, from a file of counts with a blank in its name as well.
awk 'BEGIN { for (i = 0; i < 8; i++) printf "%s%d", i ? "," : "", 100 * (8 - i); print "" }' >"$work/hot experts.csv"
for routing in zipf:1 "hot experts.csv"; do
    (
        binary=$PWD/$golden_binary
        cd "$work"
        uneven=$("$binary" simulate --model mixtral-8x7b --cluster h100 --gpus 32 --global-batch 128 --seq 4096 \
            --tp 2 --pp 2 --ep 8 --routing "$routing" --out uneven.json | sed -n 's/^step time *\([0-9.]* [a-z]*\).*/\1/p')
        "$binary" export --plan uneven.json >uneven.sh
        back=$("$binary" import uneven.sh | sed -n 's/^step time *\([0-9.]* [a-z]*\).*/\1/p')
        if [ -n "$uneven" ] && [ "$uneven" = "$back" ]; then
            echo "a plan for $routing comes back with its time"
        else
            echo "NOT what went out under $routing: $uneven; what came back: $back"
        fi
    ) >>"$golden_transcript"
done
cat >"$work/train.log" <<'LOG'
 iteration 1/ 9 | elapsed time per iteration (ms): 90000.0 | throughput per GPU (TFLOP/s/GPU): 10.0 |
 iteration 2/ 9 | elapsed time per iteration (ms): 2800.0 | throughput per GPU (TFLOP/s/GPU): 466.0 |
 iteration 3/ 9 | elapsed time per iteration (ms): 2900.0 | throughput per GPU (TFLOP/s/GPU): 450.0 |
LOG
mf_lines '^measured|TFLOP/s/GPU as|^verdict|^ .*(words|[.]json|predicted N)' import "$work/launch.sh" "$work/train.log"
# A prediction that is far off its log is compared before anything is made of it.
sed 's/2[89]00.0/4900.0/; s/466.0/266.3/; s/450.0/266.3/' "$work/train.log" >"$work/slow.log"
(
    golden_in_work
    mf_lines '^verdict|^ .*(words|[.]json|predicted N)' import launch.sh slow.log --out slow.json
)
mf_lines 'measured|step time|TFLOP|correction' compare --plan "$work/plan.json" --log "$work/train.log" \
    --tolerance 90% --out "$work/fix.json"
# What PyTorch allocated is not held against all that the GPU holds, which moefold's prices are of.
sed '$a[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 9000.5 |' "$work/train.log" >"$work/memory.log"
mf_lines '^! |^memory|GPU holds|^verdict|memory' compare --plan "$work/plan.json" --log "$work/memory.log" --tolerance 90%
mf_lines '"allocated|times are' compare --plan "$work/plan.json" --log "$work/memory.log" --tolerance 90% --json
# A log of more FLOPs is another job's: its correction is written only with --force, and has a date.
sed 's/: 466.0/: 900.0/; s/: 450.0/: 870.0/' "$work/train.log" >"$work/other.log"
mf_lines 'correction|written|^verdict' compare --plan "$work/plan.json" --log "$work/other.log" --tolerance 90% --out "$work/other.json"
[ -e "$work/other.json" ] && echo "written all the same" >>"$golden_transcript"
mf_lines 'correction|written' compare --plan "$work/plan.json" --log "$work/other.log" --tolerance 90% --out "$work/other.json" --force
grep -c "predicted on .*; 2026-11-30" "$work/other.json" >>"$golden_transcript"
# So say import and tune, which make nothing of it.
for command in import "tune --effort 1"; do
    mf_plain_lines 'measured|more FLOPs|another model|script of the' $command "$work/launch.sh" "$work/other.log"
done
mf_lines '"flops_ratio|"other_job|times are' import "$work/launch.sh" "$work/other.log" --json
# What no correction explains is shown all the same, but is none to keep.
sed 's/2[89]00.0/28.0/' "$work/train.log" >"$work/fast.log"
mf_lines 'measured|step time|TFLOP|correction' compare --plan "$work/plan.json" --log "$work/fast.log"
mf_lines '^!' compare --plan "$work/plan.json" --log "$work/fast.log" --out "$work/none.json"
mf_lines '^rests on' simulate --plan "$work/plan.json" --software "$work/fix.json"
mf_lines '^1\.|^2\.|^3\.|^verdict' tune --plan "$work/plan.json" --runs-on megatron --threads 2
mf_lines 'not read|--no-such|^layout' import TP=2 --model mixtral-8x7b --gpus 32 --cluster h100 -- \
    --tensor-model-parallel-size 2 --seq-length 4096 --no-such-flag 3 --bf16
# What is no job is answered with where it goes; so are flags in front of "--".
mf import "$work/plan.json"
mf import profiles/models/olmoe-1b-7b.json --cluster h100
mf import --cluster h100 --tensor-model-parallel-size 2
mf_plain_lines '^!' tune "$work/plan.json"
# Where the present plan is the best, none is written, which is said.
$golden_binary plan --model olmoe-1b-7b --cluster h100 --gpus 8 --global-batch 64 --seq 4096 --effort 1 --out "$work/best.json" >/dev/null
mf_lines '^verdict|^!' tune --plan "$work/best.json" --effort 1 --out "$work/better.json"
# Flags in quotes with their values, as scripts of Megatron-LM keep them in arrays.
cat >"$work/quoted.sh" <<'SCRIPT'
TP=${1:-2}
ARGS=(--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
    --num-query-groups 8 --seq-length 8192 --micro-batch-size=1 --global-batch-size 128 --bf16)
if [[ "$DTYPE" == "fp8" ]]; then
    ARGS+=("--fp8-format hybrid" "--fp8-recipe blockwise" "--no-such-flag 7")
fi
DATA=("--mock-data" "--tokenizer-type NullTokenizer" "--split '99,1,0'")
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py ${ARGS[@]} ${DATA[@]} --tensor-model-parallel-size $TP --use-distributed-optimizer
SCRIPT
mf_plain_lines 'not read|--no-such|^layout|1f1b|^!' import "$work/quoted.sh" --cluster h100
# Megatron-Bridge's launcher has short flags; a recipe that was not read leaves its beginning to be assumed.
echo 'torchrun --nproc-per-node 8 --nnodes 2 scripts/training/run_recipe.py --recipe qwen3_30b_a3b_pretrain_config -tp 2 -gb 256 -mb 2 -pp 2 -vp 4 model.expert_model_parallel_size=8' >"$work/bridge.sh"
mf import "$work/bridge.sh" --cluster h100
echo ' -sl 4096' >>"$work/bridge.sh"
mf_plain_lines 'assumed|front|^layout|1f1b|interleaved|samples|not read|^!' import "$work/bridge.sh" --cluster h100
mf_plain_lines 'assumed|front|^layout|1f1b|samples|not read|^!' import --cluster h100 --model qwen3-30b-a3b --gpus 16 \
    model.seq_length=4096 train.global_batch_size=256 train.micro_batch_size=1 model.expert_model_parallel_size=8
# A recipe brings the modules of its checkout that it imports, in circles too, and their constants; what is not there
# (torch) is passed over.
mkdir -p "$work/src/megatron/bridge/perf/qwen" "$work/src/megatron/bridge/recipes/h100"
cat >"$work/src/megatron/bridge/recipes/h100/base.py" <<'RECIPE'
from megatron.bridge.perf.qwen.fast import fast_16gpu_config
SEQ_LENGTH = 8192
def qwen3_30b_a3b_pretrain_config():
    cfg = common()
    cfg.model.seq_length = SEQ_LENGTH  # a constant
    cfg.model.expert_model_parallel_size = 4
    cfg.model.tensor_model_parallel_size = 2
    cfg.train.global_batch_size = 512
    return cfg
RECIPE
echo 'from megatron.bridge.recipes.h100.base import qwen3_30b_a3b_pretrain_config as start_config' \
    >"$work/src/megatron/bridge/recipes/__init__.py"
cat >"$work/src/megatron/bridge/perf/qwen/shared.py" <<'RECIPE'
def narrow(cfg):
    cfg.model.tensor_model_parallel_size = 1
RECIPE
# The models' classes bring more modules than are read: they say nothing of a layout, and are passed over.
mkdir -p "$work/src/megatron/bridge/models"
i=0
while [ $i -lt 300 ]; do
    i=$((i + 1))
    echo "from megatron.bridge.models.m$((i + 1)) import Model" >"$work/src/megatron/bridge/models/m$i.py"
done
cat >"$work/src/megatron/bridge/perf/qwen/fast.py" <<'RECIPE'
import torch
from torch import nn
from megatron.bridge.models.m1 import (
    Model,  # a class
    Model as Base,
)
from megatron.bridge.recipes import start_config
from .shared import narrow
def fast_16gpu_config():
    cfg = start_config()
    narrow(cfg)
    cfg.model.expert_model_parallel_size = 8
RECIPE
mf_plain_lines '^qwen|^layout|^!' import "$work/src/megatron/bridge/perf/qwen/fast.py" --recipe fast_16gpu_config \
    --model qwen3-30b-a3b --gpus 16 --cluster h100
rm -r "$work/src/megatron/bridge/recipes" # and without: what the recipe itself does not say is missing
mf_plain_lines '^qwen|^layout|^!' import "$work/src/megatron/bridge/perf/qwen/fast.py" --recipe fast_16gpu_config \
    --model qwen3-30b-a3b --gpus 16 --cluster h100
# A script of ModelZoo brings the flags of its model, unless other flags of a model are given.
mkdir -p "$work/zoo/model_configs/benchmarking" "$work/zoo/best_practice/qwen3"
cat >"$work/zoo/model_configs/benchmarking/Qwen3-30B-A3B.yaml" <<'FLAGS'
MODEL_ARGS:
  --num-layers: 48
  --hidden-size: 2048
  --num-attention-heads: 32
  --group-query-attention: true
  --num-query-groups: 4
  --num-experts: 128
  --moe-ffn-hidden-size: 768
  --moe-router-topk: 8
  --seq-length: ${SEQ_LEN}
  --global-batch-size: ${GBS}
  --micro-batch-size: ${MBS}
  --tensor-model-parallel-size: ${TP}
  --pipeline-model-parallel-size: ${PP}
  --expert-model-parallel-size: ${EP}
  --expert-tensor-parallel-size: 1
  --num-layers-per-virtual-pipeline-stage: ${LAYERS_PER_VP}
  --moe-token-dispatcher-type: ${TYPE_OF_DISPATCHER}
  --use-distributed-optimizer: true
FLAGS
printf 'export MODEL=Qwen3-30B-A3B\nexport MBS=2\nTP=2 EP=16 NNODES=4 bash sbatch_benchmarking.sh --recompute-granularity full\n' \
    >"$work/zoo/best_practice/qwen3/run.sh"
mf_plain_lines '^qwen|^layout|micro-batch|^!' import "$work/zoo/best_practice/qwen3/run.sh" --cluster h100
# What its launcher makes of its own variables is read, too.
mf_plain_lines '^qwen|^layout|not read|^!' import VPP=2 PP=2 DISPATCHER=alltoall "$work/zoo/best_practice/qwen3/run.sh" --cluster h100
mf_plain_lines '^qwen|^mixtral|^layout|^!' import "$work/zoo/best_practice/qwen3/run.sh" --cluster h100 --gpus 8 -- \
    --hidden-size 4096 --num-layers 32 --num-experts 8 --seq-length 4096
# Where nothing fits, tune finds what does with the optimizer on the host, and stays with Megatron.
mf_lines 'combinations|optimizer|^verdict|^ plan|memory free|moefold' tune --cluster h100 --model qwen3-8b --gpus 1 --software moefold -- \
    --seq-length 4096 --micro-batch-size 1 --global-batch-size 8 --bf16
mf import
mf import "$work/none.sh"
mf import --cluster h100 --gpus 8 -- --hidden-size 77 --seq-length 128
mf import --cluster h100 --gpus 8 --model mixtral-8x7b -- --seq-length 128x
mf import --cluster h100 --model mixtral-8x7b -- --seq-length 128
mf compare --plan "$work/plan.json" --log "$work/launch.sh"
golden_end
