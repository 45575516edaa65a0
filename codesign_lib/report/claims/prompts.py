"""Long prompts as others ran them, and what the study compares: H20 clusters, patterns of layers over stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.ops import layer as ops
from codesign_lib.serving import first_token, pipeline, prefill, slicing, splitting
from codesign_lib.serving.first_token import FirstToken
from codesign_lib.serving.layout import Layout
from codesign_lib.specs.formats import Precision
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model

K = 1024
BLOCK_FP8 = Precision(weights="fp8_block", activations="fp8_block", kv="bf16")
WHOLE_FP8 = Precision(weights="fp8", activations="fp8", kv="bf16")
ENGINE = "trtllm"
"""Whose kernels price the H20 clusters, for both models; SGLang ran on them.

SGLang's measured latent prefill on Hopper absorbs and does more than three times the work, which is not the kernel that
ran: with it DeepSeek comes out three times too slow. One engine for both models, so that one fitted number serves both.
"""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A model as SGLang served it on H20: ranks of a stage, stages, first chunk and smoothing of the dynamic chunks.

    ``static_tokens``: its best fixed chunk.
    """

    model: str
    tp: int
    pp: int
    first_tokens: int
    smoothing: float
    static_tokens: int

    def layout(self, pp: int | None = None) -> Layout:
        """Its stages, or so many of the same ranks."""
        return Layout(tp_attention=self.tp, tp_ffn=self.tp, pp=pp or self.pp)

    @property
    def how(self) -> Mapping[str, object]:
        """What all its costs share, kernels of an H200, transferred by name."""
        return MappingProxyType(dict(precision=BLOCK_FP8, engine=ENGINE, transfer_from="h200_sxm"))


QWEN = Served(model="qwen3_235b_a22b", tp=4, pp=8, first_tokens=18 * K, smoothing=0.8, static_tokens=6 * K)
R1 = Served(model="deepseek_r1", tp=8, pp=4, first_tokens=12 * K, smoothing=0.65, static_tokens=4 * K)
MEASURED_S = MappingProxyType({128 * K: 10.54, 256 * K: 32.68, 512 * K: 114.33, 1024 * K: 420.91})
"""Seconds to first token of ``QWEN`` by prompt."""


@cache
def h20(case: Served, n_input: int = 128 * K, *, pp: int | None = None, static_tokens: int = 0, **other) -> FirstToken:
    """The first token of a prompt as ``case`` was served, in dynamic chunks or static ones; ``other`` replaces ``how``.

    Chunks are those that the whole pipeline would take, whatever ``pp``.
    """
    how = dict(case.how) | other
    if how.get("bound"):
        del how["transfer_from"], how["engine"]
    if static_tokens:
        chunks = slicing.fixed_chunks(n_input, static_tokens)
    else:
        sizes = dict(n_input=n_input, first_tokens=case.first_tokens, smoothing=case.smoothing)
        chunks = first_token.dynamic_chunks(case.model, "h20", layout=case.layout(), **sizes, **how)
    return first_token.first_token(case.model, "h20", n_input=n_input, chunks=chunks, layout=case.layout(pp), **how)


@cache
def speed(**other) -> float:
    """The one fitted number: how many times as fast as ours the 128K prompt of ``QWEN`` was.

    >>> 1 < speed() < 2
    True
    """
    return h20(QWEN, **other).ttft_s / MEASURED_S[128 * K]


def attention_fraction(n_input: int = 128 * K) -> float:
    """Share of an H20's BF16 peak at which attention of ``QWEN`` runs, once our times are divided by :py:func:`speed`.

    >>> attention_fraction() < 1
    True
    """
    of = as_model(QWEN.model).config
    flops = sum(ops.prefill(x, of.d_model, n_input, precision=BLOCK_FP8)["mixing"].flops for x in of.layers)
    took_s = h20(QWEN, n_input).parts_s["attention"] / speed()
    return float(flops / (QWEN.tp * took_s) / as_chip("h20").bf16_flops_per_s)


def parabola(n_input: ArrayLike) -> NDArray[np.float64]:
    """Seconds by the law a n² + b n through the two shortest measured prompts: a fit without a model.

    >>> float((parabola(512 * K) / MEASURED_S[512 * K] - 1).round(3))
    -0.022
    """
    x = np.array([128.0, 256.0]) * K
    a, b = np.linalg.solve(np.stack([x * x, x], axis=1), [MEASURED_S[int(n)] for n in x])
    n = np.asarray(n_input, np.float64)
    return a * n * n + b * n


def speed_up(case: Served, *, static_tokens: int = 0, n_requests: int = 16, limited: bool = True) -> float:
    """Prompts of 128K a second over those of one stage, when ``n_requests`` are queued.

    ``limited``: no more chunks are in flight than there are stages, as in SGLang.

    >>> round(speed_up(QWEN, n_requests=1), 2) == round(h20(QWEN, pp=1).ttft_s / h20(QWEN).ttft_s, 2)
    True
    """
    many, one = (h20(case, pp=pp, static_tokens=static_tokens) for pp in (None, 1))
    queue = np.zeros(n_requests)
    rates = (
        pipeline.served(x.stage_s, queue, x.link_s, in_flight=x.layout.pp if limited else None).requests_per_s
        for x in (many, one)
    )
    return float(next(rates) / next(rates))


