# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# (evidence-nvfp4-model)=
# # NVFP4: a language model on a laptop
#
# SmolLM2-135M-Instruct, run in numpy (`tools/smollm2.py`), whose logits were first held against the package
# transformers. Linear layers and activations are rounded to a format, arithmetic stays float32, and the predictions
# are compared with those of the model as it came: the KL divergence from its prediction to the changed one, the share
# of tokens whose likeliest word is the same, and perplexity. Nothing on this page is computed but the correlations:
# `tools/packages_smollm2.py` writes the tables.
#
# The weights came in four bits already (Q4_1). So the page says what a format adds to such a model, not what it
# takes from the one that was trained.

# %%
import numpy as np

from codesign_lib.report import plotting
from codesign_lib.specs import published

trials, blocks = published.table("validation/smollm2"), published.table("validation/smollm2_blocks")
plotting.say("\n".join(f"- **{t.name}**, {t.header['title']}: " + "; ".join(f"{key} `{t.header[key]}`" for key in ("source", "version", "date", "licence", "drawn_by")) for t in (trials, blocks)))

# %% [markdown]
# ## Every trial
#
# *Low*: the share of the linear layers' weights in the format, head left out. ±: one standard error over tokens.
# *Against NVFP4*: KL less that of plain NVFP4 on the same tokens, in nats; where weights only are rounded, against
# weights only. Parts kept high or made low alone are in NVFP4 with activations, on half the tokens.

# %%
plotting.table({
    "experiment": trials["experiment"], "what": trials["what"], "low": [f"{100 * x:.0f} %" for x in trials["low_fraction"]],
    "error, 10⁻³": [f"{1e3 * x:.2f}" if np.isfinite(x) else "–" for x in trials["weight_relmse"]],
    "KL, nats": [f"{k:.4f} ± {e:.4f}" for k, e in zip(trials["kl_nats"], trials["kl_nats_se"], strict=True)],
    "against NVFP4": [f"{k:+.4f} ± {e:.4f}" if np.isfinite(k) else "–" for k, e in zip(trials["kl_nats_vs_nvfp4"], trials["kl_nats_vs_nvfp4_se"], strict=True)],
    "same top": [f"{100 * x:.1f} %" for x in trials["same_top_fraction"]],
    "perplexity, novel": [f"{x:.1f}" for x in trials["perplexity_novel"]], "proceedings": [f"{x:.1f}" for x in trials["perplexity_proceedings"]],
})

# %% [markdown]
# - Error tells formats apart, and not recipes: four over six has less error of the weights and no difference that
#   these tokens show; best scale has the least and GPTQ nearly the most, and their effects, the smallest, are not
#   told apart with activations.
# - NVFP4's activations cost nearly as much again as its weights, those of INT4 and MXFP4 more than their weights.
# - The effects of parts made low alone add up to that of all together, within a tenth. For its number a weight of the
#   last block matters most, then of the first block and of q, k, v, whose order depends on whether it is kept high or
#   made low alone; one of gate and up or of attention's output matters least, and these two are not told apart.
# - Off the grid: moved at random within the steps of its four bits, the model differs from itself by more than NVFP4
#   makes it. Rounding the moved weights has the same error and a larger effect. So the four bits it came in are not
#   what makes NVFP4 look bad here, and what they cost before is not in these numbers.
#
# ## Block by block
#
# One half of one block in NVFP4, all else as it came: error of its weights, of what it adds to the stream of
# activations, of the stream after it, and the KL divergence, in thousandths.

# %%
plotting.table({"block": blocks["block"], "part": blocks["part"]} | {what: [f"{1e3 * x:.2f}" for x in blocks[column]] for what, column in (("weights", "weight_relmse"), ("added", "added_relmse"), ("stream", "stream_relmse"), ("KL", "kl_nats"))})

# %%
ranks = {c: np.argsort(np.argsort(blocks[c])) for c in ("weight_relmse", "added_relmse", "stream_relmse", "kl_nats")}
plotting.say("Rank correlation with the KL divergence over the 60 halves: " + ", ".join(f"{what} {np.corrcoef(ranks[c], ranks['kl_nats'])[0, 1]:.2f}" for what, c in (("error of the weights", "weight_relmse"), ("of what is added", "added_relmse"), ("of the stream", "stream_relmse"))) + ".")

# %% [markdown]
# Every half has the same error of its weights, so it cannot tell which one matters. The error of the stream can:
# measure that, with calibration data, when choosing what to keep high.
