"""Numbers as they come in: turned into float64 arrays and checked, once, at the door of every function."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def as_floats(subject: str, **values: ArrayLike) -> list[NDArray[np.float64]]:
    """Each value as a float64 array, NaN refused. int32 products overflow silently, so nothing stays an integer.

    Raises ValueError that names ``subject`` and the argument for what is not a real number: text, booleans, NaN.
    """
    arrays = []
    for name, value in values.items():
        if isinstance(value, np.ma.MaskedArray):
            raise ValueError(f"{subject}: {name} is a masked array; allowed: arrays without a mask")
        try:
            array = np.asarray(value)
        except ValueError:  # a ragged list
            raise ValueError(f"{subject}: {name} is {value!r}; allowed: real numbers") from None
        if array.dtype.kind not in "iuf":
            raise ValueError(f"{subject}: {name} is {value!r}; allowed: real numbers")
        arrays.append(array.astype(np.float64, copy=False))
        if array.dtype.kind == "f" and array.size and np.isnan(np.min(array)):
            raise ValueError(f"{subject}: {name} is NaN{_where(np.isnan(array))}; allowed: real numbers")
    return arrays


def positive(subject: str, **values: ArrayLike) -> list[NDArray[np.float64]]:
    """Each value as a float64 array, checked to be finite and above 0, and to broadcast with the others.

    >>> positive("linear", m=[1, 2])
    [array([1., 2.])]
    >>> positive("linear", m=[1, 0])
    Traceback (most recent call last):
    ValueError: linear: m is 0.0 at index 1; allowed: finite numbers above 0
    """
    arrays = as_floats(subject, **values)
    for name, array in zip(values, arrays, strict=True):
        if array.size and not (np.min(array) > 0 and np.max(array) < np.inf):
            bad = ~((array > 0) & (array < np.inf))
            raise ValueError(f"{subject}: {name} is {array[bad][0]}{_where(bad)}; allowed: finite numbers above 0")
    common_shape(subject, **dict(zip(values, arrays, strict=True)))
    return arrays


def not_negative(subject: str, **values: ArrayLike) -> list[NDArray[np.float64]]:
    """Each value as a float64 array, checked to be finite and at least 0, and to broadcast with the others."""
    arrays = as_floats(subject, **values)
    for name, array in zip(values, arrays, strict=True):
        if array.size and not (np.min(array) >= 0 and np.max(array) < np.inf):
            bad = ~((array >= 0) & (array < np.inf))
            raise ValueError(
                f"{subject}: {name} is {array[bad][0]}{_where(bad)}; allowed: finite numbers of at least 0"
            )
    common_shape(subject, **dict(zip(values, arrays, strict=True)))
    return arrays


def look_up(what: str, name: object, known: Mapping[str, Any]) -> Any:
    """What is known by that name; for any other name ValueError with those that there are, and those that are near.

    >>> look_up("chip", "H200", {"h20": 1, "h200_sxm": 2})
    Traceback (most recent call last):
    ValueError: unknown chip 'H200'; known: h20, h200_sxm; did you mean h200_sxm, h20?
    """
    if isinstance(name, str) and name in known:
        return known[name]
    near = []
    if isinstance(name, str) and name:
        plain = re.sub(r"[^a-z0-9]+", "_", name[:60].lower())
        near = [x for x in known if x.lower().startswith(plain)] + difflib.get_close_matches(plain, known)
    guess = f"; did you mean {', '.join(list(dict.fromkeys(near))[:3])}?" if near else ""
    raise ValueError(f"unknown {what} {name!r:.60}; known: {', '.join(known)}{guess}")


def flags(subject: str, **values: bool) -> None:
    """Refuses what is not True or False, which Python would take for one.

    >>> flags("gemm_s", bound="no")
    Traceback (most recent call last):
    ValueError: gemm_s: bound is 'no'; allowed: True, False
    """
    for name, value in values.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{subject}: {name} is {value!r}; allowed: True, False")


def countable(subject: str, **values: NDArray[np.float64]) -> None:
    """Refuses numbers of sequences or tokens beyond 2^53, where float64 no longer counts.

    >>> countable("memory", batch=np.array(1e300))
    Traceback (most recent call last):
    ValueError: memory: batch is 1e+300; allowed: up to 2^53
    """
    for name, value in values.items():
        if value.size and np.max(value) > 2.0**53:
            raise ValueError(f"{subject}: {name} is {np.max(value):g}; allowed: up to 2^53")


def common_shape(subject: str, **arrays: NDArray) -> tuple[int, ...]:
    """The shape that the arrays broadcast to; ValueError that names every shape but scalars' where they do not.

    >>> common_shape("linear", m=np.ones((3, 1)), n=np.ones(2))
    (3, 2)
    >>> common_shape("linear", m=np.ones(3), n=np.ones(2))
    Traceback (most recent call last):
    ValueError: linear: m of shape (3,) and n of shape (2,) do not broadcast; allowed: equal lengths, or 1
    """
    try:
        return np.broadcast_shapes(*(a.shape for a in arrays.values()))
    except ValueError:
        shapes = " and ".join(f"{name} of shape {a.shape}" for name, a in arrays.items() if a.ndim)
        raise ValueError(f"{subject}: {shapes} do not broadcast; allowed: equal lengths, or 1") from None


def _where(bad: NDArray[np.bool_]) -> str:
    if bad.ndim == 0:
        return ""
    index = tuple(int(i[0]) for i in np.nonzero(bad))
    return f" at index {index[0] if len(index) == 1 else index}"
