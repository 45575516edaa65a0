r"""Who holds what: how the GPUs of one serving instance are divided, and which divisions a model allows.

A pipeline has ``pp`` stages. The GPUs of a stage work on attention and on the feed-forward part (FFN) in turn, and
are grouped anew for each:

.. math:: N = \underbrace{\text{kvp} \cdot \text{tp\_attention}}_{\text{one replica}} \cdot\, \text{dp}
            = \text{tp\_ffn} \cdot \text{ep}, \qquad \text{GPUs} = N \cdot \text{pp}

* ``dp``: replicas of attention, each with sequences of its own (attention DP). Batches are always those of the whole
  instance; a replica has batch/dp of them.
* ``tp_attention``: a replica's heads are divided. Key-value heads that are fewer than the ranks are copied; a latent
  is one head.
* ``kvp``: the context of every sequence is divided, entries dealt out round-robin (Helix, decode context
  parallelism). The projections before attention are then held and computed on every one of the kvp ranks, the one
  after it is divided by kvp · tp_attention.
* ``ep``: routed experts are divided, whole experts a GPU; spare slots hold copies. ``tp_ffn`` divides their width. A
  model without experts has ep = 1.
* Dense FFNs and shared experts are divided by the larger of a replica and ``tp_ffn`` (where neither divides the other,
  by the smallest group that holds both whole: :py:attr:`Layout.n_dense_ranks`), the vocabulary of embedding and head
  by a replica. Routers, norms, the projections down to a latent and whatever else is small are on every GPU.
* ``pp``: layers, in stages of at most :math:`\lceil L/\text{pp} \rceil` (:py:mod:`codesign_lib.serving.stages`);
  embedding and head are on the first and the last.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.tiling import whole
from codesign_lib.serving.rules import rules
from codesign_lib.specs.formats import Precision, as_precision
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model
from codesign_lib.specs.quantities import common_shape, positive

AXES = ("kvp", "tp_attention", "dp", "tp_ffn", "ep", "pp")


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """A division of GPUs, or many of them: every axis is a whole number, or an array of them that broadcasts.

    Single numbers whose products differ (kvp · tp_attention · dp ≠ tp_ffn · ep) raise ValueError; in arrays such
    layouts may stand, and :py:func:`valid` is False for them. An index picks or reshapes: ``layout[3]``,
    ``layout[:, None, None]`` to set layouts against batches and contexts.

    >>> helix = Layout(kvp=8, tp_attention=8, tp_ffn=64)
    >>> helix.n_gpus, helix.n_replica, helix.n_dense_ranks
    (64, 64, 64)
    >>> Layout(tp_attention=8)
    Traceback (most recent call last):
    ValueError: Layout: kvp·tp_attention·dp is 1·8·1 = 8, tp_ffn·ep is 1·1 = 1; allowed: equal products
    """

    kvp: int | NDArray[np.int64] = 1
    tp_attention: int | NDArray[np.int64] = 1
    dp: int | NDArray[np.int64] = 1
    tp_ffn: int | NDArray[np.int64] = 1
    ep: int | NDArray[np.int64] = 1
    pp: int | NDArray[np.int64] = 1

    def __post_init__(self) -> None:
        given = dict(zip(AXES, whole("Layout", **{x: getattr(self, x) for x in AXES}), strict=True))
        common_shape("Layout", **given)
        for name, array in given.items():
            kept = int(array) if array.ndim == 0 else array.astype(np.int64)
            if array.ndim:
                kept.flags.writeable = False
            object.__setattr__(self, name, kept)
        if np.any(np.prod(np.broadcast_arrays(*given.values()), axis=0) > 2**53):
            raise ValueError("Layout: more than 2^53 ranks of all axes together; allowed: fewer")
        if self.shape == () and self.n_stage != self.tp_ffn * self.ep:
            raise ValueError(
                f"Layout: kvp·tp_attention·dp is {self.kvp}·{self.tp_attention}·{self.dp} = {self.n_stage}, "
                f"tp_ffn·ep is {self.tp_ffn}·{self.ep} = {self.tp_ffn * self.ep}; allowed: equal products"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the axes broadcast to; () for one layout."""
        return np.broadcast_shapes(*(np.shape(getattr(self, x)) for x in AXES))

    @property
    def n_replica(self):
        """GPUs of one replica of attention in one stage, kvp · tp_attention."""
        return self.kvp * self.tp_attention

    @property
    def n_stage(self):
        """GPUs of one stage, kvp · tp_attention · dp."""
        return self.n_replica * self.dp

    @property
    def n_gpus(self):
        """GPUs of the instance."""
        return self.n_stage * self.pp

    @property
    def n_dense_ranks(self):
        """GPUs that divide a dense FFN or a shared expert, the least common multiple of a replica and tp_ffn."""
        found = np.lcm(self.n_replica, self.tp_ffn)
        return int(found) if self.shape == () else found

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("Layout: one layout has no length")
        return self.shape[0]

    def __getitem__(self, index) -> Layout:
        return Layout(**{x: np.broadcast_to(getattr(self, x), self.shape)[index] for x in AXES})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self.shape == other.shape and all(np.array_equal(getattr(self, x), getattr(other, x)) for x in AXES)

    def __hash__(self) -> int:
        return hash(tuple(np.asarray(getattr(self, x)).tobytes() for x in AXES))

    def __str__(self) -> str:
        if self.shape:
            return f"{int(np.prod(self.shape))} layouts"
        return " ".join(f"{x}={getattr(self, x)}" for x in AXES if getattr(self, x) > 1) or "one GPU"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is asked of an instance: tokens in and out a request, requests at once, and limits on the two latencies.

    ``ttft_limit_s`` is the time to the first token, ``tpot_limit_s`` the time a token after it; None: no limit. Fields
    may be arrays that broadcast. Finite and above 0, counts whole, else ValueError.

    >>> Workload(n_input=8192, n_output=[1024, 8192], n_concurrent=64, tpot_limit_s=0.05).n_context
    array([ 9216., 16384.])
    """

    n_input: ArrayLike
    n_output: ArrayLike
    n_concurrent: ArrayLike
    ttft_limit_s: ArrayLike | None = None
    tpot_limit_s: ArrayLike | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name.startswith("n_"):
                whole("Workload", **{f.name: value})
            elif value is not None:
                positive("Workload", **{f.name: value})

    @property
    def n_context(self) -> NDArray[np.float64]:
        """Tokens of a request when its last one is made."""
        return np.add(self.n_input, self.n_output, dtype=np.float64)


class Violation(NamedTuple):
    """One reason why a model does not divide so: what, its size, the ranks, the formula that fails, what is legal."""

    what: str
    size: int
    ranks: str
    n_ranks: int
    formula: str
    legal: tuple[int, ...]

    def __str__(self) -> str:
        legal = ", ".join(f"{x:,}" for x in self.legal) or "none"
        return f"{self.what}: {self.formula}; nearest legal {self.ranks}: {legal}"


def violations(
    layout: Layout, model: Model | str, *, precision: Precision | None = None, copies: bool = True
) -> tuple[Violation, ...]:
    """Everything that keeps a model from being divided so, at once; empty where it can be.

    Every entry holds the sizes, the formula that fails and the nearest numbers of ranks, below and above, that it
    allows. ``precision`` adds the blocks of its format: what a rank gets of a product's inner size is a multiple of
    128 in FP8 with 128×128 blocks, of 16 in NVFP4, of 32 in MXFP4. ``copies=False`` also refuses key-value heads and
    experts that are held more than once. Layouts one at a time: an array raises ValueError; see :py:func:`valid`.

    >>> for x in violations(Layout(tp_attention=24, tp_ffn=24), "deepseek_v4_pro"):
    ...     print(x)
    vocabulary: 129,280 % 24 = 16; nearest legal n_replica: 20, 32
    query heads: 128 % 24 = 8; nearest legal tp_attention: 16, 32
    attention width: 65,536 % 24 = 16; nearest legal tp_attention: 16, 32
    output groups: 16 % 24 = 16, 24 % 16 = 8; nearest legal tp_attention: 16, 32
    attention output: 16,384 % 24 = 16; nearest legal n_replica: 16, 32
    """
    if layout.shape:
        raise ValueError(f"violations: layout holds {layout}; allowed: one, as in layouts[0]")
    if precision is not None:
        as_precision("violations", precision)
    found = []
    for rule in rules(as_model(model), precision, copies):
        n_ranks = int(getattr(layout, rule.ranks))
        if not rule.holds(n_ranks):
            formula, legal = rule.formula(n_ranks), rule.nearest(n_ranks)
            found.append(Violation(rule.what, rule.size, rule.ranks, n_ranks, formula, legal))
    return tuple(found)


def valid(
    layout: Layout, model: Model | str, *, precision: Precision | None = None, copies: bool = True
) -> NDArray[np.bool_]:
    """Whether the model can be divided so, for every layout of an array: no :py:func:`violations`, equal products.

    >>> valid(Layout(tp_attention=[8, 6], tp_ffn=[8, 6]), "llama_3_1_70b").tolist()
    [True, False]
    """
    if precision is not None:
        as_precision("valid", precision)
    good = np.broadcast_to(np.asarray(layout.n_stage == layout.tp_ffn * layout.ep), layout.shape)
    for rule in rules(as_model(model), precision, copies):
        good = good & rule.holds(getattr(layout, rule.ranks))
    return good


def check(subject: str, layout: Layout, model: Model, precision: Precision) -> None:
    """Raises ValueError for ``subject`` where a layout is not valid for the model, with all that is wrong with it."""
    for name, value, of in (("layout", layout, Layout), ("precision", precision, Precision)):
        if not isinstance(value, of):
            raise ValueError(f"{subject}: {name} is {value!r:.60}; allowed: a {of.__name__}")
    check_division(subject, layout, model, precision)


def check_division(subject: str, layout: Layout, model: Model, precision: Precision | None = None) -> None:
    """As :py:func:`check`; without a precision nothing is asked that depends on the blocks of a format."""
    bad = ~valid(layout, model, precision=precision)
    if np.any(bad):
        at = np.unravel_index(np.argmax(bad), bad.shape)
        first = layout[at] if bad.shape else layout  # raises where the products differ
        reasons = "; ".join(str(x) for x in violations(first, model, precision=precision))
        raise ValueError(f"{subject}: {model} does not divide as {first}: {reasons}")


def layouts(
    n_gpus: ArrayLike, model: Model | str, *, precision: Precision | None = None, copies: bool = True
) -> Layout:
    """Every valid layout of a model on so many GPUs (or on each of several numbers of GPUs), as one array-``Layout``.

    ``precision`` and ``copies`` as in :py:func:`violations`. Raises ValueError where no layout is valid.

    >>> found = layouts(8, "llama_3_1_70b", copies=False)
    >>> len(found), str(found[0])
    (20, 'dp=8 tp_ffn=8')
    """
    if precision is not None:
        as_precision("layouts", precision)
    sizes = np.unique(np.concatenate([x.ravel() for x in whole("layouts", n_gpus=n_gpus)]))
    if not sizes.size:
        raise ValueError("layouts: n_gpus is empty; allowed: one number, or several")
    rows = [row for n in sizes.astype(int) for row in _divisions(int(n))]
    table = np.array(rows, dtype=np.int64).T
    every = Layout(**dict(zip(AXES, table, strict=True)))
    good = valid(every, model, precision=precision, copies=copies)
    if not good.any():
        raise ValueError(f"layouts: {as_model(model)} does not divide over {sizes.astype(int).tolist()} GPUs")
    return every[good]


def _divisions(n: int) -> list[tuple[int, ...]]:
    """All (kvp, tp_attention, dp, tp_ffn, ep, pp) of n GPUs whose products agree."""
    found = []
    for pp in _divisors(n):
        stage = n // pp
        attention = [(k, t, stage // k // t) for k in _divisors(stage) for t in _divisors(stage // k)]
        found += [(*a, f, stage // f, pp) for a, f in product(attention, _divisors(stage))]
    return found


def _divisors(n: int) -> list[int]:
    return [x for x in range(1, n + 1) if n % x == 0]
