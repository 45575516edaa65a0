"""Fitted numbers: few a chip × engine × format × kernel, with where they come from and how wrong they are.

``data/calibration.csv`` is written by ``tools/calibrate*.py``, which alone fit. Errors are those on rows that the fit
never saw: ``|prediction / measurement − 1|``, its median and 90th percentile, and the median of the signed one; for
attention on rows of at least 1,024 tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from codesign_lib.cost import tiling
from codesign_lib.specs import hardware, published
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.quantities import flags, positive

UNIVERSAL = "universal"
"""Name of the set that is fitted to all chips at once, which is what a new chip may expect."""

RATES = ("operand_bytes_per_s", "stream_bytes_per_s")
"""Numbers that are rates of one SM."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Numbers of one kernel on one chip, in one engine and format.

    ``numbers`` maps names that carry their unit to values: ``launch_s``, ``compute_fraction``, … (see the function
    that uses them). ``shared_with`` names the engine that has the same numbers but ``launch_s``, if there is one. A
    number at a limit of its fit (a fraction of 1, a time of a nanosecond) is of a term that the rows do not ask for: no
    efficiency was measured there.

    >>> c = gemm("gb300", "trtllm", "nvfp4")
    >>> sorted(c.numbers)
    ['compute_fraction', 'launch_s', 'memory_fraction', 'quantise_fraction']
    """

    kernel: str
    chip: str
    engine: str
    fmt: str
    numbers: Mapping[str, float]
    shared_with: str | None
    n_held_out: int
    median_error_fraction: float
    p90_error_fraction: float
    bias_fraction: float
    source: str


@cache
def table(name: str = "calibration") -> tuple[Calibration, ...]:
    """All calibrations of ``data/NAME.csv``, in its order."""
    found = published.table(name)
    rows = (dict(zip(found.columns, row, strict=True)) for row in zip(*found.columns.values(), strict=True))
    source = f"{found.header['source']}, {found.header['version']}"
    return tuple(_calibration(row, source) for row in rows)


def _calibration(row: dict[str, object], source: str) -> Calibration:
    pairs = (pair.split("=") for pair in str(row["numbers"]).split())
    return Calibration(
        kernel=str(row["kernel"]),
        chip=str(row["chip"]),
        engine=str(row["engine"]),
        fmt=str(row["fmt"]),
        numbers=MappingProxyType({name: float(value) for name, value in pairs}),
        shared_with=str(row["shared_with"]) or None,
        n_held_out=int(row["n_held_out"]),
        median_error_fraction=float(row["median_error_fraction"]),
        p90_error_fraction=float(row["p90_error_fraction"]),
        bias_fraction=float(row["bias_fraction"]),
        source=source,
    )


def find(kernel: str, chip: str, engine: str, fmt: str) -> Calibration | None:
    """The calibration of that name, None where there is none."""
    return _index().get((kernel, chip, engine, fmt))


def chips(kernel: str, engine: str, fmt: str) -> tuple[str, ...]:
    """Chips for which that kernel is calibrated, the universal set included.

    >>> chips("gemm", "trtllm", "nvfp4")
    ('b200_sxm', 'b300_sxm', 'gb200', 'gb300', 'universal')
    """
    return tuple(c.chip for c in table() if (c.kernel, c.engine, c.fmt) == (kernel, engine, fmt))


NOT_A_KERNEL = {"vllm": " (vllm has no calibrated kernels: serving_step_s, aggregated and sweep give it sglang's)"}
"""What a refusal adds for an engine that is known elsewhere."""


def wants_bound(subject: str, kernel: str, engine: str, bound: bool, transfer_from: str | None) -> bool:
    """Whether the roofline is asked for, which takes no fitted numbers: with ``transfer_from`` ValueError.

    So is an engine that nobody fitted, the same with and without the roofline, and what is not True or False.

    >>> wants_bound("gemm_s", "gemm", "trtllm", True, None)
    True
    """
    flags(subject, bound=bound)
    engines = tuple(dict.fromkeys(x.engine for x in table() if x.kernel == kernel))
    if engine not in engines:
        raise ValueError(
            f"{subject}: engine is {engine!r}; allowed: {', '.join(engines)}{NOT_A_KERNEL.get(engine, '')}"
        )
    if bound and transfer_from is not None:
        raise ValueError(f"{subject}: bound=True takes no fitted numbers; allowed: either bound=True or transfer_from")
    return bool(bound)


def needs(subject: str, chip: Chip, *names: str) -> None:
    """Refuses a chip that lacks a number of its datasheet without which ``subject`` has only the roofline."""
    for name in names:
        if getattr(chip, name) is None:
            raise ValueError(
                f"{subject}: {chip.title} has no {name}: it is not public; allowed: bound=True (the roofline)"
            )


def fitted(
    subject: str, kernel: str, chip: Chip | str, engine: str, fmt: str, *, transfer_from: str | None = None
) -> Mapping[str, float]:
    """The numbers of ``kernel`` for that chip, for ``subject``, the function that asks.

    ``transfer_from`` takes those of another chip, or of the ``universal`` set, instead. Shares of a peak, of the
    bandwidth or of the links are used as they are, with this chip's datasheet; so are seconds, which launching,
    waiting and synchronising take on any chip; rates of one SM grow with the peak an SM and do not shrink where that is
    lower (tensor cores can be slowed without what feeds them).

    Raises ValueError for a chip without numbers, and for a ``Chip`` whose datasheet differs from the one that was
    measured; each names what there is.

    >>> fitted("attention_decode_s", "attention_decode", "mi300x", "trtllm", "bf16")
    Traceback (most recent call last):
    ValueError: attention_decode_s: MI300X has no calibrated trtllm bf16; calibrated: h100_sxm, h200_sxm, b200_sxm,
    b300_sxm, gb200, gb300; allowed: bound=True (the roofline), or transfer_from=one of these
    >>> fitted("attention_decode_s", "attention_decode", "h20", "trtllm", "bf16", transfer_from="h200_sxm")["launch_s"]
    1.319e-05
    """
    c = hardware.chip(chip)
    if not isinstance(transfer_from, str | None):
        raise ValueError(
            f"{subject}: transfer_from is {transfer_from!r}; allowed: the name of a calibrated chip, or None"
        )
    found = find(kernel, c.name if transfer_from is None else transfer_from, engine, fmt)
    if found is None:
        known = ", ".join(chips(kernel, engine, fmt))
        who = c.title if transfer_from is None else f"transfer_from={transfer_from!r}"
        calibrated, other = known, "transfer_from=one of these"
        if not known:  # of no chip: what else there is on this one
            pairs = dict.fromkeys(f"{x.engine} {x.fmt}" for x in table() if (x.kernel, x.chip) == (kernel, c.name))
            calibrated, other = f"on no chip; {c.title} has {', '.join(pairs) or 'none'}", "one of these formats"
        raise ValueError(
            f"{subject}: {who} has no calibrated {engine} {fmt}; calibrated: {calibrated}; "
            f"allowed: bound=True (the roofline), or {other}"
        )
    if transfer_from is None and c != hardware.CHIPS.get(c.name):
        raise ValueError(
            f"{subject}: this {c.title} is not the one that was measured; allowed: transfer_from={c.name!r} "
            "(its fitted numbers with the changed datasheet), or bound=True (the roofline)"
        )
    if transfer_from not in hardware.CHIPS:
        return found.numbers
    return _rates_grown(found.numbers, hardware.CHIPS[transfer_from], c, fmt)


def _rates_grown(numbers: Mapping[str, float], source: Chip, chip: Chip, fmt: str) -> Mapping[str, float]:
    rates = [name for name in numbers if name in RATES]
    if not rates:
        return numbers
    grown = chip.peak_flops_per_s(fmt) / source.peak_flops_per_s(fmt) * (source.n_sms / chip.n_sms)
    return {**numbers, **{name: numbers[name] * max(1.0, grown) for name in rates}}


def gemm(chip: str, engine: str, fmt: str) -> Calibration:
    """The numbers of :py:func:`codesign_lib.cost.kernels.gemm_s`, with their held-out errors.

    >>> gemm("h100_sxm", "trtllm", "nvfp4")
    Traceback (most recent call last):
    ValueError: no calibrated gemm for h100_sxm in trtllm nvfp4; calibrated: b200_sxm, b300_sxm, gb200, gb300, universal
    """
    found = find("gemm", chip, engine, fmt)
    if found is None:
        known = ", ".join(chips("gemm", engine, fmt)) or "no chip"
        raise ValueError(f"no calibrated gemm for {chip} in {engine} {fmt}; calibrated: {known}")
    return found


def sm_count_errors(
    m: ArrayLike, k: ArrayLike, n: ArrayLike, latency_s: ArrayLike, *, tile: tuple[int, int], candidates: Iterable[int]
) -> dict[int, float]:
    r"""How well each SM count explains the steps in measured times: mean ``|error|`` of the best straight law.

    .. math:: t = (a_1 k + a_2) \lceil \lceil m/x \rceil \lceil n/y \rceil / S \rceil
              + a_3\,mk + a_4\,mn + a_5\,nk + a_6

    Fitted by least squares on relative errors for every candidate S; terms that the rows cannot tell apart do no harm.
    Rows of several n and k are needed: one column leaves neighbours tied.

    >>> m = np.arange(1, 65) * 128
    >>> steps_s = 1e-6 * tiling.n_waves(tiling.n_tiles(m, 8192, tile=(128, 256)), 152) + 5e-6
    >>> errors = sm_count_errors(m, 8192, 8192, steps_s, tile=(128, 256), candidates=(148, 152, 160))
    >>> min(errors, key=errors.get)
    152
    """
    m, k, n, latency_s = np.broadcast_arrays(*positive("sm_count_errors", m=m, k=k, n=n, latency_s=latency_s))
    tiles = tiling.n_tiles(m, n, tile=tile)
    linear = [m * k, m * n, n * k, np.ones(m.shape)]
    found = {}
    for n_sms in candidates:
        waves = tiling.n_waves(tiles, n_sms)
        x = np.stack([waves * k, waves, *linear], axis=-1).reshape(m.size, -1) / latency_s.reshape(-1, 1)
        x = x / np.abs(x).max(axis=0)
        best = np.linalg.lstsq(x, np.ones(m.size), rcond=1e-9)[0]
        found[n_sms] = float(np.mean(np.abs(x @ best - 1)))
    return found


@cache
def _index() -> dict[tuple[str, str, str, str], Calibration]:
    return {(c.kernel, c.chip, c.engine, c.fmt): c for c in table()}
