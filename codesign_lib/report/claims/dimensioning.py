"""Tiles, waves, alignment and shards to the printed digit; calibrated GEMM times against measured ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from codesign_lib.cost import calibration, experts, kernels, tiling
from codesign_lib.report.claims import gemm, shapes
from codesign_lib.report.claims.pair import Pair, exact, measured
from codesign_lib.report.claims.roofline import ARTICLE
from codesign_lib.specs import hardware, published
from codesign_lib.specs.published import Claim

WAVES = "wave quantisation, ceil(C/S1) / ceil(C/S2): NVIDIA matrix multiplication guide"
A100 = "NVIDIA matrix multiplication guide, by way of stas00/ml-engineering"
BLOG24 = "TensorRT-LLM tech blog 24, MoE as Dense GEMM"
FMTS = ("bf16", "fp8", "nvfp4")
ASPECT = ((65536, 256), (16384, 1024), (8192, 2048), (4096, 4096), (2048, 8192), (1024, 16384), (256, 65536))
"""(k, n) with n·k = 2²⁴, from small n to large n."""
FFNS = ((4096, 256), (4096, 1024), (4096, 4096), (4096, 16384), (7168, 512), (7168, 2048))
STEPS = (512, 1792, 3584)


def waves() -> Iterator[Pair]:
    """Tiles and waves, and how one chip's waves compare with another's."""
    for tiles, value in ((148, 1.0), (152, 2.0), (296, 1.0), (304, 1.5), (3584, 1.042), (50000, 1.027)):
        what = f"{tiles:,} tiles: waves on 148 SMs over waves on 152"
        yield exact(f"waves/ratio/{tiles}", what, value, WAVES, partial(_wave_ratio, tiles), unit="×", quantum=1e-3)
    yield exact("waves/a100", "109 tiles on an A100: waves", 2, A100, partial(_waves_on, 109, "a100_sxm"))
    tiles = partial(tiling.n_tiles, 1792, 1792, tile=(256, 128))
    yield exact("waves/1792", "1792 × 1792 in tiles of 256×128", 98, A100, tiles)
    tiles = partial(tiling.n_tiles, 8192, 14336, tile=(128, 256))
    yield exact("waves/llama_8b", "Llama-8B MLP, 8192 × 14336 in tiles of 128×256", 3584, WAVES, tiles)


def _wave_ratio(tiles: int) -> float:
    return float(tiling.n_waves(tiles, 148) / tiling.n_waves(tiles, 152))


def _waves_on(tiles: int, chip: str) -> float:
    return float(tiling.n_waves(tiles, hardware.chip(chip).n_sms))


def shards() -> Iterator[Pair]:
    """Padding, and what tensor parallelism leaves a rank."""
    gpt = "hidden size of gpt-oss-120b's config.json; block scale layout of NVIDIA cuBLAS"
    yield exact("shards/2880", "2,880 padded to 128", 2944, gpt, partial(tiling.padded, 2880, 128))
    ours = partial(tiling.padding_waste, 2880, 128)
    yield exact("shards/2880/waste", "2,880 padded to 128: waste", 0.022, gpt, ours, quantum=1e-3)
    ours = partial(tiling.scale_waste, 2880, 2880)
    yield exact("shards/2880/scales", "2880 × 2880: waste of the scales", 0.022, gpt, ours, quantum=1e-3)
    wide = "expert widths of published configurations, cut for tensor parallelism"
    for size, ranks in ((1536, 8), (3072, 16), (18432, 32)):
        what = f"{size:,} over {ranks} ranks, modulo 128"
        yield exact(f"shards/{size}", what, 64, wide, partial(_left_over, size, ranks, 128))
    for size, value, thread in ((1856, 464, 36807), (704, 176, 49591)):
        source = f"github.com/vllm-project/vllm/pull/{thread}"
        ours = partial(tiling.per_rank, size, 4)
        yield exact(f"shards/{size}/tp4", f"{size:,} over 4 ranks", value, source, ours)
    tp6 = "github.com/local-inference-lab/vllm/pull/80"
    for multiple, value in ((32, 352), (128, 384)):
        ours = partial(tiling.per_rank, 2048, 6, multiple=multiple)
        yield exact(f"shards/2048/{multiple}", f"2,048 over 6 ranks, in {multiple}s", value, tp6, ours)
    yield exact("shards/2048/work", "2,048 over 6 ranks: 128s over 32s", 0.09, tp6, _more_expert_work, quantum=1e-2)
    ours = partial(_idle_experts, 256, 8)
    yield exact("shards/redundant", "256 experts, 8 a token, computed densely: idle", 0.969, BLOG24, ours, quantum=1e-3)


def _left_over(size: int, ranks: int, multiple: int) -> float:
    return float(tiling.per_rank(size, ranks)) % multiple


def _more_expert_work() -> float:
    return float(tiling.per_rank(2048, 6, multiple=128) / tiling.per_rank(2048, 6, multiple=32)) - 1


def _idle_experts(n_experts: int, n_chosen: int) -> float:
    return 1 - float(experts.active_experts(1, n_experts=n_experts, n_chosen=n_chosen)) / n_experts


def sm_counts() -> Iterator[Pair]:
    """The SM count that the steps of several n and k identify, against the chip's."""
    for name, n_sms in (("gb300", 152), ("gb200", 152), ("b200_sxm", 148), ("b300_sxm", 148)):
        chip = hardware.chip(name)
        yield exact(f"sm_counts/{name}", f"SMs of {chip}", n_sms, chip.source, partial(_best_sm_count, name))


