"""Attention and FFN cut differently: Helix's closed forms, limits of expert parallelism, when attention DP pays."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import numpy as np

from codesign_lib.cost import attention_kernels, collectives, experts, moe_kernels, ops, roofline, tiling
from codesign_lib.cost.ops import moe
from codesign_lib.report.claims.attention import LIMIT, TABLES
from codesign_lib.report.claims.pair import Pair, exact, measured
from codesign_lib.report.claims.roofline import ARTICLE
from codesign_lib.serving import helix, prefill
from codesign_lib.serving.decode import decode_step_s
from codesign_lib.serving.layout import Layout
from codesign_lib.serving.memory import max_batch
from codesign_lib.specs import formats, hardware, models, published
from codesign_lib.specs.formats import Precision

HELIX = "Helix Parallelism, arXiv:2507.07120"
DRAFTS = "NVIDIA, Co-designing AI models using speculative decoding for faster LLM inference, 2026-09-02"
BLOG18 = "TensorRT-LLM technical blog 18, one-sided all-to-all"
EPLB = "TensorRT-LLM technical blog 4, table 1"
FIGURE1 = dict(n_kv_heads=8, d_head=128, chip="gb200", fmt="fp4_payload")
"""Of the figure with batch 8, 128 query heads and an FFN of 65,536, at half a byte an element and 8 TB/s."""

TP8, DP8 = Layout(tp_attention=8, ep=8), Layout(dp=8, ep=8)
V4_MIX = Precision(weights="fp8_block", activations="fp8", kv="fp8", experts="mxfp4")
PROMPT = 1_044_301


def helix_figure1() -> Iterator[Pair]:
    """Values of the appendix' formulas, a layer; TP all the way, and TP of attention capped at 8."""
    widths = (1, 2, 4, 8, 16, 32, 64)
    how = dict(unit="s", quantum=1e-8)
    for tp, value in zip(widths, (1024, 512, 256, 128, 128, 128, 128), strict=True):
        ours = partial(_cache_s, tp, 1)
        yield exact(f"helix_figure1/kv/tp{tp}", f"KV read, 1M tokens, TP {tp}", value * 1e-6, HELIX, ours, **how)
    for kvp, value in zip((1, 2, 4, 8, 16), (128, 64, 32, 16, 8), strict=True):
        what = f"KV read, 1M tokens, TP 8, KVP {kvp}"
        ours = partial(_cache_s, 8, kvp)
        yield exact(f"helix_figure1/kv/kvp{kvp}", what, value * 1e-6, HELIX, ours, **how)
    through = (236.98, 118.49, 59.24, 29.62, 14.94, 7.60, 3.93)
    capped = (236.98, 118.49, 59.24, 29.62, 17.04, 10.75, 7.60)
    for name, row, cap in (("all", through, 64), ("capped", capped, 8)):
        for tp, value in zip(widths, row, strict=True):
            what = f"weight read, TP {tp}" + (", attention's at most 8" if cap == 8 else "")
            ours = partial(_weights_s, min(tp, cap), tp)
            yield exact(f"helix_figure1/weights/{name}/tp{tp}", what, value * 1e-6, HELIX, ours, **how)
    what = "context from which KV takes longer than weights, TP 8"
    yield exact("helix_figure1/crossover", what, 231_424, HELIX, _crossover, unit="tokens")


def _cache_s(tp: int, kvp: int) -> float:
    return float(helix.kv_read_s(1e6, n_batch=8, tp=tp, kvp=kvp, **FIGURE1))


def _weights_s(tp_attention: int, tp_ffn: int) -> float:
    how = dict(n_heads=128, d_ffn=65_536, tp_attention=tp_attention, tp_ffn=tp_ffn)
    return float(helix.weight_read_s(**how, **FIGURE1))


def _crossover() -> float:
    return float(helix.crossover_tokens(n_batch=8, n_heads=128, d_ffn=65_536, tp=8, **FIGURE1))


