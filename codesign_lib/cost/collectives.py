r"""Seconds of communication between GPUs: collectives of NCCL and of the engines, and their roofline.

With B the bytes of the whole buffer (what a GPU ends with in an all-gather, starts with otherwise), G ranks and L the
rate of a GPU's links in one direction, the traffic a GPU must send is w = f·B with

* all-gather, reduce-scatter, all-to-all: f = (G − 1)/G;
* all-reduce: f = 2 (G − 1)/G, or 1 + 1/G where a switch adds up inside the network, whichever is less. Measured
  all-reduces on eight H100 do beat 2 (G − 1)/G, by 4 %: in-network reduction is counted in the bound, and
  ``in_network=False`` leaves it out.

**Inside the scale-up domain**, two protocols, one fast to start and one fast when large, the quicker of which is taken:

.. math:: t = t_h \log_2 G + \min\left(t_1 + \frac{w_1}{e_1 L},\; t_2 + \frac{w_2}{e_2 L}\right)

w₁ = w₂ = w for NCCL, all-reduce at f = 2 (G − 1)/G; for an engine's own all-reduce the first is one-shot, every rank
reading all others' buffers, w₁ = (G − 1) B, and the second two-shot. Numbers of a chip, engine and operation:
``hop_s``, ``first_s``, ``first_fraction``, ``second_s``, ``second_fraction``.

**Across domains** there is the bound alone: nodes exchange over one NIC a GPU, every GPU its share.

Fitted on 2, 4 and 8 GPUs of a node (2 and 4 of a GB200 or GB300 tray); more ranks of the domain follow from the form
and are not validated. Ignored: overlap with computation, contention.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import calibration
from codesign_lib.cost.tiling import whole
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.quantities import positive

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
NCCL = "nccl"


def traffic_bytes(
    operation: str, n_bytes: ArrayLike, *, n_ranks: ArrayLike, in_network: bool = False
) -> NDArray[np.float64]:
    """Bytes a GPU sends at least: f·B of this module. ``in_network``: a switch may add up (all-reduce only).

    >>> [float(traffic_bytes(x, 800, n_ranks=8)) for x in OPERATIONS]
    [1400.0, 700.0, 700.0, 700.0]
    >>> float(traffic_bytes("all_reduce", 800, n_ranks=8, in_network=True))
    900.0
    """
    if operation not in OPERATIONS:
        raise ValueError(f"traffic_bytes: operation is {operation!r}; allowed: {', '.join(OPERATIONS)}")
    (size,), (ranks,) = positive(operation, n_bytes=n_bytes), whole(operation, n_ranks=n_ranks)
    share = (ranks - 1) / ranks
    if operation == "all_reduce":
        share = np.minimum(2 * share, np.where(ranks > 1, 1 + 1 / ranks, 0)) if in_network else 2 * share
    return size * share


def all_reduce_s(
    n_bytes: ArrayLike,
    *,
    n_ranks: ArrayLike,
    chip: Chip | str,
    engine: str = NCCL,
    bound: bool = False,
    in_network: bool = True,
    transfer_from: str | None = None,
) -> NDArray[np.float64]:
    """Seconds until ``n_ranks`` GPUs hold the sum of their buffers of ``n_bytes``. ``engine``: nccl, trtllm or sglang.

    ``in_network=False`` takes the bound without addition in the switch. ``transfer_from`` takes another chip's numbers
    with this chip's links, which must be a switch as well. Sizes broadcast; bytes above 0, ranks whole
    and at least 1 (1 takes no time), else ValueError; so are refused a chip or engine without calibration, and more
    ranks than the scale-up domain holds, for which there is ``bound=True``.

    >>> t = all_reduce_s(2**21, n_ranks=[2, 4], chip="gb300", engine="trtllm")
    >>> bool((t > all_reduce_s(2**21, n_ranks=[2, 4], chip="gb300", bound=True)).all())
    True
    """
    return _collective_s("all_reduce", n_bytes, n_ranks, chip, engine, bound, transfer_from, in_network)


def all_gather_s(
    n_bytes: ArrayLike,
    *,
    n_ranks: ArrayLike,
    chip: Chip | str,
    bound: bool = False,
    transfer_from: str | None = None,
) -> NDArray[np.float64]:
    """Seconds until every GPU holds all ``n_bytes``, of which each had its share; NCCL. See :py:func:`all_reduce_s`."""
    return _collective_s("all_gather", n_bytes, n_ranks, chip, NCCL, bound, transfer_from)


def reduce_scatter_s(
    n_bytes: ArrayLike,
    *,
    n_ranks: ArrayLike,
    chip: Chip | str,
    bound: bool = False,
    transfer_from: str | None = None,
) -> NDArray[np.float64]:
    """Seconds until every GPU holds its share of the sum of buffers of ``n_bytes``; NCCL."""
    return _collective_s("reduce_scatter", n_bytes, n_ranks, chip, NCCL, bound, transfer_from)


def all_to_all_s(
    n_bytes: ArrayLike,
    *,
    n_ranks: ArrayLike,
    chip: Chip | str,
    bound: bool = False,
    transfer_from: str | None = None,
) -> NDArray[np.float64]:
    """Seconds until every GPU has sent each other its share of a buffer of ``n_bytes``; NCCL.

    >>> per_rank = all_to_all_s(2**30, n_ranks=[2, 4, 8], chip="h200_sxm", bound=True)
    >>> bool((per_rank[1:] > per_rank[:-1]).all())              # 1 − 1/G: hardly grows
    True
    """
    return _collective_s("all_to_all", n_bytes, n_ranks, chip, NCCL, bound, transfer_from)


def point_to_point_s(n_bytes: ArrayLike, *, chip: Chip | str, across: bool = False) -> NDArray[np.float64]:
    """Seconds a message takes at least, over one pair's link or, ``across`` domains, one NIC. No table measures it.

    >>> float(point_to_point_s(900e9, chip="gb300")), float(point_to_point_s(50e9, chip="h100_sxm", across=True))
    (1.0, 1.0)
    """
    (size,), c = positive("point_to_point_s", n_bytes=n_bytes), as_chip(chip)
    return size / (_nic(c, "point_to_point_s") if across else c.link_peer_bytes_per_s)


def bound_s(
    operation: str, n_bytes: ArrayLike, *, n_ranks: ArrayLike, chip: Chip | str, in_network: bool = True
) -> NDArray[np.float64]:
    """Seconds an operation takes at least: the links of the domain, and the NICs where ranks are in several domains.

    Between N domains of g GPUs each GPU's NIC carries 1/g of what a domain must send: (N − 1)/N of the buffer, twice
    for an all-reduce; in an all-to-all (1 − g/G) of each GPU's own. Ranks beyond one domain fill whole domains.
    """
    c = as_chip(chip)
    (size,), (ranks,) = positive(operation, n_bytes=n_bytes), whole(operation, n_ranks=n_ranks)
    inside = np.minimum(ranks, c.n_scale_up)
    switch = in_network and c.link_topology == "switch"
    link = traffic_bytes(operation, size, n_ranks=inside, in_network=switch) / c.link_bytes_per_s
    if not np.any(ranks > c.n_scale_up):
        return link
    domains = np.ceil(ranks / c.n_scale_up)
    out = size * (domains - 1) / domains
    if operation != "all_to_all":
        out = out * (2 if operation == "all_reduce" else 1) / c.n_scale_up
    return np.maximum(link, out / _nic(c, operation))


def _collective_s(
    operation: str, n_bytes, n_ranks, chip, engine: str, bound: bool, transfer_from: str | None, in_network: bool = True
) -> NDArray[np.float64]:
    subject, c = f"{operation}_s", as_chip(chip)
    (size,), (ranks,) = positive(subject, n_bytes=n_bytes), whole(subject, n_ranks=n_ranks)
    least = bound_s(operation, size, n_ranks=ranks, chip=c, in_network=in_network)
    if calibration.wants_bound(subject, bound, transfer_from):
        return least
    if np.any(ranks > c.n_scale_up):
        raise ValueError(
            f"{subject}: n_ranks is {np.max(ranks):g}; allowed: up to {c.n_scale_up}, the scale-up domain of "
            f"{c.title}, or bound=True (the roofline)"
        )
    numbers = calibration.fitted(subject, operation, c, engine, "any", transfer_from=transfer_from)
    if transfer_from is not None and c.link_topology != "switch":
        raise ValueError(
            f"{subject}: {c.title} has links in a {c.link_topology}; allowed with transfer_from: a switch, which all "
            "calibrated chips have, or bound=True (the roofline)"
        )
    how = dict(link_bytes_per_s=c.link_bytes_per_s, engine=engine, numbers=numbers)
    return np.maximum(form_s(operation, size, ranks, **how), least)[()]


def form_s(operation: str, size: NDArray, ranks: NDArray, *, link_bytes_per_s: float, engine: str, numbers) -> NDArray:
    """The form with any numbers: what the functions here evaluate and ``tools/calibrate_collectives.py`` fits."""
    two = traffic_bytes(operation, size, n_ranks=ranks)
    one = two if engine == NCCL else size * (ranks - 1)
    first = numbers["first_s"] + one / (numbers["first_fraction"] * link_bytes_per_s)
    second = numbers["second_s"] + two / (numbers["second_fraction"] * link_bytes_per_s)
    return np.where(ranks > 1, numbers["hop_s"] * np.log2(ranks) + np.minimum(first, second), 0.0)


def dispatch_bytes(
    n_tokens: ArrayLike, *, ep: ArrayLike, d_model: ArrayLike, n_chosen: ArrayLike, bytes_per_element: ArrayLike = 2.0
) -> NDArray[np.float64]:
    r"""Bytes in which a rank's tokens reach their experts by all-to-all: :math:`m \min(\text{EP}, c)\,H\,b`.

    A token goes once to each rank that has one of its c experts, its own included. An all-gather takes it to every
    rank, :math:`m\,\text{EP}\,H\,b`: more as soon as EP > c. The way back, combine against reduce-scatter, is the same.
    Source: TensorRT-LLM, technical blog 18.

    >>> per_rank = dispatch_bytes(2048, ep=[4, 8, 64], d_model=7168, n_chosen=8)
    >>> (2048 * 7168 * 2 * np.array([4, 8, 64]) / per_rank).tolist()       # all-gather over all-to-all
    [1.0, 1.0, 8.0]
    """
    m, ep, h, c = whole("dispatch_bytes", n_tokens=n_tokens, ep=ep, d_model=d_model, n_chosen=n_chosen)
    (width,) = positive("dispatch_bytes", bytes_per_element=bytes_per_element)
    return m * np.minimum(ep, c) * h * width


def moe_all_to_all_s(
    n_tokens: ArrayLike,
    *,
    phase: str,
    ep: int,
    d_model: ArrayLike = 7168,
    n_chosen: ArrayLike = 8,
    bytes_per_element: ArrayLike = 2.0,
    chip: Chip | str = "gb200",
) -> NDArray[np.float64]:
    r"""Seconds of TensorRT-LLM's one-sided dispatch or combine of ``n_tokens`` a rank over ``ep`` GPUs of the domain.

    .. math:: t = \max\left(t_0,\; t_1 + \frac{m \min(\text{EP}, c)\,H\,b}{W}\right)

    Below a few hundred tokens it is the floor, many times the bound. Published for GB200 at EP 8, 16, 32 and 64; any
    other is refused, as is another phase than dispatch and combine.

    >>> floor, large = moe_all_to_all_s([1, 2048], phase="dispatch", ep=8)
    >>> bool(floor < 25e-6 and large > 250e-6)
    True
    """
    subject = "moe_all_to_all_s"
    m, h, c = whole(subject, n_tokens=n_tokens, d_model=d_model, n_chosen=n_chosen)
    (width,) = positive(subject, bytes_per_element=bytes_per_element)
    if phase not in ("dispatch", "combine"):
        raise ValueError(f"{subject}: phase is {phase!r}; allowed: dispatch, combine")
    numbers = calibration.fitted(subject, f"moe_{phase}", chip, "trtllm", f"ep{ep}")
    moved = dispatch_bytes(m, ep=ep, d_model=h, n_chosen=c, bytes_per_element=width)
    return np.maximum(numbers["floor_s"], numbers["offset_s"] + moved / numbers["moved_bytes_per_s"])


def _nic(c: Chip, subject: str) -> float:
    if c.scale_out_bytes_per_s is None:
        raise ValueError(f"{subject}: {c.title} has no scale_out_bytes_per_s: its NIC rate is not public")
    return c.scale_out_bytes_per_s
