# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# (evidence-linear-gb300)=
# # Linear layers on GB300
#
# Everything that {ref}`study 1 <study-roofline>` holds the roofline against: measured times of two engines, the bound,
# and the share of the time that the bound explains. 8,192 tokens, output BF16. In FP8 and NVFP4 a measured time
# includes the pass that quantises BF16 activations.

# %%
from itertools import product

import numpy as np

from codesign_lib.report import claims, plotting, tables
from codesign_lib.report.claims import gemm as measured
from codesign_lib.specs import published

header = published.table("gemm_gb300").header
plotting.say("; ".join(f"**{key}**: {header[key]}" for key in ("source", "version", "date", "licence")))

# %% [markdown]
# ## Square layers
#
# Claims of kind *measured*: ours is the bound, and the gap (bound over measured time, minus one) is the result. It is
# recorded, and the tests fail when it moves by more than two percentage points, better or worse.

# %%
tables.checks(claims.check("squares"), prefix="µ")

# %% [markdown]
# ## Up over down
#
# Time of the up-projection (k = 4,096, n = H′) over that of the down-projection (k = H′, n = 4,096); ours is the bound.

# %%
tables.checks(claims.check("up_down"))

# %% [markdown]
# ## FFN pairs by H′
#
# Up- and down-projection, one after the other: measured throughput of both together, and the share of their time that
# the bound explains.

# %%
rows = []
for fmt, (engine, title), h in product(("bf16", "fp8", "nvfp4"), measured.ENGINES.items(), (4096, 7168)):
    width = measured.measured_sizes(h)
    took = measured.measured_s(engine, fmt, h, width) + measured.measured_s(engine, fmt, width, h)
    bound = measured.bound_s(8192, h, width, fmt) + measured.bound_s(8192, width, h, fmt)
    rows += zip([f"{title} {fmt}"] * len(width), [h] * len(width), width, 4 * 8192 * h * width / took, bound / took, strict=True)
who, h, width, flops_per_s, share = zip(*rows, strict=True)
plotting.table({
    "engine, format": who, "H": h, "H′": width,
    "measured": [plotting.si(f, "FLOP/s", prefix="T") for f in flops_per_s], "bound over measured": [f"{s:.0%}" for s in share],
})

# %% [markdown]
# ## Layers of real models
#
# NVFP4, 1 to 16,384 tokens, times in µs: Llama-3.1-405B's attention output (16,384 → 16,384), DeepSeek-R1's attention
# output (16,384 → 7,168) and the two projections of its shared expert (7,168 → 4,096 and 2,048 → 7,168).

# %%
tokens = 2 ** np.arange(15)
columns = {"layer": [], "tokens": [], "bound": []} | {title: [] for title in measured.ENGINES.values()}
for k, n in ((16384, 16384), (16384, 7168), (7168, 4096), (2048, 7168)):
    columns["layer"] += [f"{k:,} → {n:,}"] * len(tokens)
    columns["tokens"] += tokens.tolist()
    columns["bound"] += [f"{1e6 * t:.1f}" for t in measured.bound_s(tokens, k, n, "nvfp4")]
    for engine, title in measured.ENGINES.items():
        columns[title] += [f"{1e6 * t:.1f}" for t in measured.measured_s(engine, "nvfp4", k, n, m=tokens)]
plotting.table(columns)
