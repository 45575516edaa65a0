# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# (study-frontier)=
# # Frontier
#
# **Question.** How many tokens a second does a GPU give when every user sees 20, 50, 100 or 200 tokens a second, and
# which design of the model gives most at each?
#
# The article's frame is a frontier: accuracy held fixed, throughput against interactivity, and the area under it
# {cite}`nvidia2026codesign`. Here every valid layout, batch and format of an instance is priced with the calibrated kernels
# of {ref}`study 2 <study-dimensioning>` and of {ref}`attention, experts and collectives <evidence-other-kernels>`, and the
# points that no other beats are kept.

# %% [markdown]
# ## Prediction
#
# Made by hand, before anything was computed:
#
# 1. Llama-405B in NVFP4 is 228 GB. On 32 GB300 a GPU reads 7 GB a token, 0.9 ms: **several hundred** tokens a second for
#    a single user, and twice as many on 64.
# 2. A token of 131,072 of context reads 4.6 GB of DeepSeek-R1's FP8 cache, against 21 GB of active weights shared by the whole batch: at long context
#    and large batch attention takes **nearly everything**; the article says 77 %.
# 3. MLA caches 35 kB a token, GQA with eight heads 125 kB in FP8: MLA wins **at every interactivity**, by up to 3.5 times.
# 4. Wide and shallow against narrow and deep, parameters equal: **no difference** where throughput counts, because the FLOP are
#    the same.
# 5. NVFP4 against FP8: bytes of weights and time of FLOP halve, so **nearly 2×** everywhere.

# %% [markdown]
# ## Setting
#
# Lengths, chips and goals may be changed in any cell; measurements stay those of the systems they were made on.

# %%
import matplotlib.pyplot as plt
import numpy as np

from codesign_lib.report import claims, plotting, tables
from codesign_lib.report.claims import cards, designs, formats, served, structure
from codesign_lib.report.plotting import say, table
from codesign_lib.serving import price
from codesign_lib.serving.points import PARTS
from codesign_lib.specs import published, scores

plotting.style()
goals, tpot = designs.GOALS, published.table("validation/tpot")
chips = {"gb300": "GB300", "h200_sxm": "H200"}
shades = (plotting.COMPUTE, plotting.MEMORY, "#56B4E9", "#003F6B")
shades += (plotting.SERIES[5], plotting.NETWORK, plotting.SERIES[1], plotting.SERIES[2])
color = dict(zip(PARTS, shades, strict=True))
titles = {"deepseek_r1": "DeepSeek-R1", "llama_3_1_405b": "Llama-405B"}

