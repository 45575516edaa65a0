"""What attention, experts and communication are said to cost, against formulas, kernels and measured tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

from codesign_lib.cost import attention_kernels, collectives, latent_kernels, moe_kernels
from codesign_lib.cost.ops import attention, moe
from codesign_lib.report.claims.pair import Pair, measured
from codesign_lib.specs import published
from codesign_lib.specs.published import Claim

ARTICLE = (
    "NVIDIA, Co-designing AI model attention for fast, interactive long-context inference, 2026-07-31 "
    "(developer.nvidia.com/blog)"
)
LADDER = "Hardware-Efficient Attention for Fast Decoding, arXiv:2505.21487"
LIMIT = "Insights into DeepSeek-V3, arXiv:2505.09343"
TABLES = "aiconfigurator-core 0.12.0, sampled in data/*.csv"
FAR = 10**13
"""A context long enough that the bytes of queries and outputs vanish."""


def ladder() -> Iterator[Pair]:
    """FLOP a byte of decoding with a 16-bit cache: from one query head a cached element to 128."""
    no_rope = 1e-9  # the paper leaves the rotary part out; with it the same division by hand
    rungs = {
        "mha": (1.0, 0.0, "MHA", LADDER, partial(_intensity, 64, 64)),
        "gqa8": (8.0, 0.0, "GQA, 8 query heads a key-value head", LADDER, partial(_intensity, 64, 8)),
        "mla": (256.0, 1.0, "MLA, 128 heads, without rotary part", LADDER,
                partial(_latent_intensity, 128, 512, no_rope)),
        "mla_rope": (241.8, 0.1, "MLA, 128 heads", "2·128·(2·512 + 64) / (2·(512 + 64))",
                     partial(_latent_intensity, 128, 512, 64)),
        "gla": (128.0, 1.0, "GLA-2: 128 heads, two latents of half the rank, without rotary part", LADDER,
                partial(_latent_intensity, 64, 256, no_rope)),
        "gla_rope": (115.2, 0.1, "GLA-2: 128 heads, two latents of half the rank", "2·64·(2·256 + 64) / (2·(256 + 64))",
                     partial(_latent_intensity, 64, 256, 64)),
        "gta8": (15.06, 0.01, "GTA, 8 query heads a key-value head", f"{LADDER}: (8 + ½) d cached a token, by hand",
                 _tied_intensity),
    }  # fmt: skip
    for key, (value, quantum, what, source, ours) in rungs.items():
        claim = Claim(what=what, value=value, unit="FLOP/B", source=source, kind="exact", quantum=quantum)
        yield Pair(key=f"ladder/{key}", claim=claim, ours=ours)


def _intensity(n_heads: int, n_kv_heads: int, kv: str = "bf16") -> float:
    return float(attention.decode(FAR, n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=128, kv=kv).intensity)


def _latent_intensity(n_heads: int, rank: int, rope: float) -> float:
    return float(attention.latent_decode(FAR, n_heads=n_heads, kv_rank=rank, d_rope=rope).intensity)


def _tied_intensity() -> float:
    """Keys are the values but for a rotary half that all 8 key-value heads share: (8 + ½) d a token, not 2·8 d."""
    return _intensity(64, 8) * 2 * 8 / 8.5


def attention_article() -> Iterator[Pair]:
    """The article's attention formulas, and its statements against measured kernels."""
    for groups in (1, 4, 8, 16):
        claim = Claim(what=f"decode intensity at FP8, G = {groups}", value=2.0 * groups, unit="FLOP/B", source=ARTICLE,
                      kind="exact")  # fmt: skip
        yield Pair(key=f"attention_article/decode/g{groups}", claim=claim, ours=partial(_intensity, groups, 1, "fp8"))
    prompt = dict(n_heads=64, n_kv_heads=8, d_head=128, n_batch=4, causal=False, kv="fp8", activations="fp8")
    for part, value in (("flops", 4.0 * 4 * 64 * 8192**2 * 128), ("bytes", 2.0 * 4 * 8 * 128 * 8192 * 9)):
        claim = Claim(what=f"prefill of 4 × 8,192 tokens, {part}, not causal", value=value, unit="FLOP" if part == "flops" else "B", source=ARTICLE, kind="exact")  # fmt: skip  # noqa: E501
        yield Pair(key=f"attention_article/prefill/{part}", claim=claim, ours=partial(_prefill, part, prompt))
    claim = Claim(what="exponentials, head size 256 over 64", value=1.0, unit="", source=ARTICLE, kind="exact")
    yield Pair(key="attention_article/softmax", claim=claim, ours=_exps_ratio)
    # the article says that a head of 64 pays for 128: not so when decoding, partly in prefill
    for chip in ("gb300", "h200_sxm"):
        value = _decode_rows(chip, d_head=64) / _decode_rows(chip, d_head=128)
        yield measured(f"attention_article/head64/decode/{chip}", f"decode on {chip}, head size 64 over 128",
                       value, "×", TABLES, partial(_head_ratio, chip))  # fmt: skip
    for chip in ("gb200", "gb300"):
        value = _prefill_rows(chip, 64) / _prefill_rows(chip, 128)
        yield measured(f"attention_article/head64/prefill/{chip}", f"prefill on {chip}, head size 64 over 128",
                       value, "×", TABLES, partial(_prefill_head_ratio, chip))  # fmt: skip
    value = _decode_rows("gb300", n_kv_heads=8) / _decode_rows("gb300", n_kv_heads=4)
    yield measured("attention_article/doubled_g", "decode on gb300, 64 heads, G = 8 over 16", value, "×", TABLES,
                   _group_ratio)  # fmt: skip
    value = _prefill_rows("gb200", 128) / _prefill_rows("gb300", 128)
    yield measured("attention_article/third_roof", "prefill of 16,384 tokens in BF16, gb200 over gb300", value, "×",
                   TABLES, _chip_ratio)  # fmt: skip
    source = "LMSYS, SGLang on GB300 for long contexts, 2026 (github.com/lm-sys/lm-sys.github.io): 277 against 205 ms"
    yield measured("attention_article/third_roof_128k", "DeepSeek-R1's prefill of 131,072 in FP8, gb200 over gb300",
                   277 / 205, "×", source, _latent_chip_ratio)  # fmt: skip
    for chip, value in (("gb200", 0.277), ("gb300", 0.205)):
        yield measured(f"attention_article/prefill_128k/{chip}", f"DeepSeek-R1's prefill of 131,072 in FP8, {chip}",
                       value, "s", source, partial(_latent_128k, chip))  # fmt: skip


