#!/bin/sh
# compute-sanitizer (memcheck, racecheck, initcheck) over one small case of each kind: model families, recomputation,
# offload, dropping on one rank; every way to split on two ranks, which share a GPU where there is but one.
#   sanitize.sh [--seconds N] [--jobs N] [--cases LIST] [--tool NAME] [--kind TEXT] [--logs FOLDER] [RUN...]
# RUN       what starts a program by its name, such as /tmp/moefold-gpu/run; without it they are those of build/
# --seconds no case begins after so many [1500]; those left are counted. The most telling come first.
# --jobs    cases side by side [8, fewer where the GPU's memory is small: a process takes 4 to 8 GB of it under these tools]
# --cases   TOOL[:FIRST[-LAST]],...: which, in this order, kinds by their number; such as memcheck:10-17,racecheck
# --logs    where the sanitizer's words go, a file for each process [build/sanitize]
# An error is ours where the kernel that it names, or one that it races with, is a __global__ function of our sources, or
# where a call of the CUDA API that failed came from our code; else it is a library's (cuBLASLt, cuDNN, NCCL), which
# is counted and listed by kernel but fails nothing. What names nobody is ours. So is what was not printed any more.
# racecheck looks at libraries' kernels too: with a filter by name it made cuBLASLt's first product read where nothing is.
# A step takes a minute under these tools, so runs have few of them, measure nothing and watch for no hang.
# BACKEND=cpu with SANITIZER=COMMAND tries this script out where there is no GPU.
cd "$(dirname "$0")/../.." || exit 1
exec python3 - "$@" <<'P'
import argparse, concurrent.futures, glob, os, re, shlex, shutil, signal, subprocess, sys, time

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=1500)
ap.add_argument("--jobs", type=int, default=0)
ap.add_argument("--cases", default="memcheck,racecheck,initcheck")
ap.add_argument("--tool", default="")
ap.add_argument("--kind", default="")
ap.add_argument("--logs", default="build/sanitize")
ap.add_argument("run", nargs="*")
o = ap.parse_args()
cpu = os.environ.get("BACKEND") == "cpu"

