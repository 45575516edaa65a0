"""Seconds of a mixture's experts: the form by hand, its limits, and measured rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.cost import blocks, calibration, moe_kernels, roofline
from codesign_lib.cost.moe_kernels import moe_s
from codesign_lib.cost.ops import moe
from codesign_lib.specs import published

CALIBRATED = [c for c in calibration.table() if c.kernel in ("moe_experts", "moe_experts_ungated")]
R1 = dict(d_model=7168, d_expert=2048, n_experts=256, n_chosen=8)
ON_GB300 = R1 | dict(chip="gb300", fmt="nvfp4")
NUMBERS = {
    "launch_s": 3e-5,
    "expert_s": 1e-8,
    "compute_fraction": 0.5,
    "memory_fraction": 0.8,
    "sort_fraction": 0.4,
    "tile_s": 5e-7,
}


def label(c):
    return f"{c.kernel}-{c.chip}-{c.engine}-{c.fmt}"


def test_the_form_by_hand():
    m, pairs, awake, held, h, i = 512, 1000, 32, 64, 4096, 1536
    expected = 3e-5 + 64e-8 + 8 * m * h / (0.4 * 8e12)
    for n, k in ((2 * i, h), (h, i)):
        tiles = 32 * 1 * np.ceil(n / 64) / 152
        compute = (2 * 32 * 64 * k / (0.5 * 15e15 / 152) + 5e-7) * tiles
        memory = (32 * n * k * 0.5625 + pairs * (k * 0.5625 + 2 * n)) / (0.8 * 8e12)
        expected += np.hypot(compute, memory)
    how = dict(chip="gb300", fmt="nvfp4", numbers=NUMBERS)
    sizes = (m, 8 * m, pairs, awake, held, h, i)
    assert moe_kernels.form_s(*sizes, gated=True, **how) == pytest.approx(expected, rel=1e-12)
    logged = moe_kernels.form_s(*sizes, gated=True, chip="gb300", fmt="nvfp4", numbers=NUMBERS | {"pair_log_s": 1e-6})
    assert logged - expected == pytest.approx(1e-6 * np.log2(1 + 8 * m))  # the pairs of all ranks are sorted
    ungated = moe_kernels.form_s(*sizes, gated=False, **how)
    assert ungated < expected


def test_one_tile_takes_its_time_alone():
    how = dict(gated=False, chip="gb300", fmt="bf16", numbers=NUMBERS | {"tile_s": 1e-3, "memory_fraction": 1.0})
    assert moe_kernels.form_s(1, 1, 1, 1, 1, 64, 64, **how) == pytest.approx(2e-3, rel=0.05)


@pytest.mark.parametrize("c", CALIBRATED, ids=label)
@given(
    m=st.integers(1, 50_000),
    layer=st.sampled_from([(256, 8, 7168, 2048), (8, 2, 4096, 14_336), (512, 22, 1024, 2688)]),
    ep=st.sampled_from([1, 2, 8]),
    tp=st.sampled_from([1, 2]),
    routing=st.sampled_from(["balanced", "skewed"]),
)
@settings(max_examples=25, deadline=None)
def test_never_below_the_bound(c, m, layer, ep, tp, routing):
    e, k, h, i = layer
    how = dict(d_model=h, d_expert=i, n_experts=e, n_chosen=k, ep=ep, tp=tp, routing=routing)
    how |= dict(chip=c.chip, fmt=c.fmt, engine=c.engine, gated=c.kernel == "moe_experts")
    assert moe_s(m, **how) >= moe_s(m, **how, bound=True)


@given(m=st.integers(1, 20_000), ep=st.sampled_from([1, 4, 32]))
@settings(max_examples=40, deadline=None)
def test_skew_and_more_tokens_are_never_faster(m, ep):
    assert moe_s(2 * m, **ON_GB300, ep=ep) >= moe_s(m, **ON_GB300, ep=ep)
    if m >= 4096:
        assert moe_s(m, **ON_GB300, ep=ep, routing="skewed") >= moe_s(m, **ON_GB300, ep=ep)


class TestCalibration:
    def test_every_table_is_there(self):
        assert len(CALIBRATED) == 72
        ungated = {(c.engine, c.fmt) for c in CALIBRATED if c.kernel == "moe_experts_ungated"}
        assert ungated == {(e, f) for e in ("trtllm", "sglang") for f in ("bf16", "nvfp4")} | {("trtllm", "fp8")}

    @pytest.mark.parametrize("c", CALIBRATED, ids=label)
    def test_numbers_are_few_and_physical(self, c):
        assert len(c.numbers) == 6
        one_token = c.numbers["launch_s"] + c.numbers.get("pair_log_s", 0) * np.log2(9)
        assert 1e-5 < one_token < 1e-4
        for name, value in c.numbers.items():
            assert 0 < value < (1 + 1e-9 if name.endswith("_fraction") else 1e-4)
        assert c.n_held_out > 300 and abs(c.bias_fraction) < 0.1

    def test_validation_as_committed_holds(self):
        checks = published.table("validation/moe_checks")
        assert len(checks) > 10 and not [v for v in checks["verdict"] if v.startswith("FAILS")]

    def test_validation_shows_the_recorded_errors(self):
        shown = published.table("validation/moe").where(what="balanced", regime="all")
        for c in CALIBRATED:
            rows = shown.where(chip=c.chip, engine=c.engine)
            figures = zip(rows["median_percent"].tolist(), rows["p90_percent"].tolist(), strict=True)
            recorded = (100 * c.median_error_fraction, 100 * c.p90_error_fraction)
            assert any(pair == pytest.approx(recorded, abs=0.06) for pair in figures)


def test_the_bound_is_a_floor(monkeypatch):
    fast = dict.fromkeys(("launch_s", "expert_s", "tile_s"), 1e-15)
    fast |= dict.fromkeys(("compute_fraction", "memory_fraction", "sort_fraction"), 1e6)
    monkeypatch.setattr(calibration, "fitted", lambda *a, **b: fast)
    assert moe_s(64, **ON_GB300) == moe_s(64, **ON_GB300, bound=True)


@pytest.mark.parametrize("source", ["h100_sxm", "h200_sxm"])
@pytest.mark.parametrize("fmt", ["bf16", "fp8_block"])
def test_an_h20_by_hopper_numbers(source, fmt):
    how = dict(R1, fmt=fmt, ep=8)
    ours = moe_s([8, 8192], **how, chip="h20", transfer_from=source)
    least = moe_s([8, 8192], **how, chip="h20", bound=True)
    assert np.all(least < ours) and np.all(ours < 4 * least)
    assert np.all(ours > moe_s([8, 8192], **how, chip="h200_sxm"))


def test_skewed_experts_awake_are_those_of_a_rank():
    # 32 ranks of 8 experts: no more than 8 awake on one, whatever all wake
    how = dict(R1, chip="gb300", fmt="nvfp4", routing="skewed", bound=True)
    one = moe_s(32, **how, ep=32)
    weights = 8 * 3 * 7168 * 2048 * 0.5625 / 8e12
    assert 0.2 * weights < one < weights


class TestMeasured:
    def ours(self, t, **how):
        sizes = {name: t[name] for name in ("d_model", "d_expert", "n_experts", "n_chosen", "ep", "tp")}
        return moe_s(t["n_tokens"], **sizes, **how)

    def test_sample_within_recorded_errors(self):
        sample = published.table("moe_sample")
        for routing, name in (("balanced", "balanced"), ("power_law_1.2", "skewed")):
            errors = []
            for c in CALIBRATED:
                gated = c.kernel == "moe_experts"
                t = sample.where(chip=c.chip, engine=c.engine, fmt=c.fmt, routing=routing, gated=str(gated))
                how = dict(chip=c.chip, fmt=c.fmt, engine=c.engine, gated=gated, routing=name)
                errors.append(np.abs(self.ours(t, **how) / t["latency_s"] - 1))
            recorded = np.median([(c.median_error_fraction, c.p90_error_fraction) for c in CALIBRATED], axis=0)
            assert np.all(np.quantile(np.concatenate(errors), [0.5, 0.9]) < 1.5 * recorded)

    def test_ranks_of_deepseek_r1(self):
        t = published.table("moe_ranks").where(d_model=7168.0, fmt="nvfp4", tp=1.0, routing="balanced")
        ours = self.ours(t, chip="gb300", fmt="nvfp4")
        assert np.mean(np.abs(ours / t["latency_s"] - 1)) < 0.1

    def test_skew_costs_what_the_busiest_rank_does(self):
        t = published.table("moe_ranks").where(d_model=7168.0, fmt="nvfp4", tp=1.0, n_tokens=16_384.0, ep=32.0)
        skewed, balanced = (t.where(routing=r)["latency_s"][0] for r in ("power_law_1.2", "balanced"))
        ours = [moe_s(16_384, **ON_GB300, ep=32, routing=r) for r in ("skewed", "balanced")]
        assert skewed / balanced > 1.5 and ours[0] / ours[1] > 1.5

    def test_thin_slices_cost_more_than_whole_experts(self):
        t = published.table("moe_ranks").where(d_model=7168.0, fmt="nvfp4", routing="balanced", n_tokens=128.0)
        ep, tp = (t.where(ep=e, tp=p)["latency_s"][0] for e, p in ((8.0, 1.0), (1.0, 8.0)))
        ours = moe_s(128, **ON_GB300, ep=[8, 1], tp=[1, 8])
        assert tp / ep == pytest.approx(1.8, abs=0.05) and ours[1] / ours[0] > 1.4

    def test_latent_experts_are_faster_but_not_four_times(self):
        t = published.table("moe_ranks").where(n_experts=512.0, ep=1.0, routing="balanced", n_tokens=128.0)
        wide, latent = (t.where(d_model=h)["latency_s"][0] for h in (4096.0, 1024.0))
        layer = dict(d_expert=2688, n_experts=512, n_chosen=22, gated=False, chip="gb300", fmt="nvfp4")
        ours = moe_s(128, d_model=[4096, 1024], **layer)
        assert wide / latent == pytest.approx(2.77, abs=0.05)
        assert 2.2 < ours[0] / ours[1] < 3.5

    def test_law_of_awake_experts_tells_other_ep(self):
        t = published.table("moe_ranks").where(d_model=7168.0, fmt="nvfp4", tp=1.0, routing="balanced")
        few = t["n_tokens"] <= 256
        awake = np.minimum(256 / t["ep"], np.maximum(1, t["n_tokens"] * 8 / t["ep"]))
        x, y = np.stack([np.ones(len(t)), awake], axis=1), t["latency_s"]
        seen, told = (few & np.isin(t["ep"], ep) for ep in ([1, 8], [2, 4, 16, 32]))
        law = np.linalg.lstsq(x[seen] / y[seen, None], np.ones(seen.sum()), rcond=None)[0]
        error = np.abs(x[told] @ law / y[told] - 1)
        assert error.mean() < 0.05 and error.max() < 0.2


def test_the_bound_is_the_roofline_of_awake_experts():
    work = moe.experts(8 * 4 / 2, 8 * 4 / 2, d_model=7168, d_expert=2048, inputs="nvfp4", weights="nvfp4")
    assert moe_s(4, **ON_GB300, ep=2, bound=True) == roofline.time_s(work, "gb300", "nvfp4")
    assert moe_s(4, **R1, chip="mi355x", fmt="mxfp4", bound=True) > 0


def test_shapes_broadcast_and_blocks_do_not_show():
    m, ep = np.arange(1, 6001)[:, None], np.array([1, 8, 64])
    together = moe_s(m, **ON_GB300, ep=ep)
    assert together.shape == (6000, 3) and together.size > blocks.BLOCK
    assert together[5999, 1] == moe_s(6000, **ON_GB300, ep=8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(ep=3), "moe_s: ep is 3; allowed: a divisor of n_experts, 256"),
        (dict(tp=3), "moe_s: tp is 3; allowed: a divisor of d_expert, 2048"),
        (dict(n_chosen=300), "moe_s: n_chosen is 300; allowed: at most n_experts, 256"),
        (dict(gated=1), "gated is 1; allowed: True, False"),
        (dict(transfer_from="h100_sxm"), "transfer_from='h100_sxm' has no calibrated trtllm nvfp4"),
        (dict(routing="even"), "routing is 'even'; allowed: balanced, skewed"),
        (dict(chip="h100_sxm"), "H100 SXM has no nvfp4 peak"),
        (dict(chip="mi355x", fmt="mxfp4"), "MI355X has no calibrated trtllm mxfp4.*roofline"),
        (dict(fmt="mxfp4", gated=False), "no calibrated trtllm mxfp4"),
        (dict(engine="sglang", gated=False, fmt="fp8_block"), "no calibrated sglang fp8_block; calibrated: on no chip"),
        (dict(d_model=0), r"moe_s: d_model is 0\.0"),
    ],
)
def test_what_is_not_known_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        moe_s(8, **(ON_GB300 | change))
