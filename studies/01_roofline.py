# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# (study-roofline)=
# # The roofline of linear layers
#
# **Question.** How large must the hidden size H and the intermediate size H′ be, and how many tokens must come
# together, before a linear layer on GB300 is limited by arithmetic (FLOP/s) rather than by memory (B/s)?
#
# The article behind this book {cite}`nvidia2026codesign` answers with a roofline {cite}`williams2009roofline`. We
# compute its formulas, tables and figure, and then hold the roofline against kernels that were measured.

# %% [markdown]
# ## Prediction
#
# Made by hand, before anything was computed:
#
# 1. GB300 multiplies 15 PFLOP/s in NVFP4 and reads 8 TB/s. A square layer that reads NVFP4 and writes BF16 moves
#    about 2.56 bytes for every 2H FLOP, so H must be about **2,400**.
# 2. Writing the wide BF16 output costs most, so a small H′ hurts the **down-projection** most.
# 3. At 8,192 tokens and H = 4,096 nothing but the multiplication should matter: real kernels reach about **70 %** of
#    the bound.

# %% [markdown]
# ## Setting
#
# Change the chip, the format or a size and run the notebook again: the model's tables and figures follow. Captions
# describe the page as published (GB300, NVFP4), and what was measured stays what it is: GB300.

# %%
import matplotlib.pyplot as plt
import numpy as np

from codesign_lib.cost import kernels, ops, roofline
from codesign_lib.report import claims, plotting, tables
from codesign_lib.report.claims import gemm as measured
from codesign_lib.report.plotting import say, si, table
from codesign_lib.specs import formats, hardware, models

plotting.style()
chip, fmt = hardware.chip("gb300"), formats.NVFP4
mix = {"inputs": fmt, "weights": fmt, "outputs": formats.BF16}
three = [formats.BF16, formats.FP8, formats.NVFP4]
ladder = [f for f in three if f.name in chip.formats]

# %% [markdown]
# ## Model
#
# A linear layer sends m tokens through a k×n weight. It needs
#
# $$
# \begin{aligned}
# \text{flops} &= 2\,m\,n\,k \\
# \text{bytes} &= b_a\,mk + b_w\,kn + b_o\,mn \\
# t &\ge \max\left(\frac{\text{flops}}{P}, \frac{\text{bytes}}{B}\right)
# \end{aligned}
# $$ (eq-roofline)
#
# with $b$ the bytes an element takes, block scales counted, $P$ the dense peak and $B$ the bandwidth of HBM. In an
# ordinary transformer m is concurrency × sequence length, and the article's Table 1 names the shapes:
#
# | layer | k | n |
# |---|---|---|
# | QKV | H | 3H |
# | attention out | H | H |
# | FFN-1 (up) | H | H′ |
# | FFN-2 (down) | H′ | H |
#
# One layer, one call:

# %%
work = ops.linear(8192, 4096, 4096, **mix)
least = si(roofline.time_s(work, chip, fmt), "s")
say(f"{si(work.flops, 'FLOP')} and {si(work.bytes, 'B')}, {work.intensity:,.0f} FLOP/B: at least {least} on {chip}.")

# %% [markdown]
# Arithmetic and memory take equally long at the *ridge*, $R = P/B$. The peaks are the article's Figure 6. A narrower
# format has fewer bytes an element and a higher ridge:

# %%
peaks = [si(chip.peak_flops_per_s(f), "FLOP/s") for f in ladder]
ridges = [roofline.ridge_flops_per_byte(chip, f) for f in ladder]
bytes_ = [f.bytes_per_element for f in ladder]
table({"arithmetic in": ladder, "B/element": bytes_, "dense peak": peaks, "ridge, FLOP/B": ridges})

# %% [markdown]
# With many tokens the traffic of the weights becomes negligible, and the intensity approaches a limit that more tokens
# cannot lift:
#
# $$
# \lim_{m\to\infty} \frac{\text{flops}}{\text{bytes}} = \frac{2\,nk}{b_a k + b_o n}
# $$ (eq-limit)
#
# For a square layer, n = k = H, it is $2H/(b_a + b_o)$. Where the limit is below the ridge, **no number of tokens makes
# the layer compute-bound**. Solved for the size:

