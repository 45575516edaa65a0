r"""Seconds of one decode step of an instance, by part: every running sequence gets one more token.

.. math:: t = \sum_\text{layers} \left( t_\text{projections} + t_\text{attention} + t_\text{FFN} + t_\text{experts}
              + t_\text{communication} \right) + t_\text{head} + t_\text{overhead} + t_\text{waiting}

Operations run one after the other, each with the time of its kernel on what a GPU of the layout holds
(:py:mod:`codesign_lib.serving.shards`), communication (:py:mod:`codesign_lib.serving.exchange`) between them; the
slowest GPU counts. Equal kinds of layers are computed once.

``bound=True`` takes the roofline of every operation and of the links, and no overhead: the least that the *same work*
can take. What work it is depends on ``routing`` (:py:mod:`codesign_lib.cost.ops.moe`): ``balanced``, as kernels are
benchmarked, wakes as many experts as can be, so with few tokens a real router wakes fewer and may be faster than that
bound; ``random`` wakes the distinct experts of tokens that pick at random, on equally busy ranks; ``skewed`` still
fewer, and the busiest rank counts.

**HOP-B** overlaps the all-to-all under kvp of one sequence with the attention of the next: with A seconds of attention
and C of merging for b sequences, max(A + C/b, C + A/b) in place of A + C. An ideal: real transfers split into b pieces
start b times.

**A pipeline** of pp stages works on M = min(pp, sequences of a replica) micro-batches at once. A step lasts until each
has passed all stages and its turn comes again: the sum of all parts for one micro-batch, or M periods of the slowest
stage, whichever is longer; the difference is ``waiting_s``. Stages are those of :py:mod:`codesign_lib.serving.stages`,
layer by layer, the head on the last. Every micro-batch is as full as the fullest, in all replicas.

**Speculative decoding**: ``n_draft`` more tokens a sequence are verified in the same step; making the draft is not
included.

Recurrent layers and indexers have no measured kernels: their bound is taken. Compressed attention (DeepSeek-V4) is
priced as latent attention of its size. Indexers score with all their heads on every tp rank, as in vLLM, and on the
rank's part of the context under kvp. Ignored, unless ``overhead`` says otherwise: norms, rotary embeddings,
activation functions, sampling, the host.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import roofline
from codesign_lib.cost.attention_kernels import attention_decode_s
from codesign_lib.cost.latent_kernels import latent_decode_s
from codesign_lib.cost.ops import attention, moe, recurrent
from codesign_lib.cost.roofline import Work
from codesign_lib.cost.tiling import whole
from codesign_lib.serving import exchange, shards
from codesign_lib.serving.layout import Layout, check
from codesign_lib.serving.parts import Step, ffn_s, linear_s, rest_s
from codesign_lib.serving.stages import layer_kinds, stages
from codesign_lib.specs.formats import BF16, Precision, as_precision
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.hf_config.fields import (
    Attention,
    CompressedAttention,
    Ffn,
    LatentAttention,
    Layer,
    Mixer,
    Recurrent,
)
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model
from codesign_lib.specs.quantities import as_floats, common_shape, countable, flags, not_negative


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What no kernel's own time holds: seconds a step, a layer, and a sequence of a replica.

    Below 0 where kernels that were measured alone overlap when one follows the other. Finite, else ValueError.
    """

    step_s: float = 0.0
    layer_s: float = 0.0
    sequence_s: float = 0.0
    source: str

    def __post_init__(self) -> None:
        for name in ("step_s", "layer_s", "sequence_s"):
            (value,) = as_floats("Overhead", **{name: getattr(self, name)})
            if value.ndim or not np.isfinite(value):
                raise ValueError(f"Overhead: {name} is {value}; allowed: one finite number")


NO_OVERHEAD = Overhead(source="nothing fitted: kernels and communication alone")


