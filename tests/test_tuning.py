"""The search for a slicing of stages that differ, against all slicings and against what it begins with."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.serving import pipeline, slicing, tuning


def finish(cost, sizes, link):
    starts = np.cumsum(sizes) - sizes
    return float(pipeline.first_token_s(cost[:, starts, sizes - 1], link[:, sizes - 1]))


def costs(seed, n, p):
    """Attention and linear layers in another proportion on each stage, and links that grow with the chunk."""
    rng = np.random.default_rng(seed)
    start, length = np.arange(n)[:, None], np.arange(1, n + 1)
    a, b, c = rng.random((3, p, 1, 1))
    return a * (2 * start * length + length**2) / n + b * length + c, rng.random((p - 1, 1)) * length / 10


@settings(max_examples=40)
@given(st.integers(0, 2**16), st.integers(2, 10), st.integers(1, 4))
def test_between_the_best_and_what_it_begins_with(seed, n, p):
    cost, link = costs(seed, n, p)
    begin = [slicing.fixed_chunks(n, size) for size in (1, 2, 4, n)]
    sizes, took = tuning.tuned_chunks(cost, begin, link)
    assert sizes.sum() == n and (sizes >= 1).all()
    assert took == pytest.approx(finish(cost, sizes, link), rel=1e-12)
    assert took <= min(finish(cost, x, link) for x in begin) * (1 + 1e-12)
    slicings = [np.diff([0, *cuts, n]) for k in range(n) for cuts in combinations(range(1, n), k)]
    best = min(finish(cost, x, link) for x in slicings)
    assert best * (1 - 1e-12) <= took <= 1.05 * best


def test_cuts_move_by_several_granules():
    # tiles of four granules: one granule more or less never helps, and halves of six fill no tile
    tiles = np.ceil(np.arange(1, 17) / 4)[None, None].repeat(3, axis=0).repeat(16, axis=1)
    sizes, took = tuning.tuned_chunks(tiles, [[4, 12]])
    assert sizes.tolist() == [8, 8] and took == 4 + 2 * 2


def test_alike_stages_are_near_the_proven_best():
    cost, _ = costs(3, 64, 1)
    best = slicing.best_chunks(lambda p, n: cost[0, p.astype(int), n.astype(int) - 1], 64, 8)
    _, took = tuning.tuned_chunks(np.repeat(cost, 8, axis=0), [slicing.fixed_chunks(64, x) for x in (2, 4, 8)])
    # many slicings tie on their longest chunk, where a search stands still: begin with the proven best as well
    assert best.finish_s * (1 - 1e-12) <= took <= 1.05 * best.finish_s


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"begin": [[3, 3]]}, r"begin holds \[3, 3\]; allowed: chunks that sum to 4"),
        ({"begin": [[4, 0]]}, "begin is 0.0 at index 1"),
        ({"begin": []}, "begin is empty"),
        ({"begin": [["a"]]}, r"tuned_chunks: begin is \['a'\]; allowed: real numbers"),
        ({"begin": [[1.5, 2.5]]}, "tuned_chunks: begin is 1.5; allowed: whole numbers"),
        ({"begin": [4]}, "begin holds 4; allowed: chunks that sum to 4"),
        ({"link_s": np.ones((2, 4))}, r"link_s has shape \(2, 4\); allowed: what broadcasts to \(1, 4\)"),
        ({"cost_s": np.ones((2, 4))}, r"cost_s has shape \(2, 4\)"),
        ({"cost_s": -np.ones((2, 4, 4))}, "cost_s is -1.0"),
        ({"link_s": np.nan}, "link_s is NaN"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        tuning.tuned_chunks(**({"cost_s": np.ones((2, 4, 4)), "begin": [[4]]} | change))
