"""What served systems are measured to do, against our decode times and frontiers; interactivity; prices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from codesign_lib.report.claims.pair import Pair, measured
from codesign_lib.serving import frontier, price
from codesign_lib.serving.end_to_end import Served, aggregated
from codesign_lib.serving.layout import Layout, Workload
from codesign_lib.serving.points import Points
from codesign_lib.specs import published
from codesign_lib.specs.formats import Precision
from codesign_lib.specs.published import Claim

ROWS = "public serving runs in aiconfigurator-core 0.12.0, systems/silicon_sample.csv"
BATCHES = np.unique(np.round(2 ** (np.arange(105) / 8))).astype(int)
"""Requests at once, eight a doubling up to 8,192. A frontier is read at its points, so they must be close."""
FP4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8")
FP8 = Precision(weights="fp8", activations="fp8", kv="fp8")
FP8_BLOCK = Precision(weights="fp8_block", activations="fp8_block", kv="fp8")
MXFP4_EXPERTS = Precision(weights="bf16", activations="bf16", kv="fp8", experts="mxfp4")
# the kernels that engines choose for these mixtures are the ones of that engine's tables; tokens are not balanced
SGLANG, TRTLLM = dict(engine="sglang", routing="skewed"), dict(engine="trtllm", routing="skewed")
SERVED = {
    ("deepseek_r1", "gb300", "nvfp4", "disagg"): (FP4, (4, 8, 16, 32, 64, 72), SGLANG),
    ("deepseek_r1", "gb300", "fp8", "disagg"): (FP8_BLOCK, (4, 8, 16, 32, 64, 72), SGLANG),
    ("deepseek_r1", "gb200", "nvfp4", "disagg"): (FP4, (4, 8, 16, 32, 64, 72), SGLANG),
    ("deepseek_r1", "b200_sxm", "nvfp4", "agg"): (FP4, (4, 8), SGLANG),
    ("deepseek_r1", "h200_sxm", "fp8", "agg"): (FP8_BLOCK, (8,), TRTLLM),
    ("gpt_oss_120b", "b200_sxm", "mxfp4", "agg"): (MXFP4_EXPERTS, (1, 2, 4, 8), TRTLLM),
    ("llama_3_1_70b", "b200_sxm", "nvfp4", "agg"): (FP4, (1, 2, 4, 8), TRTLLM),
    ("llama_3_1_70b", "h200_sxm", "fp8", "agg"): (FP8, (1, 2, 4, 8), TRTLLM),
}
"""Our formats, numbers of GPUs and whose kernels, for every served system that is held against ours."""


def interactivity() -> Iterator[Pair]:
    """What one user sees is 1 / TPOT: the first token's time is not in it."""
    source = "InferenceX issue 345 (github.com/SemiAnalysisAI/InferenceX)"
    what = "1,000 tokens in 22 s, the first after 2 s"
    claim = Claim(what=what, value=49.95, unit="tokens/s", source=source, kind="exact", quantum=0.01)
    yield Pair(key="interactivity/definition", claim=claim, ours=_definition)


def _definition() -> float:
    seen = dict(ttft_s=np.array(2.0), tpot_s=np.array((22 - 2) / (1000 - 1)))
    nothing = dict.fromkeys(("step", "prompt_s", "held_up_s", "request_per_s"))
    return float(Served(**nothing, **seen).interactivity_per_s)


def token_prices() -> Iterator[Pair]:
    """A million tokens at 1,000 tokens/s/GPU, owned by a hyperscaler, prices of April 2026."""
    source = published.table("tco").header["source"]
    for chip, value in (("h100_sxm", 0.361), ("h200_sxm", 0.392), ("b200_sxm", 0.542), ("gb300", 0.737)):
        what = f"$ a million tokens on {chip}"
        claim = Claim(what=what, value=value, unit="$", source=source, kind="exact", quantum=0.001)
        yield Pair(key=f"token_prices/{chip}", claim=claim, ours=partial(_dollars, chip))


def _dollars(chip: str) -> float:
    return float(price.dollars_per_million(1000, price.price(chip).dollars_per_hour))


def llama_70b() -> Iterator[Pair]:
    """Time per output token of Llama-3.1-70B, TensorRT-LLM, 1,024 tokens in and out, by TP and concurrency."""
    for chip, fmt in (("b200_sxm", "nvfp4"), ("b200_sxm", "fp8"), ("h200_sxm", "fp8")):
        for b in (4, 64):
            for tp in (1, 2, 4, 8):
                case = (chip, fmt, tp, b)
                what = f"TPOT, {chip} {fmt}, TP {tp}, {b} requests"
                key = f"llama_70b/{chip}/{fmt}/tp{tp}/c{b}"
                yield measured(key, what, measured_s(*case), "s", ROWS, partial(tpot_s, *case))


def measured_s(
    chip: str, fmt: str, tp: int, b: int, n_input: int = 1024, n_output: int = 1024, *, column: str = "tpot_s"
) -> float:
    """Seconds measured, from ``data/llama_70b_tpot.csv``: ``column`` is ``tpot_s`` or ``ttft_s``.

    >>> measured_s("b200_sxm", "nvfp4", 4, 4, column="ttft_s") > 0.17         # prompts gather below TP 8
    True
    """
    case = dict(tp=tp, n_batch=b, n_input=n_input, n_output=n_output)
    rows = published.table("llama_70b_tpot").where(chip=chip, fmt=fmt, **{k: float(x) for k, x in case.items()})
    return float(rows[column][0])