# %%
mixes = [(f, formats.BF16) for f in ladder] + [(fmt, fmt)]
square, k, n = np.ceil([roofline.min_sizes(chip, inputs=a, outputs=o) for a, o in mixes]).T
table({"in → out": [f"{a} → {o}" for a, o in mixes], "square, H": square, "k if n → ∞": k, "n if k → ∞": n})

# %% [markdown]
# **The first prediction holds.** NVFP4 needs by far the widest layer: its ridge is the highest, and the output it writes
# is still BF16. The last two columns are thin layers. Every output element costs $b_o$ bytes and earns 2k FLOP, every
# input element costs $b_a$ and earns 2n; where the output is the wider one, it is k that must be large.

# %% [markdown]
# ## Batch against shape
#
# Above the threshold a finite number of tokens suffices, $m^* = R\,b_w kn / (2kn - R(b_a k + b_o n))$. Below it none
# does (∞). Just above it they are very many, so the last column asks for nine tenths of the peak instead:

# %%
h = 2 ** np.arange(9, 15)
need = {f"{f} → BF16": roofline.min_tokens(h, h, chip, inputs=f, weights=f, outputs="bf16") for f in ladder}
need[f"{fmt}, 90 % of peak"] = roofline.min_tokens(h, h, chip, **mix, of_peak=0.9)
table({"H = H′": h} | {what: np.ceil(tokens) for what, tokens in need.items()})

# %% [markdown]
# Real layers are not square. The next figure lets layers of three models climb with the number of tokens. Look for
# those that flatten out below the dashed ridge, and for how far to the right the experts lie.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Intensity of real layers, NVFP4 in and BF16 out, against the tokens in flight, as if each model were served in NVFP4. Dashed: the ridge of GB300; above it a layer computes, below it the layer waits for memory. A routed expert gets its share of the tokens (top-k over experts, balanced), and at least one when it runs.", "name": "fig-intensity"}, "image": {"alt": "Log-log plot of FLOP per byte against tokens from 1 to 16,384. Llama-3.1-405B's down-projection and DeepSeek-R1's attention output cross the ridge between 500 and 700 tokens, gpt-oss-120b's attention output near 1,500. The experts follow the same curve 32 times further to the right and stay below the ridge at 16,384 tokens. DeepSeek-R1's kv_b with k = 512 levels off below the ridge."}}
tokens = 2.0 ** np.arange(15)
deepseek = ("out", "kv_b", "expert gate_up", "expert down")
shown = {"llama_3_1_405b": ("down",), "deepseek_r1": deepseek, "gpt_oss_120b": ("out", "expert down")}
fig, ax = plt.subplots()
for color, (name, picked) in zip(plotting.SERIES, shown.items(), strict=False):
    layers = [x for x in models.model(name).linear_layers() if x.name in picked]
    for dash, x in zip(("-", "--", "-.", ":"), layers, strict=False):
        work = ops.linear(np.maximum(tokens * x.tokens_fraction, 1), x.k, x.n, **mix)
        plotting.line(ax, tokens, work.intensity, dash, color=color, label=f"{models.model(name)} {x.name}")
ax.axhline(roofline.ridge_flops_per_byte(chip, fmt), color=plotting.COMPUTE, dashes=(4, 2), lw=1)
ax.set(xscale="log", yscale="log", xlabel="tokens in flight", ylabel="intensity (FLOP/B)")
ax.legend(fontsize=8)
plt.show()

# %% [markdown]
# A routed expert gets only its share of the tokens. How many must be in flight, in all, before DeepSeek-R1's experts
# compute?

# %%
experts = [x for x in models.model("deepseek_r1").linear_layers() if x.kind == "expert"]
need = {s: [roofline.min_tokens(x.k, x.n, chip, **mix, of_peak=s) / x.tokens_fraction for x in experts] for s in (0.9, 1.0)}
names, shapes = [x.name for x in experts], [f"{x.k:,} → {x.n:,}" for x in experts]
table({"layer": names, "shape": shapes} | {f"tokens for {s:.0%} of peak": np.ceil(m) for s, m in need.items()})

