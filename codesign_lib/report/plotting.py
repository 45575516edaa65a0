"""How results are shown: figure style, one meaning a colour, SI prefixes, sentences and tables.

The only module that needs matplotlib, and tabulate for tables (``pip install .[plot]``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

try:
    import matplotlib
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.ticker import EngFormatter
    from matplotlib_inline.backend_inline import set_matplotlib_formats
    from tabulate import tabulate
except ModuleNotFoundError as missing:
    missing.msg += "; codesign_lib.report.plotting needs it: pip install .[plot]"
    raise

from codesign_lib.cost import roofline
from codesign_lib.specs.formats import Format
from codesign_lib.specs.hardware import Chip

# One meaning a colour in the whole book (Okabe and Ito's palette: told apart by readers with any colour vision).
COMPUTE, MEMORY, NETWORK, MEASURED = "#0072B2", "#D55E00", "#009E73", "#111111"
# For lines that are none of these: formats, models, sizes.
SERIES = ("#7B3294", "#B8860B", "#CC79A7", "#56B4E9", "#8C510A", "#8C8C8C")
# Cells longer than this wrap.
LONG = 24
MARKERS = ("o", "s", "^", "D", "v", "P")


def style() -> None:
    """Set matplotlib to the book's style: SVG that comes out the same, byte for byte, on every machine.

    Text is drawn as paths, ids are hashed with a fixed salt, and the file carries no date.
    """
    plt.style.use("default")
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "codesign",
            "svg.fonttype": "path",
            "figure.figsize": (7.0, 4.0),
            "figure.constrained_layout.use": True,
            "font.size": 10.0,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
            "lines.markersize": 5.5,
            "savefig.transparent": False,
        }
    )
    set_matplotlib_formats("svg", metadata={"Date": None, "Creator": None})


def drawn(values: ArrayLike) -> NDArray[np.float64]:
    """The values rounded to 6 significant digits: what is plotted must not hang on the last bits of another CPU.

    >>> drawn([1 / 3, 123456789.0]).tolist()
    [0.333333, 123457000.0]
    """
    array = np.asarray(values, dtype=np.float64)
    return np.array([float(f"{v:.6g}") for v in array.ravel()]).reshape(array.shape)


def si(value: float, unit: str = "", digits: int = 3, *, prefix: str | None = None) -> str:
    """The value with an SI prefix and ``digits`` significant digits, zeros at the end included up to a unit.

    Bytes take decimal prefixes too. ``prefix`` fixes it, so that a column has one: ``"µ"``.

    >>> si(1.5e16, "FLOP/s"), si(9.16e-6, "s"), si(2.1e-6, "s"), si(8.847e-7, "s", 4, prefix="µ")
    ('15.0 PFLOP/s', '9.16 µs', '2.10 µs', '0.8847 µs')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".strip()
    rounded = float(f"{value:.{digits}g}")
    places = EngFormatter.ENG_PREFIXES
    exponent = min(max(3 * math.floor(math.log10(abs(rounded)) / 3), min(places)), max(places))
    if prefix is not None:
        if prefix not in places.values():
            raise ValueError(f"si: prefix is {prefix!r}; allowed: {', '.join(p for p in places.values() if p)}, or ''")
        exponent = next(e for e, p in places.items() if p == prefix)
    shown = rounded / 10.0**exponent
    if not 1e-6 <= abs(shown) < 1e9:  # beyond the prefixes
        return f"{rounded:.{digits}g} {unit}".strip()
    decimals = max(digits - 1 - math.floor(math.log10(abs(shown))), 0)
    return f"{shown:,.{decimals}f} {places[exponent]}{unit}".strip()