def tpot_s(chip: str, fmt: str, tp: int, b: int, n_input: int = 1024, n_output: int = 1024) -> float:
    """Ours for the same.

    >>> case = ("b200_sxm", "nvfp4", 8, 4)
    >>> bool(0.8 < tpot_s(*case) / measured_s(*case) < 1.2)
    True
    """
    return float(llama_70b_served(chip, fmt, tp, b, n_input, n_output).tpot_s)


def llama_70b_served(chip: str, fmt: str, tp: int, b: int, n_input: int = 1024, n_output: int = 1024) -> Served:
    """Llama-3.1-70B as TensorRT-LLM serves ``b`` requests at once."""
    mix, layout = {"nvfp4": FP4, "fp8": FP8}[fmt], Layout(tp_attention=tp, tp_ffn=tp)
    how = dict(layout=layout, batch=b, n_input=n_input, n_output=n_output, precision=mix)
    return aggregated("llama_3_1_70b", chip, **how)


def served() -> Iterator[Pair]:
    """Measured points on served frontiers: our throughput at their interactivity, 1,024 tokens in and out."""
    for model, chip, fmt, mode in SERVED:
        rows = served_rows(model, chip, fmt, mode)
        for i in np.unique(np.linspace(0, len(rows) - 1, 5).round().astype(int)).tolist():
            x, y = float(rows["interactivity_per_s"][i]), float(rows["throughput_per_s"][i])
            key, what = (
                f"served/{model}/{chip}/{fmt}/{mode}/at{x:.0f}",
                f"{model} on {chip} {fmt}, {mode}, at {x:.0f}/s/user",
            )
            yield measured(key, what, y, "tokens/s/GPU", ROWS, partial(_at, model, chip, fmt, mode, x))


def served_rows(model: str, chip: str, fmt: str, mode: str, *, n_input: int = 1024) -> published.Table:
    """Measured points that no other beats, slowest first."""
    rows = published.table("frontier_points").where(model=model, chip=chip, fmt=fmt, mode=mode)
    return rows.where(n_input=float(n_input), n_output=1024.0).sorted_by("interactivity_per_s")


@cache
def ours_of(model: str, chip: str, fmt: str, mode: str, *, n_input: int = 1024) -> Points:
    """Our frontier for the same chip, formats, lengths and way of serving.

    >>> len(ours_of("llama_3_1_70b", "h200_sxm", "fp8", "agg")) > 5
    True
    """
    mix, sizes, how = SERVED[model, chip, fmt, mode]
    load = Workload(n_input=n_input, n_output=1024, n_concurrent=BATCHES)
    modes = {"agg": ["aggregated"], "disagg": ["disaggregated"]}[mode]
    found = frontier.sweep(model, chip, n_chips=sizes, workload=load, precisions=mix, modes=modes, **how)
    return frontier.frontier(found)


def fastest_at(points: Points, interactivity_per_s: float) -> int:
    """Index of the point with most throughput among those at least so fast: the first of a frontier that is.

    One beyond the last where none is.

    >>> p = Points(columns={"interactivity_per_s": [10.0, 40.0], "throughput_per_s": [400.0, 100.0]}, n_tried=2)
    >>> fastest_at(p, 20), fastest_at(p, 41)
    (1, 2)
    """
    return int(np.searchsorted(points["interactivity_per_s"], interactivity_per_s))


def at(points: Points, interactivity_per_s: float) -> float:
    """Throughput of a frontier at an interactivity or more: that of a point, never between two; NaN beyond the last.

    >>> p = Points(columns={"interactivity_per_s": [10.0, 40.0], "throughput_per_s": [400.0, 100.0]}, n_tried=2)
    >>> at(p, 20.0), at(p, 5.0), at(p, 41.0)
    (100.0, 400.0, nan)
    """
    return float(np.append(points["throughput_per_s"], np.nan)[fastest_at(points, interactivity_per_s)])


def between(rows: published.Table, interactivity_per_s: float) -> float:
    """Throughput of measured points at an interactivity, interpolated in logarithms between two neighbouring runs.

    For measurements alone: runs are few, and one at least so fast may be far off. NaN outside their range.

    >>> rows = served_rows("deepseek_r1", "gb300", "nvfp4", "disagg")
    >>> bool(at(rows, 50) < between(rows, 50))
    True
    """
    x, y = np.log(rows["interactivity_per_s"]), np.log(rows["throughput_per_s"])
    return float(np.exp(np.interp(np.log(interactivity_per_s), x, y, left=np.nan, right=np.nan)))


def _at(model: str, chip: str, fmt: str, mode: str, x: float) -> float:
    """0 where our frontier does not reach: the gap is then −100 %."""
    return float(np.nan_to_num(at(ours_of(model, chip, fmt, mode), x)))


def gaps(mode: str, least_per_s: float) -> NDArray[np.float64]:
    """Gaps of the claims ``served`` from an interactivity on: ours / measured − 1, −1 where ours does not reach it.

    >>> bool((gaps("agg", 100) < 0.5).mean() > 0.5)
    True
    """
    rows = [(p, float(p.key.rsplit("/at", 1)[1])) for p in served() if f"/{mode}/" in p.key]
    return np.array([p.check().gap for p, x in rows if x >= least_per_s])