def _best_sm_count(chip: str) -> float:
    found = shapes.sm_counts(chip, range(140, 165))
    return float(min(found, key=found.get))


def squares() -> Iterator[Pair]:
    """Square layers at 8,192 tokens, calibrated time against the measured one."""
    for engine, title in gemm.ENGINES.items():
        for fmt in FMTS:
            for h in gemm.SIZES:
                yield _layer(f"gemm_squares/{engine}/{fmt}/h{h}", f"{title} {fmt}, H = {h:,}", engine, fmt, h, h)


def aspect() -> Iterator[Pair]:
    """n·k = 2²⁴ at 8,192 tokens, calibrated time against the measured one."""
    for engine, title in gemm.ENGINES.items():
        for fmt in ("bf16", "nvfp4"):
            for k, n in ASPECT:
                what = f"{title} {fmt}, n × k = {n} × {k}"
                yield _layer(f"aspect/{engine}/{fmt}/n{n}", what, engine, fmt, k, n)


def _layer(key: str, what: str, engine: str, fmt: str, k: int, n: int) -> Pair:
    ours = partial(kernels.gemm_s, gemm.TOKENS, k, n, chip=shapes.CHIP, fmt=fmt, engine=engine)
    return measured(key, what, gemm.measured_s(engine, fmt, k, n), "s", gemm.SOURCE, ours)


def aspect_order() -> Iterator[Pair]:
    """NVFP4: the order of the throughputs from thin to square. SGLang's large n is left out: ours has it wrong."""
    for engine, title in gemm.ENGINES.items():
        for name, row in (("small n", ASPECT[:4]), ("large n", ASPECT[3:])):
            if (engine, name) != ("sglang", "large n"):
                k, n = np.array(row).T
                found = shapes.layer_flops_per_s(engine, "nvfp4", k, n)
                claim = Claim(
                    what=f"{title} nvfp4, thin to square, {name}, PFLOP/s", value=tuple(found.measured / 1e15), unit="",
                    source=gemm.SOURCE, kind="trend",
                )  # fmt: skip
                key = f"aspect_order/{engine}/{name.replace(' ', '_')}"
                yield Pair(key=key, claim=claim, ours=partial(tuple, (found.ours / 1e15).tolist()))


def ffns() -> Iterator[Pair]:
    """Up- and down-projection together, NVFP4 at 8,192 tokens."""
    for engine, title in gemm.ENGINES.items():
        for h, width in FFNS:
            found = shapes.ffn_flops_per_s(engine, "nvfp4", h, width)
            what = f"{title} nvfp4, FFN of H = {h:,}, H′ = {width:,}"
            key = f"ffns/{engine}/h{h}/{width}"
            yield measured(key, what, found.measured, "FLOP/s", gemm.SOURCE, partial(float, found.ours))


