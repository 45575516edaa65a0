r"""What others fitted of a model's shape against its loss: two laws, with their ranges and with where they fail.

**Conditional law** of dense models with grouped-query attention (arXiv:2510.18245). With hidden size d, N parameters
outside embedding and head, and r the parameters of feed-forward blocks over those of attention,

.. math:: \frac{L}{L_\text{opt}(N, D)} = \left(a_0 + a_1 \ln\frac{d}{\sqrt N} + a_2 \frac{\sqrt N}{d}\right)
          \left(b_0 + b_1 \ln r + \frac{b_2}{r}\right)

fitted twice: on models of 80, 145 and 297 M (``small``), and of 1 B alone (``one_b``); both on 100 tokens a parameter,
r from 0.5 to 5. It is the *ratio* to the best shape of the same size: the loss itself is not in it.

Where it fails on the paper's own larger models (``data/conditional_law.csv``): it separates two 1 B models that measure
the same (query heads a key-value head are not in it), gives a 3 B pair three times the measured difference, and none to
another pair that differs by 0.5 %. It is good to about half a percent of loss. With d 40 % off its best the loss is
0.2 to 0.6 % higher by ``small``, 0.6 to 1.9 % by ``one_b``: read an optimum as a band, wider above it than below.

**Granularity law** of mixtures of experts (arXiv:2402.07871). G is how many times finer the experts are than a dense
feed-forward block of 4d, each token taking G of 64·G experts:

.. math:: L = c + \left(\frac{g}{G^\gamma} + a\right) N^{-\alpha} + b\,D^{-\beta}

where N is *all* parameters, (8·64 + 4)/12 = 43 times the active ones; with 64 or 1 times the law misses its own table.

Neither says anything of benchmarks: between the conditional law's 1 B models a nat is worth 85 points, between its 3 B
models 22.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.specs.hf_config.fields import Attention
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model
from codesign_lib.specs.quantities import common_shape, positive

N_EXPANDED = 64
"""Experts of a granularity-1 layer in the granularity law, its only expansion."""
N_PARAMS_RATIO = (8 * N_EXPANDED + 4) / 12
"""All parameters over active ones in the granularity law: 12 d² a dense layer, (8E + 4) d² with E = 64 experts."""


class ConditionalLaw(NamedTuple):
    """One set of coefficients and the sizes it was fitted on; natural logarithms."""

    a0: float
    a1: float
    a2: float
    b0: float
    b1: float
    b2: float
    n_params_min: float
    n_params_max: float
    ratio_min: float = 0.5
    ratio_max: float = 5.0
    source: str = "Bian et al., Scaling Laws Meet Model Architecture, arXiv:2510.18245v3, fitted coefficients"

    @property
    def best_width(self) -> float:
        """d/√N of least loss, a₂/a₁."""
        return self.a2 / self.a1

    @property
    def best_ratio(self) -> float:
        """Feed-forward over attention parameters of least loss, b₂/b₁."""
        return self.b2 / self.b1


CONDITIONAL_LAWS: Mapping[str, ConditionalLaw] = MappingProxyType(
    {
        "small": ConditionalLaw(2.697, 0.0974, 0.0078, 0.3870, 0.0063, 0.0065, 80e6, 297e6),
        "one_b": ConditionalLaw(2.319, 0.238, 0.0176, 0.5104, 0.0051, 0.0062, 1e9, 1e9),
    }
)
_GRANULAR = dict(a=18.1, alpha=0.115, b=30.8, beta=0.147, g=2.1, gamma=0.58, c=0.47)
_DENSE = dict(a=16.3, alpha=0.126, b=26.7, beta=0.127, c=0.47)
GRANULARITY_MAX = 64
"""Up to where the paper prints its law."""
GRANULAR_PARAMS = (N_PARAMS_RATIO * 1e8, N_PARAMS_RATIO * 1e12)
"""All parameters, from and to, of the models for which the paper prints its law (``data/granularity_law.csv``)."""
GRANULAR_TOKENS = (4.37e9, 7.94e12)
"""Tokens of training likewise."""
_FORWARD_BACKWARD, _ROUTER = 6, 14


class Shape(NamedTuple):
    """What the conditional law sees of a dense model."""

    d_model: int
    n_body_params: int
    width_ratio: float
    ffn_ratio: float


def conditional_law(fit: ConditionalLaw | str) -> ConditionalLaw:
    """The set of that name, ``small`` or ``one_b``; another :py:class:`ConditionalLaw` passes through."""
    if isinstance(fit, ConditionalLaw):
        return fit
    if isinstance(fit, str) and fit in CONDITIONAL_LAWS:
        return CONDITIONAL_LAWS[fit]
    raise ValueError(f"conditional_law: fit is {fit!r:.40}; allowed: {', '.join(CONDITIONAL_LAWS)}")


def relative_loss(
    width_ratio: ArrayLike, ffn_ratio: ArrayLike, *, fit: ConditionalLaw | str = "small", extrapolate: bool = False
) -> NDArray[np.float64]:
    """Loss over that of the best shape with as many parameters and tokens, by the conditional law of this module.

    ``width_ratio`` is d/√N, ``ffn_ratio`` feed-forward over attention parameters; both broadcast. At the optimum the
    rounded coefficients give 1.0028 (``small``) and 1.0005 (``one_b``) instead of 1. A ratio outside 0.5 to 5, where
    nothing was fitted, or a width more than 4 times off the best raises ValueError unless ``extrapolate``.

    >>> (relative_loss([0.04, 0.08, 0.16], 1.03) / relative_loss(0.08, 1.03) - 1).round(3).tolist()
    [0.012, 0.0, 0.007]
    """
    subject, law = "relative_loss", conditional_law(fit)
    width, ratio = positive(subject, width_ratio=width_ratio, ffn_ratio=ffn_ratio)
    common_shape(subject, width_ratio=width, ffn_ratio=ratio)
    if not extrapolate:
        wide = (law.best_width / 4 * (1 - 1e-9), law.best_width * 4 * (1 + 1e-9))
        limits = {"ffn_ratio": (ratio, law.ratio_min, law.ratio_max), "width_ratio": (width, *wide)}
        for name, (value, low, high) in limits.items():
            if value.size and (np.min(value) < low or np.max(value) > high):
                bad = value[(value < low) | (value > high)].flat[0]
                raise ValueError(
                    f"{subject}: {name} is {bad:.3g}; the law is fitted for {low:.3g} to {high:.3g}; "
                    "allowed: a value inside, or extrapolate=True"
                )
    by_width = law.a0 + law.a1 * np.log(width) + law.a2 / width
    return by_width * (law.b0 + law.b1 * np.log(ratio) + law.b2 / ratio)


def shape(model: Model | str) -> Shape:
    """What the conditional law sees of a model: d, N, d/√N and r, from its linear layers, norms left out.

    Refused with ValueError, as the law says nothing of them: experts, latent, windowed or recurrent mixing, layers
    without attention or without feed-forward block.

    >>> s = shape("llama_3_1_8b")
    >>> f"{s.n_body_params / 1e9:.2f} B, d/√N = {s.width_ratio:.3f}, r = {s.ffn_ratio:.2f}"
    '6.98 B, d/√N = 0.049, r = 4.20'
    """
    of = as_model(model)
    for i, layer in enumerate(of.config.layers):
        attends = [type(m) is Attention and m.kind == "full" for m in layer.mixers] == [True]
        if not attends or [f.n_experts == 0 and f.gated for f in layer.ffns] != [True]:
            raise ValueError(
                f"shape: layer {i} of {of} is {of.layer_labels[i]}; allowed: full attention and a gated dense "
                "feed-forward block in every layer (the law was fitted on nothing else)"
            )
    parts = {"attention": 0, "ffn": 0}
    for layer in of.linear_layers():
        if layer.kind in parts:
            parts[layer.kind] += layer.n_params
    n = sum(parts.values())
    return Shape(of.config.d_model, n, of.config.d_model / float(np.sqrt(n)), parts["ffn"] / parts["attention"])


def model_relative_loss(
    model: Model | str, *, fit: ConditionalLaw | str = "one_b", extrapolate: bool = False
) -> NDArray[np.float64]:
    """:py:func:`relative_loss` of a dense model's shape.

    The law was fitted up to 1 B and looked at up to 3 B parameters: a model outside raises ValueError unless
    ``extrapolate``, and so does a shape outside.

    >>> model_relative_loss("llama_3_1_8b")
    Traceback (most recent call last):
    ValueError: model_relative_loss: Llama-3.1-8B has 6.98 B parameters without embedding and head; the law was looked
    at from 0.08 to 3 B; allowed: such a model, or extrapolate=True
    >>> round(float(model_relative_loss("llama_3_1_8b", extrapolate=True)), 3)
    1.018
    """
    found = shape(model)
    if not extrapolate and not 80e6 <= found.n_body_params <= 3e9:
        raise ValueError(
            f"model_relative_loss: {as_model(model)} has {found.n_body_params / 1e9:.2f} B parameters without "
            "embedding and head; the law was looked at from 0.08 to 3 B; allowed: such a model, or extrapolate=True"
        )
    return relative_loss(found.width_ratio, found.ffn_ratio, fit=fit, extrapolate=extrapolate)


def granular_loss(
    n_params: ArrayLike, n_tokens: ArrayLike, granularity: ArrayLike, *, extrapolate: bool = False
) -> NDArray[np.float64]:
    """Loss of a mixture of 64·G experts, G a token, by the granularity law of this module, in nats.

    ``n_params`` counts all parameters without embedding (``N_PARAMS_RATIO`` times the active ones). Broadcasts. The
    printed coefficients give the paper's table 0.5 to 1 % low. G below 1 or above 64, and sizes outside that table
    (``GRANULAR_PARAMS``, ``GRANULAR_TOKENS``), raise ValueError unless ``extrapolate``.

    >>> active = 7e9
    >>> round(float(granular_loss(N_PARAMS_RATIO * active, 137.6e9, 32)), 3)     # printed: 2.076
    2.06
    """
    subject = "granular_loss"
    n, d, g = positive(subject, n_params=n_params, n_tokens=n_tokens, granularity=granularity)
    common_shape(subject, n_params=n, n_tokens=d, granularity=g)
    ranges = dict(granularity=(g, 1, GRANULARITY_MAX), n_params=(n, *GRANULAR_PARAMS), n_tokens=(d, *GRANULAR_TOKENS))
    for name, (value, low, high) in ranges.items() if not extrapolate else ():
        bad = value[(value < low * (1 - 1e-9)) | (value > high * (1 + 1e-9))]
        if bad.size:
            raise ValueError(
                f"{subject}: {name} is {bad.flat[0]:g}; the law is printed for {low:g} to {high:g}; "
                "allowed: a value inside, or extrapolate=True"
            )
    x = _GRANULAR
    return x["c"] + (x["g"] / g ** x["gamma"] + x["a"]) / n ** x["alpha"] + x["b"] / d ** x["beta"]


def dense_loss(n_params: ArrayLike, n_tokens: ArrayLike) -> NDArray[np.float64]:
    """Loss of a dense model in the same paper and units: c + a/N^α + b/D^β. No range is printed, so none is checked.

    >>> bool(dense_loss(7e9, 137.6e9) > granular_loss(N_PARAMS_RATIO * 7e9, 137.6e9, 32))
    True
    """
    n, d = positive("dense_loss", n_params=n_params, n_tokens=n_tokens)
    common_shape("dense_loss", n_params=n, n_tokens=d)
    return _DENSE["c"] + _DENSE["a"] / n ** _DENSE["alpha"] + _DENSE["b"] / d ** _DENSE["beta"]


def granular_training_flops(
    n_active_params: ArrayLike, n_tokens: ArrayLike, granularity: ArrayLike
) -> NDArray[np.float64]:
    r"""FLOP of training such a mixture, router included: what fine experts cost.

    .. math:: F = (12 d^2 \cdot 6 + 64\,d\,G \cdot 14)\,D\,n, \qquad d = 64\,n, \quad N_\text{active} = 12\,d^2 n

    The router's share grows with G/d: in a small model fine experts do not pay. 6 and 14 give the paper's table within
    half a percent. Arithmetic, so no range is checked.

    >>> f"{float(granular_training_flops(100e6, 4.37e9, 8)):.2e}"                     # printed: 2.95e18
    '2.94e+18'
    """
    subject = "granular_training_flops"
    sizes = dict(n_active_params=n_active_params, n_tokens=n_tokens, granularity=granularity)
    n, tokens, g = positive(subject, **sizes)
    common_shape(subject, n_active_params=n, n_tokens=tokens, granularity=g)
    d = np.cbrt(64 * n / 12)
    return (12 * d**2 * _FORWARD_BACKWARD + d * N_EXPANDED * g * _ROUTER) * tokens * d / 64
