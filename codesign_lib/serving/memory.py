r"""What a GPU of a layout must hold, in named parts, and whether it fits.

.. math:: \text{weights} + \text{sequences} \cdot (\text{KV} + \text{state}) + \text{activations} + \text{reserve}
          \le \text{HBM}

All for the fullest GPU. A GPU holds the sequences of its replica, ⌈batch/dp⌉, of the layers of its stage. Their
entries are divided by kvp, their key-value heads by tp_attention (never below one: then they are copies), recurrent
states by tp_attention. The reserve is a share of HBM (what engines leave to the driver, communication buffers, graphs
and fragmentation: one tenth is the default of vLLM and TensorRT-LLM), stated, not computed.

Stages are balanced: the fullest holds :math:`\lceil L/\text{pp} \rceil` average layers, or its share of layers,
embedding and head together, whichever is more. Ignored: page rounding, the drafter of speculative decoding, vision.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.tiling import whole
from codesign_lib.serving import shards
from codesign_lib.serving.layout import Layout, check
from codesign_lib.specs import caches
from codesign_lib.specs.formats import BF16, Precision, as_precision
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model
from codesign_lib.specs.quantities import as_floats

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
    of, c, subject = as_model(model), as_chip(chip), "memory"
    b, s = whole(subject, batch=batch, n_context=n_context)
    as_precision(subject, precision)
    check(subject, layout, of, precision)
    (reserve,) = as_floats(subject, reserve_fraction=reserve_fraction)
    if reserve.ndim or not 0 <= reserve < 1:
        raise ValueError(f"{subject}: reserve_fraction is {reserve_fraction!r}; allowed: one number from 0, below 1")
    here = np.ceil(b / layout.dp)
    tokens = here if n_step_tokens is None else whole(subject, n_step_tokens=n_step_tokens)[0]
    stage = stage_fraction(of, layout)
    weights = weights_bytes(of, layout, precision, with_mtp=with_mtp)
    kv = here * stage * kv_bytes(of, layout, s, precision, with_mtp=with_mtp)
    state = here * stage * state_bytes(of, layout)
    logits = 4 * np.ceil(of.config.n_vocab / np.asarray(layout.n_replica))
    activations = tokens * activation_bytes(of, layout) + here * logits
    shape = np.broadcast_shapes(*(np.shape(x) for x in (weights, kv, state, activations)))
    parts = (np.broadcast_to(x, shape)[()] for x in (weights, kv, state, activations, reserve * c.hbm_bytes))
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
    given = dict(layout=layout, n_context=n_context, precision=precision, **how)
    one, two = (memory(model, chip, batch=n * np.asarray(layout.dp), **given) for n in (1, 2))
    each = two.total_bytes - one.total_bytes
    return (np.where(one.fits, 1 + np.floor(one.free_bytes / each), 0.0) * layout.dp)[()]


def stage_fraction(model: Model, layout: Layout) -> NDArray[np.float64]:
    """Share of all layers that the longest of a layout's stages holds: ceil(L / pp) / L."""
    return np.ceil(model.n_layers / np.asarray(layout.pp)) / model.n_layers


def weights_bytes(model: Model, layout: Layout, precision: Precision, *, with_mtp: bool = False) -> NDArray[np.float64]:
    """Bytes of weights on the fullest GPU; the head once more where it is tied to an embedding in the same format."""
    d = model.config.d_model
    layers = np.zeros(layout.shape)
    for mtp in (False, True) if with_mtp else (False,):
        found = shards.kinds(model, mtp=mtp)
        for slices in (shards.mixer_shards, shards.ffn_shards):
            for part, n in found.mixers if slices is shards.mixer_shards else found.ffns:
                for x in slices(part, d, layout):
                    layers = layers + n * x.n_params * shards.format_of(x.of, precision).bytes_per_element
        layers = layers + sum(n * w.n_params * BF16.bytes_per_element for w, n in shards.other_weights(model, mtp=mtp))
    if with_mtp:  # what joins two hidden states is on every GPU
        joining = (w for w in model.mtp_weights if w.name.startswith("mtp "))
        layers = layers + sum(w.n_params * shards.format_of(w, precision).bytes_per_element for w in joining)
    outer = {x.of.name: x.n_params * shards.format_of(x.of, precision).bytes_per_element
             for x in shards.outer_shards(model, layout)}  # fmt: skip
    if model.config.tied:
        outer.pop("head")
    both = sum(outer.values())
    largest = np.maximum(stage_fraction(model, layout) * layers, (layers + both) / layout.pp)
    return np.maximum(largest, np.maximum(outer["embedding"], outer.get("head", 0.0)))


def kv_bytes(
    model: Model, layout: Layout, n_context: ArrayLike, precision: Precision, *, with_mtp: bool = False
) -> NDArray[np.float64]:
    """Bytes of one sequence's cache on a GPU, all layers: entries over kvp, heads over tp_attention with copies.

    The keys of sparse attention's indexers are among them.
    """
    (s,) = whole("kv_bytes", n_context=n_context)
    tp, kvp = np.asarray(layout.tp_attention, np.float64), np.asarray(layout.kvp, np.float64)
    layers = model.config.layers + (model.config.mtp_layers if with_mtp else ())
    found = np.zeros(np.broadcast_shapes(layout.shape, s.shape))
    for terms in (caches.cache_terms(layers), caches.indexer_terms(layers)):
        for term, n in terms.items():
            entries = np.ceil(term.n_entries(s) / kvp)
            found = found + n * np.ceil(term.n_kv_heads / tp) * term.n_elements_per_head * entries
    return precision.kv.bytes_per_element * found


def state_bytes(model: Model, layout: Layout) -> NDArray[np.float64]:
    """Bytes of one sequence's recurrent states on a GPU, all layers: divided by tp_attention, the same on kvp ranks."""
    found = 0.0
    for r in caches.recurrent_mixers(model.config.layers):
        found += r.n_heads * r.d_key * r.d_value * r.state_bytes_per_element
        found += r.n_conv * (r.conv_tokens - 1) * BF16.bytes_per_element if r.kind == "short_conv" else 0.0
    return found / np.asarray(layout.tp_attention, np.float64)


def activation_bytes(model: Model, layout: Layout) -> NDArray[np.float64]:
    """Bytes that one token needs while it passes: an estimate, see :py:func:`memory`."""
    widest = np.zeros(())
    for shard, _ in shards.linear_shards(model, layout):
        if shard.of.kind not in ("expert", "head"):
            widest = np.maximum(widest, shard.n)
    return BF16.bytes_per_element * (4 * model.config.d_model + widest)