def jobs_that_fit():
    """Two ranks of a case take up to 13 GB of a GPU together."""
    try:
        memory_MiB = subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True).stdout.split()
        return max(1, min([8] + [int(mib) // 13000 for mib in memory_MiB]))
    except (OSError, ValueError):
        return 8

o.jobs = o.jobs or jobs_that_fit()
sanitizer = shlex.split(os.environ.get("SANITIZER", "")) or [
    next((p for p in (shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer")
          if p and os.path.exists(p)), "")]
if not sanitizer[0]:
    print("compute-sanitizer is neither on PATH nor in /usr/local/cuda/bin")
    sys.exit(2)

TOOLS = ("memcheck", "racecheck", "initcheck")
PRINTED = 20000 # errors of a process; each is a few lines
LIMIT_S = 420   # of a case
LAYOUT_S = 360  # of its layout

# --- kinds: name, program and its arguments ------------------------------------------------------
DATA = "--data docs/CLI.md --global-batch 2 --micro-batch 1 --seq 64 --hang-after 0 --set vocab_size=256"
WIDE = "--set hidden_size=128 --set num_attention_heads=4 --set num_key_value_heads=2 --set head_dim=64"
MIX = "--model mixtral-8x7b " + WIDE + " --set intermediate_size=128 --set num_local_experts=8"
QWEN = "--model qwen3-30b-a3b " + WIDE + " --set moe_intermediate_size=64 --set num_experts=8 --set num_experts_per_tok=2"
DENSE = "--model llama3-8b " + WIDE + " --set intermediate_size=128"
MLA = ("--model deepseek-v3 --set hidden_size=128 --set num_hidden_layers=2 --set first_k_dense_replace=1 "
       "--set num_attention_heads=2 --set num_key_value_heads=2 --set q_lora_rank=64 --set kv_lora_rank=128 "
       "--set qk_nope_head_dim=128 --set qk_rope_head_dim=64 --set v_head_dim=128 --set intermediate_size=128 "
       "--set moe_intermediate_size=64 --set n_routed_experts=8 --set num_experts_per_tok=2 --set n_group=2 --set topk_group=1")
ON = "--backend cpu --cluster cpu --dtype bf16" if cpu else "--backend cuda --cuda-graph none --gpus 1"
RULE = " --deterministic" # no algorithm is chosen by measurement: it takes long under a sanitizer
ONE = " --set num_hidden_layers=1 --steps 1" # what it is about is in each layer and each step
TWO = " --set num_hidden_layers=2 --steps 2"

def train(model, options, data=DATA):
    return ("moefold", "train %s %s %s %s" % (model, data, ON, options), "mean step")

def ranks(text):
    return ("test_executor_layouts", ["--backend", "cpu" if cpu else "cuda", "--ranks", "2", "--only", text, "--batch", "4",
                                      "--steps", "1", "--deterministic", "--timeout", str(LAYOUT_S)], "1 passed, 0 failed, 0 skipped, 0 not begun")

EP = "2 ranks mixtral tp1 cp1 dp2 pp1 vpp1 ep2 etp1 edp1 mbs1 zero1/0 - "
KINDS = [
    ("GQA, MoE, aux and z-loss", train(MIX, "--aux-loss sequence --z-coef 1e-3" + ONE + RULE)),
    ("MLA, shared expert, MTP", train(MLA, "--set num_nextn_predict_layers=1 --steps 1" + RULE)),
    ("MLA, score gradients that are kept", train(MLA, "--steps 1" + RULE, DATA.replace("--seq 64", "--seq 256"))),
    ("recomputation, activations and states on the host",
     train(MIX, "--recompute norm,act,core_attn --offload input,qkv --offload-optimizer 0.5 --moments bf16" + TWO + RULE)),
    ("TP", ranks("2 ranks llama tp2")),
    ("EP alltoall", ranks(EP + "alltoall")),
    ("EP fused", ranks(EP + "fused")),
    ("EP allgather", ranks(EP + "allgather")),
    ("CP ring", ranks("cp2ring")),
    ("PP", ranks("2 ranks mixtral tp1 cp1 dp1 pp2 vpp1 ep1 etp1 edp1 mbs1 zero0/0 1f1b - states0")),
    ("ETP", ranks("2 ranks mixtral tp1 cp1 dp2 pp1 vpp1 ep1 etp2")),
    ("ZeRO 3", ranks("2 ranks mixtral tp1 cp1 dp2 pp1 vpp1 ep1 etp1 edp2 mbs1 zero3/3")),
    ("ZeRO 2", ranks("2 ranks mixtral tp1 cp1 dp2 pp1 vpp1 ep1 etp1 edp2 mbs1 zero2/2")),
    ("ZeRO 1", ranks("2 ranks llama tp1 cp1 dp2 pp1 vpp1 ep1 etp1 edp2 mbs1 zero1/0")),
    ("CP all-gather", ranks("cp2allgather")),
    ("capacity, dropping", train(MIX, "--capacity-factor 1 --pad-to-capacity" + ONE + RULE)),
    ("QK norm, whole layers again", train(QWEN, "--recompute full" + TWO + RULE)),
    ("dense, products by measurement", train(DENSE, ONE)),
]

# --- whose an error is ---------------------------------------------------------------------------
ATTRIBUTES = r"(?:__\w+__\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*)*"

def our_kernels():
    names = set()
    for path in glob.glob("kernels/**/*.cu*", recursive=True) + glob.glob("executor/**/*.cu*", recursive=True):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", open(path).read(), flags=re.S)
        found = re.findall(r"__global__\s+" + ATTRIBUTES + r"void\s+" + ATTRIBUTES + r"(\w+)\s*\(", text)
        assert len(found) == text.count("__global__"), path
        names.update(found)
    return names

OURS = our_kernels()
assert len(OURS) > 80 and {"adamw", "dispatch_kernel", "grouped_gemm_kernel"} <= OURS, OURS

def function(text):
    """The name of a function as the sanitizer writes it, mangled or not; '' where it is a member of a namespace."""
    text = text.strip()
    if text.startswith("_Z"):
        m = re.match(r"_ZL?(\d+)", text)
        return text[m.end() : m.end() + int(m[1])] if m else ""
    text = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", text)
    m = re.match(r"(?:(?:static|void|bool|int|float) )*(\w+)\s*(?:<|\(|\+0x|$)", text)
    return m[1] if m else ""

BEGIN = re.compile(r"^========= (?:(?:Error|ERROR|Warning|WARN|WARNING): |Invalid |Uninitialized |Program hit |Leaked |"
                   r"Malloc|Out-of-range|Out of range|Misaligned|Potential |Barrier|Unused|Host API|Stack overflow|Illegal |Hardware )")
QUIET = re.compile(r"^========= (?:COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY|LEAK SUMMARY|INTERNAL|Target application|Error: (?:process|Target))",
                   re.I)
ACCESS = re.compile(r"(?:^=========\s+at |access at |Device Frame: ?)(.*?)(?:\+0x[0-9a-f]+|\[0x[0-9a-f]+\]| in \S+:\d+|$)")
HOST = re.compile(r"Host Frame:\s*(.*?)\s*\[0x[0-9a-f]+\](?: in (\S+))?")

def whose(block):
    """('ours' or 'library', the name of the kernel or of the call)."""
    named = [m[1] for line in block for m in ACCESS.finditer(line)]
    kernels = [k for k in named if k.strip()]
    for k in kernels:
        if function(k) in OURS:
            return "ours", function(k)
        space = re.match(r"\s*(?:_ZN\d+)?(mf_\w+?)(?:::|\d+)(\w+)", k) # what stands in a namespace of ours
        if space:
            return "ours", space[1] + "::" + space[2]
    if kernels:
        return "library", function(kernels[0]) or re.sub(r"[<(].*", "", kernels[0].strip())[:60]
    for line in block: # a call that failed: the first frame that is not CUDA's own says who made it
        m = HOST.search(line)
        where = (m[2] or m[1]) if m else ""
        if where and not re.search(r"libcuda|libcudart|sanitizer|libc\.so|libpthread", where):
            ours = re.search(r"moefold|test_executor", where) is not None
            return "ours" if ours else "library", block[0][10:80] + " in " + os.path.basename(where)
    return "ours", block[0][10:90]

def read_logs(pattern):
    count, by_name, sums, words = {"ours": 0, "library": 0}, {}, 0, []
    for path in glob.glob(pattern):
        block, blocks = None, []
        for line in open(path, errors="replace"):
            line = line.rstrip("\n")
            m = re.match(r"^========= (?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warn)", line)
            if m:
                sums += int(m[1] or 0) + int(m[2] or 0) + int(m[3] or 0)
            if re.match(r"^========= (?:Internal Sanitizer Error|Error: |.*not supported)", line) and not BEGIN.match(line):
                words.append(line[10:])
            if line.strip() == "=========" or QUIET.match(line):
                block = None
            elif BEGIN.match(line):
                block = [line]
                blocks.append(block)
            elif block is not None:
                block.append(line)
        for b in blocks:
            side, name = whose(b)
            count[side] += 1
            by_name[(side, name)] = by_name.get((side, name), 0) + 1
    unprinted = max(0, sums - sum(count.values()))
    return count, by_name, unprinted, words

# --- one case ------------------------------------------------------------------------------------
mark = "MOEFOLD_SANITIZE=%d-%d" % (os.getpid(), time.time())

def kill_marked(more):
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            if (mark + more).encode() in open(path, "rb").read():
                os.kill(int(path.split("/")[2]), signal.SIGKILL)
        except OSError:
            pass

HELP = subprocess.run(sanitizer + ["--help"], capture_output=True, text=True).stdout

def options(place, tool):
    some = {"--launch-timeout": "120", "--max-connections": "64", "--port": str(41000 + 100 * place)}
    if tool == "racecheck":
        some["--racecheck-num-workers"] = "2"
    return [x for k, v in some.items() if k in HELP for x in (k, v)]

def run_case(index, tool, kind, program, arguments, well):
    began = time.time()
    if began > until:
        return None
    slug = "%s-%s" % (tool, re.sub(r"\W+", "-", kind))
    command = sanitizer + ["--tool", tool, "--target-processes", "all", "--error-exitcode", "9",
                           "--print-limit", str(PRINTED), "--log-file", os.path.join(o.logs, slug + "-%p.log")] + options(index % 200, tool)
    command += ["--show-backtrace", "host"] if tool == "memcheck" else ["--show-backtrace", "no"]
    path = [] if o.run else ["build/" if program == "moefold" else "build/gpu/tests/"]
    command += o.run + [program] if o.run else [path[0] + program]
    command += shlex.split(arguments) if isinstance(arguments, str) else arguments
    out = os.path.join(o.logs, slug + ".out")
    name, value = (mark + "-%d." % index).split("=", 1)
    late = False
    with open(out, "w") as f:
        p = subprocess.Popen(command, stdout=f, stderr=f, stdin=subprocess.DEVNULL, env=dict(os.environ, CUDA_MODULE_LOADING="LAZY", **{name: value}))
        try:
            code = p.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            late, code = True, -1
    kill_marked("-%d." % index) # its launcher's children too, should they be there
    if late:
        p.wait()
    count, by_name, unprinted, words = read_logs(os.path.join(o.logs, slug + "-*.log"))
    ran = well in open(out, errors="replace").read()
    logs = len(glob.glob(os.path.join(o.logs, slug + "-*.log")))
    ok = ran and not late and logs > 0 and count["ours"] == 0 and unprinted == 0 and not words
    why = ("" if ran else ", DID NOT RUN" if not late else ", LATE") + (", %d not printed" % unprinted if unprinted else "")
    why += "" if logs else ", NOT SEEN BY THE SANITIZER"
    why += ", " + words[0][:100] if words else ""
    print("%-4s %-9s %-50s %6d ours %7d of libraries, exit code %d, %.0f s%s" % (
        "ok" if ok else "FAIL", tool, kind, count["ours"], count["library"], code, time.time() - began, why), flush=True)
    if not ran:
        print("".join("       " + l for l in open(out, errors="replace").readlines()[-4:]), flush=True)
    for (side, who), n in sorted(by_name.items(), key=lambda x: (x[0][0] != "ours", -x[1]))[:6]:
        print("       %s: %d of %s" % (side, n, who), flush=True)
    return tool, kind, ok, count, why

def wanted():
    """(tool, number of the first kind, of the last) of --cases."""
    for part in o.cases.split(","):
        m = re.fullmatch(r"(\w+)(?::(\d+)(-(\d+)?)?)?", part)
        if not m or m[1] not in TOOLS:
            sys.exit("--cases: expected TOOL[:FIRST[-LAST]], tools %s, not %s" % (", ".join(TOOLS), part))
        first = int(m[2] or 1)
        yield m[1], max(1, first), int(m[4] or (len(KINDS) if m[3] or not m[2] else first))

def main():
    print("%d kernels are ours; sanitizer: %s" % (len(OURS), " ".join(sanitizer)), flush=True)
    os.makedirs(o.logs, exist_ok=True)
    for path in glob.glob(os.path.join(o.logs, "*check-*")): # of the run before
        os.remove(path)
    cases = [(t, k) + c for t, first, last in wanted() for k, c in KINDS[first - 1 : last] if o.tool in t and o.kind in k]
    with concurrent.futures.ThreadPoolExecutor(max(1, o.jobs)) as pool:
        results = list(pool.map(lambda x: run_case(x[0], *x[1]), enumerate(cases)))
    table = {(r[0], r[1]): r for r in results if r}
    print("\n   %-52s %20s %20s %20s      errors, ours / libraries" % (("kind",) + TOOLS))
    asked = {(t, k) for t, k, *_ in cases}
    for number, (kind, _) in enumerate(KINDS, 1):
        cells = []
        for t in TOOLS:
            r = table.get((t, kind))
            cells.append("-" if (t, kind) not in asked else "left" if r is None else "%d / %d%s" % (r[3]["ours"], r[3]["library"], "" if r[2] else " FAIL"))
        if set(cells) != {"-"}:
            print("%2d %-52s %20s %20s %20s" % ((number, kind) + tuple(cells)))
    done = [r for r in results if r]
    passed = sum(r[2] for r in done)
    print("%d passed, %d failed, %d left" % (passed, len(done) - passed, len(cases) - len(done)))
    return passed != len(done)

until = time.time() + o.seconds
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
try:
    bad = main()
finally:
    kill_marked("-")
sys.exit(1 if bad else 0)
P
