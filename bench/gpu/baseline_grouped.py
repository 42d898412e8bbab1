"""The grouped GEMM beside torch._grouped_mm: same tensors, same process, timed in turns.

    python3 bench/gpu/baseline_grouped.py build/libmoefold_cuda.so [--csv FILE] [--ragged]

Prints, for each row and problem, the median TFLOP/s of both and their ratio, then the geometric mean
over the four problems of the project's table (FC1, FC2, FC1 wgrad, FC1 dgrad) and the smallest ratio.
torch writes its weight gradient as bf16, moefold as f32 (twice the bytes).
"""
import argparse
import ctypes
import math
import statistics
import sys

import torch

ROWS = [
    ("Mixtral-8x22B EP4", 2, 8192, 6144, 16384),
    ("DeepSeek-V3 EP32", 8, 4096, 7168, 2048),
    ("Qwen3-235B EP16", 8, 2048, 4096, 1536),
    ("Qwen2-57B EP4", 16, 4096, 3584, 2560),
    ("DeepSeek-V3 EP8", 32, 1024, 7168, 2048),
    ("small", 64, 256, 2048, 1408),
]
FORWARD, DGRAD, WGRAD = 0, 1, 2
# name, kind, FC2?, accumulate?, counted in the mean?
PROBLEMS = [
    ("FC1", FORWARD, False, False, True),
    ("FC2", FORWARD, True, False, True),
    ("FC1 wgrad", WGRAD, False, False, True),
    ("FC1 dgrad", DGRAD, False, False, True),
    ("FC1 wgrad+", WGRAD, False, True, False),
    ("FC2 wgrad", WGRAD, True, False, False),
    ("FC2 dgrad", DGRAD, True, False, False),
]
ROUNDS = 9


class Problem(ctypes.Structure):
    """mf_kernel_grouped_gemm"""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("accumulate", ctypes.c_bool),
        ("experts", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("offsets", ctypes.c_void_p),
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
    ]


class Err(ctypes.Structure):
    """mf_err"""

    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 2048)]


def timed(call, launches):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(launches):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / launches


def main():
    args = argparse.ArgumentParser()
    args.add_argument("library")
    args.add_argument("--csv")
    args.add_argument("--ragged", action="store_true")
    args = args.parse_args()
    library = ctypes.CDLL(args.library)
    run = library.mf_kernel_grouped_gemm_run_cuda
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    err = Err()
    ratios, lines = [], []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    for name, experts, tokens, hidden, ffn in ROWS:
        total = experts * tokens
        starts = [i * tokens for i in range(experts + 1)]
        if args.ragged:
            starts = sorted([0, total] + torch.randint(0, total + 1, (experts - 1,)).tolist())
        offsets = torch.tensor(starts, dtype=torch.int32, device="cuda")
        ends = offsets[1:].contiguous()
        for problem, kind, second, accumulate, counted in PROBLEMS:
            n, k = (hidden, ffn) if second else (2 * ffn, hidden)
            a = torch.randn(total, k if kind == FORWARD else n, device="cuda", dtype=torch.bfloat16)
            if kind == WGRAD:
                b = torch.randn(total, k, device="cuda", dtype=torch.bfloat16)
                out = torch.zeros(experts, n, k, device="cuda", dtype=torch.float32)
                at = a.t()
                theirs = lambda: torch._grouped_mm(at, b, offs=ends, out_dtype=torch.bfloat16)
            else:
                b = torch.randn(experts, n, k, device="cuda", dtype=torch.bfloat16)
                out = torch.empty(total, n if kind == FORWARD else k, device="cuda", dtype=torch.bfloat16)
                bt = b.transpose(-2, -1) if kind == FORWARD else b
                theirs = lambda: torch._grouped_mm(a, bt, offs=ends, out_dtype=torch.bfloat16)
            p = Problem(kind, accumulate, experts, total, n, k, offsets.data_ptr(), a.data_ptr(),
                        b.data_ptr(), out.data_ptr())

            def ours():
                if run(ctypes.byref(p), stream, ctypes.byref(err)) != 0:
                    sys.exit(err.text.decode())

            flops = 2.0 * total * n * k
            launches = max(2, min(20, int(10e-3 / (flops / 600e12))))
            if not accumulate:
                ours()
                want = theirs().float()
                difference = ((out.float() - want).norm() / want.norm()).item()
                del want
            else:
                difference = 0.0
            times = {ours: [], theirs: []}
            for call in times:
                timed(call, launches)
            for _ in range(ROUNDS):
                for call, seconds in times.items():
                    seconds.append(timed(call, launches))
            rate = [flops / statistics.median(times[c]) * 1e-12 for c in (ours, theirs)]
            spread = [(max(t) - min(t)) / statistics.median(t) for t in times.values()]
            lines.append((name, problem, *rate, rate[0] / rate[1]))
            if counted:
                ratios.append(rate[0] / rate[1])
            print(f"{name:18s} {problem:10s} moefold {rate[0]:6.1f}  torch {rate[1]:6.1f}  ratio "
                  f"{rate[0] / rate[1]:.3f}  spread {spread[0]:.1%} {spread[1]:.1%}  "
                  f"difference {difference:.1e}", flush=True)
            del a, b, out, theirs, ours, times
    mean = math.exp(statistics.fmean(math.log(r) for r in ratios))
    print(f"geometric mean of the ratios {mean:.3f}, smallest {min(ratios):.3f}")
    if args.csv:
        with open(args.csv, "w") as f:
            f.write("row,problem,moefold_tflops,torch_tflops,ratio\n")
            for line in lines:
                f.write("%s,%s,%.1f,%.1f,%.3f\n" % line)


main()
