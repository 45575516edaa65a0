"""MXFP4, MXFP8, FP8: exponent rules against exact arithmetic, policies, errors that are published."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from codesign_lib.lowbit import elements, microscaling
from codesign_lib.lowbit.elements import E2M1, E4M3, E5M2
from codesign_lib.lowbit.error_law import relative_mse
from codesign_lib.specs.formats import FP8, MXFP4, MXFP8

RULES = microscaling.RULES
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
CALLS = {
    "mxfp4": microscaling.mxfp4,
    "mxfp8": microscaling.mxfp8,
    "mxfp8 e5m2": lambda x, **kw: microscaling.mxfp8(x, element="e5m2", **kw),
    "fp8": lambda x, pad=False: microscaling.fp8(x),
}


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def exact_exponent(amax, fmt, rule):
    """The rule in whole numbers and fractions of two, no floating-point logarithm."""
    mantissa, exponent = math.frexp(amax)  # amax = mantissa · 2^exponent, mantissa in [0.5, 1)
    mantissa, exponent = 2 * mantissa, exponent - 1
    if rule == "floor":
        return exponent - fmt.largest_exponent
    if rule == "ceil":
        return exponent + (mantissa > 1) - fmt.largest_exponent
    if rule == "even":
        unit = 2.0**-fmt.n_mantissa_bits
        return exponent + (math.floor(mantissa / unit + 0.5) * unit >= 2) - fmt.largest_exponent
    return exponent - fmt.largest_exponent + (mantissa > fmt.largest / 2.0**fmt.largest_exponent)


@settings(max_examples=200, deadline=None)
@given(
    amax=st.floats(min_value=2**-100, max_value=2**120, width=32),
    fmt=st.sampled_from([E2M1, E4M3, E5M2]),
    rule=st.sampled_from(RULES),
)
def test_exponent_rules(amax, fmt, rule):
    for value in (amax, math.ldexp(1.75, math.frexp(amax)[1]), math.ldexp(1.5, math.frexp(amax)[1])):
        got = int(microscaling.block_exponents(np.array([value], np.float32), fmt, rule)[0]) - 127
        assert got == np.clip(exact_exponent(float(np.float32(value)), fmt, rule), -127, 127)


@pytest.mark.parametrize("fmt", [E2M1, E4M3, E5M2], ids=lambda f: f.name)
def test_rceil_just_above_the_largest(fmt):
    edge = np.float32(fmt.largest)
    amax = np.array([edge, np.nextafter(edge, np.float32(1e9))], np.float32)
    assert microscaling.block_exponents(amax, fmt, "rceil").tolist() == [127, 128]


def test_smallest_and_largest_exponent():
    amax = np.array([0, 1e-45, 2**-128, 3e38], np.float32)
    for rule in RULES:
        got = microscaling.block_exponents(amax, E2M1, rule)
        assert got[:2].tolist() == [0, 0] and got[3] in (252, 253)
    assert microscaling.block_exponents(np.array([6 * 2**-127, 6.1 * 2**-127], np.float32), E2M1, "rceil").tolist() == [
        0,
        1,
    ]


@settings(max_examples=60, deadline=None)
@given(x=arrays(np.float32, (2, 64), elements=finite), rule=st.sampled_from(RULES), e=st.sampled_from(["e2m1", "e4m3"]))
def test_brute_force_nearest(x, rule, e):
    q = microscaling.mxfp4(x, rule=rule) if e == "e2m1" else microscaling.mxfp8(x, rule=rule)
    scale = np.exp2(q.scales.astype(np.float64) - 127).repeat(32, axis=-1)
    levels = elements.values(elements.element(e)).astype(np.float64)
    levels = levels[np.isfinite(levels)]
    value = levels[np.searchsorted(levels[: len(levels) // 2], 0)]
    assert value == 0
    got = elements.decode(q.codes, elements.element(e)).astype(np.float64)
    y = x / scale
    assert (np.abs(got - y) == np.abs(levels - y[..., None]).min(-1)).all()  # powers of two: no rounding anywhere


@settings(max_examples=40, deadline=None)
@given(x=arrays(np.float32, (2, 64), elements=finite), name=st.sampled_from(list(CALLS)))
def test_finite_monotone_odd(x, name):
    values = microscaling.dequantise(CALLS[name](np.sort(x, axis=-1)))
    assert np.isfinite(values).all()
    for part in np.split(values, 2, axis=-1):
        assert (np.diff(part, axis=-1) >= 0).all()
    assert (microscaling.dequantise(CALLS[name](-x)) == -microscaling.dequantise(CALLS[name](x))).all()


@pytest.mark.parametrize("rule", ["rceil", "ceil"])
def test_rules_that_do_not_clip(rule):
    x = gaussian(64, 64)
    q = microscaling.mxfp4(x, rule=rule)
    largest = 6 * np.exp2(q.scales.astype(np.float64) - 127)
    amax = np.abs(x.reshape(64, 2, 32)).max(-1)
    assert (amax <= largest * (1 if rule == "rceil" else 4 / 3)).all()


@pytest.mark.parametrize("name", CALLS)
def test_idempotent(name):
    values = microscaling.dequantise(CALLS[name](gaussian(16, 64)))
    assert (microscaling.dequantise(CALLS[name](values)) == values).all()


@pytest.mark.parametrize("name", CALLS)
def test_policies(name):
    call = CALLS[name]
    x = gaussian(3, 64)
    before = x.copy()
    q = call(x)
    assert (x == before).all() and q.codes.shape == x.shape
    assert (call(np.asfortranarray(x)).codes == q.codes).all() and (call(x.astype(np.float64)).codes == q.codes).all()
    assert not microscaling.dequantise(call(np.zeros((2, 32)))).any()
    assert microscaling.dequantise(call(np.zeros((0, 32)))).shape == (0, 32)
    assert np.signbit(microscaling.dequantise(call(np.full(32, -0.0)))).all()
    with pytest.raises(ValueError, match=r"x is nan at index \(1, 2\)"):
        call(np.where(np.arange(64).reshape(2, 32) == 34, np.nan, 1.0))
    with pytest.raises(ValueError, match="dtype int64"):
        call(np.zeros(32, np.int64))


@pytest.mark.parametrize("name", [n for n in CALLS if n != "fp8"])
def test_padding(name):
    x = gaussian(3, 40)
    with pytest.raises(ValueError, match="last axis of x holds 40 elements; allowed: a multiple of 32, or pad=True"):
        CALLS[name](x)
    q = CALLS[name](x, pad=True)
    assert microscaling.dequantise(q).shape == (3, 40) and q.scales.shape == (3, 2)
    whole = microscaling.dequantise(CALLS[name](np.pad(x, ((0, 0), (0, 24)))))
    assert (microscaling.dequantise(q) == whole[:, :40]).all()


def test_storage_is_the_formats():
    x = gaussian(2, 64)
    assert microscaling.mxfp4(x).storage_bytes == 128 * MXFP4.bytes_per_element == 68
    assert microscaling.mxfp8(x).storage_bytes == 128 * MXFP8.bytes_per_element == 132
    assert microscaling.fp8(x).storage_bytes == 128 * FP8.bytes_per_element + 4


def test_refusals():
    for bad in (None, "a", gaussian(2, 32)):
        with pytest.raises(ValueError, match="dequantise: q is of type .*; allowed: a Scaled"):  # noqa: RUF043
            microscaling.dequantise(bad)
    with pytest.raises(ValueError, match="block_exponents: rule is 'round'; allowed: floor, rceil, even, ceil"):
        microscaling.block_exponents(np.ones(2, np.float32), E2M1, "round")
    with pytest.raises(ValueError, match="mxfp4: rule is 'round'; allowed: floor, rceil, even, ceil"):
        microscaling.mxfp4(np.zeros(32), rule="round")
    with pytest.raises(ValueError, match="mxfp8: element is 'e2m1'; allowed: e4m3, e5m2"):
        microscaling.mxfp8(np.zeros(32), element="e2m1")


def test_fp8_extremes():
    for x in (np.full(4, 3.4e38), np.full(4, 1e-45), np.array([1e-45, 3.4e38])):
        assert np.isfinite(microscaling.dequantise(microscaling.fp8(x))).all()


def test_fp8_of_numbers_too_small_for_a_scale():
    """amax/448 is below every float32, so S is the smallest; zeros stay zeros, not 0/0."""
    smallest = np.finfo(np.float32).smallest_subnormal
    q = microscaling.fp8(np.array([100 * smallest, -smallest, 0.0], np.float32))
    assert q.scales == smallest and q.codes[2] == 0
    assert microscaling.dequantise(q)[1:].tolist() == [-smallest, 0.0]


@pytest.mark.parametrize(
    "call",
    [*(partial(microscaling.mxfp4, rule=r) for r in RULES),
     *(partial(microscaling.mxfp8, rule=r, element=e) for r in RULES for e in ("e4m3", "e5m2")),
     microscaling.fp8, partial(microscaling.fp8, element="e5m2")],
)  # fmt: skip
def test_what_rounds_beyond_float32_is_its_largest(call):
    end = np.finfo(np.float32).max
    for x in (np.full(32, end), np.full(32, -end), np.linspace(0.5, 1, 32, dtype=np.float32) * end):
        values = microscaling.dequantise(call(x))
        assert np.isfinite(values).all()
        assert np.abs(values / end - x / end).max() <= 0.5  # a clip to 1.5 or 1.75 of 2 at most, or half a step of E2M1


def test_fp8_rounds_up_to_the_largest():
    """Of the amax whose S·448 is an infinity, the largest float32 comes back."""
    amaxes = np.finfo(np.float32).max * (1 - np.arange(60, dtype=np.float32) * np.float32(2.0**-23))
    values = [microscaling.dequantise(microscaling.fp8(np.array([a], np.float32)))[0] for a in amaxes]
    assert values == pytest.approx(amaxes.tolist(), rel=3e-7)


# relative squared errors, 2048² draws: the numbers of the field's references; 1 % at 1024²
@pytest.mark.parametrize(
    ("name", "rule", "expected_gaussian", "expected_laplace"),
    [
        ("mxfp4", "floor", 1.322e-2, 1.605e-2),
        ("mxfp4", "rceil", 1.331e-2, 1.744e-2),
        ("mxfp4", "even", 1.251e-2, 1.532e-2),
        ("mxfp8", "floor", 8.609e-4, 1.002e-3),
        ("mxfp8", "rceil", 7.043e-4, 7.018e-4),
        ("fp8", None, 7.018e-4, 7.004e-4),
    ],
)
def test_relative_errors(name, rule, expected_gaussian, expected_laplace):
    rng = np.random.default_rng(0)
    for x, expected in (
        (rng.standard_normal((1024, 1024)), expected_gaussian),
        (rng.laplace(size=(1024, 1024)), expected_laplace),
    ):
        q = CALLS[name](x) if rule is None else CALLS[name](x, rule=rule)
        assert relative_mse(x, microscaling.dequantise(q)) == pytest.approx(expected, rel=0.01)
