# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# (evidence-attention-ffn)=
# # Attention, FFN and what is sent
#
# Tables and claims behind {ref}`study 4 <study-attention-ffn>`. Times are measured / ours in µs unless a table says
# otherwise; ours repeats the same cache, as the benchmarks do.

# %%
import numpy as np

from codesign_lib.cost import attention_kernels, collectives, experts, latent_kernels, moe_kernels
from codesign_lib.cost.ops import moe
from codesign_lib.report import claims, plotting, tables
from codesign_lib.report.claims import afd as apart
from codesign_lib.report.claims import helix_frontier
from codesign_lib.serving import afd, rental
from codesign_lib.specs import hardware, models, published

names = ("latent_heads", "attention_heads", "moe_all_to_all", "moe_ranks", "expert_balance", "step3_models", "step3_costs", "step3_accelerators")
plotting.say("\n".join(f"- **{t.name}**, {t.header['title'].rstrip('.')}. " + "; ".join(f"{key}: {t.header[key]}" for key in ("source", "version", "date", "licence")) for t in map(published.table, names)))

# %% [markdown]
# ## Latent heads a GPU
#
# One layer of absorbed latent attention, whole rows from 1 head a GPU to 128. SGLang's FP8 rows on H200 take about
# two thousand whatever the heads and are no measurement of this kernel; there is no calibration for them.

# %%
t, rows = published.table("latent_heads"), {}
for case in dict.fromkeys(zip(*(t[c].tolist() for c in ("chip", "engine", "kv_fmt", "n_batch", "n_tokens")), strict=True)):
    chip, engine, fmt, batch, tokens = case
    row = t.where(chip=chip, engine=engine, kv_fmt=fmt, n_batch=batch, n_tokens=tokens).sorted_by("n_heads")
    known = not (chip == "h200_sxm" and engine == "sglang" and fmt == "fp8")
    ours = latent_kernels.latent_decode_s(tokens, n_heads=row["n_heads"], n_batch=batch, chip=chip, fmt=fmt, engine=engine, repeated=True) if known else np.full(len(row), np.nan)
    cells = {int(h): f"{1e6 * a:.0f} / {1e6 * b:.0f}" if known else f"{1e6 * a:.0f} / –" for h, a, b in zip(row["n_heads"], row["latency_s"], ours, strict=True)}
    rows[hardware.chip(chip).title, engine, fmt, f"{batch:.0f} × {tokens:,.0f}"] = cells
plotting.table(dict(zip(("GPU", "engine", "cache", "batch × tokens"), zip(*rows, strict=True), strict=True)) | {f"{h} heads" if h > 1 else "1 head": [cells.get(h, "–") for cells in rows.values()] for h in (1, 2, 4, 8, 16, 32, 64, 128)})

# %% [markdown]
# ## Grouped heads a GPU
#
# 64 query heads on 8 key-value heads, batch 8 of 32,768 tokens, as TP leaves them: query heads on key-value heads.

# %%
t, cuts = published.table("attention_heads").where(d_head=128.0), ((64, 8), (32, 4), (16, 2), (8, 1), (4, 1), (2, 1), (1, 1))
cells = {}
for chip, fmt in (("gb300", "bf16"), ("gb300", "fp8"), ("h200_sxm", "bf16"), ("h200_sxm", "fp8")):
    seen = [float(t.where(chip=chip, kv_fmt=fmt, n_heads=float(h), n_kv_heads=float(k))["latency_s"][0]) for h, k in cuts]
    ours = attention_kernels.attention_decode_s(32_768, n_heads=[h for h, _ in cuts], n_kv_heads=[k for _, k in cuts], n_batch=8, chip=chip, fmt=fmt, repeated=True)
    cells[f"{hardware.chip(chip)} {fmt}"] = [f"{1e6 * a:.1f} / {1e6 * b:.1f}" for a, b in zip(seen, ours, strict=True)]
plotting.table({"heads": [f"{h} on {k}" for h, k in cuts]} | cells)

# %% [markdown]
# ## All-to-all of experts
#
# GB200, dispatch + combine: measured / fitted form / bound.

