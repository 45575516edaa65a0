"""Seconds of matrix multiplications: the form by hand, its limits, and measured rows."""

import csv
import dataclasses
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.cost import blocks, calibration, kernels, ops, roofline
from codesign_lib.specs.formats import BF16, NVFP4
from codesign_lib.specs.hardware import CHIPS, chip

CALIBRATED = [c for c in calibration.table() if c.kernel == "gemm" and c.chip != calibration.UNIVERSAL]
SIZES = st.integers(1, 200_000)
ONE_TILE = kernels.Kernel(tiles=((128, 256),), whole_waves=True, splits=False, store_bytes=4, source="made for a test")
SPLITTING = dataclasses.replace(ONE_TILE, tiles=((64, 128),), whole_waves=False, splits=True, store_bytes=2)


def rows(name):
    text = files("codesign_lib").joinpath(f"data/{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def columns(of):
    return [np.array([float(r[c]) for r in of]) for c in ("m", "k", "n", "latency_s")]


def errors(of):
    """Relative errors of rows of one chip, engine and format."""
    m, k, n, latency_s = columns(of)
    first = of[0]
    return kernels.gemm_s(m, k, n, chip=first["chip"], fmt=first["fmt"], engine=first["engine"]) / latency_s - 1


def test_the_form_by_hand():
    numbers = {"launch_s": 5e-6, "compute_fraction": 0.5, "memory_fraction": 0.8, "quantise_fraction": 0.4}
    m, k, n = 513, 4096, 8192
    waves = np.ceil(5 * 32 / 152)
    compute = waves * 2 * 128 * 256 * k / (0.5 * 15e15 / 152)
    memory = (0.5625 * (m * k + n * k) + 4 * m * n) / (0.8 * 8e12)
    expected = 5e-6 + m * k * 2.5625 / (0.4 * 8e12) + np.hypot(compute, memory)
    found = kernels.form_s(m, k, n, chip="gb300", fmt="nvfp4", kernel=ONE_TILE, numbers=numbers)
    assert found == pytest.approx(expected, rel=1e-12)


def test_splitting_by_hand():
    numbers = {"launch_s": 2e-6, "compute_fraction": 0.7, "memory_fraction": 0.8, "split_s": 3e-6}
    m, k, n = 64, 65536, 128  # one tile for all SMs
    alone = 2 * 64 * 128 * k / (0.7 * 2.5e15 / 152)
    split = alone / 152 + 3e-6 + 32 * m * n / (0.8 * 8e12)
    memory = 2 * (m * k + n * k + m * n) / (0.8 * 8e12)
    found = kernels.form_s(m, k, n, chip="gb300", fmt="bf16", kernel=SPLITTING, numbers=numbers)
    assert split < alone
    assert found == pytest.approx(2e-6 + np.hypot(split, memory), rel=1e-12)
    short = kernels.form_s(m, 256, n, chip="gb300", fmt="bf16", kernel=SPLITTING, numbers=numbers)
    assert short < 2e-6 + 1e-6  # a short k is not split


def test_feeding_bounds_small_tiles():
    kernel = dataclasses.replace(SPLITTING, tiles=((16, 128),), splits=False)
    numbers = {"launch_s": 1e-9, "compute_fraction": 1.0, "memory_fraction": 1.0, "operand_bytes_per_s": 1e9}
    found = kernels.form_s(16, 4096, 128, chip="gb300", fmt="bf16", kernel=kernel, numbers=numbers)
    assert found == pytest.approx(4096 * 2 * 144 / 1e9, rel=1e-3)


def test_a_perfect_kernel_approaches_the_roofline():
    kernel = dataclasses.replace(ONE_TILE, store_bytes=2)
    numbers = {"launch_s": 1e-12, "compute_fraction": 1.0, "memory_fraction": 1.0}
    for m, k, n in ((128 * 152 * 8, 2**20, 256 * 64), (128, 2**12, 256 * 152 * 64)):
        found = kernels.form_s(m, k, n, chip="gb300", fmt="bf16", kernel=kernel, numbers=numbers)
        bound = kernels.gemm_s(m, k, n, chip="gb300", fmt="bf16", bound=True)
        assert bound < found < 1.1 * bound


@pytest.mark.parametrize("c", CALIBRATED, ids=lambda c: f"{c.chip}-{c.engine}-{c.fmt}")
@given(m=SIZES, k=SIZES, n=SIZES)
@settings(max_examples=40, deadline=None)
def test_never_faster_than_the_bound(c, m, k, n):
    k *= 16  # NVFP4's block
    for source in (None, calibration.UNIVERSAL, "b200_sxm" if c.fmt == "nvfp4" else "h100_sxm"):
        time_s = kernels.gemm_s(m, k, n, chip=c.chip, fmt=c.fmt, engine=c.engine, transfer_from=source)
        assert time_s >= kernels.gemm_s(m, k, n, chip=c.chip, fmt=c.fmt, engine=c.engine, bound=True)


@pytest.mark.parametrize("key", kernels.KERNELS, ids="-".join)
@given(m=SIZES, k=SIZES, n=SIZES, more=st.integers(1, 1000))
@settings(max_examples=40, deadline=None)
def test_more_is_never_faster(key, m, k, n, more):
    engine, fmt = key
    k *= 16  # NVFP4's block
    base, *larger = kernels.gemm_s(
        [m, m + more, m, m], [k, k, k + 16 * more, k], [n, n, n, n + more], chip="gb300", fmt=fmt, engine=engine
    )
    assert all(t >= base * (1 - 1e-12) for t in larger)


@pytest.mark.parametrize("fmt", ["bf16", "fp8", "fp8_block", "nvfp4"])
def test_the_bound_is_the_roofline(fmt):
    m, k, n = np.array([1, 300, 8192]), 4096, 7168
    work = ops.linear(m, k, n, inputs=fmt, weights=fmt, outputs="bf16")
    bound = kernels.gemm_s(m, k, n, chip="gb300", fmt=fmt, bound=True)
    np.testing.assert_array_equal(bound, roofline.time_s(work, "gb300", fmt))


def test_the_bound_needs_no_calibration():
    assert kernels.gemm_s(1, 4096, 4096, chip="tpu_v6e", fmt="bf16", bound=True) > 0
    assert kernels.gemm_s(1, 4096, 4096, chip="mi355x", fmt="mxfp4", bound=True) > 0


def test_shapes_broadcast_and_blocks_do_not_show():
    m, k, n = np.arange(1, 41)[:, None, None], np.array([512, 4096])[:, None], np.arange(128, 128 * 400, 128)
    together = kernels.gemm_s(m, k, n, chip="gb300", fmt="bf16")
    assert together.shape == (40, 2, 399) and together.size > blocks.BLOCK and together.dtype == np.float64
    for i, j, h in ((0, 0, 0), (17, 1, 200), (39, 1, 398)):
        alone = kernels.gemm_s(m[i, 0, 0], k[j, 0], n[h], chip="gb300", fmt="bf16")
        assert alone.shape == () and alone == together[i, j, h]
    assert kernels.gemm_s(np.zeros(0), 1, 1, chip="gb300", fmt="bf16").shape == (0,)


def test_small_integers_do_not_overflow():
    sizes = np.array([65536, 30000], dtype=np.int32)
    as_integers = kernels.gemm_s(sizes, sizes, sizes, chip="gb300", fmt="nvfp4")
    np.testing.assert_array_equal(as_integers, kernels.gemm_s(*[sizes.astype(float)] * 3, chip="gb300", fmt="nvfp4"))


@pytest.mark.parametrize("fmt", ["bf16", "fp8", "fp8_block", "nvfp4"])
def test_measured_sample_within_recorded_errors(fmt):
    groups = {}
    for r in rows("gemm_sample"):
        if r["fmt"] == fmt:
            groups.setdefault((r["chip"], r["engine"]), []).append(r)
    found = np.abs(np.concatenate([errors(of) for of in groups.values()]))
    recorded = np.median([(c.median_error_fraction, c.p90_error_fraction) for c in CALIBRATED if c.fmt == fmt], axis=0)
    # some hundred rows, drawn evenly over regimes where the tables are not
    assert np.all(np.quantile(found, [0.5, 0.9]) < 1.35 * recorded)


def test_measured_staircase_of_a_layer_that_was_not_fitted():
    of = [r for r in rows("gemm_staircase") if (r["engine"], r["fmt"]) == ("trtllm", "nvfp4")]
    assert len(of) == 34 and np.mean(np.abs(errors(of))) < 0.05
    latency_s = {int(r["m"]): float(r["latency_s"]) for r in of}
    ours = kernels.gemm_s([512, 513], 8192, 8192, chip="gb300", fmt="nvfp4")
    assert latency_s[513] / latency_s[512] > 1.4 and ours[1] / ours[0] > 1.25


def test_parts_make_the_whole():
    for c in CALIBRATED:
        p = kernels.gemm_parts_s([[1], [700]], [512, 4096], 2048, chip=c.chip, fmt=c.fmt, engine=c.engine)
        whole = kernels.gemm_s([[1], [700]], [512, 4096], 2048, chip=c.chip, fmt=c.fmt, engine=c.engine)
        assert all(part.shape == (2, 2) for part in p)
        assert (p.quantise_s > 0).all() == (c.fmt != "bf16")
        np.testing.assert_allclose(p.launch_s + p.quantise_s + np.hypot(p.compute_s, p.memory_s), whole, rtol=1e-12)


def test_measured_squares():
    n = np.array([512, 1024, 2048, 4096, 8192, 16384])
    teraflops = {  # GB300, TensorRT-LLM, 8192 tokens
        "nvfp4": [281, 771, 1698, 3123, 4830, 4471],
        "fp8": [204, 629, 1298, 2199, 2727, 3331],
        "bf16": [764, 1400, 1756, 1742, 1868, 1826],
    }
    for fmt, published in teraflops.items():
        ours = 2 * 8192 * n * n / kernels.gemm_s(8192, n, n, chip="gb300", fmt=fmt) / 1e12
        assert np.mean(np.abs(ours / published - 1)) < 0.15


def test_measured_aspect_row_is_best_square_in_both_engines():
    for engine in kernels.ENGINES:
        of = [r for r in rows("gemm_gb300") if (r["engine"], r["fmt"]) == (engine, "nvfp4")]
        of = [r for r in of if int(r["n"]) * int(r["k"]) == 2**24]
        best = min(of, key=lambda r: float(r["latency_s"]))
        assert len(of) == 7 and (best["n"], best["k"]) == ("4096", "4096")


def test_what_transfers():
    own = kernels.gemm_s(4096, 4096, 4096, chip="h100_sxm", fmt="bf16")
    assert kernels.gemm_s(4096, 4096, 4096, chip="h100_sxm", fmt="bf16", transfer_from="h100_sxm") == own
    guess = kernels.gemm_s(4096, 4096, 4096, chip="a100_sxm", fmt="bf16", transfer_from="h100_sxm")
    assert own * 2 < guess < own * 4  # an A100 has 0.315 of the peak
    feed = "operand_bytes_per_s"  # grows with the peak an SM
    numbers = dict(calibration.gemm("h100_sxm", "trtllm", "bf16").numbers)
    numbers[feed] *= (2.25e15 / 148) / (1979e12 / 2 / 132)
    of = dict(chip="b200_sxm", fmt="bf16")
    by_hand = kernels.form_s(64, 4096, 8192, **of, kernel=kernels.KERNELS["trtllm", "bf16"], numbers=numbers)
    assert kernels.gemm_s(64, 4096, 8192, **of, transfer_from="h100_sxm") == pytest.approx(by_hand, rel=1e-12)
    faster = dataclasses.replace(chip("gb300"), hbm_bytes_per_s=16e12)
    what_if = kernels.gemm_s(1, 8192, 8192, chip=faster, fmt="bf16", transfer_from="gb300")
    assert what_if < kernels.gemm_s(1, 8192, 8192, chip="gb300", fmt="bf16")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (dict(chip="gb300", fmt="mxfp4"), "GB300 has no mxfp4|no kernel in mxfp4"),
        (dict(chip="gb300", fmt="int8"), "trtllm has no kernel in int8; it has bf16, fp8, fp8_block, nvfp4"),
        (dict(chip="gb300", fmt="fp16"), "unknown format"),
        (dict(chip="h100_sxm", fmt="nvfp4"), "H100 SXM has no nvfp4 peak"),
        (dict(chip="gb300", fmt="bf16", engine="vllm"), "engine is 'vllm'; allowed: trtllm, sglang"),
        (dict(chip="a100_sxm", fmt="bf16"), "A100 SXM has no calibrated trtllm bf16.*roofline"),
        (dict(chip="h100", fmt="bf16"), "unknown chip"),
        (dict(chip="tpu_v6e", fmt="bf16"), "n_sms"),
        (dict(chip="gb300", fmt="bf16", transfer_from="h100"), "transfer_from='h100' has no calibrated"),
        (dict(chip="gb300", fmt="nvfp4", transfer_from="h100_sxm"), "transfer_from='h100_sxm' has no calibrated"),
        (dict(chip="gb300", fmt="bf16", bound=True, transfer_from="h100_sxm"), "either"),
        (dict(chip=dataclasses.replace(CHIPS["gb300"], n_sms=160), fmt="bf16"), "not the one that was measured"),
    ],
)
def test_what_is_not_known_is_refused(how, message):
    with pytest.raises(ValueError, match=message):
        kernels.gemm_s(128, 4096, 4096, **how)


