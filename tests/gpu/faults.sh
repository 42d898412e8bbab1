#!/bin/sh
# What a run survives, and what it leaves behind: checkpoints between CPU ranks and a GPU, SIGTERM, kill -9, out of
# memory, a rank that hangs, a kernel that never ends, --on-failure restart, faults that pass and faults that last
# (--rerun), a slow rank, --deterministic.
#   faults.sh [PROGRAM...]      the program, such as "/tmp/moefold-gpu/run moefold" [build/moefold]
# Needs python3, with PyTorch for "out of memory", and nvidia-smi. A line for each check, exit 1 when one fails.
# BACKEND=cpu  tries the script out where there is no GPU, and says which checks that leaves out
# FLIP=FILE    the library of tests/preload/fault_cuda.c (fault_expf.c on CPU ranks): else that of build/, of the
#              bundle, or what cc makes of it
# ONLY=TEXT    the parts named there: checkpoint, sigterm, restart, rerun, slow, kill, memory, hang, kernel,
#              deterministic
set -u
[ $# -gt 0 ] || set -- build/moefold
here=$(cd "$(dirname "$0")/../.." && pwd)
data=${DATA:-$here/docs/CLI.md}
gpu=cuda
[ "${BACKEND:-cuda}" != cpu ] || gpu=cpu
if [ $gpu = cuda ] && ! nvidia-smi -L 2>/dev/null | grep -q .; then
    echo "MF_SKIPPED 6 no GPU: faults of GPU runs were not tried"
    exit 0
fi
[ -r "$data" ] || {
    echo "faults.sh: $data cannot be read: a text to train on is needed (DATA=FILE)"
    exit 1
}
work=$(mktemp -d "${TMPDIR:-/tmp}/moefold-faults.XXXXXX") || exit 1
mark=MOEFOLD_FAULTS=$work
passed=0
failed=0
left=0

# --- processes: each has the mark in its environment, so that none is missed --------------------------------------
marked() {
    grep -lsa "$mark" /proc/[0-9]*/environ | cut -d/ -f3
}
kill_marked() {
    for process in $(marked); do kill -9 "$process" 2>/dev/null; done
}
trap 'kill_marked; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP

# start NAME COMMAND: in the background; its output in NAME.log, its process in $pid, its exit code in NAME.code
start() {
    name=$1
    shift
    rm -f "$work/$name.code" "$work/$name.pid"
    (
        env "$mark" "$@" >"$work/$name.log" 2>&1 &
        echo $! >"$work/$name.begun"
        mv "$work/$name.begun" "$work/$name.pid"
        wait $!
        echo $? >"$work/$name.ended"
        mv "$work/$name.ended" "$work/$name.code"
    ) 2>/dev/null &
    until [ -f "$work/$name.pid" ]; do sleep 0.02; done
    pid=$(cat "$work/$name.pid")
}
# within SECONDS COMMAND: true as soon as the command is
within() {
    until_s=$(($(date +%s) + $1))
    shift
    until "$@"; do
        [ "$(date +%s)" -lt "$until_s" ] || return 1
        sleep 0.1
    done
}
# ended NAME SECONDS: the exit code, or "late" (it is killed then)
ended() {
    if within "$2" [ -f "$work/$1.code" ]; then
        code=$(cat "$work/$1.code")
    else
        code=late
        kill_marked
    fi
}
# rank_process R: of the marked ones
rank_process() {
    for process in $(marked); do
        tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null |
            grep -Eq "^(MOEFOLD_RANK|OMPI_COMM_WORLD_RANK)=$1\$" && echo "$process" && return
    done
    return 1
}
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'; }

# --- the GPU's memory, in MiB, of all that runs may use (CUDA_VISIBLE_DEVICES: numbers or names) -----------------
in_use() {
    [ $gpu = cuda ] && nvidia-smi ${CUDA_VISIBLE_DEVICES:+-i "$CUDA_VISIBLE_DEVICES"} --query-gpu=memory.used --format=csv,noheader,nounits | awk '{ n += $1 } END { print n + 0 }' || echo 0
}
before=$(in_use)
slack=16 # of what the driver counts, by itself
is_back() { [ "$(in_use)" -le $((before + slack)) ]; }
nobody() { [ -z "$(marked)" ]; }
# clean SECONDS: no process and no memory is left
clean() {
    clean_from=$(now)
    if within "$1" nobody && within "$1" is_back; then
        clean_text="after $(since "$clean_from") s no process is left, $(in_use) MiB in use, $before before"
        return 0
    fi
    clean_text="after $(since "$clean_from") s $(marked | wc -l) processes are left, $(in_use) MiB in use, $before before"
    kill_marked
    return 1
}

# --- what is said -------------------------------------------------------------------------------------------------
# check CONDITION TEXT: the condition is a command's exit status
check() {
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
        echo "ok   $2"
    else
        failed=$((failed + 1))
        echo "FAIL $2"
        [ -z "${name:-}" ] || tail -n 5 "$work/$name.log" 2>/dev/null | sed 's/^/       /'
    fi
}
# leave TEXT: a check that this machine cannot make
leave() {
    left=$((left + 1))
    echo "LEFT $1"
}
wanted() { case ${ONLY:-$1} in *"$1"*) return 0 ;; *) return 1 ;; esac }
holds() { "$@" && echo 0 || echo 1; }
all() { # all A B ...: 0 when each is
    for one in "$@"; do [ "$one" = 0 ] || { echo 1 && return; }; done
    echo 0
}

