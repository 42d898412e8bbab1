#!/bin/sh
# What `plan --runs-on` finds can be said and is read back as the same job: for each model and cluster
# a plan is made, exported, imported and simulated; times and memory have to be equal and nothing may
# differ. With MEGATRON_LM=DIR (a checkout at the commit that exports name) and a python3 that has
# PyTorch, the scripts go through Megatron-LM's own parser and validation, too.
#   usage: test-launch.sh BUILD [MODEL...]
set -eu
build=$1
shift
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
moefold=$build/moefold
python=${PYTHON:-python3}
if [ $# -eq 0 ]; then
    set -- llama3-8b llama3-70b llama3-405b mixtral-8x7b mixtral-8x22b qwen1.5-moe-a2.7b \
        qwen2-57b-a14b qwen3-30b-a3b qwen3-235b-a22b deepseek-v2-lite deepseek-v2 deepseek-v3 kimi-k2 \
        gpt-oss-20b gpt-oss-120b olmoe-1b-7b glm-4.5
fi

# GPUs that a model trains on with room to choose.
gpus_of() {
    case $1 in
    llama3-405b | deepseek-v3 | kimi-k2) echo 1024 ;;
    qwen3-235b-a22b | glm-4.5 | deepseek-v2 | gpt-oss-120b | llama3-70b | mixtral-8x22b) echo 256 ;;
    *) echo 32 ;;
    esac
}

failed=0
same() { # PLAN'S-EXPORT IMPORTED NAME
    "$python" - "$1" "$2" "$3" <<'PY' || failed=$((failed + 1))
import json
import sys

said, read = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
there = read["plan"]["prediction"]
problems = [str(x["what"]) for x in said["not_the_same"]]
problems += [f"not read: {name}" for name in read["not_read"]]
for key in ("step_time_s", "peak_memory_B"):
    if not said[key] == there[key] == said["plan_" + key]:
        problems.append(f"{key}: plan {said['plan_' + key]}, said {said[key]}, read {there[key]}")
print("ok  " if not problems else "FAIL", sys.argv[3], *problems, sep="  ")
sys.exit(1 if problems else 0)
PY
}

for model; do
    for cluster in h100 gb200; do
        for target in megatron bridge; do
            name=$model-$cluster-$target
            gpus=$(gpus_of "$model")
            [ -s "$work/$model-$cluster.json" ] || "$moefold" plan --model "$model" --cluster $cluster \
                --gpus "$gpus" --global-batch $((4 * gpus)) --seq 4096 --runs-on $target \
                --out "$work/$model-$cluster.json" >/dev/null
            "$moefold" export --plan "$work/$model-$cluster.json" --format $target >"$work/$name.sh"
            "$moefold" export --plan "$work/$model-$cluster.json" --format $target --json \
                >"$work/$name.said"
            "$moefold" import "$work/$name.sh" --json >"$work/$name.read"
            same "$work/$name.said" "$work/$name.read" "$name"
        done
    done
done

if [ -z "${MEGATRON_LM:-}" ] || ! "$python" -c 'import torch' 2>/dev/null; then
    echo "SKIPPED: Megatron-LM's parser and validation (MEGATRON_LM=DIR and a python3 with torch)"
else
    "$python" "$here/tests/megatron/check_exports.py" "$MEGATRON_LM" "$work"/*-megatron.sh 2>/dev/null ||
        failed=$((failed + 1))
fi
[ "$failed" -eq 0 ]