# %% [markdown]
# ## Model
#
# A step of B running sequences takes $t_d$: projections, attention, FFN, experts and communication of the slowest GPU, one
# after the other, and the host. While a sequence makes its N tokens each other one of its replica is replaced once, and the new
# prompt, $t_p$, holds everybody up (*aggregated*); or prompts are read by GPUs of their own (*disaggregated*), as many as
# keep up:
#
# $$
# \begin{aligned}
# \text{TPOT} &= t_d + \frac{B/\text{dp} - 1}{N} \cdot \frac{t_p}{\text{pp}} & &\text{(aggregated)} \\
# \frac{\text{tokens/s}}{\text{GPU}} &= \frac{B}{\text{TPOT} \cdot n_d\,(1 + n_p / n_d)}, \qquad
#   \frac{n_p}{n_d} = \frac{r_d}{r_p} & &\text{(disaggregated)}
# \end{aligned}
# $$ (eq-serving)
#
# $r_d$ and $r_p$ are requests a second and GPU that decoding makes and reading takes. Interactivity is 1/TPOT. Three
# constants are fitted end to end, to one model family; nothing else is.
#
# A frontier is a set of points that were computed, and is read at them: *at 50 tokens/s/user* means the point with most
# throughput among those at least so fast. Batches are eight a doubling, so that such a point is near.
#
# Look at how far the solid line runs above the dashed one, and at where the measured points leave it.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Frontiers on GB300 in NVFP4, 1,024 tokens in and out, no decoding instance beyond 72 GPUs. Lines: our model, solid disaggregated, dashed aggregated. Markers: measured disaggregated runs of DeepSeek-R1 (some with multi-token prediction, which the source does not say); for Llama-405B no public point has both rates.", "name": "fig-served-frontiers"}, "image": {"alt": "Two panels on log axes. For DeepSeek-R1 throughput falls from about 7,000 tokens a second and GPU at 20 tokens a second and user to a few hundred at 100 and a few tens at 200. The disaggregated line lies above the aggregated one, most around 80. The slowest measured marker lies above the line, all others below it, most of them beyond 70 tokens a second and user at a quarter to two thirds of it. For Llama-405B throughput falls from 2,000 at 8 to a handful just below 100."}}
fig, axes = plt.subplots(1, 2, figsize=(7.6, 4.0), sharey=True)
for ax, (model, title) in zip(axes, titles.items(), strict=True):
    for mode, dash in (("disaggregated", "-"), ("aggregated", "--")):
        found = designs.loaded("1K in, 1K out", mode=mode, model=model)
        plotting.line(ax, found["interactivity_per_s"], found["throughput_per_s"], dash, color=plotting.SERIES[0], label=f"ours, {mode}")
    ax.set(xscale="log", yscale="log", title=title, xlabel="interactivity (tokens/s/user)", xlim=(8, 400), ylim=(3, 2e4))
    ax.set_xticks([10, 20, 50, 100, 200], ["10", "20", "50", "100", "200"])
rows = served.served_rows("deepseek_r1", "gb300", "nvfp4", "disagg")
plotting.markers(axes[0], rows["interactivity_per_s"], rows["throughput_per_s"], color=plotting.MEASURED, label="measured")
axes[0].set(ylabel="throughput (tokens/s/GPU)")
axes[0].legend(loc="lower left")
plt.show()

# %% [markdown]
# DeepSeek-R1's disaggregated frontier, point by point at the four goals: the layout, the batch of an instance, what takes
# most of a step, and the share of all GPUs that reads prompts.

# %%
table(designs.chosen(designs.loaded("1K in, 1K out")))

# %% [markdown]
# Attention data-parallel and experts spread over as many GPUs as fill the batch where throughput counts; tensor parallelism, few GPUs
# and a small batch where one user counts. How far are served systems from it?

# %% tags=["hide-input"]
ours = np.array([served.at(designs.loaded("1K in, 1K out"), x) for x in rows["interactivity_per_s"]])
reached, fast = rows["throughput_per_s"] / ours, rows["interactivity_per_s"] > 100
decoding = 1 - rows["n_prefill_gpus"][fast] / rows["n_gpus"][fast]
shared = served.gaps("agg", 100)
say(
    f"Measured over ours, from the slowest run to the fastest: {', '.join(f'{x:.2f}' for x in reached)}. "
    f"The runs beyond 100 tokens/s/user use {rows['n_gpus'][fast].min():.0f} to {rows['n_gpus'][fast].max():.0f} GPUs, "
    f"{100 * decoding.min():.0f} to {100 * decoding.max():.0f} % of them decoding, for {rows['n_concurrent'][fast].min():.0f} "
    f"to {rows['n_concurrent'][fast].max():.0f} requests. "
    f"Where prompts share the GPUs and no pool can idle, ours mostly misses the other way: of {len(shared)} such points beyond 100 "
    f"tokens/s/user, three models on B200 and H200, {np.sum(shared < 0)} lie above it, {np.sum(shared == -1)} of them beyond its reach. "
    "So at the fast end ours is no safe prediction in either direction, and how much of the gap is the deployment's, the engine's "
    "or the kernels' these runs do not show."
)

# %% [markdown]
# What do GPUs of their own for the prompts gain over the whole range, and how fast is a single user served?