# A small MoE; its state has 3 million elements, a step 512 tokens.
small="--model mixtral-8x7b --set vocab_size=256 --set hidden_size=256 --set num_hidden_layers=2
    --set num_attention_heads=4 --set num_key_value_heads=2 --set head_dim=64 --set intermediate_size=256
    --set num_local_experts=8 --global-batch 4 --micro-batch 1 --seq 128 --data $data --lr-schedule constant"
rate="--lr 3e-4"
cpu="--backend cpu --cluster cpu --dtype bf16 --gpus 4 --tp 2 --ep 4"
on_gpu="--backend cuda --cuda-graph step"
[ $gpu = cuda ] || on_gpu="--backend cpu --cluster cpu --dtype bf16"
# go NAME SECONDS OPTIONS: trains to the end
go() {
    go_name=$1
    go_s=$2
    shift 2
    start "$go_name" $program train $small "$@"
    ended "$go_name" "$go_s"
}
program="$*"

cat >"$work/state.py" <<'P'
"""state.py same A B        is every weight and moment of checkpoint B that of A, to the bit?
state.py losses REF RUN...  are the losses of the runs' metrics those of REF within BOUND, and equal to step SAME?
state.py equal A B          are losses, norms (metrics.jsonl) of two runs equal to the bit?
state.py median LOG N       the median of the last N steps' times, in ms"""
import glob, json, os, re, struct, sys

def state(folder):
    """{kind|tensor: bytes}, joined from the pieces of all files."""
    pieces = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with open(path, "rb") as f:
            size = struct.unpack("<Q", f.read(8))[0]
            header = json.loads(f.read(size))
            for name, x in header.items():
                if name == "__metadata__":
                    continue
                kind, tensor, at, crc = name.split("|")
                f.seek(8 + size + x["data_offsets"][0])
                data = f.read(x["data_offsets"][1] - x["data_offsets"][0])
                row, col = map(int, at.split(","))
                pieces.setdefault(kind + "|" + tensor, []).append((row, col, x["shape"], x["dtype"], data))
    whole = {}
    for name, parts in pieces.items():
        wide = {"F32": 4, "BF16": 2}[parts[0][3]]
        rows = max(r + s[0] for r, c, s, d, b in parts)
        line = max(c + s[1] for r, c, s, d, b in parts) * wide
        out, covered = bytearray(rows * line), 0
        for row, col, shape, dtype, data in parts:
            n = shape[1] * wide
            covered += len(data)
            for i in range(shape[0]):
                to = (row + i) * line + col * wide
                out[to : to + n] = data[i * n : (i + 1) * n]
        assert covered == len(out), "%s: pieces cover %d of %d bytes" % (name, covered, len(out))
        whole[name] = bytes(out)
    return whole

def metrics(run):
    return {row["step"]: row for row in map(json.loads, open(os.path.join(run, "metrics.jsonl")))}

