"""Chunks through stages: the recurrence against a loop, the closed form of equal times, bounds, requests in flight."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign_lib.serving import pipeline


def by_hand(stage, link, ready, window=10**9):
    """The recurrence cell by cell, in plain Python."""
    p, m = stage.shape
    done = np.zeros((p, m))
    for c in range(m):
        for s in range(p):
            back = done[-1, c - window] if c >= window else 0.0
            arrived = done[s - 1, c] + link[s - 1, c] if s else max(ready[c], back)
            free = done[s, c - 1] if c else 0.0
            done[s, c] = max(arrived, free) + stage[s, c]
    return done


shapes = st.tuples(st.integers(1, 6), st.integers(1, 9))
seeds = st.integers(0, 2**16)


@given(shapes, seeds)
def test_the_recurrence(shape, seed):
    rng = np.random.default_rng(seed)
    stage, link, ready = rng.random(shape), rng.random((shape[0] - 1, shape[1])), 3 * rng.random(shape[1])
    found = pipeline.finish_s(stage, link, ready_s=ready)
    assert np.allclose(found, by_hand(stage, link, ready), rtol=1e-12)


@pytest.mark.parametrize("n", [1, pipeline.MANY - 1, pipeline.MANY, 3 * pipeline.MANY + 1])
def test_many_pipelines_are_each_one(n, monkeypatch):
    monkeypatch.setattr(pipeline, "BLOCK_CELLS", 40 * pipeline.MANY)  # so that there are several blocks
    rng = np.random.default_rng(n)
    stage, link, ready = rng.random((n, 4, 5)), rng.random((n, 3, 5)), rng.random((n, 5))
    found = pipeline.finish_s(stage, link, ready_s=ready)
    assert found.shape == stage.shape
    for i in {0, n // 2, n - 1}:
        assert np.allclose(found[i], by_hand(stage[i], link[i], ready[i]), rtol=1e-12)


@given(shapes, seeds, st.integers(1, 10))
def test_a_limited_number_in_flight(shape, seed, window):
    rng = np.random.default_rng(seed)
    stage, link, ready = rng.random(shape), rng.random((shape[0] - 1, shape[1])), 3 * rng.random(shape[1])
    expected = by_hand(stage, link, ready, window)
    assert np.allclose(pipeline.finish_s(stage, link, ready_s=ready, in_flight=window), expected, rtol=1e-12)
    many = np.broadcast_to(stage, (pipeline.MANY, *shape))
    assert np.allclose(pipeline.finish_s(many, link, ready_s=ready, in_flight=window)[7], expected, rtol=1e-12)
    assert (expected >= by_hand(stage, link, ready) * (1 - 1e-12)).all()


def test_one_in_flight_is_no_pipeline_and_one_a_stage_is_enough_for_equal_chunks():
    stage = np.random.default_rng(0).random((4, 6))
    assert pipeline.first_token_s(stage, in_flight=1) == pytest.approx(stage.sum())
    assert pipeline.first_token_s(np.ones((4, 30)), in_flight=4) == pytest.approx(33)
    assert pipeline.first_token_s(np.ones((4, 30)), in_flight=10**30) == pytest.approx(33)
    unequal = np.ones((4, 1)) * np.tile([1.0, 3.0, 1.0], 10)
    alone, limited = (pipeline.served(unequal, np.zeros(5), in_flight=w).requests_per_s for w in (None, 4))
    assert limited < 0.95 * alone


@given(shapes, seeds)
def test_no_faster_than_any_path(shape, seed):
    stage = np.random.default_rng(seed).random(shape)
    last = float(pipeline.first_token_s(stage)) * (1 + 1e-12)
    for s in range(shape[0]):  # the first chunk to a stage, all chunks there, the last one on
        assert last >= stage[:s, 0].sum() + stage[s].sum() + stage[s + 1 :, -1].sum()
    assert last >= stage.sum(axis=0).max()
    assert last <= stage.sum() * (1 + 1e-11)


@given(st.integers(1, 40), st.integers(1, 40), st.floats(1e-6, 1e3))
def test_equal_times_have_a_closed_form(p, m, t):
    stage = np.full((p, m), t)
    assert pipeline.first_token_s(stage) == pytest.approx((p + m - 1) * t, rel=1e-12)
    assert pipeline.idle_fraction(stage) == pytest.approx(float(pipeline.bubble_fraction(p, m)), abs=1e-12)


def test_order_of_stages_matters_when_chunks_grow_and_not_when_they_are_equal():
    layers = np.array([[15, 15, 15, 16], [16, 15, 15, 15]])[:, :, None]
    growing, equal = np.linspace(1, 5, 12), np.full(12, 3.0)
    first, last = pipeline.first_token_s(layers * growing)
    assert 1.03 < last / first < 1.06
    same = pipeline.first_token_s(layers * equal)
    assert same[0] == pytest.approx(same[1], rel=1e-12)


def test_links_are_a_delay_that_overlaps():
    stage = np.ones((3, 4))
    assert pipeline.first_token_s(stage, 0.5) == pytest.approx(6 + 2 * 0.5)
    assert pipeline.first_token_s(stage, np.array([[2.0], [0.0]])) == pytest.approx(6 + 2.0)
    assert pipeline.first_token_s(np.ones((5, 3, 4)), np.zeros((5, 2, 1))).shape == (5,)


def test_nothing_to_broadcast():
    assert pipeline.finish_s(np.ones((0, 3, 4))).shape == (0, 3, 4)
    assert pipeline.finish_s(np.ones((2, 3, 1, 1))).shape == (2, 3, 1, 1)


def test_requests_fill_the_bubble():
    one = np.full((4, 8), 0.01)
    slow = pipeline.served(one, [0.0])
    assert slow.first_token_s == pytest.approx([0.11])
    assert slow.busy_fraction == pytest.approx(8 / 11)
    at_once = pipeline.served(one, np.zeros(100))
    assert at_once.requests_per_s == pytest.approx(100 / (0.01 * (800 + 3)))
    assert at_once.first_token_s[-1] == pytest.approx(0.01 * (800 + 3))
    assert at_once.requests_per_s < pipeline.most_per_s(one) == pytest.approx(12.5)


@given(shapes, seeds, st.integers(1, 7))
def test_requests_are_a_long_prompt_with_arrivals(shape, seed, n):
    rng = np.random.default_rng(seed)
    stage, arrive = rng.random(shape), np.sort(5 * rng.random(n))
    done = by_hand(np.tile(stage, n), np.zeros((shape[0] - 1, n * shape[1])), np.repeat(arrive, shape[1]))
    found = pipeline.served(stage, arrive)
    assert np.allclose(found.first_token_s, done[-1, shape[1] - 1 :: shape[1]] - arrive, rtol=1e-11, atol=1e-12)
    assert found.busy_fraction <= 1
    assert (found.first_token_s >= pipeline.first_token_s(stage) * (1 - 1e-9)).all()


def test_beyond_the_highest_rate_requests_pile_up():
    one = np.random.default_rng(1).random((4, 6))
    most = pipeline.most_per_s(one)
    arrive = np.arange(200) / (most * np.array([[0.9], [1.1]]))
    waits = pipeline.served(one, arrive).first_token_s
    assert waits[0, -1] == pytest.approx(waits[0, 100], rel=0.01)
    assert waits[1, -1] > 1.5 * waits[1, 100]


def test_decoding_with_the_head_on_the_last_stage():
    # github.com/ai-dynamo/aiconfigurator/pull/1459
    stage_s = [3.153e-3] + [3.150e-3] * 6 + [3.901e-3]
    assert np.mean(stage_s) == pytest.approx(3.244e-3, abs=5e-7)
    assert pipeline.balance_fraction(stage_s) == pytest.approx(0.832, abs=5e-4)
    assert pipeline.balance_fraction(np.ones((3, 5))).shape == (3,)


def test_stages_are_busy_with_every_request():
    busy = pipeline.served(np.ones((4, 8)), np.zeros((2, 5))).busy_fraction
    assert busy == pytest.approx(np.full(2, 5 * 32 / (4 * (5 * 8 + 3))))


def test_a_time_that_no_schedule_takes_is_not_explained():
    # github.com/sgl-project/sglang/issues/34815: TP8 2.33 s, PP8 31.1 s; even one chunk takes 18.6 s
    found = pipeline.explain(31.1, np.full((8, 1), 2.33))
    assert found.most_s == found.least_s == pytest.approx(18.64)
    assert found.beyond_s == pytest.approx(12.46)
    assert "12.5 s are not explained by this model" in str(found)
    four = pipeline.explain(10.0, np.full((8, 4), 2.33 / 4))
    assert four.least_s == pytest.approx(18.64 * (4 + 7) / (8 * 4))
    linked = pipeline.explain(40.0, np.full((8, 2), 1.0), np.full((7, 2), 0.5))
    assert linked.least_s == 9 + 7 * 0.5 and linked.most_s == 16 + 14 * 0.5  # every chunk over every link
    assert linked.beyond_s == 40 - 23
    assert four.beyond_s == 0 and "between 6.41 and 18.6" in str(four)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pipeline.finish_s([[1.0, -1.0]]), r"finish_s: stage_s is -1.0 at index \(0, 1\)"),
        (lambda: pipeline.finish_s([[1.0, np.nan]]), "finish_s: stage_s is NaN"),
        (lambda: pipeline.finish_s([1.0, 2.0]), r"finish_s: stage_s has shape \(2,\); allowed: \[..., stage, chunk\]"),
        (lambda: pipeline.finish_s(np.ones((0, 3))), "none of both 0"),
        (lambda: pipeline.finish_s(np.ones((2, 3)), np.ones((2, 3))), r"link_s has shape \(2, 3\); .*\(1, 3\)"),
        (lambda: pipeline.finish_s(np.ones((2, 3)), -1.0), "link_s is -1.0"),
        (lambda: pipeline.finish_s(np.ones((2, 3)), ready_s=np.ones(2)), r"ready_s has shape \(2,\)"),
        (lambda: pipeline.finish_s(np.ones((2, 3)), in_flight=0), "in_flight is 0.0"),
        (lambda: pipeline.finish_s(np.ones((2, 3)), in_flight=[1, 2]), r"in_flight is \[1, 2\]; allowed: one whole"),
        (lambda: pipeline.bubble_fraction(0, 4), "n_stages is 0.0; allowed: finite numbers above 0"),
        (lambda: pipeline.bubble_fraction(2.5, 4), "n_stages is 2.5; allowed: whole numbers"),
        (lambda: pipeline.bubble_fraction([1, 2], [1, 2, 3]), "do not broadcast"),
        (lambda: pipeline.idle_fraction(np.zeros((2, 2))), "0 everywhere"),
        (lambda: pipeline.balance_fraction(3.0), r"shape \(\); allowed: at least one stage"),
        (lambda: pipeline.balance_fraction([0.0]), "0 everywhere"),
        (lambda: pipeline.explain(1.0, np.ones((2, 3))), "measured_s is 1, 0.25 times the least, 4"),
        (lambda: pipeline.explain(0.0, np.ones((2, 3))), "measured_s is 0.0"),
        (lambda: pipeline.explain(9.0, np.ones((2, 2, 3))), r"shape \(2, 2, 3\); allowed: \[stage, chunk\]"),
        (lambda: pipeline.most_per_s(np.zeros((2, 2))), "0 everywhere"),
        (lambda: pipeline.served(np.ones((2, 2)), [1.0, 0.5]), "arrive_s goes down or is empty"),
        (lambda: pipeline.served(np.ones((2, 2)), []), "at least one arrival"),
        (lambda: pipeline.served(np.ones((2, 2)), [True]), "arrive_s is"),
        (lambda: pipeline.served(np.zeros((2, 2)), [0.0]), "0 everywhere"),
    ],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
