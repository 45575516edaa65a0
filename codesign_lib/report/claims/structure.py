"""Facts of structure that served systems show, against our frontiers: what leads where, and where the time goes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import numpy as np

from codesign_lib.report.claims.pair import Pair, measured
from codesign_lib.report.claims.served import (
    FP4,
    FP8_BLOCK,
    ROWS,
    SERVED,
    SGLANG,
    at,
    between,
    llama_70b_served,
    measured_s,
    ours_of,
    served_rows,
    tpot_s,
)  # fmt: skip
from codesign_lib.serving import frontier, memory
from codesign_lib.serving.layout import Layout, Workload
from codesign_lib.serving.points import PARTS, Points
from codesign_lib.specs import hardware, models
from codesign_lib.specs.published import Claim

ARTICLE = "NVIDIA, AI Model Co-Design: Hardware-Friendly LLM Design, 2026-07-10, figure 2 (developer.nvidia.com/blog)"
MLPERF = "MLPerf Inference v5.1 results (github.com/mlcommons/inference_results_v5.1)"
RATIOS = {
    "fp4_fp8": ("NVFP4 over FP8, B200, TP 8, 4 requests", ("b200_sxm", "nvfp4", 8, 4), ("b200_sxm", "fp8", 8, 4)),
} | {
    f"tp8_tp4/{chip.removesuffix('_sxm')}/{n_in}_{n_out}/c{b}": (
        f"TP 8 over TP 4, {name}, {b} requests, {n_in:,} in and {n_out:,} out{more}",
        (chip, fmt, 8, b, n_in, n_out),
        (chip, fmt, 4, b, n_in, n_out),
    )
    for chip, fmt, name in (("b200_sxm", "nvfp4", "B200 NVFP4"), ("h200_sxm", "fp8", "H200 FP8"))
    for n_in, n_out, more in ((1024, 1024, " (theirs: TP 4 gathers prompts)"), (1024, 8192, ""), (8192, 1024, ""))
    for b in (64, 128)
}
"""What, numerator and denominator of ratios between times per output token of Llama-3.1-70B."""
SWITCHES = {
    ("h200_sxm", 8192): (64.0, ""),
    ("h200_sxm", 1024): (128.0, ""),
    ("b200_sxm", 8192): (512.0, " (theirs: no run with it up to 256, so 512 or more)"),
    ("b200_sxm", 1024): (256.0, ""),
}
"""From how many requests published runs have attention DP ahead, by chip and input length, powers of two."""
WIDE = (4, 8, 16, 32, 64, 72)
SERVED_AT = 50
"""Tokens a second and user at which two served formats are compared."""


def structure() -> Iterator[Pair]:
    """Six facts of served systems: what layout leads where, and what scales with what.

    TP 8 over TP 4 is published with 1,024 in and out, where only TP 8 does not gather prompts: hence three lengths.
    """
    for (chip, n_input), (value, more) in SWITCHES.items():
        name = chip.removesuffix("_sxm")
        what = f"DeepSeek-R1 in FP8 on 8 {name.upper()}, {n_input:,} in: requests from which attention DP leads{more}"
        ours = partial(switch_concurrency, chip, n_input)
        yield measured(f"structure/switch/{name}/{n_input}", what, value, "requests", ROWS, ours)
    for key, (what, one, other) in RATIOS.items():
        value = measured_s(*one) / measured_s(*other)
        yield measured(f"structure/{key}", f"TPOT, {what}", value, "×", ROWS, partial(_tpot_ratio, one, other))
    for n_out, more in ((1024, " (theirs: TP 4 gathers prompts)"), (8192, "")):
        one, other = (("b200_sxm", "nvfp4", tp, 4, 1024, n_out) for tp in (4, 8))
        what = f"first token, TP 4 over TP 8, B200 NVFP4, 4 requests, 1,024 in and {n_out:,} out{more}"
        value = measured_s(*one, column="ttft_s") / measured_s(*other, column="ttft_s")
        yield measured(f"structure/first_token/{n_out}", what, value, "×", ROWS, partial(_ttft_ratio, one, other))
    for tp in (2, 8):
        what = f"TPOT less reading the weights, B200 NVFP4, TP {tp} over TP 1"
        value = _floor(measured_s, tp) / _floor(measured_s, 1)
        yield measured(f"structure/floor/tp{tp}", what, value, "×", ROWS, partial(_floor_ratio, tp))
    key = "structure/fp4_fp8/served"
    what = (
        f"NVFP4 over FP8, DeepSeek-R1 disaggregated on GB300, tokens/s/GPU at {SERVED_AT} tokens/s/user "
        "(theirs: between runs)"
    )
    yield measured(key, what, formats_measured(), "×", ROWS, _formats_ratio)
    for model, value in (("deepseek_r1", 420_659 / 289_712), ("llama_3_1_405b", 16_104 / 14_774)):
        what = f"{models.MODELS[model].title}, GB300 over GB200, most tokens/s"
        yield measured(f"structure/gb300_gb200/{model}", what, value, "×", MLPERF, partial(ultra_ratio, model))
    what, source = (
        "tokens in flight from which DeepSeek-V3's attention is better replicated (theirs: their formula by hand)",
        "formula of SGLang issue 2882; the number is our arithmetic from the model's sizes",
    )
    claim = Claim(what=what, value=162_400, unit="tokens", source=source, kind="exact", quantum=100)
    yield Pair(key="structure/dp_pays", claim=claim, ours=_tokens_in_flight)
    what, source = (
        "requests that fit, attention DP 8 over TP 8 (theirs: by hand, the copies alone)",
        "arithmetic: every rank of TP holds the one latent, so 8 copies or 1; nobody's measurement",
    )
    claim = Claim(what=what, value=8.0, unit="×", source=source, kind="trend")
    yield Pair(key="structure/capacity", claim=claim, ours=capacity_ratio)


def formats_measured() -> float:
    """NVFP4's measured tokens over FP8's at ``SERVED_AT``, each between its two neighbouring runs.

    >>> round(formats_measured(), 2)
    1.73
    """
    fp4, fp8 = (served_rows("deepseek_r1", "gb300", fmt, "disagg") for fmt in ("nvfp4", "fp8"))
    return between(fp4, SERVED_AT) / between(fp8, SERVED_AT)


def _formats_ratio() -> float:
    fp4, fp8 = (ours_of("deepseek_r1", "gb300", fmt, "disagg") for fmt in ("nvfp4", "fp8"))
    return at(fp4, SERVED_AT) / at(fp8, SERVED_AT)


def switch_concurrency(chip: str, n_input: int) -> float:
    """Requests at once from which attention DP on 8 GPUs gives more tokens than TP, by powers of two up to 512.

    >>> switch_concurrency("h200_sxm", 8192)
    32.0
    """
    load = Workload(n_input=n_input, n_output=1024, n_concurrent=2 ** np.arange(1, 10))
    mix, _, how = SERVED["deepseek_r1", "h200_sxm", "fp8", "agg"]
    found = frontier.sweep("deepseek_r1", chip, n_chips=8, workload=load, precisions=mix, keep="all", **how)
    one_stage, best = found["pp"] == 1, {}
    for name, rows in (("tp", one_stage & (found["dp"] == 1)), ("dp", one_stage & (found["tp_attention"] == 1))):
        best[name] = [found["throughput_per_s"][rows & (found["batch"] == b)].max(initial=0) for b in load.n_concurrent]
    leads = np.array(best["dp"]) > np.array(best["tp"])
    behind = np.flatnonzero(~leads)
    return float(np.append(load.n_concurrent, 1024)[behind[-1] + 1 if behind.size else 0])


def _tpot_ratio(one: tuple, other: tuple) -> float:
    return tpot_s(*one) / tpot_s(*other)


def _ttft_ratio(one: tuple, other: tuple) -> float:
    return float(llama_70b_served(*one).ttft_s / llama_70b_served(*other).ttft_s)


def _floor(time_s, tp: int) -> float:
    """What is left of a step at four requests when reading the weights at full bandwidth is taken off."""
    how = dict(layout=Layout(tp_attention=tp, tp_ffn=tp), batch=4, n_context=2048, precision=FP4)
    held = float(memory.memory("llama_3_1_70b", "b200_sxm", **how).weights_bytes)
    return time_s("b200_sxm", "nvfp4", tp, 4) - held / hardware.chip("b200_sxm").hbm_bytes_per_s


def _floor_ratio(tp: int) -> float:
    return _floor(tpot_s, tp) / _floor(tpot_s, 1)


@cache
def ultra_ratio(model: str) -> float:
    """Most tokens a second of GB300 over GB200, no limit on latency, 1,024 in and 4,096 out.

    >>> 1.0 < ultra_ratio("llama_3_1_405b") < 1.5        # bandwidth is equal, dense NVFP4 1.5 times
    True
    """
    load = Workload(n_input=1024, n_output=4096, n_concurrent=2 ** np.arange(4, 15))
    how = dict(n_chips=WIDE, workload=load, precisions=FP4, modes=["disaggregated"])
    how |= SGLANG if model == "deepseek_r1" else {}
    one, other = (frontier.sweep(model, c, **how)["throughput_per_s"].max() for c in ("gb300", "gb200"))
    return float(one / other)


def _tokens_in_flight() -> float:
    """Weights of attention in FP8 over a token's BF16 cache: B·S·kv = W, whatever the number of GPUs."""
    r1 = models.MODELS["deepseek_r1"]
    return r1.n_params_by_part["attention"] / r1.kv_bytes_per_token("bf16")


