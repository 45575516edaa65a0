"""Designs that differ in one thing and share their parameters, raced on frontiers: what wins at which interactivity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codesign_lib.report.claims.pair import Pair, measured
from codesign_lib.report.claims.served import at, fastest_at
from codesign_lib.serving import frontier, price
from codesign_lib.serving.layout import Workload
from codesign_lib.serving.points import Points
from codesign_lib.specs import models, published, scores
from codesign_lib.specs.formats import Precision
from codesign_lib.specs.hf_config.fields import Attention, Layer
from codesign_lib.specs.models import Model

GOALS = (20, 50, 100, 200)
"""Tokens a second and user."""
BATCHES = np.unique(np.round(2 ** (np.arange(97) / 8))).astype(int)  # eight a doubling, to 4,096
MIXES = MappingProxyType(
    {
        "gb300": Precision(weights="nvfp4", activations="nvfp4", kv="fp8"),
        "h200_sxm": Precision(weights="fp8_block", activations="fp8_block", kv="bf16"),
    }
)
"""Formats of the races; SGLang's kernels for an FP8 latent on Hopper are not calibrated."""
ENGINES = MappingProxyType({"depth": "trtllm", "experts": "sglang", "attention": "sglang", "format": "trtllm"})
"""Whose kernels are taken, for experts those of SGLang, else TensorRT-LLM's with its all-reduce in a rack."""
FORMAT_MIXES = MappingProxyType(
    {name: Precision(weights=fmt, activations=fmt, kv="fp8") for name, fmt in
     (("NVFP4", "nvfp4"), ("FP8", "fp8"), ("BF16", "bf16"))}
)  # fmt: skip
LACKS = MappingProxyType({"h200_sxm": ("NVFP4",)})
"""Designs that a chip has no tensor cores for."""
SIZES = MappingProxyType({"gb300": (8, 16, 32, 64, 72), "h200_sxm": (8,)})


def _llama(name: str, d_model: int, d_ffn: int, n_layers: int, n_heads: int, n_kv_heads: int = 8) -> Model:
    return Model.from_config(
        {"model_type": "llama", "hidden_size": d_model, "intermediate_size": d_ffn, "num_hidden_layers": n_layers,
         "num_attention_heads": n_heads, "num_key_value_heads": n_kv_heads, "head_dim": 128, "vocab_size": 128_256},
        name=name,
    )  # fmt: skip


def _experts(name: str, n_experts: int, n_chosen: int, d_expert: int) -> Model:
    def other(layer: Layer) -> Layer:
        ffns = tuple(replace(f, n_experts=n_experts, n_active_experts=n_chosen, d_expert=d_expert) if f.n_experts else f
                     for f in layer.ffns)  # fmt: skip
        return replace(layer, ffns=ffns)

    return _like_r1(name, other)


def _attention(name: str, n_heads: int, n_kv_heads: int) -> Model:
    mixer = Attention(kind="full", n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=128, d_value=128)
    return _like_r1(name, lambda layer: replace(layer, mixers=(mixer,)))


def _like_r1(name: str, other) -> Model:
    base = models.MODELS["deepseek_r1"]
    config = replace(base.config, layers=tuple(other(layer) for layer in base.config.layers))
    return replace(base, name=name, title=name, config=config, source=f"{base.source}, one thing changed")


DESIGNS: Mapping[str, Mapping[str, Model]] = MappingProxyType(
    {
        "depth": {
            "36 layers of 12,288": _llama("36 layers of 12,288", 12_288, 41_984, 36, 96, 16),
            "80 layers of 8,192": _llama("80 layers of 8,192", 8192, 28_672, 80, 64),
            "204 layers of 5,120": _llama("204 layers of 5,120", 5120, 17_920, 204, 40, 4),
        },
        "experts": {
            "64 experts of 8,192": _experts("64 experts of 8,192", 64, 2, 8192),
            "256 experts of 2,048": models.MODELS["deepseek_r1"],
            "512 experts of 1,024": _experts("512 experts of 1,024", 512, 16, 1024),
        },
        "attention": {
            "MLA": models.MODELS["deepseek_r1"],
            "GQA-8": _attention("GQA-8", 96, 8),
            "GQA-1": _attention("GQA-1", 96, 1),
        },
        "format": dict.fromkeys(FORMAT_MIXES, models.MODELS["llama_3_1_70b"]),
    }
)
"""Designs by question, with the parameters of the model they vary within 2 %: for depth Llama-70B, with key-value heads
that keep the cache within 30 %; for experts and attention DeepSeek-R1; for formats Llama-70B in three."""


