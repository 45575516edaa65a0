r"""What a narrower format gains, what it can gain at most, and where the rest of the time is.

A part that takes the share f of a time and shrinks by the ratio r = b/b′ of the bytes makes the whole faster by

.. math:: \frac{1}{1 - f + f/r}, \qquad\text{and a gain of s means}\quad f = \frac{1 - 1/s}{1 - 1/r}

From FP8 to NVFP4 r is 1/0.5625 = 1.78: with nothing else changed no step gains more, and one that gains less tells how
much of it reads weights. To a wider format r is below 1, and so is the gain. :py:func:`gemm` and
:py:func:`decode_step` compute both times part by part from the calibrated kernels
(:py:mod:`codesign_lib.cost.kernels`), and :py:meth:`Gain.why` says which parts kept the gain below what bytes or the
roofline allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import kernels
from codesign_lib.cost.attention_kernels import attention_decode_s
from codesign_lib.specs.formats import BF16, FP8, NVFP4, Format, as_format
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hf_config.fields import Attention
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model
from codesign_lib.specs.quantities import as_floats, positive


def most(before: Format | str = FP8, after: Format | str = NVFP4) -> float:
    """The gain of a time that is nothing but reading: the ratio of the bytes an element takes.

    >>> round(most(), 3), round(most("bf16"), 3)
    (1.778, 3.556)
    """
    return as_format(before).bytes_per_element / as_format(after).bytes_per_element


def speedup(share: ArrayLike, *, before: Format | str = FP8, after: Format | str = NVFP4) -> NDArray[np.float64]:
    """How much faster a step becomes in which only the ``share`` (0 to 1, of the time before) that reads shrinks.

    >>> speedup([0.0, 0.5, 1.0]).round(3)
    array([1.   , 1.28 , 1.778])
    """
    (share,) = as_floats("speedup", share=share)
    if share.size and not (np.min(share) >= 0 and np.max(share) <= 1):
        raise ValueError(f"speedup: share is {share.tolist()!r}; allowed: 0 to 1")
    return 1 / (1 - share + share / most(before, after))


def reading_share(gained: ArrayLike, *, before: Format | str = FP8, after: Format | str = NVFP4) -> NDArray[np.float64]:
    """The share of the time before that must have been reading, if only reading became faster: ``speedup`` backwards.

    A gain beyond the ratio of the bytes (above it, or below it where the format after is the wider one) raises
    ValueError: then something else than the format changed; so do formats of equal size. One on the other side of 1
    gives a negative share: something else changed the other way.

    >>> reading_share([1.3, 1.35, 1.4]).round(2)            # what users saw of "twice as fast as FP8"
    array([0.53, 0.59, 0.65])
    """
    (gained,) = positive("reading_share", gained=gained)
    ratio = most(before, after)
    if ratio == 1:
        raise ValueError(
            f"reading_share: {as_format(before)} and {as_format(after)} take the same bytes; allowed: others"
        )
    beyond, word = (gained > ratio * (1 + 1e-9), "most") if ratio > 1 else (gained < ratio * (1 - 1e-9), "least")
    if np.any(beyond):
        raise ValueError(
            f"reading_share: gained is {gained[beyond].flat[0]:.4g}×, and from {as_format(before)} to "
            f"{as_format(after)} bytes shrink by {ratio:.4g}×; allowed: at {word} that. Something else than the format "
            "changed"
        )
    return (1 - 1 / gained) / (1 - 1 / ratio)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The same work in two formats: seconds by part, before and after, and how far a part could shrink.

    ``ratio``: of the two bounds for a single product, of the bytes for a step. ``fixed``: parts that the change leaves
    as they are. Both mappings have the same parts, or ValueError is raised.
    """

    before: Format
    after: Format
    before_s: Mapping[str, NDArray[np.float64]]
    after_s: Mapping[str, NDArray[np.float64]]
    ratio: NDArray[np.float64]
    fixed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if set(self.before_s) != set(self.after_s) or not self.before_s:
            raise ValueError(
                f"Gain: before_s holds {', '.join(self.before_s)}, after_s {', '.join(self.after_s)}; "
                "allowed: the same parts, at least one"
            )
        if unknown := [part for part in self.fixed if part not in self.before_s]:
            raise ValueError(f"Gain: fixed holds {', '.join(unknown)}; allowed: {', '.join(self.before_s)}")

    @property
    def most(self) -> NDArray[np.float64]:
        """The gain had every part but the fixed ones shrunk by ``ratio``."""
        return _total(self.before_s) / sum(self._least_s(part) for part in self.before_s)

    @property
    def speedup(self) -> NDArray[np.float64]:
        """Time before over time after."""
        return _total(self.before_s) / _total(self.after_s)

    def share(self, part: str) -> NDArray[np.float64]:
        """Share of the time after that a part takes, which is the most that speeding it up could save."""
        if part not in self.after_s:
            raise ValueError(f"Gain: part is {part!r}; allowed: {', '.join(self.after_s)}")
        return self.after_s[part] / _total(self.after_s)

    def kept_s(self) -> dict[str, NDArray[np.float64]]:
        """Seconds of each part beyond what it would take at ``most``; they add up to what is missing.

        Negative for a part that shrank by more than ``ratio``.
        """
        return {part: self.after_s[part] - self._least_s(part) for part in self.after_s}

    def _least_s(self, part: str) -> NDArray[np.float64]:
        return self.before_s[part] / (1 if part in self.fixed else self.ratio)

    def why(self) -> str:
        """In words: the gain, what was possible, each part before and now, and what is missing; for single sizes.

        A part is missing the share of the time now that would be gone had it shrunk by ``ratio``, and has a minus if it
        shrank by more.

        >>> print(gemm(16, 8192, 8192, chip="gb300", engine="sglang").why())
        1.48× from FP8 to NVFP4; 1.77× was possible. ...
        """
        now_s = _total(self.after_s)
        if np.ndim(now_s):
            raise ValueError("Gain.why: sizes are arrays; allowed: single ones")
        kept = {part: s / now_s for part, s in self.kept_s().items()}
        told = f"{self.speedup:.2f}× from {self.before} to {self.after}; {self.most:.2f}× was possible."
        parts = sorted((p for p in self.after_s if self.share(p) >= 0.005), key=self.share, reverse=True)
        times = ", ".join(f"{p} {_us(self.before_s[p])} → {_us(self.after_s[p])}" for p in parts)
        missing = f"{100 * (1 - self.speedup / self.most):.0f} %".replace("-", "−")
        return f"{told} In µs, before → now: {times}. Missing of the time now: {missing}; {_ranked(kept)}."