@pytest.mark.parametrize("bad", [0, -1, 2.5, float("nan"), float("inf"), "8192", True])
@pytest.mark.parametrize("name", ["m", "k", "n"])
@pytest.mark.parametrize("bound", [False, True])
def test_sizes_that_are_none_are_refused(bad, name, bound):
    sizes = dict(m=128, k=4096, n=4096) | {name: bad}
    with pytest.raises(ValueError, match=f"gemm_s: {name} is"):
        kernels.gemm_s(**sizes, chip="gb300", fmt="bf16", bound=bound)


def test_bytes_are_those_of_the_formats():
    assert (BF16.bytes_per_element, NVFP4.bytes_per_element) == (2, 0.5625)
    big = kernels.gemm_s(1, 65536, 65536, chip="gb300", fmt="nvfp4", bound=True)
    assert big == pytest.approx(0.5625 * 65536**2 / 8e12, rel=1e-4)


@pytest.mark.parametrize("field", ["hbm_bytes_per_s", "nvfp4_flops_per_s", "l2_bytes"])
def test_a_changed_chip_needs_a_transfer_by_name(field):
    changed = dataclasses.replace(chip("gb300"), **{field: 1e12})
    with pytest.raises(ValueError, match="this GB300 is not the one that was measured; allowed: transfer_from='gb300'"):
        kernels.gemm_s(64, 4096, 4096, chip=changed, fmt="nvfp4")


