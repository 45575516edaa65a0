"""Hold the calibrated attention kernels against the full measured tables, and print every figure.

  python tools/validate_attention.py           evaluate, compare with data/validation/attention*.csv, fail on a difference
  python tools/validate_attention.py --write   evaluate and write those files

Errors are those on shapes that no fit saw, unless the regime says that the whole table was not fitted. Rows whose chip
is ``median`` are the medians over chips × engines × formats of each table's own figure. Nothing is fitted here.
"""  # noqa: E501

from __future__ import annotations

import sys
from collections.abc import Iterator

import calibrate_attention as fits
import measured
import numpy as np
import pandas as pd
import validation
from validation import Check, Error

from codesign_lib.cost import attention_kernels, latent_kernels
from codesign_lib.cost.attention_kernels import HOPPER
from codesign_lib.specs import hardware
from codesign_lib.specs.formats import as_format

LONG = fits.LEAST_TOKENS
SHOWN = (("gb300", "bf16", 64, 8192), ("gb300", "bf16", 8, 131_072), ("gb300", "fp8", 64, 16_384))
SHOWN += (("h200_sxm", "bf16", 64, 16_384), ("h200_sxm", "bf16", 8, 131_072))


def decode_s(t: pd.DataFrame, chip: str, engine: str, fmt: str, **how) -> np.ndarray:
    window = t.window_tokens.where(t.window_tokens > 0, 2**40) if "window_tokens" in t else None
    return attention_kernels.attention_decode_s(
        t.n_tokens, n_heads=t.n_heads, n_kv_heads=t.n_kv_heads, d_head=t.d_head, n_batch=t.n_batch,
        window_tokens=window, chip=chip, fmt=fmt, engine=engine, **how,
    )  # fmt: skip


def prefill_s(t: pd.DataFrame, chip: str, engine: str, fmt: str, **how) -> np.ndarray:
    return attention_kernels.attention_prefill_s(
        t.n_tokens, n_heads=t.n_heads, n_kv_heads=t.n_kv_heads, d_head=t.d_head, n_batch=t.n_batch,
        window_tokens=t.window_tokens.where(t.window_tokens > 0, 2**40), chip=chip, fmt=fmt, engine=engine, **how,
    )  # fmt: skip


def latent_s(t: pd.DataFrame, phase: str, chip: str, engine: str, fmt: str, **how) -> np.ndarray:
    form = latent_kernels.latent_decode_s if phase == "decode" else latent_kernels.latent_prefill_s
    return form(t.n_tokens, n_heads=t.n_heads, n_batch=t.n_batch, chip=chip, fmt=fmt, engine=engine, **how)


def pairs() -> Iterator[tuple[str, str]]:
    for chip in measured.CHIPS:
        for engine in measured.ENGINES:
            yield chip, engine


def decode(bounds: dict) -> Iterator[Error]:
    for chip, engine in pairs():
        for fmt, t in fits.decode_rows(chip, engine).groupby("kv_fmt"):
            t = t[t.held_out]
            ours, bound = (decode_s(t, chip, engine, fmt, **x) for x in (dict(repeated=True), dict(bound=True)))
            bounds.setdefault("decode", []).append((ours, bound, t.latency_s))
            long = t.n_tokens >= LONG
            cache = 2 * as_format(fmt).bytes_per_element * t.n_batch * t.n_tokens * t.n_kv_heads * t.d_head
            regimes = {
                "S >= 1024": long,
                "S >= 1024, KV beyond twice L2": long & (cache > 2 * hardware.chip(chip).l2_bytes),
                "S >= 1024, up to 32 heads a KV head": long & (t.groups <= 32),
                "S >= 1024, more than 32 heads a KV head": long & (t.groups > 32),
                "S < 1024": ~long,
            }
            yield from validation.judge("decode", chip, engine, fmt, ours, t.latency_s, regimes)
            yield from validation.judge("decode, roofline", chip, engine, fmt, bound, t.latency_s, {"S >= 1024": long})


def prefill(bounds: dict) -> Iterator[Error]:
    for chip, engine in pairs():
        for fmt, t in fits.prefill_rows(chip, engine).groupby("fmt"):
            t = t[t.held_out]
            ours, bound = (prefill_s(t, chip, engine, fmt, bound=x) for x in (False, True))
            bounds.setdefault("prefill", []).append((ours, bound, t.latency_s))
            long = t.n_tokens >= LONG
            regimes = {"isl >= 1024": long, "isl < 1024": ~long}
            yield from validation.judge("prefill", chip, engine, fmt, ours, t.latency_s, regimes)
            yield from validation.judge(
                "prefill, roofline", chip, engine, fmt, bound, t.latency_s, {"isl >= 1024": long}
            )


