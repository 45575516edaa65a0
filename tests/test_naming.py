"""Every number of a spec says its unit in its name, and every spec says its source."""

import dataclasses
import types
import typing

import pytest

from codesign_lib.cost import calibration, kernels
from codesign_lib.serving import decode
from codesign_lib.specs import formats, hardware, models, published

SPECS = [formats.Format, hardware.Chip, hardware.Other, models.Model, published.Claim]
SPECS += [calibration.Calibration, kernels.Kernel, decode.Overhead]
UNITS = ("_s", "_per_s", "_bytes", "_bits", "_elements", "_hz", "_w", "_fraction", "_ratio", "_params")
# numbers whose unit is stated beside them: the claim's own, or that of the field an Other stands for
UNIT_BESIDE = {"value", "rtol", "quantum", "quantum_before", "recorded_gap"}


def numbers(spec: type) -> list[str]:
    hints = typing.get_type_hints(spec)
    number = {float, int}
    optional = {n: set(typing.get_args(hint)) for n, hint in hints.items() if isinstance(hint, types.UnionType)}
    return [n for n, hint in hints.items() if hint in number or number & optional.get(n, set())]


@pytest.mark.parametrize("spec", [*SPECS, models.LinearLayer], ids=lambda s: s.__name__)
def test_numbers_carry_their_unit(spec):
    for name in numbers(spec):
        counted = name.startswith(("n_", "d_")) or name in ("k", "n", "count")
        assert counted or name.endswith(UNITS) or name in UNIT_BESIDE, f"{spec.__name__}.{name}: which unit?"


def test_fitted_numbers_carry_their_unit():
    names = {name for c in calibration.table() for name in c.numbers}
    assert len(names) >= 5
    assert all(name.endswith(UNITS) for name in names), names


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.__name__)
def test_specs_are_frozen_and_name_their_source(spec):
    assert spec.__dataclass_params__.frozen
    assert all(f.kw_only for f in dataclasses.fields(spec))
    source = next(f for f in dataclasses.fields(spec) if f.name == "source")
    assert source.default is dataclasses.MISSING


@pytest.mark.parametrize(
    "spec", [*formats.FORMATS.values(), *hardware.CHIPS.values(), *models.MODELS.values()], ids=str
)
def test_every_source_says_something(spec):
    assert len(spec.source) > 10


@pytest.mark.parametrize("chip", hardware.CHIPS.values(), ids=str)
def test_every_chip_says_when_its_sources_were_read(chip):
    assert len(chip.as_of.split("-")) == 3
