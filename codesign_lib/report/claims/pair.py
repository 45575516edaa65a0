"""A claim paired with the call that computes our number for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from codesign_lib.specs import published
from codesign_lib.specs.published import Check, Claim


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A claim, a key that names it for good, and the call that computes our number for it."""

    key: str
    claim: Claim
    ours: Callable[[], float]

    def check(self) -> Check:
        return self.claim.check(self.ours())


def exact(key: str, what: str, value: float, source: str, ours: Callable[[], float], **more: object) -> Pair:
    """A pair of kind ``exact``; ``more`` are fields of the claim: ``unit``, ``quantum``, ``rtol``."""
    claim = Claim(what=what, value=value, source=source, kind="exact", **({"unit": ""} | more))
    return Pair(key=key, claim=claim, ours=ours)


@cache
def recorded_gaps() -> Mapping[str, float]:
    """Gap by key, from ``data/recorded_gaps.csv``."""
    table = published.table("recorded_gaps")
    return MappingProxyType(dict(zip(table["key"].tolist(), table["gap"].tolist(), strict=True)))


def measured(key: str, what: str, value: float, unit: str, source: str, ours: Callable[[], float]) -> Pair:
    """A pair of kind ``measured`` with the gap recorded for its key; ValueError that prints today's gap if none is."""
    gap = recorded_gaps().get(key)
    if gap is None:
        raise ValueError(f"no recorded gap for {key}: it is {ours() / value - 1:+.3f} now; see data/recorded_gaps.csv")
    claim = Claim(what=what, value=float(value), unit=unit, source=source, kind="measured", recorded_gap=gap)
    return Pair(key=key, claim=claim, ours=ours)