# %%
r1, dense = (designs.gained(m) for m in titles)
say(f"The area under the frontier from 20 to 200 tokens/s/user grows by {100 * r1.area:.0f} % (DeepSeek-R1) and {100 * dense.area:.0f} % (Llama-405B) "
    f"when prompts are read by GPUs of their own. A single user gets at most {r1.fastest:.0f} tokens/s of DeepSeek-R1 and {dense.fastest:.0f} of Llama-405B. "
    "**The first prediction is wrong**: reading weights is a small part of such a step.")

# %% [markdown]
# ## Where the time goes
#
# The article's Figure 2 has four regimes: short or long context, throughput or latency. Ours are the two ends of each
# frontier. Look at what fills the bars, and at how little of it any one kernel is in the latency regimes.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Shares of a decode step on GB300 in NVFP4 at the two ends of the frontier, 1,024 and 131,072 tokens in. Bars: our model. Marker: attention's share in the article's worked case, whose model it does not name.", "name": "fig-regimes"}, "image": {"alt": "Two groups of four stacked bars. At long context and throughput attention takes about three quarters of the step for DeepSeek-R1 and 60 percent for Llama-405B, and a marker stands at 77 percent. At short context and throughput experts take a third of DeepSeek-R1 and the FFN a bit more than a third of Llama-405B. In the latency regimes projections, FFN, attention, communication and overhead share the step."}}
fig, axes = plt.subplots(1, 2, figsize=(7.6, 4.2), sharey=True)
for ax, (model, title) in zip(axes, titles.items(), strict=True):
    bottom, shares = np.zeros(4), [structure.regime(model, name) for name in structure.REGIMES]
    for part in ("attention", *(p for p in PARTS if p != "attention")):
        height = plotting.drawn([100 * x[part] for x in shares])
        ax.bar(range(4), height, bottom=bottom, color=color[part], label=part)
        bottom = plotting.drawn(bottom + height)
    plotting.markers(ax, [2], [77], color=plotting.MEASURED, label="article, attention")
    ax.set_xticks(range(4), [name.replace(", ", "\n") for name in structure.REGIMES], fontsize=8)
    ax.set(title=title, ylim=(0, 104))
axes[0].set(ylabel="share of a step (%)")
fig.legend(*axes[0].get_legend_handles_labels(), ncols=5, fontsize=8, loc="outside lower center")
plt.show()

# %% tags=["hide-input"]
shares = {m: structure.regime(m, "long, throughput") for m in titles}
attention, ffn = ([sum(x[p] for p in of) for x in shares.values()] for of in (["attention"], ["ffn", "experts"]))
say(
    f"Attention takes {100 * attention[0]:.0f} % (DeepSeek-R1) and {100 * attention[1]:.0f} % (Llama-405B) at long context and "
    "throughput; the article's case is 77 %. **The second prediction is wrong**: most of the step, not nearly everything. "
    "Amdahl's law is the ceiling of any advice on the rest. If all but attention took no time, the step would be "
    f"{structure.amdahl(1 - 0.77):.2f}× as fast in the article's case and {' and '.join(f'{1 / x:.2f}×' for x in attention)} in ours; "
    f"an FFN that takes none, the experts with it, makes ours {' and '.join(f'{structure.amdahl(x):.2f}×' for x in ffn)} as fast."
)

# %% [markdown]
# ## What a goal does to a design
#
# Designs that differ in one thing and share their parameters (and, where depth changes, nearly their cache), decoding alone,
# 8,192 tokens in. The winner at each goal and its lead over the next; a dash: none is fast enough. Depth and format: 70 B dense;
# experts and attention: DeepSeek-R1. On H200 eight GPUs, on GB300 up to 72. Depth is 36 layers of 12,288, 80 of 8,192 or 204 of 5,120; experts
# are 64 of 8,192, 256 of 2,048 or 512 of 1,024.

# %%
asked = ("depth", "experts", "attention", "format")
each = [(q, c) for q in asked for c in chips]
table({"design": [q for q, _ in each], "chip": [chips[c] for _, c in each]} | {f"at {x}": [designs.winners(q, c)[i] for q, c in each] for i, x in enumerate(goals)})

