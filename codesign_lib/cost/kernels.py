r"""Seconds that real matrix-multiplication kernels take, from few fitted numbers, and the roofline beside them.

One linear layer Y[m, n] = X[m, k] · W[k, n] in an inference engine, BF16 in and out, is modelled as

.. math:: t = t_0 + Q + \sqrt{C^2 + M^2}

* :math:`t_0` (``launch_s``): launch, drain, and the engine's own work a call;
* :math:`Q = m k\,(2 + b) / (e_q B)`: the pass that reads BF16 activations and writes them quantised; :math:`e_q` is
  ``quantise_fraction``;
* :math:`M = (b\,mk + b\,nk + b_o\,mn) / (e_m B)`: every operand streamed once; :math:`e_m` is ``memory_fraction``;
* C: the tensor cores. A tile of x×y outputs takes one SM of S

  .. math:: c = k \max\left(\frac{2xy}{e_c P/S}, \frac{b\,(x+y)}{r}\right)

  for its arithmetic (:math:`e_c`: ``compute_fraction``) or for feeding its operands (r: ``operand_bytes_per_s``, an
  SM). With :math:`w = \lceil m/x \rceil \lceil n/y \rceil / S` waves, C is the least over the kernel's tiles of
  :math:`c \max(1, w)`, or of :math:`c \lceil w \rceil` where the last wave lasts as long as a full one. A kernel that
  splits k also has :math:`c\,w + \tau + 32\,mn/(e_m B)`: all SMs busy, for τ (``split_s``) and merging partial sums.

B is the chip's bandwidth, P its dense peak, b bytes an element with scales, from the chip's and the format's specs.
Every efficiency is at most 1, so the calibrated time is never below the bound. Tiles, splitting, waves and
:math:`b_o` (:py:class:`Kernel`) are properties of the engine's kernel and the same on all chips.

Ignored: the library's choice of another kernel from one size to the next (the largest part of what is left), data
that stays in L2 between calls, clocks that drop under load, rows that are not aligned (next to none was measured: see
:py:func:`codesign_lib.cost.tiling.row_alignment_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import calibration, ops, roofline
from codesign_lib.cost.blocks import in_blocks
from codesign_lib.cost.tiling import whole
from codesign_lib.specs.formats import BF16, NVFP4, Format, as_format
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.quantities import common_shape

ENGINES = ("trtllm", "sglang")
MERGE_BYTES = 32
"""Bytes an output of a split product: four FP32 partial sums written and read."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What is fixed about an engine's matrix-multiplication kernel, the same on every chip.

    ``tiles``: (rows, columns) of the output tiles it chooses from. ``whole_waves``: the last wave lasts as long as a
    full one. ``splits``: it may split k over SMs. ``store_bytes``: bytes streamed that writing one BF16 output costs
    as much as; above 2 where writing is slower than reading.
    """

    tiles: tuple[tuple[int, int], ...]
    whole_waves: bool
    splits: bool
    store_bytes: float
    source: str


_CHOSEN = "chosen on one half of the fitting rows, judged on the other (tools/choose_gemm.py)"
_HEIGHTS = ((16, 128), (32, 128), (64, 128), (128, 128))
# fmt: off
_CUBLAS = Kernel(tiles=_HEIGHTS, whole_waves=False, splits=True, store_bytes=2, source=_CHOSEN)
_BLOCK_SCALED = Kernel(tiles=_HEIGHTS, whole_waves=False, splits=False, store_bytes=4, source=_CHOSEN)
KERNELS: Mapping[tuple[str, str], Kernel] = MappingProxyType({
    ("trtllm", "bf16"): _CUBLAS,
    ("sglang", "bf16"): _CUBLAS,
    ("trtllm", "fp8"): Kernel(tiles=((64, 128),), whole_waves=False, splits=True, store_bytes=2, source=_CHOSEN),
    ("sglang", "fp8"): _BLOCK_SCALED,
    ("trtllm", "fp8_block"): _BLOCK_SCALED,
    ("sglang", "fp8_block"): _BLOCK_SCALED,
    ("trtllm", "nvfp4"): Kernel(tiles=((128, 256),), whole_waves=True, splits=False, store_bytes=4, source=_CHOSEN),
    ("sglang", "nvfp4"): Kernel(
        tiles=((128, 64), (128, 128), (128, 256)), whole_waves=True, splits=False, store_bytes=3, source=_CHOSEN,
    ),
})
# fmt: on


def gemm_s(
    m: ArrayLike,
    k: ArrayLike,
    n: ArrayLike,
    *,
    chip: Chip | str,
    fmt: Format | str,
    engine: str = "trtllm",
    bound: bool = False,
    transfer_from: str | None = None,
) -> NDArray[np.float64]:
    r"""Seconds of one linear layer of m tokens, k inputs and n outputs: BF16 in, BF16 out, multiplied in ``fmt``.

    The formula is this module's. ``fmt`` is bf16, fp8, fp8_block or nvfp4; ``engine`` is trtllm or sglang, whose
    kernels differ. ``bound=True`` is the roofline instead (no engine's number enters). ``transfer_from`` takes the
    fitted numbers of another chip, or of the ``universal`` set, with this chip's datasheet: a guess for a chip that
    nobody measured; ``tools/validate_gemm.py`` prints what such guesses are worth, and
    :py:func:`codesign_lib.cost.calibration.fitted` says what grows with the chip.

    Sizes broadcast and are whole and at least 1, in NVFP4 k a multiple of 16, else ValueError. So are refused: a format
    or engine without kernel (the bound takes any format), a chip without calibration, a ``Chip`` whose numbers differ
    from the calibrated one's.

    >>> t = gemm_s([1, 8192], 8192, 8192, chip="gb300", fmt="nvfp4")
    >>> bool((t > gemm_s([1, 8192], 8192, 8192, chip="gb300", fmt="nvfp4", bound=True)).all())
    True
    >>> gemm_s(1, 4096, 4096, chip="mi300x", fmt="bf16")
    Traceback (most recent call last):
    ValueError: gemm_s: MI300X has no calibrated trtllm bf16; calibrated: h100_sxm, h200_sxm, b200_sxm, b300_sxm,
    gb200, gb300, universal; allowed: bound=True (the roofline), or transfer_from=one of these
    """
    m, k, n = whole("gemm_s", m=m, k=k, n=n)
    common_shape("gemm_s", m=m, k=k, n=n)
    fmt, c = as_format(fmt), as_chip(chip)
    _check_engine(engine)
    if calibration.wants_bound("gemm_s", "gemm", engine, bound, transfer_from):
        return roofline.time_s(ops.linear(m, k, n, inputs=fmt, weights=fmt, outputs=BF16), c, fmt)
    kernel, numbers = _kernel(engine, fmt), _numbers(c, engine, fmt, transfer_from)
    _check_blocks(k, fmt)
    return form_s(m, k, n, chip=c, fmt=fmt, kernel=kernel, numbers=numbers)


class Parts(NamedTuple):
    """Seconds by part: ``launch_s + quantise_s + √(compute_s² + memory_s²)`` is the whole."""

    launch_s: NDArray[np.float64]
    quantise_s: NDArray[np.float64]
    compute_s: NDArray[np.float64]
    memory_s: NDArray[np.float64]


def gemm_parts_s(
    m: ArrayLike,
    k: ArrayLike,
    n: ArrayLike,
    *,
    chip: Chip | str,
    fmt: Format | str,
    engine: str = "trtllm",
    transfer_from: str | None = None,
) -> Parts:
    """The parts of :py:func:`gemm_s`, of one shape. A kernel alone, its inputs quantised: √(compute_s² + memory_s²).

    >>> p = gemm_parts_s(8192, 8192, 8192, chip="gb300", fmt="nvfp4")
    >>> total_s = p.launch_s + p.quantise_s + np.hypot(p.compute_s, p.memory_s)
    >>> bool(np.isclose(total_s, gemm_s(8192, 8192, 8192, chip="gb300", fmt="nvfp4")))
    True
    """
    m, k, n = whole("gemm_s", m=m, k=k, n=n)
    common_shape("gemm_s", m=m, k=k, n=n)
    m, k, n = np.broadcast_arrays(m, k, n)
    _check_engine(engine)
    fmt, c = as_format(fmt), as_chip(chip)
    _check_blocks(k, fmt)
    kernel, numbers = _kernel(engine, fmt), _numbers(c, engine, fmt, transfer_from)
    return Parts(np.full(m.shape, numbers["launch_s"])[()], *_parts(c, fmt, kernel, numbers)(m, k, n))


def form_s(
    m: ArrayLike,
    k: ArrayLike,
    n: ArrayLike,
    *,
    chip: Chip | str,
    fmt: Format | str,
    kernel: Kernel,
    numbers: Mapping[str, float],
) -> NDArray[np.float64]:
    """The form of this module with any kernel and numbers: what ``gemm_s`` evaluates and ``tools/calibrate.py`` fits.

    Sizes broadcast; they are taken as float64 and not checked. Absent numbers: no ``quantise_fraction`` leaves the
    quantisation pass out, no ``operand_bytes_per_s`` makes feeding free, a kernel that splits needs ``split_s``.
    """
    parts = _parts(as_chip(chip), as_format(fmt), kernel, numbers)

    def block(m: NDArray, k: NDArray, n: NDArray) -> NDArray:
        quantise, compute, memory = parts(m, k, n)
        return numbers["launch_s"] + quantise + np.sqrt(compute * compute + memory * memory)

    return in_blocks(block, m, k, n)


def _parts(c: Chip, fmt: Format, kernel: Kernel, numbers: Mapping[str, float]) -> Callable[..., tuple[NDArray, ...]]:
    """A function of (m, k, n) that gives seconds of quantising, computing and moving."""
    b, bandwidth = fmt.bytes_per_element, c.hbm_bytes_per_s
    stream = 1 / (numbers["memory_fraction"] * bandwidth)
    quantise = (BF16.bytes_per_element + b) / (numbers.get("quantise_fraction", np.inf) * bandwidth)
    rate = numbers["compute_fraction"] * c.peak_flops_per_s(fmt) / c.n_sms
    feed = numbers.get("operand_bytes_per_s", np.inf)
    tiles = [(x, y, max(2 * x * y / rate, b * (x + y) / feed)) for x, y in kernel.tiles]

    def parts(m: NDArray, k: NDArray, n: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        whole_s = shared_s = np.inf  # a K element: with at least one tile an SM, and with all SMs busy
        for x, y, tile_s in tiles:
            waves = np.ceil(m / x) * np.ceil(n / y) / c.n_sms
            at_least = np.ceil(waves) if kernel.whole_waves else np.maximum(waves, 1)
            whole_s = np.minimum(whole_s, at_least * tile_s)
            if kernel.splits:
                shared_s = np.minimum(shared_s, waves * tile_s)
        compute, inputs, outputs = whole_s * k, m * k, m * n
        if kernel.splits:
            compute = np.minimum(compute, shared_s * k + numbers["split_s"] + MERGE_BYTES * stream * outputs)
        memory = (b * (inputs + n * k) + kernel.store_bytes * outputs) * stream
        return quantise * inputs, compute, memory

    return parts


def _check_blocks(k: NDArray, fmt: Format) -> None:
    block = NVFP4.block_elements
    if fmt is NVFP4 and np.any(k % block):
        raise ValueError(
            f"gemm_s: k is {k[k % block != 0].flat[0]:.0f}; allowed in NVFP4: multiples of its block, {block}"
        )


def _check_engine(engine: str) -> None:
    if engine not in ENGINES:
        hint = calibration.NOT_A_KERNEL.get(engine, "")
        raise ValueError(f"gemm_s: engine is {engine!r}; allowed: {', '.join(ENGINES)}{hint}")


def _kernel(engine: str, fmt: Format) -> Kernel:
    if (engine, fmt.name) not in KERNELS:
        known = ", ".join(f for e, f in KERNELS if e == engine)
        raise ValueError(f"gemm_s: {engine} has no kernel in {fmt.name}; it has {known}")
    return KERNELS[engine, fmt.name]


def _numbers(chip: Chip, engine: str, fmt: Format, transfer_from: str | None) -> Mapping[str, float]:
    chip.peak_flops_per_s(fmt)  # refuses a chip without that format before its calibration is looked for
    calibration.needs("gemm_s", chip, "n_sms")
    return calibration.fitted("gemm_s", "gemm", chip, engine, fmt.name, transfer_from=transfer_from)
