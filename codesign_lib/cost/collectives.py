r"""Seconds of communication between GPUs: collectives of NCCL and of the engines, and their roofline.

With B the bytes of the whole buffer (what a GPU ends with in an all-gather, starts with otherwise), G ranks and L the
rate of a GPU's links in one direction, the traffic a GPU must send is w = f·B with

* all-gather, reduce-scatter, all-to-all: f = (G − 1)/G;
* all-reduce: f = 2 (G − 1)/G, or 1 + 1/G where a switch adds up inside the network, whichever is less. Measured
  all-reduces on eight H100 do beat 2 (G − 1)/G, by 4 %: in-network reduction is counted in the bound, and
  ``in_network=False`` leaves it out.

**Inside the scale-up domain**, NCCL has protocols that are fast to start and ones that are fast when large. Two are
modelled; the fourth power rounds the corner where those between them are quicker:

.. math:: t = t_h\,(G - 1) + \left(a^{-4} + b^{-4}\right)^{-1/4}, \quad a = t_1 + \frac{w'}{e_1 L}, \quad
          b = t_2 + \frac{w'}{e_2 L}, \quad w' = \frac{G - 1 + \sigma}{G - 1}\,w

with :math:`G - 1` steps of a ring, and σ how much of the work that a byte sent takes a rank's own share takes
(``own_fraction``), which is copied and, by a switch's multicast, sent to its owner too.

An engine's own all-reduce is one-shot, every rank reading all others' buffers, or two-shot, whichever is quicker:

.. math:: t = t_h \log_2 G + \min\left(t_1 + \frac{(G - 1) B}{e_1 L},\; t_2 + \frac{w}{e_2 L}\right)

Numbers of a chip, engine and operation: ``hop_s``, ``first_s``, ``first_fraction``, ``second_s``,
``second_fraction``, NCCL's all-reduce at f = 2 (G − 1)/G. The all-to-all's ``first_fraction``, 0.01 to 0.03, says how
the protocol that starts fast grows until the other takes over, and is no efficiency of links. In a rack of trays of
four GPUs engines take other kernels between trays: TensorRT-LLM its multi-node ones (numbers of their own, from 8 and
16 GPUs of a GB300), SGLang NCCL. **Across domains** there is the bound alone: nodes exchange over one NIC a GPU.

Fitted on 2, 4 and 8 GPUs of a node (2 and 4 of a tray). SGLang's times on 8 and 16 GPUs of a GB300 rack, which no fit
saw, show how far NCCL's numbers reach (``tools/validate_collectives.py``). Ignored: overlap, contention.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import calibration, experts
from codesign_lib.cost.tiling import whole
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.quantities import common_shape, flags, positive

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
NCCL = "nccl"
BETWEEN_TRAYS = "all_reduce_rack"
"""Kernel whose numbers an engine's all-reduce has beyond one tray of a rack."""


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
    (:py:func:`codesign_lib.cost.calibration.fitted`) with this chip's links, which must be behind a switch as well.
    Sizes broadcast; bytes above 0, ranks whole and at least 1 (1 takes no time), else ValueError; so are refused a chip
    or engine without calibration, and more ranks than the scale-up domain holds, for which there is ``bound=True``.

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


def point_to_point_s(
    n_bytes: ArrayLike,
    *,
    chip: Chip | str,
    across: bool = False,
    bound: bool = False,
    transfer_from: str | None = None,
) -> NDArray[np.float64]:
    """Seconds a message takes from one GPU to another, by NCCL: an all-to-all of two ranks and twice the bytes, sends
    and receives in both directions at once, so no faster than one message. No table measures one alone.

    ``bound=True`` is the rate of a pair's link, or of one NIC ``across`` domains, where there is nothing else.

    >>> float(point_to_point_s(900e9, chip="gb300", bound=True))
    1.0
    >>> float(point_to_point_s(50e9, chip="h100_sxm", across=True, bound=True))
    1.0
    """
    subject = "point_to_point_s"
    flags(subject, across=across)
    (size,), c = positive(subject, n_bytes=n_bytes), as_chip(chip)
    least = size / (_nic(c, subject) if across else c.link_peer_bytes_per_s)
    if calibration.wants_bound(subject, "all_to_all", NCCL, bound, transfer_from):
        return least
    if across:
        raise ValueError(f"{subject}: across domains nothing is calibrated; allowed: bound=True (the roofline)")
    return np.maximum(_collective_s("all_to_all", 2 * size, 2, c, NCCL, False, transfer_from, subject=subject), least)