# %% [markdown]
# **The fourth prediction is wrong**: depth costs throughput at every goal, because every layer brings its own launches,
# all-reduces and thin tiles, and its price grows as the step shrinks. **The fifth is wrong as well**, in kind: on GB300 the answer flips.
# Where the batch is large NVFP4 leads by little, as cache and communication do not shrink with the weights; from 50 tokens/s/user on
# FP8 leads, because TensorRT-LLM's NVFP4 kernel has one large tile and does not split k ({ref}`study 2 <study-dimensioning>`), and a shard of few
# columns leaves most SMs idle.

# %% tags=["hide-input"]
fast = {q: designs.throughputs(q, "gb300") for q in asked}
depth, few, kv, form = (list(x.values()) for x in fast.values())
h200 = {q: list(designs.throughputs(q, "h200_sxm").values()) for q in asked}
one = claims.find("structure/fp4_fp8")
say(
    f"80 layers give {', '.join(f'{x:.2f}' for x in (depth[1] / depth[0])[:3])} times the tokens of 36 at 20, 50 and 100 tokens/s/user. "
    f"On B200 with TP 8 and four requests a token of Llama-70B takes {one.claim.value:.2f} times as long in NVFP4 as in FP8 where it was "
    f"measured, and {one.ours():.2f} times in ours: the sign is right, the size is not. "
    f"64 experts lead 256 by {', '.join(f'{100 * x:.0f}' for x in few[0] / few[1] - 1)} % on GB300 and by "
    f"{', '.join(f'{100 * x:.0f}' for x in (h200['experts'][0] / h200['experts'][1] - 1)[:3])} % on eight H200."
)

# %% [markdown]
# On speed alone nothing speaks for fine experts. What does is the loss: a published law prices granularity
# {cite}`krajewski2024granularity`, and those percent are what it has to be worth, by our model of one engine's kernels. What depth is
# worth in accuracy is in none of these lines either ({py:func}`codesign_lib.specs.scaling_laws.relative_loss`, for models up to 3 B and no further).
#
# Why does the answer on attention flip? Look at where the lines cross, and at the context.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "DeepSeek-R1 with three attentions of equal parameters, decoding alone: one latent (MLA), eight key-value heads (GQA-8), one (GQA-1). Lines: our model. Left and middle 8,192 tokens of context, right a million.", "name": "fig-attention"}, "image": {"alt": "Three panels on log axes. On GB300 at 8,192 tokens GQA-1 lies highest, MLA in the middle and GQA-8 lowest until the lines meet near 100 tokens a second. On H200 MLA falls below GQA-8 beyond about 40 tokens a second. On GB300 at a million tokens GQA-1 lies about three times above MLA and MLA about twice above GQA-8."}}
fig, axes = plt.subplots(1, 3, figsize=(7.6, 3.6), sharey=True)
for ax, (chip, n) in zip(axes, (("gb300", 8192), ("h200_sxm", 8192), ("gb300", 1_000_000)), strict=True):
    for shade, dash, name in zip(plotting.SERIES, ("-", "--", ":"), designs.DESIGNS["attention"], strict=False):
        found = designs.raced("attention", name, chip, n_input=n)
        plotting.line(ax, found["interactivity_per_s"], found["throughput_per_s"], dash, color=shade, label=name)
    ax.set(xscale="log", yscale="log", title=f"{chips[chip]}, {n:,} tokens", xlabel="tokens/s/user", xlim=(5, 400))
    ax.set_xticks([10, 50, 200], ["10", "50", "200"])
    ax.minorticks_off()
axes[0].set(ylabel="throughput (tokens/s/GPU)")
axes[0].legend(fontsize=8)
plt.show()