def same(a, b):
    a, b = state(a), state(b)
    off = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
    kinds = {}
    for k in a:
        kinds[k.split("|")[0]] = kinds.get(k.split("|")[0], 0) + len(a[k])
    if not a:
        print("there is no checkpoint")
        return False
    print(", ".join("%d bytes of %s" % (n, k) for k, n in sorted(kinds.items())), end="")
    print(" differ: %s and %d more" % (off[0], len(off) - 1) if off else " are the same")
    return not off and len(kinds) == 3

def losses(ref, run, bound, until):
    a, b = metrics(ref), metrics(run)
    off = {s: abs(b[s]["lm_loss"] / a[s]["lm_loss"] - 1) if s in b else float("inf") for s in a}
    worst = max(off, key=off.get)
    alike = all(off[s] == 0 for s in off if s <= until)
    print("losses of %d steps at most %.1e apart (step %d: %.4f, %.4f), bound %.1e; steps to %d %s" % (
        len(a), off[worst], worst, a[worst]["lm_loss"], b.get(worst, {}).get("lm_loss", float("nan")), bound, until,
        "are equal" if alike else "DIFFER"), end="")
    print("; loss %.3f -> %.3f" % (b[1]["lm_loss"], b[max(b)]["lm_loss"]))
    return alike and off[worst] <= bound and sorted(a) == sorted(b)

def equal(a, b):
    keys = ("step", "lm_loss", "aux_loss", "grad_norm", "lr")
    a, b = ([[r[k] for k in keys] for r in metrics(x).values()] for x in (a, b))
    print("losses and norms of %d steps %s" % (len(a), "are equal" if a == b else "DIFFER"))
    return a == b and len(a) > 0

