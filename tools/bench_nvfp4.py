"""Speed of NVFP4 (part of `make bench`), on one core, as ratios within one run over 4096² float32.

Against the plain form in numpy and ml_dtypes, and against nvidia-modelopt where torch and it are installed; so are the
loops that numba compiles, where it is installed, as a multiple of numpy's speed. All must give the same bits. The
working memory beyond input and output is measured as well.
"""

from __future__ import annotations

import importlib
import os
import sys
import tracemalloc
import warnings
from statistics import median
from time import process_time

import numpy as np

from codesign_lib.lowbit import compiled, nvfp4

N, N_RUNS = 4096, 7
TARGETS = {"modelopt": (5.8, 6.0), "plain": (4.5, 0.0)}
COMPILED_TARGETS = (2.5, 0.0)  # of decoding, a third to a half is the time that fresh memory for the result takes
MEMORY_MAX = 0.10


def main() -> int:
    if hasattr(os, "sched_setaffinity"):  # one core for everybody
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    x = np.random.default_rng(0).standard_normal((N, N), dtype=np.float32)
    x[x == 0] = 1  # ml_dtypes keeps the sign of −0
    q = nvfp4.quantise(x)
    others = {name: make(x) for name, make in (("plain", plain), ("modelopt", modelopt), ("compiled", by_numba))}
    calls = {"ours": (lambda: nvfp4.quantise(x), lambda: nvfp4.dequantise(q))}
    for name, other in others.items():
        if other is not None:
            quantise, dequantise, packed, scales, values = other
            same = np.array_equal(packed, q.packed) and np.array_equal(scales, q.scales)
            if not (same and np.array_equal(values, nvfp4.dequantise(q))):
                print(f"{name}: other bits than ours")
                return 1
            calls[name] = (quantise, dequantise)
    # CPU seconds, and one call of each in turn: a busy machine must not decide
    times = {name: ([], []) for name in calls}
    for _ in range(N_RUNS):
        for name, pair in calls.items():
            for call, found in zip(pair, times[name], strict=True):
                start = process_time()
                call()
                found.append(process_time() - start)
    failed = False
    ours = [median(t) for t in times["ours"]]
    for name, found in times.items():
        seconds = [median(t) for t in found]
        rates = ", ".join(f"{what} {x.size / s / 1e6:6.0f} M/s" for what, s in zip(WHAT, seconds, strict=True))
        if name == "ours":
            print(f"{name:9s} {rates} (median of {N_RUNS}, one core)")
            continue
        ratios = [theirs / mine for theirs, mine in zip(seconds, ours, strict=True)]
        targets, what = TARGETS.get(name, COMPILED_TARGETS), "ours is faster by"
        if name == "compiled":
            ratios, what = [1 / r for r in ratios], "faster than ours in numpy by"
        failed |= any(r < target for r, target in zip(ratios, targets, strict=True))
        told = ", ".join(f"{r:.1f}× (at least {t:g}×)" if t else f"{r:.1f}×" for r, t in zip(ratios, targets))  # noqa: B905
        print(f"{name:9s} {rates}; {what} {told}")
    for name in [n for n in ("ours", "compiled") if n in calls]:
        sizes = (x.nbytes, q.packed.nbytes + q.scales.nbytes), (q.storage_bytes, x.nbytes)
        for what, call, (given, out) in zip(WHAT, calls[name], sizes, strict=True):
            tracemalloc.start()
            call()
            fraction = (tracemalloc.get_traced_memory()[1] - out) / given
            tracemalloc.stop()
            failed |= fraction > MEMORY_MAX
            print(f"{name:9s} {what}: working memory {fraction:.1%} of the input (at most {MEMORY_MAX:.0%})")
    return int(failed)


WHAT = ("quantise", "dequantise")


def plain(x):
    """NVFP4 with ModelOpt's order of operations, written the way one first writes it."""
    ml_dtypes = installed("ml_dtypes")
    if ml_dtypes is None:
        return None

    def quantise():
        g = np.abs(x).max() / np.float32(2688)
        blocks = x.reshape(-1, 16)
        scale = np.abs(blocks).max(axis=1) / (np.float32(6) * g)
        scale[scale == 0] = 1
        scale = np.clip(scale, np.float32(2**-9), np.float32(448)).astype(ml_dtypes.float8_e4m3fn)
        y = blocks / (scale.astype(np.float32) * g)[:, None]
        codes = y.astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(len(x), -1)
        return codes[:, ::2] | (codes[:, 1::2] << 4), scale, g

    packed, scale, g = quantise()

    def dequantise():
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1, 16)
        step = scale.astype(np.float32) * g
        return (codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * step[:, None]).reshape(x.shape)

    return quantise, dequantise, packed, scale.view(np.uint8).reshape(len(x), -1), dequantise()


def modelopt(x):
    """The ModelOpt package on a CPU."""
    warnings.filterwarnings("ignore")
    torch = installed("torch")
    module = torch and installed("modelopt.torch.quantization.qtensor.nvfp4_tensor")
    if not module:
        return None
    torch.set_num_threads(1)
    tensor = torch.from_numpy(x)

    def quantise():
        return module.NVFP4QTensor.quantize(tensor, 16)

    q, scale, double_scale = quantise()

    def dequantise():
        return q.dequantize(scale=scale, double_scale=double_scale, block_sizes={-1: 16})

    packed = q._quantized_data.numpy()
    return quantise, dequantise, packed, scale.view(torch.uint8).numpy(), dequantise().numpy()


def by_numba(x):
    """Our own loops, compiled; this first call compiles them."""
    if not installed("numba"):
        return None
    q = compiled.quantise(x)
    values = compiled.dequantise(q)
    return (lambda: compiled.quantise(x)), (lambda: compiled.dequantise(q)), q.packed, q.scales, values


def installed(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"{name}: not compared, as {error.name or name} is not installed")
        return None


if __name__ == "__main__":
    sys.exit(main())
