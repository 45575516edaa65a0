"""Experts of a mixture that a batch wakes, the rows and bytes they get, and what reading them takes: few tokens.

Ignored: routing that prefers some experts, which wakes fewer of them and makes the busiest GPU wait for.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.tiling import whole
from codesign_lib.specs.quantities import positive


def active_experts(m: ArrayLike, *, n_experts: ArrayLike, n_chosen: ArrayLike) -> NDArray[np.float64]:
    r"""Experts that m tokens wake, when each picks ``n_chosen`` of ``n_experts`` at random: the expectation.

    .. math:: E\left(1 - \left(1 - \tfrac{c}{E}\right)^m\right)

    ``n_chosen`` beyond ``n_experts``: ValueError.

    >>> active_experts([1, 32, 384], n_experts=256, n_chosen=8).round(1)
    array([  8. , 163.3, 256. ])
    """
    m, n_experts, n_chosen = whole("active_experts", m=m, n_experts=n_experts, n_chosen=n_chosen)
    if np.any(n_chosen > n_experts):
        raise ValueError("active_experts: n_chosen is above n_experts; allowed: n_chosen ≤ n_experts")
    return n_experts * (1 - (1 - n_chosen / n_experts) ** m)


def tokens_per_expert(n_concurrent: ArrayLike, *, n_experts: ArrayLike, n_chosen: ArrayLike) -> NDArray[np.float64]:
    r"""Rows of an expert's products when decoding, on average: :math:`\text{concurrency} \cdot c / E`.

    All requests of all GPUs that share the experts count, which is what wide expert parallelism is for. Source: NVIDIA,
    AI Model Co-Design: Hardware-Friendly LLM Design, 2026-07-10.

    >>> float(tokens_per_expert(4096, n_experts=256, n_chosen=8))
    128.0
    """
    m, n_experts, n_chosen = whole(
        "tokens_per_expert", n_concurrent=n_concurrent, n_experts=n_experts, n_chosen=n_chosen
    )
    if np.any(n_chosen > n_experts):
        raise ValueError("tokens_per_expert: n_chosen is above n_experts; allowed: n_chosen ≤ n_experts")
    return m * n_chosen / n_experts


def dispatch_bytes(
    n_tokens: ArrayLike, *, ep: ArrayLike, d_model: ArrayLike, n_chosen: ArrayLike, bytes_per_element: ArrayLike = 2.0
) -> NDArray[np.float64]:
    r"""Bytes in which a rank's tokens reach their experts by all-to-all: :math:`m \min(\text{EP}, c)\,H\,b`.

    A token goes once to each rank that has one of its c experts, its own included. An all-gather takes it to every
    rank, :math:`m\,\text{EP}\,H\,b`: more as soon as EP > c. The way back, combine against reduce-scatter, is the same.
    Source: TensorRT-LLM, technical blog 18.

    >>> per_rank = dispatch_bytes(2048, ep=[4, 8, 64], d_model=7168, n_chosen=8)
    >>> (2048 * 7168 * 2 * np.array([4, 8, 64]) / per_rank).tolist()       # all-gather over all-to-all
    [1.0, 1.0, 8.0]
    """
    m, ep, h, c = whole("dispatch_bytes", n_tokens=n_tokens, ep=ep, d_model=d_model, n_chosen=n_chosen)
    (width,) = positive("dispatch_bytes", bytes_per_element=bytes_per_element)
    return m * np.minimum(ep, c) * h * width


def moe_law_s(
    m: ArrayLike, *, n_experts: ArrayLike, n_chosen: ArrayLike, numbers: Mapping[str, float]
) -> NDArray[np.float64]:
    r"""Seconds of one MoE layer with small experts and few tokens: launch, and the experts that are read.

    .. math:: t = t_0 + a\,E_\text{active}(m) + b\,m

    ``numbers`` holds ``launch_s``, ``expert_s`` (an active expert) and, if it is not 0, ``token_s``. Those of
    ``calibration.find("moe_layer", "b200_sxm", "trtllm", "nvfp4")`` are for experts of 7168 × 256 a GPU and up to 384
    tokens and hold for that layer only; they leave b out, which 14 published points do not determine.

    >>> from codesign_lib.cost import calibration
    >>> law = calibration.find("moe_layer", "b200_sxm", "trtllm", "nvfp4")
    >>> t = moe_law_s([1, 384], n_experts=256, n_chosen=8, numbers=law.numbers)
    >>> bool(t[0] < 30e-6 < 150e-6 < t[1])
    True
    """
    active = active_experts(m, n_experts=n_experts, n_chosen=n_chosen)
    per_token_s = numbers.get("token_s", 0.0)
    return numbers["launch_s"] + numbers["expert_s"] * active + per_token_s * np.asarray(m, np.float64)
