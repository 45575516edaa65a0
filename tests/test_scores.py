"""Standard errors of scores: printed ones, draws, limits; and the committed tables of scores."""

import numpy as np
import pytest

from codesign_lib.specs import published, scores

CARDS = published.table("card_scores")


@pytest.mark.parametrize(
    ("score", "n", "points"),
    [(0.73, 30, 8), (0.81, 198, 2.8), (0.77, 454, 2.0), (0.95, 1319, 0.6), (0.85, 12_032, 0.33)],
    ids=["AIME", "GPQA diamond", "LiveCodeBench", "GSM8K", "MMLU-Pro"],
)
def test_known_standard_errors(score, n, points):
    assert 100 * scores.standard_error(score, n) == pytest.approx(points, abs=0.15 if points > 1 else 0.01)


def test_against_draws():
    drawn = np.random.default_rng(0).binomial(198, 0.8, 200_000) / 198
    assert scores.standard_error(0.8, 198) == pytest.approx(drawn.std(), rel=0.01)


def test_limits_and_shapes():
    assert scores.standard_error([0, 1], 10).tolist() == [0, 0]
    assert scores.standard_error([[0.5], [0.9]], [1, 4, 9]).shape == (2, 3)
    assert scores.standard_error(0.5, 4) == 2 * scores.standard_error(0.5, 16)
    assert np.isnan(scores.difference_z(1, 0, 10)) and scores.difference_z(0.5, 0.5, 10) == 0


def test_four_questions_of_29_are_no_difference():
    assert scores.difference_z(22 / 29, 18 / 29, 29) == pytest.approx(1.15, abs=0.005)
    assert scores.difference_z(0.75, 0.76, 100) < 0


def test_pooled_by_hand_and_by_draws():
    """Weights 1/4 and 1: (−2/4 + 1)/(5/4) = 0.4 with an error of √0.8."""
    p = scores.pooled([-2, 1], [2, 1])
    assert (p.change, p.error, p.z, p.n) == pytest.approx((0.4, 0.8**0.5, 0.4 / 0.8**0.5, 2))
    assert scores.pooled([0.3] * 4, [0.2] * 4).error == pytest.approx(0.1)
    sigma = np.array([0.5, 1.0, 8.0])
    drawn = np.random.default_rng(0).normal(0.2, sigma, (20_000, 3))
    found = np.array([scores.pooled(x, sigma).change for x in drawn[:4000]])
    assert found.mean() == pytest.approx(0.2, abs=0.03) and found.std() == pytest.approx(
        scores.pooled(drawn[0], sigma).error, rel=0.05
    )
    for bad in (([], []), ([1.0], [1.0, 2.0])):
        with pytest.raises(ValueError, match="allowed: equal, not empty"):
            scores.pooled(*bad)
    with pytest.raises(ValueError, match="error is 0"):
        scores.pooled([1.0], [0.0])


def test_refusals():
    with pytest.raises(ValueError, match=r"standard_error: score_fraction is 85\.0; allowed: 0 to 1"):
        scores.standard_error(85.0, 100)
    with pytest.raises(ValueError, match=r"n_questions is 0\.0; allowed: finite numbers above 0"):
        scores.standard_error(0.5, 0)
    with pytest.raises(ValueError, match=r"n_questions is 1\.5; allowed: whole numbers"):
        scores.standard_error(0.5, 1.5)
    with pytest.raises(ValueError, match="other_fraction is NaN"):
        scores.difference_z(0.5, np.nan, 10)


class TestTables:
    def test_scores_are_fractions_with_a_source(self):
        for column in ("base_fraction", "nvfp4_fraction"):
            assert np.all((CARDS[column] > 0) & (CARDS[column] <= 1))
        assert all(len(s) > 10 for s in CARDS["source"])
        assert set(CARDS["base_format"]) <= {"bf16", "fp8", "int4"}

    def test_one_benchmark_has_one_count_a_harness(self):
        pairs = {(s, b, n) for s, b, n in zip(CARDS["source"], CARDS["benchmark"], CARDS["n_questions"], strict=True)}
        assert len(pairs) == len({(s, b) for s, b, _ in pairs})

    def test_deepseek_r1_as_the_card_prints_it(self):
        rows = CARDS.where(model="DeepSeek-R1-0528")
        assert rows["nvfp4_fraction"].tolist() == [0.842, 0.80, 0.763, 0.401, 0.981, 0.913]
        assert set(rows["base_format"]) == {"fp8"}

    def test_recoveries_are_those_of_the_averages(self):
        """Table 1's NVFP4 average over its FP16 average is the recovery that Table 10 prints for the 8B model."""
        rows = published.table("fp4_recovery")
        row = rows.where(model="Llama-3.1-8B-Instruct", method="NVFP4 RTN")
        assert row["recovery_fraction"][0] == pytest.approx(74.73 / 78.93, abs=2e-3)
