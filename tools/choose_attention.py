"""How the forms of attention, of a mixture's experts and of NCCL's collectives were chosen: alternatives, fitted on one
half of the fitting rows and judged on the other. Held-out rows are not touched; head sizes 64 and 256 in prefill, which
no fit sees, were looked at for what adds up to a pair.

  python tools/choose_attention.py           print (about four minutes)
  python tools/choose_attention.py --write   and write data/validation/attention_choices.csv
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator, Mapping

import calibrate_attention
import calibrate_collectives
import calibrate_moe
import fitting
import measured
import numpy as np
import pandas as pd
import validation

from codesign_lib.cost.attention_kernels import HOPPER
from codesign_lib.specs import hardware
from codesign_lib.specs.formats import MXFP8, as_format

COLUMNS = ("kernel", "alternative", "n_numbers", "median_percent", "p90_percent")
CHIPS = ("h200_sxm", "b200_sxm", "gb300")
N_ROWS = 2500
DECODE = {
    "chosen": {},
    "maximum of C and M": dict(norm=50),
    "quadrature": dict(norm=2),
    "sum": dict(norm=1),
    "nothing stays in L2": dict(kept=0),
    "0.8 of L2": dict(kept=0.8),
    "never splits": dict(splits=False),
    "a stream a query head": dict(per_head=True),
}
PREFILL = {
    "chosen": {},
    "products alone": dict(pair="products"),
    "the larger of products and exponentials": dict(pair="larger"),
    "products and exponentials in turn": dict(pair="sum"),
    "longest block not waited for": dict(longest=False),
    "blocks of 64 rows": dict(rows=64),
    "blocks of 256 rows": dict(rows=256),
    "memory beside the rest": dict(norm=2),
}
MOE = {
    "chosen": {},
    "tiles of 32×128": dict(tile=(32, 128)),
    "tiles of 64×64": dict(tile=(64, 64)),
    "tiles of 16×64": dict(tile=(16, 64)),
    "sum of C and M": dict(norm=1),
    "sorting the pairs of this rank": dict(sorts_all=False),
}
LATENT = {
    "chosen": {},
    "eighth power for the maximum": dict(power=8),
    "fitted from 128 tokens": {},
    "fitted from 128 tokens, eighth power": dict(power=8),
}
NCCL = {
    "chosen": {},
    "log2 of the ranks for steps": dict(steps="log"),
    "own share free": dict(own=False),
    "sharp corner": dict(corner=0),
    "rounder corner": dict(corner=2),
    "log2, own share free, sharp corner": dict(steps="log", own=False, corner=0),
}
Form = Callable[[pd.DataFrame, Mapping[str, float]], np.ndarray]


def decode(t, *, norm=1.5, kept=0.6, splits=True, per_head=False) -> Form:
    c, size = hardware.chip(t.chip), as_format(t.fmt).bytes_per_element
    per_head = per_head or (t.engine == "trtllm" and (t.chip in HOPPER or t.kernel.endswith("unfused")))

    def form(r: pd.DataFrame, x: Mapping[str, float]) -> np.ndarray:
        waves = (r.n_batch * (r.n_heads if per_head else r.n_kv_heads) / c.n_sms).to_numpy()
        one = (2 * size * r.n_tokens * r.d_head).to_numpy()
        alone = x["stream_s"] + one / x["stream_bytes_per_s"]
        compute = alone * np.maximum(1, waves)
        if splits:
            compute = np.minimum(compute, alone * waves + x["split_s"])
        cache = (r.n_batch * r.n_kv_heads).to_numpy() * one
        hot = 1 / (1 + (cache / (kept * c.l2_bytes)) ** 6) if kept else 0.0
        rest = 4 * (r.n_batch * r.n_heads * r.d_head).to_numpy()
        memory = (cache * (1 - hot) + rest) / (x["memory_fraction"] * c.hbm_bytes_per_s)
        most = np.maximum(compute, memory)
        return x["launch_s"] + most * ((compute / most) ** norm + (memory / most) ** norm) ** (1 / norm)

    return form


def prefill(t, *, pair="quadrature", longest=True, rows=128, norm=1) -> Form:
    c, fmt = hardware.chip(t.chip), as_format(t.fmt)
    together = {"quadrature": np.hypot, "products": lambda a, b: a, "larger": np.maximum, "sum": np.add}[pair]

    def form(r: pd.DataFrame, x: Mapping[str, float]) -> np.ndarray:
        d = r.d_head.to_numpy()
        product, exp = 4 * d * c.n_sms / c.peak_flops_per_s(fmt), np.full(len(r), c.n_sms / c.exp_per_s)
        pair_s = together(product, exp) / x["compute_fraction"]
        blocks, heads = np.ceil(r.n_tokens.to_numpy() / rows), (r.n_batch * r.n_heads).to_numpy() / c.n_sms
        keys = rows * blocks * (blocks + 1) / 2
        compute = heads * (rows * keys * pair_s + blocks * x["block_s"])
        if longest:
            compute = compute + x["longest_ratio"] * (rows * rows * blocks * pair_s + x["block_s"])
        moved = 2 * d * r.n_batch * r.n_tokens * (fmt.bytes_per_element * r.n_kv_heads + 2 * r.n_heads)
        memory = moved.to_numpy() / (x["memory_fraction"] * c.hbm_bytes_per_s)
        return x["launch_s"] + (compute**norm + memory**norm) ** (1 / norm)

    return form


def experts(t, *, tile=(32, 64), norm=2, sorts_all=True) -> Form:
    c, fmt = hardware.chip(t.chip), as_format(t.fmt)
    arithmetic = MXFP8 if t.fmt == "mxfp4" else fmt

    def form(r: pd.DataFrame, x: Mapping[str, float]) -> np.ndarray:
        m, h, i = (r[n].to_numpy(float) for n in ("n_tokens", "d_model", "d_expert"))
        i, held = i / r.tp.to_numpy(), (r.n_experts / r.ep).to_numpy()
        pairs = m * (r.n_chosen / r.ep).to_numpy()
        awake = np.minimum(held, np.maximum(1, pairs))
        total = x["launch_s"] + 8 * m * h / (x["sort_fraction"] * c.hbm_bytes_per_s)
        total = (
            total
            + x.get("expert_s", 0) * held
            + x.get("pair_log_s", 0) * np.log2(1 + (m * r.n_chosen.to_numpy() if sorts_all else pairs))
        )
        for n, k in (((2 if t.gated else 1) * i, h), (h, i)):
            waves = awake * np.ceil(np.maximum(pairs, 1) / awake / tile[0]) * np.ceil(n / tile[1]) / c.n_sms
            one = 2 * tile[0] * tile[1] * k * c.n_sms / (x["compute_fraction"] * c.peak_flops_per_s(arithmetic))
            compute = (one + x["tile_s"]) * np.maximum(1, waves)
            moved = fmt.bytes_per_element * awake * n * k + pairs * (arithmetic.bytes_per_element * k + 2 * n)
            memory = moved / (x["memory_fraction"] * c.hbm_bytes_per_s)
            total = total + (compute**norm + memory**norm) ** (1 / norm)
        return total

    return form


def latent(t, *, power=None) -> Form:
    c, size = hardware.chip(t.chip), as_format(t.fmt).bytes_per_element

    def form(r: pd.DataFrame, x: Mapping[str, float]) -> np.ndarray:
        s, b, h = (r[name].to_numpy(float) for name in ("n_tokens", "n_batch", "n_heads"))
        one, waves = size * s * 576, b / c.n_sms
        alone = one / x["stream_bytes_per_s"]
        reading = np.minimum(alone * np.maximum(1, waves), alone * waves + x["split_s"])
        read = b * one * (1 - 1 / (1 + (b * one / (0.6 * c.l2_bytes)) ** 6))
        memory = (read + 2 * b * h * 1088) / (x["memory_fraction"] * c.hbm_bytes_per_s)
        moving = (reading**1.5 + memory**1.5) ** (2 / 3)
        products = 2 * b * 64 * np.ceil(h / 64) * s * 1088
        computing = products / (x["compute_fraction"] * c.peak_flops_per_s(as_format(t.fmt)))
        both = np.maximum(moving, computing)
        if power:
            both = both * ((moving / both) ** power + (computing / both) ** power) ** (1 / power)
        return x["launch_s"] + both

    return form


def nccl(t, *, steps="ring", own=True, corner=4) -> Form:
    link = hardware.chip(t.chip).link_bytes_per_s

    def form(r: pd.DataFrame, x: Mapping[str, float]) -> np.ndarray:
        size, ranks = r.n_bytes.to_numpy(float), r.n_ranks.to_numpy(float)
        hops = ranks - 1 if steps == "ring" else np.log2(ranks)
        moved = (2 if t.operation == "all_reduce" else 1) * size * (ranks - 1 + own * x["own_fraction"]) / ranks
        a, b = (x[f"{i}_s"] + moved / (x[f"{i}_fraction"] * link) for i in ("first", "second"))
        quicker = (a**-corner + b**-corner) ** (-1 / corner) if corner else np.minimum(a, b)
        return x["hop_s"] * hops + quicker

    return form


def judge_nccl(how: dict) -> tuple:
    """Both halves of the fitting rows in turn: each alone is small."""
    found, limits = [], calibrate_collectives.NCCL_LIMITS
    for t in calibrate_collectives.tables():
        if t.engine == "nccl":
            seen = t.rows[~t.rows.held_out]
            second, form, error = measured.hashed(seen, ["n_ranks", "n_bytes"], 1), nccl(t, **how), []
            for first, other in ((seen[~second], seen[second]), (seen[second], seen[~second])):
                x = fitting.solve(lambda x, f=form, r=first: f(r, x), first.latency_s.to_numpy(), limits)
                error.append(np.abs(form(other, x) / other.latency_s.to_numpy() - 1))
            found.append(np.quantile(np.concatenate(error), [0.5, 0.9]))
    return 6 - (not how.get("own", True)), *(100 * float(v) for v in np.median(found, axis=0))


def other_heads(t) -> pd.DataFrame:
    r = measured.attention(t.chip, t.engine, "prefill")
    r = r[r.kernel.isin(calibrate_attention.FUSED) & r.d_head.isin([64, 256]) & (r.window_tokens == 0)]
    return r[(r.fmt == t.fmt) & (r.kv_fmt == t.fmt) & (r.n_tokens >= calibrate_attention.LEAST_TOKENS)]


def judge(
    tables: list,
    make: Callable[..., Form],
    judged: Callable[[pd.DataFrame], pd.Series],
    how: dict,
    other: Callable | None = None,
) -> tuple:
    found, numbers = [], {}
    for t, limits, least in tables:
        seen = t.rows[~t.rows.held_out]
        first, second = (
            seen[~seen.second & (seen.n_tokens >= least)],
            other(t) if other else seen[seen.second & judged(seen)],
        )
        first = first.sample(min(N_ROWS, len(first)), random_state=0)
        form = make(t, **how)
        numbers = fitting.solve(lambda x, f=form, r=first: f(r, x), first.latency_s.to_numpy(), limits)
        found.append(fitting.errors(form(second, numbers), second.latency_s.to_numpy())[:2])
    unused = sum(not how.get(key, True) for key in ("splits", "longest"))
    return len(numbers) - unused, *(100 * float(v) for v in np.median(found, axis=0))


def rows() -> Iterator[tuple]:
    least = calibrate_attention.LEAST_TOKENS
    every = [t for t in calibrate_attention.tables() if t.chip in CHIPS]
    for kernel, make, alternatives in (("attention_decode", decode, DECODE), ("attention_prefill", prefill, PREFILL)):
        tables = [(t, t.limits, t.least_tokens) for t in every if t.kernel == kernel]
        for name, how in alternatives.items():
            yield kernel, name, *judge(tables, make, lambda r: r.n_tokens >= least, how)
    for name, how in PREFILL.items():
        if name == "chosen" or "pair" in how:
            yield "attention_prefill, head sizes 64 and 256", name, *judge(tables, prefill, None, how, other_heads)
    tables = [(t, t.limits, t.least_tokens) for t in every if t.kernel == "latent_decode"]
    tables = [(t._replace(rows=calibrate_attention.without_bump(t.chip, t.rows)), *rest) for t, *rest in tables]
    for name, how in LATENT.items():
        from_128 = [(t, limits, 128) for t, limits, _ in tables]
        used = from_128 if name.startswith("fitted from 128") else tables
        yield "latent_decode", name, *judge(used, latent, lambda r: r.n_tokens >= least, how)
    for name, how in NCCL.items():
        yield "NCCL", name, *judge_nccl(how)
    tables = []
    for t in calibrate_moe.tables():
        if t.chip in CHIPS:
            tables.append((t, calibrate_moe.limits_of(t.engine, t.fmt), 1))
    for name, how in MOE.items():
        yield "moe_experts", name, *judge(tables, experts, lambda r: r.n_tokens <= 256, how)


def main(argv: tuple[str, ...] = ()) -> int:
    found = []
    for row in rows():
        found.append((*row[:3], f"{row[3]:.2f}", f"{row[4]:.2f}"))
        print("{:42s} {:42s} {} numbers {:>6s} / {:>6s}".format(*found[-1]), flush=True)
    if "--write" in argv:
        out = io.StringIO()
        out.write(
            "# title: forms of attention, experts and collectives that were tried, on two halves of the fitting rows\n"
        )
        out.write(f"# source: {measured.PACKAGE}, systems/data (NVIDIA, github.com/ai-dynamo/aiconfigurator)\n")
        out.write(f"# version: {measured.package_version()}; {', '.join(CHIPS)}\n# date: {fitting.DATE}\n")
        out.write(f"# licence: {measured.LICENCE}\n# drawn_by: tools/choose_attention.py --write\n")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(found)
        (validation.FOLDER / "attention_choices.csv").write_text(out.getvalue(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))
