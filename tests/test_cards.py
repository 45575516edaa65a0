"""Scores of cards turned for reading, and errors of formats on drawn numbers."""

import numpy as np
import pytest

from codesign_lib.lowbit import nvfp4
from codesign_lib.report.claims import cards, errors
from codesign_lib.specs import published, scores


def test_changes_of_one_card_by_hand():
    c = cards.changes("DeepSeek-R1-0528")
    at = c.benchmark.tolist().index("AIME 2024")
    assert c.base_error[at] == pytest.approx(np.sqrt(0.89 * 0.11 / 30))
    assert c.z[at] == pytest.approx(scores.difference_z(0.89, 0.913, 30))


def test_benchmarks_without_a_count_have_no_error():
    c = cards.changes("Nemotron-3-Super-120B-A12B")
    lacking = ~np.isfinite(c.base_error)
    assert 0 < lacking.sum() < lacking.size and (lacking == np.isnan(c.z)).all()


def test_means_by_hand():
    m = cards.means()
    i = m.model.index("Llama-3.3-70B-Instruct")
    base, new, n = np.array([[83.3, 95.3, 93.7, 92.1], [81.1, 92.6, 93.3, 92.0], [14042, 1319, 1172, 541]])
    variance = (base * (100 - base) + new * (100 - new)) / n + 2 * 0.1**2 / 12  # percent, tenths printed
    weight = 1 / variance
    assert 100 * m.change[i] == pytest.approx(np.sum(weight * (new - base)) / np.sum(weight))
    assert 100 * m.error[i] == pytest.approx(np.sum(weight) ** -0.5)
    assert m.n_benchmarks[i] == 4 and m.n_params[i] == 70.6e9
    assert len(m.model) == len(set(published.table("card_scores")["model"].tolist()))


def test_whole_percents_are_rounded_by_a_third_of_a_point():
    c = cards.changes("DeepSeek-R1-0528")
    at = c.benchmark.tolist().index("MMLU-Pro")
    by_hand = np.sqrt((85 * 15 + 84.2 * 15.8) / 12_032 + (1 + 0.01) / 12)
    assert 100 * c.error[at] == pytest.approx(by_hand) and 0.8 / by_hand == pytest.approx(1.46, abs=0.005)
    assert cards.printed_step(np.array([0.8952, 0.4985])) == 1e-4


def test_pooled():
    large = cards.pooled(n_least=1e11)
    mmlu = cards.pooled(n_least=1e11, benchmark="MMLU-Pro")
    assert mmlu.n == 5 and large.n > 30 and mmlu.z < -2 and large.z < -2
    one_less = cards.pooled(n_least=1e11, left_out=("DeepSeek-R1-0528 v2",))
    assert one_less.n == large.n - 6
    everything, small = cards.pooled(), cards.pooled(n_below=1e11)
    assert everything.n > large.n + small.n  # models of unknown size
    with pytest.raises(ValueError, match=r"pooled: change has shape .*; allowed: equal, not empty"):
        cards.pooled(n_least=1e11, benchmark="MBPP")


def test_rows_of_unknown_models_are_refused():
    with pytest.raises(ValueError, match="no row with model='x'"):
        cards.changes("x")


class TestErrors:
    def test_samples_are_seeded_and_what_they_say(self):
        x = errors.sample("Gaussian, 0.1 % × 30")
        assert x.shape == (errors.N, errors.N) and x.dtype == np.float32 and x is errors.sample("Gaussian, 0.1 % × 30")
        assert np.mean(np.abs(x) > 6) == pytest.approx(1e-3 * 0.841, rel=0.1)  # |30 z| > 6
        assert errors.sample("Laplace").var() == pytest.approx(2, rel=0.01)

    def test_a_multiplied_tensor_costs_nvfp4_nothing_and_mxfp4_up_to_a_tenth(self):
        factors = 2.0 ** (np.arange(5) / 4)
        nv, mx = (errors.multiplied(method, factors) for method in ("NVFP4", "MXFP4, floor"))
        assert np.ptp(nv) < 1e-3 * nv.mean() and 0.05 < np.ptp(mx) / mx.mean() < 0.15
        assert mx[0] == mx[-1]  # a whole power of two

    def test_outliers(self):
        assert errors.with_outliers("NVFP4", [1.0])[0] == pytest.approx(errors.relative_error("NVFP4", "Gaussian"), rel=0.01)  # fmt: skip  # noqa: E501
        plain, turned = (errors.with_outliers(m, [30, 100]) for m in ("NVFP4", "NVFP4, rotated by 128"))
        assert (turned > 1.2 * plain).all()

    def test_attention_on_a_stored_cache(self):
        """Values bring ε, keys about ε times the variance of the logits, both together the sum."""
        epsilon = errors.relative_error("NVFP4", "Gaussian")
        assert errors.attention_error(1, values="NVFP4") == pytest.approx(epsilon, rel=0.1)
        for std in (0.25, 0.5, 1.0):
            assert errors.attention_error(std, keys="NVFP4") == pytest.approx(epsilon * std**2, rel=0.25)
        both = errors.attention_error(1, keys="NVFP4", values="NVFP4")
        assert both == pytest.approx(
            errors.attention_error(1, keys="NVFP4") + errors.attention_error(1, values="NVFP4"), rel=0.05
        )
        assert errors.attention_error(1) == 0

    def test_refusals(self):
        with pytest.raises(ValueError, match="method is 'NF4'; allowed: NVFP4, NVFP4, four over six"):
            errors.relative_error("NF4", "Gaussian")
        with pytest.raises(ValueError, match="distribution is 'cauchy'; allowed: Gaussian, Laplace"):
            errors.sample("cauchy")

    def test_the_method_is_the_librarys(self):
        x = errors.sample("Gaussian")[:16]
        values, size = errors.METHODS["NVFP4"]
        assert size == 1 and (values(x) == nvfp4.dequantise(nvfp4.quantise(x))).all()
