# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# (study-attention-ffn)=
# # Attention and FFN sharded separately
#
# **Question.** How many milliseconds of a decode step are attention's and how many the FFN's when a model is spread over
# up to 64 GPUs, and which division of each gives the most tokens a second, per user and per GPU?
#
# Attention reads the key-value cache, which belongs to one user; the FFN reads weights, which all users share. The
# article {cite}`nvidia2026codesign` concludes two things: large sparse mixtures with wide expert parallelism for
# throughput (guideline 5), and separate parallelism of the two halves for latency (guideline 7). Its sequel
# {cite}`nvidia2026attention` adds four guidelines on attention. Helix {cite}`bhatia2025helix` is guideline 7 carried
# out: the cache is divided along the sequence, then the same GPUs divide the FFN.

# %% [markdown]
# ## Prediction
#
# Made by hand, before anything was computed:
#
# 1. Tensor parallelism (TP) divides heads. 64 query heads on 8 key-value heads: TP 8 makes attention **8×** faster, TP
#    64 no more than that. With one latent for all heads TP changes **nothing**, on any GPU.
# 2. Llama-3.1-405B with 1M tokens: from the bytes of Helix's Figure 1, TP 64 reads 128 µs of cache and 4 µs of weights a layer,
#    Helix on the same 64 GPUs 16 and 8 µs. Helix should give a user **5.5×** as many tokens a second.
# 3. Sending 32 tokens a rank to their experts and back takes 7 µs at the full rate of NVLink
#    {cite}`deepseek2025insights`; with some latency **10 µs**.
# 4. 32 GPUs hold DeepSeek-R1's experts, 128 tokens come. Cut by width (TP) or by experts (EP), a GPU reads 1/32 of
#    the weights: **equal** times.
# 5. If favourites are as popular as measured benchmarks assume, the busiest of 32 ranks has **2×** the mean load.

# %% [markdown]
# ## Setting
#
# Chip, models and batches may be changed in any cell. Weights are NVFP4; the cache is FP8, the narrowest in which
# attention kernels were measured.

# %%
import matplotlib.pyplot as plt
import numpy as np

from codesign_lib.cost import attention_kernels, collectives, experts, latent_kernels, moe_kernels, ops, tiling
from codesign_lib.report import claims, plotting, tables
from codesign_lib.report.claims import afd as apart
from codesign_lib.report.claims import helix_frontier
from codesign_lib.report.claims import layout as layout_claims
from codesign_lib.report.plotting import say, si, table
from codesign_lib.serving import afd, helix, layout, rental, sharded_attention, shards
from codesign_lib.serving.decode import decode_step_s
from codesign_lib.serving.families import crossover_tokens
from codesign_lib.serving.layout import Layout
from codesign_lib.serving.memory import max_batch
from codesign_lib.specs import formats, models, published

plotting.style()
r1, llama, in_fp4 = models.model("deepseek_r1"), models.model("llama_3_1_405b"), helix_frontier.IN_FP4

# %% [markdown]
# ## Model
#
# With B sequences of S tokens, K key-value heads of size d, hidden size H = Q d and an FFN of width F, a GPU reads in every
# layer
#
# $$
# \begin{aligned}
# T_{KV} &= B \cdot 2 \left\lceil \frac{K}{\text{TP}_A} \right\rceil d\, \frac{S}{\text{KVP}}\, \frac{b}{W} \\
# T_W &= \Bigl(2 H \frac{Q}{\text{TP}_A} d + 2 H \left\lceil \frac{K}{\text{TP}_A} \right\rceil d \\
#     &\qquad + \frac{3 H F}{\text{TP}_F}\Bigr) \frac{b}{W}
# \end{aligned}
# $$ (eq-helix)
#
# b bytes an element, W the bandwidth. TP beyond K leaves the cache as it is, copied; key-value parallelism (KVP) divides
# it further. Helix takes $\text{KVP} \cdot \text{TP}_A$ GPUs for attention and the same ones as $\text{TP}_F \cdot \text{EP}$ for the FFN.
# Helix's Figure 1 (Q = 128, K = 8, d = 128, F = 65,536, batch 8, 1M tokens, half a byte, 8 TB/s), in µs a layer. Look at
# where $T_{KV}$ stops falling.

