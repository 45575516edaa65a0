# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# (evidence-gemm-accuracy)=
# # Accuracy of GEMM times
#
# Every figure that the validation of {py:func}`codesign_lib.cost.kernels.gemm_s` found, as committed. Nothing on this
# page is computed: it shows the tables that the scripts below wrote from the full measured data. `make validate` fails
# when the first two would differ; the third, and the fitted numbers themselves, are written anew by hand.

# %%
from codesign_lib.report import plotting
from codesign_lib.report.tables import pivot
from codesign_lib.specs import published

errors, checks, choices = (published.table(f"validation/{name}") for name in ("gemm", "gemm_checks", "gemm_choices"))
shown = {"index": ["chip", "engine"], "cell": "{median_percent:.1f} / {p90_percent:.1f} / {bias_percent:+.1f}"}
plotting.say("\n".join(f"- **{t.name}**, {t.header['title']}: " + "; ".join(f"{key} `{t.header[key]}`" for key in ("source", "version", "date", "licence", "drawn_by")) for t in (errors, checks, choices)))

# %% [markdown]
# A cell is the median and the 90th percentile of the error without its sign, and the median of the signed one, all in
# percent, of prediction over measurement minus one. Held-out layers: half of all (n, k), by a hash. *Decode* is up to
# 64 tokens, *prefill* from 1,024, *middle* between them. A line whose chip is *median* holds the medians over chips and
# engines of each one's figure.
#
# ## What was promised
#
# The limits were set before the fit; *stretch* is a second, tighter one.

# %%
plotting.table(dict(checks.columns))

# %% [markdown]
# ## Calibrated, by regime
#
# BF16:

# %%
pivot(errors.where(what="calibrated", fmt="bf16"), across="regime", **shown)

# %% [markdown]
# FP8, one scale a tensor:

# %%
pivot(errors.where(what="calibrated", fmt="fp8"), across="regime", **shown)

# %% [markdown]
# FP8 with block scales:

# %%
pivot(errors.where(what="calibrated", fmt="fp8_block"), across="regime", **shown)

# %% [markdown]
# NVFP4:

# %%
pivot(errors.where(what="calibrated", fmt="nvfp4"), across="regime", **shown)

# %% [markdown]
# ## One set of numbers for six GPUs
#
# What a new chip may expect. BF16:

# %%
pivot(errors.where(what="universal", fmt="bf16"), across="regime", **shown)

# %% [markdown]
# FP8, one scale a tensor:

# %%
pivot(errors.where(what="universal", fmt="fp8"), across="regime", **shown)

# %% [markdown]
# FP8 with block scales:

# %%
pivot(errors.where(what="universal", fmt="fp8_block"), across="regime", **shown)

# %% [markdown]
# NVFP4:

# %%
pivot(errors.where(what="universal", fmt="nvfp4"), across="regime", **shown)

# %% [markdown]
# ## The roofline
#
# BF16:

# %%
pivot(errors.where(what="roofline", fmt="bf16"), across="regime", **shown)

# %% [markdown]
# FP8, one scale a tensor:

# %%
pivot(errors.where(what="roofline", fmt="fp8"), across="regime", **shown)

# %% [markdown]
# FP8 with block scales:

# %%
pivot(errors.where(what="roofline", fmt="fp8_block"), across="regime", **shown)

# %% [markdown]
# NVFP4:

# %%
pivot(errors.where(what="roofline", fmt="nvfp4"), across="regime", **shown)

# %% [markdown]
# ## Transfer from H100
#
# Fitted numbers of an H100 with the datasheet of another chip. The feed rate is taken to grow with the peak an SM, and not
# to shrink where that is lower; both were chosen on fitting halves, so the chips here are not quite unseen.

# %%
pivot(errors.where(what="from h100_sxm"), across="fmt", **shown)

# %% [markdown]
# The same with the feed rate as it was on the H100. BF16 then misses the promised 90th percentile on B200 and GB300; FP8 in
# SGLang is better for it, so the rule is not a law.

# %%
pivot(errors.where(what="from h100_sxm, feed not grown"), across="fmt", **shown)

# %% [markdown]
# Between other pairs of chips, the same generation both ways and across; the first line of each is the median over engines
# and formats. That a rate does not shrink helps from Blackwell to Hopper in FP8 and costs accuracy on an A100 (below).

# %%
pivot(errors.where(what="linear, transferred"), across="fmt", **(shown | {"index": ["regime", "chip", "engine"]}))

# %% [markdown]
# ## A third engine
#
# vLLM's rows of the same GPUs, which no fit used, predicted by SGLang's numbers. BF16:

# %%
pivot(errors.where(what="vLLM rows by sglang's numbers", fmt="bf16"), across="regime", **shown)

# %% [markdown]
# FP8, where our times are too short in prefill: vLLM's kernels are others there, or used otherwise; these tables do not
# say which.

# %%
pivot(errors.where(what="vLLM rows by sglang's numbers", fmt="fp8"), across="regime", **shown)

# %% [markdown]
# ## Chips that no fit saw
#
# By the universal set:

# %%
pivot(errors.where(what="outside: universal"), across="fmt", **shown)

# %% [markdown]
# By the numbers of an H100:

# %%
pivot(errors.where(what="outside: from h100_sxm"), across="fmt", **shown)

# %% [markdown]
# By the numbers of a B200, NVFP4 only:

# %%
pivot(errors.where(what="outside: from b200_sxm"), across="fmt", **shown)

# %% [markdown]
# NVFP4 does not transfer from a B200 to an RTX PRO 6000: there our times are a warning, not a prediction.
#
# ## What each concept buys
#
# The roofline, and then one concept after the other, refitted each time.

# %%
steps = [what for what in dict.fromkeys(errors["what"].tolist()) if what.startswith("step")]
columns = {fmt: [pivot(errors.where(what=what, fmt=fmt), across="regime", **shown).rows[0][-1] for what in steps] for fmt in ("bf16", "fp8", "fp8_block", "nvfp4")}
plotting.table({"form": steps} | columns)

# %% [markdown]
# ## What was tried for the stretch
#
# Each kernel against one property changed, fitted on one half of the fitting layers and judged on the other: how many
# numbers, median / 90th percentile of the error, mean of the logarithmic error, in percent. *Chosen* is what the library
# holds.

# %%
tried = {"index": ["engine", "alternative"], "cell": "{n_numbers:.0f}: {median_percent:.2f} / {p90_percent:.2f}, {mean_log_percent:.2f}"}
pivot(choices, across="fmt", **tried)

# %% [markdown]
# ## Rows behind the errors

# %%
pivot(errors.where(what="calibrated"), index=["chip", "engine", "fmt"], across="regime", cell="{n_rows:,.0f}")