# %% tags=["hide-input"]
small, large = ({n: x[1] for n, x in designs.throughputs("attention", "gb300", n_input=k).items()} for k in (8192, 1_000_000))
race = {name: designs.raced("attention", name, "h200_sxm") for name in ("MLA", "GQA-8")}
point = {name: p[[served.fastest_at(p, 100)]] for name, p in race.items()}
took = {n: 1e3 * float(p["attention_s"][0] + p["projections_s"][0]) for n, p in point.items()}
say(
    f"At 50 tokens/s/user on GB300 MLA gives {small['MLA'] / small['GQA-8']:.1f} times the tokens of GQA-8 at 8,192 tokens of context "
    f"and {large['MLA'] / large['GQA-8']:.1f} times at a million; GQA-1 {small['GQA-1'] / small['MLA']:.1f} and "
    f"{large['GQA-1'] / large['MLA']:.1f} times those of MLA. On eight H200 at 100 tokens/s/user attention and projections take "
    + " and ".join(f"{took[n]:.2f} ms of a step with {n} ({p.layout(0)}, batch {p['batch'][0]})" for n, p in point.items()) + "."
)

# %% [markdown]
# **The third prediction is wrong.** The cache decides where the batch is large: there MLA leads eight heads by its bytes. Where one user counts
# the batch is a handful, the cache a small part of what is read, and what is left is a call's own time: MLA has more projections
# and a kernel that does all its heads on one latent, which on H200 costs more than eight heads do. One key-value head beats both or comes within a few percent; what it
# costs in accuracy is measured (7 B models with one head lose 3.3 points of MMLU to eight heads, and those 4 to a head each
# {cite}`deepseek2024v2`), so speed alone does not decide.

# %% [markdown]
# ## What work does
#
# DeepSeek-R1 on GB300 at 50 tokens/s/user or more, by length of prompts and answers. Prices are one source's estimate of 3 April 2026
# for a GPU owned by a hyperscaler; that of GB300 was a placeholder in it. In dollars a million output tokens, and joules each.

# %%
work = designs.works(50)
table(designs.work_columns(work, price.price("gb300")))

# %% [markdown]
# Long prompts cost what reading them costs: at 65,536 in and 1,024 out most GPUs read. A price a million *output* tokens says little
# without the lengths. What sharing the GPUs with prompts costs is largest where reading and decoding are of similar weight: with short
# prompts there is little to hold up a step, and with the longest most of the GPUs read in either case.
#
# ## Three axes
#
# Accuracy against throughput at a given interactivity, for a format and for a shape: published scores, with the error that the number of
# questions leaves, over our throughput at 50 tokens/s/user. The scores are those of the first NVFP4 checkpoint of DeepSeek-R1-0528: its
# experts and FFNs are in NVFP4, its attention is not, so the throughput beside them is that of routed experts in NVFP4 and the rest in FP8
# blocks. Its FP8 scores are another's (Artificial Analysis), in another harness, printed to a whole point. Look at the error bars before the differences.

# %% tags=["hide-input"] mystnb={"figure": {"caption": "Across: our throughput at 50 tokens/s/user, 1,024 tokens in and out. Up: published accuracy, bars of one binomial standard error. Left: DeepSeek-R1-0528 on GB300 with SGLang's kernels, in FP8 (filled; scores to a whole point, from another harness) and with routed experts in NVFP4 (hollow). Right: Llama-3.1-8B on one H100 in BF16 and its two prunings to the same size, by width and by depth.", "name": "fig-accuracy"}, "image": {"alt": "Two panels. Left, for five benchmarks a filled FP8 marker and a hollow NVFP4 marker at more than twice the throughput, joined by nearly level lines; error bars are about five points for AIME 2024, three for GPQA-Diamond, two for LiveCodeBench and small for MMLU-Pro and MATH-500. Right, from the whole model over the width-pruned to the depth-pruned one throughput grows while MMLU falls by seven points and GSM8K from 49 to 41 and to 17 percent, far beyond the bars."}}
fig, (left, right) = plt.subplots(1, 2, figsize=(7.6, 4.0))
found, rate = cards.changes("DeepSeek-R1-0528"), formats.rates(50)
for shade, i in zip(plotting.SERIES, np.flatnonzero(np.isin(found.benchmark, designs.SHOWN)), strict=False):
    y, error = (100 * np.array([a[i], b[i]]) for a, b in ((found.base, found.nvfp4), (found.base_error, found.nvfp4_error)))
    left.errorbar(plotting.drawn([rate["fp8"], rate["experts"]]), plotting.drawn(y), plotting.drawn(error), color=shade, lw=0.8, capsize=3)
    plotting.markers(left, [rate["fp8"]], y[:1], color=shade, label=str(found.benchmark[i]))
    plotting.markers(left, [rate["experts"]], y[1:], color=shade, hollow=True, label="")
