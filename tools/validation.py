"""What the commands validate_*.py share: errors by regime, promises kept or not, files compared or written."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import fitting
import measured
import numpy as np

from codesign_lib.specs import hardware

FOLDER = fitting.DATA / "validation"


class Error(NamedTuple):
    """Errors of prediction / measurement − 1 on some rows, in percent."""

    what: str
    chip: str
    engine: str
    fmt: str
    regime: str
    n_rows: int
    median_percent: float
    p90_percent: float
    bias_percent: float


class Check(NamedTuple):
    what: str
    found: str
    limit: str
    verdict: str


def judge(
    what: str,
    chip: str,
    engine: str,
    fmt: str,
    prediction_s: np.ndarray,
    latency_s: np.ndarray,
    regimes: Mapping[str, np.ndarray],
) -> Iterator[Error]:
    """One error a regime that has rows; a regime is a mask."""
    for regime, rows in regimes.items():
        rows = np.asarray(rows)
        if rows.any():
            found = fitting.errors(np.asarray(prediction_s)[rows], np.asarray(latency_s)[rows])
            yield Error(what, chip, engine, fmt, regime, int(rows.sum()), *(100 * x for x in found))


def medians(errors: list[Error]) -> list[Error]:
    """Of each what and regime: the median over tables of each figure, in the order of first appearance."""
    out = []
    for what, regime in dict.fromkeys((e.what, e.regime) for e in errors):
        of = [e for e in errors if (e.what, e.regime) == (what, regime)]
        if len(of) > 1:
            figures = np.median([e[6:] for e in of], axis=0)
            out.append(Error(what, "median", "all", "all", regime, sum(e.n_rows for e in of), *map(float, figures)))
    return out


def promise(errors: list[Error], what: str, regime: str, must: tuple, stretch: tuple = ()) -> Check:
    """Whether the median over tables keeps a limit on median / 90th percentile."""
    e = next(m for m in medians(errors) if (m.what, m.regime) == (what, regime))
    holds = e.median_percent <= must[0] and e.p90_percent <= must[1]
    verdict = "holds" if holds else "FAILS"
    if stretch:
        reached = e.median_percent <= stretch[0] and e.p90_percent <= stretch[1]
        verdict += f"; stretch {stretch[0]}/{stretch[1]} {'reached' if reached else 'missed'}"
    found = f"{e.median_percent:.1f}/{e.p90_percent:.1f}"
    return Check(f"{what}, {regime}, held out, median / p90", found, f"{must[0]}/{must[1]}", verdict)


def at_most(what: str, found: float, most: float, *, reported: bool = False) -> Check:
    """A figure in percent with its limit; only reported where nothing was promised."""
    verdict = "reported" if reported else ("holds" if found <= most else "FAILS")
    return Check(what, f"{found:.1f}", "" if reported else f"{most:g}", verdict)


def never_below(
    what: str, ours: np.ndarray, bound: np.ndarray, latency_s: np.ndarray, arithmetic: np.ndarray | None = None
) -> Iterator[Check]:
    """Measured rows that beat the roofline's memory had their data in L2; ones that beat its arithmetic do not exist:
    there our count or our format is wrong. Ours are never below."""
    yield Check(f"{what}, measured below the bound", f"{100 * np.mean(latency_s < bound):.2f} %", "", "in cache")
    if arithmetic is not None:
        n = int(np.sum(latency_s < arithmetic))
        yield Check(f"{what}, measured below the arithmetic", f"{n}", "0", "FAILS" if n else "holds")
    n = int(np.sum(ours < bound))
    yield Check(f"{what}, ours below the bound", f"{n}", "0", "FAILS" if n else "holds")


def endless_memory(chip: str) -> hardware.Chip:
    """The chip without its memory roof: its bound is arithmetic alone."""
    return replace(hardware.chip(chip), hbm_bytes_per_s=1e30)


TRANSFERS = (
    ("h100_sxm", "h200_sxm"), ("h200_sxm", "h100_sxm"), ("b200_sxm", "gb300"), ("gb300", "b200_sxm"),
    ("h100_sxm", "gb300"),
)  # fmt: skip
"""From which chip's numbers to which chip: the same generation both ways, and across."""


def sources(chip: str) -> Iterator[tuple[str, str]]:
    """Chips whose numbers are tried on ``chip``, with the name of the regime."""
    for source, target in TRANSFERS:
        if target == chip:
            yield source, f"{source} to {target}"


def as_text(
    tool: str, title: str, columns: tuple[str, ...], rows: Iterable[tuple], engines: Iterable[str] = measured.ENGINES
) -> str:
    out = io.StringIO()
    engines = ", ".join(f"{e} {measured.VERSIONS[e]}" for e in engines)
    out.write(
        f"# title: {title}\n# source: {measured.PACKAGE}, systems/data (NVIDIA, github.com/ai-dynamo/aiconfigurator)\n"
    )
    out.write(f"# version: {measured.package_version()}; engines {engines}\n# date: {fitting.DATE}\n")
    out.write(f"# licence: {measured.LICENCE}\n# drawn_by: tools/{tool}.py --write\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([f"{x:.1f}".replace("-0.0", "0.0") if isinstance(x, float) else x for x in row] for row in rows)
    return out.getvalue()


def finish(
    tool: str,
    name: str,
    title: str,
    errors: list[Error],
    checks: list[Check],
    argv: tuple[str, ...],
    engines: Iterable[str] = measured.ENGINES,
) -> int:
    """Print everything, write or compare data/validation/NAME.csv and NAME_checks.csv, and say what failed."""
    for e in errors:
        print(f"{e.median_percent:6.1f} / {e.p90_percent:5.1f} ({e.bias_percent:+6.1f})  {' '.join(map(str, e[:6]))}")
    for c in checks:
        print(f"{c.verdict:32s} {c.found:>16s}  {c.what}" + (f" (limit {c.limit})" if c.limit else ""))
    found = {
        f"{name}.csv": as_text(tool, f"errors of {title}, in percent", Error._fields, errors, engines),
        f"{name}_checks.csv": as_text(tool, f"what {title} must fulfil, and do", Check._fields, checks, engines),
    }
    failed = [c.what for c in checks if c.verdict.startswith("FAILS")]
    for file, text in found.items():
        path = FOLDER / file
        if "--write" in argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            committed = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            changed = sorted(set(text.splitlines()) ^ set(committed))
            print(f"{file} is not what was found; lines that differ:", *changed[:20], sep="\n  ")
            failed.append(file)
    done = f"{name}: all that must hold does, and the committed figures are those found"
    print("FAILED: " + "; ".join(failed) if failed else done)
    return int(bool(failed))
