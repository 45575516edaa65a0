"""The fitted numbers: few, physical, with provenance, and as good as promised."""

import csv
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest

from codesign_lib.cost import calibration, kernels
from codesign_lib.specs import hardware

TABLE = [c for c in calibration.table() if c.kernel == "gemm"]
CHIPS = [c for c in TABLE if c.chip != calibration.UNIVERSAL]
# median and 90th percentile of the absolute error on held-out layers, medians over chips × engines
MUST = {"bf16": (0.075, 0.22), "fp8": (0.095, 0.28), "fp8_block": (0.07, 0.26), "nvfp4": (0.088, 0.28)}


def rows(name):
    text = files("codesign_lib").joinpath(f"data/{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def label(c):
    return f"{c.chip}-{c.engine}-{c.fmt}"


def test_every_table_that_was_measured_is_there():
    n_chips = {"bf16": 6, "fp8": 6, "fp8_block": 6, "nvfp4": 4}
    found = {(c.engine, c.fmt): len(calibration.chips("gemm", c.engine, c.fmt)) for c in TABLE}
    assert found == {(e, f): n + 1 for f, n in n_chips.items() for e in kernels.ENGINES}
    assert not calibration.chips("gemm", "vllm", "fp8_block")


@pytest.mark.parametrize("c", TABLE, ids=label)
def test_numbers_are_few_and_physical(c):
    assert len(c.numbers) <= 5
    for name, value in c.numbers.items():
        assert name.endswith(("_s", "_fraction")) and value > 0
        assert value <= 1 or not name.endswith("_fraction")
    assert 1e-6 < c.numbers["launch_s"] < 2e-5
    assert "quantise_fraction" in c.numbers or c.fmt == "bf16"
    assert ("split_s" in c.numbers) == kernels.KERNELS[c.engine, c.fmt].splits


@pytest.mark.parametrize("c", TABLE, ids=label)
def test_numbers_say_where_they_come_from(c):
    assert "aiconfigurator-core" in c.source and "0.12.0" in c.source
    assert c.n_held_out > 10_000
    assert 0 < c.median_error_fraction < c.p90_error_fraction
    assert abs(c.bias_fraction) < 0.1


@pytest.mark.parametrize("fmt", MUST)
def test_held_out_errors_are_as_promised(fmt):
    errors = [(c.median_error_fraction, c.p90_error_fraction) for c in CHIPS if c.fmt == fmt]
    assert np.all(np.median(errors, axis=0) <= MUST[fmt])


def test_shared_numbers_are_the_same_but_for_the_launch():
    shared = [c for c in CHIPS if c.shared_with]
    assert shared
    for c in shared:
        other = calibration.gemm(c.chip, c.shared_with, c.fmt)
        assert other.shared_with == c.engine
        assert {**c.numbers, "launch_s": 0} == {**other.numbers, "launch_s": 0}


def test_the_universal_set_has_21_numbers():
    universal = [c for c in TABLE if c.chip == calibration.UNIVERSAL]
    assert len({(name, value) for c in universal for name, value in c.numbers.items()}) == 21


def test_validation_as_committed_holds():
    checks = rows("validation/gemm_checks")
    assert len(checks) > 20
    assert not [c for c in checks if c["verdict"].startswith("FAILS")]


def test_validation_shows_the_recorded_errors():
    shown = {
        (r["chip"], r["engine"], r["fmt"]): (float(r["median_percent"]), float(r["p90_percent"]))
        for r in rows("validation/gemm")
        if (r["what"], r["regime"]) == ("calibrated", "all")
    }
    for c in CHIPS:
        recorded = (100 * c.median_error_fraction, 100 * c.p90_error_fraction)
        assert shown[c.chip, c.engine, c.fmt] == pytest.approx(recorded, abs=0.06)


def test_each_concept_helps_or_does_no_harm():
    shown = [r for r in rows("validation/gemm") if r["what"].startswith("step") and r["chip"] == "median"]
    for fmt in MUST:
        medians = [float(r["median_percent"]) for r in shown if r["fmt"] == fmt]
        assert len(medians) == 9 and all(b <= a + 0.2 for a, b in pairwise(medians))


def test_sm_counts_are_identified_jointly_and_not_by_one_column():
    measured = rows("gemm_sm_count")
    for chip, n_sms in {"gb300": 152, "gb200": 152, "b200_sxm": 148, "b300_sxm": 148}.items():
        of = np.array([[float(r[c]) for c in ("m", "k", "n", "latency_s")] for r in measured if r["chip"] == chip])
        joint = calibration.sm_count_errors(*of.T, tile=(128, 256), candidates=range(144, 158))
        assert min(joint, key=joint.get) == n_sms
        assert joint[n_sms] < 0.025
        column = of[(of[:, 1] == 8192) & (of[:, 2] == 8192)]
        one = calibration.sm_count_errors(*column.T, tile=(128, 256), candidates=range(144, 158))
        assert sum(e < min(one.values()) + 1e-6 for e in one.values()) == 2


def test_sm_count_errors_are_nil_for_its_own_law():
    m, k, n = np.meshgrid(np.arange(1, 65) * 128, [4096, 8192], [4096, 7168])
    waves = np.ceil(m / 128 * np.ceil(n / 256) / 100)
    exact_s = 3e-6 + waves * (1e-9 * k + 1e-6) + 1e-15 * m * k + 2e-15 * m * n
    errors = calibration.sm_count_errors(m, k, n, exact_s, tile=(128, 256), candidates=(99, 100, 101))
    assert errors[100] < 1e-9 < 1e-3 < min(errors[99], errors[101])


def test_a_missing_calibration_is_refused():
    with pytest.raises(ValueError, match="no calibrated gemm for a100_sxm in sglang bf16; calibrated: h100_sxm"):
        calibration.gemm("a100_sxm", "sglang", "bf16")
    with pytest.raises(ValueError, match="calibrated: no chip"):
        calibration.gemm("gb300", "vllm", "fp8_block")
    assert calibration.find("gemm", "gb300", "vllm", "fp8") is None


def test_numbers_cannot_be_changed():
    with pytest.raises(TypeError):
        calibration.gemm("gb300", "trtllm", "bf16").numbers["launch_s"] = 0


class TestTransfer:
    """Numbers of another chip, by name."""

    def fitted(self, kernel="gemm", chip="h20", engine="trtllm", fmt="bf16", **how):
        return calibration.fitted("f_s", kernel, chip, engine, fmt, **how)

    def test_shares_and_seconds_stay(self):
        own = calibration.gemm("h100_sxm", "trtllm", "fp8").numbers
        assert dict(self.fitted(fmt="fp8", transfer_from="h100_sxm")) == dict(own)
        universal = calibration.gemm("universal", "trtllm", "bf16").numbers
        assert dict(self.fitted(transfer_from="universal")) == dict(universal)

    @pytest.mark.parametrize(
        ("source", "target", "grown"),
        [("h100_sxm", "b200_sxm", 2250 / 148 / (1979 / 2 / 132)), ("b200_sxm", "h100_sxm", 1), ("h100_sxm", "h20", 1)],
    )
    def test_rates_of_an_sm_grow_with_its_peak_and_never_shrink(self, source, target, grown):
        own = calibration.gemm(source, "trtllm", "bf16").numbers["operand_bytes_per_s"]
        found = self.fitted(chip=target, transfer_from=source)["operand_bytes_per_s"]
        assert found == pytest.approx(own * grown, rel=1e-12)
        stream = calibration.find("latent_decode", source, "trtllm", "bf16").numbers["stream_bytes_per_s"]
        found = self.fitted("latent_decode", target, transfer_from=source)["stream_bytes_per_s"]
        assert found == pytest.approx(stream * grown, rel=1e-12)

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            (dict(), "f_s: H20 has no calibrated trtllm bf16; calibrated: h100_sxm, .* or transfer_from=one of these"),
            (dict(transfer_from="h20"), "f_s: transfer_from='h20' has no calibrated trtllm bf16; calibrated: h100_sxm"),
            (dict(transfer_from="hopper"), "transfer_from='hopper' has no calibrated"),
            (dict(transfer_from=1), "transfer_from is 1; allowed: the name of a calibrated chip, or None"),
            (dict(kernel="latent_decode", transfer_from="universal"), "'universal' has no calibrated trtllm bf16; cal"),
        ],
    )
    def test_nothing_is_taken_unasked(self, how, message):
        with pytest.raises(ValueError, match=message):
            self.fitted(**how)

    def test_a_chip_needs_its_sheet(self):
        calibration.needs("f_s", hardware.chip("h20"), "n_sms", "l2_bytes", "exp_per_s", "scale_out_bytes_per_s")
        with pytest.raises(ValueError, match="f_s: TPU v6e has no n_sms: it is not public; allowed: bound=True"):
            calibration.needs("f_s", hardware.chip("tpu_v6e"), "n_sms")
