# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# (evidence-nvfp4-accuracy)=
# # NVFP4: accuracy of models
#
# Scores before and after quantisation to NVFP4, as model cards and papers give them, with the error that the number
# of questions leaves. Nothing was measured here. The count of questions is that of the benchmark or of its harness; a
# card rarely says how often it ran, and once is assumed, so bars are wide rather than narrow.

# %%
import numpy as np

from codesign_lib.report import plotting, tables
from codesign_lib.report.claims import cards
from codesign_lib.specs import published

scores, kept = published.table("card_scores"), published.table("fp4_recovery")
plotting.say("\n".join(f"- **{t.name}**, {t.header['title']}: " + "; ".join(f"{key} {t.header[key]}" for key in t.header if key not in ("title",)) for t in (scores, kept)))

# %% [markdown]
# ## Every score
#
# Scores in percent with one binomial standard error; *errors*: how many standard errors of a difference NVFP4 lies
# lower. –: the card does not say which set of questions was asked.

# %%
found = [cards.changes(model) for model in dict.fromkeys(scores["model"].tolist())]
base, new, base_error, new_error, z = (100 * np.concatenate([getattr(c, name) for c in found]) for name in ("base", "nvfp4", "base_error", "nvfp4_error", "z"))
shown = [[f"{p:.2f}" + (f" ± {e:.2f}" if np.isfinite(e) else "") for p, e in zip(*of, strict=True)] for of in ((base, base_error), (new, new_error))]
plotting.table({"model": scores["model"], "benchmark": scores["benchmark"], "questions": scores["n_questions"], "base in": scores["base_format"], "base": shown[0], "NVFP4": shown[1], "errors": [f"{x / 100:+.1f}" if np.isfinite(x) else "–" for x in z]})

# %%
known = z[np.isfinite(z)] / 100
plotting.say(f"Of {known.size} pairs with a count, {np.sum(known > 2)} are lower by more than two standard errors and {np.sum(known < -2)} higher; {np.sum(known > 0)} are lower at all, {np.sum(known < 0)} higher. Chance alone would leave about {0.0228 * known.size:.0f} beyond two on each side.")

# %% [markdown]
# More are lower than higher, and more lie beyond two than chance leaves, mostly on benchmarks of more than a thousand
# questions: there is a loss, and one benchmark of a few hundred is too small to show it. *Errors* here are binomial only;
# where a card prints whole percents, rounding is as large an error as those of MMLU-Pro, and the means below count it.
#
# ## By model
#
# Change over the benchmarks with a known count, each weighted by the inverse of its variance, in points, and what was
# read.

# %%
mean = cards.means()
order = np.argsort(np.where(np.isfinite(mean.n_params), mean.n_params, np.inf), kind="stable")
read = [scores.where(model=m)["read"][0] for m in mean.model]
plotting.table({"model": [mean.model[i] for i in order], "parameters, 10⁹": [mean.n_params[i] / 1e9 for i in order], "benchmarks": mean.n_benchmarks[order], "change": [f"{100 * mean.change[i]:+.2f} ± {100 * mean.error[i]:.2f}" for i in order], "read": [read[i] for i in order]})

# %% [markdown]
# ## Methods
#
# Average of four benchmarks that is kept after quantising weights and activations, in percent.

# %%
tables.pivot(kept, index=["method"], across="model", cell="{recovery_fraction:.1%}")

# %% [markdown]
# ## The article's Figure 7
#
# The article's Figure 7 sees NVFP4 at or above FP8 on SciCode, MATH-500 and AIME. Nothing of it is ours to check: the
# first card above has the scores. With FP8 printed in whole percents (40, 98 and 89), the sign is fixed for AIME only.
