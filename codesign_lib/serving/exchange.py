r"""What the GPUs of a layout send each other in a layer of a step: seconds from measured collectives, or the bound.

T tokens are in the step of one stage, :math:`T_r = T/\text{dp}` of them in each replica of R GPUs. BF16 vectors of the
model's size d travel, except where said.

* After attention: an all-reduce of :math:`T_r d` in the replica. Under kvp before it an all-to-all of every GPU's
  partial outputs with their log-sum-exp, whose size does not depend on the context.
* Dense FFN over g GPUs: an all-reduce where g is the replica; where g spans replicas their tokens are gathered before
  and scattered and gathered back after.
* Routed experts: where dp is 1 every GPU has all tokens and an all-reduce ends the layer. Else the faster of two: a
  *dispatch* of each token (in the activations' format) to the GPUs of its experts and a *combine* back, or an
  all-gather and a reduce-scatter of all tokens. Shared experts are reduced along.
* Embedding and head: an all-reduce, and an all-gather of the logits, in the replica. Between stages: one message.

Dispatch and combine follow TensorRT-LLM's one-sided kernels, published for GB200 at EP 8 to 64: on chips with the same
links (NVLink 5) its three numbers are interpolated in log₂ EP and held at the ends; elsewhere it is NCCL's all-to-all.
Inside the scale-up domain the collectives are measured, or follow from what is: TensorRT-LLM's all-reduce between the
trays of a GB200 rack from a GB300's, NCCL's from rings of up to eight. **Beyond it nothing is**: to the time of one
full domain the bound of the NICs is added, a guess that flatters. Ignored: overlap with computation (but HOP-B's, in
``decode``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import calibration, collectives
from codesign_lib.cost.ops import moe
from codesign_lib.serving.helix import STATISTICS_BYTES
from codesign_lib.serving.layout import Layout
from codesign_lib.specs.formats import BF16, Format
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.hf_config.fields import Ffn

ONE_SIDED = ("gb200", "gb300", "b200_sxm", "b300_sxm")
"""Chips with the links of the one on which one-sided dispatch and combine were published."""
ONE_SIDED_EP = (8, 16, 32, 64)
RACK_NUMBERS = {"gb200": "gb300"}
"""Whose multi-node all-reduce stands for that of a rack which nobody measured but has the same links."""
_VECTOR = BF16.bytes_per_element


@dataclass(frozen=True, kw_only=True)
class Network:
    """The links of a chip as an engine uses them, with ``transfer_from`` another chip's numbers, or their ``bound``."""

    chip: Chip
    engine: str = "trtllm"
    bound: bool = False
    transfer_from: str | None = None

    def all_reduce_s(self, n_bytes: ArrayLike, n_ranks: ArrayLike) -> NDArray[np.float64]:
        """Seconds of one all-reduce, TensorRT-LLM's between the trays of a GB200 rack with a GB300's numbers."""
        ranks, tray = np.asarray(n_ranks, np.float64), collectives.node_ranks(self.chip)
        other = RACK_NUMBERS.get(self.transfer_from or self.chip.name)
        if self.bound or self.engine != "trtllm" or other is None or np.all(ranks <= tray):
            return self._collective_s("all_reduce", n_bytes, ranks, engine=self.engine)
        inside = self._collective_s("all_reduce", n_bytes, np.minimum(ranks, tray), engine=self.engine)
        between = replace(self, transfer_from=other)._collective_s("all_reduce", n_bytes, ranks, engine=self.engine)
        return np.where(ranks > tray, between, inside)

    def all_gather_s(self, n_bytes: ArrayLike, n_ranks: ArrayLike) -> NDArray[np.float64]:
        """Seconds of one all-gather."""
        return self._collective_s("all_gather", n_bytes, n_ranks)

    def reduce_scatter_s(self, n_bytes: ArrayLike, n_ranks: ArrayLike) -> NDArray[np.float64]:
        """Seconds of one reduce-scatter."""
        return self._collective_s("reduce_scatter", n_bytes, n_ranks)

    def all_to_all_s(self, n_bytes: ArrayLike, n_ranks: ArrayLike) -> NDArray[np.float64]:
        """Seconds of one all-to-all."""
        return self._collective_s("all_to_all", n_bytes, n_ranks)

    def _collective_s(self, operation: str, n_bytes: ArrayLike, n_ranks: ArrayLike, **how) -> NDArray[np.float64]:
        ranks = np.asarray(n_ranks, np.float64)
        if np.all(ranks == 1):
            return np.zeros(np.broadcast_shapes(np.shape(n_bytes), ranks.shape))
        if self.bound:
            return collectives.bound_s(operation, n_bytes, n_ranks=ranks, chip=self.chip)
        domain = self.chip.n_scale_up
        inside = getattr(collectives, f"{operation}_s")(
            n_bytes, n_ranks=np.minimum(ranks, domain), chip=self.chip, transfer_from=self.transfer_from, **how
        )
        if np.all(ranks <= domain):
            return inside
        beyond = collectives.bound_s(operation, n_bytes, n_ranks=np.maximum(ranks, domain + 1), chip=self.chip)
        return inside + np.where(ranks > domain, beyond, 0.0)