# %% [markdown]
# The down-projection's k = H′ lies just above its threshold, so the last tenth of the peak costs more than ten times the
# tokens, and even the first nine tenths need more than the gate and up projection does for all of it.

# %% [markdown]
# ## Prefill against decode
#
# A prefill brings thousands of tokens of one prompt, a decode step one token a request. Look at the left third of the
# figure, where all sizes lie on one line, and at the right, where only H tells them apart.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Bound on the share of GB300's NVFP4 peak that an H×H layer can reach, NVFP4 in and BF16 out. Shaded: up to 256 tokens, as in decode.", "name": "fig-batch"}, "image": {"alt": "Lines for H from 1,024 to 16,384 coincide up to about 30 tokens, at a few percent of the peak, and then fan out. 4,096 and above reach the peak between 600 and 1,300 tokens; 2,048 levels off above 80 percent and 1,024 near 40 percent."}}
m = np.logspace(0, np.log10(32768), 241)
fig, ax = plt.subplots()
for color, size in zip(plotting.SERIES, (1024, 2048, 4096, 8192, 16384), strict=False):
    work = ops.linear(m, size, size, **mix)
    share = work.flops / roofline.time_s(work, chip, fmt) / chip.peak_flops_per_s(fmt)
    plotting.line(ax, m, 100 * share, color=color, label=f"H = {size:,}")
ax.axvspan(1, 256, color=plotting.SERIES[-1], alpha=0.15, lw=0)
ax.set(xscale="log", xlim=(1, 32768), ylim=(0, 105))
ax.set(xlabel="tokens in flight", ylabel=f"bound, % of the {fmt} peak")
ax.legend()
plt.show()

# %%
m = np.array([1, 64, 256, 1024, 8192])
work, weights = ops.linear(m, 8192, 8192, **mix), 8192**2 * fmt.bytes_per_element
times = [si(t, "s", prefix="µ") for t in roofline.time_s(work, chip, fmt)]
table({"tokens": m, "H = 8,192: least time": times, "weights in the traffic": [f"{w:.0%}" for w in weights / work.bytes]})

# %% [markdown]
# In decode almost all traffic is weights: by the bound 64 tokens cost little more than one, and only the product n·k
# matters. In prefill the weights are a small part, and shape is what is left. The same layer can be right for one and
# too thin for the other.

# %% [markdown]
# ## The map over H and H′
#
# What the bound allows a whole FFN, up- and down-projection together, at 8,192 tokens. Look for where the dots lie: a
# dense FFN far inside the plateau, the experts near its edge.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Bound on the share of GB300's NVFP4 peak for an FFN (gate and up as one layer, then down) at 8,192 tokens, NVFP4 in and BF16 out. Dots: the FFN or expert of a model. An expert sees 8,192 tokens only when its share of the batch is that large.", "name": "fig-map"}, "image": {"alt": "Contour map over H′ and H, both from 256 to 65,536. The share rises from below 20 percent at the lower left to the peak at the upper right, with the edge of the plateau near 2,000 on either axis. DeepSeek-R1's expert, H 7,168 and H′ 2,048, lies on the edge, gpt-oss-120b's, both 2,880, just inside, Llama-3.1-405B far inside."}}
h, w = np.meshgrid(2.0 ** np.linspace(8, 16, 65), 2.0 ** np.linspace(8, 16, 65), indexing="ij")
up, down = ops.linear(8192, h, 2 * w, **mix), ops.linear(8192, w, h, **mix)
bound = roofline.time_s(up, chip, fmt) + roofline.time_s(down, chip, fmt)
share = 100 * (up + down).flops / bound / chip.peak_flops_per_s(fmt)
levels, shades = [0, 20, 40, 60, 80, 90, 99, 100.01], plt.colormaps["Blues"](np.linspace(0.05, 0.85, 7))
named = {"Llama-3.1-405B": (53248, 16384), "DeepSeek-R1 expert": (2048, 7168), "gpt-oss-120b expert": (2880, 2880)}
fig, ax = plt.subplots(figsize=(7.0, 4.6))
filled = ax.contourf(w, h, plotting.drawn(share), levels=levels, colors=shades)
fig.colorbar(filled, ax=ax, label=f"bound, % of the {fmt} peak", format="%d", spacing="uniform")
for name, at in named.items():
    ax.plot(*at, "o", color="white", mec="black")
    ax.annotate(name, at, (-7, 8), textcoords="offset points", ha="right", bbox={"fc": "white", "ec": "none", "pad": 1.5})
