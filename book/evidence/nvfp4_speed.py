# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# (evidence-nvfp4-speed)=
# # NVFP4: speed
#
# The full tables behind the second half of {ref}`study 5 <study-nvfp4>`: how much faster NVFP4 is than other formats
# in all measured layers of four GPUs, and every claim on speed.

# %%
from codesign_lib.report import claims, plotting, tables
from codesign_lib.report.tables import pivot
from codesign_lib.specs import published

gain, sizes = published.table("validation/gain"), published.table("checkpoint_speeds")
plotting.say("\n".join(f"- **{t.name}**, {t.header['title']}: " + "; ".join(f"{key} `{t.header[key]}`" for key in ("source", "version", "date", "licence", "drawn_by")) for t in (gain, sizes)))

# %% [markdown]
# ## Measured gains
#
# Time in the other format over time in NVFP4, same chip, engine and sizes, each with the pass that quantises its
# activations. A cell is the median / the 90th percentile / the 999th of a thousand. *Decode* is up to 64 tokens and
# *prefill* from 1,024, both with N and K of at least 1,024; *large* is N·K of at least 2²⁶.

# %%
where = {"index": ["chip", "engine", "before"], "across": "regime"}
pivot(gain, cell="{median:.2f} / {p90:.2f} / {p999:.2f}", **where)

# %% [markdown]
# How many layers are slower in NVFP4 / gain four times or more, in percent:

# %%
pivot(gain, cell="{slower_percent:.1f} / {above_4_percent:.2f}", **where)

# %% [markdown]
# A few layers gain more than the bytes and the peaks allow; one of the two times was then measured badly or by another
# kernel. On all chips together they are fewer than one in a hundred.
#
# How wrong our gain is, median / 90th percentile of the error without its sign in percent, on layers that no fit saw;
# and how many rows stand behind each cell above:

# %%
pivot(gain, cell="{error_median_percent:.1f} / {error_p90_percent:.1f}", **where)

# %%
pivot(gain, cell="{n_rows:,.0f}", **where)

# %% [markdown]
# ## Claims on speed
#
# Square layers on GB300, and the most that a paper reports for a layer on B200 with kernels of its own.

# %%
tables.checks([*claims.check("nvfp4_speed"), *claims.check("best_layer")])

# %% [markdown]
# The 16,384 square in TensorRT-LLM is slower than its smaller neighbours in NVFP4, which our model does not know.
#
# ## Checkpoints
#
# The size of DeepSeek-R1's checkpoint, ours with everything but experts and dense FFNs in BF16.

# %%
tables.checks(claims.check("checkpoints"))

# %% [markdown]
# Bytes of the checkpoint times tokens a second is the rate at which it would be read. Nothing of the library is in this
# table: it says that a dense model reads at nearly the same rate in four formats. The 35B mixture reads only the experts
# it wakes, so its checkpoint says nothing.

# %%
read = sizes["checkpoint_bytes"] * sizes["tokens_per_s"]
plotting.table({"model": sizes["model"], "format": sizes["fmt"], "checkpoint, GB": [f"{b / 1e9:.1f}" for b in sizes["checkpoint_bytes"]], "tokens/s": [f"{s:.1f}" for s in sizes["tokens_per_s"]], "read at": [plotting.si(r, "B/s") if "A3B" not in m else "–" for m, r in zip(sizes["model"], read, strict=True)]})

# %%
spread = {m: read[sizes["model"] == m].max() / read[sizes["model"] == m].min() - 1 for m in ("Qwen3.6-27B", "Gemma-4-31B")}
plotting.say("From the slowest of the four formats to the fastest the rate grows by " + " and ".join(f"{100 * x:.0f} % ({m})" for m, x in spread.items()) + ".")

# %% [markdown]
# ## What users asked
#
# The threads have the question and the gains; *theirs* is the answer, worked out by hand.

# %%
tables.checks(claims.check("nvfp4_questions"))