def merge_s(n_sequences: ArrayLike, n_heads: ArrayLike, d_value: float, *, layout: Layout, on: Network):
    """Seconds of the all-to-all among kvp ranks before the output projection: ``n_heads`` partial outputs a GPU.

    >>> from codesign_lib.specs import hardware
    >>> gb200 = Network(chip=hardware.chip("gb200"))
    >>> float(merge_s(8, 16, 128, layout=Layout(tp_attention=8, tp_ffn=8), on=gb200))     # nothing to merge
    0.0
    """
    payload = n_sequences * n_heads * (_VECTOR * d_value + STATISTICS_BYTES)
    return on.all_to_all_s(payload, layout.kvp)


def dense_s(
    n_tokens: ArrayLike, d_model: int, *, layout: Layout, n_ranks: ArrayLike, on: Network
) -> NDArray[np.float64]:
    """Seconds around a dense FFN that ``n_ranks`` GPUs divide, for ``n_tokens`` of all replicas.

    >>> from codesign_lib.specs import hardware
    >>> on = Network(chip=hardware.chip("gb200"), bound=True)
    >>> tp, mixed = Layout(tp_attention=8, tp_ffn=8), Layout(tp_attention=2, dp=4, tp_ffn=8)
    >>> bool(dense_s(64, 8192, layout=tp, n_ranks=8, on=on) < dense_s(64, 8192, layout=mixed, n_ranks=8, on=on))
    True
    """
    replica, ranks = (np.asarray(x, np.float64) for x in (layout.n_replica, n_ranks))
    own = _VECTOR * d_model * np.ceil(n_tokens / layout.dp)
    group = _VECTOR * d_model * np.maximum(1, n_tokens * (ranks / layout.n_stage))
    reduce = on.all_reduce_s(own, replica)
    if np.all(ranks == replica):
        return reduce
    spans = np.maximum(ranks / replica, 1)
    back = on.reduce_scatter_s(group, ranks) + on.all_gather_s(own, replica)
    return np.where(ranks > replica, on.all_gather_s(group, spans) + back, reduce)


def experts_s(
    n_tokens: ArrayLike, ffn: Ffn, d_model: int, *, layout: Layout, activations: Format, routing: str, on: Network
) -> NDArray[np.float64]:
    """Seconds around routed (and shared) experts, for ``n_tokens`` of all replicas: the faster of the ways above."""
    stage = np.asarray(layout.n_stage, np.float64)
    gathered = dense_s(n_tokens, d_model, layout=layout, n_ranks=stage, on=on)
    dp = np.asarray(layout.dp)
    if np.all(dp == 1):
        return gathered
    replica = np.asarray(layout.n_replica, np.float64)
    own = _VECTOR * d_model * np.ceil(n_tokens / dp)
    back = on.all_gather_s(own, replica)
    if ffn.d_shared:
        shared = dense_s(n_tokens, d_model, layout=layout, n_ranks=layout.n_dense_ranks, on=on)
        back = np.where(np.asarray(layout.n_dense_ranks) > replica, back + shared, shared)
    sent = dispatch_combine_s(n_tokens, ffn, d_model, layout=layout, activations=activations, routing=routing, on=on)
    return np.where(dp > 1, np.minimum(gathered, sent + back), gathered)


