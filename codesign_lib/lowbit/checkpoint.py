r"""NVFP4 as others store it: names, the two conventions of the global scale, fused layers, the GPU's scale layout.

One number is stored two ways, and both are called a scale:

* ModelOpt's ``weight_scale_2`` is G = amax/2688, which *multiplies*: :math:`x = v\,s\,G`;
* compressed-tensors' ``weight_global_scale`` is E = 1/G = 2688/amax, which *divides*: :math:`x = v\,s/E`.

Taking one for the other is wrong by :math:`1/G^2`. A number does not say which it is, so here a name always does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.lowbit import blocks
from codesign_lib.lowbit.nvfp4 import BLOCK, Quantised, as_quantised

MODELOPT_NAMES = ("weight", "weight_scale", "weight_scale_2")
COMPRESSED_TENSORS_NAMES = ("weight_packed", "weight_scale", "weight_global_scale")
_TILE_ROWS, _TILE_COLUMNS = 128, 4


def encode_from_decode(decode_scale: float) -> np.float32:
    """E = 1/G in float32: ModelOpt's ``weight_scale_2`` as compressed-tensors' ``weight_global_scale``.

    >>> float(encode_from_decode(0.5)), float(decode_from_encode(2.0))
    (2.0, 0.5)
    """
    return _reciprocal("encode_from_decode", "decode_scale", decode_scale)


def decode_from_encode(encode_scale: float) -> np.float32:
    """G = 1/E in float32, the way back. A checkpoint's E of 0 (an expert never calibrated) raises ValueError."""
    return _reciprocal("decode_from_encode", "encode_scale", encode_scale)


def to_modelopt(q: Quantised) -> dict[str, NDArray]:
    """Tensors under ModelOpt's names: packed weight, E4M3 codes, G (float32 scalar, multiplies).

    >>> from codesign_lib.lowbit import nvfp4
    >>> {k: v.shape for k, v in to_modelopt(nvfp4.quantise(np.ones((2, 32)))).items()}
    {'weight': (2, 16), 'weight_scale': (2, 2), 'weight_scale_2': ()}
    """
    as_quantised("to_modelopt", q)
    return dict(zip(MODELOPT_NAMES, (q.packed, q.scales, np.asarray(q.global_scale, np.float32)), strict=True))


def to_compressed_tensors(q: Quantised) -> dict[str, NDArray]:
    """Tensors under compressed-tensors' names: packed weight, E4M3 codes, E (float32 of shape (1,), divides)."""
    same = as_quantised("to_compressed_tensors", q).variant == "compressed_tensors"
    encode_scale = q.globals().encode_scale if same else encode_from_decode(q.global_scale)
    return dict(zip(COMPRESSED_TENSORS_NAMES, (q.packed, q.scales, np.asarray([encode_scale])), strict=True))


def from_modelopt(tensors: Mapping[str, ArrayLike]) -> Quantised:
    """The tensor that ModelOpt's three names hold; other names raise ValueError, and so does a scale that is NaN.

    Scales may be uint8 codes or any one-byte type that holds them.
    """
    packed, scales, scale = _named("from_modelopt", tensors, MODELOPT_NAMES)
    return _quantised(packed, scales, float(_single("from_modelopt", "weight_scale_2", scale)), "modelopt")


def from_compressed_tensors(tensors: Mapping[str, ArrayLike]) -> Quantised:
    """The tensor that compressed-tensors' three names hold; other names raise ValueError, and so does a NaN scale."""
    packed, scales, scale = _named("from_compressed_tensors", tensors, COMPRESSED_TENSORS_NAMES)
    encode_scale = _single("from_compressed_tensors", "weight_global_scale", scale)
    decode = decode_from_encode(encode_scale)
    amax = 2688.0 / float(encode_scale)
    if amax == np.float32(amax):  # a float32 stands for a tensor's own amax, from which E would be computed anew
        amax = float(np.nextafter(amax, np.inf))
    return _quantised(packed, scales, float(decode), "compressed_tensors", amax)


def shared_amax(*tensors: ArrayLike) -> float:
    """The amax of several tensors together, to quantise each with where a kernel has one G for all: q, k, v; gate, up.

    Each expert of a layer has its own G. All zeros give 0, which ``quantise`` takes for tensors that are all zeros.

    >>> shared_amax(np.array([1.0]), np.array([-3.0]))
    3.0
    """
    if not tensors:
        raise ValueError("shared_amax: no tensors; allowed: at least one")
    return float(max(blocks.amax("shared_amax", blocks.as_real("shared_amax", t)) for t in tensors))