def other_shapes() -> Iterator[Error]:
    """Head sizes and windows that no fit saw, same kernels. That products and exponentials add in quadrature was chosen
    with an eye on head sizes 64 and 256 of four chips."""
    for phase, compute in (("decode", decode_s), ("prefill", prefill_s)):
        for chip, engine in pairs():
            t = measured.attention(chip, engine, phase)
            t = t[t.kernel.isin(fits.FUSED) & (t.n_tokens >= LONG)]
            t = t[(t.d_head != 128) | (t.window_tokens > 0)]
            t = t[(t.fmt == t.kv_fmt) | (phase == "decode")]
            for fmt, of in t.groupby("kv_fmt"):
                how = dict(repeated=True) if phase == "decode" else {}
                ours = compute(of, chip, engine, fmt, **how)
                regimes = {
                    f"head size {d}" + (f", window {w}" if w else ""): (of.d_head == d) & (of.window_tokens == w)
                    for d, w in sorted(set(zip(of.d_head, of.window_tokens, strict=True)))
                }
                what = f"{phase}, shapes that no fit saw"
                yield from validation.judge(what, chip, engine, fmt, ours, of.latency_s, regimes)


def latent(bounds: dict) -> Iterator[Error]:
    for phase in ("decode", "prefill"):
        for chip, engine in pairs():
            for fmt, t in fits.latent_rows(chip, engine, phase).groupby("kv_fmt"):
                t = t[t.held_out]
                how = dict(repeated=True) if phase == "decode" else {}
                ours, bound = (latent_s(t, phase, chip, engine, fmt, **x) for x in (how, dict(bound=True)))
                bounds.setdefault(f"latent {phase}", []).append((ours, bound, t.latency_s))
                long, bump = t.n_tokens >= LONG, t.n_heads.isin(fits.BUMP_HEADS)
                regimes = {"S >= 1024": long}
                if phase == "decode" and chip not in HOPPER:
                    regimes |= {"S >= 1024, without 32 and 64 heads": long & ~bump}
                    regimes |= {f"S >= 1024, {n} heads": long & (t.n_heads == n) for n in fits.BUMP_HEADS}
                yield from validation.judge(f"latent {phase}", chip, engine, fmt, ours, t.latency_s, regimes)


def latent_row() -> Iterator[Check]:
    """Whole rows of heads, 1 to 128 a GPU: measured, ours, the roofline, each over the 1-head time."""
    for chip, fmt, batch, tokens in SHOWN:
        t = measured.latent(chip, "trtllm", "decode")
        t = t[(t.kv_fmt == fmt) & (t.n_batch == batch) & (t.n_tokens == tokens)].sort_values("n_heads")
        for name, s in (
            ("measured", t.latency_s.to_numpy()),
            ("ours", latent_s(t, "decode", chip, "trtllm", fmt, repeated=True)),
            ("roofline", latent_s(t, "decode", chip, "trtllm", fmt, bound=True)),
        ):
            row = " ".join(f"{1e6 * x:.0f}" for x in s)
            what = f"latent decode, {chip} trtllm {fmt}, batch {batch}, S {tokens}, µs at 1 2 4 … 128 heads, {name}"
            yield Check(what, row, "", "reported")


def roofs() -> Iterator[Check]:
    """128 heads against one, long context, BF16: flat on GB300, a break on H200, from the roofs alone."""
    for chip, low, high in (("gb300", 1.0, 1.1), ("h200_sxm", 1.1, 2.0)):
        one, many = latent_kernels.latent_decode_s(
            131_072, n_heads=[1, 128], n_batch=8, chip=chip, fmt="bf16", bound=True
        )
        ratio = many / one
        verdict = "holds" if low <= ratio <= high else "FAILS"
        yield Check(f"latent decode, roofline, {chip}, 128 heads over 1", f"{ratio:.2f}", f"{low} to {high}", verdict)


def main(argv: tuple[str, ...] = ()) -> int:
    bounds: dict[str, list] = {}
    errors = [*decode(bounds), *prefill(bounds), *latent(bounds), *other_shapes()]
    checks = [
        validation.promise(errors, "decode", "S >= 1024", (6.5, 22), (5, 17)),
        validation.promise(errors, "decode", "S >= 1024, KV beyond twice L2", (3.5, 9)),
        validation.promise(errors, "prefill", "isl >= 1024", (6, 15), (4, 12)),
        *roofs(),
        *latent_row(),
    ]
    for what, parts in bounds.items():
        checks += validation.never_below(what, *(np.concatenate(x) for x in zip(*parts, strict=True)))
    title = "attention times"
    return validation.finish(
        "validate_attention", "attention", title, validation.medians(errors) + errors, checks, argv
    )


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))
