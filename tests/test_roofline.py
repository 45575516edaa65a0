import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign_lib.cost import ops, roofline
from codesign_lib.cost.roofline import Work
from codesign_lib.specs.formats import FORMATS
from codesign_lib.specs.hardware import CHIPS, chip

sizes = st.floats(1, 1e7)
chip_and_format = st.sampled_from([(c.name, f) for c in CHIPS.values() for f in c.formats])
format_names = st.sampled_from(list(FORMATS))


@pytest.mark.parametrize(("fmt", "ridge"), [("bf16", 312.5), ("fp8", 625), ("nvfp4", 1875)])
def test_ridges_of_gb300(fmt, ridge):
    assert roofline.ridge_flops_per_byte("gb300", fmt) == pytest.approx(ridge, rel=1e-9)


@pytest.mark.parametrize(
    ("inputs", "outputs", "square", "rounded_up"),
    [
        ("bf16", "bf16", 625, 625),
        ("fp8", "bf16", 937.5, 938),
        ("nvfp4", "bf16", 2402.34375, 2403),
        ("nvfp4", "nvfp4", 1054.6875, 1055),
    ],
)
def test_square_thresholds_of_gb300(inputs, outputs, square, rounded_up):
    found = roofline.min_sizes("gb300", inputs=inputs, outputs=outputs).square
    assert found == pytest.approx(square, rel=1e-9)
    assert np.ceil(found) == rounded_up


def test_one_sided_thresholds_of_gb300():
    found = roofline.min_sizes("gb300", inputs="nvfp4", outputs="bf16")
    assert found.k == pytest.approx(1875, rel=1e-9)
    assert found.n == pytest.approx(527.34375, rel=1e-9)


def test_time_is_the_larger_term():
    gb300 = chip("gb300")
    assert roofline.time_s(Work(15e15, 1.0), gb300, "nvfp4") == 1.0
    assert roofline.time_s(Work(1.0, 8e12), gb300, "nvfp4") == 1.0
    assert roofline.time_s(Work(15e15, 8e12), gb300, "nvfp4") == 1.0


def test_time_broadcasts_over_a_sweep():
    work = ops.linear(
        np.arange(1, 4)[:, None], 512, np.array([256, 512]), inputs="bf16", weights="bf16", outputs="bf16"
    )
    assert roofline.time_s(work, "gb300", "bf16").shape == (3, 2)
    one = ops.linear(3, 512, 256, inputs="bf16", weights="bf16", outputs="bf16")
    assert roofline.time_s(work, "gb300", "bf16")[2, 0] == roofline.time_s(one, "gb300", "bf16")


@given(sizes, sizes, chip_and_format, format_names)
def test_limit_is_reached_from_below(k, n, on, outputs):
    _, fmt = on
    limit = roofline.intensity_limit(k, n, inputs=fmt, outputs=outputs)
    few, many = (ops.linear(m, k, n, inputs=fmt, weights=fmt, outputs=outputs).intensity for m in (1e3, 1e12))
    assert few <= many <= limit * (1 + 1e-12)
    assert many == pytest.approx(limit, rel=1e-4)


@given(sizes, sizes, chip_and_format, format_names, format_names)
def test_min_tokens_is_where_both_terms_are_equal(k, n, on, weights, outputs):
    name, fmt = on
    m = roofline.min_tokens(k, n, name, inputs=fmt, weights=weights, outputs=outputs)
    ridge = roofline.ridge_flops_per_byte(name, fmt)
    if np.isinf(m):
        assert roofline.intensity_limit(k, n, inputs=fmt, outputs=outputs) <= ridge
    elif m < 1e12:  # closer to the limit the difference of two nearly equal numbers decides
        work = ops.linear(m, k, n, inputs=fmt, weights=weights, outputs=outputs)
        assert work.intensity == pytest.approx(ridge, rel=1e-6)


@given(chip_and_format, format_names)
def test_no_tokens_suffice_at_the_threshold_itself(on, outputs):
    name, fmt = on
    h = roofline.min_sizes(name, inputs=fmt, outputs=outputs).square
    mix = {"inputs": fmt, "weights": fmt, "outputs": outputs}
    assert np.isinf(roofline.min_tokens(h, h, name, **mix))
    assert np.isfinite(roofline.min_tokens(h * 1.001, h * 1.001, name, **mix))


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_min_tokens_of_absurd_sizes_is_not_nan(size):
    assert not np.isnan(roofline.min_tokens(size, size, "gb300", inputs="bf16", weights="bf16", outputs="bf16"))


@given(chip_and_format, format_names)
def test_min_sizes_are_where_the_limit_meets_the_ridge(on, outputs):
    name, fmt = on
    ridge, least = roofline.ridge_flops_per_byte(name, fmt), roofline.min_sizes(name, inputs=fmt, outputs=outputs)
    limit = lambda k, n: roofline.intensity_limit(k, n, inputs=fmt, outputs=outputs)  # noqa: E731
    assert limit(least.square, least.square) == pytest.approx(ridge, rel=1e-9)
    assert limit(least.k, 1e15) == pytest.approx(ridge, rel=1e-6)
    assert limit(1e15, least.n) == pytest.approx(ridge, rel=1e-6)


def test_a_share_of_the_peak_needs_less():
    mix = {"inputs": "nvfp4", "outputs": "bf16"}
    assert roofline.min_sizes("gb300", **mix, of_peak=0.9).square == pytest.approx(0.9 * 2402.34375, rel=1e-12)
    tokens = [roofline.min_tokens(2048, 7168, "gb300", **mix, weights="nvfp4", of_peak=s) for s in (0.9, 1.0)]
    work = ops.linear(tokens[0], 2048, 7168, **mix, weights="nvfp4")
    reached = work.flops / roofline.time_s(work, "gb300", "nvfp4") / 15e15
    assert tokens[0] < tokens[1]
    assert reached == pytest.approx(0.9, rel=1e-9)


