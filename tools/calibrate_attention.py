"""Fits the numbers of attention kernels in data/calibration.csv on the measured tables; about a minute.

Shapes are split by a checksum of heads, key-value heads and batch, all lengths of a shape on the same side: one half
is fitted, the other only judged. Forms were chosen on the fitting half, split once more (tools/choose_attention.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import fitting
import measured
import numpy as np
import pandas as pd

from codesign_lib.cost import attention_kernels, latent_kernels
from codesign_lib.cost.attention_kernels import DECODE_KERNELS, HOPPER, DecodeKernel

FMTS = ("bf16", "fp8")
FUSED = ("torch_flow", "fa3", "trtllm_mha")  # the engines' main kernels; others serve head sizes these do not
LEAST_TOKENS = 1024  # errors are those of rows from here on
N_ROWS = 6000
DECODE_LIMITS = {  # start, least, most
    "launch_s": (6e-6, 1e-7, 5e-5),
    "stream_s": (1e-6, 1e-9, 1e-4),
    "stream_bytes_per_s": (1e11, 1e9, 1e14),
    "split_s": (5e-6, 1e-7, 1e-3),
    "memory_fraction": (0.8, 0.005, 1.0),  # kernels that no engine fuses reach a hundredth
}
BUMP_HEADS = (32, 64)  # on Blackwell, latent decoding: not explained by the form, kept out of the fit
LATENT_LIMITS = {
    "launch_s": (1.2e-5, 1e-7, 5e-5),
    "stream_bytes_per_s": (2e12, 1e9, 1e14),
    "split_s": (2.5e-5, 1e-7, 1e-3),
    "memory_fraction": (0.8, 0.05, 1.0),
    "compute_fraction": (0.5, 0.05, 1.0),
}
PREFILL_LIMITS = {
    "launch_s": (6e-6, 1e-7, 1e-4),
    "compute_fraction": (0.7, 0.05, 1.0),
    "block_s": (1e-6, 1e-9, 1e-4),
    "memory_fraction": (0.7, 0.05, 1.0),
    "longest_ratio": (0.5, 0.01, 2.0),
}
Form = Callable[[pd.DataFrame, Mapping[str, float]], np.ndarray]


class Table(NamedTuple):
    """Measured rows of one kernel, and what computes them: fitted from ``least_tokens`` on."""

    kernel: str
    chip: str
    engine: str
    fmt: str
    rows: pd.DataFrame
    form: Form
    limits: Mapping[str, tuple[float, float, float]]
    least_tokens: int


def decode_rows(chip: str, engine: str) -> pd.DataFrame:
    """Decoding, main kernels, head size 128, no window; columns held_out, second and groups added."""
    t = measured.attention(chip, engine, "decode")
    t = t[t.kernel.isin(FUSED) & (t.d_head == 128) & (t.window_tokens == 0)]
    return split(t, ["n_heads", "n_kv_heads", "n_batch"]).assign(groups=t.n_heads // t.n_kv_heads)


def prefill_rows(chip: str, engine: str) -> pd.DataFrame:
    """Prefill, main kernels, head size 128, no window, products and cache in one format."""
    t = measured.attention(chip, engine, "prefill")
    t = t[t.kernel.isin(FUSED) & (t.d_head == 128) & (t.window_tokens == 0) & (t.fmt == t.kv_fmt)]
    return split(t, ["n_heads", "n_kv_heads", "n_batch"])


def latent_rows(chip: str, engine: str, phase: str) -> pd.DataFrame:
    t = measured.latent(chip, engine, phase)
    # FP8 on Hopper in SGLang takes 2 ms whatever the heads: not a kernel anybody would serve with
    return split(t[(t.kv_fmt == "bf16") | (engine == "trtllm") | (chip not in HOPPER)], ["n_heads", "n_batch"])


def split(t: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    return t.assign(held_out=measured.hashed(t, names), second=measured.hashed(t, names, 1))


def decode_form(chip: str, fmt: str, kernel: DecodeKernel) -> Form:
    def form(t: pd.DataFrame, numbers: Mapping[str, float]) -> np.ndarray:
        return attention_kernels.decode_form_s(
            t.n_tokens, t.n_batch, t.n_heads, t.n_kv_heads, t.d_head,
            chip=chip, fmt=fmt, kernel=kernel, numbers=numbers, repeated=True,
        )  # fmt: skip

    return form


def prefill_form(chip: str, fmt: str) -> Form:
    def form(t: pd.DataFrame, numbers: Mapping[str, float]) -> np.ndarray:
        sizes = (t.n_tokens, 0, t.n_batch, t.n_heads, t.n_kv_heads, t.d_head, t.d_head)
        return attention_kernels.prefill_form_s(*sizes, chip=chip, fmt=fmt, numbers=numbers)

    return form


def latent_prefill_form(chip: str, engine: str, fmt: str) -> Form:
    absorbed = latent_kernels.absorbs(engine, chip)
    d, v = (576, 512) if absorbed else (192, 128)

    def form(t: pd.DataFrame, numbers: Mapping[str, float]) -> np.ndarray:
        sizes = (t.n_tokens, t.n_batch, t.n_heads, d, v)
        return latent_kernels.latent_prefill_form_s(*sizes, absorbed=absorbed, chip=chip, fmt=fmt, numbers=numbers)

    return form


def latent_form(chip: str, fmt: str) -> Form:
    def form(t: pd.DataFrame, numbers: Mapping[str, float]) -> np.ndarray:
        return latent_kernels.latent_decode_form_s(
            t.n_tokens, t.n_batch, t.n_heads, 512, 64, chip=chip, fmt=fmt, numbers=numbers, repeated=True
        )

    return form


def tables() -> Iterator[Table]:
    """All tables that are fitted."""
    for chip in measured.CHIPS:
        for engine in measured.ENGINES:
            key = (chip, engine)
            for fmt, rows in decode_rows(*key).groupby("kv_fmt"):
                kernels = DECODE_KERNELS[engine, chip in HOPPER]
                for name in dict.fromkeys(k.numbers for k in kernels):
                    of = [k for k in kernels if k.numbers == name]
                    served = np.any([rows.groups.between(*k.groups) for k in of], axis=0)
                    form = decode_form(chip, fmt, of[0])
                    yield Table(name, *key, fmt, rows[served], form, DECODE_LIMITS, 128)
            for fmt, rows in prefill_rows(*key).groupby("fmt"):
                yield Table("attention_prefill", *key, fmt, rows, prefill_form(chip, fmt), PREFILL_LIMITS, 256)
            for fmt, rows in latent_rows(*key, "decode").groupby("kv_fmt"):
                yield Table("latent_decode", *key, fmt, rows, latent_form(chip, fmt), LATENT_LIMITS, LEAST_TOKENS)
            for fmt, rows in latent_rows(*key, "prefill").groupby("kv_fmt"):
                form = latent_prefill_form(*key, fmt)
                yield Table("latent_prefill", *key, fmt, rows, form, PREFILL_LIMITS, LEAST_TOKENS)


def without_bump(chip: str, rows: pd.DataFrame) -> pd.DataFrame:
    return rows if chip in HOPPER else rows[~rows.n_heads.isin(BUMP_HEADS)]


def fit(t: Table, rows: pd.DataFrame) -> tuple[dict[str, float], int]:
    rows = rows[rows.n_tokens >= t.least_tokens]
    if t.kernel == "latent_decode":
        rows = without_bump(t.chip, rows)
    rows = rows.sample(N_ROWS, random_state=0) if len(rows) > N_ROWS else rows
    numbers = fitting.solve(lambda x: t.form(rows, x), rows.latency_s.to_numpy(), t.limits)
    return fitting.rounded(numbers), len(rows)


def main() -> int:
    rows = []
    for t in tables():
        numbers, n_fitted = fit(t, t.rows[~t.rows.held_out])
        held = t.rows[t.rows.held_out & (t.rows.n_tokens >= LEAST_TOKENS)]
        found = fitting.errors(t.form(held, numbers), held.latency_s.to_numpy())
        rows.append(fitting.row(t.kernel, t.chip, t.engine, t.fmt, numbers, found, n_fitted, len(held)))
        print(f"{' '.join(t[:4]):45s} {100 * found[0]:5.1f} / {100 * found[1]:4.1f}", numbers, flush=True)
    kernels = dict.fromkeys(r["kernel"] for r in rows)
    rows.sort(key=lambda r: list(kernels).index(r["kernel"]))
    fitting.replace_rows(set(kernels), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