def overlap() -> Iterator[Pair]:
    """HOP-B's figure 3: eight requests, two units of attention and 1.2 of exchange each."""
    for overlapped, value, quantum in ((False, 25.6, 0.1), (True, 17.0, 1.0)):
        ours = partial(helix.batchwise_s, 8, 2.0, 1.2, overlapped=overlapped)
        what = f"eight requests, exchange {'overlapped' if overlapped else 'exposed'}, units of time"
        yield exact(f"overlap/{overlapped}", what, value, f"{HELIX}, figure 3", ours, quantum=quantum)


def expert_limits() -> Iterator[Pair]:
    """What expert parallelism costs at least a token, and the bytes of the all-to-all."""
    for name, chip, across, value in (("ib", "h100_sxm", True, 14.76e-3), ("nvlink", "gb200", False, 0.82e-3)):
        what = f"two all-to-alls in 61 layers over {'one 400 Gb/s NIC' if across else 'NVLink'}"
        ours = partial(_step_limit, chip, across)
        yield exact(f"expert_limits/{name}", what, value, LIMIT, ours, unit="s", quantum=1e-5)
    for fmt, value in (("bf16", 14_336), ("mxfp8", 7392), ("nvfp4", 4032)):
        ours = partial(_token_bytes, fmt)
        yield exact(f"expert_limits/{fmt}", f"a token of 7,168 in {fmt}", value, BLOG18, ours, unit="B")
    ours = partial(_gathered_over_sent, 8)
    yield exact("expert_limits/ep8", "all-gather over all-to-all, EP 8, 8 of 256", 1.0, BLOG18, ours, unit="×")
    ours = partial(_gathered_over_sent, 32)
    yield exact("expert_limits/ep32", "all-gather over all-to-all, EP 32, 8 of 256", 4.0, BLOG18, ours, unit="×")
    row = published.table("expert_balance").where(balancer="none")
    what = "DeepSeek-R1 on 32 ranks without a balancer: tokens of the busiest over the mean"
    yield measured("expert_limits/busiest", what, 1 + row["rank_imbalance"][0], "×", EPLB, _busiest)
    source = "TensorRT-LLM technical blog 8: a rank's valid tokens, m·c/EP"
    ours = partial(experts.tokens_per_expert, 12, n_experts=32, n_chosen=8)
    yield exact("expert_limits/valid", "12 tokens, 8 choices, EP 32: pairs a rank", 3, source, ours)


def _busiest() -> float:
    """1,024 tokens a rank arrive on average, eight copies of each token: 4,096 tokens in all."""
    return float(moe.busiest_share(4096, n_experts=256, n_chosen=8, n_ranks=32, routing="skewed"))


def _step_limit(chip: str, across: bool) -> float:
    return 2 * 61 * float(collectives.point_to_point_s((1 + 2) * 32 * 9 * 7000, chip=chip, across=across, bound=True))


def _sent_bytes(n_tokens: int, ep: int, fmt: str) -> float:
    size = formats.as_format(fmt).bytes_per_element
    return float(experts.dispatch_bytes(n_tokens, ep=ep, d_model=7168, n_chosen=8, bytes_per_element=size))


def _token_bytes(fmt: str) -> float:
    return _sent_bytes(1, 1, fmt)


def _gathered_over_sent(ep: int) -> float:
    return ep * 7168 * 2 / _sent_bytes(1, ep, "bf16")


def all_to_all() -> Iterator[Pair]:
    """Measured dispatch and combine at 32 tokens a rank against the bandwidth bound, and the form fitted to them."""
    t = published.table("moe_all_to_all")
    for ep in (8, 16, 32, 64):
        row = t.where(ep=float(ep), n_tokens=32.0)
        value = float(row["dispatch_s"][0] + row["combine_s"][0])
        what = f"dispatch and combine, 32 tokens a rank, EP {ep}"
        yield measured(f"all_to_all/bound/ep{ep}", f"{what}: bound", value, "s", BLOG18, partial(_exchange_bound, ep))
        yield measured(f"all_to_all/form/ep{ep}", f"{what}: fitted", value, "s", BLOG18, partial(_exchange, ep))


def _exchange_bound(ep: int) -> float:
    return float(collectives.point_to_point_s(2 * _sent_bytes(32, ep, "bf16"), chip="gb200", bound=True))


