#!/bin/sh
# What `plan --runs-on` finds can be said and is read back as the same job, for every shipped model;
# differences of other plans are printed in full (tests/megatron/round_trip.py). With a python3 that has
# PyTorch the scripts go through Megatron's own checks, too: MEGATRON_LM=DIR, a checkout at the commit
# that exports name, has the parser and its validation; PyPI's megatron-core, where it is installed,
# has the transformer's configuration and the pipeline layout. Scripts with a planted fault are to be refused.
#   usage: test-launch.sh BUILD [MODEL...]
set -eu
build=$1
shift
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
models=$(echo "$*" | tr ' ' ',')
failed=0

"$python" "$here/tests/megatron/round_trip.py" "$build/moefold" "$work" --models "$models" \
    --random "${RANDOM_JOBS:-20}" || failed=1

if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "SKIPPED: Megatron's own checks: $python has no PyTorch (PYTHON=... names another)"
elif [ -n "${MEGATRON_LM:-}" ]; then
    # the settings of connections that Megatron asserts are those of TP on Hopper without FSDP
    "$build/moefold" plan --model qwen3-30b-a3b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --runs-on megatron \
        --tp 2 --zero 1 --expert-zero 1 --schedule 1f1b --effort 1 --out "$work/tp.json" >/dev/null || failed=1
    "$build/moefold" export --plan "$work/tp.json" >"$work/tp-megatron.sh" || failed=1
    # and others those of FSDP, which no search may choose
    "$build/moefold" plan --model qwen3-30b-a3b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --runs-on megatron \
        --zero 3 --expert-zero 3 --effort 1 --out "$work/fsdp.json" >/dev/null || failed=1
    "$build/moefold" export --plan "$work/fsdp.json" >"$work/fsdp-megatron.sh" || failed=1
    "$python" "$here/tests/megatron/check_exports.py" "$MEGATRON_LM" "$work"/*-megatron.sh || failed=1
    "$python" "$here/tests/megatron/check_exports.py" "$MEGATRON_LM" --plant "$work"/*-megatron.sh || failed=1
elif "$python" -c 'import megatron.core' 2>/dev/null; then
    echo "megatron-core alone: no argument parser (MEGATRON_LM=DIR has it)"
    "$python" "$here/tests/megatron/check_exports.py" - "$work"/*-megatron.sh || failed=1
    "$python" "$here/tests/megatron/check_exports.py" - --plant "$work"/*-megatron.sh || failed=1
else
    echo "SKIPPED: Megatron's own checks: neither MEGATRON_LM=DIR nor megatron-core in $python"
fi

# Scripts that build their model make Bridge's configuration: a checkout at that commit, with 3rdparty/Megatron-LM, or
# BRIDGE_MEGATRON=DIR, a checkout of Megatron-LM at the commit that Bridge has there.
core=${BRIDGE_MEGATRON:-${BRIDGE:-}/3rdparty/Megatron-LM}
if ! why=$("$python" -c 'import hydra, omegaconf, tensorboard, torch' 2>&1); then
    echo "SKIPPED: programs for Megatron-Bridge: $python imports not all of torch, tensorboard, omegaconf and hydra-core:" \
        "$(echo "$why" | tail -n 1)"
elif [ -z "${BRIDGE:-}" ] || [ ! -d "$core/megatron/core" ]; then
    echo "SKIPPED: programs for Megatron-Bridge: no BRIDGE=DIR with its 3rdparty/Megatron-LM (or BRIDGE_MEGATRON=DIR)"
elif ! grep -lq 'TRAIN=' "$work"/*-bridge.sh; then
    echo "SKIPPED: programs for Megatron-Bridge: recipes build all of these models"
else
    "$python" "$here/tests/megatron/check_bridge.py" "$BRIDGE" "$core" "$work"/*-bridge.sh || failed=1
    "$python" "$here/tests/megatron/check_bridge.py" "$BRIDGE" "$core" --plant "$work"/*-bridge.sh || failed=1
fi

# What import reads of Bridge's recipes is what they set: BRIDGE=DIR, a checkout at the commit that exports name.
if [ -n "${BRIDGE:-}" ]; then
    "$python" "$here/tests/megatron/check_recipes.py" "$BRIDGE" "$build/moefold" || failed=1
else
    echo "SKIPPED: recipes of Megatron-Bridge: no BRIDGE=DIR"
fi
[ "$failed" -eq 0 ]
