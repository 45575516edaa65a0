"""Somebody else's number: a claim that ours is held against, and the tables of measurements in ``data/``."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from codesign_lib.specs.quantities import as_floats

KINDS = ("exact", "measured", "trend")
EXACT_RTOL_MAX = 1e-3
# A gap to a measurement may drift by two percentage points, better or worse, before it must be looked at again.
GAP_BAND = 0.02


@dataclass(frozen=True, kw_only=True)
class Claim:
    r"""A number that somebody else published or measured, and how closely ours has to agree with it.

    The gap is ``ours / value - 1``. What passes depends on ``kind``:

    ``exact``
        ours rounds to the same printed digit: ``|ours - value| ≤ quantum / 2``, where ``quantum`` is the unit of the
        last digit that was printed; without a quantum, ours is within ``rtol`` (at most 1e-3). A number that can only
        have been rounded twice is held against ours rounded to ``quantum_before`` first.
    ``measured``
        the gap is a result, good or bad; it passes while it stays within 2 percentage points of ``recorded_gap``.
    ``trend``
        a ratio (unit ``×``) passes on the same side of 1, another scalar with the same sign, a sequence of at least
        two in the same order, equal where and only where the claim's are equal.

    ``value`` is in ``unit``, an SI unit without prefix. Raises ValueError for another kind, a missing source, an
    ``exact`` claim with a wider tolerance, or a ``measured`` one without its recorded gap.

    >>> claim = Claim(what="ridge of GB300 in BF16", value=312.5, unit="FLOP/B", source="2500 / 8", kind="exact")
    >>> claim.check(2500e12 / 8e12).ok
    True
    """

    what: str
    value: float | tuple[float, ...]
    unit: str
    source: str
    kind: str
    rtol: float = 1e-9
    quantum: float = 0.0
    quantum_before: float = 0.0
    recorded_gap: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"claim {self.what!r}: kind is {self.kind!r}; allowed: {', '.join(KINDS)}")
        if not self.source.strip():
            raise ValueError(f"claim {self.what!r}: no source")
        if not 0 <= self.rtol <= EXACT_RTOL_MAX:
            raise ValueError(f"claim {self.what!r}: rtol is {self.rtol!r}; allowed: 0 to {EXACT_RTOL_MAX}")
        for name in ("quantum", "quantum_before"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"claim {self.what!r}: {name} is {getattr(self, name)!r}; allowed: finite, 0 or more")
        if self.recorded_gap is not None and not np.isfinite(self.recorded_gap):
            raise ValueError(f"claim {self.what!r}: recorded_gap is {self.recorded_gap!r}; allowed: finite")
        if (self.kind == "measured") != (self.recorded_gap is not None):
            raise ValueError(f"claim {self.what!r}: a recorded gap goes with kind 'measured', and with no other")
        (value,) = as_floats(f"claim {self.what!r}", value=self.value)
        if not np.all(np.isfinite(value)):
            raise ValueError(f"claim {self.what!r}: value is {self.value!r}; allowed: finite numbers")
        if self.kind != "trend" and (value.ndim or value == 0):
            raise ValueError(f"claim {self.what!r}: value is {self.value!r}; allowed: one number other than 0")
        if self.kind == "trend" and value.ndim and (value.ndim > 1 or value.size < 2):
            raise ValueError(
                f"claim {self.what!r}: value is {self.value!r}; allowed: one number, or two and more in a row"
            )
        if self.kind != "trend" and self.quantum > abs(value):
            raise ValueError(f"claim {self.what!r}: quantum {self.quantum!r} is above the value; nothing could fail")

    def check(self, ours: float | Sequence[float]) -> Check:
        """Hold our number against the claim. Raises ValueError when ours is not finite or has another shape."""
        (checked,) = as_floats(f"claim {self.what!r}", ours=ours)
        if checked.shape != np.shape(self.value) or not np.all(np.isfinite(checked)):
            raise ValueError(
                f"claim {self.what!r}: ours is {ours!r}; allowed: finite, in the shape of the claim's value"
            )
        if self.kind == "trend":
            return Check(claim=self, ours=ours, gap=None, ok=bool(self._same_trend(np.asarray(ours))))
        ours = float(ours)
        gap = ours / self.value - 1
        if self.kind == "exact":
            rounded = round(ours / self.quantum_before) * self.quantum_before if self.quantum_before else ours
            # 1e-9: a tie must not hang on the last bit of the difference
            printed = abs(rounded - self.value) <= self.quantum / 2 * (1 + 1e-9)
            ok = printed if self.quantum else abs(gap) <= self.rtol
        else:
            ok = abs(gap - self.recorded_gap) <= GAP_BAND
        return Check(claim=self, ours=ours, gap=gap, ok=bool(ok))

    def _same_trend(self, ours: NDArray[np.float64]) -> bool:
        if ours.ndim:
            theirs = np.asarray(self.value)
            return np.array_equal(np.sign(np.subtract.outer(ours, ours)), np.sign(np.subtract.outer(theirs, theirs)))
        neutral = 1.0 if self.unit == "×" else 0.0
        return np.sign(ours - neutral) == np.sign(self.value - neutral)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One claim held against our number; ``gap`` is ``None`` for a trend."""

    claim: Claim
    ours: float | Sequence[float]
    gap: float | None
    ok: bool

    def __str__(self) -> str:
        c = self.claim
        gap = "" if self.gap is None else f", gap {self.gap:+.1%}"
        allowed = {
            "exact": f"allowed half of {c.quantum:g}" if c.quantum else f"allowed ±{c.rtol:g}",
            "measured": f"recorded {c.recorded_gap or 0:+.1%} ± {GAP_BAND * 100:g} points",
            "trend": "allowed the same order" if np.ndim(c.value) else "allowed the same sign",
        }[c.kind]
        ours, theirs = (", ".join(f"{v:.6g}" for v in np.atleast_1d(value)) for value in (self.ours, c.value))
        return f"{c.what}: ours {ours}, published {theirs} {c.unit}{gap} ({allowed}); source: {c.source}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A CSV of ``data/``: columns by name, and the header's ``source``, ``version``, ``date`` and ``licence``."""

    name: str
    header: Mapping[str, str]
    columns: Mapping[str, NDArray]

    def __getitem__(self, column: str) -> NDArray:
        if column not in self.columns:
            raise ValueError(f"table {self.name} has no column {column!r}; it has {', '.join(self.columns)}")
        return self.columns[column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def where(self, **equal: float | str) -> Table:
        """The rows in which every named column equals the value. Raises ValueError when none does."""
        keep = np.ones(len(self), dtype=bool)
        for column, value in equal.items():
            keep &= self[column] == value
        if not keep.any():
            raise ValueError(f"table {self.name} has no row with {', '.join(f'{c}={v!r}' for c, v in equal.items())}")
        columns = MappingProxyType({c: v[keep] for c, v in self.columns.items()})
        return Table(name=self.name, header=self.header, columns=columns)

    def sorted_by(self, column: str) -> Table:
        """The same rows in ascending order of one column."""
        order = np.argsort(self[column], kind="stable")
        columns = MappingProxyType({c: v[order] for c, v in self.columns.items()})
        return Table(name=self.name, header=self.header, columns=columns)


HEADER = ("source", "version", "date", "licence")


@cache
def table(name: str) -> Table:
    """The table ``data/NAME.csv``. A column whose every cell is a number becomes float64, others text.

    Lines ``# key: value`` before the column names say where the numbers come from; ``source``, ``version``, ``date``
    and ``licence`` must be there. Raises ValueError for an unknown name, an incomplete header or a ragged row.

    >>> table("nothing")
    Traceback (most recent call last):
    ValueError: no table 'nothing'; known: ...
    """
    folder = files("codesign_lib") / "data"
    path = folder / f"{name}.csv"
    if ".." in name or not path.is_file():
        known = sorted(p.name.removesuffix(".csv") for p in folder.iterdir() if p.name.endswith(".csv"))
        raise ValueError(f"no table {name!r}; known: {', '.join(known)}")
    lines = path.read_text(encoding="utf-8").splitlines()
    header = dict(line[1:].strip().split(": ", 1) for line in lines if line.startswith("#"))
    missing = [key for key in HEADER if key not in header]
    if missing:
        raise ValueError(f"table {name}: the header lacks {', '.join(missing)}")
    names, *rows = csv.reader(line for line in lines if line and not line.startswith("#"))
    for i, row in enumerate(rows):
        if len(row) != len(names):
            raise ValueError(f"table {name}: row {i} has {len(row)} cells; the columns are {', '.join(names)}")
    columns = {n: _typed([r[i] for r in rows]) for i, n in enumerate(names)}
    return Table(name=name, header=MappingProxyType(header), columns=MappingProxyType(columns))


def names(folder: str) -> list[str]:
    """Names of the tables in a folder of ``data/``, sorted.

    >>> "gemm_checks" in names("validation")
    True
    """
    here = files("codesign_lib") / "data" / folder
    if not here.is_dir():
        raise ValueError(f"names: no folder {folder!r} in data")
    return sorted(p.name.removesuffix(".csv") for p in here.iterdir() if p.name.endswith(".csv"))


def _typed(cells: list[str]) -> NDArray:
    try:
        column = np.array([float(c) for c in cells])
    except ValueError:
        column = np.array(cells)
    column.flags.writeable = False  # tables are cached: nobody may change them for everybody
    return column