def _exchange(ep: int) -> float:
    return sum(float(collectives.moe_all_to_all_s(32, phase=p, ep=ep)) for p in ("dispatch", "combine"))


def sequel() -> Iterator[Pair]:
    """Statements of the article and its sequels that are arithmetic; and when attention DP pays."""
    for group, value in ((8, 15), (16, 7), (32, 3)):
        ours = partial(tiling.draft_tokens, group)
        yield exact(f"sequel/drafts/g{group}", f"drafts that fill 128 rows, G = {group}", value, DRAFTS, ours)
    ours = partial(experts.tokens_per_expert, 4096, n_experts=256, n_chosen=8)
    yield exact("sequel/rows", "rows of an expert, 4,096 requests, 8 of 256", 128, ARTICLE, ours)
    source = "sgl-project/sglang issue 2882: attention weights in FP8 over cache bytes a token in BF16"
    what = "tokens in flight from which DeepSeek-V3's attention DP reads less than TP"
    yield exact("sequel/dp", what, 162_400, source, _dp_tokens, unit="tokens", quantum=100)
    for model, value in (("deepseek_r1", 70_272), ("qwen2_5_72b", 327_680), ("llama_3_1_405b", 516_096)):
        of = models.MODELS[model]
        ours = partial(of.kv_bytes_per_token, "bf16")
        yield exact(f"sequel/kv/{model}", f"{of} in BF16, KV a token", value, LIMIT, ours, unit="B")


def _dp_tokens() -> float:
    r1 = models.MODELS["deepseek_r1"]
    weights = r1.n_params_by_part["attention"] * formats.FP8.bytes_per_element
    how = dict(weight_bytes=weights, kv_bytes_per_token=r1.kv_bytes_per_token("bf16"))
    return float(helix.attention_dp_tokens(**how, n_gpus=8))


def plateau() -> Iterator[Pair]:
    """Grouped-query decoding as TP leaves it to a GPU, batch 8 of 32,768: no gain below one key-value head."""
    t = published.table("attention_heads").where(chip="gb300", engine="trtllm", d_head=128.0)
    for fmt in ("bf16", "fp8"):
        for heads, kv in ((64, 8), (32, 4), (16, 2), (8, 1), (4, 1), (1, 1)):
            row = t.where(kv_fmt=fmt, n_heads=float(heads), n_kv_heads=float(kv))
            what = f"decode attention on gb300, {fmt}, {heads} query heads on {kv}"
            ours = partial(_grouped, heads, kv, fmt)
            key = f"plateau/{fmt}/{heads}on{kv}"
            yield measured(key, what, row["latency_s"][0], "s", TABLES, ours)


def _grouped(n_heads: int, n_kv_heads: int, fmt: str) -> float:
    how = dict(n_heads=n_heads, n_kv_heads=n_kv_heads, n_batch=8, chip="gb300", fmt=fmt, repeated=True)
    return float(attention_kernels.attention_decode_s(32_768, **how))


def latent_experts() -> Iterator[Pair]:
    """Experts in a latent size a quarter of the model's (512, 22 a token): time over that of full-size experts."""
    t = published.table("moe_ranks").where(n_experts=512.0, fmt="nvfp4")
    for ep, tokens in ((8, 64), (8, 16_384), (32, 64), (32, 16_384)):
        rows = t.where(ep=float(ep), n_tokens=float(tokens), routing="balanced")
        value = rows.where(d_model=1024.0)["latency_s"][0] / rows.where(d_model=4096.0)["latency_s"][0]
        what = f"experts of 1,024 over experts of 4,096, EP {ep}, {tokens:,} tokens"
        yield measured(f"latent_experts/ep{ep}/m{tokens}", what, value, "×", TABLES, partial(_latent_ratio, ep, tokens))


def _latent_ratio(ep: int, tokens: int) -> float:
    how = dict(d_expert=2688, n_experts=512, n_chosen=22, ep=ep, gated=False, chip="gb300", fmt="nvfp4")
    return float(moe_kernels.moe_s(tokens, d_model=1024, **how) / moe_kernels.moe_s(tokens, d_model=4096, **how))


