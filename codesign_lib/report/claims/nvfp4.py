"""What NVFP4 costs in error and bytes and buys in time, against published figures and measured rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np

from codesign_lib.cost import gain, kernels, roofline, tiling
from codesign_lib.lowbit import nvfp4, recipes
from codesign_lib.lowbit.error_law import block_relative_mse, relative_mse
from codesign_lib.report.claims import errors, gemm
from codesign_lib.report.claims.pair import Pair, measured
from codesign_lib.specs import formats, models, published
from codesign_lib.specs.published import Claim

QUAD = "the same integral by a second program: scipy 1.17.1, integrate.quad within integrate.quad; nobody printed it"
QUARTET = "Quartet II, arXiv:2601.22813, notebooks/unbiasedness.ipynb at 8776a90"
MR_GPTQ = "Bridging the Gap Between Promise and Performance for Microscaling FP4 Quantization, arXiv:2509.23202"
LAYOUT = "NVIDIA cuBLAS documentation, block scaling factors layout, counted by hand"
LADDER = {
    8: (7.01118476e-3, 6.00713154e-3),
    16: (8.86311722e-3, 8.31542132e-3),
    32: (1.02204489e-2, 1.05122126e-2),
    64: (1.11737877e-2, 1.25936528e-2),
    128: (1.18536234e-2, 1.46269171e-2),
}
"""Relative squared error of a block of n, Gaussian and Laplace."""
SPEEDS = ((1, 8192), (16, 8192), (64, 16384), (512, 8192), (8192, 8192), (8192, 16384))
"""(tokens, H) of the square layers whose gain is a claim."""


def _exact(key: str, what: str, value: float, source: str, ours: Callable[[], float], **more: object) -> Pair:
    claim = Claim(what=what, value=value, source=source, kind="exact", **({"unit": ""} | more))
    return Pair(key=key, claim=claim, ours=ours)


def _trend(key: str, what: str, value: float, source: str, ours: Callable[[], float], unit: str = "") -> Pair:
    return Pair(key=key, claim=Claim(what=what, value=value, unit=unit, source=source, kind="trend"), ours=ours)


def error_law() -> Iterator[Pair]:
    """Relative squared error of a block with the ideal scale, by two programs of the same integral."""
    for n, values in LADDER.items():
        for name, value in zip(("gaussian", "laplace"), values, strict=True):
            ours = partial(block_relative_mse, name, n)
            what = f"error of a block of {n}, {name} (theirs: a second program)"
            yield _exact(f"error_law/{name}/n{n}", what, value, QUAD, ours, rtol=1e-7)


def recipe_errors() -> Iterator[Pair]:
    """Relative squared error on Gaussian numbers, published with one decimal."""
    printed = {
        "nearest": ("to nearest", 9.0e-3, partial(errors.relative_error, "NVFP4", "Gaussian")),
        "four_over_six": ("four over six", 7.6e-3, partial(errors.relative_error, "NVFP4, four over six", "Gaussian")),
        "square": ("one scale for 16 × 16", 12.4e-3, partial(errors.relative_error, "NVFP4, a scale for 16 × 16", "Gaussian")),  # noqa: E501
        "stochastic": ("stochastic rounding", 23.5e-3, _stochastic_error),
    }  # fmt: skip
    for key, (what, value, ours) in printed.items():
        yield _exact(f"recipe_errors/{key}", f"error on a Gaussian, {what}", value, QUARTET, ours, quantum=1e-4)


@cache
def _stochastic_error() -> float:
    """Mean of twelve draws, good to 0.02e-3: one draw scatters by as much as the printed digit."""
    found = []
    for seed in range(12):
        x = np.random.default_rng(seed).standard_normal((1024, 1024)).astype(np.float32)
        found.append(relative_mse(x, nvfp4.dequantise(recipes.stochastic(x, seed=seed))))
    return float(np.mean(found))


def rotation() -> Iterator[Pair]:
    """A rotation costs NVFP4 accuracy and gives MXFP4 some: loss of all models read, and our error with outliers.

    Of single models the sign is not claimed: in MXFP4 a rotation lowers the loss of some and raises that of others.
    """
    rows = published.table("fp4_recovery")
    for key, plain, turned, base, other in (
        ("nvfp4", "NVFP4 RTN", "NVFP4 RTN, Hadamard 16", "NVFP4", "NVFP4, rotated by 16"),
        ("mxfp4", "MXFP4 RTN", "MXFP4 RTN, Hadamard 32", "MXFP4, even", "MXFP4, even, rotated by 32"),
    ):
        before, after = (1 - rows.where(method=m)["recovery_fraction"] for m in (plain, turned))
        more = f"loss of {len(before)} models ({(after > before).sum()} lose more); ours: error"
        what = f"{key.upper()} rotated over plain, {more}"
        yield _trend(f"rotation/{key}", what, float(after.sum() / before.sum()), f"{MR_GPTQ}, Table 10",
                     partial(_error_ratio, other, base), unit="×")  # fmt: skip


def _error_ratio(method: str, base: str) -> float:
    name = "Gaussian, 0.1 % × 30"
    return errors.relative_error(method, name) / errors.relative_error(base, name)


def scale_rounding() -> Iterator[Pair]:
    """What rounding the scale adds to the error: the paper gives one number a format, ours hangs on the numbers."""
    for fmt, method, n, value in (("E4M3", "NVFP4", 16, 1.10), ("E8M0", "MXFP4, floor", 32, 1.40)):
        for name in ("Gaussian", "Laplace"):
            what = f"error with {fmt} scales over ideal ones, {name}"
            yield measured(f"scale_rounding/{fmt.lower()}/{name.lower()}", what, value, "×", MR_GPTQ,
                           partial(_rounding_cost, method, name, n))  # fmt: skip


def _rounding_cost(method: str, distribution: str, n: int) -> float:
    return errors.relative_error(method, distribution) / block_relative_mse(distribution.lower(), n)


def storage() -> Iterator[Pair]:
    """Bits an element, scales counted, and padded as tensor cores read them."""
    for name, bits in (("nvfp4", 4.5), ("mxfp4", 4.25), ("mxfp8", 8.25)):
        fmt = formats.as_format(name)
        yield _exact(f"storage/{name}", f"{fmt}, bits an element", bits, fmt.source, partial(_bits, name))
    for rows, k, bits, quantum in ((1, 4096, 68, 1), (576, 1536, 4.556, 1e-3), (176, 2816, 4.727, 1e-3)):
        what = f"{rows} × {k:,} in NVFP4, scales padded, bits an element (theirs: by hand)"
        yield _exact(f"storage/padded/{rows}x{k}", what, bits, LAYOUT, partial(_padded_bits, rows, k), quantum=quantum)


def _bits(fmt: str) -> float:
    return 8 * formats.as_format(fmt).bytes_per_element


def _padded_bits(rows: int, k: int) -> float:
    return 4 + 8 * float(tiling.scale_bytes(rows, k)) / (rows * k)


def nvfp4_questions() -> Iterator[Pair]:
    """What users asked in public threads about NVFP4's speed. The threads hold the question; the answers are worked out
    by hand from bytes.
    """
    for gained, share in ((1.3, 0.53), (1.35, 0.59), (1.4, 0.65)):
        what = f"share of a step that {gained}× over FP8 stands for (theirs: by hand)"
        source = f"(1 − 1/{gained}) / (1 − 0.5625) by hand; flashinfer pull request 2268 saw 1.3 to 1.4"
        yield _exact(f"nvfp4_questions/share/{gained}", what, share, source, partial(_reading_share, gained),
                     quantum=0.01)  # fmt: skip
    head = "by hand, 2 and 0.5625 bytes an element; the head is Qwen3.6-27B's; asked in sglang issue 36020"
    for fmt, value in (("bf16", 2.543e9), ("nvfp4", 0.715e9)):
        what = f"output head of 248,320 × 5,120 in {fmt} (theirs: by hand)"
        yield _exact(f"nvfp4_questions/head/{fmt}", what, value, head, partial(head_bytes, fmt), unit="B",
                     quantum=1e6)  # fmt: skip
    what = "what a BF16 head adds to a decode step at 8 TB/s (theirs: by hand)"
    yield _exact("nvfp4_questions/head/time", what, 0.23e-3, head, _head_s, unit="s", quantum=1e-5)


def _reading_share(gained: float) -> float:
    return float(gain.reading_share(gained))


def head_bytes(fmt: str, n_vocab: int = 248_320, d_model: int = 5120) -> float:
    """Bytes of an output head in a format.

    >>> f"{head_bytes('nvfp4') / 1e9:.3f} GB"
    '0.715 GB'
    """
    return n_vocab * d_model * formats.as_format(fmt).bytes_per_element


def _head_s() -> float:
    extra = roofline.Work(flops=0.0, bytes=head_bytes("bf16") - head_bytes("nvfp4"))
    return float(roofline.memory_s(extra, "gb300"))


def nvfp4_speed() -> Iterator[Pair]:
    """Measured gain of NVFP4 over BF16 and FP8, square layers on GB300, both engines."""
    for engine, title in gemm.ENGINES.items():
        for before in ("bf16", "fp8"):
            for m, h in SPEEDS:
                value = measured_speedup(engine, before, m, h)
                what = f"{title}, NVFP4 over {before}, {m:,} tokens, H = {h:,}"
                yield measured(f"nvfp4_speed/{engine}/{before}/m{m}/h{h}", what, value, "×", gemm.SOURCE,
                               partial(_speedup, engine, before, m, h))  # fmt: skip


def measured_speedup(engine: str, before: str, m: float, h: float) -> float:
    """Measured time of a square layer in a format over that in NVFP4, GB300.

    >>> f"{measured_speedup('sglang', 'fp8', 16, 8192):.2f}"
    '1.46'
    """
    return float(gemm.measured_s(engine, before, h, h, m=m) / gemm.measured_s(engine, "nvfp4", h, h, m=m))


def _speedup(engine: str, before: str, m: int, h: int) -> float:
    return float(gain.gemm(m, h, h, chip="gb300", engine=engine, before=before).speedup)


def best_layer() -> Iterator[Pair]:
    """The most that a layer was said to gain over BF16 on B200, held against ours of Llama-70B's layers."""
    yield measured("best_layer/b200", "a layer on B200, best over BF16 (ours: Llama-3.1-70B's)", 3.6, "×", MR_GPTQ,
                   _best_layer)  # fmt: skip


