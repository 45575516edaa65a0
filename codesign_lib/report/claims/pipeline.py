"""Bubbles, slicings, splits and volumes to the printed digit; prompts of up to a million tokens as measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from codesign_lib.report.claims import prompts
from codesign_lib.report.claims.pair import Pair, measured
from codesign_lib.report.claims.prompts import QWEN, R1, K
from codesign_lib.report.claims.roofline import ARTICLE
from codesign_lib.serving import first_token, pipeline, slicing, splitting, volumes
from codesign_lib.serving.layout import Layout
from codesign_lib.specs.formats import Precision
from codesign_lib.specs.published import Claim

SGLANG = "LMSYS, Pipeline Parallelism in SGLang, 2026-01-15 (lmsys.org/blog/2026-01-15-chunked-pipeline)"
TERAPIPE = "TeraPipe's objective, arXiv:2102.07988; sums by hand"
DECODE = "github.com/ai-dynamo/aiconfigurator/pull/1459: Qwen3-32B on H20, PP 8"
ISSUE = "github.com/sgl-project/sglang/issues/34815"
BEYOND = "Beyond the Buzz, arXiv:2506.05508, figure 4, read off its axis: about 2^6.5 to 2^2 s"
FIGURE9 = dict(n_input=256 * K, n_gpus=64, stages=(1, 2, 4, 8, 16, 32))
GROWING = (3.54e-4, 0.0370)
"""Seconds a K tokens² and a K tokens of the prompts of ``prompts.MEASURED_S``: the parabola's two numbers."""


def _exact(key: str, what: str, value: float, unit: str, source: str, ours: Callable[[], float], **more) -> Pair:
    claim = Claim(what=what, value=value, unit=unit, source=source, kind="exact", **more)
    return Pair(key=key, claim=claim, ours=ours)


def bubbles() -> Iterator[Pair]:
    """The bubble of equal chunks, a decode step's stages, and layers that do not divide."""
    for p, m, value in ((4, 4, 0.4286), (4, 8, 0.2727), (4, 32, 0.0857), (8, 8, 0.4667), (8, 32, 0.1795)):
        what = f"idle, {p} stages, {m} equal chunks"
        yield _exact(f"bubbles/p{p}/m{m}", what, value, "", SGLANG, partial(_idle, p, m), quantum=1e-4)
    yield _exact(
        "bubbles/decode/mean", "mean of eight decode stages", 3.244e-3, "s", DECODE, _decode_mean, quantum=1e-6
    )
    yield _exact("bubbles/decode/balance", "their mean over maximum", 0.832, "", DECODE, _decode_balance, quantum=1e-3)
    ours = partial(_times, 8, _decode_balance)
    yield _exact("bubbles/decode/speed_up", "what is left of 8×", 6.65, "×", DECODE, ours, quantum=1e-2)
    ours = partial(_longest, 64, 6)
    yield _exact("bubbles/64/6", "longest of 6 stages of 64 layers, over the mean", 11 / (64 / 6), "×", DECODE, ours)
    torch = "github.com/pytorch/torchtitan/issues/963"
    yield _exact("bubbles/61/8", "61 layers over 8 stages: stages of 8", 5, "", torch, partial(_count, 61, 8, 8))
    yield _exact("bubbles/61/7", "61 layers over 8 stages: stages of 7", 3, "", torch, partial(_count, 61, 8, 7))


def _idle(p: int, m: int) -> float:
    return float(pipeline.idle_fraction(np.ones((p, m))))


DECODE_S = np.array([3.153e-3] + [3.150e-3] * 6 + [3.901e-3])


def _decode_mean() -> float:
    return float(DECODE_S.mean())


def _decode_balance() -> float:
    return float(pipeline.balance_fraction(DECODE_S))


def _times(n: int, ours: Callable[[], float]) -> float:
    return n * ours()


def _longest(n_layers: int, n_stages: int) -> float:
    return float(1 / pipeline.balance_fraction(splitting.balance(np.ones(n_layers), n_stages).stage_s))


def _count(n_layers: int, n_stages: int, size: int) -> float:
    return float((first_token.even_stages(n_layers, n_stages) == size).sum())


