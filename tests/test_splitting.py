"""Layers over stages: the balance and the best split against all splits."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign_lib.serving import pipeline, splitting


def splits(n, p):
    return [np.array([0, *cuts]) for cuts in combinations(range(1, n), p - 1)]


def loads(costs, starts, first=0.0, last=0.0):
    load = np.add.reduceat(costs, starts).astype(float)
    load[0] += first
    load[-1] += last
    return load


@given(st.integers(1, 9), st.data(), st.integers(0, 2**16), st.booleans())
def test_balance_is_the_brute_force(n, data, seed, whole_numbers):
    p, rng = data.draw(st.integers(1, n)), np.random.default_rng(seed)
    costs = rng.integers(0, 4, n).astype(float) if whole_numbers else rng.random(n)
    first, last = 2 * rng.random(2) * (rng.random(2) > 0.5)
    found = splitting.balance(costs, p, first_s=first, last_s=last)
    everything = [loads(costs, s, first, last) for s in splits(n, p)]
    best = min(x.max() for x in everything)
    assert found.stage_s.max() == pytest.approx(best, rel=1e-11, abs=1e-12)
    assert np.allclose(found.stage_s, loads(costs, found.starts, first, last), atol=1e-12)
    even = min((x**2).sum() for x in everything if x.max() <= best * (1 + 1e-11) + 1e-15)
    assert (found.stage_s**2).sum() == pytest.approx(even, rel=1e-10, abs=1e-12)


def test_61_layers():
    found = splitting.balance(np.ones(61), 8)
    assert sorted(found.sizes(61)) == [7, 7, 7, 8, 8, 8, 8, 8]
    assert splitting.balance(np.ones(61), 4).sizes(61).tolist() == [15, 15, 15, 16]  # a light stage is first
    assert splitting.balance(np.ones(64), 6).stage_s.max() == 11


def test_memory_and_time_give_different_balances():
    dense_then_moe = np.array([1.0] * 3 + [1.0] * 58), np.array([1.0] * 3 + [20.0] * 58)
    time, memory = (splitting.balance(x, 4).sizes(61).tolist() for x in dense_then_moe)
    assert time == [15, 15, 15, 16]
    assert memory[0] > 15


def test_embedding_and_head_are_layers_too():
    # Megatron-DeepSpeed issue 256: BLOOM's embedding is worth 1.46 blocks
    plain, both = splitting.balance(np.ones(70), 12), splitting.balance(np.ones(70), 12, first_s=1.46, last_s=1.46)
    assert both.sizes(70)[0] < plain.sizes(70)[-1]
    assert both.stage_s.max() < loads(np.ones(70), plain.starts, 1.46, 1.46).max()


@given(st.integers(2, 8), st.data(), st.integers(1, 6), st.integers(0, 2**16))
def test_best_split_is_the_brute_force(n, data, m, seed):
    p, rng = data.draw(st.integers(1, n)), np.random.default_rng(seed)
    cost, link = rng.random((n, m)), 0.1 * rng.random()
    found = splitting.best_split(cost, p, link)
    best = min(float(pipeline.first_token_s(np.add.reduceat(cost, s), link)) for s in splits(n, p))
    assert float(pipeline.first_token_s(found.stage_s, link)) == pytest.approx(best, rel=1e-9)
    assert np.allclose(found.stage_s, np.add.reduceat(cost, found.starts))


def uneven(rng):
    """Layers over stages and chunks, of any costs, of two kinds, or of one kind that is much longer."""
    n, m = int(rng.integers(4, 13)), int(rng.integers(1, 13))
    grow = np.linspace(1, rng.integers(1, 8), m)
    each = [
        rng.random((n, m)),
        rng.choice([1.0, 3.0], (n, 1)),
        rng.lognormal(0, 1, (n, 1)),
        rng.choice([1.0, 20.0], (n, 1)),
    ]
    kind = rng.integers(4)
    return each[kind] * (grow if kind else 1), int(rng.integers(2, n))


@pytest.mark.parametrize("seed", range(3))
def test_the_local_search_is_near(seed, monkeypatch):
    rng, over = np.random.default_rng(seed), []
    for _ in range(60):
        cost, p = uneven(rng)
        times = []
        for most in (10**6, 0):
            monkeypatch.setattr(splitting, "EXACT_SPLITS", most)
            times.append(float(pipeline.first_token_s(splitting.best_split(cost, p).stage_s)))
        over.append(times[1] / times[0])
    assert min(over) > 1 - 1e-12
    assert max(over) < 1.01 and np.mean(np.array(over) > 1 + 1e-9) < 0.02


def test_light_stages_first_when_chunks_grow_and_not_when_equal():
    tokens = np.full(11, 12.0)
    before = np.cumsum(tokens) - tokens
    growing = 0.0370 * tokens + 3.54e-4 * (2 * before * tokens + tokens**2)  # per K tokens
    order = np.array([[15, 15, 15, 16], [16, 15, 15, 15]])[:, :, None]
    first, last = pipeline.first_token_s(order * growing)
    assert 1.04 <= last / first <= 1.055
    same = pipeline.first_token_s(order * np.ones(11))
    assert same[1] / same[0] - 1 == pytest.approx(0, abs=1e-12)
    best = splitting.best_split(np.ones((61, 1)) * growing, 4)
    assert pipeline.first_token_s(best.stage_s) <= first
    assert (np.diff(best.sizes(61)) >= 0).all()
    # where all orders are equal, light stages come first
    assert splitting.best_split(np.ones((9, 3)), 4).sizes(9).tolist() == [2, 2, 2, 3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: splitting.balance(np.ones(3), 0), "n_stages is 0.0"),
        (lambda: splitting.balance(np.ones(3), 4), "n_stages is 4; allowed: one whole number from 1 to 3, the layers"),
        (lambda: splitting.balance(np.ones(3), [1, 2]), r"n_stages is \[1, 2\]; allowed: one whole number"),
        (lambda: splitting.balance(np.ones(3), True), "n_stages is True"),
        (lambda: splitting.balance([1.0, -1.0], 2), "costs is -1.0 at index 1"),
        (lambda: splitting.balance([1.0, np.nan], 2), "costs is NaN at index 1"),
        (lambda: splitting.balance(np.ones((2, 2)), 2), r"costs has shape \(2, 2\); allowed: one number a layer"),
        (lambda: splitting.balance([], 1), "n_stages is 1; allowed: .* 0, the layers"),
        (lambda: splitting.balance(np.ones(3), 2, first_s=-1.0), "first_s is -1.0"),
        (lambda: splitting.balance(np.ones(3), 2, last_s=[1.0]), "last_s have shapes"),
        (lambda: splitting.best_split(np.ones(3), 2), r"cost_s has shape \(3,\); allowed: \[layer, chunk\]"),
        (lambda: splitting.best_split(np.ones((3, 2)), 4), "n_stages is 4; allowed: one whole number from 1 to 3"),
        (lambda: splitting.best_split(-np.ones((3, 2)), 2), "cost_s is -1.0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