def median(log, n):
    unit = {"us": 1e-3, "ms": 1, "s": 1e3}
    times = [float(m[1].replace(",", "")) * unit[m[2]] for m in
             (re.search(r"^step .* lr \S+  ([\d.,]+) (us|ms|s)  ", l) for l in open(log)) if m]
    times = sorted(times[-n:])
    print("%.3f" % times[len(times) // 2])
    return len(times) == n

do = sys.argv[1:]
ok = {"same": lambda a, b: same(a, b), "losses": lambda a, b, x, u: losses(a, b, float(x), int(u)),
      "equal": equal, "median": lambda l, n: median(l, int(n))}[do[0]](*do[1:])
sys.exit(0 if ok else 1)
P
state() { # state COMMAND ARGS: its verdict in $is, its words in $text
    text=$(python3 "$work/state.py" "$@" 2>&1)
    is=$?
    text=$(printf '%s' "$text" | tail -n 1)
}
at() { printf '%s/checkpoints/step-%08d' "$1" "$2"; }

# --- a checkpoint of CPU ranks goes on on a GPU, and back ---------------------------------------------------------
# Losses: BF16's eps is 2^-8; 4 eps is what ops that round elsewhere make of them over 30 steps.
bound=0.015625
checkpoint() {
    start reference $program train $small $cpu $rate --steps 30 --out "$work/reference"
    run=$work/to-and-fro
    go cpu-10 90 $cpu $rate --steps 10 --out "$run"
    check "$(holds [ "$code" = 0 ])" "checkpoint: 4 CPU ranks (TP 2, EP 4) save behind step 10: exit code $code"
    cp -r "$run" "$work/wild"
    name=cpu-10
    go gpu-20 90 $on_gpu $rate --steps 20 --resume --out "$run"
    resumed=$(grep -c '^resumed .*step-00000010' "$work/gpu-20.log")
    check "$(all "$(holds [ "$code" = 0 ])" "$(holds [ "$resumed" = 1 ])")" "checkpoint: one rank ($gpu) goes on from it to step 20: exit code $code"
    go cpu-30 90 $cpu $rate --steps 30 --resume --out "$run"
    resumed=$(grep -c '^resumed .*step-00000020' "$work/cpu-30.log")
    check "$(all "$(holds [ "$code" = 0 ])" "$(holds [ "$resumed" = 1 ])")" "checkpoint: 4 CPU ranks go on from there to step 30: exit code $code"
    ended reference 90
    name=reference
    state losses "$work/reference" "$run" $bound 10
    check "$(all $is "$(holds [ "$code" = 0 ])")" "checkpoint: against 30 steps of the CPU ranks alone: $text"

    # State to the bit: a rate that ends in numbers that are none, so that further steps leave every update out.
    # What such a step saves is what the resume put into memory.
    wild="--lr 1e3 --weight-decay 10 --keep 0 --resume --out $work/wild"
    go wild-cpu 90 $cpu $wild --steps 15
    cpu_code=$code
    go wild-gpu 90 $on_gpu $wild --steps 17
    gpu_code=$code
    go wild-back 90 $cpu $wild --steps 18
    left_out=$(cat "$work/wild-gpu.log" "$work/wild-back.log" | grep -c 'its update is left out')
    check "$(all "$cpu_code" "$gpu_code" "$code" "$(holds [ "$left_out" = 3 ])")" \
        "checkpoint: steps without an update behind a resume: exit codes $cpu_code, $gpu_code, $code, $left_out of 3 updates left out"
    state same "$(at "$work/wild" 15)" "$(at "$work/wild" 17)"
    check $is "checkpoint: of CPU ranks, through one rank ($gpu): $text"
    state same "$(at "$work/wild" 17)" "$(at "$work/wild" 18)"
    check $is "checkpoint: of one rank ($gpu), through 4 CPU ranks: $text"
    rm -rf "$work/wild" "$run"
}

# --- SIGTERM ------------------------------------------------------------------------------------------------------
has_lines() { [ -f "$1/metrics.jsonl" ] && [ "$(wc -l <"$1/metrics.jsonl")" -ge "$2" ]; }
last_step() { tail -n 1 "$1/metrics.jsonl" | sed 's/.*"step": *\([0-9]*\).*/\1/'; }
sigterm() {
    run=$work/sigterm
    start sigterm $program train $small $on_gpu --steps 1000000 --out "$run"
    within 60 has_lines "$run" 8
    kill -TERM "$pid"
    sent=$(now)
    ended sigterm 20
    took=$(since "$sent")
    step=$(last_step "$run")
    saved=$(holds [ -f "$(at "$run" "$step")/manifest.json" ])
    check "$(all "$(holds [ "$code" = 130 ])" "$saved")" "sigterm: in step $((step)), exit code $code after $took s, step $step is $([ "$saved" = 0 ] || echo NOT )saved"
    go sigterm-on 60 $on_gpu --steps $((step + 3)) --resume --out "$run"
    whole=$(awk -F'"step": *' '{ n += ($2 + 0 == NR) } END { print n }' "$run/metrics.jsonl")
    check "$(all "$(holds [ "$code" = 0 ])" "$(holds [ "$whole" = $((step + 3)) ])")" \
        "sigterm: --resume goes on to step $(last_step "$run"): exit code $code, $whole of $((step + 3)) steps in metrics.jsonl"
    clean 10
    check $? "sigterm: $clean_text"
    rm -rf "$run"
}

# --- kill -9 ------------------------------------------------------------------------------------------------------
killed() { # killed NAME WHOM OPTIONS
    kill_name=$1
    whom=$2
    shift 2
    start "$kill_name" $program train $small "$@" --steps 1000000 --out "$work/$kill_name"
    within 90 has_lines "$work/$kill_name" 6
    steps=$(holds has_lines "$work/$kill_name" 6)
    held=$(in_use)
    [ "$whom" = launcher ] || pid=$(rank_process "${whom#rank }")
    kill -9 "$pid"
    clean 10
    gone=$?
    ended "$kill_name" 1
    check "$(all "$steps" "$gone" "$(holds [ "$gpu" = cpu -o "$held" -gt $((before + slack)) ])")" "kill: -9 to the $whom of $kill_name, $held MiB in use then; $clean_text"
    rm -rf "${work:?}/$kill_name"
}
kills() {
    killed one-rank launcher $on_gpu
    killed two-ranks launcher $on_gpu --gpus 2 --tp 2
    killed two-ranks-again "rank 1" $on_gpu --gpus 2 --tp 2
}

# --- out of memory ------------------------------------------------------------------------------------------------
gives_back() { [ "$(in_use)" -le $((held + slack)) ]; }
memory() {
    start too-large $program train --model mixtral-8x7b --gpus 1 --global-batch 4 --seq 4096 --steps 2 --data "$data" $on_gpu
    ended too-large 20
    check "$(all "$(holds [ "$code" = 3 ])" "$(holds nobody)")" "memory: a plan that does not fit by its own numbers: exit code $code: $(grep '^moefold' "$work/too-large.log" | head -n 1 | cut -c1-150)"
    if [ $gpu = cpu ] || ! python3 -c 'import torch; torch.zeros(1, device="cuda")' 2>/dev/null; then
        leave "memory: OUT OF MEMORY IS NOT TRIED: no GPU, or no PyTorch to fill it"
        return
    fi
    start holder python3 -c 'import torch, time
free = torch.cuda.mem_get_info()[0]
x = torch.empty(free - (4 << 30), dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(120)'
    holder=$pid
    within 60 grep -q held "$work/holder.log"
    held=$(in_use)
    start oom $program train --model mixtral-8x7b --set vocab_size=256 --set hidden_size=2048 --set num_hidden_layers=2 \
        --set intermediate_size=7168 --gpus 1 --global-batch 2 --micro-batch 1 --seq 512 --steps 5 --data "$data" --backend cuda
    ended oom 60
    lines=$(grep -c 'out of memory' "$work/oom.log")
    grep 'out of memory' "$work/oom.log" | grep -q 'the plan predicts [0-9.]* GB.*[0-9.]* GB are needed.*free.*in use'
    said=$?
    within 10 gives_back
    others=$(marked | grep -vc "^$holder\$")
    after=$(in_use)
    check "$(all "$(holds [ "$code" = 1 ])" $said "$(holds [ "$lines" = 1 ])" "$(holds [ "$others" = 0 ])" "$(holds [ "$after" -le $((held + slack)) ])")" \
        "memory: exit code $code, $lines message, $others processes left, $after MiB in use, $held before: $(grep 'out of memory' "$work/oom.log" | head -n 1)"
    kill -9 "$holder"
    clean 10
    check $? "memory: $clean_text"
}

# --- a hang -------------------------------------------------------------------------------------------------------
hang() {
    start hang $program train $small $on_gpu --gpus 2 --tp 2 --steps 1000000 --out "$work/hang"
    within 90 has_lines "$work/hang" 8
    steps=$(holds has_lines "$work/hang" 8)
    stopped=$(rank_process 1)
    kill -STOP "$stopped"
    sent=$(now)
    # The other rank waits on the host or for its GPU; either way the stopped one is what it is named.
    within 32 grep -q 'rank [0-9]* .* hangs: step ' "$work/hang.log"
    what=$(grep 'rank [0-9]* .* hangs: step ' "$work/hang.log" | head -n 1)
    took=$(since "$sent")
    case $what in
    *"rank 1 (process $stopped on "*"hangs: step "*"its process is stopped for "*) named=0 ;;
    *) named=1 ;;
    esac
    ended hang 12
    check "$(all "$steps" "$named" "$(holds [ "$code" = 1 ])" "$(awk -v t="$took" 'BEGIN { print (t > 30.0) }')")" \
        "hang: rank 1 stopped in step $(($(last_step "$work/hang") + 1)): named after $took s (at most 30), exit code $code: $what"
    clean 10
    check $? "hang: $clean_text"
    rm -rf "$work/hang"
}

# The library that makes a fault, in $flip.
find_flip() {
    kind=cuda
    [ $gpu = cuda ] || kind=expf
    for flip in "${FLIP:-}" "$here/build/fault_$kind.so" "${program%%/run *}/lib/fault_$kind.so" "$work/fault_$kind.so"; do
        [ ! -f "$flip" ] || return 0
    done
    cc -std=c11 -O1 -fPIC -shared "$here/tests/preload/fault_$kind.c" -o "$flip" -ldl -lpthread 2>/dev/null
}
# stands NAME RANK WIDTH OPTIONS: a kernel of that rank behind the product of fc1, which is that wide, never ends
stands() {
    stands_name=$1
    stands_rank=$2
    width=$3
    shift 3
    run=$work/$stands_name
    start "$stands_name" env "LD_PRELOAD=$flip" "MF_FLIP_RANK=$stands_rank" "MF_STAND_WIDTH=$width" \
        "MF_FLIP_WHEN=$run/metrics.jsonl" MF_FLIP_BYTES=1500 "MF_FLIP_DONE=$run.done" $program train --model llama3-8b \
        --set num_hidden_layers=2 --set vocab_size=256 --global-batch 8 --micro-batch 2 --seq 4096 --data "$data" \
        --backend cuda --steps 1000000 --out "$run" "$@"
    within 90 [ -f "$run.done" ]
    came=$?
    sent=$(now)
    within 32 grep -q 'rank [0-9]* .* hangs: step ' "$work/$stands_name.log"
    took=$(since "$sent")
    what=$(grep 'rank [0-9]* .* hangs: step ' "$work/$stands_name.log" | head -n 1)
    [ "$stands_rank" != - ] || stands_rank=0
    step=$(($(last_step "$run") + 1))
    case $what in
    *"rank $stands_rank (process "*"hangs: step $step, "*" in fc1 ("*") of layer "*) named=0 ;;
    *"rank $stands_rank (process "*"hangs: step $((step + 1)), "*" in fc1 ("*") of layer "*) named=0 ;; # its metrics come a step late
    *) named=1 ;;
    esac
    ended "$stands_name" 12
    check "$(all $came $named "$(holds [ "$code" = 1 ])" "$(awk -v t="$took" 'BEGIN { print (t > 30.0) }')")" \
        "kernel: $stands_name, one that never ends behind fc1 in step $step: named after $took s (at most 30), exit code $code: $what"
    clean 10
    check $? "kernel: $clean_text"
    rm -rf "$run"
}
kernels() {
    if [ $gpu = cpu ] || ! find_flip; then
        leave "kernel: A KERNEL THAT NEVER ENDS IS NOT TRIED: no GPU, or no library that makes one (FLIP), no cc"
        return
    fi
    stands one-gpu - 28672 --cuda-graph step
    stands one-gpu-eager - 28672 --cuda-graph none --hang-after 6
    if [ "$(nvidia-smi -L | grep -c .)" -lt 2 ]; then
        leave "kernel: A KERNEL OF ONE OF TWO GPUS IS NOT TRIED: it takes two GPUs"
        return
    fi
    stands two-gpus 1 14336 --gpus 2 --tp 2 --cuda-graph step
    stands two-gpus-apart 0 28672 --gpus 2 --pp 2 --cuda-graph step --hang-after 6
}

