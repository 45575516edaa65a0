r"""Recurrent mixers as work: layers that keep a state of constant size instead of a cache of keys and values.

Counted a state element of :math:`d_k \times d_v`, a multiply-add as two: letting it fade 1, adding
:math:`k \otimes v` 2, reading it with a query 2. The delta rule also reads it with the key, to subtract what is there
(2), so a token costs 5 FLOP an element in Mamba2 and lightning attention, 7 in gated delta nets and Kimi's. Mamba1
fades every element at its own rate, an exponential each. In prefill tokens are taken in chunks of Q: scores inside a
chunk are causal, and the state is touched once a chunk.

No public table holds these kernels whole (the Mamba2 tables are of the convolution alone), so nothing here is
calibrated or validated: bounds only. Ignored: projections (linear layers), norms and gates, the log-depth scans of
real kernels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from codesign_lib.cost.roofline import Work
from codesign_lib.specs.formats import BF16, Format, as_format
from codesign_lib.specs.hf_config.fields import Recurrent
from codesign_lib.specs.quantities import positive

FLOPS_PER_ELEMENT = {"mamba1": 6, "mamba2": 5, "lightning": 5, "gated_delta": 7, "kimi_delta": 7, "short_conv": 0}
"""FLOP a token and state element when decoding, by kind. Mamba1 also multiplies step size and rate."""
DELTA_RULE = ("gated_delta", "kimi_delta")
CHUNK_TOKENS = 128


def state_bytes(mixer: Recurrent) -> float:
    """Bytes of one request's state in one layer, without the convolution's window.

    >>> state_bytes(Recurrent(kind="mamba2", n_heads=128, n_key_heads=8, d_key=128, d_value=64))
    4194304.0
    """
    return mixer.n_heads * mixer.d_key * mixer.d_value * mixer.state_bytes_per_element


def decode(mixer: Recurrent, n_batch: ArrayLike = 1, *, activations: Format | str = BF16) -> Work:
    r"""One new token in each of ``n_batch`` sequences.

    .. math:: \text{flops} = B\,(f H d_k d_v + 2 c\,n_c), \quad
              \text{bytes} = 2B\,\text{state} + B b_a \left(2 (c-1) n_c + \text{in} + \text{out}\right)

    f is ``FLOPS_PER_ELEMENT``; the state and the convolution's window of c − 1 tokens over :math:`n_c` channels are
    read and written. ``n_batch`` is finite and above 0, a mixer of another kind refused, else ValueError.

    >>> mamba = Recurrent(kind="mamba2", n_heads=128, n_key_heads=8, d_key=128, d_value=64)
    >>> w = decode(mamba, 32)
    >>> round(float(w.intensity), 2)                             # memory-bound at any batch
    0.62
    """
    (b,) = positive("recurrent.decode", n_batch=n_batch)
    a, state = as_format(activations).bytes_per_element, mixer.n_heads * mixer.d_key * mixer.d_value
    flops = _per_element(mixer) * state + 2 * mixer.conv_tokens * mixer.n_conv
    moved = 2 * state_bytes(mixer) + a * (2 * max(mixer.conv_tokens - 1, 0) * mixer.n_conv + _in_and_out(mixer))
    return Work(b * flops, b * moved, b * state if mixer.kind == "mamba1" else 0.0)


def prefill(
    mixer: Recurrent,
    n_new: ArrayLike,
    *,
    n_batch: ArrayLike = 1,
    chunk_tokens: float = CHUNK_TOKENS,
    activations: Format | str = BF16,
) -> Work:
    r"""``n_new`` tokens in each of ``n_batch`` sequences, taken in chunks of Q; a prefix changes nothing.

    .. math:: \text{flops a token} = 4 H d_k d_v + Q (G d_k + H d_v) \quad\text{(Mamba2)}, \qquad
              6 H d_k d_v + Q H (3 d_k + 2 d_v) + \tfrac{1}{3} Q^2 H \quad\text{(delta rule)}

    The delta rule adds, inside a chunk, keys against keys, the inverse of the triangle, and the products with it.
    Mamba1 has no such form and costs a token what :py:func:`decode` does. Inputs and outputs cross HBM once, the state
    twice. Sizes broadcast and are finite and above 0, else ValueError.

    >>> mamba = Recurrent(kind="mamba2", n_heads=128, n_key_heads=8, d_key=128, d_value=64)
    >>> one, two = (float(prefill(mamba, n).flops) for n in (65_536, 131_072))
    >>> two == 2 * one                                           # linear in length
    True
    """
    sizes = dict(n_new=n_new, n_batch=n_batch, chunk_tokens=chunk_tokens)
    n, b, q = positive("recurrent.prefill", **sizes)
    q = np.minimum(q, n)
    a, state = as_format(activations).bytes_per_element, mixer.n_heads * mixer.d_key * mixer.d_value
    h, g, k, v = mixer.n_heads, mixer.n_key_heads or mixer.n_heads, mixer.d_key, mixer.d_value
    if mixer.kind in DELTA_RULE:
        per_token = 6 * state + q * h * (3 * k + 2 * v) + h * q**2 / 3
    elif mixer.kind in ("mamba2", "lightning"):
        per_token = 4 * state + q * (g * k + h * v)
    else:
        per_token = _per_element(mixer) * state + 0 * q
    exps = b * n * state if mixer.kind == "mamba1" else 0.0
    moved = a * n * _in_and_out(mixer) + 2 * state_bytes(mixer)
    return Work(b * n * (per_token + 2 * mixer.conv_tokens * mixer.n_conv), b * moved, exps)


def _per_element(mixer: Recurrent) -> float:
    if mixer.kind not in FLOPS_PER_ELEMENT:
        raise ValueError(f"recurrent: kind is {mixer.kind!r}; allowed: {', '.join(FLOPS_PER_ELEMENT)}")
    return FLOPS_PER_ELEMENT[mixer.kind]


def _in_and_out(mixer: Recurrent) -> float:
    """Elements a token that come in (through the convolution) and go out."""
    n_value = mixer.n_heads * mixer.d_value
    return (mixer.n_conv or 2 * n_value) + (n_value or mixer.n_conv)
