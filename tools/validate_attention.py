"""Hold the calibrated attention kernels against the full measured tables, and print every figure.

  python tools/validate_attention.py           evaluate, compare with data/validation/attention*.csv, fail on a difference
  python tools/validate_attention.py --write   evaluate and write those files

Errors are those on shapes that no fit saw, unless the regime says that the whole table was not fitted. Rows whose chip
is ``median`` are the medians over chips × engines × formats of each table's own figure. Nothing is fitted here.
"""  # noqa: E501

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import calibrate_attention as fits
import measured
import numpy as np
import pandas as pd
import validation
from validation import Check, Error

from codesign_lib.cost import attention_kernels, calibration, latent_kernels
from codesign_lib.cost.attention_kernels import HOPPER
from codesign_lib.specs import hardware
from codesign_lib.specs.formats import as_format

LONG = fits.LEAST_TOKENS
SHOWN = (("gb300", "bf16", 64, 8192), ("gb300", "bf16", 8, 131_072), ("gb300", "fp8", 64, 16_384))
SHOWN += (("h200_sxm", "bf16", 64, 16_384), ("h200_sxm", "bf16", 8, 131_072))


def value_size(t: pd.DataFrame, engine: str) -> pd.Series:
    """SGLang's head size 192 is that of keys whose values have 128 (MiMo): with 192 rows would beat the bandwidth."""
    return t.d_head.where(~((t.d_head == 192) & (engine == "sglang")), 128)


def decode_s(t: pd.DataFrame, chip, engine: str, fmt: str, **how) -> np.ndarray:
    return attention_kernels.attention_decode_s(
        t.n_tokens, n_heads=t.n_heads, n_kv_heads=t.n_kv_heads, d_head=t.d_head, d_value=value_size(t, engine),
        n_batch=t.n_batch, window_tokens=t.window_tokens.where(t.window_tokens > 0, 2**40),
        chip=chip, fmt=fmt, engine=engine, **how,
    )  # fmt: skip


def prefill_s(t: pd.DataFrame, chip, engine: str, fmt: str, **how) -> np.ndarray:
    return attention_kernels.attention_prefill_s(
        t.n_tokens, n_heads=t.n_heads, n_kv_heads=t.n_kv_heads, d_head=t.d_head, d_value=value_size(t, engine),
        n_batch=t.n_batch, window_tokens=t.window_tokens.where(t.window_tokens > 0, 2**40),
        chip=chip, fmt=fmt, engine=engine, **how,
    )  # fmt: skip


def latent_decode_s(t: pd.DataFrame, chip, engine: str, fmt: str, **how) -> np.ndarray:
    return latent_kernels.latent_decode_s(
        t.n_tokens, n_heads=t.n_heads, n_batch=t.n_batch, chip=chip, fmt=fmt, engine=engine, **how
    )


def latent_prefill_s(t: pd.DataFrame, chip, engine: str, fmt: str, **how) -> np.ndarray:
    return latent_kernels.latent_prefill_s(
        t.n_tokens, n_heads=t.n_heads, n_batch=t.n_batch, chip=chip, fmt=fmt, engine=engine, **how
    )


def pairs() -> Iterator[tuple[str, str]]:
    for chip in measured.CHIPS:
        for engine in measured.ENGINES:
            yield chip, engine


class Kind(NamedTuple):
    """One of the four kernels: rows, what computes their time, how tables measure, formats' column, and its name for
    lengths."""

    rows: Callable[[str, str], pd.DataFrame]
    seconds: Callable[..., np.ndarray]
    how: dict
    column: str
    length: str


KINDS = {
    "decode": Kind(fits.decode_rows, decode_s, dict(repeated=True), "kv_fmt", "S"),
    "prefill": Kind(fits.prefill_rows, prefill_s, {}, "fmt", "isl"),
    "latent decode": Kind(lambda c, e: fits.latent_rows(c, e, "decode"), latent_decode_s, dict(repeated=True),
                          "kv_fmt", "S"),
    "latent prefill": Kind(lambda c, e: fits.latent_rows(c, e, "prefill"), latent_prefill_s, {}, "kv_fmt", "isl"),
}  # fmt: skip


def regimes(what: str, t: pd.DataFrame, chip: str, fmt: str) -> dict[str, pd.Series]:
    name, long = KINDS[what].length, t.n_tokens >= LONG
    found = {f"{name} >= 1024": long, f"{name} < 1024": ~long}
    if what == "decode":
        cache = 2 * as_format(fmt).bytes_per_element * t.n_batch * t.n_tokens * t.n_kv_heads * t.d_head
        found |= {
            "S >= 1024, KV beyond twice L2": long & (cache > 2 * hardware.chip(chip).l2_bytes),
            "S >= 1024, up to 32 heads a KV head": long & (t.groups <= 32),
            "S >= 1024, more than 32 heads a KV head": long & (t.groups > 32),
        }
    if what == "latent decode":
        if chip not in HOPPER:
            found["Blackwell, S >= 1024, without 32 and 64 heads"] = long & ~t.n_heads.isin(fits.BUMP_HEADS)
            found |= {f"Blackwell, S >= 1024, {n} heads": long & (t.n_heads == n) for n in fits.BUMP_HEADS}
        found[f"{'Hopper' if chip in HOPPER else 'Blackwell'}, S >= 1024, 128 heads"] = long & (t.n_heads == 128)
    return found