def bound_s(
    operation: str, n_bytes: ArrayLike, *, n_ranks: ArrayLike, chip: Chip | str, in_network: bool = True
) -> NDArray[np.float64]:
    """Seconds an operation takes at least: the links of the domain, and the NICs where ranks are in several domains.

    Inside a domain G ranks of a mesh or torus have at most G − 1 links to each other. Between N domains of g GPUs each
    GPU's NIC carries 1/g of what a domain must send: (N − 1)/N of the buffer, twice for an all-reduce; in an all-to-all
    (N − 1)/N of each GPU's own. Ranks beyond one domain are spread evenly over as few domains as hold them.
    """
    flags(operation, in_network=in_network)
    c = as_chip(chip)
    (size,), (ranks,) = positive(operation, n_bytes=n_bytes), whole(operation, n_ranks=n_ranks)
    inside = np.minimum(ranks, c.n_scale_up)
    switch = in_network and c.link_topology == "switch"
    rate = np.minimum(c.link_bytes_per_s, np.maximum(inside - 1, 1) * c.link_peer_bytes_per_s)
    link = traffic_bytes(operation, size, n_ranks=inside, in_network=switch) / rate
    if not np.any(ranks > c.n_scale_up):
        return link
    domains = np.ceil(ranks / c.n_scale_up)
    out = size * (domains - 1) / domains
    if operation != "all_to_all":
        out = out * (2 if operation == "all_reduce" else 1) / c.n_scale_up
    return np.maximum(link, out / _nic(c, operation))


def _collective_s(
    operation: str,
    n_bytes,
    n_ranks,
    chip,
    engine: str,
    bound: bool,
    transfer_from: str | None,
    in_network: bool = True,
    subject: str = "",
) -> NDArray[np.float64]:
    subject, c = subject or f"{operation}_s", as_chip(chip)
    (size,), (ranks,) = positive(subject, n_bytes=n_bytes), whole(subject, n_ranks=n_ranks)
    common_shape(subject, n_bytes=size, n_ranks=ranks)
    least = bound_s(operation, size, n_ranks=ranks, chip=c, in_network=in_network)
    if calibration.wants_bound(subject, operation, engine, bound, transfer_from):
        return least
    if np.any(ranks > c.n_scale_up):
        raise ValueError(
            f"{subject}: n_ranks is {np.max(ranks):g}; allowed: up to {c.n_scale_up}, the scale-up domain of "
            f"{c.title}, or bound=True (the roofline)"
        )
    if transfer_from is not None and c.link_topology != "switch":
        raise ValueError(
            f"{subject}: the links of {c.title} are a {c.link_topology}; allowed with transfer_from: a switch, as all "
            "calibrated chips have, or bound=True (the roofline)"
        )

    def time_s(kernel: str, engine: str) -> NDArray[np.float64]:
        who = subject if kernel == operation else f"{subject}, n_ranks above the {node_ranks(c)} of a tray"
        numbers = calibration.fitted(who, kernel, c, engine, "any", transfer_from=transfer_from)
        return form_s(operation, size, ranks, link_bytes_per_s=c.link_bytes_per_s, engine=engine, numbers=numbers)

    found = time_s(operation, engine)
    beyond = ranks > node_ranks(c)
    if engine != NCCL and np.any(beyond):
        other = time_s(BETWEEN_TRAYS, engine) if engine == "trtllm" else time_s(operation, NCCL)
        found = np.where(beyond, other, found)
    return np.maximum(found, least)[()]


def node_ranks(chip: Chip) -> int:
    """GPUs of a node whose memory all map: a board of eight, or a tray of four where the domain is a rack."""
    return 4 if chip.n_scale_up > 8 else chip.n_scale_up