ax.set(xscale="log", yscale="log", xlabel="H′", ylabel="H")
plt.show()

# %% [markdown]
# ## Check against the article
#
# The article's Table 2 is an FFN-2 with n = 8,192 and k = 512 on GB300, NVFP4 in and FP8 out. Eight of its nine cells
# come out as printed. The ninth does if it was rounded twice, first to three digits and then to two: our reading, the
# article does not say so.

# %%
tables.checks(claims.check("table2"), prefix="µ")

# %% [markdown]
# Reading and writing together take longer than the arithmetic at every M. From M = 2,048 on the write is the larger
# part, because k is small and an output element is wider than an input element.

# %% [markdown]
# ## Check against measured kernels
#
# NVIDIA publishes what linear layers took on GB300 in two engines {cite}`aiconfigurator`. A measured time is the whole
# module's: in FP8 and NVFP4 it includes the pass that quantises BF16 activations, which the bound does not. First the
# third prediction, on square layers at 8,192 tokens. Look for how far the markers lie below the line of their colour.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Throughput of an H×H layer at 8,192 tokens on GB300. Lines: the bound. Markers: measured, filled TensorRT-LLM 1.3.0rc20, hollow SGLang 0.5.14.", "name": "fig-squares"}, "image": {"alt": "Log-log plot of FLOP/s against H from 512 to 16,384 for BF16, FP8 and NVFP4. BF16 markers lie closely below their line from H 2,048 on. NVFP4 markers lie far below their line, by about a factor of ten at the smallest sizes and three at the largest. At H 512 and 1,024 BF16 is the fastest of the three."}}
sizes, x = np.array(measured.SIZES), 2.0 ** np.linspace(9, 14, 61)
fig, ax = plt.subplots()
for color, f in zip(plotting.SERIES, three, strict=False):
    plotting.line(ax, x, 2 * 8192 * x**2 / measured.bound_s(8192, x, x, f), color=color, label=f"{f}, bound")
    for engine, title in measured.ENGINES.items():
        took = measured.measured_s(engine, f, sizes, sizes)
        look = {"color": color, "hollow": engine == "sglang", "label": title}
        plotting.markers(ax, sizes, 2 * 8192 * sizes**2 / took, **look)
ax.set(xscale="log", yscale="log", xlabel="H", ylabel="throughput")
plotting.si_axis(ax.yaxis, "FLOP/s")
ax.legend(ncols=3, fontsize=8)
plt.show()

# %% [markdown]
# The share of the measured time that the bound explains, and how much faster NVFP4 is than BF16 for it:

# %%
took = {(e, f.name): measured.measured_s(e, f, sizes, sizes) for e in measured.ENGINES for f in three}
share = {key: measured.bound_s(8192, sizes, sizes, key[1]) / t for key, t in took.items()}
gain = {e: took[e, "bf16"] / took[e, "nvfp4"] for e in measured.ENGINES}
table({"H": sizes} | {f"{f}, {e}": [f"{s:.0%}" for s in share[e, f.name]] for e in measured.ENGINES for f in three} | {f"gain, {e}": [f"{g:.2f}×" for g in gain[e]] for e in gain})

