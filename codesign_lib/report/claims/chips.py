"""Chips against what sources print, and against what whole racks are said to do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from codesign_lib.cost import roofline
from codesign_lib.report.claims.pair import Pair
from codesign_lib.specs import hardware, published
from codesign_lib.specs.published import EXACT_RTOL_MAX, Claim

# longest suffix first
_UNITS = {
    "n_sms": "",
    "n_scale_up": "",
    "hz": "Hz",
    "flops_per_s": "FLOP/s",
    "ops_per_s": "op/s",
    "bytes_per_s": "B/s",
    "exp_per_s": "exp/s",
    "bytes": "B",
    "w": "W",
}

_RACK = "NVIDIA GB300 NVL72 product page: 72 GPUs, dense; NVLink both directions, halved"
_RACK_TOTALS = {
    "nvfp4_flops_per_s": 1080e15,
    "fp8_flops_per_s": 360e15,
    "bf16_flops_per_s": 180e15,
    "hbm_bytes_per_s": 576e12,
    "link_bytes_per_s": 130e12 / 2,
}


def sheets() -> Iterator[Pair]:
    """Every row of ``data/chip_sheets.csv``; the GB300 rack; and one utilisation that a sparse peak would halve."""
    table = published.table("chip_sheets")
    for name, field, value, quantum, source in zip(*table.columns.values(), strict=True):
        chip = hardware.chip(str(name))
        claim = Claim(
            what=f"{chip.title} {field}", value=float(value), unit=_unit(field), source=str(source), kind="exact",
            quantum=float(quantum), rtol=EXACT_RTOL_MAX,
        )  # fmt: skip
        yield Pair(key=f"chips/{name}/{field}", claim=claim, ours=partial(getattr, chip, str(field)))
    for field, value in _RACK_TOTALS.items():
        # the product page rounds 64.8 TB/s of NVLink to 130 / 2
        claim = Claim(
            what=f"GB300 NVL72 {field}", value=value, unit=_unit(field), source=_RACK, kind="exact", quantum=1e12
        )
        yield Pair(key=f"chips/gb300_nvl72/{field}", claim=claim, ours=partial(_rack_total, "gb300", field))
    claim = Claim(
        what="480 TFLOP/s on an H100, share of its dense peak", value=0.485, unit="", kind="exact", quantum=1e-3,
        source="foundation-model-stack/fms-fsdp issue 89",
    )  # fmt: skip
    yield Pair(key="chips/h100_sxm/utilisation", claim=claim, ours=_h100_utilisation)


def _unit(field: str) -> str:
    return next(unit for suffix, unit in _UNITS.items() if field.endswith(suffix))


def _rack_total(name: str, field: str) -> float:
    chip = hardware.chip(name)
    return chip.n_scale_up * getattr(chip, field)


def _h100_utilisation() -> float:
    return float(roofline.fraction_of_bound(roofline.Work(480e12, 0.0), 1.0, "h100_sxm", "bf16"))
