"""What the comparisons share: the library through ctypes, timing in turns, the table's rows."""
import ctypes
import os
import statistics

import torch

ROUNDS = 9
TURN_S = 8e-3  # of back-to-back launches between two events


class Err(ctypes.Structure):
    """mf_err"""

    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 2048)]


class Library:
    """libmoefold_cuda.so: call(name, *arguments) fails with the library's own words."""

    def __init__(self, path):
        self.dll = ctypes.CDLL(os.path.abspath(path))
        self.err = Err()

    def call(self, name, *arguments):
        if getattr(self.dll, name)(*arguments, ctypes.byref(self.err)) != 0:
            raise RuntimeError(self.err.text.decode())


def stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def pointer(tensor):
    return None if tensor is None else tensor.data_ptr()


def turn(call, launches):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(launches):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / launches


def seconds(*calls):
    """Median seconds of each call; the calls take turns. None stays None."""
    live = [c for c in calls if c is not None]
    launches = {}
    for c in live:
        once = max(turn(c, 2), 1e-6)
        launches[c] = max(2, min(200, int(TURN_S / once)))
        turn(c, launches[c])
    times = {c: [] for c in live}
    for _ in range(ROUNDS):
        for c in live:
            times[c].append(turn(c, launches[c]))
    return [None if c is None else statistics.median(times[c]) for c in calls]


def difference(got, want):
    """Relative norm of got - want."""
    want = want.float()
    return ((got.float() - want).norm() / want.norm()).item()


class Table:
    """Rows of kernel, shape, ours, limit, PyTorch; a row is printed as it comes.

    The limit of a product is the larger of its operations at the measured peak and its bytes at the
    measured copy; it is set before rows come (peak_flops, copy_Bps)."""

    def __init__(self, peak_flops, copy_Bps):
        self.peak_flops, self.copy_Bps = peak_flops, copy_Bps
        self.rows = []
        print(f"| {'kernel':31s} | {'shape':42s} | {'us':>8s} | {'rate':>11s} | of limit | PyTorch us | "
              "ratio | note |")
        print("|---" * 8 + "|")

    def limit_s(self, flops, moved_B):
        return max(flops / self.peak_flops, moved_B / self.copy_Bps)

    def add(self, kind, name, shape, ours_s, theirs_s, flops=0.0, moved_B=0.0, note="", peak=1.0):
        """peak: of the matrix rate, 2.0 for FP8. ratio = PyTorch's time over ours."""
        ratio = theirs_s / ours_s if theirs_s else None
        share = self.limit_s(flops / peak, moved_B) / ours_s if flops or moved_B else None
        rate = f"{flops / ours_s * 1e-12:.0f} TFLOP/s" if flops else (
            f"{moved_B / ours_s * 1e-9:.0f} GB/s" if moved_B else "-")
        self.rows.append(dict(kind=kind, name=name, shape=shape, ours=ours_s, theirs=theirs_s,
                              ratio=ratio, share=share, rate=rate, note=note))
        print(f"| {name:31s} | {shape:42s} | {ours_s * 1e6:8.1f} | {rate:>11s} | "
              f"{f'{share:.0%}' if share else '-':>8s} | "
              f"{f'{theirs_s * 1e6:.1f}' if theirs_s else '-':>10s} | "
              f"{f'{ratio:.2f}' if ratio else '-':>5s} | {note} |", flush=True)
