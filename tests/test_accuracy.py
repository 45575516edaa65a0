"""Error bars of benchmark scores: closed form, limits, broadcasting, the published sizes."""

import numpy as np
import pytest

from codesign_lib.specs import accuracy, published


def test_published_sizes():
    # AIME about 8 points, GPQA-D 2.8, LiveCodeBench 2.0, GSM8K 0.6, MMLU-Pro 0.33
    scores = {"aime24": (0.72, 8.2), "gpqa_diamond": (0.81, 2.8), "lcb": (0.77, 2.0), "gsm8k": (0.95, 0.6),
              "mmlu_pro": (0.84, 0.33)}  # fmt: skip
    for name, (score, points) in scores.items():
        found = 100 * accuracy.standard_error(score, accuracy.n_questions(name))
        assert found == pytest.approx(points, abs=0.06), name


def test_limits_and_runs():
    assert accuracy.standard_error([0.0, 1.0], 30).tolist() == [0.0, 0.0]
    assert accuracy.standard_error(0.5, 100) == pytest.approx(0.05)
    assert accuracy.standard_error(0.5, 100, n_runs=4) == pytest.approx(0.025)
    assert accuracy.standard_error(np.full((3, 1), 0.5), [10, 20]).shape == (3, 2)


def test_by_simulation():
    draws = np.random.default_rng(0).binomial(198, 0.8, 20_000) / 198
    assert draws.std() == pytest.approx(float(accuracy.standard_error(0.8, 198)), rel=0.03)


def test_difference():
    assert accuracy.difference_sigmas(0.8, 0.8, 198) == 0
    assert accuracy.difference_sigmas(1.0, 1.0, 198) == 0
    assert accuracy.difference_sigmas(0.9, 0.8, 198) == -accuracy.difference_sigmas(0.8, 0.9, 198) > 2
    assert accuracy.difference_sigmas([0.9, 0.7], 0.8, [[198], [30]]).shape == (2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: accuracy.standard_error(84.0, 198), "score_fraction is 84; allowed: 0 to 1"),
        (lambda: accuracy.standard_error(0.5, 0), "n_questions is 0.0"),
        (lambda: accuracy.standard_error(0.5, 0.5), "n_questions is 0.5; allowed: at least 1"),
        (lambda: accuracy.standard_error(0.5, 10, n_runs=0.5), "n_runs is 0.5"),
        (lambda: accuracy.standard_error(float("nan"), 10), "score_fraction is NaN"),
        (lambda: accuracy.n_questions("aime"), "unknown benchmark 'aime'; known: aime24"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_every_score_has_a_benchmark_and_lies_between_0_and_1():
    table = published.table("accuracy")
    assert ((table["score_fraction"] > 0) & (table["score_fraction"] <= 1)).all()
    counted = set(published.table("benchmarks")["benchmark"].tolist())
    assert set(table["benchmark"].tolist()) - counted <= {"scicode", "ceval"}
