r"""Seconds of what decoding and prefill share: linear layers and feed-forward blocks of one layer on a layout's GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codesign_lib.cost import ops, roofline
from codesign_lib.cost.kernels import gemm_s
from codesign_lib.cost.moe_kernels import moe_s
from codesign_lib.serving import exchange, shards
from codesign_lib.serving.exchange import Network
from codesign_lib.serving.layout import Layout
from codesign_lib.specs.formats import BF16, Precision
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hf_config.fields import Ffn, Layer


@dataclass(frozen=True, kw_only=True)
class Step:
    """What every part of a step needs to know.

    ``n_tokens`` are those of one replica of attention, ``n_each`` of each of ``n_sequences`` sequences;
    ``n_all_tokens`` those of all replicas of the stage. With ``bound`` everything is its roofline.
    """

    chip: Chip
    precision: Precision
    engine: str
    bound: bool
    transfer_from: str | None
    routing: str
    layout: Layout
    n_tokens: NDArray[np.float64]
    n_all_tokens: NDArray[np.float64]
    n_sequences: NDArray[np.float64]
    n_each: NDArray[np.float64]

    @property
    def network(self) -> Network:
        """The links that its collectives run over."""
        return Network(**self.kernels)

    @property
    def kernels(self) -> dict[str, object]:
        """What every kernel takes, chip, engine and whose numbers."""
        return dict(chip=self.chip, engine=self.engine, bound=self.bound, transfer_from=self.transfer_from)


def linear_s(x: shards.Shard, n_tokens: NDArray[np.float64], on: Step) -> NDArray[np.float64]:
    """Seconds of one linear layer's slice for so many tokens; heads and routers take inputs in their own format."""
    p = on.precision
    weights = shards.format_of(x.of, p)
    inputs = weights if x.of.kind == "head" or x.of.kind in shards.IN_BF16 else p.activations
    n = x.n * x.count  # equal matrices side by side are one launch
    if on.bound:
        return roofline.time_s(
            ops.linear(n_tokens, x.k, n, inputs=inputs, weights=weights, outputs=BF16), on.chip, inputs
        )
    if weights.peak != inputs.peak:
        raise ValueError(
            f"linear_s: no calibrated kernel multiplies {inputs.name} activations by {weights.name} weights; "
            "allowed: both in one format, or bound=True (the roofline)"
        )
    return gemm_s(n_tokens, x.k, n, fmt=weights, **on.kernels)


def rest_s(rest: Layer, d_model: int, on: Step) -> NDArray[np.float64]:
    """Seconds of the linear layers of what is neither mixer nor FFN.

    Equal ones stand before the mixer and before the FFN: not one launch.
    """
    found = shards.rest_shards(rest, d_model)
    return sum((x.count * linear_s(x._replace(count=1), on.n_tokens, on) for x in found), np.zeros(()))


class FfnTime(NamedTuple):
    """Seconds of one feed-forward block: dense products (shared experts, router), routed experts, communication."""

    dense_s: NDArray[np.float64]
    experts_s: NDArray[np.float64]
    communication_s: NDArray[np.float64]


def ffn_s(ffn: Ffn, d_model: int, on: Step) -> FfnTime:
    """Seconds of one feed-forward block by part.

    Dense weights see the tokens of all replicas that their GPUs serve, routed experts those of the whole stage.
    """
    layout, m, ranks = on.layout, on.n_tokens, np.asarray(on.layout.n_dense_ranks, np.float64)
    shared = np.minimum(on.n_all_tokens, m * np.maximum(ranks / layout.n_replica, 1))
    dense = 0.0
    for x in shards.ffn_shards(ffn, d_model, layout):
        if x.of.kind and x.of.kind != "expert":
            dense = dense + linear_s(x, np.ceil(shared) if x.of.kind in ("ffn", "shared_expert") else m, on)
    if not ffn.n_experts:
        sent = exchange.dense_s(on.n_all_tokens, d_model, layout=layout, n_ranks=ranks, on=on.network)
        return FfnTime(dense, np.zeros(()), sent)
    ep, fmt = np.asarray(layout.ep, np.float64), on.precision.experts or on.precision.weights
    computing = ffn.n_experts / (ffn.n_experts + ffn.n_idle_experts)  # the others of a token's choices do nothing
    experts = moe_s(
        np.ceil(on.n_all_tokens * computing), d_model=ffn.d_latent or d_model, d_expert=ffn.d_expert,
        n_experts=np.ceil(ffn.n_experts / ep) * ep, n_chosen=ffn.n_active_experts, ep=ep, tp=layout.tp_ffn,
        gated=ffn.gated, fmt=fmt, routing=on.routing, **on.kernels,
    )  # fmt: skip
    how = dict(layout=layout, activations=on.precision.activations, routing=on.routing, on=on.network)
    return FfnTime(dense, experts, exchange.experts_s(on.n_all_tokens, ffn, d_model, **how))