for shade, name in zip(plotting.SERIES, ("MMLU", "GSM8K"), strict=False):
    x, y, error = designs.pruned_scores(name, 50)
    right.errorbar(plotting.drawn(x), plotting.drawn(100 * y), plotting.drawn(100 * error), color=shade, lw=0.8, capsize=3)
    plotting.markers(right, x, 100 * y, color=shade, label=name)
for ax, title in ((left, "DeepSeek-R1, FP8 or NVFP4"), (right, "Llama-3.1-8B, whole, width, depth")):
    ax.set(xlabel="throughput (tokens/s/GPU)", ylabel="accuracy (%)", title=title)
    ax.legend(fontsize=8)
plt.show()

# %% tags=["hide-input"]
keep, pruned = np.isin(found.benchmark, designs.SHOWN), designs.pruned_scores("GSM8K", 50)
second, names = cards.changes("DeepSeek-R1-0528 v2"), found.benchmark[keep]
least, most = cards.z_range("DeepSeek-R1-0528", "MMLU-Pro")
lower = [", ".join(f"{z:.1f} ({n})" for n, z in zip(names, x.z[keep], strict=True)) for x in (found, second)]
say(
    f"The first checkpoint lies lower by {lower[0]} standard errors. MMLU-Pro alone has questions enough to tell a point, and "
    f"there the base score's rounding moves the figure from {least:.1f} to {most:.1f}. The second checkpoint, with the output "
    f"projection of attention in NVFP4 as well, lies lower by {lower[1]}: on MMLU-Pro more than chance, if 85 means 85.0. "
    "So these cards show a loss of at most about a point where it can be seen, and cannot say whether there is none. "
    f"Of the two prunings depth gives {pruned.throughput[2] / pruned.throughput[1]:.1f} times the tokens of width and loses "
    f"{100 * (pruned.score[1] - pruned.score[2]):.0f} points of GSM8K to it, "
    f"{scores.difference_z(pruned.score[1], pruned.score[2], 1319):.0f} standard errors."
)

# %% [markdown]
# How much faster NVFP4 is than FP8 is the least certain number of this page. Taken apart at 50 tokens/s/user, as factors:

# %%
factors = formats.apart(50)
table({"NVFP4 over FP8": list(factors), "factor": [f"{x:.2f}" for x in factors.values()]})

# %% [markdown]
# The experts gain more than their bytes, because SGLang's kernel for FP8 blocks is further from the time of its bytes than the one
# for NVFP4. The rest of a step is nearly fixed, so a step that is somewhat shorter leaves room for a batch that is much larger: at a given
# interactivity the factor exceeds that of the step. With TensorRT-LLM's kernels little of it is left. And ours is known to be too fast for
# NVFP4 with SGLang's: its measured decode times of DeepSeek-R1 on B200 lie above ours in both formats, in NVFP4 by more. **Where a number is needed, take the
# measured one**; it is between two runs of each format, and the next faster runs of both give another.

# %% [markdown]
# ## Check
#
# Decode times end to end: 1,021 rows of three dense models. Three constants were fitted to Llama-3.1; *others* is Qwen3-32B,
# held out, and **all its rows are of H100**, in BF16 and FP8: they say nothing of Blackwell, of H200 or of NVFP4, where this study draws.
# So the same fit is made without a chip as well: *fitted without this chip, b200_sxm* predicts Llama-3.1 on B200 in FP8 and NVFP4 from
# constants fitted on Hopper. (Its kernels are calibrated on B200's kernel tables.) No GB300 row of a dense model is public. InferenceX draws
# lengths evenly from 80 to 100 % of the stated ones {cite}`inferencex`; ours takes the stated ones, and the row *at their mean* shows how little that does.

