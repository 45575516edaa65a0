"""Chunks of a prompt: equal times by the closed form, the best slicing against all of them."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.serving import pipeline, slicing


def objective(cost_s, sizes, n_stages):
    sizes = np.asarray(sizes, dtype=np.float64)
    times = cost_s(np.cumsum(sizes) - sizes, sizes)
    return float(times.sum() + (n_stages - 1) * times.max())


def brute_force(cost_s, n, n_stages):
    slicings = (np.diff([0, *cuts, n]) for k in range(n) for cuts in combinations(range(1, n), k))
    return min(objective(cost_s, sizes, n_stages) for sizes in slicings)


def any_cost(seed, n):
    """A cost that is not monotone in anything."""
    table = np.random.default_rng(seed).random((n + 1, n + 1))
    return lambda prefix, length: table[prefix.astype(int), length.astype(int)]


def square(a, b, c):
    return lambda prefix, length: a * (2 * prefix * length + length**2) + b * length + c


def tokens(prefix, length):
    """TeraPipe's toy: token i costs i."""
    return length * prefix + length * (length + 1) / 2


laws = st.builds(square, st.floats(1e-4, 10), st.floats(0, 10), st.floats(0, 10))


@given(st.integers(0, 2**16), st.integers(1, 11), st.integers(1, 6))
def test_best_is_the_brute_force_of_any_cost(seed, n, p):
    found = slicing.best_chunks(any_cost(seed, n), n, p)
    assert found.sizes.sum() == n and (found.sizes >= 1).all()
    assert found.finish_s == pytest.approx(brute_force(any_cost(seed, n), n, p), rel=1e-12)
    assert found.finish_s == pytest.approx(objective(any_cost(seed, n), found.sizes, p), rel=1e-12)
    assert found.lower_bound_s == pytest.approx(found.finish_s, rel=1e-12)


@settings(max_examples=10)
@given(st.integers(0, 2**16), laws, st.integers(2, 9))
def test_best_is_the_brute_force_to_14_granules(seed, law, p):
    for cost_s in (law, any_cost(seed, 14)):
        assert slicing.best_chunks(cost_s, 14, p).finish_s == pytest.approx(brute_force(cost_s, 14, p), rel=1e-12)


@given(laws, st.integers(1, 100), st.integers(1, 20))
def test_best_is_no_worse_than_every_uniform_slicing(law, n, p):
    best = slicing.best_chunks(law, n, p)
    for size in range(1, n + 1):
        uniform = [size] * (n // size) + ([n % size] if n % size else [])
        assert best.finish_s <= objective(law, uniform, p) * (1 + 1e-12)
    times = law(np.cumsum(best.sizes) - best.sizes, best.sizes.astype(float))
    assert best.finish_s == pytest.approx(float(pipeline.first_token_s(np.tile(times, (p, 1)))), rel=1e-9)


@pytest.mark.parametrize("law", [square(3.5e-4, 0.037, 0.02), square(0, 0.04, 0.03), square(1, 0, 0)])
def test_beyond_the_exact_size_the_gap_is_proven(law, monkeypatch):
    exact = slicing.best_chunks(law, 200, 16)
    monkeypatch.setattr(slicing, "EXACT_GRANULES", 100)
    found = slicing.best_chunks(law, 200, 16)
    assert found.lower_bound_s * (1 - 1e-12) <= exact.finish_s <= found.finish_s * (1 + 1e-12)
    assert found.lower_bound_s >= (1 - slicing.GAP_FRACTION) * found.finish_s


@settings(max_examples=300)
@given(laws | st.integers(0, 2**16), st.integers(2, 9), st.integers(1, 12), st.sampled_from([5, 20, 200]))
def test_a_grid_of_limits_is_still_a_bound(law, n, p, grid):
    cost = any_cost(law, n) if isinstance(law, int) else law
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slicing, "EXACT_GRANULES", 1)
        patch.setattr(slicing, "GRID", grid)
        found = slicing.best_chunks(cost, n, p)
    best = brute_force(cost, n, p)
    assert found.lower_bound_s * (1 - 1e-12) <= best <= found.finish_s * (1 + 1e-12)


@pytest.mark.parametrize("grid", [5, 20, 200])
def test_coarse_grids_on_many_costs_are_bounds(grid, monkeypatch):
    monkeypatch.setattr(slicing, "EXACT_GRANULES", 1)
    monkeypatch.setattr(slicing, "GRID", grid)
    rng = np.random.default_rng(grid)
    for case in range(200):
        n, p = int(rng.integers(2, 9)), int(rng.integers(1, 12))
        cost = any_cost(case, n) if case % 2 else square(*(10 * rng.random(3)))
        assert slicing.best_chunks(cost, n, p).lower_bound_s <= brute_force(cost, n, p) * (1 + 1e-12), case


