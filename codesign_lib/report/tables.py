"""Tables of the book: claims held against our numbers, and committed results turned for reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from codesign_lib.report.plotting import Shown, si, table
from codesign_lib.specs.published import Check, Table

_SUFFIXES = {"_bytes_per_s": "B/s", "_per_s": "/s", "_s": "s"}  # the longer ones first


def named(name: str, value: float | None) -> str:
    """The value in the unit that the end of its name states; a ``_fraction`` in percent, ``None`` as –.

    >>> named("launch_s", 7.465e-6), named("compute_fraction", 0.4911), named("operand_bytes_per_s", 1.783e11)
    ('7.46 µs', '49 %', '178 GB/s')
    """
    if value is None:
        return "–"
    if name.endswith("_fraction"):
        return f"{100 * value:.0f} %"
    unit = next((unit for suffix, unit in _SUFFIXES.items() if name.endswith(suffix)), "")
    return si(value, unit)


def pivot(rows: Table, *, index: Sequence[str], across: str, cell: str, only: Sequence[str] = ()) -> Shown:
    """A long table turned: a line for each value of the ``index`` columns, a column for each value of ``across``.

    ``cell`` is a format of the table's columns. Lines and columns come in the order of the table; ``only`` picks and
    orders the columns. A pair that the table lacks is shown as –. Raises ValueError when two rows fall into one cell.

    >>> from codesign_lib.specs import published
    >>> rows = published.table("gemm_gb300").where(fmt="nvfp4", m=8192.0, n=4096.0, k=4096.0)
    >>> pivot(rows, index=["fmt"], across="engine", cell="{latency_s:.1e}")
    fmt      sglang    trtllm
    -----  --------  --------
    nvfp4   6.8e-05   8.8e-05
    """
    found: dict[tuple, dict[str, str]] = {}
    for values in zip(*(column.tolist() for column in rows.columns.values()), strict=True):
        row = dict(zip(rows.columns, values, strict=True))
        if only and row[across] not in only:
            continue
        line_cells = found.setdefault(tuple(row[i] for i in index), {})
        if row[across] in line_cells:
            raise ValueError(f"pivot: two rows of {rows.name} for {[row[i] for i in index]}, {row[across]}")
        line_cells[row[across]] = cell.format(**row)
    names = list(only) or list(dict.fromkeys(name for cells in found.values() for name in cells))
    left = dict(zip(index, zip(*found, strict=True), strict=True))
    return table(left | {name: [cells.get(name, "–") for cells in found.values()] for name in names})


def checks(results: Iterable[Check], *, prefix: str | None = None) -> Shown:
    """Claims held against our numbers: what, ours, theirs, gap, verdict. ``prefix`` fixes the SI prefix of all."""
    results = list(results)
    columns = {
        "claim": [c.claim.what for c in results],
        "ours": [_value(c.ours, c, prefix, digits=4) for c in results],
        "theirs": [_value(c.claim.value, c, prefix, digits=3) for c in results],
        "gap": ["–" if c.gap is None else f"{round(c.gap, 3) + 0.0:+.1%}" for c in results],
        "verdict": [_verdict(c) for c in results],
    }
    # where the gap is the result, a verdict that is the same in every row says nothing
    if all(c.ok and c.claim.kind == "measured" for c in results):
        del columns["verdict"]
    return table(columns)


def summary(held: Mapping[str, Iterable[Check]]) -> Shown:
    """Checks by topic: exact claims and trends that agree, measured gaps that are as recorded, their size, the worst.

    *As recorded* says that our number did not move, not that it is near: that is the median gap and the worst.

    >>> from codesign_lib.report import claims
    >>> summary({"table2": claims.check("table2"), "squares": claims.check("squares")})
    topic    agree    as recorded    median gap    worst gap                                    which
    -------  -------  -------------  ------------  -----------  ---------------------------------------
    table2   9 of 9   –              –             –                                                  –
    squares  –        36 of 36       64.5%         -92.4%       TensorRT-LLM fp8, 8,192 tokens, H = 512
    """
    lines = []
    for topic, results in held.items():
        results = list(results)
        gaps = [c for c in results if c.claim.kind == "measured"]
        others = [c for c in results if c.claim.kind != "measured"]
        shown = ("–", "–", "–")
        if gaps:
            worst = max(gaps, key=lambda c: abs(c.gap))
            shown = (f"{np.median([abs(c.gap) for c in gaps]):.1%}", f"{worst.gap:+.1%}", worst.claim.what)
        lines.append((topic, _kept(others), _kept(gaps), *shown))
    names = ("topic", "agree", "as recorded", "median gap", "worst gap", "which")
    return table(dict(zip(names, zip(*lines, strict=True), strict=True)))


def _kept(results: Sequence[Check]) -> str:
    return f"{sum(c.ok for c in results)} of {len(results)}" if results else "–"


def errors(rows: Iterable[Table]) -> Shown:
    """Rows of committed errors below each other: of what, how many, median / 90th percentile (bias) in percent.

    >>> from codesign_lib.specs import published
    >>> errors([published.table("validation/tpot").where(what="roofline")])
    rows        number  median / p90 (bias), %
    --------  --------  ------------------------
    roofline     1,021  68.3 / 85.3 (-68.3)
    """
    lines = []
    for of in rows:
        for row in zip(*(column.tolist() for column in of.columns.values()), strict=True):
            x = dict(zip(of.columns, row, strict=True))
            name = ", ".join(x[c] for c in ("what", "chip", "engine", "fmt", "regime") if x[c] != "all")
            figures = f"{x['median_percent']:.1f} / {x['p90_percent']:.1f} ({x['bias_percent']:+.1f})"
            lines.append((name, int(x["n_rows"]), figures))
    return table(dict(zip(("rows", "number", "median / p90 (bias), %"), zip(*lines, strict=True), strict=True)))


def scoreboard(held: Mapping[str, Iterable[Check]]) -> Shown:
    """Every check of every topic in one table: topic, kind, what, ours, theirs, gap, verdict.

    >>> from codesign_lib.report import claims
    >>> scoreboard({"peaks": claims.check("peaks")[:1]})
    topic    kind    claim                                 ours        theirs    gap  verdict
    -------  ------  ---------------------------  -------------  ------------  -----  ---------
    peaks    exact   figure 6: GB300 dense, bf16  2.500 PFLOP/s  2.50 PFLOP/s  +0.0%  agrees
    """
    lines = [
        (topic, c.claim.kind, c.claim.what, _value(c.ours, c, None, digits=4), _value(c.claim.value, c, None, digits=3),
         "–" if c.gap is None else f"{round(c.gap, 3) + 0.0:+.1%}", _verdict(c))
        for topic, results in held.items()
        for c in results
    ]  # fmt: skip
    names = ("topic", "kind", "claim", "ours", "theirs", "gap", "verdict")
    return table(dict(zip(names, zip(*lines, strict=True), strict=True)))


def _value(value: float | Sequence[float], check: Check, prefix: str | None, digits: int) -> str:
    if np.ndim(value):
        return ", ".join(f"{v:.3g}" for v in value)
    if check.claim.quantum:  # theirs as printed, ours with as many digits, or 4
        printed = min(len(str(round(abs(check.claim.value) / check.claim.quantum))), 6)
        digits = printed if digits == 3 else max(digits, printed)
    if check.claim.unit in ("", "×"):
        return f"{value:.{digits}g} {check.claim.unit}".strip()
    return si(value, check.claim.unit, digits, prefix=prefix)


def _verdict(check: Check) -> str:
    if not check.ok:
        return "FAILS"
    if check.claim.quantum_before:
        return "agrees if rounded twice"
    return {"exact": "agrees", "measured": "gap as recorded", "trend": "same trend"}[check.claim.kind]