# --- --on-failure restart -----------------------------------------------------------------------------------------
resumed_lines() { [ "$(grep -c '^resumed ' "$work/again.log")" -ge "$1" ]; }
restart() {
    run=$work/again
    start again $program train $small $on_gpu --gpus 2 --tp 2 --steps 1000000 --save-every 4 --on-failure restart \
        --hang-after 6 --out "$run"
    launcher=$pid
    within 90 has_lines "$run" 8
    kill -9 "$(rank_process 1)"
    within 90 resumed_lines 1
    first=$?
    within 90 has_lines "$run" 16
    kill -STOP "$(rank_process 1)"
    within 90 resumed_lines 2
    second=$?
    within 90 has_lines "$run" 24
    kill -TERM "$launcher"
    ended again 30
    whole=$(awk -F'"step": *' '{ n += ($2 + 0 == NR) } END { print n + 0 }' "$run/metrics.jsonl")
    step=$(last_step "$run")
    check "$(all $first $second "$(holds [ "$code" = 130 ])" "$(holds [ "$whole" = "$((step))" ])" "$(holds [ -f "$(at "$run" "$step")/manifest.json" ])")" \
        "restart: rank 1 killed, later stopped; $(grep -c 'moefold train: restart 1 of 3' "$work/again.log") restarts, $whole of $((step)) steps in metrics.jsonl, exit code $code"
    clean 10
    check $? "restart: $clean_text"
    rm -rf "$run"
}

