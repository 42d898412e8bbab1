#!/bin/sh
# The main job on real input: plans DeepSeek-V3 (its own config.json) on 1,024 H100 over the whole
# space, with proof, then simulates the planned step. Takes the build folder; writes BUILD/demo/.
set -eu
build=${1:-build}
out=$build/demo
mkdir -p "$out"

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

run "$build/moefold" plan --model profiles/models/deepseek-v3.json --cluster h100 --gpus 1024 \
    --global-batch 8192 --seq 4096 --out "$out/plan.json"
run "$build/moefold" simulate --plan "$out/plan.json" --model profiles/models/deepseek-v3.json \
    --trace "$out/trace.json"
run "$build/moefold" export --plan "$out/plan.json" --model profiles/models/deepseek-v3.json

printf '\nThe plan is %s, the step as a trace %s (open it in ui.perfetto.dev).\n' \
    "$out/plan.json" "$out/trace.json"
