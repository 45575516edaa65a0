"""The exact Pareto filter against comparing every point with every other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign_lib.serving.frontier import pareto

numbers = st.one_of(st.integers(-3, 3).map(float), st.floats(allow_nan=False))


@given(st.lists(st.tuples(numbers, numbers), max_size=40))
def test_against_brute_force(points):
    x, y = (np.array([p[i] for p in points], float) for i in (0, 1))
    kept = pareto(x, y).tolist()
    expected = []
    for i, (a, b) in enumerate(points):
        beaten = any(c >= a and d >= b and (c > a or d > b) for c, d in points)
        if not beaten and (a, b) not in points[:i] and min(a, b) > -np.inf:
            expected.append(i)
    assert kept == sorted(expected, key=lambda i: points[i][0])


def test_refuses():
    with pytest.raises(ValueError, match="one axis, of equal length"):
        pareto([1, 2], [1])
    with pytest.raises(ValueError, match="y is NaN at index 1"):
        pareto([1, 2], [1, np.nan])