@cache
def raced(question: str, design: str, chip: str, *, n_input: int = 8192, n_output: int = 1024) -> Points:
    """The frontier of one design, decoding alone, with the ``ENGINES``' kernels, tokens of experts skewed.

    >>> len(raced("depth", "80 layers of 8,192", "h200_sxm")) > 5
    True
    """
    load = Workload(n_input=n_input, n_output=n_output, n_concurrent=BATCHES)
    mix = FORMAT_MIXES.get(design, MIXES[chip])
    found = frontier.sweep(
        DESIGNS[question][design], chip, n_chips=SIZES[chip], workload=load, precisions=mix,
        modes=["decode"], engine=ENGINES[question], routing="skewed",
    )  # fmt: skip
    return frontier.frontier(found)


def throughputs(question: str, chip: str, **lengths: int) -> dict[str, NDArray[np.float64]]:
    """Tokens a second and GPU of every design at the ``GOALS``, NaN where it is not fast enough.

    >>> {name: x.shape for name, x in throughputs("depth", "h200_sxm").items()}
    {'36 layers of 12,288': (4,), '80 layers of 8,192': (4,), '204 layers of 5,120': (4,)}
    """
    names = [name for name in DESIGNS[question] if name not in LACKS.get(chip, ())]
    return {name: np.array([at(raced(question, name, chip, **lengths), x) for x in GOALS]) for name in names}


def winners(question: str, chip: str, **lengths: int) -> list[str]:
    """At every goal the design that gives most, and by how much over the next; – where none is fast enough.

    >>> [x.rsplit(" ×")[0] for x in winners("depth", "h200_sxm")[:2]]            # the size is in DESIGNS
    ['36 layers', '36 layers']
    """
    found, out = throughputs(question, chip, **lengths), []
    names = [name.split(" of ")[0] for name in found]
    for column in np.nan_to_num(np.stack(list(found.values()))).T:
        first, second = np.argsort(-column)[:2]
        if column[first] == 0:
            out.append("–")
        elif column[second] == 0:
            out.append(f"{names[first]} alone")
        else:
            out.append(f"{names[first]} ×{column[first] / column[second]:.2f}")
    return out


SHOWN = ("MMLU-Pro", "GPQA diamond", "LiveCodeBench", "MATH-500", "AIME 2024")
"""Benchmarks of DeepSeek-R1's card that are shown beside its throughput."""
PRUNED: Mapping[str, Model] = MappingProxyType(
    {
        "8b": models.MODELS["llama_3_1_8b"],
        "width_4b": _llama("width_4b", 3072, 9216, 32, 32),
        "depth_4b": _llama("depth_4b", 4096, 14_336, 16, 32),
    }
)
"""Llama-3.1-8B and its two prunings to one size by Minitron (arXiv 2408.11796)."""


@cache
def pruned(name: str) -> Points:
    """The frontier of a pruned model on one H100 in BF16, 1,024 tokens in and out.

    >>> len(pruned("8b")) > 5
    True
    """
    mix = Precision(weights="bf16", activations="bf16", kv="bf16")
    load = Workload(n_input=1024, n_output=1024, n_concurrent=BATCHES)
    return frontier.frontier(frontier.sweep(PRUNED[name], "h100_sxm", n_chips=1, workload=load, precisions=mix))


class Scored(NamedTuple):
    """By model, whole, width, depth: our tokens a second and GPU, the published score, its standard error."""

    throughput: NDArray[np.float64]
    score: NDArray[np.float64]
    error: NDArray[np.float64]


def pruned_scores(benchmark: str, interactivity_per_s: float) -> Scored:
    """Published scores of the ``PRUNED`` models beside our throughput at an interactivity.

    >>> pruned_scores("GSM8K", 50).score.tolist()
    [0.486, 0.412, 0.168]
    """
    rows = published.table("shape_accuracy").where(model="minitron_llama_3_1", benchmark=benchmark)
    score = np.array([float(rows.where(variant=name)["score_fraction"][0]) for name in PRUNED])
    rate = np.array([at(pruned(name), interactivity_per_s) for name in PRUNED])
    return Scored(rate, score, scores.standard_error(score, rows["n_questions"][0]))


def pruning() -> Iterator[Pair]:
    """Throughput of two prunings of Llama-3.1-8B over the whole model: half the layers, or narrower ones."""
    source = "Minitron, arXiv:2408.11796, read in a summary; TensorRT-LLM on H100"
    for name, value in (("depth_4b", 2.7), ("width_4b", 1.8)):
        what = f"most tokens/s of Llama-3.1-8B pruned in {name.split('_')[0]}, over the whole"
        yield measured(f"pruning/{name}", what, value, "×", source, partial(_pruned_ratio, name))


def _pruned_ratio(name: str) -> float:
    return float(pruned(name)["throughput_per_s"].max() / pruned("8b")["throughput_per_s"].max())