def gemm(
    m: ArrayLike,
    k: ArrayLike,
    n: ArrayLike,
    *,
    chip: Chip | str,
    engine: str = "trtllm",
    before: Format | str = FP8,
    after: Format | str = NVFP4,
) -> Gain:
    """One linear layer in both formats, by the calibrated kernels. Refusals are those of ``kernels.gemm_s``.

    Parts: ``launch``, ``quantisation`` (the pass over the activations), ``tiles`` (arithmetic of whole tiles, however
    few tokens fill them), ``weights``, ``activations`` (in and out). Tiles and memory overlap in quadrature; each has
    its square's share of the result.

    >>> g = gemm([1, 8192], 8192, 8192, chip="gb300", engine="sglang", before="bf16")
    >>> g.speedup.round(1), g.most.round(1)
    (array([2.1, 2.4]), array([3.6, 6. ]))
    """
    before, after = as_format(before), as_format(after)
    sizes = {"chip": chip, "engine": engine}
    found = [_gemm_parts(m, k, n, fmt, **sizes) for fmt in (before, after)]
    bounds = [kernels.gemm_s(m, k, n, fmt=fmt, bound=True, **sizes) for fmt in (before, after)]
    return Gain(before=before, after=after, before_s=found[0], after_s=found[1], ratio=bounds[0] / bounds[1])