@dataclass(frozen=True, kw_only=True)
class DecodeStep:
    """Seconds of one step by part, arrays of one shape: ``step_s``, their sum, is the time an output token takes.

    ``projections_s``: linear layers of attention and recurrent mixers. ``attention_s``: reading cache and state.
    ``ffn_s``: dense FFNs, shared experts, routers. ``experts_s``: routed experts. ``waiting_s``: for other stages.
    """

    projections_s: NDArray[np.float64]
    attention_s: NDArray[np.float64]
    ffn_s: NDArray[np.float64]
    experts_s: NDArray[np.float64]
    head_s: NDArray[np.float64]
    communication_s: NDArray[np.float64]
    overhead_s: NDArray[np.float64]
    waiting_s: NDArray[np.float64]

    @property
    def parts_s(self) -> dict[str, NDArray[np.float64]]:
        """The parts by name, in the order of the fields."""
        return {f.name.removesuffix("_s"): getattr(self, f.name) for f in fields(self)}

    @property
    def step_s(self) -> NDArray[np.float64]:
        """Seconds of the whole step, the time per output token (TPOT) when every step makes one."""
        return sum(self.parts_s.values())

    def __repr__(self) -> str:
        if np.ndim(self.step_s):
            ends = " to ".join(f"{1e3 * f(self.step_s):.4g}" for f in (np.min, np.max) if np.size(self.step_s))
            return f"DecodeStep: {np.size(self.step_s):,} steps of {ends or 0} ms"
        parts = " + ".join(f"{name} {1e3 * float(x):.3g}" for name, x in self.parts_s.items() if x)
        return f"DecodeStep: {parts} = {1e3 * float(self.step_s):.4g} ms"


