import numpy as np
import pytest

from codesign_lib.specs.quantities import as_floats, not_negative, positive


def test_integers_become_float64_before_they_overflow():
    (a,) = positive("test", n=np.array([65536], dtype=np.int32))
    assert a.dtype == np.float64
    assert (a * a)[0] == 2.0**32


def test_float64_is_not_copied():
    x = np.ones(3)
    assert as_floats("test", x=x)[0] is x


@pytest.mark.parametrize("bad", ["512", None, True, 1j, [1, "2"], np.array(["a"]), [[1], [1, 2]]])
def test_what_is_not_a_real_number(bad):
    with pytest.raises(ValueError, match=r"test: x is .*; allowed: real numbers"):
        as_floats("test", x=bad)


def test_a_mask_is_not_lost_in_silence():
    with pytest.raises(ValueError, match="x is a masked array"):
        as_floats("test", x=np.ma.array([1, 2], mask=[0, 1]))


@pytest.mark.parametrize("bad", [0, -1, np.inf, -np.inf])
def test_positive_refuses(bad):
    with pytest.raises(ValueError, match=r"test: x is .*; allowed: finite numbers above 0"):
        positive("test", x=bad)


@pytest.mark.parametrize("check", [positive, not_negative])
def test_nan_is_named_with_its_place(check):
    with pytest.raises(ValueError, match=r"test: x is NaN at index \(1, 0\)"):
        check("test", x=[[1.0, 2.0], [np.nan, 3.0]])


@pytest.mark.parametrize("bad", [-1e-300, np.inf])
def test_not_negative_refuses(bad):
    with pytest.raises(ValueError, match="allowed: finite numbers of at least 0"):
        not_negative("test", x=bad)


def test_zero_is_not_negative_and_empty_is_fine():
    assert not_negative("test", x=0.0)[0] == 0
    assert positive("test", x=np.empty((0, 3)))[0].shape == (0, 3)