def held_out(bounds: dict) -> Iterator[Error]:
    """Each kernel by its own numbers and by its roofline, then by other chips' numbers."""
    for what, kind in KINDS.items():
        for chip, engine in pairs():
            for fmt, t in kind.rows(chip, engine).groupby(kind.column):
                t = t[t.held_out]
                key, long = (chip, engine, fmt), {f"{kind.length} >= 1024": t.n_tokens >= LONG}
                ours, bound = (kind.seconds(t, *key, **x) for x in (kind.how, dict(bound=True)))
                arithmetic = kind.seconds(t, validation.endless_memory(chip), engine, fmt, bound=True)
                bounds.setdefault(what, []).append((ours, bound, t.latency_s, arithmetic))
                yield from validation.judge(what, *key, ours, t.latency_s, regimes(what, t, chip, fmt))
                yield from validation.judge(f"{what}, roofline", *key, bound, t.latency_s, long)
                for source, name in validation.sources(chip):
                    if calibration.find(what.replace(" ", "_") if "latent" in what else f"attention_{what}",
                                        source, engine, fmt):  # fmt: skip
                        guess = kind.seconds(t, *key, **kind.how, transfer_from=source)
                        yield from validation.judge(
                            f"{what}, transferred", *key, guess, t.latency_s, {name: t.n_tokens >= LONG}
                        )


def other_shapes(bounds: dict) -> Iterator[Error]:
    """Head sizes and windows that no fit saw, same kernels. That products and exponentials add in quadrature was chosen
    with an eye on head sizes 64 and 256 of four chips."""
    for phase in ("decode", "prefill"):
        kind = KINDS[phase]
        for chip, engine in pairs():
            t = measured.attention(chip, engine, phase)
            t = t[t.kernel.isin(fits.FUSED) & (t.n_tokens >= LONG)]
            t = t[(t.d_head != 128) | (t.window_tokens > 0)]
            t = t[(t.fmt == t.kv_fmt) | (phase == "decode")]
            for fmt, of in t.groupby("kv_fmt"):
                what, key = f"{phase}, shapes that no fit saw", (chip, engine, fmt)
                ours, bound = (kind.seconds(of, *key, **x) for x in (kind.how, dict(bound=True)))
                arithmetic = kind.seconds(of, validation.endless_memory(chip), engine, fmt, bound=True)
                bounds.setdefault(what, []).append((ours, bound, of.latency_s, arithmetic))
                shapes = {
                    f"head size {d}" + (f", window {w}" if w else ""): (of.d_head == d) & (of.window_tokens == w)
                    for d, w in sorted(set(zip(of.d_head, of.window_tokens, strict=True)))
                }
                yield from validation.judge(what, *key, ours, of.latency_s, shapes)


def latent_row() -> Iterator[Check]:
    """Whole rows of heads, 1 to 128 a GPU: measured, ours, the roofline, each over the 1-head time."""
    for chip, fmt, batch, tokens in SHOWN:
        t = measured.latent(chip, "trtllm", "decode")
        t = t[(t.kv_fmt == fmt) & (t.n_batch == batch) & (t.n_tokens == tokens)].sort_values("n_heads")
        for name, s in (
            ("measured", t.latency_s.to_numpy()),
            ("ours", latent_decode_s(t, chip, "trtllm", fmt, repeated=True)),
            ("roofline", latent_decode_s(t, chip, "trtllm", fmt, bound=True)),
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


def flat() -> Iterator[Check]:
    """128 heads over one on GB300, contexts from 4,096 on, every batch: measured and ours. The roofline says flat."""
    for fmt in ("bf16", "fp8"):
        t = measured.latent("gb300", "trtllm", "decode")
        t = t[(t.kv_fmt == fmt) & (t.n_tokens >= 4096) & t.n_heads.isin([1, 128])]
        t = t.assign(ours=latent_decode_s(t, "gb300", "trtllm", fmt, repeated=True))
        t = t.pivot_table(index=["n_batch", "n_tokens"], columns="n_heads", values=["latency_s", "ours"])
        ratio = {name: (t[column][128] / t[column][1]).dropna() for name, column in
                 (("measured", "latency_s"), ("ours", "ours"))}  # fmt: skip
        for name, x in ratio.items():
            found = f"{x.median():.2f}, {100 * x.between(0.9, 1.1).mean():.0f} %"
            limit, verdict = "", "reported"
            if name == "ours" and fmt == "bf16":
                limit, verdict = "0.9 to 1.1", "holds" if 0.9 <= x.median() <= 1.1 else "FAILS"
            what = (
                f"latent decode, gb300 trtllm {fmt}, S >= 4096, 128 heads over 1, {name}, median and share within 10 %"
            )
            yield Check(what, found, limit, verdict)


def main(argv: tuple[str, ...] = ()) -> int:
    bounds: dict[str, list] = {}
    errors = [*held_out(bounds), *other_shapes(bounds)]
    checks = [
        validation.promise(errors, "decode", "S >= 1024", (6.5, 22), (5, 17)),
        validation.promise(errors, "decode", "S >= 1024, KV beyond twice L2", (3.5, 9)),
        validation.promise(errors, "prefill", "isl >= 1024", (6, 15), (4, 12)),
        *roofs(),
        *flat(),
        *latent_row(),
    ]
    for what, parts in bounds.items():
        checks += validation.never_below(what, *(np.concatenate(x) for x in zip(*parts, strict=True)))
    summary = validation.medians(errors) + errors
    return validation.finish("validate_attention", "attention", "attention times", summary, checks, argv)


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))