# --- --rerun ------------------------------------------------------------------------------------------------------
# spoiled NAME RANK OPTIONS: a run of 24 steps with such a fault, on a GPU once its metrics have 1,500 bytes: some steps
spoiled() {
    spoiled_name=$1
    spoiled_rank=$2
    shift 2
    start "$spoiled_name" env "LD_PRELOAD=$flip" "MF_FLIP_RANK=$spoiled_rank" MF_FLIP_CALL=5000000 \
        "MF_FLIP_WHEN=$work/$spoiled_name/metrics.jsonl" MF_FLIP_BYTES=1500 "MF_FLIP_DONE=$work/$spoiled_name.done" \
        $program train $small $rerun $rate --keep 0 "$@" --steps 24 --out "$work/$spoiled_name"
    ended "$spoiled_name" 90
    came=$(holds [ -f "$work/$spoiled_name.done" ])
}
passes() { # passes NAME RANK-WITHOUT-RESTART OPTIONS
    passes_name=$1
    alone=$2
    shift 2
    spoiled "$passes_name-ends" "$alone" "$@"
    line=$(grep -h '^moefold' "$work/$passes_name-ends.log" | grep 'run again, its loss is .*: a fault that passed' | head -n 1)
    check "$(all "$came" "$(holds [ "$code" = 5 ])" "$(holds [ -n "$line" ])")" \
        "rerun: $passes_name, a number spoiled once: exit code $code (5), $line"
    go "$passes_name-calm" 90 $rerun $rate --keep 0 "$@" --steps 24 --out "$work/$passes_name-calm"
    calm=$(holds [ "$code" = 0 ])
    # Who is to begin again has a launcher, also of one rank.
    [ "$alone" != - ] || alone=0
    spoiled "$passes_name-again" "$alone" "$@" --on-failure restart --save-every 4
    restarts=$(grep -c 'restart 1 of 3, from ' "$work/$passes_name-again.log")
    state equal "$work/$passes_name-calm" "$work/$passes_name-again"
    check "$(all "$came" $calm $is "$(holds [ "$code" = 0 ])" "$(holds [ "$restarts" = 1 ])")" \
        "rerun: $passes_name, --on-failure restart: $restarts restart, exit code $code (0), against a calm run: $text"
}
lasts() { # lasts NAME OPTIONS
    lasts_name=$1
    shift
    go "$lasts_name-wild" 90 $rerun "$@" --steps 60 --lr 1000 --clip 0 --weight-decay 10 --max-skips 1
    line=$(grep -h '^moefold' "$work/$lasts_name-wild.log" | grep 'first bad value: rank [0-9]*, layer .* 2 steps in a row' | tail -n 1)
    check "$(all "$(holds [ "$code" = 6 ])" "$(holds [ -n "$line" ])")" \
        "rerun: $lasts_name, training that diverges: exit code $code (6), $line"
}
rerun() {
    # A product of a graph is seen once, when the graph is recorded: none here.
    rerun="--rerun --backend cuda --cuda-graph none"
    [ $gpu = cuda ] || rerun="--rerun $on_gpu"
    if find_flip; then
        passes one -
        passes two 1 --gpus 2 --tp 2
    else
        leave "rerun: A FAULT THAT PASSES IS NOT TRIED: no library that makes one (FLIP), no cc"
    fi
    lasts one
    lasts two --gpus 2 --tp 2
    clean 10
    check $? "rerun: $clean_text"
}

