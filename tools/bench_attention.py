"""How fast the kernels other than linear layers are: points a second on one core."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from codesign_lib.cost import attention_kernels, collectives, latent_kernels, moe_kernels

N_POINTS = 1_000_000
LEAST_PER_S = 1e6


def calls() -> dict[str, Callable[[], np.ndarray]]:
    rng = np.random.default_rng(0)
    tokens, batch, groups = (rng.integers(1, high, N_POINTS).astype(np.float64) for high in (100_000, 257, 17))
    ranks = 2.0 ** rng.integers(0, 7, N_POINTS)
    heads, on = dict(n_heads=4 * groups, n_kv_heads=4, n_batch=batch), dict(chip="gb300", fmt="fp8")
    r1 = dict(d_model=7168, d_expert=2048, n_experts=256, n_chosen=8, ep=ranks, chip="gb300", fmt="nvfp4")
    decode, prefill = attention_kernels.attention_decode_s, attention_kernels.attention_prefill_s
    return {
        "attention_decode_s": lambda: decode(tokens, **heads, **on),
        "attention_decode_s, measured": lambda: decode(tokens, **heads, **on, repeated=True),
        "attention_decode_s, bound": lambda: decode(tokens, **heads, **on, bound=True),
        "attention_prefill_s": lambda: prefill(tokens, 4096, **heads, **on),
        "latent_decode_s": lambda: latent_kernels.latent_decode_s(tokens, n_heads=16, n_batch=batch, **on),
        "latent_prefill_s": lambda: latent_kernels.latent_prefill_s(tokens, n_heads=16, n_batch=batch, **on),
        "moe_s, balanced": lambda: moe_kernels.moe_s(tokens, **r1),
        "moe_s, skewed": lambda: moe_kernels.moe_s(tokens, **r1, routing="skewed"),
        "all_reduce_s": lambda: collectives.all_reduce_s(tokens * 7168, n_ranks=ranks, chip="gb300", engine="trtllm"),
        "all_to_all_s": lambda: collectives.all_to_all_s(tokens * 7168, n_ranks=ranks, chip="gb300"),
        "moe_all_to_all_s": lambda: collectives.moe_all_to_all_s(tokens, phase="dispatch", ep=32),
    }


def main() -> int:
    least = np.inf
    for name, call in calls().items():
        start = time.perf_counter()
        call()
        per_s = N_POINTS / (time.perf_counter() - start)
        least = min(least, per_s)
        print(f"{name:30s} {per_s / 1e6:6.1f} M points/s")
    return int(least < LEAST_PER_S)


if __name__ == "__main__":
    sys.exit(main())
