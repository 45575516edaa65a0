"""Parameters in named parts: the weights of a model added up."""

from __future__ import annotations

import re
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


def size_note(title: str, n_total: int) -> str:
    """A sentence where the total differs by more than 5 % from the largest size that the name gives, else "".

    Sizes of experts and of what is active or effective (8x7B, A3B, E4B) are no totals.

    >>> size_note("OLMoE-1B-7B", 6_919_161_856)
    ''
    >>> size_note("Qwen-7B", 12_050_000_000)
    'Qwen-7B: the name says 7 B parameters, the config 12.05 B (+72%)'
    """
    said = re.findall(r"(?<![\dxAE.])(\d+(?:\.\d+)?)B(?!\w)(?!-\d+E)", title, re.IGNORECASE)
    if not said:
        return ""
    size = max(said, key=float)
    gap = n_total / (float(size) * 1e9) - 1 if float(size) else 0.0
    ours = f"{n_total / 1e9:.2f} B ({gap:+.0%})"
    return f"{title}: the name says {size} B parameters, the config {ours}" if abs(gap) > 0.05 else ""