# --- a slow rank --------------------------------------------------------------------------------------------------
# burden N: a run on the second GPU alone that nobody watches
burden() {
    second=$(printf '%s' "${CUDA_VISIBLE_DEVICES:-0,1}" | cut -d, -f2)
    env "$mark" CUDA_VISIBLE_DEVICES="$second" $program train --model llama3-8b --set num_hidden_layers=1 \
        --set vocab_size=256 --global-batch 4 --micro-batch 4 --seq 1024 --data "$data" $on_gpu --gpus 1 \
        --steps 1000000 --hang-after 0 >"$work/burden-$1.log" 2>&1 &
    burdens="$burdens $!"
}
# hold_up RANK: on CPU ranks it runs for a fifth of the time. A GPU works on where its process is stopped; there other
# runs share it.
hold_up() {
    if [ $gpu = cuda ]; then
        [ -n "$burdens" ] || for n in 1 2 3; do burden $n; done
        sleep 0.1
        return
    fi
    kill -STOP "$1"
    sleep 0.08
    kill -CONT "$1"
    sleep 0.02
}
slow() {
    burdens=
    if [ $gpu = cuda ] && [ "$(nvidia-smi -L | grep -c .)" -lt 2 ]; then
        leave "slow: A SLOW GPU RANK IS NOT TRIED: it takes two GPUs"
        return
    fi
    run=$work/slow
    # What is under 10 ms a step is no slow rank: on GPUs a step has to be long enough.
    what=$small
    [ $gpu = cpu ] || what="--model llama3-8b --set num_hidden_layers=2 --set vocab_size=256 --global-batch 8
        --micro-batch 1 --seq 4096 --data $data"
    start slow $program train $what $on_gpu --gpus 2 --tp 2 --steps 1000000 --out "$run"
    within 90 has_lines "$run" 8
    held_up=$(rank_process 1)
    sent=$(now)
    until_s=$(($(date +%s) + 90))
    until grep -q ': rank 1 on .* is slow: over 20 steps it worked ' "$work/slow.log" || [ "$(date +%s)" -ge $until_s ]; do
        hold_up "$held_up"
    done
    took=$(since "$sent")
    for one in $burdens; do kill -9 "$one"; done 2>/dev/null
    what=$(grep -h ' is slow: over 20 steps it worked ' "$work/slow.log" | head -n 1)
    step=$(last_step "$run")
    within 60 has_lines "$run" $((step + 20))
    on=$?
    kill -TERM "$pid"
    ended slow 30
    case $what in *": rank 1 on "*", most "*" of layer "*) named=0 ;; *) named=1 ;; esac
    check "$(all $named $on "$(holds [ "$code" = 130 ])")" "slow: named after $took s, 20 steps on: exit code $code: $what"
    clean 10
    check $? "slow: $clean_text"
    rm -rf "$run"
}

