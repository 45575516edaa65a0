r"""Time to first token (TTFT) of one prompt on a layout: its chunks through the stages of its pipeline.

Costs of every layer (:py:mod:`codesign_lib.serving.prefill`), added up over the layers of each stage, go through
:py:func:`codesign_lib.serving.pipeline.finish_s`, with the hidden states of a chunk as the link between two stages. One
stage (pp = 1) is tensor or expert parallelism alone, one chunk a plain pipeline.

Chunks may be of fixed length, of equal time, or the best slicing. A scale-up domain holds as many whole stages as fit
into it: no stage is spread over two, and GPUs that are left over are neither used nor counted. Ignored besides what
``prefill`` ignores: several replicas waiting for each other, the host, moving the cache to where it is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.collectives import point_to_point_s
from codesign_lib.cost.tiling import one_whole, whole
from codesign_lib.serving import exchange, pipeline, prefill, slicing, splitting, tuning
from codesign_lib.serving.layout import Layout, check
from codesign_lib.serving.slicing import Chunks
from codesign_lib.specs.formats import BF16, Precision, as_precision
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model

LAW_POINTS = 8
"""Lengths up to the first chunk at which a prompt is priced for its quadratic law."""

SMOOTHINGS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""From equal lengths to equal times, where the search for a slicing begins."""