@pytest.mark.parametrize("bad", [0.0, 1.1, float("nan"), [0.5, 0.9]])
def test_a_share_of_the_peak_is_one_number_up_to_1(bad):
    with pytest.raises(ValueError, match="of_peak is"):
        roofline.min_sizes("gb300", inputs="bf16", outputs="bf16", of_peak=bad)


def test_aspect_ratio_best_at_the_ratio_of_bytes():
    # closed form: at fixed n·k the limit is largest at n/k = b_a/b_o: 0.28 for NVFP4 in and BF16 out
    ratio = np.logspace(-2, 2, 4001)
    k = np.sqrt(2.0**24 / ratio)
    best = ratio[np.argmax(roofline.intensity_limit(k, k * ratio, inputs="nvfp4", outputs="bf16"))]
    assert best == pytest.approx(0.5625 / 2, rel=2e-3)


class TestFractionOfBound:
    def test_value(self):
        assert roofline.fraction_of_bound(Work(480e12, 0.0), 1.0, "h100_sxm", "bf16") == pytest.approx(0.485, abs=5e-4)

    def test_faster_than_the_bound_is_an_error(self):
        # 5.98 TB/s on a chip of 4.8 TB/s: all experts were counted where a few are read
        with pytest.raises(ValueError, match=r"1\.24583 times the bound of H200 SXM in BF16; allowed: at most 1"):
            roofline.fraction_of_bound(Work(0.0, 5.98e12), 1.0, "h200_sxm", "bf16")

    def test_one_time_of_many_above_the_bound_is_an_error(self):
        with pytest.raises(ValueError, match="2 times the bound"):
            roofline.fraction_of_bound(Work(989.5e12, 0.0), [2.0, 0.5], "h100_sxm", "bf16")
        with pytest.raises(ValueError, match=r"1\.001 times the bound"):
            roofline.fraction_of_bound(Work(989.5e12, 0.0), 1 / 1.001, "h100_sxm", "bf16")

    def test_exactly_the_bound_does_not_hang_on_the_last_bit(self):
        assert roofline.fraction_of_bound(Work(989.5e12, 0.0), 1 - 1e-12, "h100_sxm", "bf16") == 1

    def test_shapes_that_do_not_broadcast_are_named(self):
        with pytest.raises(ValueError, match=r"fraction_of_bound: work of shape \(2,\) and measured_s of shape \(3,\)"):
            roofline.fraction_of_bound(Work([1.0, 2.0], 0.0), [1.0, 2.0, 3.0], "gb300", "bf16")

    @pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
    def test_refuses_times_that_are_none(self, bad):
        with pytest.raises(ValueError, match="measured_s is"):
            roofline.fraction_of_bound(Work(1.0, 1.0), bad, "gb300", "bf16")


class TestWork:
    def test_adds_and_scales(self):
        total = Work(1.0, 2.0) + 3 * Work(10.0, 20.0)
        assert (total.flops, total.bytes) == (31.0, 62.0)

    def test_intensity_of_nothing_moved_is_infinite(self):
        assert np.isinf(Work(1.0, 0.0).intensity)

    @pytest.mark.parametrize(("flops", "moved"), [(-1.0, 1.0), (1.0, float("nan")), (float("inf"), 1.0), ("1", 1.0)])
    def test_refuses(self, flops, moved):
        with pytest.raises(ValueError, match=r"Work: (flops|bytes) is"):
            Work(flops, moved)

    def test_refuses_shapes_that_do_not_broadcast(self):
        with pytest.raises(ValueError, match=r"Work: flops of shape \(2,\) and bytes of shape \(3,\) do not broadcast"):
            Work(np.ones(2), np.ones(3))

    def test_adds_to_work_alone(self):
        with pytest.raises(TypeError):
            Work(1.0, 1.0) + 1

    def test_an_array_of_times_repeats_by_element(self):
        repeated = np.array([1.0, 2.0]) * Work(3.0, 4.0)
        assert isinstance(repeated, Work)
        assert repeated.flops.tolist() == [3.0, 6.0]

    @pytest.mark.parametrize("bad", [-1, "3", True, float("nan")])
    def test_refuses_times_that_are_none(self, bad):
        with pytest.raises(ValueError, match="Work: times is"):
            Work(1.0, 1.0) * bad

    def test_is_read_only(self):
        work = Work(np.ones(2), 1.0)
        with pytest.raises(ValueError, match="read-only"):
            work.flops[0] = 2.0

    def test_is_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            Work(1.0, 1.0).flops = 2.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: roofline.time_s(Work(1.0, 1.0), "gb400", "bf16"),
        lambda: roofline.time_s(Work(1.0, 1.0), "h100_sxm", "nvfp4"),
        lambda: roofline.time_s(Work(1.0, 1.0), "h100_sxm", "fp16"),
        lambda: roofline.intensity_limit(0, 1, inputs="bf16", outputs="bf16"),
        lambda: roofline.min_tokens(1, float("nan"), "gb300", inputs="bf16", weights="bf16", outputs="bf16"),
        lambda: roofline.min_sizes("h100_sxm", inputs="nvfp4", outputs="bf16"),
    ],
)
def test_refusals(call):
    with pytest.raises(ValueError, match=r"unknown chip|has no nvfp4 peak|unknown format|allowed:"):
        call()
