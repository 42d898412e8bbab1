"""Dense products through cuBLASLt (kernels/gemm/gemm_cuda.h) beside torch.mm and torch._scaled_mm."""
import ctypes

import torch

from common import difference, pointer, seconds, stream

SHAPES = [(8192, 8192, 8192), (4096, 4096, 4096), (16384, 8192, 8192), (4096, 7168, 2048),
          (32768, 4096, 7168), (8192, 32768, 6144)]
FP8_SHAPES = [(8192, 8192, 8192), (4096, 7168, 2048), (32768, 4096, 7168)]
NT, NN, TN = 0, 1, 2
F32, BF16, E4M3 = 0, 1, 2
NONE, TENSOR, ROW128, BLOCK128 = 0, 1, 2, 3
WORKSPACE_B = 64 << 20


class Shape(ctypes.Structure):
    """mf_gemm_cuda_shape"""

    _fields_ = ([(n, ctypes.c_int) for n in ("form", "a_type", "b_type", "c_type", "a_scale", "b_scale")] +
                [(n, ctypes.c_int64) for n in ("m", "n", "k", "lda", "ldb", "ldc")] +
                [(n, ctypes.c_bool) for n in ("accumulate", "bias", "bias_grad")] + [("activation", ctypes.c_int)])


class Data(ctypes.Structure):
    """mf_gemm_cuda_data"""

    _fields_ = ([(n, ctypes.c_void_p) for n in ("a", "b", "a_scale", "b_scale", "bias", "c", "workspace")] +
                [("alpha", ctypes.c_float), ("bias_grad", ctypes.c_void_p)])


class Plan:
    """A tuned plan of the library."""

    def __init__(self, lib, handle, shape, data):
        self.lib, self.data, self.plan = lib, data, ctypes.c_void_p()
        lib.call("mf_gemm_cuda_create", handle, ctypes.byref(shape), ctypes.c_size_t(WORKSPACE_B),
                 ctypes.byref(self.plan))
        lib.call("mf_gemm_cuda_tune", self.plan, ctypes.byref(data), 1, stream(), None)
        self.chosen = lib.dll.mf_gemm_cuda_chosen(self.plan)

    def __call__(self):
        self.lib.call("mf_gemm_cuda_run", self.plan, ctypes.byref(self.data), stream())

    def close(self):
        self.lib.dll.mf_gemm_cuda_destroy(self.plan)


def open_library(lib):
    handle = ctypes.c_void_p()
    lib.call("mf_gemm_cuda_library_open", ctypes.byref(handle))
    return handle


def bf16(lib, handle, table, form, m, n, k, workspace):
    """One row: NT is a linear layer, NN its input gradient, TN its weight gradient."""
    name = {NT: "gemm NT", NN: "gemm NN", TN: "gemm TN"}[form]
    a = torch.randn(*((k, m) if form == TN else (m, k)), device="cuda", dtype=torch.bfloat16)
    b = torch.randn(*((n, k) if form == NT else (k, n)), device="cuda", dtype=torch.bfloat16)
    c, want = (torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    shape = Shape(form, BF16, BF16, BF16, NONE, NONE, m, n, k, a.shape[1], b.shape[1], n, False, False)
    data = Data(pointer(a), pointer(b), None, None, None, pointer(c), pointer(workspace), 1.0)
    plan = Plan(lib, handle, shape, data)
    left, right = (a.t() if form == TN else a), (b.t() if form == NT else b)
    theirs = lambda: torch.mm(left, right, out=want)
    plan()
    theirs()
    error = difference(c, want)
    ours_s, theirs_s = seconds(plan, theirs)
    table.add("gemm", name, f"{m} x {n} x {k}", ours_s, theirs_s, 2.0 * m * n * k,
              2.0 * (m * n + m * k + n * k), f"algorithm {plan.chosen}, difference {error:.0e}")
    plan.close()


def quantised(rows, k, mode):
    """e4m3 values and scales as the library and as PyTorch want them. Rows a multiple of 128."""
    q = torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn)
    if mode == TENSOR:
        s = torch.full((1,), 0.5, device="cuda")
        return q, s, s
    if mode == ROW128:  # [k blocks, rows]: PyTorch's [rows, k blocks], outer dimension first
        s = torch.rand(k // 128, rows, device="cuda") + 0.5
        return q, s, s.t()
    blocks, stride = k // 128, (k // 128 + 3) // 4 * 4
    s = torch.rand(rows // 128, stride, device="cuda") + 0.5
    return q, s, s[:, :blocks].t()


def fp8(lib, handle, table, name, m, n, k, modes, workspace):
    a, a_scale, a_torch = quantised(m, k, modes[0])
    b, b_scale, b_torch = quantised(n, k, modes[1])
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    shape = Shape(NT, E4M3, E4M3, BF16, modes[0], modes[1], m, n, k, k, k, n, False, False)
    data = Data(pointer(a), pointer(b), pointer(a_scale), pointer(b_scale), None, pointer(c),
                pointer(workspace), 1.0)
    plan = Plan(lib, handle, shape, data)
    theirs = lambda: torch._scaled_mm(a, b.t(), a_torch, b_torch, out_dtype=torch.bfloat16)
    plan()
    try:
        note = f"algorithm {plan.chosen}, difference {difference(c, theirs()):.0e}"
    except (RuntimeError, ValueError) as refused:
        theirs, note = None, "PyTorch: " + str(refused).split("\n")[0][:60]
    ours_s, theirs_s = seconds(plan, theirs)
    table.add("fp8", name, f"{m} x {n} x {k}", ours_s, theirs_s, 2.0 * m * n * k,
              m * k + n * k + 2.0 * m * n, note, peak=2.0)
    plan.close()


def run(lib, table):
    handle = open_library(lib)
    workspace = torch.empty(WORKSPACE_B, device="cuda", dtype=torch.uint8)
    for m, n, k in SHAPES:
        bf16(lib, handle, table, NT, m, n, k, workspace)
    for form in (NN, TN):
        bf16(lib, handle, table, form, 4096, 7168, 2048, workspace)
        bf16(lib, handle, table, form, 8192, 8192, 8192, workspace)
    for name, modes in (("fp8 tensor", (TENSOR, TENSOR)), ("fp8 1x128, 128x128", (ROW128, BLOCK128)),
                        ("fp8 1x128, 1x128", (ROW128, ROW128))):
        for m, n, k in FP8_SHAPES:
            fp8(lib, handle, table, name, m, n, k, modes, workspace)
    lib.dll.mf_gemm_cuda_library_close(handle)