def slicings() -> Iterator[Pair]:
    """Twelve tokens through three stages; token i costs i, then with 4 more a slice, then with 2 more a token."""
    for sizes, value in (((12,), 234), ((4, 4, 4), 162), ((7, 3, 2), 134), ((6, 4, 2), 146), ((1,) * 12, 102)):
        name = "+".join(map(str, sizes)) if len(sizes) < 12 else "12 × 1"
        yield _exact(f"slicings/{name}", f"slices {name}", value, "", TERAPIPE, partial(_toy, sizes, 0, 0))
    yield _exact("slicings/best", "best slicing", 102, "", TERAPIPE, partial(_best_toy, 0, 0))
    yield _exact("slicings/slice/7+3+2", "4 a slice: 7+3+2", 154, "", TERAPIPE, partial(_toy, (7, 3, 2), 4, 0))
    yield _exact("slicings/slice/best", "4 a slice: best slicing", 142, "", TERAPIPE, partial(_best_toy, 4, 0))
    yield _exact("slicings/token/5+4+3", "2 a token: 5+4+3", 180, "", TERAPIPE, partial(_toy, (5, 4, 3), 0, 2))
    yield _exact("slicings/token/best", "2 a token: best slicing", 130, "", TERAPIPE, partial(_best_toy, 0, 2))


def _toy_cost(each: float, token: float, prefix: NDArray, length: NDArray) -> NDArray:
    return length * prefix + length * (length + 1) / 2 + token * length + each


def _toy(sizes: tuple[int, ...], each: float, token: float) -> float:
    length = np.array(sizes, dtype=float)
    took = _toy_cost(each, token, np.cumsum(length) - length, length)
    return float(pipeline.first_token_s(np.tile(took, (3, 1))))


def _best_toy(each: float, token: float) -> float:
    return slicing.best_chunks(partial(_toy_cost, each, token), 12, 3).finish_s


def stage_orders() -> Iterator[Pair]:
    """61 layers over four stages: where the long stage stands, equal chunks; no number is known of growing ones."""
    what = "16,15,15,15 over 15,15,15,16"
    yield _exact("stage_orders/equal", f"{what}, equal chunks", 1.0, "×", "by symmetry", _order)


def growing_chunks(quadratic: float = GROWING[0], n_k_tokens: float = 128, chunk: float = 6) -> NDArray[np.float64]:
    """Seconds of a prompt's chunks of so many K tokens, by the parabola's law (or without its square)."""
    before = np.arange(0, n_k_tokens, chunk)
    length = np.minimum(chunk, n_k_tokens - before)
    return (GROWING[1] * length + quadratic * (2 * before * length + length**2)) if quadratic else np.ones(before.size)


def _order() -> float:
    layers = np.array([[15, 15, 15, 16], [16, 15, 15, 15]])[:, :, None]
    first, last = pipeline.first_token_s(layers * growing_chunks(0.0))
    return float(last / first)


def sent() -> Iterator[Pair]:
    """Volumes of Qwen3-235B over 128K tokens by the short forms, for many ranks, and for eight stages."""
    s, h, n_layers, kv = 128 * K, 4096, 94, 4 * 128
    short = {"tp": ("4·S·H·L·b", 4 * s * h * n_layers * 2), "cp": ("2·S·K·d·L·b", 2 * s * kv * n_layers * 2)}
    for kind, (form, value) in short.items():
        ours = partial(_sent, kind, 10**9)
        yield _exact(f"sent/{kind}", f"{kind.upper()}: {form} a GPU", value, "B", SGLANG, ours)
    yield _exact("sent/pp", "PP 8: (P − 1)·S·H·b", 7 * s * h * 2, "B", SGLANG, partial(_sent, "pp", 8))


def _sent(kind: str, ranks: int) -> float:
    return float(volumes.sent_bytes(QWEN.model, 128 * K, kind=kind, n_ranks=ranks))


def first_tokens() -> Iterator[Pair]:
    """Qwen3-235B FP8 on 32 H20 by prompt, one speed fitted on 128K, for kernels and for the roofline, and a parabola;
    then one stage, and DeepSeek-V3.1."""
    for n in list(prompts.MEASURED_S)[1:]:
        what = f"Qwen3-235B, PP 8 × TP 4, {n // K}K tokens"
        ours = partial(_ttft, QWEN, n)
        yield measured(f"first_tokens/qwen/{n // K}k", what, prompts.MEASURED_S[n], "s", SGLANG, ours)
    for n in list(prompts.MEASURED_S)[1:]:
        what = f"the same by the roofline and one number, {n // K}K tokens"
        yield measured(f"first_tokens/roofline/{n // K}k", what, prompts.MEASURED_S[n], "s", SGLANG, partial(_roof, n))
    for n in list(prompts.MEASURED_S)[2:]:
        ours = partial(_parabola, n)
        what = f"the same by a parabola through 128K and 256K, {n // K}K tokens"
        yield measured(f"first_tokens/parabola/{n // K}k", what, prompts.MEASURED_S[n], "s", SGLANG, ours)
    rows = (("qwen/one_stage", "Qwen3-235B, TP 4 alone, 128K", 55.5, QWEN, 1), ("r1/one_stage", "DeepSeek-V3.1, TP 8 alone, 128K", 48.5, R1, 1), ("r1/128k", "DeepSeek-V3.1, PP 4 × TP 8, 128K", 15.5, R1, None))  # fmt: skip  # noqa: E501
    for key, what, value, case, pp in rows:
        yield measured(f"first_tokens/{key}", what, value, "s", SGLANG, partial(_ttft, case, 128 * K, pp))