def test_the_feed_rate_grows_with_the_peak_from_any_source():
    # B200 to GB300 in BF16: the peak an SM grows by 2500/2250 · 148/152; a feed-bound product shows it
    numbers = calibration.gemm("b200_sxm", "trtllm", "bf16").numbers
    grown = numbers["operand_bytes_per_s"] * (2500 / 2250) * (148 / 152)
    form = dict(chip="gb300", fmt="bf16", kernel=kernels.KERNELS["trtllm", "bf16"])
    wanted = kernels.form_s(8, 65536, 65536, **form, numbers={**numbers, "operand_bytes_per_s": grown})
    assert kernels.gemm_s(8, 65536, 65536, chip="gb300", fmt="bf16", transfer_from="b200_sxm") == pytest.approx(wanted)


def test_the_feed_rate_does_not_shrink_with_the_peak():
    # an H20 is a Hopper with a quarter of the tensor rate an SM: nothing says that its feed is slower
    for fmt in ("bf16", "fp8_block"):
        numbers = calibration.gemm("h100_sxm", "trtllm", fmt).numbers
        wanted = kernels.form_s(
            8, 8192, 8192, chip="h20", fmt=fmt, kernel=kernels.KERNELS["trtllm", fmt], numbers=numbers
        )
        assert kernels.gemm_s(8, 8192, 8192, chip="h20", fmt=fmt, transfer_from="h100_sxm") == pytest.approx(wanted)


@pytest.mark.parametrize("k", [15, 2501, [4096, 360]])
def test_nvfp4_takes_whole_blocks_along_k(k):
    with pytest.raises(ValueError, match=r"gemm_s: k is \d+; allowed in NVFP4: multiples of its block, 16"):
        kernels.gemm_s(1, k, 4096, chip="gb300", fmt="nvfp4")


def test_what_is_no_name_and_no_flag_is_refused():
    with pytest.raises(ValueError, match="transfer_from is \\['gb300'\\]; allowed: the name"):
        kernels.gemm_s(1, 64, 64, chip="gb300", fmt="bf16", transfer_from=["gb300"])
    with pytest.raises(ValueError, match="bound is 'no'; allowed: True, False"):
        kernels.gemm_s(1, 64, 64, chip="gb300", fmt="bf16", bound="no")
    with pytest.raises(ValueError, match=r"gemm_s: m of shape \(2,\) and k of shape \(3,\)"):
        kernels.gemm_s([1, 2], [64, 64, 64], 64, chip="gb300", fmt="bf16")