def dispatch_combine_s(
    n_tokens: ArrayLike, ffn: Ffn, d_model: int, *, layout: Layout, activations: Format, routing: str, on: Network
) -> NDArray[np.float64]:
    """Seconds of dispatch and combine when each GPU of the stage sends its share of ``n_tokens`` to their experts."""
    stage, ep = np.asarray(layout.n_stage, np.float64), np.asarray(layout.ep, np.float64)
    chosen, width = float(ffn.n_active_experts), ffn.d_latent or d_model
    here = np.ceil(n_tokens / stage)
    share = 1.0
    if routing == "skewed":
        held = np.ceil(ffn.n_experts / ep)
        sizes = dict(n_experts=held * ep, n_chosen=chosen, n_ranks=ep)
        share = moe.busiest_share(np.ceil(n_tokens), **sizes, routing=routing)
    # Copies of a token: at most one an expert-parallel group, in each to all that divide the expert's width.
    groups = ep * (1 - (1 - 1 / ep) ** chosen) if on.bound else np.minimum(ep, chosen)
    moved = here * groups * layout.tp_ffn * width * share
    total = np.zeros(np.broadcast_shapes(np.shape(moved), stage.shape))
    for phase, size in (("dispatch", activations.bytes_per_element), ("combine", _VECTOR)):
        if on.bound or (on.transfer_from or on.chip.name) not in ONE_SIDED:
            total = total + on.all_to_all_s(moved * size, stage)
        else:
            floor_s, offset_s, second = _one_sided(phase, stage, on.chip)
            seconds = np.maximum(floor_s, offset_s + second * moved * size)
            beyond = 0.0
            if np.any(stage > on.chip.n_scale_up):
                ranks = np.maximum(stage, on.chip.n_scale_up + 1)
                beyond = collectives.bound_s("all_to_all", moved * size, n_ranks=ranks, chip=on.chip)
            total = total + seconds + np.where(stage > on.chip.n_scale_up, beyond, 0.0)
    return np.where(stage > 1, total, 0.0)


def _one_sided(phase: str, ranks: NDArray, chip: Chip) -> tuple[NDArray, NDArray, NDArray]:
    """Floor, offset and seconds a byte, between the published numbers of ranks."""
    numbers = [calibration.find(f"moe_{phase}", "gb200", "trtllm", f"ep{ep}").numbers for ep in ONE_SIDED_EP]
    at, known = np.log2(ranks), np.log2(ONE_SIDED_EP)
    floor, offset = (np.interp(at, known, [x[name] for x in numbers]) for name in ("floor_s", "offset_s"))
    slower = as_chip("gb200").link_bytes_per_s / chip.link_bytes_per_s
    return floor, offset, slower * np.interp(at, known, [1 / x["moved_bytes_per_s"] for x in numbers])


def embedding_s(n_tokens: ArrayLike, d_model: int, *, layout: Layout, on: Network) -> NDArray[np.float64]:
    """Seconds after the embedding, for ``n_tokens`` of one replica, which its GPUs divide by vocabulary."""
    return on.all_reduce_s(_VECTOR * d_model * n_tokens, layout.n_replica)


def logits_s(n_tokens: ArrayLike, n_vocab: int, *, layout: Layout, on: Network) -> NDArray[np.float64]:
    """Seconds after the head, for ``n_tokens`` of one replica, which its GPUs divide by vocabulary."""
    return on.all_gather_s(_VECTOR * n_vocab * n_tokens, layout.n_replica)


def hand_over_s(n_tokens: ArrayLike, d_model: int, *, layout: Layout, on: Network) -> NDArray[np.float64]:
    """Seconds between the stages of a pipeline, all its hand-overs: ``n_tokens`` of one replica.

    Every GPU sends to its counterpart in the next stage: over the links of the scale-up domain, or where the next stage
    is in another one (:py:func:`domain_stages`) over a NIC, of which only the bound is known.
    """
    pp = np.asarray(layout.pp, np.float64)
    if np.all(pp == 1):
        return np.zeros(np.broadcast_shapes(np.shape(n_tokens), pp.shape))
    size, across = _VECTOR * d_model * n_tokens, (pp - 1) // domain_stages(layout, on.chip)
    how = dict(bound=True) if on.bound else dict(transfer_from=on.transfer_from)
    total = (pp - 1 - across) * collectives.point_to_point_s(size, chip=on.chip, **how)
    if np.any(across):
        total = total + across * collectives.point_to_point_s(size, chip=on.chip, across=True, bound=True)
    return total


def domain_stages(layout: Layout, chip: Chip) -> NDArray[np.float64]:
    """Stages of a pipeline in one scale-up domain: as many whole ones as fit, and one where it is larger than that.

    No stage is spread over two domains that could be in one, as its collectives are the ones that count; GPUs left over
    do not belong to the instance. Hand-over i (from 1) leaves a domain where i is a multiple of the result.

    >>> from codesign_lib.specs import hardware
    >>> domain_stages(Layout(dp=[3, 5, 8, 16], ep=[3, 5, 8, 16], pp=4), hardware.chip("h200_sxm"))      # eight GPUs
    array([2., 1., 1., 1.])
    """
    return np.maximum(chip.n_scale_up // np.asarray(layout.n_stage, np.float64), 1)
