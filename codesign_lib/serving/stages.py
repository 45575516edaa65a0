"""Which layers each stage of a pipeline holds, for many layouts at once: as even as can be, the ends short.

Layers that are left over go to the stages before the last one, from behind, one each (vLLM's ``get_pp_indices``): the
first stage also has the embedding, the last the head. Where layers differ, the fullest and the slowest stage depend on
which layers fall together, and not on their average. Other splits may be better for one purpose
(:py:mod:`codesign_lib.serving.splitting`); the first token of one prompt is by default priced on another one, the
smaller stages first (:py:func:`codesign_lib.serving.first_token.even_stages`), which suits its growing chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codesign_lib.serving.layout import Layout
from codesign_lib.specs.hf_config.fields import Layer
from codesign_lib.specs.models import Model


class Stage(NamedTuple):
    """Layers of each of :py:func:`layer_kinds` in a stage, and whether it is the first, the last: arrays of layouts."""

    n_layers: tuple[NDArray[np.float64], ...]
    first: NDArray[np.float64]
    last: NDArray[np.float64]

    def total(self, layers: tuple, *, first: NDArray, last: NDArray) -> NDArray[np.float64]:
        """What the stage has of something of which a layer of each kind, the embedding and the head have so much."""
        out = self.first * first + self.last * last
        for n, each in zip(self.n_layers, layers, strict=True):
            if np.any(n):
                out = out + n * each
        return out


@lru_cache(maxsize=256)
def layer_kinds(model: Model) -> tuple[Layer, ...]:
    """The distinct layers of a model, in order."""
    return tuple(dict.fromkeys(model.config.layers))


def stages(model: Model, layout: Layout) -> Iterator[Stage]:
    """Every stage that may be the fullest or slowest of some layout, once; what another has more of is left out.

    Layouts with fewer different stages than others have some of them twice.

    >>> from codesign_lib.specs import models
    >>> [[float(n) for n in s.n_layers] for s in stages(models.MODELS["gemma_3_27b"], Layout(pp=8))]
    [[6.0, 1.0], [7.0, 1.0], [6.0, 2.0], [6.0, 1.0]]
    """
    sizes, where = np.unique(np.asarray(layout.pp), return_inverse=True)
    found = [_distinct(model, int(pp)) for pp in sizes] or [_distinct(model, 1)]  # no layouts, no stages of them
    most = max(len(rows) for rows in found)
    table = np.array([(*rows, *rows[:1] * (most - len(rows))) for rows in found], np.float64)
    where = where.reshape(np.shape(layout.pp))
    for row in range(most):
        *counts, first, last = (column[where] for column in table[:, row].T)
        yield Stage(tuple(counts), first, last)


@lru_cache(maxsize=4096)
def _distinct(model: Model, n_stages: int) -> tuple[tuple[int, ...], ...]:
    """(layers of each kind, first, last) of the stages that no other holds all of."""
    kinds, layers = layer_kinds(model), model.config.layers
    short, n_long = divmod(len(layers), n_stages)
    edges = np.cumsum([0] + [short] * (n_stages - n_long - 1) + [short + 1] * n_long + [short])
    order = np.array([kinds.index(x) for x in layers])
    rows = dict.fromkeys(
        (*np.bincount(order[a:b], minlength=len(kinds)).tolist(), int(i == 0), int(i == n_stages - 1))
        for i, (a, b) in enumerate(pairwise(edges))
    )
    return tuple(x for x in rows if not any(x != y and all(a <= b for a, b in zip(x, y, strict=True)) for y in rows))
