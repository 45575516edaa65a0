r"""Bytes that parallel GPUs send each other over a prompt of S tokens, in one direction, and their seconds at least.

With H the model's size, L layers, b bytes an element and G GPUs:

* tensor parallelism: two all-reduces of S·H a layer, as a ring :math:`2 \cdot 2\frac{G-1}{G}\,S H b\,L`, of each GPU;
* context parallelism: keys and values of all tokens gathered, :math:`2\frac{G-1}{G}\,S K d\,b\,L` (K key-value heads of
  d), of each GPU;
* a pipeline: :math:`(P-1)\,S H b`, one hand-over at each boundary, all boundaries together.

For many GPUs (G − 1)/G is left out in the usual short forms: 4·S·H·L·b, 2·S·K·d·L·b, (P − 1)·S·H·b. Source: LMSYS,
chunked pipeline parallelism in SGLang, 2026-01-15.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import calibration, collectives
from codesign_lib.cost.tiling import whole
from codesign_lib.specs.formats import BF16, Format, as_format
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.models import Model, kv_bytes
from codesign_lib.specs.models import model as as_model

KINDS = ("tp", "cp", "pp")


def n_reduces(model: Model | str) -> int:
    """All-reduces over a whole model: one after the mixers of a layer, one after its feed-forward part.

    >>> n_reduces("llama_3_1_405b"), n_reduces("nemotron_3_super")        # here a layer is one or the other
    (252, 88)
    """
    return sum(bool(layer.mixers) + bool(layer.ffns) for layer in as_model(model).config.layers)


def sent_bytes(
    model: Model | str, n_tokens: ArrayLike, *, kind: str, n_ranks: ArrayLike, fmt: Format | str = BF16
) -> NDArray[np.float64]:
    """Bytes of this module's formulas: tp and cp each GPU, pp all boundaries together; ``fmt``: what is sent.

    A latent counts as the keys and values of cp, and layers with a window send no more than that. Tokens and ranks
    broadcast, whole and at least 1; ``kind`` tp, cp or pp, else ValueError.

    >>> tp, cp, pp = (float(sent_bytes("qwen3_235b_a22b", 131_072, kind=k, n_ranks=8)) / 1e9 for k in KINDS)
    >>> f"{tp:.0f}, {cp:.1f}, {pp:.1f} GB"
    '353, 22.1, 7.5 GB'
    """
    if kind not in KINDS:
        raise ValueError(f"sent_bytes: kind is {kind!r}; allowed: {', '.join(KINDS)}")
    of, size = as_model(model), as_format(fmt).bytes_per_element
    n, ranks = whole("sent_bytes", n_tokens=n_tokens, n_ranks=n_ranks)
    hidden = size * of.config.d_model * n
    if kind == "tp":
        return n_reduces(of) * collectives.traffic_bytes("all_reduce", hidden, n_ranks=ranks)
    if kind == "cp":
        return collectives.traffic_bytes("all_gather", kv_bytes(of, n, fmt), n_ranks=ranks)
    return hidden * (ranks - 1)


def sent_s(
    model: Model | str,
    n_tokens: ArrayLike,
    *,
    kind: str,
    n_ranks: ArrayLike,
    chip: Chip | str,
    across: bool = False,
    fmt: Format | str = BF16,
) -> NDArray[np.float64]:
    """Seconds these bytes take at least: over the links of the scale-up domain or, ``across``, over one NIC a GPU.

    A bound: full rate, nothing else on the links, no latency, no addition in a switch. ``across``: every rank is in a
    domain of its own; otherwise more ranks than the domain holds raise ValueError, as does a chip whose NIC rate is not
    public. Other arguments as in :py:func:`sent_bytes`.

    >>> inside, out = (float(sent_s("qwen3_235b_a22b", 131_072, kind="tp", n_ranks=8, chip="h200_sxm", across=x))
    ...                for x in (False, True))
    >>> round(out / inside)                                       # 450 against 50 GB/s
    9
    """
    c, moved = as_chip(chip), sent_bytes(model, n_tokens, kind=kind, n_ranks=n_ranks, fmt=fmt)
    if across:
        calibration.needs("sent_s", c, "scale_out_bytes_per_s")
        return moved / c.scale_out_bytes_per_s
    if np.max(n_ranks) > c.n_scale_up:
        raise ValueError(
            f"sent_s: n_ranks is {np.max(n_ranks)}; allowed: up to {c.n_scale_up}, the scale-up domain of {c}, "
            "or across=True"
        )
    return moved / (c.link_peer_bytes_per_s if kind == "pp" else c.link_bytes_per_s)