def one_kv_head() -> Iterator[Pair]:
    """TP against attention DP, and against a divided context, on eight B200, as users measured them.

    Eight prompts at once: with TP one after the other, so that half of them have waited for 4.5; with DP each on a GPU
    of its own. A prompt's time with TP follows from the measured rate.
    """
    source = "vllm-project/vllm issue 51454: DeepSeek-V4-Flash on 8 × B200, vLLM 0.25.0, 8 prompts of 1,044,301 tokens"
    what = "DeepSeek-V4-Flash, tokens that the cache holds, DP 8 over TP 8"
    yield measured("one_kv_head/capacity", what, 8 * 20.57 / 21.42, "×", source, _capacity_ratio)
    for key, copied, value, unit, what, ours in (
        ("throughput", True, 53_223 / 16_653, "×", "prompt tokens/s, DP 8 over TP 8", _rates),
        ("throughput_divided", False, 53_223 / 16_653, "×", "the same, if TP divided the indexers", _rates),
        ("ttft", True, 314.1 / 91.3, "×", "median time to the first token, TP 8 over DP 8", _waits),
        ("prompt_tp", True, PROMPT / 16_653, "s", "a prompt with TP 8", partial(_prompt_s, TP8)),
        ("prompt_dp", True, 91.3, "s", "a prompt with DP 8", partial(_prompt_s, DP8)),
    ):
        yield measured(
            f"one_kv_head/{key}", f"DeepSeek-V4-Flash, {what}", value, unit, source, partial(ours, copied=copied)
        )
    source = "vLLM blog, Decode Context Parallelism, 2026-08-07: Kimi-K2.6 NVFP4 on 8 × B200, agentic trace of about 67,000 tokens"  # noqa: E501
    what = "Kimi K2, tokens/s/GPU with the context divided by 8 over TP 8, each at its memory's limit"
    yield measured("one_kv_head/dcp", what, 6091 / 1863, "×", source, _dcp_ratio)


def _capacity_ratio() -> float:
    how = dict(n_context=131_072, precision=V4_MIX)
    dp, tp = (max_batch("deepseek_v4_flash", "b200_sxm", layout=x, **how) for x in (DP8, TP8))
    return float(dp / tp)


@cache
def _prompt_s(layout: Layout, *, copied: bool) -> float:
    """Seconds of one prompt in chunks of 8,192 tokens.

    Attention and indexers have no measured kernel, so both are their roofline. ``copied``: every TP rank scores with
    all heads of the indexer, as in vLLM and as it is priced; otherwise with its share of them.
    """
    of, chip = models.MODELS["deepseek_v4_flash"], hardware.chip("b200_sxm")
    begin = np.arange(0, PROMPT, 8192)
    chunks = dict(n_new=np.diff(begin, append=PROMPT), n_prefix=begin)
    total = float(prefill.layer_costs(of, chip, **chunks, layout=layout, precision=V4_MIX).total_s.sum())
    if not copied:
        scored = (ops.layer.indexing(m, **chunks, precision=V4_MIX) for x in of.config.layers for m in x.mixers)
        once = sum(float(roofline.time_s(x, chip, V4_MIX.kv).sum()) for x in scored if x)
        total -= once * (1 - 1 / layout.tp_attention)
    return total


def _rates(*, copied: bool) -> float:
    return 8 * _prompt_s(TP8, copied=copied) / _prompt_s(DP8, copied=copied)


def _waits(*, copied: bool) -> float:
    return 4.5 * _prompt_s(TP8, copied=copied) / _prompt_s(DP8, copied=copied)


def _dcp_ratio() -> float:
    how = dict(n_context=67_000, precision=Precision(weights="nvfp4", activations="nvfp4", kv="fp8", head="nvfp4"))
    rates = []
    for layout in (Layout(kvp=8, tp_ffn=8), Layout(tp_attention=8, tp_ffn=8)):
        batch = max_batch("kimi_k2", "b200_sxm", layout=layout, **how)
        rates.append(batch / decode_step_s("kimi_k2", "b200_sxm", layout=layout, batch=batch, **how).step_s)
    return float(rates[0] / rates[1])