def decode_step_s(
    model: Model | str,
    chip: Chip | str,
    *,
    layout: Layout,
    batch: ArrayLike,
    n_context: ArrayLike,
    precision: Precision,
    engine: str = "trtllm",
    hop_b: bool = False,
    routing: str = "balanced",
    n_draft: ArrayLike = 0,
    overhead: Overhead = NO_OVERHEAD,
    bound: bool = False,
    transfer_from: str | None = None,
) -> DecodeStep:
    """Seconds of a decode step of ``batch`` sequences, those of the whole instance, of ``n_context`` tokens each.

    The formula is this module's; ``n_context`` counts the new token. Layout, batch, context and draft length
    broadcast: ``layout[:, None, None]`` against a column of batches and a row of contexts is the fastest way to sweep,
    as most parts do not depend on the context. Every replica is taken to be as full as the fullest.

    Raises ValueError for a layout that the model does not allow (with everything that is wrong with it), sizes that
    are not whole and above 0, formats and chips without calibration (``bound=True`` has none; ``transfer_from`` takes
    another chip's, as in ``gemm_s``), another ``routing`` than balanced, random or skewed. Whether it fits: ``memory``.
    A longer context never takes less time, but in chunked attention (Llama 4), where a query sees its own chunk: past
    8,192 tokens it starts with one.

    >>> in_fp4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8")
    >>> tp, helix = Layout(tp_attention=64, tp_ffn=64), Layout(kvp=8, tp_attention=8, tp_ffn=64)
    >>> long = dict(batch=8, n_context=1_000_000, precision=in_fp4)
    >>> a, b = (decode_step_s("llama_3_1_405b", "gb200", layout=x, **long) for x in (tp, helix))
    >>> bool(b.step_s < a.step_s), bool(b.attention_s < a.attention_s), bool(b.communication_s > a.communication_s)
    (True, True, True)
    """
    of, c, subject = as_model(model), as_chip(chip), "decode_step_s"
    as_precision(subject, precision)
    b, s = whole(subject, batch=batch, n_context=n_context)
    (drafts,) = not_negative(subject, n_draft=n_draft)
    if np.any(drafts % 1):
        raise ValueError(f"{subject}: n_draft is {drafts[drafts % 1 > 0].flat[0]:g}; allowed: whole numbers from 0")
    for name, size in (("batch", b), ("n_context", s), ("n_draft", drafts)):
        if not size.size:
            raise ValueError(f"{subject}: {name} is empty; allowed: one number, or several")
    each = 1 + drafts  # tokens a sequence
    countable(subject, batch=b, n_context=s, n_draft=drafts)
    flags(subject, hop_b=hop_b, bound=bound)
    if routing not in moe.ROUTINGS:
        raise ValueError(f"{subject}: routing is {routing!r}; allowed: {', '.join(moe.ROUTINGS)}")
    if not isinstance(overhead, Overhead):
        raise ValueError(f"{subject}: overhead is {overhead!r:.60}; allowed: an Overhead")
    check(subject, layout, of, precision)
    common_shape(subject, layout=np.empty(layout.shape), batch=b, n_context=s, n_draft=drafts)
    pp, dp = np.asarray(layout.pp, np.float64), np.asarray(layout.dp, np.float64)
    held = np.ceil(b / dp)
    n_micro = np.minimum(pp, held)
    here = np.ceil(held / n_micro)
    everywhere = np.minimum(dp * here, b)
    on = Step(chip=c, precision=precision, engine=engine, bound=bound, transfer_from=transfer_from, routing=routing,
             layout=layout, n_tokens=here * each, n_all_tokens=everywhere * each, n_sequences=here,
             n_each=each)  # fmt: skip
    net = on.network
    d, found = of.config.d_model, shards.kinds(of)
    parts = dict.fromkeys(("projections_s", "attention_s", "ffn_s", "experts_s", "head_s", "communication_s"), 0.0)
    alone: dict[Mixer | Ffn | Layer, NDArray] = {}  # seconds of each distinct piece of a layer

    def add(piece: Mixer | Ffn | Layer, n: int, **found: NDArray) -> None:
        alone[piece] = sum(found.values())
        for name, value in found.items():
            parts[name] = parts[name] + n * value

    summed = exchange.dense_s(on.n_all_tokens, d, layout=layout, n_ranks=layout.n_replica, on=net)
    for mixer, n in found.mixers:
        linear = sum(linear_s(x, on.n_tokens, on) for x in shards.mixer_shards(mixer, d, layout) if x.of.kind)
        mixing, merge = _mixing_s(mixer, s, on), _merge_s(mixer, on)
        if hop_b:
            merge = hop_b_s(mixing, merge, here) - mixing
        add(mixer, n, projections_s=linear, attention_s=mixing, communication_s=merge + summed)
    for ffn, n in found.ffns:
        dense, experts, sent = ffn_s(ffn, d, on)
        add(ffn, n, ffn_s=dense, experts_s=experts, communication_s=sent)
    for rest, n in found.others:
        add(rest, n, ffn_s=rest_s(rest, d, on))
    for x in shards.outer_shards(of, layout):
        if x.of.kind:
            parts["head_s"] = parts["head_s"] + linear_s(x, on.n_tokens, on)
    embedding = exchange.embedding_s(on.n_tokens, d, layout=layout, on=net)
    logits = exchange.logits_s(on.n_tokens, of.config.n_vocab, layout=layout, on=net)
    hops = exchange.hand_over_s(on.n_tokens, d, layout=layout, on=net)
    parts["communication_s"] = parts["communication_s"] + embedding + logits + hops
    over = NO_OVERHEAD if bound else overhead
    once = over.step_s + over.sequence_s * here
    parts["overhead_s"] = once + over.layer_s * of.n_layers
    parts["waiting_s"] = np.zeros(())
    if np.any(pp > 1):
        layers = [over.layer_s + sum(alone[x] for x in _pieces(layer)) for layer in layer_kinds(of)]
        last = parts["head_s"] + logits + once
        slowest = reduce(np.maximum, (x.total(layers, first=embedding, last=last) for x in stages(of, layout)))
        period = slowest + hops / np.maximum(pp - 1, 1)
        parts["waiting_s"] = np.where(pp > 1, np.maximum(n_micro * period - sum(parts.values()), 0.0), 0.0)
    shape = np.broadcast_shapes(s.shape, *(np.shape(x) for x in parts.values()))
    return DecodeStep(**{name: np.broadcast_to(x, shape)[()] for name, x in parts.items()})


def _pieces(layer: Layer) -> tuple[Mixer | Ffn | Layer, ...]:
    return (*layer.mixers, *layer.ffns, replace(layer, mixers=(), ffns=()))