# %% [markdown]
# **The third prediction is wrong.** It is about right for BF16, from H = 2,048 on. NVFP4 reaches far less, in either
# engine, and the quantising pass is only a part of it (see below). The thresholds above say where a layer *may* compute;
# an NVFP4 layer that just passes them does not. On a narrow layer NVFP4 is slower than BF16.
#
# Next the second prediction. Look at whether the markers follow the solid line (the bound), the dashed one (bound and
# quantising pass) or neither; BF16 has no such pass and is the control.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Time of the up-projection (k = 4,096, n = H′) over that of the down-projection (k = H′, n = 4,096) at 8,192 tokens on GB300; above 1 the up-projection is the slower one. Solid: the bound. Dashed: bound plus the pass that quantises the BF16 input. Markers: measured, filled TensorRT-LLM, hollow SGLang.", "name": "fig-up-down"}, "image": {"alt": "Three panels against H′ from 128 to 4,096. BF16: the bound is 1 throughout; markers are below 1 at 128 and 256 and slightly above from 768 to 3,072. FP8: the bound is below 1, the dashed line near 2 on the left; TensorRT-LLM's markers follow the dashed line, SGLang's lie near 1.25. NVFP4: the bound falls to 0.3, the dashed line is near 1.5; markers lie between them, below 1 at 128 and 256, at or above 1 from 512 to 2,048."}}
width, x = measured.measured_sizes(4096)[:11], 2.0 ** np.linspace(7, 12, 61)
fig, axes = plt.subplots(1, 3, sharey=True, figsize=(7.0, 3.4))
for ax, color, f in zip(axes, plotting.SERIES, three, strict=False):
    up, down = measured.bound_s(8192, 4096, x, f), measured.bound_s(8192, x, 4096, f)
    passes = [roofline.memory_s(ops.quantise(8192, k, outputs=f), "gb300") for k in (4096, x)]
    plotting.line(ax, x, up / down, color=color, label="bound")
    if f is not formats.BF16:
        plotting.line(ax, x, (up + passes[0]) / (down + passes[1]), "--", color=color, label="and quantising")
    for engine, title in measured.ENGINES.items():
        ratio = measured.measured_s(engine, f, 4096, width) / measured.measured_s(engine, f, width, 4096)
        plotting.markers(ax, width, ratio, color=color, hollow=engine == "sglang", label=title)
    ax.set_xscale("log", base=2)
    ax.set(xlabel="H′", ylabel="up over down" if f is formats.BF16 else "", title=f)
    ax.legend(fontsize=7)
plt.show()

# %%
k, n = np.array([4096, 512]), np.array([512, 4096])
parts = {"bound": measured.bound_s(8192, k, n, "nvfp4"), "quantising": roofline.memory_s(ops.quantise(8192, k, outputs="nvfp4"), "gb300")}
parts |= {title: measured.measured_s(engine, "nvfp4", k, n) for engine, title in measured.ENGINES.items()}
table({"NVFP4, H′ = 512": parts, "up, µs": [f"{1e6 * t[0]:.1f}" for t in parts.values()], "down, µs": [f"{1e6 * t[1]:.1f}" for t in parts.values()]})

# %% [markdown]
# **The second prediction is wrong from H′ = 512 to 2,048, and the bound with it.** There the up-projection is as slow or
# slower in both engines. The output write does dominate the multiplication, but the module first quantises its input,
# and the up-projection's input is the wide one. In FP8, TensorRT-LLM follows the dashed line: the pass decides. In NVFP4
# the pass turns the sign, not more, and at 128 and 256 it has the sign wrong. BF16, which has no pass, dips at the same
# two widths and rises a little above 1 after them; what does that, these tables do not tell.

# %% [markdown]
# ## Where it breaks
#
# Look at how far below the roof the markers lie, and at which layer lies lowest: on the slope it is the smallest one.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "The roofline of GB300 in NVFP4 (BF16 out), and four layers of real models at 1 to 16,384 tokens, measured in TensorRT-LLM. Every marker would lie on the roof if the roofline were the whole story.", "name": "fig-roofline"}, "image": {"alt": "Log-log roofline: the roof rises with 8 terabytes a second to the ridge at 1,875 FLOP per byte and is flat at 15 PFLOP/s. Measured markers run below and parallel to it, the two smallest layers lowest by nearly a factor of ten, and flatten at or below a third of the peak; Llama-3.1-405B's falls again at the most tokens."}}
layers = {"Llama-3.1-405B out": (16384, 16384), "DeepSeek-R1 out": (16384, 7168)}
layers |= {"DeepSeek-R1 shared gate_up": (7168, 4096), "DeepSeek-R1 shared down": (2048, 7168)}
fig, ax = plt.subplots()
plotting.roof(ax, "gb300", "nvfp4", high=2e4)
for color, marker, (name, (k, n)) in zip(plotting.SERIES, plotting.MARKERS, layers.items(), strict=False):
    work = ops.linear(tokens, k, n, inputs="nvfp4", weights="nvfp4", outputs="bf16")
    reached = work.flops / measured.measured_s("trtllm", "nvfp4", k, n, m=tokens)
    plotting.markers(ax, work.intensity, reached, color=color, marker=marker, label=name)
