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


def layernorm(shape, backward):
    width = (shape[-1],)
    x, w, b = (t.requires_grad_(backward) for t in (bf16(*shape), bf16(*width), bf16(*width)))
    if not backward:
        return lambda: F.layer_norm(x, width, w, b, 1e-5)
    y, dy = F.layer_norm(x, width, w, b, 1e-5), bf16(*shape)
    return lambda: torch.autograd.grad(y, (x, w, b), dy, retain_graph=True)


def swiglu(shape):
    both = bf16(shape[0], 2 * shape[1])
    return lambda: F.silu(both[:, :shape[1]]) * both[:, shape[1]:]


def permute(shape):
    tokens, cols, top_k = shape[:3]
    x, row = bf16(tokens, cols), torch.randperm(tokens * top_k, device="cuda") // top_k
    return lambda: torch.index_select(x, 0, row)


def unpermute(shape):
    tokens, cols, top_k = shape[:3]
    rows, w = bf16(tokens * top_k, cols), bf16(tokens, top_k, 1)
    order = torch.randperm(tokens * top_k, device="cuda")
    return lambda: (rows[order].view(tokens, top_k, cols) * w).sum(1)


def embedding(shape, backward):
    tokens, cols, vocab = shape[:3]
    table, token = bf16(vocab, cols), torch.randint(0, vocab, (tokens,), device="cuda")
    if not backward:
        return lambda: F.embedding(token, table)
    dy = bf16(tokens, cols)
    return lambda: torch.ops.aten.embedding_dense_backward(dy, token, vocab, -1, False)


def cross_entropy(shape):
    logits, target = bf16(*shape), torch.randint(0, shape[1], shape[:1], device="cuda")
    return lambda: F.cross_entropy(logits, target)


def many(shape):
    """The tensors of a row that names their number and size."""
    return [torch.randn(shape[1] << 10, device="cuda") for _ in range(shape[0])]


def adamw(shape):
    p, g, m, v = many(shape), many(shape), many(shape), [t.abs() for t in many(shape)]
    steps = [torch.ones((), device="cuda") for _ in p]
    return lambda: torch._fused_adamw_(p, g, m, v, [], steps, amsgrad=False, lr=1e-4, beta1=0.9,
                                       beta2=0.95, weight_decay=0.1, eps=1e-8, maximize=False)


def gradient_norm(shape):
    g = many(shape)
    return lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(g)))


def cast(shape):
    x, y = torch.randn(shape[0] << 20, device="cuda"), bf16(shape[0] << 20)
    return lambda: y.copy_(x)


def cast_wide(shape):
    x, y = torch.randn(shape[0] << 20, device="cuda"), bf16(shape[0] << 20)
    return lambda: x.copy_(y)


def cast_added(shape):
    x, y = torch.randn(shape[0] << 20, device="cuda"), bf16(shape[0] << 20)
    return lambda: x.add_(y)


def add(shape):
    x, y, z = bf16(shape[0] << 20), bf16(shape[0] << 20), bf16(shape[0] << 20)
    return lambda: torch.add(x, y, out=z)


# What PyTorch runs in eager mode for the same result (adamw: without the bf16 copy of the parameters).
THEIRS = {
    "rmsnorm forward": lambda s: norm(s, False),
    "rmsnorm backward": lambda s: norm(s, True),
    "layernorm forward": lambda s: layernorm(s, False),
    "layernorm backward": lambda s: layernorm(s, True),
    "swiglu forward": swiglu,
    "permute": permute,
    "unpermute weighted": unpermute,
    "embedding forward": lambda s: embedding(s, False),
    "embedding backward": lambda s: embedding(s, True),
    "cross-entropy statistics": cross_entropy,
    "adamw, float moments": adamw,
    "gradient norm": gradient_norm,
    "cast, float to bf16": cast,
    "cast, bf16 to float": cast_wide,
    "cast, bf16 added to float": cast_added,
    "add, bf16": add,
}


# PyTorch's are timed on one set of operands: only where no cache holds it.
LARGE_B = 400e6


def run(rows, table):
    for name, shape, ours_s, moved_B in rows:
        theirs_s, note = None, ""
        if name in THEIRS and moved_B >= LARGE_B and "half of 20" not in shape:
            try:
                theirs_s = seconds(THEIRS[name](tuple(int(n) for n in re.findall(r"\d+", shape))))[0]
            except (RuntimeError, TypeError) as refused:
                note = "PyTorch: " + str(refused).split("\n")[0][:60]
            torch.cuda.empty_cache()
        table.add("memory" if moved_B else "latency", name, shape, ours_s, theirs_s, 0.0, moved_B, note)
