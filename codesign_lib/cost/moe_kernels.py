r"""Seconds that the experts of a mixture take on one GPU, from few fitted numbers, and the roofline beside them.

Two grouped products, up (with gate, n = 2I or I, k = H) and down (n = H, k = I), over a experts awake on this GPU with
p token-expert pairs between them:

.. math:: t = t_0 + t_e E_l + t_p \log_2(1 + mc) + \frac{8 m H}{e_q B} + \sum \sqrt{C^2 + M^2}, \qquad
          C = c \max(1, w)

* w: tiles of 32 tokens × 64 columns over the SMs, :math:`a \lceil p / 32 a \rceil \lceil n / 64 \rceil / S`;
  c: one of them, :math:`2 \cdot 32 \cdot 64\,k / (e_c P/S) + t_g` (``compute_fraction``, ``tile_s``);
* M: :math:`(b_w\,a n k + p\,(b_a k + 2n)) / (e_m B)`: the weights of experts awake, their inputs and outputs
  (``memory_fraction``);
* ``launch_s``; ``expert_s`` an expert held here (:math:`E_l`), or ``pair_log_s`` for sorting the pairs of all ranks by
  expert; and the passes that sort, quantise and sum the m tokens of all ranks (``sort_fraction``).

With ``ep`` ranks this GPU holds E/ep experts and, balanced, m·c/ep pairs on :math:`\min(E_l, \max(1, p))` experts;
``tp`` divides the experts' width. ``skewed`` is the busiest rank: pairs times
:py:func:`codesign_lib.cost.ops.moe.busiest_share`, and fewer experts awake. The numbers are those of balanced tables;
skewed times follow from the form. ``random`` wakes the distinct experts of tokens that pick at random and leaves the
ranks equally busy. Every fraction is at most 1 and the result never below the bound; a fraction that
the fit left at 1 (``compute_fraction`` of many sets, where ``tile_s`` carries the time of a tile) is no efficiency.

SGLang's tables call DeepSeek's layer balanced, but its routing is limited to groups of experts; those rows were left
out. Which layers are not gated only TensorRT-LLM's tables say, by kernel; the same layers were taken as not gated in
SGLang's.

Ignored: dispatch and combine between GPUs (:py:mod:`codesign_lib.cost.collectives`), shared experts and the router
(linear layers), the choice of another kernel from one size to the next, kernels that engines keep for a handful of
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import calibration, roofline
from codesign_lib.cost.blocks import in_blocks
from codesign_lib.cost.ops import moe
from codesign_lib.cost.tiling import whole
from codesign_lib.specs.formats import BF16, MXFP4, MXFP8, Format, as_format
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.quantities import flags

TILE = (32, 64)
"""Tokens and columns of a tile."""
SORT_BYTES = 8
"""Bytes an element of all tokens that sorting, quantising and summing move."""
_SGLANG = dict.fromkeys(("bf16", "fp8_block"), "sglang_flashinfer_trtllm_moe sglang_fused_moe_triton") | dict.fromkeys(
    ("nvfp4", "mxfp4"), "sglang_flashinfer_trtllm_moe"
)
SOURCES: Mapping[tuple[str, bool], Mapping[str, str]] = MappingProxyType(
    {
        ("trtllm", True): dict.fromkeys(("bf16", "fp8", "nvfp4"), "moe_torch_flow_cutlass")
        | {"fp8_block": "moe_torch_flow_cutlass deepgemm", "mxfp4": "moe_torch_flow"},
        ("trtllm", False): dict.fromkeys(("bf16", "fp8", "nvfp4"), "moe_torch_flow_nongated"),
        ("sglang", True): _SGLANG,
        ("sglang", False): _SGLANG,
    }
)
"""The kernels of the tables that are fitted, by engine and whether gated, and format; the first that a chip has."""


def moe_s(
    m: ArrayLike,
    *,
    d_model: ArrayLike,
    d_expert: ArrayLike,
    n_experts: ArrayLike,
    n_chosen: ArrayLike,
    ep: ArrayLike = 1,
    tp: ArrayLike = 1,
    gated: bool = True,
    chip: Chip | str,
    fmt: Format | str,
    engine: str = "trtllm",
    routing: str = "balanced",
    bound: bool = False,
    transfer_from: str | None = None,
) -> NDArray[np.float64]:
    """Seconds of one layer's routed experts on the busiest GPU, for m tokens of all ranks together.

    The formula is this module's. ``fmt`` is the weights': bf16, fp8, fp8_block, nvfp4 (activations alike), or mxfp4
    with MXFP8 activations; tokens come and go in BF16. With experts in a latent size ``d_model`` is that size.
    ``bound=True`` is the roofline; ``transfer_from`` takes another chip's fitted numbers
    (:py:func:`codesign_lib.cost.calibration.fitted`) with this chip's datasheet. Sizes broadcast and are whole and at
    least 1, ``n_chosen`` at most ``n_experts``, ``ep`` and ``tp`` divisors of experts and width, ``routing`` balanced,
    random or skewed, else ValueError; so is what is not calibrated.

    >>> r1 = dict(d_model=7168, d_expert=2048, n_experts=256, n_chosen=8, chip="gb300", fmt="nvfp4")
    >>> narrow, wide = (moe_s(128, **r1, ep=ep) for ep in (8, 32))
    >>> bool(1.5 < narrow / wide < 4)
    True
    """
    subject = "moe_s"
    sizes = dict(m=m, d_model=d_model, d_expert=d_expert, n_experts=n_experts, n_chosen=n_chosen, ep=ep, tp=tp)
    m, h, i, e, c, ep, tp = whole(subject, **sizes)
    for name, ranks, of, parts in (("ep", ep, "n_experts", e), ("tp", tp, "d_expert", i)):
        if np.any(parts % ranks):
            bad, whole_of = (x[parts % ranks != 0][0] for x in np.broadcast_arrays(ranks, parts))
            raise ValueError(f"{subject}: {name} is {bad:g}; allowed: a divisor of {of}, {whole_of:g}")
    flags(subject, gated=gated)
    fmt, chip, kernel = as_format(fmt), as_chip(chip), "moe_experts" if gated else "moe_experts_ungated"
    if np.any(c > e):
        chosen, of = (x[c > e][0] for x in np.broadcast_arrays(c, e))
        raise ValueError(f"{subject}: n_chosen is {chosen:g}; allowed: at most n_experts, {of:g}")
    even = "balanced" if routing == "random" else routing
    share = moe.busiest_share(m, n_experts=e, n_chosen=c, n_ranks=ep, routing=even)
    pairs = share * m * c / ep
    held = e / ep
    awake = np.minimum(held, np.maximum(1, pairs))
    if routing != "balanced":
        awake = np.maximum(1, np.minimum(awake, moe.woken(m, n_experts=e, n_chosen=c, routing=routing) / ep))
    arithmetic = MXFP8 if fmt == MXFP4 else fmt
    work = moe.experts(
        pairs, np.minimum(awake, held), d_model=h, d_expert=i / tp, gated=gated, inputs=arithmetic, weights=fmt
    )
    least = roofline.time_s(work, chip, arithmetic)
    if calibration.wants_bound(subject, kernel, engine, bound, transfer_from):
        return least
    calibration.needs(subject, chip, "n_sms")
    numbers = calibration.fitted(subject, kernel, chip, engine, fmt.name, transfer_from=transfer_from)
    time_s = form_s(m, m * c, pairs, awake, held, h, i / tp, gated=gated, chip=chip, fmt=fmt, numbers=numbers)
    return np.maximum(time_s, least)[()]


def form_s(
    m: ArrayLike,
    routed: ArrayLike,
    pairs: ArrayLike,
    awake: ArrayLike,
    held: ArrayLike,
    h: ArrayLike,
    i: ArrayLike,
    *,
    gated: bool,
    chip: Chip | str,
    fmt: Format | str,
    numbers: Mapping[str, float],
) -> NDArray[np.float64]:
    """The form with any numbers: tokens and pairs of all ranks; pairs and experts awake and held, H and I here; not
    checked.

    Absent ``expert_s`` or ``pair_log_s`` leave their term out.
    """
    c, fmt = as_chip(chip), as_format(fmt)
    arithmetic = MXFP8 if fmt == MXFP4 else fmt
    weights, inputs, outputs = (f.bytes_per_element for f in (fmt, arithmetic, BF16))
    stream = 1 / (numbers["memory_fraction"] * c.hbm_bytes_per_s)
    sort = SORT_BYTES / (numbers["sort_fraction"] * c.hbm_bytes_per_s)
    rows, columns = TILE
    per_k = 2 * rows * columns * c.n_sms / (numbers["compute_fraction"] * c.peak_flops_per_s(arithmetic))
    tile_s, launch_s = numbers["tile_s"], numbers["launch_s"]
    expert_s, pair_log_s = numbers.get("expert_s", 0.0), numbers.get("pair_log_s", 0.0)

    def block(
        m: NDArray, routed: NDArray, pairs: NDArray, awake: NDArray, held: NDArray, h: NDArray, i: NDArray
    ) -> NDArray:
        total = launch_s + expert_s * held + pair_log_s * np.log2(1 + routed) + sort * m * h
        row_tiles = awake * np.ceil(np.maximum(pairs, 1) / awake / rows) / c.n_sms
        for n, k in (((2 if gated else 1) * i, h), (h, i)):
            compute = (per_k * k + tile_s) * np.maximum(1, row_tiles * np.ceil(n / columns))
            memory = stream * (weights * awake * n * k + pairs * (inputs * k + outputs * n))
            total = total + np.sqrt(compute * compute + memory * memory)
        return total

    return in_blocks(block, m, routed, pairs, awake, held, h, i)