ax.set(xlabel="intensity (FLOP/B)", ylabel="throughput")
plotting.si_axis(ax.yaxis, "FLOP/s")
ax.legend(fontsize=8)
plt.show()

# %% [markdown]
# Where the time of four calls goes, in TensorRT-LLM. *Floor* and *quantising* are what the calibrated kernel model of
# this library attributes ({py:func}`codesign_lib.cost.kernels.gemm_parts_s`); *below the roof* is what is left of the
# measured time beyond them and the bound.

# %%
m, k, n = np.array([[1, 2048, 7168], [1, 16384, 16384], [8192, 4096, 512], [8192, 16384, 16384]]).T
parts = kernels.gemm_parts_s(m, k, n, chip="gb300", fmt="nvfp4")
rows = {"measured": measured.measured_s("trtllm", "nvfp4", k, n, m=m), "bound": measured.bound_s(m, k, n, "nvfp4"), "floor": parts.launch_s, "quantising": parts.quantise_s}
rows["below the roof"] = rows["measured"] - rows["bound"] - rows["floor"] - rows["quantising"]
table({"tokens": m, "layer": [f"{a:,} → {b:,}" for a, b in zip(k, n, strict=True)]} | {f"{what}, µs": [f"{1e6 * t:.1f}" for t in ts] for what, ts in rows.items()})

# %% [markdown]
# What the roofline leaves out, the largest first:
#
# 1. **Kernels run below both roofs**: below the bandwidth in decode and below the peak in prefill. The largest term for
#    wide layers.
# 2. **The quantising pass**, where no operation before has written the format. The largest term for narrow layers in
#    prefill.
# 3. **A floor for every call**: launch and drain. The largest term for narrow layers in decode.
# 4. **Tiles and waves**: sizes that are rounded up. Study 2 counts them.
# 5. **Caches** work the other way: data that stays in L2 beats the memory term. `make validate` lists such rows of the
#    full tables and fails unless all of them fit into L2.
#
# Not known here: clocks and power during the measurements, and whether the weights were warm in L2.

# %% [markdown]
# ## Design rule

# %% tags=["rule", "hide-input"]
least, enough = roofline.min_sizes(chip, **{x: mix[x] for x in ("inputs", "outputs")}, of_peak=0.9).square, roofline.min_tokens(4096, 4096, chip, **mix, of_peak=0.9)
gains = {h: " and ".join(f"{g[list(sizes).index(h)]:.1f}× ({measured.ENGINES[e]})" for e, g in gain.items()) for h in (2048, 4096)}
say(f"**Rule 1.** If a linear layer is to gain from NVFP4, then make it 4,096 wide or more, because by the bound of {chip} nine tenths "
    f"of the {fmt} peak need H ≥ {np.ceil(least):,.0f} (and {np.ceil(enough):,.0f} tokens at 4,096), and measured on GB300 at 8,192 tokens a square "
    f"NVFP4 layer is {gains[4096]} as fast as a BF16 one at 4,096, but {gains[2048]} at 2,048.")

# %% [markdown]
# ## Exercise
#
# On H200 in FP8 with BF16 output: predict the least square H, and the tokens that an 8,192 × 8,192 layer needs, by hand
# before you unfold the cell. (Peak 1,979 TFLOP/s, 4.8 TB/s.)

# %% tags=["hide-cell"]
least = roofline.min_sizes("h200_sxm", inputs="fp8", outputs="bf16").square
m = roofline.min_tokens(8192, 8192, "h200_sxm", inputs="fp8", weights="fp8", outputs="bf16")
say(f"Least square H: {np.ceil(least):,.0f}. An 8,192 × 8,192 layer computes from {np.ceil(m):,.0f} tokens on.")
