"""What of a model must divide by which ranks: the rules, with sizes, that a layout is held against."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.tiling import whole
from codesign_lib.specs.formats import FP8_BLOCK, Format, Precision
from codesign_lib.specs.hf_config.fields import Attention, CompressedAttention, Recurrent
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model


class Rule(NamedTuple):
    """``size`` elements over ``ranks``, an axis or property of ``Layout``, whose number must obey ``kind``.

    ``divides``: it divides the size, and leaves each rank a multiple of ``block``; ``copies``: either divides the
    other; ``at most``: it is not above the size.
    """

    what: str
    size: int
    ranks: str
    kind: str
    block: int = 1

    def holds(self, n_ranks: ArrayLike) -> NDArray[np.bool_]:
        """Whether so many ranks obey it."""
        r = np.asarray(n_ranks)
        if self.kind == "at most":
            return r <= self.size
        divides = (self.size % r == 0) & (r <= self.size)
        if self.kind == "copies":
            return divides | (r % self.size == 0)
        return divides & ((self.size // np.minimum(r, self.size)) % self.block == 0) | (r == 1)

    def formula(self, r: int) -> str:
        """The arithmetic that fails at r ranks."""
        if self.kind == "at most":
            return f"{r:,} > {self.size:,}"
        if self.size % r or self.kind == "copies":
            other = f", {r:,} % {self.size:,} = {r % self.size:,}" if self.kind == "copies" else ""
            return f"{self.size:,} % {r:,} = {self.size % r:,}{other}"
        each = self.size // r
        return f"{self.size:,} / {r:,} = {each:,}, {each:,} % {self.block:,} = {each % self.block:,}"

    def nearest(self, r: int) -> tuple[int, ...]:
        """The nearest numbers of ranks below and above r that obey it."""
        below = next((x for x in range(min(r, self.size) - (r <= self.size), 0, -1) if self.holds(x)), None)
        above = next((x for x in range(r + 1, max(self.size, r) + self.size + 1) if self.holds(x)), None)
        return tuple(x for x in (below, above) if x is not None)


def _mixers(model: Model) -> list:
    return list(dict.fromkeys(m for layer in model.config.layers for m in layer.mixers))


@lru_cache(maxsize=256)
def rules(model: Model, precision: Precision | None, copies: bool) -> tuple[Rule, ...]:
    """Every rule of a model; ``precision`` and ``copies`` as in :py:func:`codesign_lib.serving.layout.violations`."""
    shared = "copies" if copies else "divides"
    block = _block(precision.weights) if precision else 1
    expert_block = _block(precision.experts or precision.weights) if precision else 1
    found = [Rule("vocabulary", model.config.n_vocab, "n_replica", "divides")]
    for m in _mixers(model):
        if isinstance(m, Recurrent):
            found.append(Rule("recurrent heads", m.n_heads or m.n_conv, "tp_attention", "divides"))
            if m.n_key_heads:
                found.append(Rule("recurrent key heads", m.n_key_heads, "tp_attention", shared))
            continue
        found.append(Rule("query heads", m.n_heads, "tp_attention", "divides"))
        if not (copies or isinstance(m, Attention)):  # one latent, which every rank would hold
            found.append(Rule("latent heads", 1, "tp_attention", "at most"))
        if isinstance(m, CompressedAttention):
            found.append(Rule("attention width", m.n_heads * m.d_head, "tp_attention", "divides"))
            found.append(Rule("output groups", m.n_out_groups, "tp_attention", "copies"))
            found.append(Rule("attention output", m.n_out_groups * m.out_rank, "n_replica", "divides", block))
            continue
        found.append(Rule("attention output", m.n_heads * m.d_value, "n_replica", "divides", block))
        if isinstance(m, Attention):
            found.append(Rule("key-value heads", m.n_kv_heads, "tp_attention", shared))
    ffns = dict.fromkeys(f for layer in model.config.layers for f in layer.ffns)
    for f in ffns:
        if f.d_dense:
            found.append(Rule("FFN width", f.d_dense, "n_dense_ranks", "divides", block))
        if f.n_experts:
            found.append(Rule("experts", f.n_experts, "ep", "at most" if copies else "divides"))
            found.append(Rule("expert width", f.d_expert, "tp_ffn", "divides", expert_block))
        if f.d_shared:
            found.append(Rule("shared expert width", f.d_shared, "n_dense_ranks", "divides", block))
    if not any(f.n_experts for f in ffns):
        found.append(Rule("experts", 1, "ep", "at most"))
    found.append(Rule("layers", model.n_layers, "pp", "at most"))
    return tuple(dict.fromkeys(found))


def _block(fmt: Format) -> int:
    """Elements along a product's inner size that share a scale."""
    return 128 if fmt == FP8_BLOCK else fmt.block_elements


def dcp_allowed(model: Model | str, *, tp: ArrayLike, dcp: ArrayLike) -> NDArray[np.bool_]:
    """Whether vLLM lets ``dcp`` ranks of a tensor-parallel group of ``tp`` divide the context (decode context
    parallelism).

    dcp divides tp. With K grouped key-value heads it is also at most tp // K, the copies there are of each, and divides
    the query heads of one. In a ``Layout`` that is kvp = dcp and tp_attention = tp / dcp, so with K heads
    tp_attention ≥ K. Source: vLLM, checks of its ``ModelConfig`` and docs/serving/context_parallel_deployment.md.

    >>> dcp_allowed("llama_3_1_70b", tp=16, dcp=[1, 2, 4]).tolist()
    [True, True, False]
    >>> dcp_allowed("deepseek_r1", tp=8, dcp=[3, 8]).tolist()
    [False, True]
    """
    tp, dcp = whole("dcp_allowed", tp=tp, dcp=dcp)
    allowed = tp % dcp == 0
    for m in _mixers(as_model(model)):
        if isinstance(m, Attention):
            grouped = (dcp <= tp // m.n_kv_heads) & (m.n_heads // m.n_kv_heads % dcp == 0)
            allowed = allowed & (grouped | (dcp == 1))
    return allowed