@dataclass(frozen=True)
class Said:
    """A sentence with computed numbers: Markdown for the page, the same text for a terminal."""

    text: str

    def _repr_markdown_(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


def say(text: str) -> Said:
    """A sentence of the study as the output of a cell, so that no number in it is typed by hand."""
    return Said(text)


@dataclass(frozen=True)
class Shown:
    """A table: HTML for the page, plain columns for a terminal."""

    rows: tuple[tuple, ...]
    header: tuple[str, ...]

    def _repr_html_(self) -> str:
        html = tabulate(self.rows, self.header, tablefmt="html", disable_numparse=True, colalign=self._align())
        # a cell of text that would stretch the table wraps; numbers do not
        html = re.sub(rf"<td(?=[^>]*>[^<]{{{LONG},}})", '<td class="long"', html)
        return html.replace("<th", '<th scope="col"').replace('<th scope="col"ead', "<thead")

    def __repr__(self) -> str:
        return tabulate(self.rows, self.header, tablefmt="simple", disable_numparse=True, colalign=self._align())

    def _align(self) -> list[str]:
        """Words to the left, numbers to the right; the first column names the row."""
        numeric = [
            all(re.match(r"[-+−]?[\d.]|[–∞]", cell) for cell in column) for column in zip(*self.rows, strict=True)
        ]
        return ["left", *("right" if n else "left" for n in numeric[1:])] if self.rows else ["left"] * len(self.header)


def table(columns: Mapping[str, Iterable[object]]) -> Shown:
    """A table by columns: header and cells. Text stays as it is; a number is shown with thousands separated.

    Whole and large numbers are shown whole, others with 4 significant digits, infinity as ∞, NaN as –; convert what
    needs a unit with :py:func:`si` or a format of your own. Raises ValueError for columns of different lengths.

    >>> table({"format": ["BF16", "NVFP4"], "ridge, FLOP/B": [312.5, 1875.0]})
    format      ridge, FLOP/B
    --------  ---------------
    BF16                312.5
    NVFP4               1,875
    """
    cells = {name: [_cell(c) for c in column] for name, column in columns.items()}
    lengths = {name: len(column) for name, column in cells.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"table: columns of different lengths: {lengths}")
    return Shown(tuple(zip(*cells.values(), strict=True)), tuple(cells))


def _cell(value: object) -> str:
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        if math.isnan(value):
            return "–"
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        return f"{value:,.0f}" if value == round(value) or abs(value) >= 1e4 else f"{value:,.4g}"
    return str(value)


def line(ax: Axes, x: ArrayLike, y: ArrayLike, *style: str, **options: object) -> None:
    """Draw our model: a line, through numbers rounded as by :py:func:`drawn`."""
    ax.plot(drawn(x), drawn(y), *style, **options)


def markers(
    ax: Axes, x: ArrayLike, y: ArrayLike, *, color: str, marker: str = "o", hollow: bool = False, label: str
) -> None:
    """Draw other people's numbers: markers without a line; hollow ones for a second engine or source."""
    face = "white" if hollow else color
    ax.plot(drawn(x), drawn(y), marker, color=color, markerfacecolor=face, label=label)


def roof(ax: Axes, chip: Chip | str, fmt: Format | str, *, low: float = 1.0, high: float = 1e4) -> None:
    """Draw the roof of one chip and format between two intensities (FLOP/B): memory up to the ridge, then compute."""
    ridge = roofline.ridge_flops_per_byte(chip, fmt)
    if not 0 < low < ridge < high:
        raise ValueError(
            f"roof: low {low!r} and high {high!r}; allowed: above 0, on both sides of the ridge at {ridge:g}"
        )
    for x, color, label in (((low, ridge), MEMORY, "bound: memory"), ((ridge, high), COMPUTE, "bound: compute")):
        work = roofline.Work(flops=np.array(x), bytes=np.ones(2))
        line(ax, x, x / roofline.time_s(work, chip, fmt), color=color, label=label)
    ax.set(xscale="log", yscale="log")


def si_axis(axis: matplotlib.axis.Axis, unit: str = "") -> None:
    """Label the ticks of an axis with SI prefixes: 10 PFLOP/s instead of 1e16."""
    axis.set_major_formatter(EngFormatter(unit=unit, sep=" " if unit else ""))
