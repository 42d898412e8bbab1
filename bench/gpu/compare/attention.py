"""Attention through cuDNN's graphs (kernels/attention/attention_cuda.h) beside PyTorch's cuDNN attention."""
import ctypes

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import difference, pointer, seconds, stream

# batch, query heads, key heads, sequence, width of q and k, width of v
SHAPES = [(1, 32, 32, 8192, 128, 128), (2, 48, 48, 4096, 128, 128), (1, 128, 128, 4096, 128, 128),
          (2, 64, 8, 4096, 128, 128), (1, 128, 128, 4096, 192, 128), (1, 64, 64, 8192, 192, 128)]


class Strides(ctypes.Structure):
    """mf_attention_strides"""

    _fields_ = [(n, ctypes.c_int64) for n in ("batch", "row", "head")]


class Shape(ctypes.Structure):
    """mf_attention_cuda_shape"""

    _fields_ = ([(n, ctypes.c_int64) for n in
                 ("batch", "heads", "kv_heads", "seq_q", "seq_k", "qk_dim", "v_dim")] +
                [(n, Strides) for n in ("q", "k", "v", "o")] +
                [("scale", ctypes.c_float), ("causal", ctypes.c_bool), ("window", ctypes.c_int64),
                 ("sink", ctypes.c_bool), ("backward", ctypes.c_bool)])


class Data(ctypes.Structure):
    """mf_attention_cuda_data"""

    _fields_ = [(n, ctypes.c_void_p) for n in ("q", "k", "v", "sink", "o", "lse", "d_o", "dq", "dk",
                                               "dv", "dsink", "workspace")]


def strides(t):
    return Strides(t.stride(0), t.stride(1), t.stride(2))


class Plan:
    def __init__(self, lib, handle, shape, **tensors):
        self.lib, self.plan = lib, ctypes.c_void_p()
        lib.call("mf_attention_cuda_create", handle, ctypes.byref(shape), ctypes.byref(self.plan))
        lib.dll.mf_attention_cuda_workspace_B.restype = ctypes.c_size_t
        size_B = lib.dll.mf_attention_cuda_workspace_B(self.plan)
        self.workspace = torch.empty(size_B + 256, device="cuda", dtype=torch.uint8)
        self.data = Data(**{n: pointer(t) for n, t in tensors.items()},
                         workspace=pointer(self.workspace))

    def __call__(self):
        self.lib.call("mf_attention_cuda_run", self.plan, ctypes.byref(self.data), stream())

    def close(self):
        self.lib.dll.mf_attention_cuda_destroy(self.plan)


def compare(lib, handle, table, batch, heads, kv_heads, seq, qk, v_dim):
    new = lambda h, width: torch.randn(batch, seq, h, width, device="cuda", dtype=torch.bfloat16)
    q, k, v, do = new(heads, qk), new(kv_heads, qk), new(kv_heads, v_dim), new(heads, v_dim)
    o, dq, dk, dv = (torch.full_like(t, float("nan")) for t in (do, q, k, v))
    lse = torch.empty(batch, heads, seq, device="cuda")
    scale = qk ** -0.5

    def shape(backward):
        return Shape(batch, heads, kv_heads, seq, seq, qk, v_dim, strides(q), strides(k), strides(v),
                     strides(o), scale, True, 0, False, backward)

    forward = Plan(lib, handle, shape(False), q=q, k=k, v=v, o=o, lse=lse)
    backward = Plan(lib, handle, shape(True), q=q, k=k, v=v, o=o, lse=lse, d_o=do, dq=dq, dk=dk, dv=dv)
    forward()
    backward()
    theirs, theirs_back, note, note_back = None, None, "", ""
    heads_first = [t.transpose(1, 2).detach().requires_grad_() for t in (q, k, v)]
    try:
        def theirs():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return F.scaled_dot_product_attention(*heads_first, is_causal=True, scale=scale,
                                                      enable_gqa=heads != kv_heads)

        out = theirs()
        note = f"difference {difference(o, out.transpose(1, 2)):.0e}"
        d_out = do.transpose(1, 2)
        theirs_back = lambda: torch.autograd.grad(out, heads_first, d_out, retain_graph=True)
        pairs = zip((dq, dk, dv), theirs_back())
        note_back = "difference " + " ".join(f"{difference(a, b.transpose(1, 2)):.0e}" for a, b in pairs)
    except RuntimeError as refused:
        theirs = theirs_back = None
        note = note_back = "PyTorch: " + str(refused).split("\n")[0][:60]
    work = batch * heads * seq * seq  # causal: half of 2 operations a multiply-add
    moved_B = 2.0 * (q.numel() + k.numel() + v.numel() + o.numel())
    text = f"B{batch} H{heads}/{kv_heads} S{seq} {qk}/{v_dim}"
    ours_s, theirs_s = seconds(forward, theirs)
    table.add("attention", "attention forward", text, ours_s, theirs_s, work * (qk + v_dim), moved_B, note)
    ours_s, theirs_s = seconds(backward, theirs_back)
    table.add("attention", "attention backward", text, ours_s, theirs_s,
              work * (3.0 * qk + 2.0 * v_dim), 2 * moved_B, note_back)
    forward.close()
    backward.close()


def run(lib, table):
    handle = ctypes.c_void_p()
    lib.call("mf_attention_cuda_library_open", ctypes.byref(handle))
    for s in SHAPES:
        compare(lib, handle, table, *s)
    lib.dll.mf_attention_cuda_library_close(handle)