def figure4() -> Iterator[Pair]:
    """Where 80 % of the best is reached: the article's kernel against the tables, our module and our kernel."""
    for along, value in (("k", 3072), ("n", 2560)):
        for engine, title in gemm.ENGINES.items():
            for who in ("measured", "module", "kernel"):
                what = f"figure 4: 80 % along {along.upper()}, {title}, {who}"
                ours = partial(_reached, engine, along, who)
                yield measured(f"figure4/{along}/{engine}/{who}", what, value, "", ARTICLE, ours)


def _reached(engine: str, along: str, who: str) -> float:
    found = shapes.sweep(engine, "nvfp4", along)
    return shapes.reached(found.size, getattr(found, who))


def one_more() -> Iterator[Pair]:
    """One token more than a wave holds, 8192 × 8192 in NVFP4: time over time."""
    for engine, title in gemm.ENGINES.items():
        for m in STEPS:
            found = shapes.one_more(engine, m)
            what = f"{title} nvfp4, 8192 × 8192: {m + 1:,} tokens over {m:,}"
            yield measured(
                f"one_more/{engine}/m{m}", what, found.measured, "×", gemm.SOURCE, partial(float, found.ours)
            )


def misaligned() -> Iterator[Pair]:
    """Sizes that the tables lack: our rate, which takes every size for aligned, against single measurements."""
    table = published.table("misaligned")
    source = table.header["source"]
    for m, k, n, value in zip(*(table[c] for c in ("m", "k", "n", "bf16_flops_per_s")), strict=True):
        what = f"Hopper bf16, m × k × n = {m:.0f} × {k:.0f} × {n:.0f}"
        ours = partial(_rate, m, k, n)
        yield measured(f"misaligned/{m:.0f}x{k:.0f}x{n:.0f}", what, value, "FLOP/s", source, ours)
    search = "Anthony et al., arXiv 2401.14489, and stas00/ml-engineering: H100, H = 4,096, H′ searched"
    for width, value in ((10922, 272.7 / 395.0), (10944, 398.4 / 395.0)):
        what = f"H100 bf16, FFN of H = 4,096: rate at H′ = {width:,} over that at 11,008"
        yield measured(f"misaligned/ffn/{width}", what, value, "×", search, partial(_ffn_ratio, width, 11008))


def _rate(m: float, k: float, n: float) -> float:
    return 2 * m * k * n / float(kernels.gemm_s(m, k, n, chip="h100_sxm", fmt="bf16"))


def _ffn_ratio(width: int, other: int) -> float:
    on = {"chip": "h100_sxm", "fmt": "bf16"}
    w = np.array([width, other])
    took = kernels.gemm_s(gemm.TOKENS, 4096, 2 * w, **on) + kernels.gemm_s(gemm.TOKENS, w, 4096, **on)
    rate = w / took
    return float(rate[0] / rate[1])


def moe_dense() -> Iterator[Pair]:
    """Blog 24: the grouped layer against the law fitted to it, the dense one against our dense products."""
    table, law = published.table("moe_dense_b200"), calibration.find("moe_layer", "b200_sxm", "trtllm", "nvfp4")
    for m, dense, grouped in zip(table["m"], table["dense_s"], table["moe_s"], strict=True):
        ours = partial(experts.moe_law_s, m, n_experts=256, n_chosen=8, numbers=law.numbers)
        what = f"B200, 256 experts, {m:.0f} tokens"
        yield measured(f"moe_dense/grouped/m{m:.0f}", f"{what}, grouped (fitted)", grouped, "s", BLOG24, ours)
        for engine, title in gemm.ENGINES.items():
            key = f"moe_dense/{engine}/m{m:.0f}"
            ours = partial(shapes.dense_moe_s, engine, m)
            yield measured(key, f"{what}, dense, by {title}'s numbers", dense, "s", BLOG24, ours)


def stacks() -> Iterator[Pair]:
    """Depth against width at equal parameters, 8,192 tokens in NVFP4: GEMM time over GEMM time."""
    for engine, title in gemm.ENGINES.items():
        value = shapes.measured_stack_s(engine, 4096, 128) / shapes.measured_stack_s(engine, 8192, 32)
        what = f"{title} nvfp4, 128 layers of H = 4,096 over 32 of 8,192"
        yield measured(f"stacks/{engine}", what, value, "×", gemm.SOURCE, partial(_deep_over_wide, engine))


def _deep_over_wide(engine: str) -> float:
    return float(shapes.stack_s(engine, 4096, 128) / shapes.stack_s(engine, 8192, 32))
