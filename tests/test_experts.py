"""Experts that are read, and one published layer of them."""

import csv
from importlib.resources import files

import numpy as np
import pytest

from codesign_lib.cost import calibration, experts


def test_moe_layer_law_against_its_published_table():
    law = calibration.find("moe_layer", "b200_sxm", "trtllm", "nvfp4").numbers
    text = files("codesign_lib").joinpath("data/moe_dense_b200.csv").read_text(encoding="utf-8")
    points = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    m, measured_s = np.array([(float(r["m"]), float(r["moe_s"])) for r in points]).T
    ours = experts.moe_law_s(m, n_experts=256, n_chosen=8, numbers=law)
    assert np.mean(np.abs(ours / measured_s - 1)) < 0.05


def test_active_experts_in_its_limits():
    assert experts.active_experts(1, n_experts=256, n_chosen=8) == pytest.approx(8)
    assert experts.active_experts(10**6, n_experts=256, n_chosen=8) == 256
    assert experts.active_experts([1, 2, 3], n_experts=8, n_chosen=8).tolist() == [8, 8, 8]
    with pytest.raises(ValueError, match="n_chosen ≤ n_experts"):
        experts.active_experts(1, n_experts=8, n_chosen=9)


def test_law_by_hand_and_broadcast():
    numbers = {"launch_s": 2e-5, "expert_s": 5e-7}
    m = np.array([[1], [2]])
    found = experts.moe_law_s(m, n_experts=[4, 8], n_chosen=2, numbers=numbers)
    assert found.shape == (2, 2)
    assert found[1, 0] == pytest.approx(2e-5 + 5e-7 * 3)
    assert experts.moe_law_s(2, n_experts=4, n_chosen=2, numbers=numbers | {"token_s": 1e-6}) == pytest.approx(2.35e-5)


def test_one_choice_of_many_above_the_experts_is_refused():
    with pytest.raises(ValueError, match="n_chosen is above n_experts"):
        experts.active_experts(1, n_experts=[8, 256], n_chosen=16)


def test_rows_of_an_expert():
    found = experts.tokens_per_expert([[256], [512]], n_experts=[256, 128], n_chosen=8)
    assert found.tolist() == [[8, 16], [16, 32]]
    with pytest.raises(ValueError, match=r"tokens_per_expert: n_concurrent is 0\.0"):
        experts.tokens_per_expert(0, n_experts=8, n_chosen=2)


def test_all_to_all_sends_less_than_all_gather_once_ranks_outnumber_choices():
    ep = np.array([2, 4, 8, 16, 64])
    sent = experts.dispatch_bytes(100, ep=ep, d_model=7168, n_chosen=8)
    gathered = 100 * ep * 7168 * 2
    assert ((sent < gathered) == (ep > 8)).all()
    # 753 GB/s by the definition of the technical blog
    moved = experts.dispatch_bytes(2048, ep=8, d_model=7168, n_chosen=8)
    assert moved / 311.8e-6 == pytest.approx(753e9, rel=1e-3)


def test_more_choices_than_experts_are_refused():
    with pytest.raises(ValueError, match="tokens_per_expert: n_chosen is above n_experts"):
        experts.tokens_per_expert(100, n_experts=8, n_chosen=9)
