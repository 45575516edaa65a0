"""A language model with operands rounded to a number format, and how far its predictions move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import smollm2
from numpy.typing import NDArray
from smollm2 import FUSED, HEAD, Array, Model

from codesign_lib.lowbit import microscaling, nvfp4, recipes

TEXTS = Path(__file__).parent / "texts"
NAMES = ("novel", "proceedings")
N_WINDOW, N_WINDOWS_CALIBRATION = 512, 4
Rounding = Callable[[Array], Array]


def rtn(x: Array) -> Array:
    return nvfp4.dequantise(nvfp4.quantise(x))


def four_over_six(x: Array) -> Array:
    return nvfp4.dequantise(recipes.four_over_six(x))


def best_scale(x: Array) -> Array:
    return nvfp4.dequantise(recipes.best_scale(x))


def tiles(x: Array) -> Array:
    return nvfp4.dequantise(recipes.square(x))


def fp8(x: Array) -> Array:
    return microscaling.dequantise(microscaling.fp8(x))


def mxfp8(x: Array) -> Array:
    return microscaling.dequantise(microscaling.mxfp8(x, rule="rceil"))


def mxfp4_floor(x: Array) -> Array:
    return microscaling.dequantise(microscaling.mxfp4(x, rule="floor"))


def mxfp4_even(x: Array) -> Array:
    return microscaling.dequantise(microscaling.mxfp4(x, rule="even"))


def int4(x: Array) -> Array:
    """−7 … 7 times a float32 scale for each 32 elements."""
    groups = x.reshape(-1, 32)
    scale = np.maximum(np.abs(groups).max(axis=1, keepdims=True) / 7, np.finfo(np.float32).tiny)
    return (np.rint(groups / scale) * scale).reshape(x.shape).astype(np.float32)


def kind_of(name: str) -> str:
    """Which of ``FUSED`` a matrix belongs to, or the head."""
    return next((kind for kind, parts in FUSED.items() if name.split(".")[-1] in parts), HEAD)


def block_of(name: str) -> int:
    """Number of the block of a matrix, −1 for the head."""
    return -1 if name == HEAD else int(name.split(".")[1])


class Weights(NamedTuple):
    """Rounded matrices by name, and the error of the blocks' all together: Σ(rounded − w)² / Σw²."""

    of: dict[str, Array]
    relmse: float


def rounded(model: Model, rounding: Callable[[str, Array], Array]) -> Weights:
    """Every matrix after ``rounding(group, w)``; those that run as one, ``blk.3.qkv``, are rounded as one."""
    of, error, power = {}, 0.0, 0.0
    for i in range(model.n_layers):
        for kind, parts in FUSED.items():
            names = [f"blk.{i}.{part}" for part in parts]
            w = np.concatenate([model.weights[n] for n in names])
            low = rounding(f"blk.{i}.{kind}", w)
            error, power = error + np.sum((low - w) ** 2, dtype=float), power + np.sum(w * w, dtype=float)
            of |= zip(names, np.split(low, np.cumsum([len(model.weights[n]) for n in names])[:-1]), strict=True)
    return Weights(of, error / power)


class Low:
    """x · Wᵀ with rounded operands where ``where(name)`` says so: the ``linear`` of the forward pass."""

    def __init__(self, model: Model, weights: Mapping[str, Array], activations: Rounding | None = None,
                 where: Callable[[str], bool] = lambda name: name != HEAD) -> None:  # fmt: skip
        self.model, self.weights, self.activations, self.where = model, weights, activations, where
        self.last: tuple[Array | None, Array | None] = (None, None)

    def __call__(self, name: str, x: Array) -> Array:
        if not self.where(name):
            return self.model.plain(name, x)
        if self.activations:
            if self.last[0] is not x:  # q, k and v read the same
                self.last = (x, self.activations(x))
            x = self.last[1]
        return x @ self.weights[name].T

    def fraction(self) -> float:
        """Share of the blocks' weights that are low."""
        sizes = {name: w.size for name, w in self.weights.items() if name != HEAD}
        return sum(n for name, n in sizes.items() if self.where(name)) / sum(sizes.values())


class Scores(NamedTuple):
    """Of every token that is followed by one, (texts, tokens): KL divergence of the prediction from the baseline's in
    nats, whether the likeliest token is the baseline's, and −log p of the token that came."""

    kl: NDArray[np.float64]
    same: NDArray[np.float64]
    nll: NDArray[np.float64]


class Trial:
    """Two texts in windows, and what a model says of them. ``before[i]``: the residual stream before block i."""

    def __init__(self, model: Model, *, n_windows: int, n_tokens: int = N_WINDOW) -> None:
        self.model = model
        self.ids = np.concatenate([windows(name, n_windows)[:, :n_tokens] for name in NAMES])
        self.before: list[Array] = []
        last = smollm2.blocks(model, smollm2.embed(model, self.ids), each=lambda i, h: self.before.append(h))
        self.before.append(last)
        self.p, self.minus_entropy, self.top = [], [], []
        for h in last:  # a window at a time: the vocabulary is large
            x = smollm2.logits(model, h)
            x -= log_sum_exp(x)[:, None]
            p = np.exp(x)
            self.p.append(p)
            self.minus_entropy.append(np.einsum("nv,nv->n", p, x))
            self.top.append(x.argmax(axis=-1))
        self.base = self.scores(last)

    def run(self, linear=None, *, first: int = 0, cache=None) -> Scores:
        """Scores with other arithmetic from block ``first`` on."""
        return self.scores(
            smollm2.blocks(self.model, self.before[first], first=first, linear=linear, cache=cache), linear
        )

    def scores(self, last: Array, linear=None) -> Scores:
        found = []
        for i, h in enumerate(last):
            x = smollm2.logits(self.model, h, linear=linear)
            x -= log_sum_exp(x)[:, None]  # before the sum below, so that what cancels cancels
            kl = self.minus_entropy[i] - np.einsum("nv,nv->n", self.p[i], x)
            nll = -x[np.arange(len(h) - 1), self.ids[i, 1:]]
            found.append((kl[:-1], (x.argmax(axis=-1) == self.top[i])[:-1], nll))
        return Scores(*(np.reshape(s, (len(NAMES), -1)).astype(float) for s in zip(*found, strict=True)))


def windows(name: str, n: int) -> NDArray[np.int64]:
    """The first n windows of a text, (n, N_WINDOW) tokens."""
    ids = smollm2.tokens((TEXTS / f"{name}.txt").read_text(encoding="utf-8"))
    return ids[: n * N_WINDOW].reshape(n, N_WINDOW)


def log_sum_exp(x: Array) -> Array:
    most = x.max(axis=-1)
    return most + np.log(np.sum(np.exp(x - most[:, None]), axis=-1))


def hessians(model: Model) -> dict[str, Array]:
    """XᵀX of every group's input on the calibration texts, which are other pages of the same two."""
    found: dict[str, Array] = {}

    def watch(name: str, x: Array) -> Array:
        group = f"blk.{block_of(name)}.{kind_of(name)}"
        if group not in found:  # q, k and v read the same
            flat = x.reshape(-1, x.shape[-1])
            found[group] = flat.T @ flat
        return model.plain(name, x)

    ids = np.concatenate([windows(f"{name}_calibration", N_WINDOWS_CALIBRATION) for name in NAMES])
    smollm2.blocks(model, smollm2.embed(model, ids), linear=watch)
    return found