@cache
def _best_layer() -> float:
    layers = [x for x in models.model("llama_3_1_70b").linear_layers() if x.kind != "head"]
    m, k, n = 2.0 ** np.arange(15)[:, None], [x.k for x in layers], [x.n for x in layers]
    found = [gain.gemm(m, k, n, chip="b200_sxm", engine=e, before="bf16").speedup for e in kernels.ENGINES]
    return float(np.max(found))


CHECKPOINTS_RATIO = 385 / 642
"""DeepSeek-R1-0528, NVFP4 checkpoint over FP8, in bytes."""


def checkpoints() -> Iterator[Pair]:
    """The size of a checkpoint, from which layers it keeps high."""
    source = "Triton tutorial on DeepSeek-R1-0528: 642 against 385"
    yield measured("checkpoints/deepseek_r1", "DeepSeek-R1, NVFP4 checkpoint over FP8", CHECKPOINTS_RATIO, "×", source,
                   _deepseek_ratio)  # fmt: skip


def _deepseek_ratio() -> float:
    """Routed and shared experts and dense FFNs in NVFP4, the rest BF16, over all in FP8 but embedding and head."""
    count = models.model("deepseek_r1").n_params_by_part
    four_bits = sum(count[part] for part in ("experts", "shared experts", "ffn"))
    outer = count["embedding"] + count["head"]
    total = models.model("deepseek_r1").n_params
    after = 0.5625 * four_bits + 2 * (total - four_bits)
    return after / (1 * (total - outer) + 2 * outer)


def kv_cache() -> Iterator[Pair]:
    """What an NVFP4 cache saves over FP8: said to be up to half."""
    source = "NVIDIA, NVFP4 KV Cache, 2025-12-08 (developer.nvidia.com/blog): up to 50 %"
    yield measured("kv_cache/saved", "share of an FP8 cache that NVFP4 saves", 0.50, "", source, _saved)


def _saved() -> float:
    slope = {f: models.model("qwen3_32b").kv_bytes_per_token(f) for f in ("fp8", "nvfp4")}
    return float(1 - slope["nvfp4"] / slope["fp8"])
