r"""What a GPU of a layout must hold, in named parts, and whether it fits.

.. math:: \text{weights} + \text{sequences} \cdot (\text{KV} + \text{state}) + \text{activations} + \text{reserve}
          \le \text{HBM}

All for the fullest GPU: that of the stage which has most of everything together at this batch and context. Its stages
are those of :py:mod:`codesign_lib.serving.stages`, layer by layer, as irregular models have stages with more of the
large layers than the average; another split could need less. A GPU holds the sequences of its replica, ⌈batch/dp⌉.
Their entries are divided by kvp, their key-value heads by tp_attention (never below one: then they are copies),
recurrent states by tp_attention. The first stage has the embedding, the last the head (a copy of the embedding where
they are tied), the logits and multi-token-prediction modules. The reserve is a share of HBM (what engines leave to the
driver, communication buffers, graphs and fragmentation: one tenth is the default of vLLM and TensorRT-LLM), stated, not
computed.

Ignored: page rounding, the drafter of speculative decoding, vision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.tiling import whole
from codesign_lib.serving import shards
from codesign_lib.serving.layout import Layout, check
from codesign_lib.serving.stages import layer_kinds, stages
from codesign_lib.specs import caches, weights
from codesign_lib.specs.formats import BF16, Precision, as_precision
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.hf_config.fields import Layer
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model
from codesign_lib.specs.quantities import as_floats, common_shape, countable, flags

LAST = ("final norm", "head bias", "hyper-connection head", "hyper-connection head base and scale")
"""What stands at the end of a model beside the head."""
RESERVE_FRACTION = 0.1
"""Share of HBM that engines leave free by default (vLLM's gpu_memory_utilization of 0.9)."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the fullest GPU, by part; arrays of one shape. ``capacity_bytes`` is the chip's HBM."""

    weights_bytes: NDArray[np.float64]
    kv_bytes: NDArray[np.float64]
    state_bytes: NDArray[np.float64]
    activations_bytes: NDArray[np.float64]
    reserve_bytes: NDArray[np.float64]
    capacity_bytes: float

    @property
    def total_bytes(self) -> NDArray[np.float64]:
        """The sum of the parts, reserve included."""
        parts = (self.weights_bytes, self.kv_bytes, self.state_bytes, self.activations_bytes, self.reserve_bytes)
        return sum(parts[1:], start=parts[0])

    @property
    def free_bytes(self) -> NDArray[np.float64]:
        """What is left, or below 0 what is missing."""
        return self.capacity_bytes - self.total_bytes

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether everything fits."""
        return self.free_bytes >= 0

    def __str__(self) -> str:
        if np.ndim(self.total_bytes):
            return f"fits in {int(np.sum(self.fits))} of {np.size(self.total_bytes)} cases"
        named = dict(weights=self.weights_bytes, KV=self.kv_bytes, state=self.state_bytes)
        named |= dict(activations=self.activations_bytes, reserve=self.reserve_bytes)
        parts = " + ".join(f"{name} {float(x) / 1e9:.1f}" for name, x in named.items() if x)
        verdict = "fits" if self.fits else f"{-float(self.free_bytes) / 1e9:.1f} GB too much"
        return f"{parts} = {float(self.total_bytes) / 1e9:.1f} of {self.capacity_bytes / 1e9:.1f} GB: {verdict}"


def memory(
    model: Model | str,
    chip: Chip | str,
    *,
    layout: Layout,
    batch: ArrayLike,
    n_context: ArrayLike,
    precision: Precision,
    n_step_tokens: ArrayLike | None = None,
    reserve_fraction: float = RESERVE_FRACTION,
    with_mtp: bool = False,
) -> Memory:
    """Bytes on the fullest GPU when the instance holds ``batch`` sequences of ``n_context`` tokens each.

    ``n_step_tokens``: tokens that one replica works on at once (a chunk of prefill); default: its sequences.
    Activations are an estimate: four vectors of the model's size and the widest intermediate a token, and one FP32
    logit an entry of the vocabulary and sequence.
    ``with_mtp`` adds the weights and cache of multi-token-prediction modules. Layout, batch and context broadcast.
    Raises ValueError for a layout that the model does not allow, and sizes that are not whole and above 0.

    >>> in_fp8 = Precision(weights="fp8", activations="fp8", kv="fp8")
    >>> print(memory("llama_3_1_405b", "h200_sxm", layout=Layout(tp_attention=4, tp_ffn=4), batch=64, n_context=32_768,
    ...              precision=in_fp8))
    weights 102.5 + KV 135.3 + activations 0.0 + reserve 15.1 = 252.9 of 150.8 GB: 102.2 GB too much
    """
    subject, c = "memory", as_chip(chip)
    (b,) = whole(subject, batch=batch)
    countable(subject, batch=b)
    how = (n_context, precision, n_step_tokens, reserve_fraction, with_mtp)
    held = list(_held(subject, as_model(model), c, layout, *how))
    common_shape(subject, layout=np.empty(layout.shape), batch=b, n_context=as_floats(subject, n_context=n_context)[0])
    here = np.ceil(b / layout.dp)
    found = None
    for stage in held:
        parts = stage.weights, here * stage.kv, here * stage.state, here * stage.activations + stage.at_once
        total = sum(parts[1:], start=parts[0])
        if found is None:
            found, most = parts, total
        else:
            found = tuple(np.where(total > most, new, old) for new, old in zip(parts, found, strict=True))
            most = np.maximum(total, most)
    shape = np.broadcast_shapes(*(np.shape(x) for x in found))
    parts = (np.broadcast_to(x, shape)[()] for x in (*found, reserve_fraction * c.hbm_bytes))
    names = ("weights_bytes", "kv_bytes", "state_bytes", "activations_bytes", "reserve_bytes")
    return Memory(**dict(zip(names, parts, strict=True)), capacity_bytes=c.hbm_bytes)


def max_batch(
    model: Model | str,
    chip: Chip | str,
    *,
    layout: Layout,
    n_context: ArrayLike,
    precision: Precision,
    **how,
) -> NDArray[np.float64]:
    """Most sequences of ``n_context`` tokens that an instance can hold at once; 0 where not even one a replica fits.

    Keywords as in :py:func:`memory`. Every replica is filled alike.

    >>> in_fp8 = Precision(weights="fp8", activations="fp8", kv="fp8")
    >>> tp, dp = Layout(tp_attention=8, tp_ffn=1, ep=8), Layout(dp=8, ep=8)
    >>> [float(max_batch("deepseek_r1", "h200_sxm", layout=x, n_context=131_072, precision=in_fp8)) for x in (tp, dp)]
    [10.0, 56.0]
    """
    return _most("max_batch", as_model(model), as_chip(chip), layout, n_context, precision, **how)


def _most(
    subject: str, model: Model, chip: Chip, layout: Layout, n_context: ArrayLike, precision: Precision,
    n_step_tokens: ArrayLike | None = None, reserve_fraction: float = RESERVE_FRACTION, with_mtp: bool = False,
) -> NDArray[np.float64]:  # fmt: skip
    most = np.asarray(np.inf)
    for stage in _held(subject, model, chip, layout, n_context, precision, n_step_tokens, reserve_fraction, with_mtp):
        free = (1 - reserve_fraction) * chip.hbm_bytes - stage.weights - stage.at_once
        each = stage.kv + stage.state + stage.activations
        with np.errstate(divide="ignore", invalid="ignore"):
            n = np.where(free < 0, 0.0, np.where(each > 0, np.floor(free / each), np.inf))
        most = np.minimum(most, n)
    return (most * layout.dp)[()]


class _Held(NamedTuple):
    """Bytes on a GPU of one stage: weights, what a sequence adds, and activations of tokens worked on at once."""

    weights: NDArray[np.float64]
    kv: NDArray[np.float64]
    state: NDArray[np.float64]
    activations: NDArray[np.float64]
    at_once: NDArray[np.float64]


def _held(
    subject: str, model: Model, chip: Chip, layout: Layout, n_context: ArrayLike, precision: Precision,
    n_step_tokens: ArrayLike | None, reserve_fraction: float, with_mtp: bool,
) -> Iterator[_Held]:  # fmt: skip
    """What the GPUs of every stage hold."""
    (s,) = whole(subject, n_context=n_context)
    flags(subject, with_mtp=with_mtp)
    as_precision(subject, precision)
    check(subject, layout, model, precision)
    (reserve,) = as_floats(subject, reserve_fraction=reserve_fraction)
    if reserve.ndim or not 0 <= reserve < 1:
        raise ValueError(f"{subject}: reserve_fraction is {reserve_fraction!r}; allowed: one number from 0, below 1")
    sizes = {} if n_step_tokens is None else {"n_step_tokens": whole(subject, n_step_tokens=n_step_tokens)[0]}
    countable(subject, n_context=s, **sizes)
    common_shape(subject, layout=np.empty(layout.shape), n_context=s, **sizes)
    kinds, mtp = layer_kinds(model), model.config.mtp_layers if with_mtp else ()
    layers = _weights(model, layout, precision, with_mtp)
    kv = [_cache((x,), layout, s, precision) for x in kinds], _cache(mtp, layout, s, precision)
    state = [_states((x,), layout) for x in kinds], 0.0
    logits = 4 * np.ceil(model.config.n_vocab / np.asarray(layout.n_replica))
    activations = activation_bytes(model, layout)
    each, at_once = (activations, 0.0) if n_step_tokens is None else (0.0, sizes["n_step_tokens"] * activations)
    for stage in stages(model, layout):
        yield _Held(
            stage.total(layers.layers, first=layers.first, last=layers.last),
            stage.total(kv[0], first=0.0, last=kv[1]),
            stage.total(state[0], first=0.0, last=state[1]),
            each + stage.last * logits,
            at_once,
        )


class _Weights(NamedTuple):
    layers: list[NDArray[np.float64]]
    first: NDArray[np.float64]
    last: NDArray[np.float64]


def _weights(model: Model, layout: Layout, precision: Precision, with_mtp: bool) -> _Weights:
    """Bytes of a layer of each kind on a GPU, and what the first and the last stage have beside their layers."""
    d, known = model.config.d_model, {}

    def bytes_of(found: Iterator[shards.Shard]) -> NDArray[np.float64]:
        return sum((x.n_params * shards.format_of(x.of, precision).bytes_per_element for x in found), np.zeros(()))

    def layer_bytes(layer: Layer) -> NDArray[np.float64]:
        rest = weights.layer_weights(replace(layer, mixers=(), ffns=()), d)
        total = BF16.bytes_per_element * sum(w.n_params for w in rest)
        for parts, slices in ((layer.mixers, shards.mixer_shards), (layer.ffns, shards.ffn_shards)):
            for part in parts:
                if part not in known:
                    known[part] = bytes_of(slices(part, d, layout))
                total = total + known[part]
        return total

    first, last, head = [], [], []
    for x in shards.outer_shards(model, layout):
        (head if x.of.name == "head" else last if x.of.name in LAST else first).append(x)
    # a tied head is the embedding's table: held once more only where they are not on one GPU
    apart = 1.0 if not model.config.tied else np.asarray(layout.pp) > 1
    at_the_end = bytes_of(last) + apart * bytes_of(head)
    if with_mtp:  # what joins two hidden states is on every GPU of its stage
        joining = (w for w in model.mtp_weights if w.name.startswith("mtp "))
        at_the_end = at_the_end + sum(w.n_params * shards.format_of(w, precision).bytes_per_element for w in joining)
        at_the_end = at_the_end + sum(layer_bytes(x) for x in model.config.mtp_layers)
    return _Weights([layer_bytes(x) for x in layer_kinds(model)], bytes_of(first), at_the_end)


def weights_bytes(model: Model, layout: Layout, precision: Precision, *, with_mtp: bool = False) -> NDArray[np.float64]:
    """Bytes of weights in the stage that has most of them; a tied head once more where the embedding is elsewhere."""
    layers, first, last = _weights(model, layout, precision, with_mtp)
    return np.max(
        np.stack(np.broadcast_arrays(*(x.total(layers, first=first, last=last) for x in stages(model, layout)))), axis=0
    )


def kv_bytes(
    model: Model, layout: Layout, n_context: ArrayLike, precision: Precision, *, with_mtp: bool = False
) -> NDArray[np.float64]:
    """Bytes of one sequence's cache on a GPU, all layers: entries over kvp, heads over tp_attention with copies.

    The keys of sparse attention's indexers are among them.
    """
    (s,) = whole("kv_bytes", n_context=n_context)
    return _cache(model.config.layers + (model.config.mtp_layers if with_mtp else ()), layout, s, precision)


def _cache(layers: tuple[Layer, ...], layout: Layout, s: NDArray, precision: Precision) -> NDArray[np.float64]:
    tp, kvp = np.asarray(layout.tp_attention, np.float64), np.asarray(layout.kvp, np.float64)
    found = np.zeros(np.broadcast_shapes(layout.shape, s.shape))
    for terms in (caches.cache_terms(layers), caches.indexer_terms(layers)):
        for term, n in terms.items():
            entries = np.ceil(term.n_entries(s) / kvp)
            found = found + n * np.ceil(term.n_kv_heads / tp) * term.n_elements_per_head * entries
    return precision.kv.bytes_per_element * found


def state_bytes(model: Model, layout: Layout) -> NDArray[np.float64]:
    """Bytes of one sequence's recurrent states on a GPU, all layers: divided by tp_attention, the same on kvp ranks.

    Windows of their convolutions, in BF16, are among them.
    """
    return _states(model.config.layers, layout)


def _states(layers: tuple[Layer, ...], layout: Layout) -> NDArray[np.float64]:
    found = 0.0
    for r in caches.recurrent_mixers(layers):
        found += r.n_heads * r.d_key * r.d_value * r.state_bytes_per_element
        found += r.n_conv * (r.conv_tokens - 1) * BF16.bytes_per_element  # the window of the convolution
    return found / np.asarray(layout.tp_attention, np.float64)


def activation_bytes(model: Model, layout: Layout) -> NDArray[np.float64]:
    """Bytes that one token needs while it passes: an estimate, see :py:func:`memory`."""
    widest = np.zeros(())
    for shard, _ in shards.linear_shards(model, layout):
        if shard.of.kind not in ("expert", "head"):
            widest = np.maximum(widest, shard.n)
    return BF16.bytes_per_element * (4 * model.config.d_model + widest)