@pytest.mark.parametrize(
    ("grid", "n", "p", "law"),
    [(8, 5, 2, (0.0026, 0.0984, 0.1237)), (8, 8, 2, (0.7261, 0.0059, 9.0938)), (50, 9, 2, (1.2259, 0.0609, 9.3565))],
)
def test_between_two_limits_of_a_grid_the_smaller_one_bounds(grid, n, p, law, monkeypatch):
    # launches dominate: the best slicing's longest chunk lies just above a limit, and the next one is too much
    monkeypatch.setattr(slicing, "EXACT_GRANULES", 1)
    monkeypatch.setattr(slicing, "GRID", grid)
    assert slicing.best_chunks(square(*law), n, p).lower_bound_s <= brute_force(square(*law), n, p) * (1 + 1e-12)


def test_costs_of_nothing():
    free = square(0, 0, 0)
    assert slicing.best_chunks(free, 5, 3).finish_s == 0
    assert slicing.best_chunks(free, 300, 3).finish_s == 0
    assert slicing.best_chunks(tokens, 1, 3).sizes.tolist() == [1]


def test_terapipe_toys():
    for sizes, value in (([12], 234), ([4] * 3, 162), ([7, 3, 2], 134), ([6, 4, 2], 146), ([1] * 12, 102)):
        assert objective(tokens, sizes, 3) == value
    assert slicing.best_chunks(tokens, 12, 3).finish_s == 102
    more = lambda p, n: tokens(p, n) + 4  # noqa: E731
    assert objective(more, [7, 3, 2], 3) == 154
    assert slicing.best_chunks(more, 12, 3).finish_s == 142
    assert slicing.best_chunks(more, 12, 3).sizes.tolist() == [4, 2, 1, 1, 1, 1, 1, 1]
    longer = lambda p, n: tokens(p, n) + 2 * n  # noqa: E731
    assert objective(longer, [5, 4, 3], 3) == 180
    assert slicing.best_chunks(longer, 12, 3).finish_s == 130 == objective(longer, [1] * 12, 3)


@given(st.integers(1, 5000), st.integers(1, 2000), st.floats(1e-9, 1), st.floats(0, 1))
def test_equal_times_are_equal(n, first, a, b):
    sizes = slicing.equal_time_chunks(n, first, quadratic_s=a, linear_s=b)
    assert sizes.sum() == n and (sizes >= 1).all()
    ends = np.cumsum(sizes)
    runs = a * ends**2 + b * ends
    target = a * first**2 + b * first
    took = np.diff(runs, prepend=0)
    within = took <= target * (1 + 1e-9)
    assert (within | (sizes == 1)).all()  # cut down, so never longer than the first, but for a single token
    one_more = took + a * (2 * ends + 1) + b
    assert (one_more[:-1] >= target * (1 - 1e-9)).all()  # and one token more would be


@given(st.integers(1, 3000), st.data(), st.floats(1e-9, 1), st.floats(0, 1))
def test_so_many_chunks_of_equal_time(n, data, a, b):
    m = data.draw(st.integers(1, min(n, 60)))
    sizes = slicing.even_time_chunks(n, m, quadratic_s=a, linear_s=b)
    assert sizes.sum() == n and sizes.size == m and (sizes >= 1).all()
    ends = np.cumsum(sizes).astype(float)
    took = np.diff(a * ends**2 + b * ends, prepend=0)
    token = 2 * a * ends + b + a  # a cut is off by at most half a token at either end
    free = (sizes > 1) & (np.roll(sizes, 1) > 1) & (np.roll(sizes, -1) > 1)
    assert (np.abs(took - took.sum() / m)[free] <= token[free] * (1 + 1e-9)).all()


def test_without_a_square_equal_times_are_equal_lengths():
    assert slicing.equal_time_chunks(100, 30, quadratic_s=0, linear_s=2.0).tolist() == [30, 30, 30, 10]


def test_smoothing_is_between_equal_lengths_and_equal_times():
    law = dict(quadratic_s=3.7e-10, linear_s=3.5e-5)
    fixed, half, equal = (slicing.equal_time_chunks(131_072, 12_288, smoothing=x, **law) for x in (0.0, 0.5, 1.0))
    assert fixed.tolist() == [12_288] * 10 + [8192]
    assert len(fixed) < len(half) < len(equal)
    assert fixed[1] > half[1] > equal[1]
    assert abs(half[1] - (fixed[1] + equal[1]) / 2) <= 1