def _prefill(part: str, prompt: dict) -> float:
    return float(getattr(attention.prefill(8192, **prompt), part))


def _exps_ratio() -> float:
    small, large = (attention.prefill(4096, n_heads=64, n_kv_heads=8, d_head=d).exps for d in (64, 256))
    return float(large / small)


@cache
def _heads() -> dict[tuple, float]:
    t = published.table("attention_heads").where(kv_fmt="bf16")
    keys = zip(*(t[c].tolist() for c in ("chip", "n_heads", "n_kv_heads", "d_head")), strict=True)
    return dict(zip(keys, t["latency_s"].tolist(), strict=True))


def _decode_rows(chip: str, *, n_kv_heads: int = 8, d_head: int = 128) -> float:
    """Measured: TensorRT-LLM, batch 8 of 32,768 tokens, 64 query heads."""
    return _heads()[chip, 64, n_kv_heads, d_head]


def _decode_ours(chip: str, *, n_kv_heads: int = 8, d_head: int = 128) -> float:
    how = dict(n_heads=64, n_kv_heads=n_kv_heads, d_head=d_head, n_batch=8, chip=chip, fmt="bf16", repeated=True)
    return float(attention_kernels.attention_decode_s(32_768, **how))


def _head_ratio(chip: str) -> float:
    return _decode_ours(chip, d_head=64) / _decode_ours(chip, d_head=128)


def _group_ratio() -> float:
    return _decode_ours("gb300", n_kv_heads=8) / _decode_ours("gb300", n_kv_heads=4)


def _prefill_rows(chip: str, d_head: int) -> float:
    """Measured: TensorRT-LLM, one prompt of 16,384 tokens, 64 query heads on 8, BF16."""
    t = published.table("prefill_lengths").where(chip=chip, fmt="bf16", n_kv_heads=8.0, n_tokens=16_384.0)
    return float(t.where(d_head=float(d_head))["latency_s"][0])


def _prefill_ours(chip: str, d_head: int) -> float:
    how = dict(n_heads=64, n_kv_heads=8, d_head=d_head, chip=chip, fmt="bf16")
    return float(attention_kernels.attention_prefill_s(16_384, **how))


def _prefill_head_ratio(chip: str) -> float:
    return _prefill_ours(chip, 64) / _prefill_ours(chip, 128)


def _chip_ratio() -> float:
    return _prefill_ours("gb200", 128) / _prefill_ours("gb300", 128)


def _latent_128k(chip: str) -> float:
    return float(latent_kernels.latent_prefill_s(131_072, n_heads=128, chip=chip, fmt="fp8", engine="sglang"))


def _latent_chip_ratio() -> float:
    return _latent_128k("gb200") / _latent_128k("gb300")