def hop_b_s(attention_s: ArrayLike, merge_s: ArrayLike, n_sequences: ArrayLike) -> NDArray[np.float64]:
    """Seconds of attention and of merging it over kvp ranks when one sequence's overlaps with the next one's: HOP-B.

    >>> round(float(hop_b_s(8 * 2, 8 * 1.2, 8)), 6)              # the toy of the Helix paper's figure 3, 25.6 in a row
    17.2
    """
    a, c, b = (np.asarray(x, np.float64) for x in (attention_s, merge_s, n_sequences))
    return np.maximum(a + c / b, c + a / b)


def _mixing_s(mixer: Mixer, s: NDArray, on: Step) -> NDArray[np.float64]:
    """Cache and state of one layer."""
    tp, kvp = (np.asarray(x, np.float64) for x in (on.layout.tp_attention, on.layout.kvp))
    b, kv = on.n_sequences, on.precision.kv
    how = dict(n_batch=b, fmt=kv, **on.kernels)
    if isinstance(mixer, Recurrent):
        one = recurrent.decode(mixer, b)
        return roofline.time_s(
            Work(one.flops * on.n_each / tp, one.bytes / tp, one.exps * on.n_each / tp), on.chip, BF16
        )
    heads, seen = np.ceil(mixer.n_heads / tp), np.ceil(_seen(mixer, s) / kvp)
    if isinstance(mixer, Attention):
        sizes = dict(n_kv_heads=np.ceil(mixer.n_kv_heads / tp), d_head=mixer.d_head, d_value=mixer.d_value)
        time_s = attention_decode_s(seen, n_heads=heads, **sizes, **how)
        if np.any(on.n_each > 1):  # more queries read the same cache: free until the arithmetic takes longer
            time_s = np.maximum(
                time_s,
                attention_decode_s(
                    seen, n_heads=heads * on.n_each, **sizes, **how | {"bound": True, "transfer_from": None}
                ),
            )
    else:
        latent = isinstance(mixer, LatentAttention)
        rank, rope = (mixer.kv_rank, mixer.d_rope) if latent else (mixer.d_head - 1, 1)
        time_s = latent_decode_s(seen, n_heads=heads * on.n_each, kv_rank=rank, d_rope=rope, **how)
    x = mixer.indexer
    if x:
        work = attention.index(
            1, s - 1, n_heads=x.n_heads, d_head=x.d_head, tokens_per_entry=x.tokens_per_entry, n_batch=b, kv=kv
        )
        time_s = time_s + roofline.time_s(Work(work.flops * on.n_each / kvp, work.bytes / kvp), on.chip, kv)
    return time_s


def _seen(mixer: Mixer, s: NDArray) -> NDArray[np.float64]:
    """Cached entries that a query reads, all kvp ranks together."""
    if isinstance(mixer, CompressedAttention):
        near = np.minimum(s, mixer.window_tokens)
        if mixer.tokens_per_entry == 1:
            return near
        return near + np.minimum(np.floor(s / mixer.tokens_per_entry), mixer.n_selected_tokens or np.inf)
    s = np.minimum(s, mixer.n_selected_tokens or np.inf)
    if isinstance(mixer, LatentAttention) or mixer.window_tokens is None:
        return s
    return (s - 1) % mixer.window_tokens + 1 if mixer.kind == "chunked" else np.minimum(s, mixer.window_tokens)


def _merge_s(mixer: Mixer, on: Step) -> NDArray[np.float64]:
    """The all-to-all of partial outputs; absorbed latent attention exchanges them in the latent's size."""
    if isinstance(mixer, Recurrent) or np.all(np.asarray(on.layout.kvp) == 1):
        return np.zeros(())
    heads = np.ceil(mixer.n_heads / np.asarray(on.layout.tp_attention))
    if isinstance(mixer, Attention):
        width = mixer.d_value
    else:
        width = mixer.kv_rank if isinstance(mixer, LatentAttention) else mixer.d_head
    return exchange.merge_s(on.n_tokens, heads, width, layout=on.layout, on=on.network)