# %%
t, m = published.table("moe_all_to_all"), np.array([1, 32, 128, 512, 2048])
bound = collectives.point_to_point_s(2 * experts.dispatch_bytes(m, ep=8, d_model=7168, n_chosen=8), chip="gb200", bound=True)
cells = {}
for ep in (8, 16, 32, 64):
    row = t.where(ep=float(ep)).sorted_by("n_tokens")
    seen = [dict(zip(row["n_tokens"].tolist(), (row["dispatch_s"] + row["combine_s"]).tolist(), strict=True)).get(float(x), np.nan) for x in m]
    ours = sum(collectives.moe_all_to_all_s(m, phase=phase, ep=ep) for phase in ("dispatch", "combine"))
    cells[f"EP {ep}"] = [f"{1e6 * a:.0f} / {1e6 * b:.0f} / {1e6 * c:.1f}" for a, b, c in zip(seen, ours, bound, strict=True)]
plotting.table({"tokens a rank": m} | cells)

# %% [markdown]
# ## Skew, and what a balancer leaves
#
# Imbalance of DeepSeek-R1 on 32 GB200, the busiest over the mean minus one, between ranks and between experts, as
# TensorRT-LLM's technical blog 4 prints it; beside it our estimate between ranks, from the power law of the
# measured tables, at the same mean tokens a rank.