def capacity_ratio() -> float:
    """Requests of 9,216 tokens that 8 H200 hold, attention DP over TP, DeepSeek-R1.

    >>> round(capacity_ratio(), 1)
    5.5
    """
    how = dict(n_context=9216, precision=FP8_BLOCK)
    dp, tp = (
        memory.max_batch("deepseek_r1", "h200_sxm", layout=x, **how)
        for x in (Layout(dp=8, ep=8), Layout(tp_attention=8, ep=8))
    )
    return float(dp / tp)


REGIMES = {
    "short, throughput": (1024, 0),
    "short, latency": (1024, -1),
    "long, throughput": (131_072, 0),
    "long, latency": (131_072, -1),
}
"""Input length, and which end of the frontier."""


@cache
def _ends(model: str, n_input: int, chip: str) -> Points:
    load = Workload(n_input=n_input, n_output=1024, n_concurrent=2 ** np.arange(13))
    how = SGLANG if model == "deepseek_r1" else {}
    found = frontier.sweep(
        model, chip, n_chips=(8, 16, 32, 64, 72), workload=load, precisions=FP4, modes=["disaggregated"], **how
    )
    return frontier.frontier(found)


def regime(model: str, name: str, *, chip: str = "gb300") -> dict[str, float]:
    """Where a decode step's time goes at one end of a frontier: shares by part, and ``tokens`` a second and user.

    >>> shares = regime("deepseek_r1", "long, throughput")
    >>> round(sum(shares[part] for part in PARTS), 6), max(PARTS, key=shares.get)
    (1.0, 'attention')
    """
    n_input, end = REGIMES[name]
    found = _ends(model, n_input, chip)
    parts = {part: float(found[f"{part}_s"][end]) for part in PARTS}
    return {part: x / sum(parts.values()) for part, x in parts.items()} | {
        "tokens": float(found["interactivity_per_s"][end])
    }


def regimes() -> Iterator[Pair]:
    """Figure 2's worked case: attention 77 % of the time at long context for throughput, and Amdahl's bound."""
    for model in ("deepseek_r1", "llama_3_1_405b"):
        what = f"attention's share, long context, throughput, {model} on gb300"
        yield measured(f"regimes/attention/{model}", what, 0.77, "", ARTICLE, partial(_share, model))
    what = "all but attention taking no time, where attention takes 77 % (an FFN alone: less)"
    source = f"{ARTICLE}; Amdahl's law"
    claim = Claim(what=what, value=1.30, unit="×", source=source, kind="exact", quantum=0.01)
    yield Pair(key="regimes/amdahl", claim=claim, ours=partial(amdahl, 1 - 0.77))


def _share(model: str) -> float:
    return regime(model, "long, throughput")["attention"]


def amdahl(share: float, faster: float = np.inf) -> float:
    """How much faster the whole gets when a part of it, ``share``, gets ``faster`` times as fast.

    >>> amdahl(0.5, 2.0)
    1.3333333333333333
    """
    return 1 / (1 - share + share / faster)
