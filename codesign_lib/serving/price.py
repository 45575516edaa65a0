r"""What a million tokens cost in dollars and joules, from a price of GPU-hours and a power, both dated.

With R output tokens a second and GPU, p dollars a GPU-hour, P watts a GPU and everything around it:

.. math:: \frac{\$}{10^6\,\text{tokens}} = \frac{10^6\,p}{3600\,R}, \qquad
          \frac{\text{J}}{\text{token}} = \frac{P}{R}, \qquad
          \frac{\$_\text{electricity}}{10^6\,\text{tokens}} = \frac{10^6}{3.6 \cdot 10^6}
          \cdot \frac{\text{J}}{\text{token}} \cdot \frac{\$}{\text{kWh}}

The default prices and powers are one source's estimates of one day (``data/tco.csv``; SemiAnalysis, 2026-04-03); those
of B300 and GB300 were placeholders in it, 1.2 times the chip before. They drift by tens of percent in months: name the
date with the number, or give your own. Power is drawn whatever the load is here; input tokens are not charged apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.specs import published
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.quantities import positive

OWNERS = ("owned_hyperscaler", "owned_neocloud", "rented")


@dataclass(frozen=True, kw_only=True)
class Price:
    """An hour of one GPU in dollars and its power with everything around it; ``placeholder`` if its source says so."""

    dollars_per_hour: float
    power_w: float
    source: str
    as_of: str
    placeholder: bool = False

    def __post_init__(self) -> None:
        positive("Price", dollars_per_hour=self.dollars_per_hour, power_w=self.power_w)


def price(chip: Chip | str, owner: str = "owned_hyperscaler") -> Price:
    """The dated price of a chip, ``owned_hyperscaler``, ``owned_neocloud`` or ``rented`` (three years).

    Raises ValueError for another owner and for a chip that the source does not price.

    >>> p = price("gb300")
    >>> p.dollars_per_hour, p.power_w, p.as_of, p.placeholder
    (2.652, 2100.0, '2026-04-03', True)
    """
    table, c = published.table("tco"), as_chip(chip)
    if owner not in OWNERS:
        raise ValueError(f"price: owner is {owner!r:.40}; allowed: {', '.join(OWNERS)}")
    known = table["chip"].tolist()
    if c.name not in known:
        raise ValueError(f"price: {c} has no price in {table.header['source']}; it has {', '.join(known)}")
    at = known.index(c.name)
    return Price(
        dollars_per_hour=float(table[f"{owner}_dollars_per_hour"][at]), power_w=float(table["power_w"][at]),
        source=f"{table.header['source']} at {table.header['version']}", as_of=table.header["date"],
        placeholder=bool(table["placeholder"][at]),
    )  # fmt: skip


def dollars_per_million(throughput_per_s: ArrayLike, dollars_per_hour: ArrayLike) -> NDArray[np.float64]:
    """Dollars a million output tokens, at so many tokens a second and GPU.

    >>> [round(float(dollars_per_million(1000, price(c).dollars_per_hour)), 3) for c in ("h100_sxm", "h200_sxm", "gb300")]
    [0.361, 0.392, 0.737]
    """  # noqa: E501
    rate, hour = positive("dollars_per_million", throughput_per_s=throughput_per_s, dollars_per_hour=dollars_per_hour)
    return 1e6 * hour / (3600 * rate)


def joules_per_token(throughput_per_s: ArrayLike, power_w: ArrayLike) -> NDArray[np.float64]:
    """Joules an output token.

    >>> float(joules_per_token(1000, price("gb300").power_w))
    2.1
    """
    rate, power = positive("joules_per_token", throughput_per_s=throughput_per_s, power_w=power_w)
    return power / rate


def electricity_per_million(joules: ArrayLike, dollars_per_kwh: ArrayLike) -> NDArray[np.float64]:
    """Dollars of electricity a million tokens, from joules a token.

    >>> round(float(electricity_per_million(1.0, 1.0)), 4)
    0.2778
    """
    j, rate = positive("electricity_per_million", joules=joules, dollars_per_kwh=dollars_per_kwh)
    return 1e6 * j / 3.6e6 * rate