def wide_tp(case: Served = R1, *, ranks: int = 32) -> float:
    """Speed of one stage of so many ranks over one of the case's, in chunks of its first size.

    In whole-tensor FP8: with 128×128 blocks 32 ranks do not divide DeepSeek's widths, and those who measured it changed
    the model file to try.
    """
    how = dict(case.how) | dict(precision=WHOLE_FP8)
    chunks = slicing.fixed_chunks(128 * K, case.first_tokens)
    narrow, wide = (
        first_token.first_token(case.model, "h20", n_input=128 * K, chunks=chunks, layout=x, **how).ttft_s
        for x in (case.layout(1), Layout(tp_attention=ranks, tp_ffn=ranks))
    )
    return narrow / wide


def fixed(chunk_tokens: int, *, n_input: int, **how) -> FirstToken:
    """The first token of a prompt in chunks of one length; ``how`` as in ``first_token``."""
    return first_token.first_token(n_input=n_input, chunks=slicing.fixed_chunks(n_input, chunk_tokens), **how)


def best_fixed(chunk_tokens: Iterable[int], **how) -> tuple[int, FirstToken]:
    """The length of chunks, of those given, with the earliest first token, and that."""
    return min(((int(x), fixed(int(x), **how)) for x in chunk_tokens), key=lambda found: found[1].ttft_s)


def dynamic(first_tokens: int, *, n_input: int, smoothing: float = 0.75, **how) -> FirstToken:
    """The first token of a prompt in SGLang's dynamic chunks."""
    sizes = dict(n_input=n_input, first_tokens=min(first_tokens, n_input), smoothing=smoothing)
    chunks = first_token.dynamic_chunks(**sizes, **how)
    return first_token.first_token(n_input=n_input, chunks=chunks, **how)


def tuned(n_granules: int = 256, *, n_input: int, **how) -> FirstToken:
    """The first token of a prompt in the chunks that a search by the exact schedule finds, in so many granules."""
    chunks = first_token.tuned_chunks(n_input=n_input, granule_tokens=n_input // n_granules, **how)
    return first_token.first_token(n_input=n_input, chunks=chunks, **how)


def divided(model: str, *, tp: int, pp: int) -> Layout:
    """Stages of ``tp`` GPUs that divide attention; experts are spread over them, a dense FFN is divided."""
    has_experts = any(f.n_experts for layer in as_model(model).config.layers for f in layer.ffns)
    return Layout(tp_attention=tp, tp_ffn=1 if has_experts else tp, ep=tp if has_experts else 1, pp=pp)


class Drift(NamedTuple):
    """A split that is balanced for one prompt, on others: layers of each stage, mean over largest stage, and TTFT over
    that of the best split for each prompt."""

    stage_layers: NDArray[np.int64]
    balance: NDArray[np.float64]
    over_best: NDArray[np.float64]
    best_layers: NDArray[np.int64]


IN_FP8 = Precision(weights="fp8", activations="fp8", kv="fp8")
CHUNK = 8 * K


@cache
def layer_table(model: Model | str, n_input: int, *, chip: str = "gb300") -> NDArray[np.float64]:
    """Seconds [layer, chunk] of a prompt in chunks of 8K, one GPU a stage; outer layers hold embedding and head."""
    sizes = slicing.fixed_chunks(n_input, CHUNK)
    costs = prefill.layer_costs(
        model, chip, n_new=sizes, n_prefix=np.cumsum(sizes) - sizes, layout=Layout(), precision=IN_FP8
    ).cost_s
    rows = costs[1:-1].copy()
    rows[0] += costs[0]
    rows[-1] += costs[-1]
    return rows


def drift(model: Model | str, n_stages: int, *, balanced_at: int, n_input: tuple[int, ...]) -> Drift:
    """The split with the least largest stage at ``balanced_at`` tokens, on every prompt of ``n_input``.

    >>> found = drift("gpt_oss_120b", 8, balanced_at=8192, n_input=(8192, 131_072))
    >>> bool(found.balance[1] < found.balance[0])
    True
    """
    start = splitting.balance(layer_table(model, balanced_at).sum(axis=1), n_stages).starts
    balance, over = [], []
    for n in n_input:
        rows = layer_table(model, n)
        stages, best = np.add.reduceat(rows, start, axis=0), splitting.best_split(rows, n_stages)
        balance.append(float(pipeline.balance_fraction(stages.sum(axis=1))))
        over.append(float(pipeline.first_token_s(stages) / pipeline.first_token_s(best.stage_s)))
    n_layers = as_model(model).n_layers
    split = splitting.Split(start, stages)
    return Drift(split.sizes(n_layers), np.array(balance), np.array(over), best.sizes(n_layers))