def test_multiples_and_the_least_chunk():
    how = dict(quadratic_s=1.0, linear_s=0.0)
    sizes = slicing.equal_time_chunks(100_000, 4096, multiple=256, least_fraction=0.25, **how)
    assert (sizes[:-1] % 256 == 0).all()
    assert sizes[:-1].min() == 1024
    # no less than the first multiple from the least fraction on: 0.9 · 1024 is 14.4 × 64
    assert slicing.equal_time_chunks(4000, 1024, multiple=64, least_fraction=0.9, **how).tolist() == [
        1024,
        960,
        960,
        960,
        96,
    ]
    assert slicing.equal_time_chunks(1000, 512, multiple=512, **how).tolist() == [512, 488]


@pytest.mark.parametrize("a", [1e-320, 1e-9, 1.0, 1e300])
def test_only_the_ratio_of_the_law_matters(a):
    ends = 100 * np.sqrt(np.arange(1, 101))  # L₀ (√(i + 1) − √i), before cutting down
    sizes = slicing.equal_time_chunks(1000, 100, quadratic_s=a, linear_s=0.0)
    assert sizes.tolist() == slicing.equal_time_chunks(1000, 100, quadratic_s=1.0, linear_s=0.0).tolist()
    assert sizes[0] == 100 and abs(int(sizes[1]) - (ends[1] - ends[0])) < 1
    assert slicing.equal_time_chunks(1000, 100, quadratic_s=0.0, linear_s=a).tolist() == [100] * 10
    assert slicing.even_time_chunks(1000, 4, quadratic_s=a, linear_s=0.0).tolist() == [500, 207, 159, 134]
    small = slicing.equal_time_chunks(1000, 100, quadratic_s=a, linear_s=100 * a).tolist()
    assert small == slicing.equal_time_chunks(1000, 100, quadratic_s=1.0, linear_s=100.0).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_tokens": 0}, "n_tokens is 0.0; allowed: finite numbers above 0"),
        ({"first_tokens": 1.5}, "first_tokens is 1.5; allowed: whole"),
        ({"n_tokens": [1, 2]}, r"n_tokens is \[1, 2\]; allowed: one whole number"),
        ({"quadratic_s": -1.0}, "quadratic_s is -1.0"),
        ({"linear_s": float("nan")}, "linear_s is NaN"),
        ({"quadratic_s": 0.0, "linear_s": 0.0}, "are 0; allowed: at least one above 0"),
        ({"smoothing": 1.5}, "smoothing is 1.5; allowed: 0 to 1"),
        ({"least_fraction": 2}, "least_fraction is 2; allowed: 0 to 1"),
        ({"multiple": True}, "multiple is True; allowed: real numbers"),
        ({"first_tokens": 100, "multiple": 64}, "first_tokens is 100; allowed: a multiple of multiple, 64"),
    ],
)
def test_equal_time_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        slicing.equal_time_chunks(**({"n_tokens": 10, "first_tokens": 3, "quadratic_s": 1.0, "linear_s": 1.0} | change))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: slicing.even_time_chunks(4, 5, quadratic_s=1, linear_s=0),
            "n_chunks is 5; allowed: at most n_tokens, 4",
        ),
        (lambda: slicing.even_time_chunks(4, 2, quadratic_s=0, linear_s=0), "are 0; allowed: at least one above 0"),
        (lambda: slicing.fixed_chunks(0, 2), "n_tokens is 0.0"),
        (lambda: slicing.best_chunks(tokens, 0, 3), "n_granules is 0.0"),
        (lambda: slicing.best_chunks(tokens, 12, 0), "n_stages is 0.0"),
        (lambda: slicing.best_chunks(tokens, 100_000, 3), "n_granules is 100000; allowed: at most 8192, use coarser"),
        (lambda: slicing.best_chunks(lambda p, n: -n, 12, 3), "cost_s is -1.0"),
        (lambda: slicing.best_chunks(lambda p, n: n * np.nan, 12, 3), "cost_s is NaN"),
        (lambda: slicing.best_chunks(None, 12, 3), "cost_s is None; allowed: a function of"),
        (
            lambda: slicing.best_chunks(lambda p, n: np.ones(3), 12, 3),
            r"cost_s gives shape \(3,\); allowed: what broad",
        ),
    ],
)
def test_best_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