# %%
t = published.table("expert_balance")
ours = moe.busiest_share(1024 * 32 // 8, n_experts=256, n_chosen=8, n_ranks=32, routing="skewed") - 1
plotting.table({"balancer": t["balancer"], "EP": t["ep"], "slots a rank": t["slots"], "ranks": t["rank_imbalance"], "experts": t["expert_imbalance"], "ours, ranks": [f"{float(ours):.2f}" if x == "none" else "–" for x in t["balancer"]]})

# %% [markdown]
# Experts of DeepSeek-R1 on GB300 in NVFP4, all tokens together, balanced and skewed:

# %%
t, how = published.table("moe_ranks").where(d_model=7168.0, fmt="nvfp4", tp=1.0), dict(d_model=7168, d_expert=2048, n_experts=256, n_chosen=8, chip="gb300", fmt="nvfp4")
cases, cells = [(m, r) for m in (128, 1024, 8192, 16_384) for r in ("balanced", "power_law_1.2")], {}
for ep in (1, 8, 32, 64):
    seen = [float(t.where(ep=float(ep), n_tokens=float(m), routing=r)["latency_s"][0]) if ep > 1 or r == "balanced" else np.nan for m, r in cases]
    ours = [float(moe_kernels.moe_s(m, **how, ep=ep, routing="balanced" if r == "balanced" else "skewed")) for m, r in cases]
    cells[f"EP {ep}"] = [f"{1e6 * a:.0f} / {1e6 * b:.0f}" if a == a else "–" for a, b in zip(seen, ours, strict=True)]
plotting.table({"tokens": [m for m, _ in cases], "routing": ["balanced" if r == "balanced" else "skewed" for _, r in cases]} | cells)

# %% [markdown]
# ## Step-3's prices
#
# Dollars a million decoded tokens: printed / ours. Ours come from the three digits that the paper prints of FLOPs and
# bytes, so the last digit may differ.

# %%
t = published.table("step3_costs")
rows = [dict(zip(t.columns, row, strict=True)) for row in zip(*(t[c].tolist() for c in t.columns), strict=True)]
plotting.table({"model": [apart.title(r["model"]) for r in rows], "part": [f"{r['part']} at {r['n_context']:,.0f}" if r["part"] == "attention" else "FFN" for r in rows]} | {on.title: [f"{r[name]:.3f} / {apart.usd(r['model'], r['part'], r['n_context'], name):.3f}" for r in rows] for name, on in rental.ACCELERATORS.items()})

# %% [markdown]
# FLOP a byte of attention's own against each accelerator's ridge, from the same tables: where the intensity is above
# the ridge, arithmetic is paid for, else bandwidth.

# %%
t = published.table("step3_models").where(n_context=8192.0)
intensity = t["attention_flops"] / t["kv_bytes"]
ridge = {on.title: on.flops_per_s / on.hbm_bytes_per_s for on in rental.ACCELERATORS.values()}
plotting.table({"model": t["title"], "FLOP/B": np.round(intensity)} | {f"{name}, ridge {r:.0f}": ["arithmetic" if x > r else "bandwidth" for x in intensity] for name, r in ridge.items()})

# %% [markdown]
# ## Apart: attention and FFN on different GPUs
#
# Stage times for 61 layers with attention and FFN equal and a transfer as given: the published formula, the closed form and
# a simulation of events. The formula holds from the number of micro-batches in the second column on.

# %%
cases = [(c, m) for c in (0.25, 0.5, 1.0) for m in (1, 2, 3, 4, 6)]
plotting.table({"transfer": [f"{c:g}" for c, _ in cases], "needed": [float(afd.micro_batches(1, 1, c)) for c, _ in cases], "micro-batches": [m for _, m in cases], "formula": [f"{2 + 2 * c + m * 61 - 1:.1f}" for c, m in cases], "closed form": [f"{float(afd.step_s(1, 1, c, n_layers=61, n_micro=m)):.1f}" for c, m in cases], "simulated": [f"{afd.simulated_s(1, 1, c, n_layers=61, n_micro=m):.1f}" for c, m in cases]})

# %% [markdown]
# ## Helix's frontier, point by point
#
# The best points of Helix with HOP-B at a million tokens, calibrated kernels; every fourth, and the last.

# %%
shown = []
for name in helix_frontier.MODELS:
    best = helix_frontier.frontier(name, "Helix", hop_b=True)
    shown += [(models.model(name), best, i) for i in sorted({*range(0, best.batch.size, 4), best.batch.size - 1})]
plotting.table({"model": [name for name, _, _ in shown], "layout": [str(best.layout[i]) for _, best, i in shown], "batch": [best.batch[i] for _, best, i in shown], "tokens/s/user": [f"{best.user_per_s[i]:.1f}" for _, best, i in shown], "tokens/s/GPU": [f"{best.gpu_per_s[i]:.1f}" for _, best, i in shown]})

# %% [markdown]
# ## Claims
#
# Helix's closed forms and the overlap of its figure 3:

# %%
tables.checks([c for topic in ("helix_figure1", "overlap", "sequel", "micro_batches") for c in claims.check(topic)])

# %% [markdown]
# Its factors, tied KVP among the rest. What HOP-B adds in DeepSeek-R1 is far more with us, because partial outputs are exchanged in the latent, as
# the real kernels do, and each exchange starts as slowly as NCCL's. In the paper HOP-B matters more in Llama, with us in DeepSeek: the last
# line, a gap where the order is reversed.

# %%
tables.checks(claims.check("helix_factors"))

# %% [markdown]
# Limits of expert parallelism, the exchange, the plateau, experts in a latent size. The load of the busiest rank is
# too high with us.

# %%
tables.checks([c for topic in ("expert_limits", "all_to_all", "plateau", "latent_experts") for c in claims.check(topic)])

# %% [markdown]
# One key-value head, as users measured it:

# %%
tables.checks(claims.check("one_kv_head"))

# %% [markdown]
# Capacity agrees. The ratios for prompts are off by about a third, and no single number mends them:
#
# * *Indexers.* The quadratic part of such a prompt is the scoring of its indexers, a third of our time with DP. vLLM divides the heads of attention, not
#   those of indexers, so every TP rank scores with all of them, and so it is priced here. If TP divided them, the ratio would be far too small (third row).
# * *Kernels.* No table has compressed attention or indexers; both are bounds here. A prompt takes three and a half times as long as ours with TP, nearly three times with DP.
# * *Full and idle replicas.* With DP half of the prompts had their first token in little more than half of the time that a prompt takes at the
#   measured rate. Equal replicas, as ours, cannot do both.
#
# In the divided context of a user's trace our step decodes alone, and theirs reads prompts between turns.

# %% [markdown]
# Work and prices of Step-3's tables, FastAFD. What a token asks for is computed from the models' configs; Llama 4's
# cache is not reproduced, and the FLOPs of latent attention are counted there as if values had the keys' size. The claims
# of table 6 are the table of prices above; all agree.

# %%
tables.checks([c for topic in ("step3_work", "step3_costs", "fast_afd") for c in claims.check(topic) if not c.claim.source.endswith("table 6")])