# --- --deterministic ----------------------------------------------------------------------------------------------
deterministic() {
    for i in 1 2; do
        go "same-$i" 60 $on_gpu --deterministic --steps 10 --out "$work/same-$i"
        check "$(holds [ "$code" = 0 ])" "deterministic: run $i of 10 steps: exit code $code"
    done
    state equal "$work/same-1" "$work/same-2"
    check $is "deterministic: $text"
    state same "$(at "$work/same-1" 10)" "$(at "$work/same-2" 10)"
    check $is "deterministic: $text"
    if [ $gpu = cpu ]; then
        leave "deterministic: ITS COST IS NOT MEASURED: no GPU"
        return
    fi
    slice="--model qwen3-30b-a3b --set num_hidden_layers=2 --set num_experts=32 --set vocab_size=8192 --global-batch 4
        --micro-batch 2 --seq 4096 --backend cuda --cuda-graph step --data $data"
    for i in 1 2; do # sequences whose scores take several blocks, which is where orders may differ
        start "long-$i" $program train $slice --deterministic --steps 4 --out "$work/long-$i"
        ended "long-$i" 120
        check "$(holds [ "$code" = 0 ])" "deterministic: run $i of 4 steps of 4,096 tokens: exit code $code"
    done
    state equal "$work/long-1" "$work/long-2"
    check $is "deterministic, sequences of 4,096: $text"
    state same "$(at "$work/long-1" 4)" "$(at "$work/long-2" 4)"
    check $is "deterministic, sequences of 4,096: $text"
    rm -rf "$work/long-1" "$work/long-2"
    for way in free --deterministic; do
        start "time$way" $program train $slice --steps 12 $([ $way = free ] || echo $way)
        ended "time$way" 90
        state median "$work/time$way.log" 6
        [ "$is$code" = 00 ] || text=0
        [ $way != free ] || free_ms=$text
    done
    check "$(awk -v a="$free_ms" -v b="$text" 'BEGIN { print !(a > 0 && b > 0 && b <= 1.10 * a) }')" \
        "deterministic: a step takes $text ms, $free_ms ms without: $(awk -v a="$free_ms" -v b="$text" 'BEGIN { if (a > 0) printf "%.3f", b / a }') times as long (at most 1.10)"
}

began=$(now)
[ $gpu = cuda ] || echo "BACKEND=cpu: the script alone is tried, NOTHING HERE IS ABOUT A GPU"
if wanted checkpoint; then checkpoint; fi
if wanted hang; then hang; fi
if wanted kernel; then kernels; fi
if wanted kill; then kills; fi
if wanted memory; then memory; fi
if wanted sigterm; then sigterm; fi
if wanted restart; then restart; fi
if wanted rerun; then rerun; fi
if wanted slow; then slow; fi
if wanted deterministic; then deterministic; fi
name=
clean 10
check $? "end: $clean_text"
printf '%d passed, %d failed' $passed $failed
[ $left = 0 ] || printf ', %d left out' $left
printf ', %s s\n' "$(since "$began")"
[ $failed = 0 ]