WORKLOADS = {"1K in, 1K out": (1024, 1024), "8K in, 1K out": (8192, 1024), "1K in, 8K out": (1024, 8192),
             "64K in, 1K out": (65_536, 1024)}  # fmt: skip


@cache
def loaded(
    name: str, chip: str = "gb300", *, mode: str = "disaggregated", model: str = "deepseek_r1", n_draft: int = 0
) -> Points:
    """A model's frontier under one of the ``WORKLOADS``; of drafts 80 % are accepted, and making one costs nothing.

    >>> share = loaded("8K in, 1K out")["prefill_fraction"]
    >>> bool((share > 0).all())
    True
    """
    n_input, n_output = WORKLOADS[name]
    load = Workload(n_input=n_input, n_output=n_output, n_concurrent=BATCHES)
    found = frontier.sweep(
        model, chip, n_chips=SIZES[chip], workload=load, precisions=MIXES[chip], modes=[mode],
        engine="sglang" if model == "deepseek_r1" else "trtllm", routing="skewed", n_draft=n_draft, acceptance=0.8,
    )  # fmt: skip
    return frontier.frontier(found)


def chosen(points: Points) -> dict[str, list]:
    """Columns of a table: of a frontier the point at each of the ``GOALS``, its layout, batch, and what takes longest.

    >>> list(chosen(loaded("1K in, 8K out")))[:3]
    ['tokens/s a user', 'tokens/s a GPU', 'layout']
    """
    at_goal = [i for i in (fastest_at(points, x) for x in GOALS) if i < len(points)]
    return {
        "tokens/s a user": list(GOALS[: len(at_goal)]),
        "tokens/s a GPU": [f"{points['throughput_per_s'][i]:,.0f}" for i in at_goal],
        "layout": [str(points.layout(i)) for i in at_goal],
        "batch": points["batch"][at_goal].tolist(),
        "most of a step": [points.binds(i) for i in at_goal],
        "read prompts": [f"{100 * points['prefill_fraction'][i]:.0f} %" for i in at_goal],
    }


class Worked(NamedTuple):
    """DeepSeek-R1 on GB300 at an interactivity or more, by the ``WORKLOADS``.

    Tokens a second and GPU, prompts read apart and by the decoding GPUs; of the first, what share reads and what binds.
    """

    throughput: NDArray[np.float64]
    aggregated: NDArray[np.float64]
    prefill_fraction: NDArray[np.float64]
    binds: list[str]


@cache
def works(interactivity_per_s: float) -> Worked:
    """The same goal under every workload.

    >>> works(50).throughput.shape
    (4,)
    """
    apart, shared = ([loaded(w, mode=mode) for w in WORKLOADS] for mode in ("disaggregated", "aggregated"))
    at_goal = [fastest_at(p, interactivity_per_s) for p in apart]
    return Worked(
        np.array([at(p, interactivity_per_s) for p in apart]),
        np.array([at(p, interactivity_per_s) for p in shared]),
        np.array([p["prefill_fraction"][i] for p, i in zip(apart, at_goal, strict=True)]),
        [p.binds(i) for p, i in zip(apart, at_goal, strict=True)],
    )


def work_columns(work: Worked, cost: price.Price) -> dict[str, list]:
    """Columns of a table: ``works`` with their price and energy a million tokens and a token.

    >>> list(work_columns(works(50), price.price("gb300")))[:3]
    ['work', 'tokens/s a GPU', 'aggregated']
    """
    dollars = price.dollars_per_million(work.throughput, cost.dollars_per_hour)
    return {
        "work": list(WORKLOADS),
        "tokens/s a GPU": work.throughput.round().tolist(),
        "aggregated": work.aggregated.round().tolist(),
        "read prompts": [f"{100 * x:.0f} %" for x in work.prefill_fraction],
        "most of a step": work.binds,
        "$ a million": [f"{x:.2f}" for x in dollars],
        "J a token": [f"{x:.2f}" for x in price.joules_per_token(work.throughput, cost.power_w)],
    }


class Gained(NamedTuple):
    """What reading prompts on GPUs of their own adds to the area under a frontier, a fraction; the fastest user."""

    area: float
    fastest: float


def gained(model: str) -> Gained:
    """1,024 tokens in and out on GB300, from 20 to 200 tokens a second and user.

    >>> gained("deepseek_r1").area > 0
    True
    """
    apart, shared = (loaded("1K in, 1K out", mode=mode, model=model) for mode in ("disaggregated", "aggregated"))
    one, other = (frontier.area(p, slowest_per_s=GOALS[0], fastest_per_s=GOALS[-1]) for p in (apart, shared))
    return Gained(one / other - 1, float(apart["interactivity_per_s"].max()))