def decode_step(
    model: Model | str,
    n_context: int,
    *,
    n_batch: int,
    chip: Chip | str,
    engine: str = "trtllm",
    before: Format | str = FP8,
    after: Format | str = NVFP4,
    head: Format | str = BF16,
    kv: Format | str = FP8,
) -> Gain:
    """One decode step on one GPU with the body's linear layers in either format; head and cache stay as they are.

    Parts: ``launch`` and ``quantisation`` of all linear layers of the body, ``products`` (the rest of them), ``head``,
    ``attention``; the last two are fixed. Left out: norms, sampling, the host, communication, all of which lower the
    gain further.

    Raises ValueError for a model with experts or other mixers than attention; give the parts to :py:class:`Gain`.

    >>> print(decode_step("qwen3_32b", 4096, n_batch=16, chip="gb300", engine="sglang").why())
    1.30× from FP8 to NVFP4; 1.48× was possible. ...
    """
    network = as_model(model)
    layers = [x for x in network.linear_layers() if x.name != "head"]
    mixers = [mixer for layer in network.config.layers for mixer in layer.mixers]
    if any(x.kind not in ("attention", "ffn") for x in layers) or any(type(x) is not Attention for x in mixers):
        raise ValueError(
            f"decode_step: {network} has other layers than attention and dense FFNs; allowed: such models, or your own "
            "seconds by part in gain.Gain(before_s=..., after_s=...)"
        )
    positive("decode_step", n_context=n_context, n_batch=n_batch)
    where = {"chip": chip, "engine": engine}
    same = {
        "head": kernels.gemm_s(n_batch, network.config.d_model, network.config.n_vocab, fmt=head, **where),
        "attention": sum(_attention_s(x, n_context, n_batch, kv, **where) for x in mixers),
    }
    before, after, times = as_format(before), as_format(after), []
    for fmt in (before, after):
        parts = [(x.count, kernels.gemm_parts_s(n_batch, x.k, x.n, fmt=fmt, **where)) for x in layers]
        times.append(
            {
                "launch": sum(count * p.launch_s for count, p in parts),
                "quantisation": sum(count * p.quantise_s for count, p in parts),
                "products": sum(count * np.hypot(p.compute_s, p.memory_s) for count, p in parts),
                **same,
            }
        )
    ratio = np.float64(most(before, after))
    return Gain(before=before, after=after, before_s=times[0], after_s=times[1], ratio=ratio, fixed=tuple(same))


def _gemm_parts(m: ArrayLike, k: ArrayLike, n: ArrayLike, fmt: Format, **where) -> dict[str, NDArray[np.float64]]:
    p = kernels.gemm_parts_s(m, k, n, fmt=fmt, **where)
    m, k, n = (np.asarray(x, dtype=np.float64) for x in (m, k, n))
    b, stored = fmt.bytes_per_element, kernels.KERNELS[where["engine"], fmt.name].store_bytes
    weights = b * k * n
    of_weights = weights / (weights + b * m * k + stored * m * n)
    both = np.hypot(p.compute_s, p.memory_s)
    tiles, memory = p.compute_s**2 / both, p.memory_s**2 / both
    return {
        "launch": p.launch_s,
        "quantisation": p.quantise_s,
        "tiles": tiles,
        "weights": memory * of_weights,
        "activations": memory * (1 - of_weights),
    }


def _attention_s(a: Attention, n_context: int, n_batch: int, kv: Format | str, **where) -> NDArray[np.float64]:
    return attention_decode_s(
        n_context,
        n_heads=a.n_heads,
        n_kv_heads=a.n_kv_heads,
        d_head=a.d_head,
        n_batch=n_batch,
        window_tokens=a.window_tokens,
        fmt=kv,
        **where,
    )


def _total(parts: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    return sum(parts.values(), start=np.float64(0))


def _ranked(shares: Mapping[str, float]) -> str:
    """Parts of at least half a percent either way, the largest first."""
    ranked = sorted((part for part in shares if abs(shares[part]) >= 0.005), key=shares.get, reverse=True)
    return ", ".join(f"{part} {100 * shares[part]:.0f} %".replace("-", "−") for part in ranked) or "nothing"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f}" if seconds >= 1e-4 else f"{1e6 * seconds:.1f}"
