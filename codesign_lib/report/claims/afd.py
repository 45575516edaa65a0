"""Attention and FFN on different hardware: Step-3's cost tables, FastAFD's predictions, MegaScale-Infer's formula."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from codesign_lib.cost.ops import attention
from codesign_lib.report.claims.pair import Pair, exact, measured
from codesign_lib.serving import afd, rental
from codesign_lib.specs import models, published

STEP3 = "Step-3, arXiv:2507.19427"
FASTAFD = "FastAFD, hao-ai-lab blog, 2026-07-04"
MEGASCALE = "MegaScale-Infer, arXiv:2504.02263"
# the FLOPs and bytes that the tables print have three digits, so that a cost of .46 may come out .0015 away
COST_QUANTUM = 0.004
STEP3_MODELS = {
    "dsv3": "deepseek_r1", "k2": "kimi_k2", "qwen3_moe": "qwen3_235b_a22b", "qwen3_32b": "qwen3_32b",
    "llama4": "llama_4_maverick",
}  # fmt: skip
"""Rows of Step-3's tables whose models are in the catalogue."""


def step3_work() -> Iterator[Pair]:
    """Bytes and attention FLOPs of a token as Step-3 counts them, against what the models' configs give."""
    table = published.table("step3_models").where(n_context=8192.0)
    for name, ours in STEP3_MODELS.items():
        row, model = table.where(name=name), models.MODELS[ours]
        for part in ("kv", "attention"):
            value = float(row["kv_bytes" if part == "kv" else "attention_flops"][0])
            key, what = f"step3_work/{part}/{name}", f"{model}, 8,192 tokens: {part}"
            unit = "B" if part == "kv" else "FLOP"
            # Llama 4's cache is not reproduced; DeepSeek's FLOPs take 576 where absorbed values have 512
            call = partial(_cache_bytes if part == "kv" else _attention_flops, model)
            if (part, name) in (("kv", "llama4"), ("attention", "dsv3"), ("attention", "k2")):
                yield measured(key, what, value, unit, f"{STEP3}, table 2", call)
            else:
                quantum = 10.0 ** (len(str(int(value))) - 3)
                yield exact(key, what, value, f"{STEP3}, table 2", call, unit=unit, quantum=quantum)


def _cache_bytes(model: models.Model) -> float:
    return float(models.kv_bytes(model, 8192, "fp8"))


def _attention_flops(model: models.Model) -> float:
    total = 0.0
    for layer in model.config.layers:
        for m in layer.mixers:
            if hasattr(m, "kv_rank"):
                work = attention.latent_decode(8192, n_heads=m.n_heads, kv_rank=m.kv_rank, d_rope=m.d_rope)
            else:
                how = dict(n_heads=m.n_heads, n_kv_heads=m.n_kv_heads, d_head=m.d_head)
                work = attention.decode(8192, **how, window_tokens=m.window_tokens)
            total += float(work.flops)
    return total


def step3_costs() -> Iterator[Pair]:
    """Dollars a million tokens, part by part, on four accelerators; and the best totals."""
    costs = published.table("step3_costs")
    for model, part, context, *printed in zip(*(costs[c].tolist() for c in costs.columns), strict=True):
        for on, value in zip(rental.ACCELERATORS, printed, strict=True):
            at = f" at {context:,.0f}" if part == "attention" else ""
            what = f"{title(model)}, {part}{at}, {rental.accelerator(on)}, $ a million"
            key = f"step3_costs/{model}/{part}/{context:.0f}/{on}"
            ours = partial(usd, model, part, context, on)
            yield exact(key, what, value, f"{STEP3}, table 6", ours, quantum=COST_QUANTUM)
    for context, row in ((8192, (0.055, 0.068, 0.062)), (32_768, (0.129, 0.211, 0.193))):
        for model, value in zip(("step3", "dsv3", "qwen3_moe"), row, strict=True):
            what = f"{title(model)} at {context:,}, each part where it is cheapest, $ a million"
            ours = partial(best_usd, model, context)
            yield exact(f"step3_costs/best/{model}/{context}", what, value, STEP3, ours, quantum=COST_QUANTUM)
    for on, value in zip(rental.ACCELERATORS, (0.058, 0.007, 0.031, 0.034), strict=True):
        what = f"least active share of a mixture of H = 7,168 and 61 layers, {rental.accelerator(on)}"
        ours = partial(rental.least_active_share, 7168, 61, on=on)
        yield exact(f"step3_costs/share/{on}", what, value, STEP3, ours, quantum=1e-3)


def _row(model: str, context: float) -> dict[str, float]:
    t = published.table("step3_models").where(name=model, n_context=float(context))
    return {c: float(t[c][0]) for c in ("attention_flops", "kv_bytes", "linear_flops", "ffn_flops")}


def title(model: str) -> str:
    """The name of a model of Step-3's tables."""
    return str(published.table("step3_models").where(name=model)["title"][0])


def usd(model: str, part: str, context: float, on: str) -> float:
    """Dollars a million tokens of a model's attention or ffn at a context, on one accelerator."""
    row = _row(model, context)
    ffn = row.pop("ffn_flops")
    return 1e6 * float(rental.ffn_usd(ffn, on=on) if part == "ffn" else rental.attention_usd(**row, on=on))


def best_usd(model: str, context: float) -> float:
    parts = [[usd(model, part, context, on) for on in rental.ACCELERATORS] for part in ("attention", "ffn")]
    return sum(min(part) for part in parts)


def fast_afd() -> Iterator[Pair]:
    """Predicted and measured speed-up of MiniMax on GB200 with 17 attention GPUs to one for experts."""
    rows = {
        "8k": ((43.4, 16.2, 40.5), 72 / 48, 1.45, 1.45),
        "16k": ((48.2, 15.3, 36.4), 36 / 24, 1.38, 1.35),
    }
    for name, (shares, batches, predicted, seen) in rows.items():
        ours = partial(_speedup, shares, batches)
        what = f"MiniMax, {name.upper()} tokens, 17:1: tokens a second and GPU"
        # the shares print three digits and add up to 100.1 and 99.9
        yield exact(
            f"fast_afd/predicted/{name}", f"{what}, predicted", predicted, FASTAFD, ours, unit="×", quantum=0.02
        )
        yield measured(f"fast_afd/measured/{name}", f"{what}, measured", seen, "×", FASTAFD, ours)


def _speedup(shares: tuple[float, float, float], batches: float) -> float:
    a, dense, moe = shares
    found = afd.speedup(batch_ratio=batches, attention_s=a, dense_s=dense, moe_s=moe, n_attention=17, n_ffn=1)
    return float(found)


def micro_batches() -> Iterator[Pair]:
    """Micro-batches that hide the transfer, by MegaScale-Infer's condition."""
    for share, value in ((0.5, 3), (1.0, 4)):
        ours = partial(afd.micro_batches, 1.0, 1.0, share)
        what = f"micro-batches, transfer {share:g} of a stage"
        yield exact(f"micro_batches/{share:g}", what, value, MEGASCALE, ours)