# %%
regimes = ("fitted: llama_3_1", "others", "TP 1", "TP 8", "batch >= 128")
dense = [tpot.where(what="dense", chip="all", regime=x) for x in regimes]
without = [tpot.where(what="fitted without this chip"), tpot.where(what="fitted to the other family")]
tables.errors([*dense, tpot.where(what="dense, lengths at their mean"), *without, tpot.where(what="roofline"), tpot.where(what="mixtures, skewed")])

# %% [markdown]
# Mixtures are another matter: nothing of them was fitted, their rows do not say whether drafts were on, and which expert kernel an
# engine picked is not told. Near are DeepSeek-R1 on H200 and little else. SGLang's on B200, whose kernels the figures above take, come out
# too short in both formats, in NVFP4 by more; TensorRT-LLM's in NVFP4 on B200 much too long: its tables hold a kernel that is
# slow at few tokens.
#
# What served systems show, ours against theirs. A gap is a result. Of six facts four come out within 30 %, what the fit itself misses one
# row in ten by: GB300 over GB200 between the ratios of bandwidth and of FP4 (though which model gains more is the other way round); more requests
# with data-parallel attention where there is one key-value head (as {ref}`users measured them <evidence-attention-ffn>`; the row below is arithmetic alone); NVFP4 no faster than FP8 at TP 8 and four
# requests; and what is left of a step beside the weights, which falls far less than a rank's weights do. One comes out in order alone: tensor parallelism
# first, attention data-parallel later, but ours too early, by half on H200 and by more on B200, where the published runs with 8,192 tokens in stay with tensor
# parallelism as far as they go.
#
# The sixth, TP 8 slower than TP 4 from 64 requests on, is published for 1,024 tokens in and out, and is largely one of settings. For these lengths, and below TP 8
# only, the benchmark's scripts let TensorRT-LLM gather prompts for up to 20 steps {cite}`inferencex`, which keeps them out of the way of decoding and delays the first token: the table has the two ratios
# of first tokens, with 1,024 out and with 8,192. Not all of it: vLLM, which has no such setting, is a twentieth slower with TP 8 on B200 in NVFP4 at 32 and
# 64 requests of these lengths, and faster in FP8 (rows of the same source, not in the table).

# %%
tables.checks(claims.check("structure") + claims.check("regimes") + claims.check("pruning"))

# %% [markdown]
# With the other lengths, where every TP runs alike, TP 8 is the faster one but for one row, and ours agrees within 6 %, except on H200 with 8,192 tokens out:
# there ours is too fast with TP 8, by most at 128 requests, where our all-reduce turns to two shots. The engine that was measured is older
# (TensorRT-LLM 1.1 {cite}`inferencex`) than the one whose kernels are ours (1.3), and which all-reduce it took is not told.

# %% [markdown]
# Every point of the served frontiers, and of Llama-70B's decode times, is on the {ref}`scoreboard <validation>`:

# %%
tables.summary({topic: claims.check(topic) for topic in ("interactivity", "token_prices", "llama_70b", "served", "structure")})

# %% [markdown]
# ## Where it breaks
#
# Roughly in order of size: which expert kernel runs, and how tokens spread over experts (the factors above) · the fast end, where ours
# misses in both directions · drafts, on or off, which the measured rows do not say (see the exercise) · the engine's own scheduler:
# per-sequence cost, prompts that bunch · queueing, which is no part of any number here: of a time to first token under load nothing
# is claimed · collectives beyond eight GPUs of a domain, extrapolated · NICs between domains, a bound · kernels of layers that nobody
# measured, bounds too.

# %% [markdown]
# ## Design rules