def form_s(operation: str, size: NDArray, ranks: NDArray, *, link_bytes_per_s: float, engine: str, numbers) -> NDArray:
    """The form with any numbers: what the functions here evaluate and ``tools/calibrate_collectives.py`` fits."""
    two = traffic_bytes(operation, size, n_ranks=ranks)
    nccl = engine == NCCL
    if nccl:
        one = two = two * (1 + numbers["own_fraction"] / np.maximum(ranks - 1, 1))
    else:
        one = size * (ranks - 1)
    first = numbers["first_s"] + one / (numbers["first_fraction"] * link_bytes_per_s)
    second = numbers["second_s"] + two / (numbers["second_fraction"] * link_bytes_per_s)
    if nccl:
        a, b = first * first, second * second
        time_s = numbers["hop_s"] * (ranks - 1) + first * second / np.sqrt(np.sqrt(a * a + b * b))
    else:
        time_s = numbers["hop_s"] * np.log2(ranks) + np.minimum(first, second)
    return np.where(ranks > 1, time_s, 0.0)


def moe_all_to_all_s(
    n_tokens: ArrayLike,
    *,
    phase: str,
    ep: int,
    d_model: ArrayLike = 7168,
    n_chosen: ArrayLike = 8,
    bytes_per_element: ArrayLike = 2.0,
    chip: Chip | str = "gb200",
    transfer_from: str | None = None,
) -> NDArray[np.float64]:
    r"""Seconds of TensorRT-LLM's one-sided dispatch or combine of ``n_tokens`` a rank over ``ep`` GPUs of the domain.

    .. math:: t = \max\left(t_0,\; t_1 + \frac{m \min(\text{EP}, c)\,H\,b}{W}\right)

    Below a few hundred tokens it is the floor, many times the bound. Published for GB200 at EP 8, 16, 32 and 64; any
    other is refused, as is another phase than dispatch and combine. With ``transfer_from="gb200"`` another chip, W
    growing with the rate of its links. All published points were fitted, none held out.

    >>> floor, large = moe_all_to_all_s([1, 2048], phase="dispatch", ep=8)
    >>> bool(floor < 25e-6 and large > 250e-6)
    True
    """
    subject = "moe_all_to_all_s"
    m, h, c = whole(subject, n_tokens=n_tokens, d_model=d_model, n_chosen=n_chosen)
    (width,) = positive(subject, bytes_per_element=bytes_per_element)
    if phase not in ("dispatch", "combine"):
        raise ValueError(f"{subject}: phase is {phase!r}; allowed: dispatch, combine")
    target, kernel = as_chip(chip), f"moe_{phase}"
    published_ep = [x.fmt.removeprefix("ep") for x in calibration.table() if x.kernel == kernel]
    if not isinstance(ep, int | np.integer) or str(ep) not in published_ep:
        raise ValueError(f"{subject}: ep is {ep!r}; allowed: {', '.join(published_ep)}")
    if transfer_from is None and calibration.find(kernel, target.name, "trtllm", f"ep{ep}") is None:
        raise ValueError(f"{subject}: {target.title} has no published times; allowed: gb200, or transfer_from='gb200'")
    if int(ep) > target.n_scale_up:
        raise ValueError(f"{subject}: ep is {ep}; allowed: up to {target.n_scale_up}, the domain of {target.title}")
    numbers = calibration.fitted(subject, kernel, target, "trtllm", f"ep{ep}", transfer_from=transfer_from)
    rate = numbers["moved_bytes_per_s"]
    if transfer_from is not None:
        rate = rate * target.link_bytes_per_s / as_chip(transfer_from).link_bytes_per_s
    moved = experts.dispatch_bytes(m, ep=int(ep), d_model=h, n_chosen=c, bytes_per_element=width)
    return np.maximum(numbers["floor_s"], numbers["offset_s"] + moved / rate)


def _nic(c: Chip, subject: str) -> float:
    if c.scale_out_bytes_per_s is None:
        raise ValueError(f"{subject}: {c.title} has no scale_out_bytes_per_s: its NIC rate is not public")
    return c.scale_out_bytes_per_s