# %%
n, fig1 = np.array([1, 2, 4, 8, 16, 32, 64]), dict(n_kv_heads=8, d_head=128, chip="gb200", fmt="fp4_payload")
reads = {"T_KV, TP": helix.kv_read_s(1e6, n_batch=8, tp=n, **fig1), "T_KV, TP to 8, then KVP": helix.kv_read_s(1e6, n_batch=8, tp=np.minimum(n, 8), kvp=np.maximum(n // 8, 1), **fig1)}
reads |= {f"T_W, {name}": helix.weight_read_s(n_heads=128, d_ffn=65_536, tp_attention=a, tp_ffn=n, **fig1) for name, a in (("TP", n), ("Helix", np.minimum(n, 8)))}
table({"GPUs": n} | {name: [f"{1e6 * t:.2f}" for t in row] for name, row in reads.items()})

# %% [markdown]
# More TP than key-value heads divides only the smaller part. These are bytes over bandwidth. What follows prices whole steps: {py:func}`codesign_lib.serving.decode.decode_step_s` adds the time of
# every GEMM, attention and expert kernel on what a GPU holds, and of every collective, each calibrated on measured
# tables ({ref}`accuracy <evidence-other-kernels>`). HOP-B overlaps the exchange of one request with the attention of the next.
#
# ## Sharding is exact
#
# Each shard returns its output, its largest logit and its sum of exponentials; from these the whole is recovered. Here
# 1,000 tokens are dealt in blocks of 16 over seven shards, one more is empty, and some logits are in the thousands. Grouped heads, and a latent
# as in DeepSeek:

# %%
x, of = np.random.default_rng(4).normal, sharded_attention.owners(1000, n_shards=7)
q, k, v = 1000 * x(size=(32, 64)), x(size=(1000, 4, 64)), x(size=(1000, 4, 64))
parts = [sharded_attention.attend(q, k[of == i], v[of == i]) for i in range(8)]
grouped = np.abs(sharded_attention.merge(parts).out - sharded_attention.attend(q, k, v).out).max()
q, rope, c, k_rope, up = x(size=(32, 128)), x(size=(32, 64)), x(size=(1000, 512)), x(size=(1000, 64)), x(size=(32, 128, 512)) / 16
parts = [sharded_attention.absorbed(q, rope, c[of == i], k_rope[of == i], key_up=up) for i in range(8)]
latent = np.abs(sharded_attention.merge(parts).out - sharded_attention.absorbed(q, rope, c, k_rope, key_up=up).out).max()
say(f"Largest difference between sharded and whole below 10⁻⁹: grouped **{'yes' if grouped < 1e-9 else 'no'}**, latent **{'yes' if latent < 1e-9 else 'no'}**. Tokens a shard: {', '.join(str(n) for n in np.bincount(of, minlength=8))}.")

# %% [markdown]
# ## What TP does to attention, measured
#
# Look for the right end of each panel: heads left to a GPU fall from left to right, and in the left panel the time does not follow.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Decode attention of one layer against the tensor parallelism that divides its heads. Left: one latent, 128 heads, batch 8 of 131,072 tokens. Right: 64 query heads on 8 key-value heads, batch 8 of 32,768. Markers: measured (TensorRT-LLM). Lines: ours.", "name": "fig-heads"}, "image": {"alt": "Two panels on log axes. Left, latent: GB300 stays near 230 microseconds from TP 1 to TP 128 except 324 at TP 4, and falls in FP8 from 118 to 104 except 144 at TP 4; H200 falls from 457 at TP 1 to 296 at TP 2 and is flat after that. Right, grouped: GB300 falls from 158 to 37 microseconds from TP 1 to TP 8 in BF16 and from 85 to 19 in FP8, then both stay flat to TP 64; H200 falls from 266 to 54 and rises to 71 at TP 64. Our lines follow, without the bumps, mostly within 20 percent."}}
latents, heads = published.table("latent_heads").where(n_batch=8.0, n_tokens=131_072.0, engine="trtllm"), published.table("attention_heads").where(d_head=128.0)
fig, axes = plt.subplots(1, 2, figsize=(7.6, 4.2), sharey=True)
for color, chip, fmt, title in ((plotting.SERIES[0], "gb300", "bf16", "GB300 BF16"), (plotting.SERIES[1], "gb300", "fp8", "GB300 FP8"), (plotting.SERIES[4], "h200_sxm", "bf16", "H200 BF16")):
    row, on = latents.where(chip=chip, kv_fmt=fmt).sorted_by("n_heads"), {"chip": chip, "fmt": fmt, "n_batch": 8, "repeated": True}
    plotting.markers(axes[0], 128 / row["n_heads"], 1e6 * row["latency_s"], color=color, label=f"{title}, measured")
    plotting.line(axes[0], 128 / row["n_heads"], 1e6 * latent_kernels.latent_decode_s(131_072, n_heads=row["n_heads"], **on), color=color, label=f"{title}, ours")
    seen = [heads.where(chip=chip, kv_fmt=fmt, n_heads=64.0 / tp, n_kv_heads=float(max(8 // tp, 1)))["latency_s"][0] for tp in n]
    plotting.markers(axes[1], n, 1e6 * np.array(seen), color=color, label="")
    plotting.line(axes[1], n, 1e6 * attention_kernels.attention_decode_s(32_768, n_heads=64 / n, n_kv_heads=np.maximum(8 // n, 1), **on), color=color)
for ax, title, most in zip(axes, ("one latent", "8 key-value heads"), (128, 64), strict=True):
    ax.set(xscale="log", yscale="log", xlabel="TP", title=title, xticks=[1, 4, 16, most], xticklabels=[1, 4, 16, most], yticks=[20, 50, 100, 200, 500], yticklabels=[20, 50, 100, 200, 500])
    ax.minorticks_off()
axes[0].set(ylabel="time (µs)")
fig.legend(*axes[0].get_legend_handles_labels(), ncols=3, fontsize=8, loc="outside lower center")
plt.show()

# %% [markdown]
# **The first prediction is half right.** Beyond the key-value heads TP gives nothing, and for the latent on GB300 hardly anything: nothing in
# BF16, an eighth of the time in FP8, and one point is worse. But eight heads over TP 8 are four to five times as fast, not eight
# times (rule 4.1 has the ratios): a launch and a floor stay. At 32 heads a GPU (TP 4) TensorRT-LLM takes about 40 % longer,
# and SGLang is slower there too ({ref}`all rows <evidence-attention-ffn>`); our model has no such bump. On H200 128 heads in BF16 have 242 FLOP a
# byte, above its ridge: there TP 2 does help. The law behind both panels is the intensity, here in FLOP a
# byte on one GPU for Llama-3.1-405B and 32K tokens. Look at which column changes.

# %%
cases = [(b, tp) for b in (1, 8, 64) for tp in (1, 8, 64)]
mixing = [ops.attention.decode(32_768, n_heads=128 // tp, n_kv_heads=max(8 // tp, 1), d_head=128, n_batch=b, kv="fp8") for b, tp in cases]
down = [ops.linear(b, 53_248 / tp, 16_384, inputs="nvfp4", weights="nvfp4", outputs="bf16") for b, tp in cases]
table({"batch": [b for b, _ in cases], "TP": [tp for _, tp in cases]} | {name: [f"{float(w.intensity):.1f}" for w in of] for name, of in (("attention", mixing), ("FFN, down", down))})

# %% [markdown]
# Attention stays at twice G, the query heads a key-value head, until TP passes the key-value heads; then heads are
# taken away from a cache that stays, and it falls. The FFN grows with the batch. So the two want different
# things: the FFN wants as many users as possible on the same weights, attention wants its bytes divided.
#
# ## What divides
#
# Not every number of GPUs divides every model. Three uses of N GPUs: TP for both halves; attention data-parallel with experts spread (DP + EP); and
# the cache along the sequence with the FFN by width (KVP + TP). Look for the gaps, and for the numbers.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Numbers of GPUs that divide a model, in three uses. Hatched: refused. Color and number: share of the padded weights of a GPU that was asked for, in percent, when slices are rounded up to 128; 100 is not written.", "name": "fig-divides"}, "image": {"alt": "Three grids of eight models against 1 to 64 GPUs. Under TP and under KVP + TP powers of two divide nearly everything; 24 and 48 divide only MiniMax, 3, 6 and 12 only MiniMax and only under KVP + TP; under TP 32 does not divide MiniMax, and 64 neither MiniMax nor Nemotron. Padding leaves 57 to 79 percent at 32 GPUs and 30 to 60 at 64 for models with narrow experts, and gpt-oss is padded everywhere. DP + EP is allowed on every number of GPUs and loses nothing but gpt-oss's 3 percent; dense models have no experts to spread."}}
names, gpus = ("deepseek_r1", "kimi_k2", "qwen3_235b_a22b", "gpt_oss_120b", "minimax_m2_5", "nemotron_3_super", "llama_3_1_405b", "qwen3_32b"), np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])
fig, axes = plt.subplots(1, 3, figsize=(7.8, 3.9), sharey=True)
for ax, title, use in zip(axes, ("TP", "DP + EP", "KVP + TP"), (Layout(tp_attention=gpus, tp_ffn=gpus), Layout(dp=gpus, ep=gpus), Layout(kvp=gpus, tp_ffn=gpus)), strict=True):
    share = np.array([np.where(layout.valid(use, m), 100 * shards.tile_efficiency(m, use), np.nan) for m in names])
    ax.patch.set(hatch="//////", edgecolor="#555555", lw=0.0)  # seen where a cell is empty
    ax.pcolormesh(share, cmap="cividis", vmin=30, vmax=100, edgecolors="black", lw=0.6)
    for (i, j), value in np.ndenumerate(share):
        ax.text(j + 0.5, i + 0.5, "" if not value < 99.5 else f"{value:.0f}", ha="center", va="center", fontsize=6, color="white" if value < 61 else "black")
    ax.set(title=title, xlabel="GPUs", xticks=np.arange(len(gpus)) + 0.5, yticks=np.arange(len(names)) + 0.5)
    ax.set_xticklabels(gpus, fontsize=7)
    ax.grid(False)
axes[0].set_yticklabels([str(models.model(m)) for m in names], fontsize=8)
axes[0].invert_yaxis()
plt.show()

# %% [markdown]
# What a layout breaks is said all at once, with the nearest numbers that work: `layout.violations`. TP cuts experts thin: a rank
# of 2,048 / 64 = 32 columns is padded to 128 in tiles of that width. Experts that are spread stay whole, on any number of GPUs, some holding one more than others. A pipeline takes any number of stages up to the layers. This is geometry; the
# time of thin slices is in {ref}`study 2 <study-dimensioning>`.
#
# ## Wide expert parallelism
#
# The article's argument for guideline 5: rows of an expert's GEMM are concurrency × top-k / experts; the cache caps
# concurrency; more GPUs on one set of experts free memory and add weight bandwidth. DeepSeek-R1 on GB200, attention
# data-parallel, memory filled with requests of 128K tokens:

# %%
ep, long = np.array([4, 8, 16, 32, 64]), dict(n_context=131_072, precision=in_fp4)
wide = Layout(dp=ep, ep=ep)
held = max_batch(r1, "gb200", layout=wide, **long)
took = decode_step_s(r1, "gb200", layout=wide, batch=held, **long)
rate = held / ep / took.step_s
table({"EP": ep, "requests a GPU": held / ep, "rows an expert": experts.tokens_per_expert(held, n_experts=256, n_chosen=8), "experts": [si(t, "s") for t in took.experts_s], "communication": [si(t, "s") for t in took.communication_s], "step": [si(t, "s") for t in took.step_s], "tokens/s/GPU": np.round(rate)})

# %% [markdown]
# The argument holds in its direction: from EP 4 to 64 experts get many times the rows, their time falls, and each GPU serves twice the
# requests. Most is won by 16. Even 64 GPUs give an expert fewer rows than a tile of 128 has: at this context the cache, not the experts, is the limit.
#
# What it costs is the way there and back. Look at the distance between markers and dashed lines on the left.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Dispatch and combine of TensorRT-LLM's one-sided kernels on GB200 NVL72 (hidden size 7,168, 8 of 256, BF16). Markers: measured. Lines: the form fitted to them. Dashed: bytes over the full rate of NVLink.", "name": "fig-all-to-all"}, "image": {"alt": "Time on a log axis against 1 to 2,048 tokens a rank. All four series of markers lie at 50 to 60 microseconds up to 32 tokens, then rise to 634 at EP 8 and 771 at EP 64 for 2,048 tokens. The dashed bound passes 8 microseconds at 32 tokens and 522 at 2,048; at few tokens it is 200 times below the markers."}}
tokens, fig = np.geomspace(1, 2048, 45).round(), plt.figure(figsize=(7.0, 4.0))
ax = fig.subplots()
for color, size in zip(plotting.SERIES, (8, 16, 32, 64), strict=False):
    row = published.table("moe_all_to_all").where(ep=float(size)).sorted_by("n_tokens")
    plotting.markers(ax, row["n_tokens"], 1e6 * (row["dispatch_s"] + row["combine_s"]), color=color, label=f"EP {size}, measured")
    both = [collectives.moe_all_to_all_s(tokens, phase=phase, ep=size) for phase in ("dispatch", "combine")]
    plotting.line(ax, tokens, 1e6 * sum(both), color=color, lw=1.2, label=f"EP {size}, fitted")
moved = 2 * experts.dispatch_bytes(tokens, ep=8, d_model=7168, n_chosen=8)
plotting.line(ax, tokens, 1e6 * collectives.point_to_point_s(moved, chip="gb200", bound=True), "--", color=plotting.NETWORK, label="bound")
ax.set(xscale="log", yscale="log", xlabel="tokens a rank", ylabel="dispatch and combine (µs)", ylim=(0.2, 1500), xticks=[1, 32, 128, 512, 2048], xticklabels=["1", "32", "128", "512", "2,048"], yticks=[1, 10, 100, 1000], yticklabels=["1", "10", "100", "1,000"])
ax.minorticks_off()
ax.legend(fontsize=8, ncols=2)
plt.show()

# %% [markdown]
# **The third prediction is wrong**: 51 to 59 µs were measured at 32 tokens, six to seven times the dashed bound. With two micro-batches in turn, 61
# layers take 14.76 ms at least over a 400 Gb/s NIC and 0.82 ms over NVLink {cite}`deepseek2025insights`; one of them takes 3.4 ms as measured. An
# all-gather and a reduce-scatter move EP / top-k times as many bytes, so the all-to-all wins as soon as EP is above top-k.
#
# ## Experts by width or whole
#
# DeepSeek-R1's experts on GB300 in NVFP4, in µs, measured / ours: decode and prefill sizes on 8 and 32 GPUs, all
# tokens together. *Skewed* is the benchmark's power law with exponent 1.2. The exchange is ours: dispatch and combine for EP, an
# all-reduce for TP.

# %%
rows, how = published.table("moe_ranks").where(d_model=7168.0, fmt="nvfp4"), dict(d_model=7168, d_expert=2048, n_experts=256, n_chosen=8, chip="gb300", fmt="nvfp4")
cases, kinds = [(size, m) for size in (8, 32) for m in (128, 2048, 16_384)], {"EP": ("ep", "balanced"), "EP, skewed": ("ep", "power_law_1.2"), "TP": ("tp", "balanced")}
cells = {name: [(1e6 * rows.where(**({"ep": 1.0, "tp": 1.0} | {by: float(size)}), n_tokens=float(m), routing=routing)["latency_s"][0], 1e6 * moe_kernels.moe_s(m, **how, **{by: size}, routing=routing.replace("power_law_1.2", "skewed"))) for size, m in cases] for name, (by, routing) in kinds.items()}
sent = [sum(collectives.moe_all_to_all_s(m // size, phase=p, ep=size) for p in ("dispatch", "combine")) for size, m in cases]
reduced = [collectives.all_reduce_s(m * 7168 * 2, n_ranks=size, chip="gb300", engine="trtllm") for size, m in cases]
table({"GPUs": [size for size, _ in cases], "tokens": [m for _, m in cases]} | {name: [f"{a:.0f} / {b:.0f}" for a, b in row] for name, row in cells.items()} | {"exchange, EP": [f"{1e6 * t:.0f}" for t in sent], "exchange, TP": [f"{1e6 * t:.0f}" for t in reduced]})

# %% [markdown]
# **The fourth prediction is wrong**: with 128 tokens on 32 GPUs TP takes three times as long as EP. The bytes are equal, but a slice of 64 columns fills
# half a tile, and every GPU has work on all 256 experts instead of 8. The exchange is cheaper for TP, and EP takes about half of TP's time with it. At prefill size it is eight times: each GPU
# multiplies for every expert in thin tiles. With few tokens skew even helps: fewer experts are awake. At 16,384 tokens on 32 GPUs
# it takes back a seventh of the microseconds that EP won; EP is then four times as fast as TP instead of eight.
#
# **The fifth prediction is wrong, too low**: without a balancer the busiest of 32 ranks had 2.56 times the mean load, and one spare slot a rank
# brought it to 1.11 {cite}`trtllm_blog4`. Our power law is wrong the other way, 40 % above the measured load (rule 4.3). That the skewed time is twice the balanced one is no evidence for the load; a time also has parts that do not grow with it.
#
# ## When attention goes data-parallel
#
# TP divides the attention weights and copies a cache that has too few heads; data-parallel attention (DP) copies the weights
# and divides the cache. It reads less from w / k tokens in flight on, weights over cache bytes a token, on any number
# of GPUs if there is one latent.

# %%
how = [(r1, "fp8", "bf16", 1), (r1, "nvfp4", "fp8", 1), (models.model("qwen3_235b_a22b"), "nvfp4", "fp8", 4), (llama, "nvfp4", "fp8", 8)]
sizes = [(m.n_params_by_part["attention"] * formats.as_format(w).bytes_per_element, m.kv_bytes_per_token(kv), k) for m, w, kv, k in how]
least = [[helix.attention_dp_tokens(weight_bytes=w, kv_bytes_per_token=kv, n_kv_heads=k, n_gpus=g) for w, kv, k in sizes] for g in (8, 64)]
pays = {b: round(b * crossover_tokens(r1, "gb200", ours=Layout(dp=[8], ep=8), others=Layout(tp_attention=[8], ep=8), batch=b, precision=in_fp4), -4) for b in (8, 256)}
table({"model": [m for m, *_ in how], "weights": [w for _, w, _, _ in how], "cache": [kv for _, _, kv, _ in how], "key-value heads": [k for *_, k in how], "tokens from, 8 GPUs": np.round(least[0], -2), "64 GPUs": np.round(least[1], -2), "8 GPUs, whole steps": ["–", f"{pays[256]:,.0f} (batch 256), {pays[8]:,.0f} (batch 8)", "–", "–"]})

# %% [markdown]
# By bytes one request of 160K tokens, or forty of 4K, are enough for DeepSeek; Llama's 8 heads never need it on 8 GPUs. A whole step asks for more,
# because DP sends tokens to their experts and back, its GPUs repeat shared experts and dense layers, and the projections to the latents (a twelfth of the
# weights) are whole on every GPU either way: the last column, DP 8 against TP 8 with experts spread in both, is several times the bytes.
#
# A user measured one latent on eight B200 {cite}`vllm_51454`: DeepSeek-V4-Flash holds 7.7 times the tokens with DP 8 that it holds with TP 8, ours agrees. Prompts
# of a million tokens were read 3.2 times as fast with DP, and the median first token came 3.4 times as early; ours is a third too
# high in the one and a third too low in the other, and each prompt takes about three times as long there as our bounds for compressed attention and indexers give. What is missing is on {ref}`the evidence page <evidence-attention-ffn>`.
#
# ## Where the time goes at a million tokens
#
# Each family's fastest layout of up to 64 GB200 for four requests of 1M tokens. Look at the orange part, and at what
# takes its place.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "A decode step of four requests of 1M tokens on GB200 by part: the fastest layout of each family on up to 64 GPUs. Ours, calibrated kernels.", "name": "fig-parts"}, "image": {"alt": "Seven horizontal bars. DeepSeek-R1: TP 29 milliseconds of which attention 22; EP 19 of which attention 7; Helix 10, attention 1.2, communication 2.5; Helix with HOP-B 9. Llama-405B: TP 32 milliseconds of which attention 20; Helix 18, attention 4, communication 3.4; with HOP-B 17. The rest, projections and FFN, is nearly the same in all but EP, whose projections take 4.5 instead of 2.6."}}
cases = [(m, f, hop) for m in (r1, llama) for f, hop in (("TP", False), ("EP", False), ("Helix", False), ("Helix", True)) if (m, f) != (llama, "EP")]
found = [helix_frontier.fastest(m.name, f, batch=4, n_context=1_000_000, hop_b=hop) for m, f, hop in cases]
looks = {"attention": plotting.MEMORY, "projections": plotting.SERIES[3], "ffn": plotting.SERIES[1], "experts": plotting.SERIES[4], "communication": plotting.NETWORK, "head": plotting.SERIES[5]}
fig, ax = plt.subplots(figsize=(7.4, 3.8))
left = np.zeros(len(cases))
for part, color in looks.items():
    width = plotting.drawn([1e3 * float(step.parts_s[part]) for _, step in found])
    ax.barh(range(len(cases)), width, left=left, color=color, label=part, height=0.7)
    left = left + width
ax.set_yticks(range(len(cases)), [f"{m.title.replace('Llama-3.1-', '')}: {f}{', HOP-B' if hop else ''}\n{str(x).replace('tp_attention', 'TP_A').replace('tp_ffn', 'TP_F').replace('kvp', 'KVP').replace('dp', 'DP').replace('ep', 'EP')}" for (m, f, hop), (x, _) in zip(cases, found, strict=True)], fontsize=8)
ax.set(xlabel="time (ms)", xlim=(0, 36))
ax.invert_yaxis()
fig.legend(ncols=6, fontsize=8, loc="outside lower center")
plt.show()

# %% [markdown]
# Against TP Helix takes attention from most of the step to a quarter or less. What remains is what no division helps: kernels
# at their launch times, 126 layers of them in Llama, and communication, which grew.
#
# ## Frontier
#
# All layouts and batches that fit, 1 to 64 GPUs, 1M tokens. Look where Helix leaves the others, and that it does not at the left end.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Tokens a second and GPU against tokens a second and user, decoding with 1M tokens of context on 1 to 64 GB200: the best points of each family. Ours; the paper prints no absolute numbers.", "name": "fig-frontier"}, "image": {"alt": "Two panels, DeepSeek-R1 and Llama-405B. In DeepSeek-R1 TP and PP end at 72 tokens per second and user, EP at 54, tied KVP at 80, Helix at 106; at the left Helix reaches 108 tokens per second and GPU, EP 98, PP 82, TP and tied KVP 25 and 21. In Llama-405B TP and PP end at 53, tied KVP at 56, Helix at 60; all begin at 14 to 17 tokens per second and GPU, and Helix is highest everywhere."}}
fig, axes = plt.subplots(1, 2, figsize=(7.6, 4.2))
for ax, m in zip(axes, (r1, llama), strict=True):
    for color, dash, family in zip(plotting.SERIES, (":", "-.", "--", (0, (5, 1)), "-"), ("PP", "TP", "EP", "tied KVP", "Helix"), strict=False):
        best = helix_frontier.frontier(m.name, family, hop_b=family == "Helix")
        if best.batch.size:
            plotting.line(ax, best.user_per_s, best.gpu_per_s, drawstyle="steps-pre", ls=dash, color=color, lw=2.4 if family == "Helix" else 1.4, label=family)
    ax.set(title=m.title, xlabel="tokens/s/user", ylabel="tokens/s/GPU", ylim=(0, None), xlim=(0, None))
fig.legend(*axes[0].get_legend_handles_labels(), ncols=5, fontsize=8, loc="outside lower center")
plt.show()

# %% [markdown]
# As long as nobody is in a hurry Helix gains little over data-parallel attention in DeepSeek-R1 and over a pipeline in Llama, and that by HOP-B.
# It wins where a user waits for tokens. *Tied KVP* divides the cache and leaves the FFN on a few GPUs, as systems before
# Helix did. The six factors of the paper, which come from a simulator of its authors, in three settings of ours:
# calibrated kernels with an FP8 cache; the same with half the tokens, which has the bytes of the paper's FP4 cache; the roofline
# with FP4 everywhere and no latency. The rest is TP, PP, EP, their mixtures and tied KVP, as in the paper; the last setting leaves tied KVP out. Helix over the rest: most tokens/s/user; most tokens/s/GPU at equal
# tokens/s/user, where that ratio is largest; and what tokens/s/user lose without HOP-B at equal tokens/s/GPU, at most.

# %%
settings = [(name, name, True) for name in helix_frontier.SETTINGS] + [("kernels, no tied KVP", "kernels", False)]
factors = {title: [helix_frontier.factors(m, name, with_tied=tied) for m in helix_frontier.MODELS] for title, name, tied in settings} | {"paper": list(helix_frontier.PUBLISHED.values())}
what, part = ("tokens/s/user", "tokens/s/GPU", "no HOP-B, %"), [100 * (a - (i < 2)) / (b - (i < 2)) for one, other in zip(factors["kernels"], factors["paper"], strict=True) for i, (a, b) in enumerate(zip(one, other, strict=True))]
table({"model": [m.title for m in (r1, llama) for _ in what], "factor": 2 * what} | {title: [f"{100 * x:.0f}" if i == 2 else f"{x:.1f}" if x > 10 else f"{x:.2f}" for one in row for i, x in enumerate(one)] for title, row in factors.items()} | {"kernels, % of the paper's gain": [f"{x:,.0f}" for x in part]})

# %% [markdown]
# **The second prediction is wrong** by far, and not because of the bytes: the roofline gives less than half of it. With kernels and
# collectives as they were measured, most of a layer of Llama is launches and exchanges (figure above), which nothing divides. All signs agree, of which
# only the two of tokens/s/user are evidence and counted below: HOP-B cannot lose in our model, and where the ratio of two curves is largest it is
# hardly below 1. Five of the six factors are within 2× of the paper in the first setting, which says little where a factor is near 1. The last column
# says more, what we have of the paper's gain: of that in tokens/s/user two thirds in DeepSeek-R1 and a little more than half in Llama. One factor is not
# within 2×, and with it one order of the models is reversed:
#
# * *HOP-B in DeepSeek-R1.* The paper says that its exchange is about 1 % of a step. We exchange what the real kernels do,
#   partial outputs in the latent: 128 heads of 512, nine times the hidden size. So HOP-B matters more in DeepSeek than in Llama here, and less in the paper. The
#   orders of the other two factors agree.
# * *Throughput* is a ratio where the other curve ends and falls steeply: without tied KVP it is a third smaller in one model
#   and a fifth larger in the other. Agreement in it is partly luck.
# * *Settings.* Half the bytes shrink what Helix can save, in three of four factors; the launches and latencies stay. The roofline has no price for
#   a division at all. What an FP4 cache does should lie between the first two; no kernel of the
#   public tables reads one.
#
# Below which context does Helix stop helping? The fastest of its layouts against the fastest of TP's, up to 64 GPUs,
# every exchange paid and HOP-B off; then with one thing changed. A faster memory or link keeps the fitted shares of
# its rate and the fitted latencies.

# %%
cases = [dict(batch=1), dict(batch=8), dict(batch=64), dict(batch=8, n_kv_heads=1), dict(batch=8, n_kv_heads=32), dict(batch=8, memory_ratio=2), dict(batch=8, link_ratio=2), dict(batch=8, bound=True)]
titles = ["batch 1", "batch 8", "batch 64", "batch 8, 1 key-value head", "batch 8, 32 key-value heads", "batch 8, memory twice as fast", "batch 8, links twice as fast", "batch 8, roofline"]
meets = {m: [helix_frontier.crossover_tokens(m.name, **case) if m is llama or "n_kv_heads" not in case else np.nan for case in cases] for m in (llama, r1)}
table({"Helix beats TP from, tokens": titles} | {m.title: [f"{x:,.0f}" if x == x else "–" for x in row] for m, row in meets.items()})

# %% [markdown]
# Below its line TP wins: it has fewer exchanges to pay. More sequences bring the line down, because the cache grows with them and weights and
# launches do not; many key-value heads push it up, as TP can then divide them itself; faster memory pushes it up, faster
# links bring it down. By bytes alone Figure 1 has cache and weights even at 231,424 tokens. The paper names 4K as the
# context below which Helix turns into data-parallel attention; ours come near that only in large batches.
#
# ## Smaller experts, longer drafts
#
# LatentMoE runs experts in a smaller size, here 1,024 instead of the model's 4,096: a quarter of the weights and of what is dispatched. Its 512 experts,
# 22 a token, on GB300 in NVFP4, in µs, measured / ours:

# %%
rows, how = published.table("moe_ranks").where(n_experts=512.0, routing="balanced"), dict(d_expert=2688, n_experts=512, n_chosen=22, gated=False, chip="gb300", fmt="nvfp4")
cases = [(size, m) for size in (8, 32) for m in (64, 1024, 16_384)]
cells = {f"experts of {h:,}": [(1e6 * rows.where(d_model=float(h), ep=float(size), n_tokens=float(m))["latency_s"][0], 1e6 * moe_kernels.moe_s(m, d_model=h, ep=size, **how)) for size, m in cases] for h in (4096, 1024)}
table({"EP": [size for size, _ in cases], "tokens": [m for _, m in cases]} | {name: [f"{a:.0f} / {b:.0f}" for a, b in row] for name, row in cells.items()} | {"measured, ×": [f"{a / b:.2f}" for (a, _), (b, _) in zip(*cells.values(), strict=True)], "ours, ×": [f"{a / b:.2f}" for (_, a), (_, b) in zip(*cells.values(), strict=True)]})

# %% [markdown]
# A quarter of the bytes gives 1.4 to 1.9 times the speed, not 4: launch, sorting and tiles stay. At 16,384 tokens our
# model promises too much, since it sorts tokens in proportion to their size.
#
# Drafts fill tiles. G query heads share a key, and with D draft tokens to verify G·(1 + D) rows multiply it: 128 rows, a
# tile, at D = 128/G − 1 {cite}`nvidia2026drafts`. What seven drafts cost a
# step on eight GB200, batch 8, TP for the first three and data-parallel attention for DeepSeek:

# %%
asked = {models.model("gpt_oss_120b"): Layout(tp_attention=8, ep=8), models.model("qwen3_235b_a22b"): Layout(tp_attention=8, ep=8), llama: Layout(tp_attention=8, tp_ffn=8), r1: Layout(dp=8, ep=8)}
group = [m.config.layers[0].mixers[0].n_heads // getattr(m.config.layers[0].mixers[0], "n_kv_heads", 1) for m in asked]
steps = {s: [decode_step_s(m, "gb200", layout=x, batch=8, n_context=s, precision=in_fp4, n_draft=[0, 7]).step_s for m, x in asked.items()] for s in (4096, 131_072)}
table({"model": asked, "G": group, "D that fills a tile": tiling.draft_tokens(group)} | {f"7 drafts, {s:,} tokens": [f"{b / a:.2f}×" for a, b in row] for s, row in steps.items()})

# %% [markdown]
# Verifying eight tokens costs far less than eight steps. With long contexts it costs least, because the cache is read anyway, except in
# DeepSeek-R1: its 128 heads fill a tile alone, every draft is arithmetic, and attention becomes compute-bound.
#
# ## Attention and FFN on different GPUs
#
# Disaggregation (AFD) sends micro-batches round between GPUs for attention and GPUs for the FFN. With $T_a$, $T_e$ a layer
# and $T_c$ each way,
#
# $$
# \begin{aligned}
# T &= T_a + T_e + 2T_c + (mL - 1)\,F, \qquad F = \max(T_a, T_e) \\
# m &\ge (T_a + T_e + 2T_c) / F
# \end{aligned}
# $$ (eq-afd)
#
# for m micro-batches and L layers, if $T_c \le F$ {cite}`zhu2025megascale`. Three comparisons: with a simulation, with measured speed-ups {cite}`fastafd2026`, and
# with the prices of rented accelerators {cite}`stepfun2025step3`. All rows are on {ref}`the evidence page <evidence-attention-ffn>`.

# %%
need, formula, events = float(afd.micro_batches(1, 1, 0.5)), *(float(f(1, 1, 0.5, n_layers=61, n_micro=3)) for f in (afd.step_s, afd.simulated_s))
fast = {c.claim.what: c for c in claims.check("fast_afd")}
cheap = {(m, s): [min((apart.usd(m, part, s, on), rental.ACCELERATORS[on].title) for on in rental.ACCELERATORS) for part in ("attention", "ffn")] for m in ("step3", "dsv3") for s in (8192, 32_768)}
say("\n".join([
    f"- **Hiding the transfer.** A transfer of half a stage needs {need:.0f} micro-batches; 61 layers then take {formula:.0f} stage times by the formula and {events:.0f} in a simulation of events.",
    "- **Speed-up of a mixture on 17 attention GPUs to 1 for experts**, from shares of time and batch sizes alone: " + "; ".join(f"{what.split(',')[1].strip()} {c.ours:.3f} against {c.claim.value:.2f} measured" for what, c in fast.items() if "measured" in what) + ".",
    "- **Cheapest place for each half**, $ a million tokens: " + "; ".join(f"{apart.title(m)} at {s // 1024}K attention {a:.3f} on {x}, FFN {f:.3f} on {y}" for (m, s), ((a, x), (f, y)) in cheap.items()) + ".",
]))

# %% [markdown]
# AFD is the same separation as Helix in space instead of time, and the prices show why: bandwidth is cheap on one accelerator and arithmetic on another. It pays when each half
# has GPUs enough to be busy; ours says nothing about what uneven requests cost.
#
# ## Check against published numbers
#
# All claims of this study by topic. Topics without a gap agree to the printed digit, or in sign and order. A claim with a gap *holds* when the gap
# is the one on record, however wide: the reversed order of HOP-B is one of them. Every claim stands on {ref}`the evidence page <evidence-attention-ffn>`.

# %%
topics = [topic for topic, of in claims.TOPICS.items() if of.__module__ in {x.__name__ for x in (layout_claims, helix_frontier, apart)}]
tables.summary({topic: claims.check(topic) for topic in topics})

# %% [markdown]
# The wide gaps are HOP-B in DeepSeek-R1, alone and over Llama's, and throughput in Llama, discussed above; one key-value head's prompts; the exchange against its bound; the busiest
# rank, for which a power law is too steep; and the divided context of a user's trace, where our step decodes alone and theirs prefills between turns.
#
# ## Where it breaks
#
# In order of size:
#
# 1. **Collectives of 16 to 64 GPUs** follow from forms fitted on fewer, NCCL's all-to-all on 2 to 8, and Helix rests on them. Its exchange
#    is priced as that all-to-all; a kernel made for it may start in a fraction of the time.
# 2. **Launches.** Kernel times are those of modules measured one by one. Engines with fused layers and graphs pay less, and
#    a smaller constant makes every division look better.
# 3. **An FP4 cache** has no measured kernel.
# 4. **Wide EP in large batches**: our expert kernels sort the tokens of all ranks, as the benchmark does. With dispatch a
#    rank sorts its own, so at short contexts and full memory we are too slow.
# 5. **The bump at 32 latent heads.**
# 6. **Skew** is one exponent of one benchmark, and HOP-B is an ideal without the cost of smaller pieces.
# 7. **What was left out**: uneven lengths, preemption, sparse attention, more than one domain.
#
# ## Design rules
#
# Each with what breaking it costs, on GB200 with 1M tokens unless it says otherwise; ours, with calibrated kernels, unless it says measured.

# %% tags=["rule", "hide-input"]
best = {(m, f): helix_frontier.frontier(m.name, f, hop_b=f == "Helix") for m in (r1, llama) for f in ("TP", "EP", "Helix") if (m, f) != (llama, "EP")}
top = {key: x.user_per_s.max() for key, x in best.items()}
taken = {(c, f): [1e6 * heads.where(chip=c, kv_fmt=f, n_heads=h, n_kv_heads=k)["latency_s"][0] for h, k in ((64.0, 8.0), (8.0, 1.0), (1.0, 1.0))] for c, f in (("gb300", "fp8"), ("gb300", "bf16"), ("h200_sxm", "bf16"))}
(whole, *flat), times = taken["gb300", "fp8"], [a / b for a, b, _ in taken.values()]
moe = [published.table("moe_ranks").where(d_model=7168.0, fmt="nvfp4", n_tokens=128.0, routing="balanced", ep=a, tp=b)["latency_s"][0] for a, b in ((1.0, 32.0), (32.0, 1.0))]
fits = [float(max_batch(r1, "gb200", layout=x, **long)) for x in (Layout(tp_attention=8, ep=8), Layout(dp=8, ep=8))]
eight, four = (heads.where(chip="gb300", kv_fmt="bf16", n_heads=64.0, n_kv_heads=k)["latency_s"][0] for k in (8.0, 4.0))
busiest = next(c for c in claims.check("expert_limits") if "busiest" in c.claim.what)
early, late = (helix_frontier.crossover_tokens("llama_3_1_405b", batch=b) for b in (64, 1))
narrow = {c.claim.what.split(",")[0]: c.claim.value for c in claims.check("attention_article") if "head size 64 over 128" in c.claim.what}
say("\n\n".join([
    f"**Rule 4.1.** If attention runs on more GPUs than there are key-value heads, then do not add TP, because beyond that point only queries are divided: 64 query heads on 8 key-value heads take {whole:.1f} µs at TP 1, {flat[0]:.1f} µs at TP 8 and {flat[1]:.1f} µs at TP 64 (GB300, FP8, measured); TP 8 is {times[0]:.1f} times as fast as TP 1, {times[1]:.1f} times in BF16, and {times[2]:.1f} times in BF16 on H200.",
    f"**Rule 4.2.** If the cache has one key-value head or a latent, then make attention data-parallel when memory is short, and for speed once {pays[256]:,.0f} to {pays[8]:,.0f} tokens are in flight (DeepSeek-R1 in NVFP4 on eight GB200, batch 256 to 8; {least[0][1]:,.0f} by bytes alone), because TP keeps a copy on every GPU: eight GPUs hold {fits[1]:.0f} requests of 128K of DeepSeek-R1 with DP and {fits[0]:.0f} with TP.",
    f"**Rule 4.3.** If experts are narrow, then divide them whole (EP) and not by width, because with 128 tokens on 32 GPUs DeepSeek-R1's take {moe[0] / moe[1]:.1f} times as long by width (measured); at prefill sizes balance them first, because the busiest of 32 ranks had {busiest.claim.value:.2f} times the mean load (measured; ours {busiest.ours:.2f}).",
    f"**Rule 4.4.** If throughput is what counts, then widen EP while memory caps the batch, because from 4 to 16 GPUs a GPU of DeepSeek-R1 serves {rate[2] / rate[0]:.2f} times as many tokens a second at 128K, and from 16 to 64 only {rate[4] / rate[2]:.2f} times.",
    f"**Rule 4.5.** If contexts are long and users wait, then divide the cache along the sequence and let all GPUs share the FFN, because the fastest stream of DeepSeek-R1 has {top[r1, 'Helix']:.0f} tokens a second with Helix, {top[r1, 'TP']:.0f} with TP, {top[r1, 'EP']:.0f} with EP; of Llama-3.1-405B {top[llama, 'Helix']:.0f} against {top[llama, 'TP']:.0f}.",
    f"**Rule 4.6.** If contexts are short or few are decoded at once, then stay with TP, because Helix pays for its exchange: in Llama-3.1-405B from {early:,.0f} tokens on at batch 64, and from {late:,.0f} at batch 1.",
    f"**Rule 4.7.** If you design the attention, then take few key-value heads and no fewer than the TP you mean to use, because a token's bytes follow them: 64 query heads on 8 take {eight / four:.2f} times as long as on 4 (GB300, measured), and past them TP is without effect (rule 4.1).",
    f"**Rule 4.8.** If prompts are long, then do not halve the head size from 128 to save attention, because in prefill half of it still takes {narrow['prefill on gb300']:.2f} of the time on GB300 and {narrow['prefill on gb200']:.2f} on GB200; decoding follows the bytes, {narrow['decode on gb300']:.2f} on GB300 (measured, heads and key-value heads equal in number).",
]))

# %% [markdown]
# ## Exercise
#
# Kimi K2 has DeepSeek's latent and 384 experts, and 64 heads instead of 128. Eight requests of 256K tokens are to be
# decoded on 64 GB200. Which is faster, data-parallel attention with EP or Helix, and by how much? Write down a factor before
# you unfold. Hint: what does each read of the cache, in tokens a GPU?

# %% tags=["hide-cell"]
k2, work = models.model("kimi_k2"), dict(batch=8, n_context=262_144, precision=in_fp4)
spread, divided = (decode_step_s(k2, "gb200", layout=x, **work) for x in (Layout(dp=64, ep=64), Layout(kvp=64, ep=64)))
say(f"With DP eight GPUs read one request each, {262_144:,} tokens, and 56 have none; with Helix every GPU reads {8 * 262_144 // 64:,}. Attention takes {si(spread.attention_s, 's')} and {si(divided.attention_s, 's')}, communication {si(spread.communication_s, 's')} and {si(divided.communication_s, 's')}, the step {si(spread.step_s, 's')} and {si(divided.step_s, 's')}: **{float(spread.step_s / divided.step_s):.2f}×**, not the eightfold of the cache: attention itself falls {float(spread.attention_s / divided.attention_s):.1f}-fold, to its launch time, and experts take {si(spread.experts_s, 's')} and {si(divided.experts_s, 's')}.")