def _ttft(case: prompts.Served, n_input: int, pp: int | None = None) -> float:
    return prompts.h20(case, n_input, pp=pp).ttft_s / prompts.speed()


def _roof(n_input: int) -> float:
    return prompts.h20(QWEN, n_input, bound=True).ttft_s / prompts.speed(bound=True)


def _parabola(n_input: int) -> float:
    return float(prompts.parabola(n_input))


def scaling() -> Iterator[Pair]:
    """Prompts of 128K a second over those of one stage, measured as the mean of 16 in a row; and wide TP."""
    rows = (("qwen/dynamic", "Qwen3-235B, PP 8, dynamic 18K: speed-up over 8", 0.768, QWEN, 0), ("qwen/static", "Qwen3-235B, PP 8, static 6K: speed-up over 8", 0.696, QWEN, QWEN.static_tokens), ("r1/dynamic", "DeepSeek-V3.1, PP 4, dynamic 12K: speed-up over 4", 0.828, R1, 0), ("r1/static", "DeepSeek-V3.1, PP 4, static 4K: speed-up over 4", 0.80, R1, R1.static_tokens))  # fmt: skip  # noqa: E501
    for key, what, value, case, static in rows:
        yield measured(f"scaling/{key}", what, value, "", SGLANG, partial(_efficiency, case, static))
    yield measured("scaling/r1/tp32", "DeepSeek-V3.1, TP 32 over TP 8", 2.54, "×", SGLANG, prompts.wide_tp)
    claim = Claim(
        what="DeepSeek-V3.1, 32 GPUs: PP 4 × TP 8 over TP 32", value=1.305, unit="×", source=SGLANG, kind="trend"
    )
    yield Pair(key="scaling/r1/pp_over_tp", claim=claim, ours=_pp_over_tp)


def _efficiency(case: prompts.Served, static_tokens: int) -> float:
    return prompts.speed_up(case, static_tokens=static_tokens) / case.pp


def _pp_over_tp() -> float:
    return prompts.speed_up(R1) / prompts.wide_tp()


def outside() -> Iterator[Pair]:
    """A report that no number of chunks explains: TP 8 in 2.33 s, PP 8 in 31.1 s."""
    yield _exact("outside/most", "PP 8 of eight times 2.33 s: at most", 18.6, "s", ISSUE, partial(_outside, "most_s"), quantum=0.1)  # fmt: skip  # noqa: E501
    yield _exact(
        "outside/beyond", "not explained of 31.1 s", 12.5, "s", ISSUE, partial(_outside, "beyond_s"), quantum=0.1
    )


def _outside(field: str) -> float:
    return float(getattr(pipeline.explain(31.1, np.full((8, 1), 2.33)), field))


def figure9() -> Iterator[Pair]:
    """DeepSeek-R1, 256K tokens, EP × PP = 64 GPUs: time to first token falls with every doubling of the stages."""
    falling = tuple(float(x) for x in range(len(FIGURE9["stages"]), 0, -1))  # an order, no values
    what = "order of TTFT, PP 1 to 32 (theirs: ranks, no values)"
    claim = Claim(what=what, value=falling, unit="", source=f"{ARTICLE}, figure 9", kind="trend")
    yield Pair(key="figure9/ttft", claim=claim, ours=partial(_figure9, slice(None)))
    for key, at, value in (("first", 0, 2**6.5), ("last", -1, 2.0**2)):
        what = f"TTFT, PP {FIGURE9['stages'][at]} (chip not named; ours GB300 NVFP4)"
        yield measured(f"figure9/{key}", what, value, "s", BEYOND, partial(_figure9, at))


@cache
def figure9_prompts() -> tuple[first_token.FirstToken, ...]:
    """DeepSeek-R1 on 64 GB300 in NVFP4, data-parallel attention, tuned chunks, by number of stages."""
    found = []
    for pp in FIGURE9["stages"]:
        width = FIGURE9["n_gpus"] // pp
        how = dict(
            n_input=FIGURE9["n_input"], layout=Layout(dp=width, ep=width, pp=pp),
            precision=Precision(weights="nvfp4", activations="nvfp4", kv="fp8"),
        )  # fmt: skip
        chunks = first_token.tuned_chunks("deepseek_r1", "gb300", granule_tokens=2 * K, **how)
        found.append(first_token.first_token("deepseek_r1", "gb300", chunks=chunks, **how))
    return tuple(found)


def _figure9(at: int | slice) -> float | tuple[float, ...]:
    took = [x.ttft_s for x in figure9_prompts()]
    return tuple(took[at]) if isinstance(at, slice) else took[at]
