"""The memory-bound kernels as bench_kernels times them, beside PyTorch's own operators where it has
them, at the same shapes on the same GPU."""
import re
import subprocess

import torch
import torch.nn.functional as F

from common import seconds


def measure(path):
    """Runs bench_kernels: copy and fill bandwidth, and (name, shape, seconds, bytes) of each row."""
    text = subprocess.run([path], capture_output=True, text=True, check=True).stdout
    copy, fill = re.search(r"copy of 4 GiB: (\d+) GB/s.*fill: (\d+) GB/s", text).groups()
    rows = []
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("| ").split("|")]
        if len(cells) >= 5 and re.fullmatch(r"[\d.]+", cells[2]):
            time_s = float(cells[2]) * 1e-6
            moved_B = 0.0 if cells[3] == "-" else float(cells[3]) * 1e9 * time_s
            rows.append((cells[0], cells[1], time_s, moved_B))
    return float(copy) * 1e9, float(fill) * 1e9, rows


def bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def norm(shape, backward):
    x, w = bf16(*shape).requires_grad_(backward), bf16(shape[-1]).requires_grad_(backward)
    if not backward:
        return lambda: F.rms_norm(x, (shape[-1],), w, 1e-6)
    y, dy = F.rms_norm(x, (shape[-1],), w, 1e-6), bf16(*shape)
    return lambda: torch.autograd.grad(y, (x, w), dy, retain_graph=True)


def swiglu(shape):
    both = bf16(shape[0], 2 * shape[1])
    return lambda: F.silu(both[:, :shape[1]]) * both[:, shape[1]:]


def permute(_):
    x = bf16(8192, 7168)
    row = (torch.randperm(65536, device="cuda") // 8)
    return lambda: torch.index_select(x, 0, row)


def unpermute(_):
    rows, w = bf16(65536, 7168), torch.rand(8192, 8, 1, device="cuda", dtype=torch.bfloat16)
    order = torch.randperm(65536, device="cuda")
    return lambda: (rows[order].view(8192, 8, 7168) * w).sum(1)


def embedding(backward):
    table, token = bf16(32768, 7168), torch.randint(0, 32768, (16384,), device="cuda")
    if not backward:
        return lambda: F.embedding(token, table)
    dy = bf16(16384, 7168)
    return lambda: torch.ops.aten.embedding_dense_backward(dy, token, 32768, -1, False)


def cross_entropy(_):
    logits, target = bf16(8192, 129280), torch.randint(0, 129280, (8192,), device="cuda")
    return lambda: F.cross_entropy(logits, target)


def adamw(_):
    each = lambda: [torch.randn(16 << 20, device="cuda") for _ in range(16)]
    p, g, m, v = each(), each(), each(), [t.abs() for t in each()]
    steps = [torch.ones((), device="cuda") for _ in range(16)]
    return lambda: torch._fused_adamw_(p, g, m, v, [], steps, amsgrad=False, lr=1e-4, beta1=0.9,
                                       beta2=0.95, weight_decay=0.1, eps=1e-8, maximize=False)


def gradient_norm(_):
    g = [torch.randn(16 << 20, device="cuda") for _ in range(16)]
    return lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(g)))


def cast(_):
    x, y = torch.randn(256 << 20, device="cuda"), bf16(256 << 20)
    return lambda: y.copy_(x)


def cast_added(_):
    x, y = torch.randn(256 << 20, device="cuda"), bf16(256 << 20)
    return lambda: x.add_(y)


def add(_):
    x, y, z = bf16(256 << 20), bf16(256 << 20), bf16(256 << 20)
    return lambda: torch.add(x, y, out=z)


# What PyTorch runs in eager mode for the same result (adamw: without the bf16 copy of the parameters).
THEIRS = {
    "rmsnorm forward": lambda s: norm(s, False),
    "rmsnorm backward": lambda s: norm(s, True),
    "swiglu forward": swiglu,
    "permute": permute,
    "unpermute weighted": unpermute,
    "embedding forward": lambda s: embedding(False),
    "embedding backward": lambda s: embedding(True),
    "cross-entropy statistics": cross_entropy,
    "adamw, float moments": adamw,
    "gradient norm": gradient_norm,
    "cast, float to bf16": cast,
    "cast, bf16 added to float": cast_added,
    "add, bf16": add,
}


def run(rows, table):
    for name, shape, ours_s, moved_B in rows:
        theirs_s, note = None, ""
        if name in THEIRS and "half of 20" not in shape:
            try:
                theirs_s = seconds(THEIRS[name](tuple(int(n) for n in re.findall(r"\d+", shape))))[0]
            except (RuntimeError, TypeError) as refused:
                note = "PyTorch: " + str(refused).split("\n")[0][:60]
            torch.cuda.empty_cache()
        table.add("memory" if moved_B else "latency", name, shape, ours_s, theirs_s, 0.0, moved_B, note)
