"""The grouped GEMM (kernels/grouped_gemm/grouped_gemm.h) beside torch._grouped_mm on the same tensors.

torch writes its weight gradient as bf16, and so does "wgrad". "wgrad f32" writes twice the bytes. "wgrad
into f32 sums" adds to an f32 gradient, as training does, and stands beside torch's product followed by
an addition.
"""
import ctypes

import torch

from common import difference, pointer, seconds, stream

ROWS = [
    ("Mixtral-8x22B EP4", 2, 8192, 6144, 16384),
    ("DeepSeek-V3 EP32", 8, 4096, 7168, 2048),
    ("Qwen3-235B EP16", 8, 2048, 4096, 1536),
    ("Qwen2-57B EP4", 16, 4096, 3584, 2560),
    ("DeepSeek-V3 EP8", 32, 1024, 7168, 2048),
    ("small", 64, 256, 2048, 1408),
]
FORWARD, DGRAD, WGRAD = 0, 1, 2
# name, kind, FC2?, adds?, f32?, counted in the mean of the project's table?
PROBLEMS = [
    ("FC1", FORWARD, False, False, False, True),
    ("FC2", FORWARD, True, False, False, True),
    ("FC1 wgrad", WGRAD, False, False, False, True),
    ("FC1 dgrad", DGRAD, False, False, False, True),
    ("FC1 wgrad f32", WGRAD, False, False, True, False),
    ("FC1 wgrad into f32 sums", WGRAD, False, True, True, False),
    ("FC2 wgrad", WGRAD, True, False, False, False),
    ("FC2 dgrad", DGRAD, True, False, False, False),
]


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
        ("bf16", ctypes.c_bool),
    ]


def compare(lib, table, row, problem):
    model, experts, tokens, hidden, ffn = row
    name, kind, second, adds, f32, counted = problem
    total = experts * tokens
    n, k = (hidden, ffn) if second else (2 * ffn, hidden)
    offsets = torch.arange(experts + 1, dtype=torch.int32, device="cuda") * tokens
    ends = offsets[1:].contiguous()
    a = torch.randn(total, k if kind == FORWARD else n, device="cuda", dtype=torch.bfloat16)
    if kind == WGRAD:
        b = torch.randn(total, k, device="cuda", dtype=torch.bfloat16)
        out = torch.full((experts, n, k), 0.0 if adds else float("nan"), device="cuda",
                         dtype=torch.float32 if f32 else torch.bfloat16)
        at = a.t()
        product = lambda: torch._grouped_mm(at, b, offs=ends, out_dtype=torch.bfloat16)
    else:
        b = torch.randn(experts, n, k, device="cuda", dtype=torch.bfloat16)
        out = torch.full((total, n if kind == FORWARD else k), float("nan"), device="cuda",
                         dtype=torch.bfloat16)
        bt = b.transpose(-2, -1) if kind == FORWARD else b
        product = lambda: torch._grouped_mm(a, bt, offs=ends, out_dtype=torch.bfloat16)
    sums = torch.zeros_like(out) if adds else None
    theirs = (lambda: sums.add_(product())) if adds else product
    p = Problem(kind, adds, experts, total, n, k, pointer(offsets), pointer(a), pointer(b), pointer(out),
                kind == WGRAD and not f32)
    ours = lambda: lib.call("mf_kernel_grouped_gemm_run_cuda", ctypes.byref(p), stream())
    ours()
    error = difference(out, product())
    ours_s, theirs_s = seconds(ours, theirs)
    weights_B = experts * n * k * (8.0 if adds else 4.0 if f32 else 2.0)
    table.add("grouped" if counted else "grouped other", f"grouped {name}",
              f"{model}: {experts} x {tokens}, {n} x {k}", ours_s, theirs_s, 2.0 * total * n * k,
              2.0 * total * (n + k) + weights_B, f"difference {error:.0e}")


def run(lib, table):
    for row in ROWS:
        for problem in PROBLEMS:
            compare(lib, table, row, problem)
