r"""What a decoded token costs on rented accelerators, attention and FFN each on the one that suits it.

An hour's price buys FLOPs and bytes of bandwidth, at full use, of whichever a part needs more:

.. math:: u_F = \frac{\$/h}{3600\,P}, \quad u_B = \frac{\$/h}{3600\,W}, \qquad
          \text{attention} = \max(F_a u_F, K u_B) + F_l u_F, \quad \text{FFN} = F_f u_F

F are FLOPs a token (attention's own, of the linear layers around it, of the FFN), K the cache bytes read for it. Lower
bounds: batches are as large as it takes, nothing is lost to memory limits, communication or tiles. Source of the model
and of the tables: Step-3, arXiv:2507.19427.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.specs import published
from codesign_lib.specs.quantities import not_negative, positive


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """What an hour of one accelerator costs and offers; ``network_bytes_per_s`` is its whole server's, one way.

    ``flops_per_s`` is the rate that the source takes, FP8 where there is one. Numbers that are not finite and above 0
    raise ValueError.
    """

    name: str
    title: str
    usd_per_hour: float
    flops_per_s: float
    hbm_bytes_per_s: float
    network_bytes_per_s: float
    source: str

    def __post_init__(self) -> None:
        numbers = ("usd_per_hour", "flops_per_s", "hbm_bytes_per_s", "network_bytes_per_s")
        positive(f"Accelerator {self.name!r}", **{name: getattr(self, name) for name in numbers})

    @property
    def usd_per_flop(self) -> float:
        """Dollars a FLOP at full use."""
        return self.usd_per_hour / 3600 / self.flops_per_s

    @property
    def usd_per_byte(self) -> float:
        """Dollars a byte read from HBM at full use."""
        return self.usd_per_hour / 3600 / self.hbm_bytes_per_s

    def __str__(self) -> str:
        return self.title


def _load() -> Mapping[str, Accelerator]:
    t = published.table("step3_accelerators")
    rows = (
        dict(zip(t.columns, row, strict=True)) for row in zip(*(c.tolist() for c in t.columns.values()), strict=True)
    )
    return MappingProxyType({row["name"]: Accelerator(**row, source=t.header["source"]) for row in rows})


ACCELERATORS = _load()


def accelerator(name: Accelerator | str) -> Accelerator:
    """The accelerator of that name; an :py:class:`Accelerator` passes through. Another name: ValueError.

    >>> f"{accelerator('h20').usd_per_byte:.2e}"
    '5.56e-17'
    """
    if isinstance(name, Accelerator):
        return name
    if isinstance(name, str) and name in ACCELERATORS:
        return ACCELERATORS[name]
    raise ValueError(f"unknown accelerator {name!r}; known: {', '.join(ACCELERATORS)}")


def attention_usd(
    *, attention_flops: ArrayLike, kv_bytes: ArrayLike, linear_flops: ArrayLike, on: Accelerator | str
) -> NDArray[np.float64]:
    """Dollars of one token's attention and the linear layers around it: the formula of this module.

    >>> step3 = dict(attention_flops=3.27e10, kv_bytes=2.56e8, linear_flops=2.07e10)
    >>> [round(1e6 * float(attention_usd(**step3, on=x)), 3) for x in ACCELERATORS]
    [0.048, 0.04, 0.04, 0.044]
    """
    a, k, linear = not_negative(
        "attention_usd", attention_flops=attention_flops, kv_bytes=kv_bytes, linear_flops=linear_flops
    )
    x = accelerator(on)
    return np.maximum(a * x.usd_per_flop, k * x.usd_per_byte) + linear * x.usd_per_flop


def ffn_usd(ffn_flops: ArrayLike, *, on: Accelerator | str) -> NDArray[np.float64]:
    """Dollars of one token's FFN."""
    (f,) = not_negative("ffn_usd", ffn_flops=ffn_flops)
    return f * accelerator(on).usd_per_flop


def least_active_share(
    d_model: ArrayLike, n_layers: ArrayLike, *, on: Accelerator | str, stage_s: ArrayLike = 0.050 / 3
) -> NDArray[np.float64]:
    r"""Share of a mixture that must be active, or its FFN server waits for the network.

    .. math:: S \ge \frac{3}{2}\,\frac{H P L}{N W t}

    Reading an expert's weights takes as long as multiplying :math:`P / 2W` tokens a byte of weights, so
    :math:`P / (2 W S)` tokens must be there; each brings a byte an element and takes two back, 3 H, through the
    server's network N in every one of L layers, within ``stage_s`` t (a third of 50 ms a token, with attention,
    transfer and FFN taking turns).

    >>> [round(float(least_active_share(7168, 61, on=x)), 3) for x in ACCELERATORS]
    [0.058, 0.007, 0.031, 0.034]
    """
    h, n, t = positive("least_active_share", d_model=d_model, n_layers=n_layers, stage_s=stage_s)
    x = accelerator(on)
    return 1.5 * h * n * x.flops_per_s / (x.network_bytes_per_s * x.hbm_bytes_per_s * t)