def fuse(parts: Sequence[Quantised]) -> Quantised:
    """Rows of several tensors as one, for q/k/v, or gate/up of one dense layer or of one expert.

    There is one global scale in the result, so parts with different ones raise ValueError: picking any would scale the
    others' values by the ratio. Quantise them again with ``amax=shared_amax(…)``.

    >>> from codesign_lib.lowbit import nvfp4
    >>> a, b = np.ones((1, 16)), np.full((1, 16), 2.0)
    >>> fuse([nvfp4.quantise(a), nvfp4.quantise(b)])
    Traceback (most recent call last):
    ValueError: fuse: part 1 has global_scale 0.000744048, part 0 has 0.000372024; allowed: one shared, ...
    >>> fuse([nvfp4.quantise(t, amax=shared_amax(a, b)) for t in (a, b)]).shape
    (2, 16)
    """
    if not isinstance(parts, Sequence) or not parts:
        raise ValueError(f"fuse: parts is {parts!r:.40}; allowed: a list of at least one")
    first = as_quantised("fuse: part 0", parts[0])
    for i, part in enumerate(parts):
        as_quantised(f"fuse: part {i}", part)
        if (part.global_scale, part.amax) != (first.global_scale, first.amax):
            raise ValueError(
                f"fuse: part {i} has global_scale {part.global_scale:g}, part 0 has {first.global_scale:g}; "
                "allowed: one shared, so quantise every part with amax=shared_amax(...)"
            )
        if (part.variant, part.scale_max, part.shape[1:]) != (first.variant, first.scale_max, first.shape[1:]):
            raise ValueError(
                f"fuse: part {i} has another variant, scale_max or row shape than part 0; allowed: the same"
            )
    return Quantised(
        packed=np.concatenate([p.packed for p in parts]),
        scales=np.concatenate([p.scales for p in parts]),
        global_scale=first.global_scale,
        amax=first.amax,
        shape=(sum(p.shape[0] for p in parts), *first.shape[1:]),
        variant=first.variant,
        scale_max=first.scale_max,
    )


def swizzle(scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    r"""Block scales (rows, K/16) in the order that tensor cores read: flat, zeros up to 128 rows and 4 columns.

    .. math:: \text{offset}(r, c) = \left(\left(\lfloor r/128 \rfloor \lceil C/4 \rceil + \lfloor c/4 \rfloor\right) 32
              + r \bmod 32\right) 16 + \lfloor (r \bmod 128)/32 \rfloor\, 4 + c \bmod 4

    Source: NVIDIA cuBLAS documentation, block scaling factors layout.

    >>> flat = swizzle(np.arange(8, dtype=np.uint8).reshape(2, 4))
    >>> flat.shape, flat[:4].tolist(), flat[16:20].tolist()
    ((512,), [0, 1, 2, 3], [4, 5, 6, 7])
    """
    scales = np.asarray(scales)
    if scales.ndim != 2 or scales.dtype.itemsize != 1:
        raise ValueError(f"swizzle: scales is {scales.dtype} of shape {scales.shape}; allowed: bytes (rows, blocks)")
    rows, columns = _padded(*scales.shape)
    filled = np.zeros((rows, columns), dtype=scales.dtype)
    filled[: scales.shape[0], : scales.shape[1]] = scales
    tiles = filled.reshape(rows // _TILE_ROWS, 4, 32, columns // _TILE_COLUMNS, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-1)


def unswizzle(flat: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
    """Block scales (rows, columns) out of the tensor cores' order, padding dropped. A wrong length raises ValueError.

    >>> scales = np.arange(10, dtype=np.uint8).reshape(2, 5)
    >>> bool((unswizzle(swizzle(scales), 2, 5) == scales).all())
    True
    """
    flat = np.asarray(flat).reshape(-1)
    for name, n in (("rows", rows), ("columns", columns)):
        if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 0:
            raise ValueError(f"unswizzle: {name} is {n!r}; allowed: a whole number of at least 0")
    padded_rows, padded_columns = _padded(rows, columns)
    if flat.size != padded_rows * padded_columns:
        raise ValueError(
            f"unswizzle: {flat.size} scales for ({rows}, {columns}); allowed: {padded_rows * padded_columns}"
        )
    tiles = flat.reshape(padded_rows // _TILE_ROWS, padded_columns // _TILE_COLUMNS, 32, 4, 4)
    return np.ascontiguousarray(tiles.transpose(0, 3, 2, 1, 4).reshape(padded_rows, padded_columns)[:rows, :columns])


def _padded(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // _TILE_ROWS) * _TILE_ROWS, -(-columns // _TILE_COLUMNS) * _TILE_COLUMNS


def _reciprocal(subject: str, name: str, value: float) -> np.float32:
    number = blocks.is_number(value)
    with np.errstate(over="ignore", divide="ignore"):
        single = np.float32(value if number else np.nan)
        found = np.float32(1) / single
    if not (single > 0 and 0 < found < np.inf):
        shown = float(single) if number else value
        raise ValueError(f"{subject}: {name} is {shown!r}; allowed: above 0, with a finite reciprocal")
    return found


def _named(subject: str, tensors: Mapping[str, ArrayLike], names: tuple[str, ...]) -> list[NDArray]:
    if not isinstance(tensors, Mapping) or set(tensors) != set(names):
        given = ", ".join(sorted(map(str, tensors))) if isinstance(tensors, Mapping) else f"those of {tensors!r:.40}"
        raise ValueError(f"{subject}: names are {given}; allowed: exactly {', '.join(names)}")
    return [np.asarray(tensors[name]) for name in names]


def _single(subject: str, name: str, value: NDArray) -> np.float32:
    if (
        value.size != 1
        or value.dtype.kind not in "iuf"
        or not 0 < (single := np.float32(value.reshape(-1)[0])) < np.inf
    ):
        raise ValueError(f"{subject}: {name} is {value.tolist()!r}; allowed: one finite number above 0")
    return single


def _quantised(packed: NDArray, scales: NDArray, decode: float, variant: str, amax: float | None = None) -> Quantised:
    if not scales.ndim:
        raise ValueError("weight_scale has no axis; allowed: one scale a block of 16")
    if scales.dtype.itemsize == 1:  # ml_dtypes' float8_e4m3fn holds the same bytes
        scales = scales.view(np.uint8)
    return Quantised(
        packed=packed,
        scales=scales,
        global_scale=decode,
        amax=2688.0 * decode if amax is None else amax,
        shape=(*packed.shape[:-1], scales.shape[-1] * BLOCK),
        variant=variant,
    )
