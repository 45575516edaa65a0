r"""Seconds that the chunks of a prompt take, layer by layer and by part, and when the first token is there.

A chunk of n tokens behind p cached ones goes through every layer; operations run one after the other, each with the
time of its kernel on what a GPU of the layout holds (:py:mod:`codesign_lib.serving.shards`), communication
(:py:mod:`codesign_lib.serving.exchange`) between them. Equal layers are computed once. Only attention knows the
prefix: over all pairs of a query and a key before it,

.. math:: t(n, p) = t_\text{linear}(n) + x \left(n p + \tfrac{1}{2} n^2\right) + \dots

so a prompt's time grows with its square, and equal chunks do not take equal times. Embedding and output head are
layers too: the first and the last row of every cost. The head sees one token a chunk.

Latent attention expands its prefix again for every chunk: the projection to keys and values runs over p + n tokens
(but for kernels that absorb it, SGLang's on Hopper).
**Not validated**: prefixes (no table has one), and kinds of layers without measured kernels (recurrent, compressed,
sparse and chunked attention, indexers), for which the roofline is taken; so hybrids come out too fast where these
layers count. Sparse latent attention is absorbed or expanded, whichever is faster. Indexers score with all their heads
on every tp rank, as in vLLM and in ``decode``.

Ignored: norms, rotary embeddings, activation functions, writing the cache, the host, overlap of communication with
computing, context parallelism (kvp is 1 here; its volume is in :py:mod:`codesign_lib.serving.volumes`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import calibration, roofline
from codesign_lib.cost.attention_kernels import attention_prefill_s
from codesign_lib.cost.kernels import gemm_s
from codesign_lib.cost.latent_kernels import absorbs, latent_prefill_form_s, latent_prefill_s
from codesign_lib.cost.ops import layer as layer_ops
from codesign_lib.cost.ops import moe
from codesign_lib.cost.roofline import Work
from codesign_lib.cost.tiling import whole
from codesign_lib.serving import shards
from codesign_lib.serving.layout import Layout, check
from codesign_lib.serving.parts import Step, ffn_s, linear_s, rest_s
from codesign_lib.specs.formats import BF16, Precision, as_precision
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.hf_config.fields import Attention, LatentAttention, Layer, Mixer, Recurrent
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model
from codesign_lib.specs.quantities import common_shape, not_negative

PARTS = ("projections", "attention", "ffn", "experts", "communication")


@dataclass(frozen=True, kw_only=True)
class LayerCosts:
    """Seconds of embedding, every layer in order, and output head: the rows.

    ``kinds_s[part]`` holds ``[kind, ...]``, equal rows once; ``order`` says which kind each row is.
    """

    kinds_s: dict[str, NDArray[np.float64]]
    order: NDArray[np.int64]

    @property
    def cost_s(self) -> NDArray[np.float64]:
        """Seconds of every row, ``[row, ...]``."""
        return sum(self.kinds_s.values())[self.order]

    @property
    def parts_s(self) -> dict[str, NDArray[np.float64]]:
        """Seconds of all rows together, by part."""
        counts = np.bincount(self.order).astype(np.float64)
        return {name: np.tensordot(counts, x, axes=1) for name, x in self.kinds_s.items()}

    @property
    def total_s(self) -> NDArray[np.float64]:
        """Seconds of all rows and parts together."""
        return sum(self.parts_s.values())


def layer_costs(
    model: Model | str,
    chip: Chip | str,
    *,
    n_new: ArrayLike,
    n_prefix: ArrayLike = 0,
    layout: Layout,
    precision: Precision,
    engine: str = "trtllm",
    routing: str = "balanced",
    bound: bool = False,
    transfer_from: str | None = None,
) -> LayerCosts:
    """What a chunk of ``n_new`` tokens behind ``n_prefix`` costs each layer on a GPU of the layout, by part.

    The formula is this module's. Chunk, prefix and layout broadcast; the result has an axis for the rows in front.
    Every replica of attention works on a prompt of its own at the same time. ``pp`` changes nothing here: it says which
    rows are on which GPU. ``bound=True`` takes the roofline of every operation and of the links; ``engine``,
    ``routing`` and ``transfer_from`` are those of :py:func:`codesign_lib.cost.kernels.gemm_s` and
    :py:func:`codesign_lib.cost.moe_kernels.moe_s`.

    Raises ValueError for a layout that the model does not allow or with kvp above 1, sizes that are not whole and above
    0 (the prefix 0), and formats and chips without calibration.

    >>> in_fp8 = Precision(weights="fp8", activations="fp8", kv="fp8")
    >>> tp8 = Layout(tp_attention=8, tp_ffn=8)
    >>> costs = layer_costs("llama_3_1_405b", "h200_sxm", n_new=8192, n_prefix=[0, 131_072], layout=tp8, precision=in_fp8)
    >>> costs.cost_s.shape                                        # 126 layers, embedding and head; two prefixes
    (128, 2)
    >>> {name: bool(t[1] > t[0]) for name, t in costs.parts_s.items() if t[0]}
    {'projections': False, 'attention': True, 'ffn': False, 'communication': False}
    """  # noqa: E501
    subject, of, c = "layer_costs", as_model(model), as_chip(chip)
    (n,), (p,) = whole(subject, n_new=n_new), not_negative(subject, n_prefix=n_prefix)
    common_shape(subject, n_new=n, n_prefix=p)
    as_precision(subject, precision)
    if routing not in moe.ROUTINGS:  # also where a model has no experts
        raise ValueError(f"{subject}: routing is {routing!r}; allowed: {', '.join(moe.ROUTINGS)}")
    check(subject, layout, of, precision)
    if np.any(np.asarray(layout.kvp) > 1):
        raise ValueError(f"{subject}: layout has kvp={layout.kvp}, which divides a cache in decoding; allowed: kvp=1")
    on = Step(
        chip=c, precision=precision, engine=engine, bound=bound, transfer_from=transfer_from, routing=routing,
        layout=layout, n_tokens=n, n_all_tokens=n * np.asarray(layout.dp), n_sequences=np.ones(()), n_each=n,
    )  # fmt: skip
    layers, d = of.config.layers, of.config.d_model
    kinds = list(dict.fromkeys(layers))
    rows = [_embedding(of, on), *(_layer(kind, d, p, on) for kind in kinds), _head(of, on)]
    order = np.array([0, *(1 + kinds.index(x) for x in layers), len(rows) - 1])
    shape = np.broadcast_shapes(n.shape, p.shape, layout.shape)
    parts = {x: np.stack([np.broadcast_to(row.get(x, 0.0), shape) for row in rows]) for x in PARTS}
    return LayerCosts(kinds_s=parts, order=order)


def _embedding(model: Model, on: Step) -> dict[str, NDArray]:
    """Rows of the table, a share of the vocabulary on each rank, added up."""
    d = model.config.d_model
    table = roofline.time_s(Work(0.0, 2 * BF16.bytes_per_element * d * on.n_tokens), on.chip, BF16)
    reduce = on.network.all_reduce_s(BF16.bytes_per_element * d * on.n_tokens, on.layout.n_replica)
    return {"projections": table, "communication": reduce}


def _head(model: Model, on: Step) -> dict[str, NDArray]:
    """The logits of one token."""
    one = np.ones(())
    linear = sum(linear_s(x, one, on) for x in shards.outer_shards(model, on.layout) if x.of.kind)
    gather = on.network.all_gather_s(BF16.bytes_per_element * model.config.n_vocab, on.layout.n_replica)
    return {"projections": linear, "communication": gather}


def _layer(layer: Layer, d: int, n_prefix: NDArray, on: Step) -> dict[str, NDArray]:
    """One layer by part."""
    layout = on.layout
    found = dict.fromkeys(PARTS, 0.0)
    for mixer in layer.mixers:
        linear = sum(linear_s(x, on.n_tokens, on) for x in shards.mixer_shards(mixer, d, layout) if x.of.kind)
        found["projections"] = found["projections"] + linear
        found["attention"] = found["attention"] + _mixing_s(mixer, n_prefix, on)
    if layer.mixers:
        found["communication"] = on.network.all_reduce_s(BF16.bytes_per_element * d * on.n_tokens, layout.n_replica)
    for ffn in layer.ffns:
        for name, value in zip(("ffn", "experts", "communication"), ffn_s(ffn, d, on), strict=True):
            found[name] = found[name] + value
    rest = replace(layer, mixers=(), ffns=())
    found["ffn"] = found["ffn"] + rest_s(rest, d, on)
    return found


def _mixing_s(mixer: Mixer, p: NDArray, on: Step) -> NDArray[np.float64]:
    """Attention or recurrence of one layer over the chunk."""
    tp, kv = np.asarray(on.layout.tp_attention, np.float64), on.precision.kv
    sparse = getattr(mixer, "n_selected_tokens", None) is not None
    if isinstance(mixer, Attention) and mixer.kind != "chunked" and not sparse:
        return attention_prefill_s(
            on.n_tokens, p, n_heads=np.ceil(mixer.n_heads / tp), n_kv_heads=np.ceil(mixer.n_kv_heads / tp),
            d_head=mixer.d_head, d_value=mixer.d_value, window_tokens=mixer.window_tokens, fmt=kv, **on.kernels,
        )  # fmt: skip
    if isinstance(mixer, LatentAttention) and not sparse:
        return _latent_s(mixer, np.ceil(mixer.n_heads / tp), p, on)
    # no measured kernel: the roofline, of the faster form where there are two
    if isinstance(mixer, Recurrent):
        (w,) = layer_ops.mixing_forms(mixer, on.n_tokens, precision=on.precision)
        return roofline.time_s(Work(w.flops / tp, w.bytes / tp, w.exps / tp), on.chip, BF16)
    # a latent, a compressed entry and a key-value head of several ranks are whole on each of them
    heads = {x: np.ceil(getattr(mixer, x) / tp) for x in ("n_heads", "n_kv_heads") if hasattr(mixer, x)}
    forms = layer_ops.mixing_forms(replace(mixer, **heads), on.n_tokens, p, precision=on.precision)
    time_s = reduce(np.minimum, (roofline.time_s(w, on.chip, kv) for w in forms))
    scored = layer_ops.indexing(mixer, on.n_tokens, p, precision=on.precision)
    return time_s if scored is None else time_s + roofline.time_s(scored, on.chip, kv)


def _latent_s(mixer: LatentAttention, heads: NDArray, p: NDArray, on: Step) -> NDArray[np.float64]:
    """Latent attention, expanded with the prefix expanded again, or absorbed where the engine's kernel is."""
    n, kv = on.n_tokens, on.precision.kv
    sizes = dict(kv_rank=mixer.kv_rank, d_nope=mixer.d_nope, d_rope=mixer.d_rope, d_value=mixer.d_value)
    least = latent_prefill_s(n, p, n_heads=heads, **sizes, chip=on.chip, fmt=kv, engine=on.engine, bound=True)
    if on.bound:
        return least
    calibration.needs("layer_costs", on.chip, "n_sms", "exp_per_s")
    how = dict(engine=on.engine, fmt=kv.name, transfer_from=on.transfer_from)
    numbers = calibration.fitted("layer_costs", "latent_prefill", on.chip, **how)
    absorbed = absorbs(on.engine, on.transfer_from or on.chip.name)
    d, v = (mixer.kv_rank + mixer.d_rope, mixer.kv_rank) if absorbed else (mixer.d_nope + mixer.d_rope, mixer.d_value)
    time_s = latent_prefill_form_s(
        n, 1, heads, d, v, absorbed=absorbed, chip=on.chip, fmt=kv, numbers=numbers, n_prefix=p
    )
    if not absorbed:
        width = heads * (mixer.d_nope + mixer.d_value)
        again = gemm_s(np.maximum(p, 1), mixer.kv_rank, width, fmt=on.precision.activations, **on.kernels)
        time_s = time_s + np.where(p > 0, again, 0.0)
    return np.maximum(time_s, least)