@dataclass(frozen=True, kw_only=True)
class FirstToken:
    """One prompt's way through the stages.

    ``chunks``: tokens of each; ``stage_layers``: layers of each stage; ``stage_s[stage, chunk]`` and
    ``link_s[stage, chunk]`` seconds; ``parts_s`` seconds of all stages and chunks together, by part.
    """

    layout: Layout
    chunks: NDArray[np.int64]
    stage_layers: NDArray[np.int64]
    stage_s: NDArray[np.float64]
    link_s: NDArray[np.float64]
    parts_s: dict[str, float]

    @property
    def ttft_s(self) -> float:
        """Seconds from the start of the prompt to its first token, without queueing."""
        return float(self.finish_s[-1, -1])

    @property
    def finish_s(self) -> NDArray[np.float64]:
        """Second at which each stage is done with each chunk."""
        return pipeline.finish_s(self.stage_s, self.link_s)

    @property
    def idle_fraction(self) -> float:
        """The bubble, whatever its cause, as the share of all stages' time until the first token in which they wait."""
        return float(pipeline.idle_fraction(self.stage_s, self.link_s))

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Prompt tokens a second and GPU, one prompt after the other (one a replica)."""
        return self._per_gpu(1 / self.ttft_s)

    @property
    def most_tokens_per_s_per_gpu(self) -> float:
        """The same with prompts following each other without a gap, as many chunks in flight as it takes.

        The bubble is filled. Engines keep fewer chunks in flight: :py:meth:`queued_tokens_per_s_per_gpu`.
        """
        return self._per_gpu(float(pipeline.most_per_s(self.stage_s)))

    def queued_tokens_per_s_per_gpu(self, n_prompts: int, *, in_flight: int | None = None) -> float:
        """The same of so many prompts that are all there at the start, with at most so many chunks in flight.

        Filling and emptying the pipeline is included. Whole numbers of at least 1, else ValueError.
        """
        queue = one_whole("queued_tokens_per_s_per_gpu", n_prompts=n_prompts)
        served = pipeline.served(self.stage_s, np.zeros(queue), self.link_s, in_flight=in_flight)
        return self._per_gpu(float(served.requests_per_s))

    def _per_gpu(self, prompts_per_s: float) -> float:
        return prompts_per_s * int(self.chunks.sum()) * self.layout.dp / self.layout.n_gpus


def first_token(
    model: Model | str,
    chip: Chip | str,
    *,
    n_input: int,
    chunks: ArrayLike,
    layout: Layout,
    stage_layers: ArrayLike | None = None,
    **how,
) -> FirstToken:
    """The first token of a prompt of ``n_input`` tokens, cut into ``chunks``, on one layout.

    ``stage_layers`` are the layers of each stage, in order; default: :py:func:`even_stages`, the smaller stages first,
    which suits chunks that grow; ``decode`` and ``memory`` take vLLM's, :py:mod:`codesign_lib.serving.stages`, which
    can be given here. Embedding and head join the outer ones. Between domains a link is a NIC, one message from each
    GPU to its counterpart. Other keywords are those of :py:func:`codesign_lib.serving.prefill.layer_costs`.

    Raises ValueError for an array of layouts, chunks that do not sum to the prompt, stages that do not hold all layers,
    and what ``layer_costs`` refuses.

    >>> from codesign_lib.specs.formats import Precision
    >>> in_fp8 = dict(precision=Precision(weights="fp8", activations="fp8", kv="fp8"))
    >>> tp, pp = Layout(tp_attention=32, tp_ffn=32), Layout(tp_attention=4, tp_ffn=4, pp=8)
    >>> whole, cut = ([65_536], [8192] * 8)
    >>> found = [first_token("llama_3_1_405b", "gb300", n_input=65_536, chunks=c, layout=x, **in_fp8).ttft_s
    ...          for x, c in ((tp, whole), (pp, whole), (pp, cut))]
    >>> found[1] > 3 * found[2], found[0] > found[2]              # 32 GPUs each
    (True, True)
    """
    subject, of, c = "first_token", as_model(model), as_chip(chip)
    _one_layout(subject, layout, of, **how)
    n, sizes = one_whole(subject, n_input=n_input), _sizes(subject, chunks)
    if sizes.sum() != n:
        raise ValueError(f"{subject}: chunks sum to {sizes.sum():,}; allowed: n_input, {n:,}")
    stages = _stages(subject, of, layout, stage_layers)
    costs = prefill.layer_costs(of, c, n_new=sizes, n_prefix=np.cumsum(sizes) - sizes, layout=layout, **how)
    rows = _rows(stages)
    return FirstToken(
        layout=layout,
        chunks=sizes,
        stage_layers=stages,
        stage_s=np.add.reduceat(costs.cost_s, np.cumsum(rows) - rows, axis=0),
        link_s=_links(sizes, of, c, layout, how),
        parts_s={name: float(x.sum()) for name, x in costs.parts_s.items()},
    )


def prompt_law(model: Model | str, chip: Chip | str, *, up_to_tokens: int, **how) -> tuple[float, float]:
    """(a, b) of the law a x² + b x + c that fits the seconds of prompts of up to so many tokens, uncut.

    As SGLang does when it starts: least squares through lengths up to its first chunk. The constant c is paid by every
    chunk and drops out of equal times. From 3 tokens on, else ValueError. Keywords as in ``layer_costs``.

    >>> from codesign_lib.specs.formats import Precision
    >>> in_fp8 = Precision(weights="fp8", activations="fp8", kv="fp8")
    >>> a, b = prompt_law("llama_3_1_405b", "h200_sxm", up_to_tokens=16_384, precision=in_fp8,
    ...                   layout=Layout(tp_attention=8, tp_ffn=8))
    >>> a > 0, b > 0
    (True, True)
    """
    n = one_whole("prompt_law", up_to_tokens=up_to_tokens)
    if n < 3:
        raise ValueError(f"prompt_law: up_to_tokens is {n}; allowed: at least 3, as the law has three numbers")
    x = np.unique(np.ceil(np.arange(1, LAW_POINTS + 1) * (n / LAW_POINTS)))
    took = prefill.layer_costs(model, chip, n_new=x, **how).total_s
    return _law(x, took)


def _law(x: NDArray, took: NDArray) -> tuple[float, float]:
    """(a, b) of a x² + b x + c by least squares."""
    (a, b, _), *_ = np.linalg.lstsq(np.stack([x * x, x, np.ones(x.size)], axis=1), took, rcond=None)
    return float(max(a, 0.0)), float(max(b, 0.0))


def dynamic_chunks(
    model: Model | str, chip: Chip | str, *, n_input: int, first_tokens: int, smoothing: float = 0.75, **how
) -> NDArray[np.int64]:
    """SGLang's dynamic chunks: equal times by :py:func:`prompt_law`, smoothed, in 64s, at least a quarter of the first.

    See :py:func:`codesign_lib.serving.slicing.equal_time_chunks`; other keywords as in ``layer_costs``.
    """
    a, b = prompt_law(model, chip, up_to_tokens=first_tokens, **how)
    return slicing.equal_time_chunks(
        n_input, first_tokens, quadratic_s=a, linear_s=b, smoothing=smoothing, multiple=64, least_fraction=0.25
    )


def optimal_chunks(
    model: Model | str, chip: Chip | str, *, n_input: int, granule_tokens: int, layout: Layout, **how
) -> Chunks:
    """The slicing with the earliest first token if all stages were alike, in multiples of ``granule_tokens``.

    :py:func:`codesign_lib.serving.slicing.best_chunks` on the mean stage's cost; ``sizes`` are in tokens. The prompt is
    a multiple of the granule, and at most ``slicing.MOST_GRANULES`` of them, else ValueError. Memory grows with their
    square, 0.2 GB at 1,024. Other keywords as in ``layer_costs``.
    """
    granule, costs = _table("optimal_chunks", model, chip, n_input, granule_tokens, layout=layout, **how)
    found = _best_if_alike(costs.total_s / layout.pp, layout.pp)
    return found._replace(sizes=granule * found.sizes)


def tuned_chunks(
    model: Model | str,
    chip: Chip | str,
    *,
    n_input: int,
    granule_tokens: int,
    layout: Layout,
    stage_layers: ArrayLike | None = None,
    **how,
) -> NDArray[np.int64]:
    """The slicing found best for the stages and links as they are, in multiples of ``granule_tokens``.

    :py:func:`codesign_lib.serving.tuning.tuned_chunks`, begun at the best slicing of alike stages, at equal lengths,
    and at lengths between those and equal times.
    Arguments as in :py:func:`optimal_chunks` and :py:func:`first_token`.
    """
    subject, of, c = "tuned_chunks", as_model(model), as_chip(chip)
    granule, costs = _table(subject, of, c, n_input, granule_tokens, layout=layout, **how)
    stages, kinds = _stages(subject, of, layout, stage_layers), sum(costs.kinds_s.values())
    n = kinds.shape[-1]
    holds = np.zeros((layout.pp, len(kinds)))  # rows of each kind on each stage
    np.add.at(holds, (np.repeat(np.arange(layout.pp), _rows(stages)), costs.order), 1.0)
    begin = [_best_if_alike(costs.total_s / layout.pp, layout.pp).sizes]
    a, b = _law(np.arange(1, n + 1), costs.total_s[0])
    begin += [
        slicing.equal_time_chunks(n, size, quadratic_s=a, linear_s=b, smoothing=sigma)
        for size in 2 ** np.arange(n.bit_length()) for sigma in SMOOTHINGS
    ]  # fmt: skip
    links = _links(granule * np.arange(1, n + 1), of, c, layout, how)
    sizes, _ = tuning.tuned_chunks(np.tensordot(holds, kinds, axes=1), begin, links)
    return granule * sizes


def _table(subject: str, model, chip, n_input, granule_tokens, *, layout, **how) -> tuple[int, prefill.LayerCosts]:
    """Costs by [prefix, length − 1] in granules."""
    _one_layout(subject, layout, as_model(model), **how)
    n, granule = one_whole(subject, n_input=n_input), one_whole(subject, granule_tokens=granule_tokens)
    if n % granule:
        raise ValueError(f"{subject}: n_input is {n:,}; allowed: a multiple of granule_tokens, {granule:,}")
    if n > (most := slicing.MOST_GRANULES) * granule:
        raise ValueError(f"{subject}: granule_tokens is {granule:,}; allowed: at least a {most:,}th of n_input, {n:,}")
    at = granule * np.arange(n // granule)
    return granule, prefill.layer_costs(model, chip, n_new=at + granule, n_prefix=at[:, None], layout=layout, **how)


def _best_if_alike(table: NDArray, n_stages: int) -> Chunks:
    return slicing.best_chunks(lambda p, n: table[p.astype(int), n.astype(int) - 1], len(table), n_stages)


def _rows(stages: NDArray) -> NDArray[np.int64]:
    """Rows of each stage: its layers, and embedding and head on the outer ones."""
    rows = stages.copy()
    rows[0] += 1
    rows[-1] += 1
    return rows


def even_stages(n_layers: int, n_stages: int) -> NDArray[np.int64]:
    """Layers of each stage, as equal as can be, the smaller stages first.

    >>> even_stages(61, 4)
    array([15, 15, 15, 16])
    """
    n = one_whole("even_stages", n_layers=n_layers)
    return splitting.balance(np.ones(n), n_stages).sizes(n)


def _one_layout(subject: str, layout: Layout, model: Model, *, precision: Precision | None = None, **_: object) -> None:
    if not isinstance(layout, Layout) or layout.shape:
        raise ValueError(f"{subject}: layout is {layout!s:.60}; allowed: one Layout")
    check(subject, layout, model, as_precision(subject, precision))


def _sizes(subject: str, chunks: ArrayLike) -> NDArray[np.int64]:
    (sizes,) = whole(subject, chunks=chunks)
    if sizes.ndim != 1:
        raise ValueError(f"{subject}: chunks has shape {sizes.shape}; allowed: one length after the other")
    return sizes.astype(np.int64)


def _stages(subject: str, model: Model, layout: Layout, stage_layers: ArrayLike | None) -> NDArray[np.int64]:
    if stage_layers is None:
        return even_stages(model.n_layers, layout.pp)
    (stages,) = whole(subject, stage_layers=stage_layers)
    if stages.shape != (layout.pp,) or stages.sum() != model.n_layers:
        raise ValueError(
            f"{subject}: stage_layers is {stage_layers!r}; allowed: {layout.pp} numbers that sum to "
            f"{model.n_layers}, the layers of {model}"
        )
    return stages.astype(np.int64)


def _links(sizes: NDArray, model: Model, chip: Chip, layout: Layout, how: Mapping[str, object]) -> NDArray[np.float64]:
    """Seconds of handing a chunk's hidden states on: over the scale-up links where both stages share a domain."""
    if layout.pp == 1:
        return np.zeros((0, sizes.size))
    message = BF16.bytes_per_element * model.config.d_model * sizes
    across = np.arange(1, layout.pp) % exchange.domain_stages(layout, chip) == 0
    by = {x: how[x] for x in ("bound", "transfer_from") if x in how}
    inside = outside = 0.0
    if not across.all():
        inside = point_to_point_s(message, chip=chip, **by)
    if across.any():
        outside = point_to_point_s(message, chip=chip, across=True, bound=True)  # a bound is all there is
    return np.where(across[:, None], outside, inside)
