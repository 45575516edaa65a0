r"""Chunks that move through the stages of a pipeline: when each is done, and who waits. Knows nothing of networks.

A stage works on one chunk at a time and in order; a chunk visits the stages in order. With t the time that stage s
takes for chunk c, it is done at

.. math:: F_{s,c} = \max(F_{s-1,c} + l_{s-1},\; F_{s,c-1}) + t_{s,c}

where l is the link between two stages, a delay that overlaps with computing. The prompt's first token is there at
:math:`F_{P,M}`. Equal times t give :math:`(P + M - 1)\,t`, of which each stage is idle for :math:`(P-1)/(P-1+M)`, the
**bubble**. Engines keep a limited number W of chunks in flight (SGLang as many as stages), so that also
:math:`F_{1,c} \ge F_{P,c-W} + t_{1,c}`.

Ignored: a link that is still busy with the chunk before (give it a stage of its own), finite memory between stages,
chunks of different requests that take turns (a request is finished before the next begins), the host's own work.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.tiling import whole
from codesign_lib.specs.quantities import common_shape, not_negative, positive

MANY = 256
"""Pipelines from which the recurrence is taken cell by cell, all pipelines at once."""
BLOCK_CELLS = 2**18


def finish_s(
    stage_s: ArrayLike, link_s: ArrayLike = 0.0, *, ready_s: ArrayLike = 0.0, in_flight: int | None = None
) -> NDArray[np.float64]:
    r"""Second at which each stage is done with each chunk: ``stage_s[..., stage, chunk]`` → the same shape.

    The recurrence is this module's. ``link_s`` broadcasts against ``stage_s[..., :-1, :]``, the links between stages;
    ``ready_s`` against ``stage_s[..., 0, :]``: when each chunk is there at the first stage. With ``in_flight`` W the
    first stage waits until the last one is done with the chunk W before: no more than W are in the pipeline. Leading
    axes are as many independent pipelines. Times are finite and at least 0, W whole and at least 1, else ValueError, as
    for fewer than two axes.

    >>> finish_s([[1, 1, 2], [2, 2, 2]])                         # a light first stage
    array([[1., 2., 4.],
           [3., 5., 7.]])
    >>> float(finish_s(np.ones((4, 8)))[-1, -1])                  # (P + M − 1)·t
    11.0
    >>> float(finish_s(np.ones((4, 8)), in_flight=2)[-1, -1])     # two at a time through four stages
    17.0
    """
    stage, link, ready = _times("finish_s", stage_s, link_s, ready_s)
    (p, m), finish = stage.shape[-2:], np.empty(stage.shape)
    window = m if in_flight is None else _window(in_flight)
    stages, links, firsts = _flat(stage, 2), _flat(link, 2), _flat(ready, 1)
    out = finish.reshape(len(stages), p, m)
    form = _along_chunks if len(stages) < MANY else _cell_by_cell
    size = max(MANY, BLOCK_CELLS // (p * m))
    for i in range(0, len(stages), size):
        t, delay, first, done = (x[i : i + size] for x in (stages, links, firsts, out))
        for c in range(0, m, window):
            now, free = slice(c, c + window), done[..., c - 1] if c else np.zeros(t.shape[:2])
            arrival = first[:, now]
            if c:
                arrival = np.maximum(arrival, done[:, -1, c - window : c][:, : arrival.shape[1]])
            form(t[..., now], delay[..., now], arrival, free, done[..., now])
    return finish


def _along_chunks(stage: NDArray, link: NDArray, arrival: NDArray, free: NDArray, out: NDArray) -> None:
    """Few pipelines. With T the sum of times so far, F = T + max(free, earlier chunks' arrival − T before them)."""
    for s in range(stage.shape[1]):
        own = stage[:, s]
        total = np.add.accumulate(own, axis=-1)
        waited = np.maximum.accumulate(arrival - total + own, axis=-1)
        np.add(total, np.maximum(waited, free[:, s, None]), out=out[:, s])
        if s + 1 < stage.shape[1]:
            arrival = out[:, s] + link[:, s]


def _cell_by_cell(stage: NDArray, link: NDArray, arrival: NDArray, free: NDArray, out: NDArray) -> None:
    """Many pipelines: the recurrence as it stands, all of them at once."""
    time, delay, arrive, before = (np.ascontiguousarray(np.moveaxis(x, 0, -1)) for x in (stage, link, arrival, free))
    done = np.empty(time.shape)
    for s, c in np.ndindex(time.shape[:2]):
        start = arrive[c] if s == 0 else done[s - 1, c] + delay[s - 1, c]
        start = np.maximum(start, done[s, c - 1] if c else before[s])
        np.add(start, time[s, c], out=done[s, c])
    out[...] = np.moveaxis(done, -1, 0)


def first_token_s(stage_s: ArrayLike, link_s: ArrayLike = 0.0, *, in_flight: int | None = None) -> NDArray[np.float64]:
    """Seconds until the last stage is done with the last chunk: ``finish_s(…)[..., -1, -1]``.

    >>> float(first_token_s([[1, 1, 2], [2, 2, 2]]))
    7.0
    """
    return finish_s(stage_s, link_s, in_flight=in_flight)[..., -1, -1]


def bubble_fraction(n_stages: ArrayLike, n_chunks: ArrayLike) -> NDArray[np.float64]:
    r"""Share of the time that a stage is idle when all chunks cost the same on all stages: :math:`(P-1)/(P-1+M)`.

    Sizes broadcast and are whole and at least 1, else ValueError. :py:func:`idle_fraction` is for any times.

    >>> bubble_fraction(4, [1, 4, 8, 32]).round(4)
    array([0.75  , 0.4286, 0.2727, 0.0857])
    """
    p, m = whole("bubble_fraction", n_stages=n_stages, n_chunks=n_chunks)
    common_shape("bubble_fraction", n_stages=p, n_chunks=m)
    return (p - 1) / (p - 1 + m)


def idle_fraction(stage_s: ArrayLike, link_s: ArrayLike = 0.0) -> NDArray[np.float64]:
    r"""Share of all stages' time until the first token in which they wait: :math:`1 - \sum t / (P F_{P,M})`.

    >>> float(idle_fraction(np.ones((4, 8))).round(4))            # bubble_fraction(4, 8)
    0.2727
    """
    (stage,) = not_negative("idle_fraction", stage_s=stage_s)
    last = first_token_s(stage, link_s)
    if np.any(last == 0):
        raise ValueError("idle_fraction: stage_s is 0 everywhere; allowed: at least one time above 0")
    return np.maximum(1 - stage.sum(axis=(-2, -1)) / (stage.shape[-2] * last), 0)  # −1e-16 is 0


def balance_fraction(stage_s: ArrayLike) -> NDArray[np.float64]:
    r"""How evenly one step is spread over the last axis, the stages: mean over maximum, 1 when equal.

    What a full pipeline reaches of its speed-up: P stages do :math:`P\,\bar t / \max t` times one stage's work. Times
    are finite and at least 0 and not all 0, else ValueError.

    >>> stage_s = [3.153e-3] + [3.150e-3] * 6 + [3.901e-3]        # decoding, the output head on the last of 8
    >>> round(float(balance_fraction(stage_s)), 3), round(float(8 * balance_fraction(stage_s)), 2)
    (0.832, 6.65)
    """
    (stage,) = not_negative("balance_fraction", stage_s=stage_s)
    if stage.ndim < 1 or stage.size == 0:
        raise ValueError(f"balance_fraction: stage_s has shape {stage.shape}; allowed: at least one stage")
    most = stage.max(axis=-1)
    if np.any(most == 0):
        raise ValueError("balance_fraction: stage_s is 0 everywhere; allowed: at least one time above 0")
    return stage.mean(axis=-1) / most


class Explained(NamedTuple):
    """A measured time beside what a pipeline can take: at least, and at most (nothing overlaps), and what is beyond."""

    measured_s: float
    least_s: float
    most_s: float
    beyond_s: float

    def __str__(self) -> str:
        if self.beyond_s == 0:
            return f"{self.measured_s:.3g} s lies between {self.least_s:.3g} and {self.most_s:.3g} s"
        return (
            f"{self.measured_s:.3g} s: at least {self.beyond_s:.3g} s are not explained by this model "
            f"({self.most_s:.3g} s at most)"
        )


def explain(measured_s: float, stage_s: ArrayLike, link_s: ArrayLike = 0.0) -> Explained:
    """What of a measured time to first token these stages can explain, for one pipeline ``stage_s[stage, chunk]``.

    At least is :py:func:`first_token_s`, at most every chunk after the other through all stages and links: whatever the
    schedule, more is not the pipeline's. Raises ValueError for a time below the least, which means that the stages'
    times are wrong, and one that is not a number above 0.

    >>> print(explain(31.1, np.full((8, 1), 18.64 / 8)))          # eight stages, one chunk
    31.1 s: at least 12.5 s are not explained by this model (18.6 s at most)
    """
    stage, link, _ = _times("explain", stage_s, link_s, 0.0)
    (measured,) = positive("explain", measured_s=measured_s)
    if stage.ndim != 2 or measured.ndim:
        raise ValueError(f"explain: stage_s has shape {stage.shape}; allowed: [stage, chunk], and one measured_s")
    least, most = float(first_token_s(stage, link)), float(stage.sum() + link.sum())
    if measured < least * (1 - 1e-9):
        raise ValueError(
            f"explain: measured_s is {measured:.6g}, {measured / least:.3g} times the least, {least:.6g}; "
            "allowed: at least that. Check the stages' times and the number of chunks"
        )
    return Explained(float(measured), least, most, max(float(measured) - most, 0.0))


class Served(NamedTuple):
    """Several requests through one pipeline: seconds from each one's arrival to its first token, and what came out."""

    first_token_s: NDArray[np.float64]
    requests_per_s: NDArray[np.float64]
    busy_fraction: NDArray[np.float64]


def most_per_s(stage_s: ArrayLike) -> NDArray[np.float64]:
    r"""Requests a second that a pipeline can take for good: :math:`1 / \max_s \sum_c t_{s,c}`, the bubble is filled.

    Beyond that rate they pile up. ``stage_s[..., stage, chunk]`` is one request's.

    >>> float(most_per_s(np.full((4, 8), 0.01)).round(6))
    12.5
    """
    stage, _, _ = _times("most_per_s", stage_s, 0.0, 0.0)
    most = stage.sum(axis=-1).max(axis=-1)
    if np.any(most == 0):
        raise ValueError("most_per_s: stage_s is 0 everywhere; allowed: at least one time above 0")
    return 1 / most


def served(stage_s: ArrayLike, arrive_s: ArrayLike, link_s: ArrayLike = 0.0, *, in_flight: int | None = None) -> Served:
    """Requests of equal shape, ``stage_s[..., stage, chunk]`` each, that arrive at ``arrive_s[..., request]``.

    First come, first served, chunk by chunk; the next request follows the last chunk without a gap. Gives the time to
    first token of each (queueing included), first tokens a second from the first arrival to the last first token, and
    the share of all stages' time until then in which they work. Leading axes broadcast: many rates at once. Arrivals
    do not go down and are at least one, the rest as in :py:func:`finish_s`, else ValueError.

    >>> one = np.full((4, 8), 0.01)                               # alone: 11 chunks' time, 12.5 requests/s at most
    >>> alone, dense = served(one, np.arange(50) / [[1.0], [12.5]]).first_token_s[:, -1]
    >>> round(float(alone), 3), round(float(dense), 3)
    (0.11, 0.11)
    >>> round(float(served(one, np.arange(50) / 12.5).busy_fraction), 2)
    0.99
    """
    stage, link, _ = _times("served", stage_s, link_s, 0.0)
    (arrive,) = not_negative("served", arrive_s=arrive_s)
    if arrive.ndim < 1 or arrive.shape[-1] == 0 or np.any(np.diff(arrive, axis=-1) < 0):
        raise ValueError("served: arrive_s goes down or is empty; allowed: at least one arrival, in order")
    n, m = arrive.shape[-1], stage.shape[-1]
    lead = np.broadcast_shapes(stage.shape[:-2], arrive.shape[:-1])
    many = np.broadcast_to(np.tile(stage, n), (*lead, stage.shape[-2], n * m))
    ready = np.repeat(arrive, m, axis=-1)
    done = finish_s(many, np.tile(link, n), ready_s=ready, in_flight=in_flight)[..., -1, m - 1 :: m]
    span = done[..., -1] - arrive[..., 0]
    if np.any(span == 0):
        raise ValueError("served: stage_s is 0 everywhere; allowed: at least one time above 0")
    busy = n * stage.sum(axis=(-2, -1)) / (stage.shape[-2] * span)
    return Served(done - arrive, n / span, np.minimum(busy, 1))


def _window(in_flight: int) -> int:
    if isinstance(in_flight, int) and not isinstance(in_flight, bool):
        in_flight = min(in_flight, 2**53)  # beyond, numpy takes it for an object; no pipeline has as many chunks
    (window,) = whole("finish_s", in_flight=in_flight)
    if window.ndim:
        raise ValueError(f"finish_s: in_flight is {in_flight!r}; allowed: one whole number of at least 1, or None")
    return int(window)


def _times(subject: str, stage_s: ArrayLike, link_s: ArrayLike, ready_s: ArrayLike) -> tuple[NDArray, NDArray, NDArray]:
    """Checked and broadcast: stages [..., P, M], links [..., P − 1, M], arrivals [..., M]."""
    (stage,), (link,) = not_negative(subject, stage_s=stage_s), not_negative(subject, link_s=link_s)
    (ready,) = not_negative(subject, ready_s=ready_s)
    if stage.ndim < 2 or 0 in stage.shape[-2:]:
        raise ValueError(f"{subject}: stage_s has shape {stage.shape}; allowed: [..., stage, chunk], none of both 0")
    links = (*stage.shape[:-2], stage.shape[-2] - 1, stage.shape[-1])
    firsts = (*stage.shape[:-2], stage.shape[-1])
    found = []
    for name, array, shape in (("link_s", link, links), ("ready_s", ready, firsts)):
        try:
            found.append(np.broadcast_to(array, shape))
        except ValueError:
            raise ValueError(
                f"{subject}: {name} has shape {array.shape}; allowed: what broadcasts to {shape}"
            ) from None
    return stage, *found


def _flat(array: NDArray, n_axes: int) -> NDArray:
    """All but the last axes as one, without a copy where nothing differs along them."""
    lead, own = array.shape[: array.ndim - n_axes], array.shape[array.ndim - n_axes :]
    if 0 not in lead and not any(array.strides[: len(lead)]):
        array = np.broadcast_to(array[(0,) * len(lead)], (math.prod(lead), *own))
    return array.reshape(math.prod(lead), *own)
