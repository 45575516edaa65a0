"""Parameters in named parts: the weights of a model added up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from codesign_lib.specs.weights import Weight

# fmt: off
PARTS = ("embedding", "attention", "recurrent", "indexer", "ffn", "experts", "shared experts", "router", "residual",
         "norms", "per-layer embedding", "projection", "head")
# fmt: on


@dataclass(frozen=True, kw_only=True)
class Part:
    """A named part of the parameters: ``n_stored`` in the checkpoint, ``n_read`` for one token.

    A tied head is read and not stored; an embedding table is stored and (but for one row) not read.
    """

    name: str
    n_stored: int
    n_read: int


def merged(*sources: Iterable[Weight]) -> tuple[Weight, ...]:
    """All of them, equal ones (but for their count) added up, empty ones left out."""
    found: dict[Weight, int] = {}
    for source in sources:
        for weight in source:
            if weight.n_params:
                one = replace(weight, count=1)
                found[one] = found.get(one, 0) + weight.count
    return tuple(replace(weight, count=n) for weight, n in found.items())


def total(weights: Iterable[Weight]) -> int:
    """Elements of all of them together."""
    return sum(weight.n_params for weight in weights)


def parts(weights: Iterable[Weight], *, tied: bool) -> tuple[Part, ...]:
    """The weights added up by their part, in the order of ``PARTS``; a ``tied`` head is read and not stored."""
    found: dict[str, list[int]] = {}
    for w in weights:
        sums = found.setdefault(w.part, [0, 0])
        sums[0] += 0 if w.name == "head" and tied else w.n_params
        sums[1] += round(w.n_params * w.read_fraction)
    order = sorted(found, key=PARTS.index)
    return tuple(Part(name=name, n_stored=found[name][0], n_read=found[name][1]) for name in order)