# %% tags=["rule", "hide-input"]
(wide, deep, _), mla = designs.DESIGNS["depth"], h200["attention"]
cache, size = zip(*((f"{x.kv_bytes_per_token('fp8') / 1e3:.0f}", f"{x.n_params / 1e9:.0f}") for x in designs.DESIGNS["depth"].values()), strict=True)
other, plain = formats.rates(50, engine="trtllm"), designs.loaded("1K in, 1K out")
gain = {d: [served.at(designs.loaded("1K in, 1K out", n_draft=d), x) / served.at(plain, x) for x in goals] for d in (3, 7)}
lead = work.throughput / work.aggregated
say("\n\n".join([
    "**Rule 6.1.** If users are to see more than 50 tokens/s, then make the model wide and shallow within what accuracy allows, because "
    f"{wide} give {depth[0][1] / depth[1][1]:.2f} times the tokens of {deep} at that goal and "
    f"{depth[0][2] / depth[1][2]:.2f} times at 100, {size[0]} against {size[1]} B parameters and {cache[0]} against {cache[1]} kB of cache a token. By our model.",
    "**Rule 6.2.** If batches are large or contexts long, then a latent cache beats eight key-value heads, because its bytes decide "
    f"({kv[0][1] / kv[1][1]:.2f} times the tokens on GB300 at 50 tokens/s/user, {large['MLA'] / large['GQA-8']:.2f} times at a million "
    f"tokens); on eight H200 it is {mla[0][0] / mla[1][0]:.2f} times at 20 and {mla[0][2] / mla[1][2]:.2f} times at 100, where a call's "
    "own time decides. By our model.",
    "**Rule 6.3.** If a format is chosen for speed, then ask at which interactivity and of which engine, because NVFP4 gives a dense 70 B "
    f"model {form[0][0] / form[1][0]:.2f} times FP8's tokens at 20 tokens/s/user on GB300 and {form[0][2] / form[1][2]:.2f} times at 100 with "
    f"TensorRT-LLM's kernels, and DeepSeek-R1 at 50 {rate['nvfp4'] / rate['fp8']:.1f} times with SGLang's, "
    f"{other['nvfp4'] / other['fp8']:.1f} times with TensorRT-LLM's. By our model; measured for DeepSeek-R1 {structure.formats_measured():.1f} between two runs of each, and "
    f"{factors['measured, the first run at least so fast']:.1f} by the first runs that are fast enough.",
    "**Rule 6.4.** If prompts are long against answers, then read them on GPUs of their own, because they hold decoding up: at 50 "
    f"tokens/s/user DeepSeek-R1 gives {lead[1]:.1f} times the tokens with 8,192 in and 1,024 out, and {lead[2]:.2f} times the other way "
    "round. By our model.",
    "**Rule 6.5.** If attention takes most of a step, then leave the FFN alone, because no FFN can make a step with "
    f"{100 * attention[0]:.0f} % attention more than {1 / attention[0]:.2f} times as fast. By our model.",
    "**Rule 6.6.** If one user counts, then draft many tokens, and if throughput does, then few, because of free drafted tokens four in five of "
    f"which are accepted three give DeepSeek-R1 {gain[3][0]:.2f} times the tokens at 20 tokens/s/user and seven {gain[7][0]:.2f} times, while at 200 "
    f"seven give {gain[7][3] / gain[3][3]:.2f} times those of three (1,024 in and out). By our model; a real drafter takes time.",
]))

# %% [markdown]
# ## Exercise
#
# Drafts: four in five drafted tokens are accepted, if all before them were, and making them costs nothing. Predict at which goal
# D = 1, 3 or 7 drafted tokens give DeepSeek-R1 the most tokens a GPU, before you unfold the cell. (At D = 3 a step makes
# 2.95 tokens; it multiplies four times as many rows.)

# %% tags=["hide-cell"]
drafted = {d: designs.loaded("1K in, 1K out", n_draft=d) for d in (0, 1, 3, 7)}
table({"tokens/s/user, at least": goals} | {f"D = {d}": [f"{served.at(p, x):,.0f}" for x in goals] for d, p in drafted.items()})
