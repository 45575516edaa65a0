"""Attention and FFN apart: closed form, published formula and simulation against one another."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from codesign_lib.serving import afd

times = st.floats(0.01, 10)
counts = (st.integers(1, 30), st.integers(1, 9))


class TestStep:
    @settings(max_examples=200)
    @given(times, times, st.floats(0, 10), *counts)
    def test_closed_form_is_the_simulation(self, a, e, c, n_layers, n_micro):
        how = dict(n_layers=n_layers, n_micro=n_micro)
        assert afd.simulated_s(a, e, c, **how) == pytest.approx(float(afd.step_s(a, e, c, **how)))

    @settings(max_examples=200)
    @given(times, st.floats(0.5, 1), st.floats(0, 1), *counts)
    def test_megascale_formula_where_its_conditions_hold(self, slowest, ratio, share, n_layers, n_micro):
        a, e, c = slowest, ratio * slowest, share * slowest
        assume(n_micro * slowest >= 2 * (slowest + c))
        published = (a + e + 2 * c) + slowest * (n_micro * n_layers - 1)
        for one, other in ((a, e), (e, a)):
            found = afd.simulated_s(one, other, c, n_layers=n_layers, n_micro=n_micro)
            assert found == pytest.approx(published)

    def test_one_micro_batch_goes_round(self):
        assert afd.step_s(2.0, 3.0, 0.5, n_layers=7, n_micro=1) == pytest.approx(7 * 6)

    def test_broadcasts(self):
        assert afd.step_s([[1.0], [2.0]], 1.0, [0.1, 0.2, 0.3], n_layers=3, n_micro=2).shape == (2, 3)


class TestMicroBatches:
    @pytest.mark.parametrize(("c", "n"), [(0, 2), (0.1, 3), (0.5, 3), (0.51, 4), (1, 4)])
    def test_published_numbers(self, c, n):
        assert afd.micro_batches(1.0, 1.0, c) == n

    def test_a_whole_ratio_does_not_hang_on_the_last_bit(self):
        assert (0.1 + 0.1 + 2 * 0.05) / 0.1 > 3 and afd.micro_batches(0.1, 0.1, 0.05) == 3

    @given(times, times, st.floats(0, 10))
    def test_more_hide_the_trip_and_fewer_do_not(self, a, e, c):
        n, slowest = int(afd.micro_batches(a, e, c)), max(a, e, c)
        trip = a + e + 2 * c
        assert n * slowest >= trip * (1 - 1e-9) and (n - 1) * slowest < trip


class TestRatio:
    @given(st.floats(0, 20), st.floats(0, 20), st.floats(0, 20), st.floats(0.01, 10))
    def test_nothing_beats_the_best(self, a, c, fixed, each):
        assume(max(a, c, fixed) > 0.01)
        how = dict(ffn_fixed_s=fixed, ffn_s=each)
        best = afd.best_ratio(a, c, **how)
        many = np.geomspace(1e-3, 1e5, 4001)
        assert afd.throughput_ratio(many, a, c, **how).max() <= afd.throughput_ratio(best, a, c, **how) * (1 + 1e-9)

    def test_mixtral_with_four_attention_nodes(self):
        assert afd.tokens_per_expert(32, n_attention=4, n_experts=8, n_chosen=2) == 32


class TestSpeedup:
    @pytest.mark.parametrize(
        ("shares", "batches", "published"), [((43.4, 16.2, 40.5), 72 / 48, 1.45), ((48.2, 15.3, 36.4), 36 / 24, 1.38)]
    )
    def test_published_predictions(self, shares, batches, published):
        names = dict(zip(("attention_s", "dense_s", "moe_s"), shares, strict=True))
        assert afd.speedup(batch_ratio=batches, **names, n_attention=17, n_ffn=1) == pytest.approx(published, abs=0.01)

    def test_nothing_gained_without_room(self):
        # same batch, one micro-batch, experts for nothing: only the GPU that was added is lost
        found = afd.speedup(batch_ratio=1, attention_s=1, dense_s=1, moe_s=0, n_attention=3, n_ffn=1, n_micro=1)
        assert found == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: afd.step_s(-1, 1, 1, n_layers=1, n_micro=1), "attention_s is -1.0"),
        (lambda: afd.step_s(1, 1, 1, n_layers=0, n_micro=1), "n_layers is 0.0"),
        (lambda: afd.simulated_s(1, np.nan, 1, n_layers=1, n_micro=1), "ffn_s is NaN"),
        (lambda: afd.simulated_s(1, 1, 1, n_layers=1, n_micro=1.5), "n_micro is 1.5"),
        (lambda: afd.micro_batches(0, 0, 0), "all times are 0"),
        (lambda: afd.best_ratio(1, 1, ffn_fixed_s=1, ffn_s=0), "ffn_s is 0.0"),
        (lambda: afd.speedup(batch_ratio=0, attention_s=1, dense_s=1, moe_s=1, n_attention=1, n_ffn=1), "batch_ratio"),
        (lambda: afd.tokens_per_expert(0, n_attention=1, n_experts=8, n_chosen=2), "n_micro_tokens is 0.0"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: afd.simulated_s([1, 2], 1, 1, n_layers=2, n_micro=2), "simulated_s: arrays"),
        (lambda: afd.step_s([1, 2], 1, 1, n_layers=2, n_micro=[1, 2, 3]), "do not broadcast"),
        (lambda: afd.tokens_per_expert(4, n_attention=1, n_experts=8, n_chosen=9), "n_chosen is 9; allowed: at most"),
        (lambda: afd.throughput_ratio(1, 0, 0, ffn_fixed_s=0, ffn_s=0), "all times are 0"),
    ],
)
def test_refuses_what_has_no_answer(call, message):
    with pytest.raises(ValueError, match=message):
        call()
