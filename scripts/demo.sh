#!/bin/sh
# The main job on real input: plans DeepSeek-V3 (its own config.json) on 1,024 H100 over the whole
# space, with proof, then simulates the planned step. Takes the build folder; writes BUILD/demo/.
# Then a small model trains for a minute on CPU ranks (scripts/demo_train.sh).
set -eu
build=${1:-build}
out=$build/demo
model=profiles/models/deepseek-v3.json
job="--model $model --cluster h100 --gpus 1024 --global-batch 8192 --seq 4096"
mkdir -p "$out"

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

# $job is split into its words on purpose.
run "$build/moefold" plan $job --out "$out/plan.json"
run "$build/moefold" simulate --plan "$out/plan.json" --model "$model" --trace "$out/trace.json"
run "$build/moefold" export --plan "$out/plan.json" --model "$model"

printf '\nThe plan is %s, the step as a trace %s (open it in ui.perfetto.dev).\n' \
    "$out/plan.json" "$out/trace.json"

sh "${0%/*}/demo_train.sh" "$build"
