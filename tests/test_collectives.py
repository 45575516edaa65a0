"""Seconds of communication: traffic, forms by hand, published all-to-all, what is refused."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.cost import calibration, collectives
from codesign_lib.cost.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    moe_all_to_all_s,
    point_to_point_s,
    reduce_scatter_s,
)
from codesign_lib.specs import hardware, published

CALIBRATED = [c for c in calibration.table() if c.kernel in collectives.OPERATIONS]


def label(c):
    return f"{c.kernel}-{c.chip}-{c.engine}"


def function(c):
    of = getattr(collectives, f"{c.kernel}_s")
    return (lambda size, **how: of(size, **how, engine=c.engine)) if c.kernel == "all_reduce" else of


def test_all_to_all_does_not_grow_with_ranks_and_all_gather_does():
    # T tokens of 8 experts' bytes a rank: each token sent k times at most, or every token to everybody
    token, k = 7168 * 2, 8
    sent = [collectives.traffic_bytes("all_to_all", 100 * k * token, n_ranks=g) for g in (8, 64)]
    gathered = [collectives.traffic_bytes("all_gather", 100 * g * token, n_ranks=g) for g in (8, 64)]
    assert sent[1] / sent[0] == pytest.approx((63 / 64) / (7 / 8))
    assert gathered[1] / gathered[0] == pytest.approx(9)
    # and all-to-all wins exactly beyond k ranks
    assert sent[1] < gathered[1] and sent[0] == gathered[0]


def test_the_form_by_hand():
    numbers = {"hop_s": 2e-6, "first_s": 5e-6, "first_fraction": 0.1, "second_s": 2e-5, "second_fraction": 0.7}
    size, ranks = np.array([1e6, 1e9]), np.array([4.0, 4.0])
    how = dict(link_bytes_per_s=9e11, engine="nccl", numbers=numbers | {"own_fraction": 0.5})
    nccl = collectives.form_s("all_reduce", size, ranks, **how)
    for found, n_bytes in zip(nccl, size, strict=True):
        moved = 2 * n_bytes * (3 + 0.5) / 4  # a ring's, and half of what the own share would take
        slow, fast = 5e-6 + moved / 9e10, 2e-5 + moved / 6.3e11
        assert found == pytest.approx(3 * 2e-6 + (slow**-4 + fast**-4) ** -0.25)
    own = collectives.form_s("all_reduce", size, ranks, link_bytes_per_s=9e11, engine="trtllm", numbers=numbers)
    assert own[0] == pytest.approx(4e-6 + 2e-5 + 1.5e6 / 6.3e11)
    small = collectives.form_s("all_reduce", 1e4, 4.0, link_bytes_per_s=9e11, engine="trtllm", numbers=numbers)
    assert small == pytest.approx(4e-6 + 5e-6 + 3e4 / 9e10)  # one-shot: three other buffers are read


@pytest.mark.parametrize("c", CALIBRATED, ids=label)
@given(size=st.floats(1, 1e11), ranks=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_never_below_the_bound(c, size, ranks):
    of, ranks = function(c), min(ranks, 4 if c.chip.startswith("gb") and c.engine == "trtllm" else 8)
    least = of(size, n_ranks=ranks, chip=c.chip, bound=True)
    assert of(size, n_ranks=ranks, chip=c.chip) >= least
    assert (ranks > 1) == (least > 0) == (of(size, n_ranks=ranks, chip=c.chip) > 0)


@pytest.mark.parametrize("c", CALIBRATED, ids=label)
def test_numbers_are_few_and_physical(c):
    assert len(c.numbers) == 5 + (c.engine == "nccl") and c.n_held_out >= 15
    for name, value in c.numbers.items():
        assert 0 < value <= (1 if name.endswith("_fraction") else 1e-4)


def test_every_table_is_there():
    assert {(c.kernel, c.engine) for c in CALIBRATED} == {
        *((x, "nccl") for x in collectives.OPERATIONS),
        ("all_reduce", "trtllm"),
        ("all_reduce", "sglang"),
    }
    assert len(CALIBRATED) == 6 * 6
    checks = published.table("validation/collectives_checks")
    assert not [v for v in checks["verdict"] if v.startswith("FAILS")]


def test_in_network_reduction_is_counted_in_the_bound():
    # measured: eight H100 reduce faster than two directions of a ring allow
    with_switch, without = (
        all_reduce_s(2**30, n_ranks=8, chip="h100_sxm", bound=True, in_network=x) for x in (True, False)
    )
    assert without == pytest.approx(1.75 * 2**30 / 450e9) and with_switch == pytest.approx(1.125 * 2**30 / 450e9)
    assert all_reduce_s(2**30, n_ranks=2, chip="h100_sxm", bound=True) == pytest.approx(2**30 / 450e9)
    mesh = [all_reduce_s(2**30, n_ranks=8, chip="mi300x", bound=True, in_network=x) for x in (True, False)]
    assert mesh[0] == mesh[1]


def test_measured_all_reduces():
    # GB300, four GPUs, TensorRT-LLM: microseconds by bytes
    theirs = np.array([5.0, 14.4, 123.7, 2538]) * 1e-6
    ours = all_reduce_s([2**17, 2**21, 2**25, 2**30], n_ranks=4, chip="gb300", engine="trtllm")
    assert np.median(np.abs(ours / theirs - 1)) < 0.15
    nccl = all_reduce_s(2**17, n_ranks=4, chip="gb300")
    assert nccl > 2.5 * ours[0]  # the engine's own is for small messages


def test_across_domains_the_nic_binds():
    inside = all_to_all_s(2**30, n_ranks=8, chip="h100_sxm", bound=True)
    outside = all_to_all_s(2**30, n_ranks=16, chip="h100_sxm", bound=True)
    assert inside == pytest.approx(2**30 * 7 / 8 / 450e9) and outside == pytest.approx(2**30 / 2 / 50e9)
    assert all_reduce_s(2**30, n_ranks=16, chip="h100_sxm", bound=True) == pytest.approx(2 * 2**30 / 2 / 8 / 50e9)
    assert all_gather_s(2**30, n_ranks=16, chip="gb300", bound=True) == pytest.approx(2**30 * 15 / 16 / 900e9)
    assert reduce_scatter_s(2**30, n_ranks=72, chip="gb300", bound=True) < 2**30 / 900e9


def test_deepseeks_limit_of_expert_parallelism():
    # arXiv 2505.09343: (1 B out + 2 B back) · 32 tokens · 9 experts · 7,000 over one NIC or NVLink
    moved = (1 + 2) * 32 * 9 * 7000
    assert point_to_point_s(moved, chip="h100_sxm", across=True, bound=True) == pytest.approx(120.96e-6)
    assert point_to_point_s(moved, chip="gb200", bound=True) == pytest.approx(6.72e-6)
    floor = sum(moe_all_to_all_s(32, phase=p, ep=32) for p in ("dispatch", "combine"))
    assert floor > 7 * 6.72e-6  # the floor, not the bandwidth


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_published_all_to_all(phase):
    table = published.table("moe_all_to_all")
    for ep in (8, 16, 32, 64):
        t = table.where(ep=float(ep))
        errors = np.abs(moe_all_to_all_s(t["n_tokens"], phase=phase, ep=ep) / t[f"{phase}_s"] - 1)
        assert errors.mean() < 0.05
        many = moe_all_to_all_s(2048, phase=phase, ep=ep, n_chosen=128)  # a rank gets a token once
        assert many == moe_all_to_all_s(2048, phase=phase, ep=ep, n_chosen=ep)
    logical = 2048 * 8 * 7168 * 2 / table.where(ep=8.0, n_tokens=2048.0)["dispatch_s"][0]
    assert logical == pytest.approx(753e9, rel=0.01)


class TestRack:
    """Beyond one tray of a rack engines take other kernels."""

    def test_sglang_takes_nccl(self):
        ours = all_reduce_s([256, 2**20], n_ranks=[[4], [8], [16]], chip="gb300", engine="sglang")
        assert np.array_equal(ours[1:], all_reduce_s([256, 2**20], n_ranks=[[8], [16]], chip="gb300"))
        # measured, not fitted: microseconds of 256 bytes and 1 MiB on 8 and 16 GPUs
        np.testing.assert_allclose(ours[1:] * 1e6, [[26.9, 30.5], [47.8, 52.1]], rtol=0.2)
        assert ours[0, 0] < 5e-6

    def test_tensorrt_llm_has_numbers_of_its_own(self):
        ours = all_reduce_s([256, 2**20, 2**30], n_ranks=[[8], [16]], chip="gb300", engine="trtllm")
        np.testing.assert_allclose(ours * 1e6, [[4.3, 7.6, 2825], [5.2, 8.3, 4135]], rtol=0.3)
        mixed = all_reduce_s(2**20, n_ranks=[4, 8], chip="gb300", engine="trtllm")
        assert mixed[0] == all_reduce_s(2**20, n_ranks=4, chip="gb300", engine="trtllm")

    def test_what_nobody_measured_there_is_refused(self):
        with pytest.raises(ValueError, match=r"GB200 has no calibrated trtllm any; calibrated: gb300; .*transfer_from"):
            all_reduce_s(2**20, n_ranks=8, chip="gb200", engine="trtllm")
        ours = all_reduce_s(2**20, n_ranks=8, chip="gb200", engine="trtllm", transfer_from="gb300")
        assert ours == all_reduce_s(2**20, n_ranks=8, chip="gb300", engine="trtllm")


class TestTransfer:
    @pytest.mark.parametrize("source", ["h100_sxm", "h200_sxm"])
    def test_an_h20_has_the_links_of_a_hopper(self, source):
        for of in (all_reduce_s, all_gather_s, reduce_scatter_s, all_to_all_s):
            ours = of([2**10, 2**20, 2**30], n_ranks=8, chip="h20", transfer_from=source)
            assert np.array_equal(ours, of([2**10, 2**20, 2**30], n_ranks=8, chip=source))
        for engine in ("trtllm", "sglang"):
            ours = all_reduce_s(2**20, n_ranks=8, chip="h20", engine=engine, transfer_from=source)
            assert ours == all_reduce_s(2**20, n_ranks=8, chip=source, engine=engine)

    def test_shares_of_the_links_and_seconds(self):
        doubled = dataclasses.replace(hardware.chip("h100_sxm"), link_bytes_per_s=900e9)
        numbers = calibration.find("all_gather", "h100_sxm", "nccl", "any").numbers
        form = dict(link_bytes_per_s=900e9, engine="nccl", numbers=numbers)
        ours = all_gather_s(2**30, n_ranks=8, chip=doubled, transfer_from="h100_sxm")
        assert ours == pytest.approx(float(collectives.form_s("all_gather", 2.0**30, 8.0, **form)), rel=1e-12)

    def test_all_to_all_of_experts(self):
        on_gb300 = moe_all_to_all_s([1, 2048], phase="dispatch", ep=8, chip="gb300", transfer_from="gb200")
        np.testing.assert_allclose(on_gb300, moe_all_to_all_s([1, 2048], phase="dispatch", ep=8), rtol=1e-12)
        on_h20 = moe_all_to_all_s([1, 2048], phase="dispatch", ep=8, chip="h20", transfer_from="gb200")
        assert on_h20[0] == on_gb300[0] and on_h20[1] == pytest.approx(12.96e-6 + 2 * (on_gb300[1] - 12.96e-6))


def test_a_message_is_half_an_all_to_all_of_two():
    ours = point_to_point_s([2**10, 2**30], chip="h100_sxm")
    assert np.array_equal(ours, all_to_all_s([2**11, 2**31], n_ranks=2, chip="h100_sxm"))
    assert np.all(ours > point_to_point_s([2**10, 2**30], chip="h100_sxm", bound=True))
    assert np.array_equal(ours, point_to_point_s([2**10, 2**30], chip="h20", transfer_from="h100_sxm"))
    with pytest.raises(ValueError, match="point_to_point_s: across domains nothing is calibrated; allowed: bound=True"):
        point_to_point_s(1, chip="h100_sxm", across=True)


class TestBound:
    def test_a_pair_on_a_mesh_has_one_link(self):
        # 64 GB/s to each of seven peers: two ranks use one link, eight all
        wire = point_to_point_s(1e9, chip="mi300x", bound=True)
        assert wire == pytest.approx(1e9 / 64e9)
        assert all_gather_s(2e9, n_ranks=2, chip="mi300x", bound=True) == pytest.approx(wire)
        assert all_gather_s(8e9, n_ranks=8, chip="mi300x", bound=True) == pytest.approx(7e9 / (7 * 64e9))

    @pytest.mark.parametrize(("operation", "times"), [("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)])
    def test_across_domains_a_nic_a_gpu(self, operation, times):
        # three boards of eight: each board takes in two thirds of the buffer over eight NICs of 25 GB/s
        chip = dataclasses.replace(hardware.chip("h100_sxm"), scale_out_bytes_per_s=25e9)
        slow = collectives.bound_s(operation, 24e9, n_ranks=24, chip=chip)
        assert slow == pytest.approx(times * 16e9 / 8 / 25e9)
        assert collectives.bound_s(operation, 24e9, n_ranks=[17, 24], chip=chip)[0] == slow

    def test_the_links_bind_where_nics_are_fast(self):
        fast = dataclasses.replace(hardware.chip("h100_sxm"), scale_out_bytes_per_s=1e15)
        inside = all_gather_s(8e9, n_ranks=8, chip=fast, bound=True)
        assert all_gather_s(8e9, n_ranks=16, chip=fast, bound=True) == inside == pytest.approx(7e9 / 450e9)

    def test_it_is_a_floor(self, monkeypatch):
        fast = {"hop_s": 1e-15, "first_s": 1e-15, "second_s": 1e-15, "own_fraction": 1e-9}
        fast |= {"first_fraction": 9.0, "second_fraction": 9.0}
        monkeypatch.setattr(calibration, "fitted", lambda *a, **b: fast)
        for of in (all_reduce_s, all_gather_s, reduce_scatter_s, all_to_all_s):
            assert of(1e9, n_ranks=8, chip="h100_sxm") == of(1e9, n_ranks=8, chip="h100_sxm", bound=True)


def test_shapes_broadcast():
    t = all_reduce_s([[2**10], [2**20], [2**30]], n_ranks=[2, 4, 8], chip="b200_sxm")
    assert t.shape == (3, 3) and (np.diff(t, axis=0) > 0).all() and t.dtype == np.float64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: all_reduce_s(1, n_ranks=16, chip="h100_sxm"), "n_ranks is 16; allowed: up to 8, the scale-up domain"),
        (lambda: all_reduce_s(1, n_ranks=8, chip="mi300x"), "MI300X has no calibrated nccl any.*roofline"),
        (lambda: all_reduce_s(1, n_ranks=8, chip="mi300x", transfer_from="h100_sxm"), "links of MI300X are a mesh"),
        (lambda: all_reduce_s(1, n_ranks=8, chip="gb300", in_network=1), "in_network is 1; allowed: True, False"),
        (lambda: all_reduce_s([1, 2], n_ranks=[2, 3, 4], chip="gb300"), "n_ranks of shape .3,. do not broadcast"),
        (lambda: moe_all_to_all_s(1, phase="dispatch", ep=8.0), "ep is 8.0; allowed: 8, 16, 32, 64"),
        (lambda: moe_all_to_all_s(1, phase="dispatch", ep="8"), "ep is '8'; allowed: 8, 16, 32, 64"),
        (
            lambda: all_reduce_s(1, n_ranks=8, chip="gb200", engine="trtllm"),
            "all_reduce_s, n_ranks above the 4 of a tray: GB200 has no calibrated trtllm any; calibrated: gb300",
        ),
        (lambda: moe_all_to_all_s(1, phase="dispatch", ep=8, chip="gb300"), "allowed: gb200, or transfer_from='gb200'"),
        (
            lambda: moe_all_to_all_s(1, phase="dispatch", ep=16, chip="h20", transfer_from="gb200"),
            "ep is 16; allowed: u",
        ),
        (lambda: all_reduce_s(1, n_ranks=8, chip="gb300", engine="vllm"), "engine is 'vllm'; allowed: nccl"),
        (lambda: all_gather_s(0, n_ranks=8, chip="gb300"), r"all_gather_s: n_bytes is 0\.0"),
        (lambda: all_gather_s(1, n_ranks=1.5, chip="gb300"), r"n_ranks is 1\.5"),
        (lambda: collectives.traffic_bytes("broadcast", 1, n_ranks=2), "operation is 'broadcast'; allowed: all_reduce"),
        (lambda: moe_all_to_all_s(1, phase="both", ep=8), "allowed: dispatch, combine"),
        (lambda: moe_all_to_all_s(1, phase="dispatch", ep=12), "ep is 12; allowed: 8, 16, 32, 64"),
        (lambda: point_to_point_s(1, chip="mi300x", across=True), "MI300X has no scale_out_bytes_per_s"),
    ],
)
def test_what_is_not_known_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
