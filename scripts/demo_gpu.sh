#!/bin/sh
# Trains a Mixture-of-Experts model of 257 million parameters (57 million of them active) for
# five minutes on one GPU, on real text: the Python sources of this machine's Python and its packages, read where
# they lie, a token a byte. Takes the program, minutes and further options of `train`; writes OUT (build/demo-gpu).
# Prints the loss as it falls; exit 1 when it has not. LAYERS, BATCH, MICRO and SEQ make it smaller.
set -eu
moefold=${1:-build/moefold}
minutes=${2:-5}
[ $# -lt 2 ] || shift 2
out=${OUT:-build/demo-gpu}
most_B=${MOST_B:-268435456} batch=${BATCH:-32} seq=${SEQ:-2048}
mkdir -p "$out"
rm -rf "$out/run"
python3 - "$out/text" "$most_B" <<'P'
import os, sys, sysconfig
to, most, size = open(sys.argv[1], "wb"), int(sys.argv[2]), 0
for top in dict.fromkeys(sysconfig.get_paths()[k] for k in ("stdlib", "purelib", "platlib")):
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted(f for f in files if f.endswith(".py")):
            try:
                data = open(os.path.join(folder, name), "rb").read()
            except OSError:
                continue
            if size + len(data) <= most:
                size += to.write(data)
P
ls -l "$out/text" | awk '{print "text: " $5 " bytes of Python sources"}'

train() { # STEPS FOLDER further options
    steps=$1
    folder=$2
    shift 2
    set -- "$moefold" train --model olmoe-1b-7b --set vocab_size=256 --set hidden_size=768 --set "num_hidden_layers=${LAYERS:-12}" \
        --set num_attention_heads=12 --set num_key_value_heads=12 --set num_experts=32 --set num_experts_per_tok=4 \
        --set intermediate_size=256 --global-batch "$batch" --micro-batch "${MICRO:-16}" --seq "$seq" --cuda-graph step \
        --data "$out/text" --lr 1e-3 --warmup 100 --steps "$steps" --out "$folder" "$@"
    printf '\n$ %s\n' "$*"
    "$@" >"$out/train.log" || {
        code=$?
        tail -n 20 "$out/train.log"
        exit $code
    }
}
# What a step takes tells how many fit into the minutes.
rm -rf "$out/first"
train "${FIRST:-40}" "$out/first" "$@"
steps=$(python3 - "$out/first/metrics.jsonl" "$minutes" <<'P'
import json, sys
times = sorted(json.loads(line)["step_time_s"] for line in open(sys.argv[1]))
print(max(20, int(60 * float(sys.argv[2]) / times[len(times) // 2])))
P
)
rm -rf "$out/first"
train "$steps" "$out/run" "$@"
tail -n 2 "$out/train.log"
python3 - "$out/run/metrics.jsonl" "$((batch * seq))" <<'P'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
n = len(rows)
part = max(1, n // 20)
print("\n%8s %10s %8s" % ("step", "tokens", "loss"))
tokens = 0
for i in range(0, n, part):
    some = rows[i : i + part]
    tokens += len(some) * int(sys.argv[2])
    print("%8d %10.3g %8.3f" % (i + len(some), tokens, sum(r["lm_loss"] for r in some) / len(some)))
first, last = (sum(r["lm_loss"] for r in x) / len(x) for x in (rows[:part], rows[-part:]))
print("loss %.3f -> %.3f nats a byte: %s" % (first, last, "it falls" if last < 0.8 * first else "IT DOES NOT FALL"))
sys.exit(not last < 0.8 * first)
P
