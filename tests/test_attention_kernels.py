"""Seconds of attention kernels: the forms by hand, their limits, and measured rows."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.cost import attention_kernels, blocks, calibration, latent_kernels, roofline
from codesign_lib.cost.attention_kernels import attention_decode_s, attention_prefill_s
from codesign_lib.cost.latent_kernels import latent_decode_s, latent_prefill_s
from codesign_lib.cost.ops import attention
from codesign_lib.specs import published
from codesign_lib.specs.hardware import CHIPS, chip

FAMILIES = ("attention_decode", "attention_decode_unfused", "attention_prefill", "latent_decode", "latent_prefill")
CALIBRATED = [c for c in calibration.table() if c.kernel in FAMILIES]
ONE = attention_kernels.DecodeKernel(numbers="", groups=(1, 10**9), per_head=False, source="made for a test")
DECODE = {
    "launch_s": 8e-6,
    "stream_s": 1e-6,
    "stream_bytes_per_s": 5e11,
    "split_s": 5e-6,
    "memory_fraction": 0.8,
}
PREFILL = {
    "launch_s": 1e-5,
    "compute_fraction": 0.5,
    "block_s": 2e-6,
    "memory_fraction": 0.4,
    "longest_ratio": 0.7,
}
GQA = dict(n_heads=64, n_kv_heads=8)


def decode_form(s, b, h, k, d, *, kernel=ONE, fmt="bf16", repeated=False, **change):
    numbers = DECODE | change
    how = dict(chip="gb300", fmt=fmt, kernel=kernel, numbers=numbers, repeated=repeated)
    return attention_kernels.decode_form_s(s, b, h, k, d, **how)


class TestForms:
    def test_decode_by_hand_with_many_streams(self):
        s, b, h, k, d = 4096, 64, 32, 8, 128
        alone, waves = 1e-6 + 2 * s * d * 2 / 5e11, 64 * 8 / 152
        memory = (2 * b * s * k * d * 2 + 4 * b * h * d) / (0.8 * 8e12)
        expected = 8e-6 + ((alone * waves) ** 1.5 + memory**1.5) ** (2 / 3)
        assert decode_form(s, b, h, k, d) == pytest.approx(expected, rel=1e-12)

    def test_decode_by_hand_with_few_streams(self):
        s, b, h, k, d = 65_536, 1, 32, 2, 128
        alone, waves = 1e-6 + 2 * s * d * 1 / 5e11, 2 / 152
        memory = (2 * s * k * d * 1 + 4 * h * d) / (0.8 * 8e12)
        split = alone * waves + 5e-6
        assert split < alone
        expected = 8e-6 + (split**1.5 + memory**1.5) ** (2 / 3)
        assert decode_form(s, b, h, k, d, fmt="fp8") == pytest.approx(expected, rel=1e-12)

    def test_a_kernel_a_head_has_as_many_streams(self):
        per_head = dataclasses.replace(ONE, per_head=True)
        every = decode_form(512, 64, 64, 8, 128, kernel=per_head)
        assert every - 8e-6 > 8 * 64 / 152 * 8 * (1e-6 + 2 * 512 * 128 * 2 / 5e11)
        assert every > 1.8 * decode_form(512, 64, 64, 8, 128)

    def test_what_stays_in_l2_costs_no_traffic(self):
        small, large = (256, 8, 64, 8, 128), (131_072, 64, 64, 8, 128)
        kept = decode_form(*small, repeated=True, stream_s=1e-12, stream_bytes_per_s=1e16, split_s=1e-12)
        assert kept == pytest.approx(8e-6 + 4 * 8 * 64 * 128 / (0.8 * 8e12), rel=1e-3)
        assert decode_form(*large, repeated=True) == pytest.approx(decode_form(*large), rel=1e-6)
        assert decode_form(*small, repeated=True) < decode_form(*small)

    def test_half_stays_where_the_cache_is_the_share_of_l2(self):
        tokens = 0.6 * 126 * 2**20 / (2 * 8 * 8 * 128 * 2)
        free = dict(stream_s=1e-12, stream_bytes_per_s=1e16, split_s=1e-12)
        cold, warm = (decode_form(tokens, 8, 64, 8, 128, repeated=x, **free) for x in (False, True))
        outputs = 4 * 8 * 64 * 128 / (0.8 * 8e12)
        assert warm - 8e-6 - outputs == pytest.approx((cold - 8e-6 - outputs) / 2, rel=1e-3)

    def test_latent_heads_beyond_128_read_again(self):
        numbers = {k: v for k, v in DECODE.items() if k != "stream_s"} | {"compute_fraction": 1.0}
        numbers |= {"stream_bytes_per_s": 1e9, "memory_fraction": 1.0}
        how = dict(chip="gb300", fmt="bf16", numbers=numbers, repeated=False)
        one, two = latent_kernels.latent_decode_form_s(8192, 256, [128, 129], 512, 64, **how) - 8e-6
        assert two == pytest.approx(2 * one, rel=0.01)

    def test_prefill_by_hand(self):
        n, b, h, k, d = 1000, 4, 16, 4, 128
        pair = np.hypot(4 * d / (2.5e15 / 152), 1 / (10.7e12 / 152)) / 0.5
        blocks, rows = 8, 1024
        work = b * h * (rows * (rows + 128) / 2 * pair + blocks * 2e-6) / 152
        longest = 0.7 * (128 * rows * pair + 2e-6)
        memory = 2 * b * d * (2 * k * n + 2 * h * n) / (0.4 * 8e12)
        found = attention_kernels.prefill_form_s(n, 0, b, h, k, d, d, chip="gb300", fmt="bf16", numbers=PREFILL)
        assert found == pytest.approx(1e-5 + work + longest + memory, rel=1e-12)

    def test_prefill_with_a_prefix_and_a_window(self):
        def form(n, p, window=None):
            return attention_kernels.prefill_form_s(
                n, p, 8, 64, 8, 128, 128, window, chip="gb300", fmt="bf16", numbers=PREFILL | {"longest_ratio": 0.01}
            )

        # the last quarter of a prompt, and all quarters
        whole = form(8192, 0) - 1e-5
        quarters = sum(form(2048, p) - 1e-5 for p in range(0, 8192, 2048))
        assert quarters == pytest.approx(whole, rel=0.05)
        assert form(8192, 0, 10**9) == form(8192, 0)
        assert form(8192, 0, 128) < form(8192, 0, 1024) < form(8192, 0)
        # block i of rows sees its own 128 keys and the window's
        keys = 128 + 256 * 63
        pair = np.hypot(4 * 128 / (2.5e15 / 152), 1 / (10.7e12 / 152)) / 0.5
        work = 8 * 64 * (128 * keys * pair + 64 * 2e-6) / 152 + 0.01 * (128 * 256 * pair + 2e-6)
        memory = 2 * 8 * 128 * (2 * 8 + 2 * 64) * 8192 / (0.4 * 8e12)
        assert form(8192, 0, 128) == pytest.approx(1e-5 + work + memory, rel=1e-12)

    def test_latent_by_hand(self):
        numbers = {k: v for k, v in DECODE.items() if k != "stream_s"} | {"compute_fraction": 0.5}
        s, b, h = 65_536, 64, 100
        reading = min(s * 576 * 2 / 5e11, s * 576 * 2 / 5e11 * 64 / 152 + 5e-6)
        memory = (b * s * 576 * 2 + 2 * b * h * 1088) / (0.8 * 8e12)
        computing = 2 * b * 128 * s * 1088 / (0.5 * 2.5e15)
        moving = (reading**1.5 + memory**1.5) ** (2 / 3)
        found = latent_kernels.latent_decode_form_s(
            s, b, h, 512, 64, chip="gb300", fmt="bf16", numbers=numbers, repeated=False
        )
        assert moving < computing and found == pytest.approx(8e-6 + computing, rel=1e-12)
        few = latent_kernels.latent_decode_form_s(
            s, b, 16, 512, 64, chip="gb300", fmt="bf16", numbers=numbers, repeated=False
        )
        memory = (b * s * 576 * 2 + 2 * b * 16 * 1088) / (0.8 * 8e12)
        assert few == pytest.approx(8e-6 + (reading**1.5 + memory**1.5) ** (2 / 3), rel=1e-12)

    @pytest.mark.parametrize(("fmt", "moved", "peak"), [("bf16", 2, 2.5e15), ("fp8", 4, 5e15)])
    def test_latent_prefill_by_hand(self, fmt, moved, peak):
        # an FP8 cache: products in FP8, after queries, keys and values are read in BF16, written and read in FP8
        n, b, h = 1024, 4, 16
        pair = np.hypot(2 * (192 + 128) / (peak / 152), 1 / (10.7e12 / 152)) / 0.5
        work = b * h * (n * (n + 128) / 2 * pair + 8 * 2e-6) / 152 + 0.7 * (128 * n * pair + 2e-6)
        memory = b * h * n * ((192 + 192 + 128) * moved + 2 * 128) / (0.4 * 8e12)
        how = dict(absorbed=False, chip="gb300", fmt=fmt, numbers=PREFILL)
        found = latent_kernels.latent_prefill_form_s(n, b, h, 192, 128, **how)
        assert found == pytest.approx(1e-5 + work + memory, rel=1e-12)

    def test_absorbed_prefill_reads_one_latent(self):
        how = dict(chip="h200_sxm", fmt="bf16", numbers=PREFILL)
        own, one = (
            latent_kernels.latent_prefill_form_s(4096, 1, 64, 576, 512, absorbed=x, **how) for x in (False, True)
        )
        assert own - one == pytest.approx(63 * 4096 * 1088 * 2 / (0.4 * 4.8e12), rel=1e-9)


class TestCalibration:
    def test_every_table_that_was_measured_is_there(self):
        found = {name: sum(c.kernel == name for c in CALIBRATED) for name in FAMILIES}
        assert found == {
            "attention_decode": 24,
            "attention_decode_unfused": 12,
            "attention_prefill": 24,
            "latent_decode": 22,
            "latent_prefill": 22,
        }

    @pytest.mark.parametrize("c", CALIBRATED, ids=lambda c: f"{c.kernel}-{c.chip}-{c.engine}-{c.fmt}")
    def test_numbers_are_few_and_physical(self, c):
        assert len(c.numbers) == 5 and 3e-6 < c.numbers["launch_s"] < 3e-5
        for name, value in c.numbers.items():
            assert value > 0 and (value <= 1 or not name.endswith("_fraction"))
        assert 0 < c.median_error_fraction < c.p90_error_fraction
        assert "aiconfigurator-core" in c.source and c.n_held_out > 60

    def test_held_out_errors_are_as_promised(self):
        must = {"attention_decode": (0.065, 0.22), "attention_prefill": (0.06, 0.15)}
        for name, limit in must.items():
            errors = [(c.median_error_fraction, c.p90_error_fraction) for c in CALIBRATED if c.kernel == name]
            assert np.all(np.median(errors, axis=0) <= limit)

    def test_validation_as_committed_holds(self):
        checks = published.table("validation/attention_checks")
        assert len(checks) > 15 and not [v for v in checks["verdict"] if v.startswith("FAILS")]

    def test_validation_shows_the_recorded_errors(self):
        shown = published.table("validation/attention")
        regimes = {"attention_prefill": ("prefill", "isl >= 1024"), "latent_decode": ("latent decode", "S >= 1024")}
        for c in (c for c in CALIBRATED if c.kernel in regimes):
            what, regime = regimes[c.kernel]
            row = shown.where(what=what, regime=regime, chip=c.chip, engine=c.engine, fmt=c.fmt)
            recorded = (100 * c.median_error_fraction, 100 * c.p90_error_fraction)
            assert (row["median_percent"][0], row["p90_percent"][0]) == pytest.approx(recorded, abs=0.06)

    def test_the_third_roof_gives_gb200_and_gb300_one_efficiency(self):
        # the same kernels reach the same share of their roofs on both chips once exponentials are one of them
        for engine in ("trtllm", "sglang"):
            one, two = (
                calibration.find("attention_prefill", c, engine, "bf16").numbers["compute_fraction"]
                for c in ("gb200", "gb300")
            )
            assert one == pytest.approx(two, rel=0.03)


SIZES = dict(
    b=st.sampled_from([1, 3, 64, 1000]), k=st.sampled_from([1, 2, 8, 64]), g=st.sampled_from([1, 2, 8, 32, 128])
)


@pytest.mark.parametrize("c", [c for c in CALIBRATED if c.kernel == "attention_decode"], ids=lambda c: f"{c.chip}-{c.engine}-{c.fmt}")  # fmt: skip  # noqa: E501
@given(s=st.integers(1, 300_000), d=st.sampled_from([64, 128, 512]), **SIZES)
@settings(max_examples=30, deadline=None)
def test_decode_is_never_below_the_bound(c, s, b, k, g, d):
    how = dict(n_heads=k * g, n_kv_heads=k, d_head=d, n_batch=b, chip=c.chip, fmt=c.fmt, engine=c.engine)
    least = attention_decode_s(s, **how, bound=True)
    warm, cold = (attention_decode_s(s, **how, repeated=x) for x in (True, False))
    assert least <= warm <= cold


@pytest.mark.parametrize("c", [c for c in CALIBRATED if c.kernel == "attention_prefill"], ids=lambda c: f"{c.chip}-{c.engine}-{c.fmt}")  # fmt: skip  # noqa: E501
@given(n=st.integers(1, 100_000), p=st.integers(0, 100_000), window=st.sampled_from([None, 1, 128, 5000]), **SIZES)
@settings(max_examples=30, deadline=None)
def test_prefill_is_never_below_the_bound(c, n, p, b, k, g, window):
    how = dict(n_heads=k * g, n_kv_heads=k, n_batch=b, chip=c.chip, fmt=c.fmt, engine=c.engine, window_tokens=window)
    assert attention_prefill_s(n, p, **how) >= attention_prefill_s(n, p, **how, bound=True)


@given(s=st.integers(1, 300_000), b=st.sampled_from([1, 7, 128, 16_384]), h=st.sampled_from([1, 2, 16, 63, 128, 200]))
@settings(max_examples=60, deadline=None)
def test_latent_is_never_below_the_bound(s, b, h):
    for c in CALIBRATED:
        how = dict(n_heads=h, n_batch=b, chip=c.chip, fmt=c.fmt, engine=c.engine)
        if c.kernel == "latent_decode":
            assert latent_decode_s(s, **how, repeated=True) >= latent_decode_s(s, **how, bound=True)
        elif c.kernel == "latent_prefill":
            assert latent_prefill_s(s, **how) >= latent_prefill_s(s, **how, bound=True)


def test_a_window_leaves_the_far_prefix_unread():
    near, far = (
        attention_prefill_s(10, p, **GQA, n_batch=64, window_tokens=256, chip="gb300", fmt="bf16")
        for p in (1024, 10**6)
    )
    assert near == far


@given(s=st.integers(1, 100_000), more=st.integers(1, 100_000))
@settings(max_examples=40, deadline=None)
def test_more_tokens_are_never_faster(s, more):
    for of in (attention_decode_s, attention_prefill_s):
        one, two = of([s, s + more], **GQA, n_batch=4, chip="gb300", fmt="bf16")
        assert two >= one * (1 - 1e-12)


SETS = [
    ("attention_decode", lambda **how: attention_decode_s(8192, **GQA, n_batch=8, chip="gb300", fmt="bf16", **how)),
    ("attention_prefill", lambda **how: attention_prefill_s(8192, **GQA, chip="gb300", fmt="bf16", **how)),
    ("latent_decode", lambda **how: latent_decode_s(8192, n_heads=16, n_batch=8, chip="gb300", fmt="bf16", **how)),
    ("latent_prefill", lambda **how: latent_prefill_s(8192, n_heads=16, chip="gb300", fmt="bf16", **how)),
]


@pytest.mark.parametrize(("kernel", "seconds"), SETS, ids=[name for name, _ in SETS])
def test_the_bound_is_a_floor(kernel, seconds, monkeypatch):
    # numbers of a kernel that is faster than the chip
    too_fast = {name: 1e6 if name.endswith(("fraction", "per_s")) else 1e-15 for name in
                ("launch_s", "stream_s", "split_s", "block_s", "stream_bytes_per_s", "memory_fraction",
                 "compute_fraction", "longest_ratio")} | {"stream_bytes_per_s": 1e30}  # fmt: skip
    monkeypatch.setattr(calibration, "fitted", lambda *a, **b: too_fast)
    assert seconds() >= seconds(bound=True)
    assert kernel == "latent_prefill" or seconds() == seconds(bound=True)


def test_latent_prefill_in_fp8_is_bound_by_the_fp8_peak():
    # measured: 32,768 tokens of 128 heads on a GB300 in 16.3 ms (SGLang), 1.08 times what the BF16 peak allows
    flops, seconds = 128 * 32_768**2 * (192 + 128), 16.314e-3
    assert 1.07 < flops / seconds / 2.5e15 < 1.09
    how = dict(n_heads=128, chip="gb300", fmt="fp8", engine="sglang")
    assert latent_prefill_s(32_768, **how, bound=True) < seconds
    assert latent_prefill_s(32_768, **how) == pytest.approx(seconds, rel=0.1)


def test_sglang_on_hopper_takes_the_absorbed_kernel():
    # measured: 128 heads, 32,768 tokens in 246 ms on an H200; absorbed at 0.65 of the peak, not expanded at 0.2
    assert latent_kernels.absorbs("sglang", "h200_sxm") and not latent_kernels.absorbs("trtllm", "h200_sxm")
    ours = latent_prefill_s(32_768, n_heads=128, chip="h200_sxm", fmt="bf16", engine="sglang")
    assert ours == pytest.approx(245.8e-3, rel=0.15)
    found = calibration.find("latent_prefill", "h200_sxm", "sglang", "bf16").numbers
    assert 0.5 < found["compute_fraction"] < 0.8


def test_the_bound_with_a_prefix_is_the_cheaper_form():
    one = latent_prefill_s(1, 131_071, n_heads=128, chip="gb300", fmt="bf16", bound=True)
    assert one == pytest.approx(latent_decode_s(131_072, n_heads=128, chip="gb300", fmt="bf16", bound=True), rel=1e-3)


def test_values_of_another_size():
    # MiMo-V2-Flash: keys of 192, values of 128
    how = dict(n_heads=64, n_kv_heads=8, d_head=192, n_batch=8, chip="gb300", fmt="bf16")
    least = attention_decode_s(131_072, **how, d_value=128, bound=True)
    assert least == pytest.approx(8 * (131_072 * 8 + 64) * 320 * 2 / 8e12, rel=1e-12)
    mean = attention_decode_s(131_072, **(how | dict(d_head=160)))
    assert attention_decode_s(131_072, **how, d_value=128) == pytest.approx(mean, rel=1e-12)
    numbers = calibration.find("attention_prefill", "gb300", "trtllm", "bf16").numbers
    form = attention_kernels.prefill_form_s(4096, 0, 8, 64, 8, 192, 128, chip="gb300", fmt="bf16", numbers=numbers)
    assert attention_prefill_s(4096, **how, d_value=128) == pytest.approx(float(form), rel=1e-12)
    assert attention_prefill_s(4096, **how, d_value=128) < 0.95 * attention_prefill_s(4096, **how)


class TestTransfer:
    SOURCES = ("h100_sxm", "h200_sxm")

    @pytest.mark.parametrize("source", SOURCES)
    @pytest.mark.parametrize("fmt", ["bf16", "fp8"])
    def test_an_h20_by_hopper_numbers(self, source, fmt):
        how = dict(chip="h20", fmt=fmt)
        calls = (
            lambda **x: attention_decode_s(32_768, **GQA, n_batch=8, **how, **x),
            lambda **x: attention_prefill_s(8192, **GQA, **how, **x),
            lambda **x: latent_decode_s(32_768, n_heads=64, n_batch=8, **how, **x),
            lambda **x: latent_prefill_s(8192, n_heads=16, **how, **x),
        )
        for seconds in calls:
            assert seconds(bound=True) < seconds(transfer_from=source) < 4 * seconds(bound=True)

    def test_by_hand(self):
        # shares and seconds of an H200 with the sheet of an H20; the rate of a stream does not shrink with its peak
        numbers = calibration.find("attention_decode", "h200_sxm", "sglang", "bf16").numbers
        form = dict(chip="h20", fmt="bf16", kernel=ONE, numbers=numbers, repeated=False)
        by_hand = attention_kernels.decode_form_s(32_768, 8, 64, 8, 128, **form)
        ours = attention_decode_s(
            32_768, **GQA, n_batch=8, chip="h20", fmt="bf16", engine="sglang", transfer_from="h200_sxm"
        )
        assert ours == pytest.approx(by_hand, rel=1e-12)

    def test_kernels_are_those_of_the_source(self):
        # TensorRT-LLM's kernels of a Hopper have a stream a query head, a Blackwell's one a key-value head
        kernel = attention_kernels.DECODE_KERNELS["trtllm", True][0]
        numbers = dict(calibration.find("attention_decode", "h100_sxm", "trtllm", "fp8").numbers)
        numbers["stream_bytes_per_s"] *= (4500 / 148) / (1979 / 132)  # a rate of an SM grows with its peak
        form = dict(chip="b200_sxm", fmt="fp8", kernel=kernel, numbers=numbers, repeated=False)
        by_hand = attention_kernels.decode_form_s(4096, 512, 64, 8, 128, **form)
        ours = attention_decode_s(4096, **GQA, n_batch=512, chip="b200_sxm", fmt="fp8", transfer_from="h100_sxm")
        assert ours == pytest.approx(by_hand, rel=1e-12)

    def test_the_own_numbers_are_the_same(self):
        how = dict(**GQA, n_batch=8, chip="gb300", fmt="bf16")
        assert attention_decode_s(4096, **how, transfer_from="gb300") == attention_decode_s(4096, **how)
        slower = dataclasses.replace(CHIPS["gb300"], hbm_bytes_per_s=4e12)
        assert attention_decode_s(10**6, **(how | dict(chip=slower)), transfer_from="gb300") > 1.5 * attention_decode_s(
            10**6, **how
        )


class TestMeasured:
    def test_sample_within_recorded_errors(self):
        sample = published.table("attention_sample")
        for phase, compute in (("decode", attention_decode_s), ("prefill", attention_prefill_s)):
            errors = []
            for c in (c for c in CALIBRATED if c.kernel == f"attention_{phase}"):
                t = sample.where(phase=phase, chip=c.chip, engine=c.engine, kv_fmt=c.fmt)
                sizes = dict(n_heads=t["n_heads"], n_kv_heads=t["n_kv_heads"], n_batch=t["n_batch"])
                how = dict(repeated=True) if phase == "decode" else {}
                ours = compute(t["n_tokens"], **sizes, chip=c.chip, fmt=c.fmt, engine=c.engine, **how)
                errors.append(np.abs(ours / t["latency_s"] - 1))
            recorded = [(c.median_error_fraction, c.p90_error_fraction) for c in CALIBRATED if c.kernel == f"attention_{phase}"]  # fmt: skip  # noqa: E501
            assert np.all(np.quantile(np.concatenate(errors), [0.5, 0.9]) < 1.5 * np.median(recorded, axis=0))

    def test_one_kv_head_a_gpu_is_the_floor_of_tensor_parallelism(self):
        t = published.table("attention_heads").where(chip="gb300", kv_fmt="bf16", d_head=128.0)
        rows = {(int(h), int(k)): x for h, k, x in zip(t["n_heads"], t["n_kv_heads"], t["latency_s"], strict=True)}
        how = dict(n_batch=8, chip="gb300", fmt="bf16", repeated=True)
        ours = {key: attention_decode_s(32_768, n_heads=key[0], n_kv_heads=key[1], **how) for key in rows}
        for times in (rows, ours):
            assert times[64, 8] > 1.6 * times[32, 4] > 2.4 * times[16, 2]
            assert times[8, 1] == pytest.approx(times[4, 1], rel=0.05)

    def test_the_cliff_above_32_heads_a_key_value_head(self):
        t = published.table("attention_heads").where(chip="gb300", kv_fmt="bf16", d_head=128.0, n_kv_heads=1.0)
        rows = dict(zip(t["n_heads"], t["latency_s"], strict=True))
        how = dict(n_kv_heads=1, n_batch=8, chip="gb300", fmt="bf16", repeated=True)
        ours = attention_decode_s(32_768, n_heads=[32, 64], **how)
        assert rows[64] / rows[32] > 5 and ours[1] / ours[0] > 5
        sglang = attention_decode_s(32_768, n_heads=[32, 64], engine="sglang", **how)
        assert sglang[1] < 1.2 * sglang[0]

    def test_a_head_of_64_pays_for_64_when_decoding(self):
        t = published.table("attention_heads").where(chip="gb300", kv_fmt="bf16", n_heads=64.0, n_kv_heads=8.0)
        rows = dict(zip(t["d_head"], t["latency_s"], strict=True))
        how = dict(**GQA, n_batch=8, chip="gb300", fmt="bf16", repeated=True)
        ours = dict(zip((64, 128, 256), attention_decode_s(32_768, d_head=[64, 128, 256], **how), strict=True))
        for times in (rows, ours):
            assert 0.5 < times[64] / times[128] < 0.65 and 1.7 < times[256] / times[128] < 2

    def test_a_head_of_64_pays_for_more_in_prefill(self):
        t = published.table("prefill_lengths").where(chip="gb200", fmt="bf16", n_kv_heads=8.0, n_tokens=16_384.0)
        rows = dict(zip(t["d_head"], t["latency_s"], strict=True))
        ours = attention_prefill_s(16_384, d_head=[64, 128], **GQA, chip="gb200", fmt="bf16")
        assert 0.65 < rows[64] / rows[128] < 0.9 and 0.65 < ours[0] / ours[1] < 0.9

    @pytest.mark.parametrize("fmt", ["bf16", "fp8"])
    def test_latent_rows_outside_the_bump(self, fmt):
        t = published.table("latent_heads").where(chip="gb300", engine="trtllm", kv_fmt=fmt, n_tokens=131_072.0)
        for batch in (8.0, 64.0):
            rows = t.where(n_batch=batch)
            flat = np.array([x for h, x in zip(rows["n_heads"], rows["latency_s"], strict=True) if h <= 16])
            assert flat.max() < 1.1 * flat.min()
            bump = rows.where(n_heads=32.0)["latency_s"][0]
            assert bump > 1.25 * flat.max()

    def test_128_heads_break_h200_and_not_gb300_from_the_roofs(self):
        how = dict(n_batch=8, fmt="bf16")
        flat, broken = (
            latent_decode_s(131_072, n_heads=[1, 128], chip=c, **how, bound=True) for c in ("gb300", "h200_sxm")
        )
        assert flat[1] < 1.1 * flat[0] and broken[1] > 1.15 * broken[0]
        ours = latent_decode_s(131_072, n_heads=[64, 128], chip="h200_sxm", **how, repeated=True)
        rows = published.table("latent_heads").where(
            chip="h200_sxm", engine="trtllm", kv_fmt="bf16", n_batch=8.0, n_tokens=131_072.0
        )
        measured = [rows.where(n_heads=h)["latency_s"][0] for h in (64.0, 128.0)]
        np.testing.assert_allclose(ours, measured, rtol=0.1)


def test_the_bound_is_the_roofline_and_needs_no_calibration():
    work = attention.decode(4096, n_heads=64, n_kv_heads=8, d_head=128, n_batch=3, kv="fp8")
    how = dict(**GQA, n_batch=3, fmt="fp8", bound=True)
    assert attention_decode_s(4096, **how, chip="gb300") == roofline.time_s(work, "gb300", "fp8")
    assert attention_decode_s(4096, **how, chip="mi300x") > 0
    prompt = attention.prefill(4096, 100, n_heads=64, n_kv_heads=8, d_head=128, n_batch=3, kv="fp8")
    assert attention_prefill_s(4096, 100, **how, chip="gb200") == roofline.time_s(prompt, "gb200", "fp8")
    assert latent_prefill_s(100, 5000, n_heads=16, chip="gb300", fmt="bf16", bound=True) > 0


def test_a_window_shortens_the_context():
    how = dict(**GQA, n_batch=3, chip="gb300", fmt="fp8")
    assert attention_decode_s(10_000, window_tokens=512, **how) == attention_decode_s(512, **how)
    assert attention_decode_s(100, window_tokens=512, **how) == attention_decode_s(100, **how)


def test_shapes_broadcast_and_blocks_do_not_show():
    s, b = np.arange(1, 401)[:, None], np.arange(1, 65)
    together = attention_decode_s(s, n_batch=b, **GQA, chip="gb300", fmt="bf16")
    assert together.shape == (400, 64) and together.size > blocks.BLOCK and together.dtype == np.float64
    assert together[399, 63] == attention_decode_s(400, n_batch=64, **GQA, chip="gb300", fmt="bf16")
    mixed = attention_decode_s(4096, n_heads=[32, 64], n_kv_heads=1, chip="gb300", fmt="bf16")
    assert mixed[1] == attention_decode_s(4096, n_heads=64, n_kv_heads=1, chip="gb300", fmt="bf16")
    assert attention_prefill_s(s, n_batch=b, **GQA, chip="gb300", fmt="bf16").shape == (400, 64)
    assert attention_decode_s(np.zeros(0), **GQA, chip="gb300", fmt="bf16").shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: attention_decode_s(1, **GQA, chip="mi300x", fmt="bf16"),
            "MI300X has no calibrated.*transfer_from=one",
        ),
        (lambda: attention_decode_s(1, **GQA, chip="h20", fmt="bf16", transfer_from="a100_sxm"), "'a100_sxm' has no c"),
        (lambda: attention_decode_s(1, **GQA, chip="h20", fmt="bf16", transfer_from="h100_sxm", bound=True), "either"),
        (lambda: attention_prefill_s(1, **GQA, chip="mi300x", fmt="bf16", transfer_from="h100_sxm"), "no exp_per_s"),
        (lambda: attention_decode_s(1, **GQA, chip="tpu_v6e", fmt="bf16", transfer_from="h100_sxm"), "has no n_sms"),
        (lambda: attention_decode_s(1, **GQA, chip="gb300", fmt="bf16", bound="no"), "bound is 'no'; allowed: True"),
        (lambda: attention_decode_s(1, **GQA, chip="gb300", fmt="bf16", repeated=1), "repeated is 1; allowed: True"),
        (lambda: attention_decode_s(1, **GQA, chip="gb300", fmt="bf16", engine="x", bound=True), "engine is 'x'"),
        (lambda: attention_prefill_s(1, 0.5, **GQA, chip="gb300", fmt="bf16"), r"n_prefix is 0\.5; allowed: whole"),
        (lambda: attention_decode_s([1, 2], n_batch=[1, 2, 3], **GQA, chip="gb300", fmt="bf16"), "do not broadcast"),
        (lambda: attention_prefill_s([1, 2], [1, 2, 3], **GQA, chip="gb300", fmt="bf16"), "n_prefix of shape .3"),
        (lambda: latent_prefill_s([1, 2], n_heads=[1, 2, 3], chip="gb300", fmt="bf16"), "latent_prefill_s: n_new of"),
        (lambda: attention_decode_s(1, **GQA, chip="h100_sxm", fmt="nvfp4"), "H100 SXM has no nvfp4 peak"),
        (lambda: attention_decode_s(1, **GQA, chip="gb300", fmt="nvfp4"), "GB300 has no calibrated trtllm nvfp4"),
        (lambda: attention_decode_s(1, **GQA, chip="gb300", fmt="bf16", engine="vllm"), "engine is 'vllm'; allowed"),
        (lambda: attention_decode_s(0, **GQA, chip="gb300", fmt="bf16"), r"attention_decode_s: n_context is 0\.0"),
        (lambda: attention_decode_s(1, n_heads=6, n_kv_heads=4, chip="gb300", fmt="bf16"), "a multiple of n_kv_heads"),
        (lambda: attention_decode_s(1, **GQA, n_batch=1.5, chip="gb300", fmt="bf16"), r"n_batch is 1\.5; allowed: who"),
        (lambda: attention_prefill_s(1, -1, **GQA, chip="gb300", fmt="bf16"), r"n_prefix is -1\.0"),
        (lambda: latent_decode_s(1, n_heads=1, chip="h200_sxm", fmt="fp8", engine="sglang"), "H200 SXM has no calibr"),
        (lambda: latent_prefill_s(1, 1, n_heads=1, chip="gb300", fmt="bf16"), "n_prefix is 1; allowed: 0, or bound"),
        (
            lambda: attention_decode_s(
                1, **GQA, chip=dataclasses.replace(CHIPS["gb300"], hbm_bytes_per_s=9e12), fmt="bf16"
            ),
            "not the one that was measured",
        ),
    ],
)
def test_what_is_not_known_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_chip_objects_pass_through():
    assert attention_decode_s(99, **GQA, chip=chip("gb300"), fmt="fp8") == attention_decode_s(
        99, **GQA, chip="gb300", fmt="fp8"
    )
