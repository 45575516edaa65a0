"""The article's roofline figures, and the roofline against linear layers measured on GB300."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import ops, roofline
from codesign_lib.report.claims import gemm
from codesign_lib.report.claims.pair import Pair, measured
from codesign_lib.specs import hardware
from codesign_lib.specs.published import Claim

ARTICLE = "NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design, 2026-07-10"
CHIP = "gb300"


def peaks() -> Iterator[Pair]:
    """Figure 6 of the article: dense peaks of GB300."""
    for fmt, value in (("bf16", 2.5e15), ("fp8", 5e15), ("nvfp4", 15e15)):
        claim = Claim(what=f"figure 6: GB300 dense, {fmt}", value=value, unit="FLOP/s", source=ARTICLE, kind="exact")
        yield Pair(key=f"peaks/{fmt}", claim=claim, ours=partial(hardware.chip(CHIP).peak_flops_per_s, fmt))


# FFN-2 of the article's Table 2, NVFP4 in and FP8 out; µs of math, read and write by number of tokens
TABLE2_K, TABLE2_N = 512, 8192
TABLE2_PRINTED_US = {256: (0.14, 0.30, 0.26), 2048: (1.15, 0.37, 2.10), 16384: (9.16, 0.89, 16.8)}


def table2_s(m: ArrayLike) -> dict[str, NDArray]:
    """The article's Table 2 for m tokens: seconds of ``math``, ``read`` (inputs and weights) and ``write`` (outputs).

    >>> {part: f"{t * 1e6:.2f} µs" for part, t in table2_s(256).items()}
    {'math': '0.14 µs', 'read': '0.30 µs', 'write': '0.26 µs'}
    """
    both = ops.linear(m, TABLE2_K, TABLE2_N, inputs="nvfp4", weights="nvfp4", outputs="fp8")
    write = ops.output(m, TABLE2_N, outputs="fp8")
    return {
        "math": roofline.compute_s(both, CHIP, "nvfp4"),
        "read": roofline.memory_s(both, CHIP) - roofline.memory_s(write, CHIP),
        "write": roofline.memory_s(write, CHIP),
    }


def table2() -> Iterator[Pair]:
    """The nine cells of the article's Table 2, to the printed digit."""
    for m, row in TABLE2_PRINTED_US.items():
        for part, value in zip(("math", "read", "write"), row, strict=True):
            # ours is 0.8847 µs; it is printed as 0.89, as if rounded to 0.885 first
            before = 1e-9 if (m, part) == (16384, "read") else 0.0
            claim = Claim(
                what=f"table 2: {part}, M = {m:,}", value=value * 1e-6, unit="s", source=ARTICLE, kind="exact",
                quantum=1e-7 if value > 10 else 1e-8, quantum_before=before,
            )  # fmt: skip
            yield Pair(key=f"table2/{part}/m{m}", claim=claim, ours=partial(_table2_cell, m, part))


def _table2_cell(m: int, part: str) -> float:
    return float(table2_s(m)[part])


def squares() -> Iterator[Pair]:
    """Square layers: how much of the measured time the bound explains."""
    for engine, title in gemm.ENGINES.items():
        for fmt in ("bf16", "fp8", "nvfp4"):
            for h in gemm.SIZES:
                yield measured(
                    f"squares/{engine}/{fmt}/h{h}", f"{title} {fmt}, {gemm.TOKENS:,} tokens, H = {h:,}",
                    gemm.measured_s(engine, fmt, h, h), "s", gemm.SOURCE, partial(gemm.bound_s, gemm.TOKENS, h, h, fmt),
                )  # fmt: skip


def up_down() -> Iterator[Pair]:
    """H = 4,096: time of up- over down-projection, with BF16, which quantises nothing, as the control."""
    for engine, title in gemm.ENGINES.items():
        for fmt in ("bf16", "fp8", "nvfp4"):
            for width in (128, 256, 512, 1024, 2048, 8192, 16384):  # at 4,096 both are the same GEMM
                up, down = gemm.measured_s(engine, fmt, 4096, width), gemm.measured_s(engine, fmt, width, 4096)
                yield measured(
                    f"up_down/{engine}/{fmt}/h{width}", f"{title} {fmt}, H = 4,096, H′ = {width:,}",
                    up / down, "×", gemm.SOURCE, partial(_up_over_down, 4096, width, fmt),
                )  # fmt: skip


def _up_over_down(h: int, width: int, fmt: str) -> float:
    return float(gemm.bound_s(gemm.TOKENS, h, width, fmt) / gemm.bound_s(gemm.TOKENS, width, h, fmt))