def latent_heads() -> Iterator[Pair]:
    """Latent decoding, batch 8 of 131,072 tokens, by heads a GPU: flat, a bump at 32, a break at 128 on H200."""
    for chip in ("gb300", "h200_sxm"):
        t = published.table("latent_heads").where(
            chip=chip, engine="trtllm", kv_fmt="bf16", n_batch=8.0, n_tokens=131_072.0
        )
        for heads in (1, 16, 32, 64, 128):
            value = t.where(n_heads=float(heads))["latency_s"][0]
            yield measured(f"latent_heads/{chip}/h{heads}", f"latent decode, {chip} TensorRT-LLM BF16, {heads} heads",
                           value, "s", TABLES, partial(_latent_ours, chip, heads))  # fmt: skip


def _latent_ours(chip: str, heads: int) -> float:
    how = dict(n_heads=heads, n_batch=8, chip=chip, fmt="bf16", repeated=True)
    return float(latent_kernels.latent_decode_s(131_072, **how))


def user_questions() -> Iterator[Pair]:
    """What users asked in public threads about roofs, units and bytes, with the right answer."""
    asked = (
        ("distinct_experts", "experts that 34 tokens wake, 8 of 256", 169.0, 1.0, "experts", "formula of inference-sim pull 790; TileOPs pull 2127 measured 170", partial(_woken, 34, 256, 8)),  # noqa: E501
        ("distinct_mixtral", "experts that 3 tokens wake, 2 of 8", 4.625, 0.0, "experts", "inference-sim pull 790, which prints 4.6", partial(_woken, 3, 8, 2)),  # noqa: E501
        ("causal_chunk", "pairs of 512 tokens behind 8,192", 512 * 8192 + 512**2 / 2, 0.0, "", "n p + n²/2 by hand; Megatron-LM issue 831 asks for the half", partial(_pairs, 512, 8192)),  # noqa: E501
        ("absorbed_v3", "queries from which DeepSeek-V3's latent is expanded", 170.7, 0.1, "tokens", "mlx-lm issue 1817", partial(_crossover, 128, 128)),  # noqa: E501
        ("absorbed_glm", "queries from which GLM-4.7-Flash's latent is expanded", 398.2, 0.1, "tokens", "mlx-lm issue 1817", partial(_crossover, 192, 256)),  # noqa: E501
        ("ep_limit_ib", "dispatch and combine of 32 tokens over one 400 Gb/s NIC", 120.96e-6, 1e-8, "s", LIMIT, partial(_ep_limit, "h100_sxm", True)),  # noqa: E501
        ("ep_limit_nvlink", "dispatch and combine of 32 tokens over NVLink", 6.72e-6, 1e-8, "s", LIMIT, partial(_ep_limit, "gb200", False)),  # noqa: E501
    )  # fmt: skip
    for key, what, value, quantum, unit, source, ours in asked:
        claim = Claim(what=what, value=value, unit=unit, source=source, kind="exact", quantum=quantum)
        yield Pair(key=f"user_questions/{key}", claim=claim, ours=ours)


def _woken(m: int, n_experts: int, n_chosen: int) -> float:
    return float(moe.woken(m, n_experts=n_experts, n_chosen=n_chosen, routing="random"))


def _pairs(n_new: int, n_prefix: int) -> float:
    return float(attention.pairs(n_new, n_prefix))


def _crossover(d_nope: int, d_value: int) -> float:
    return float(attention.latent_crossover(kv_rank=512, d_nope=d_nope, d_value=d_value))


def _ep_limit(chip: str, across: bool) -> float:
    """One byte out and two back for 32 tokens, 9 experts and 7,000 elements, as printed."""
    return float(collectives.point_to_point_s((1 + 2) * 32 * 9 * 7000, chip=chip, across=across, bound=True))


def expert_ranks() -> Iterator[Pair]:
    """DeepSeek-R1's experts on GB300, TensorRT-LLM NVFP4: wide EP, thin slices, and skew."""
    t = published.table("moe_ranks").where(d_model=7168.0, fmt="nvfp4")
    for ep, tp, tokens, routing in ((8, 1, 128, "balanced"), (32, 1, 128, "balanced"), (1, 8, 128, "balanced"),
                                    (32, 1, 16_384, "balanced"), (32, 1, 16_384, "power_law_1.2")):  # fmt: skip
        row = t.where(ep=float(ep), tp=float(tp), n_tokens=float(tokens), routing=routing)
        skew = "skewed" if routing != "balanced" else routing
        key, what = f"ep{ep}/tp{tp}/m{tokens}/{skew}", f"experts, EP {ep}, TP {tp}, {tokens:,} tokens, {skew}"
        yield measured(f"expert_ranks/{key}", what,
                       row["latency_s"][0], "s", TABLES, partial(_experts_ours, ep, tp, tokens, skew))  # fmt: skip


def _experts_ours(ep: int, tp: int, tokens: int, routing: str) -> float:
    layer = dict(d_model=7168, d_expert=2048, n_experts=256, n_chosen=8, chip="gb300", fmt="nvfp4")
    return float(moe_kernels.moe_s(tokens, **layer, ep=ep, tp=tp, routing=routing))
