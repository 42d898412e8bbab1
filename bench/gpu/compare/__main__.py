"""Every kernel beside its limit and beside PyTorch, one table from one run on one GPU.

    python3 bench/gpu/compare build/libmoefold_cuda.so build/gpu/bench/bench_kernels [-only KIND]...

KIND: gemm attention grouped memory. Products and attention run in this process, in turns with
PyTorch; the memory-bound kernels in theirs, just before. of limit: the least time (operations at the
best dense product measured here, bytes at a copy of 4 GiB measured here) over the time taken. ratio:
PyTorch's time over ours. Ends with the figures of the project's table.
"""
import argparse
import math
import statistics

import torch

import attention
import gemm
import grouped
import memory
from common import Library, Table, seconds


def peak_flops():
    """The best of a few dense products, short runs."""
    best = 0.0
    for n in (4096, 8192):
        a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        best = max(best, 2.0 * n**3 / seconds(lambda: torch.mm(a, b.t()))[0])
    return best


def summary(rows):
    def ratios(kind):
        return [r["ratio"] for r in rows if r["kind"] == kind and r["ratio"]]

    for kind in ("gemm", "fp8", "attention", "grouped", "grouped other"):
        found = ratios(kind)
        if found:
            mean = math.exp(statistics.fmean(math.log(r) for r in found))
            print(f"{kind}: {len(found)} rows, smallest ratio {min(found):.3f}, geometric mean {mean:.3f}")
    bound = [r for r in rows if r["kind"] == "memory"]
    short = [f"{r['name']} {r['shape']} {r['share']:.0%}" for r in bound if r["share"] < 0.85]
    if bound:
        print(f"memory-bound: {len(bound)} rows, {len(short)} below 85 % of the copy: {'; '.join(short)}")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("library")
    args.add_argument("bench_kernels")
    args.add_argument("-only", action="append", choices=["gemm", "attention", "grouped", "memory"])
    args = args.parse_args()
    wanted = args.only or ["gemm", "attention", "grouped", "memory"]
    copy_Bps, fill_Bps, rows = memory.measure(args.bench_kernels)
    lib = Library(args.library)
    peak = peak_flops()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuBLAS of CUDA {torch.version.cuda}, "
          f"cuDNN {torch.backends.cudnn.version()}; peak {peak * 1e-12:.0f} TFLOP/s, "
          f"copy {copy_Bps * 1e-9:.0f} GB/s, fill {fill_Bps * 1e-9:.0f} GB/s")
    table = Table(peak, copy_Bps)
    for room, run in (("gemm", gemm.run), ("attention", attention.run), ("grouped", grouped.run)):
        if room in wanted:
            run(lib, table)
            torch.cuda.empty_cache()
    if "memory" in wanted:
        memory.run(rows, table)
    summary(table.rows)


main()
