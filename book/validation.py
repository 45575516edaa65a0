# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# (validation)=
# # Scoreboard
#
# Every number of others that the book holds itself against: theirs, ours, and the gap, also where it is bad. The tests
# check the same list. *Exact* claims must agree to the printed digit, *measured* ones keep their recorded gap within two
# percentage points, *trends* keep sign and order.

# %%
import numpy as np

from codesign_lib.report import claims, tables
from codesign_lib.report.plotting import say, table
from codesign_lib.specs import published

held = {topic: claims.check(topic) for topic in claims.TOPICS}
every = [check for results in held.values() for check in results]
kinds = {kind: [c for c in every if c.claim.kind == kind] for kind in ("exact", "measured", "trend")}
say(f"**{len(every):,} claims**: {len(kinds['exact']):,} exact, {len(kinds['measured']):,} measured, {len(kinds['trend']):,} trends; {sum(c.ok for c in kinds['exact'] + kinds['trend']):,} of the exact ones and trends agree. Of the measured ones {sum(c.ok for c in kinds['measured']):,} have the gap that was recorded, which says that ours did not move and nothing of how near it is: half of these gaps are larger than {100 * np.median([abs(c.gap) for c in kinds['measured']]):.0f} %, and {sum(abs(c.gap) > 0.5 for c in kinds['measured'])} larger than 50 %.")

# %% [markdown]
# ## By topic
#
# *Agree*: exact claims and trends. *As recorded*: measured claims whose gap is where it was; how large it is say the
# median of its size and the worst with its sign. Where nobody printed the other number, the claim says so below: a second
# program (error_law), or a formula by hand (nvfp4_questions, the padded rows of storage).

# %%
tables.summary(held)

# %% [markdown]
# ## The worst
#
# Twenty measured claims with the largest gaps. Gaps of the roofline topics are large by design: a bound is held against a
# measured time to show how much it leaves out.

# %%
tables.checks(kinds["measured"][i] for i in np.argsort([-abs(c.gap) for c in kinds["measured"]], kind="stable")[:20])

# %% [markdown]
# ## What calibrated kernels reach
#
# On rows that no fit saw: what was asked of each kernel family, what came out, and the verdict. Kernels are judged on all
# their chips, engines and formats. Decode times end to end are not: the family that their three constants were not fitted to
# is Qwen3-32B, measured on H100 alone ({ref}`study 6 <study-frontier>` shows what is left when a chip is held out).
# `make validate` computes these from the full tables and compares.

# %%
promises = [(name, published.table(f"validation/{name}")) for name in published.names("validation") if name.endswith("_checks")]
rows = [(name.removesuffix("_checks"), *row) for name, t in promises for row in zip(*(t[c].tolist() for c in ("what", "found", "limit", "verdict")), strict=True)]
table(dict(zip(("kernels", "what", "found", "limit", "verdict"), zip(*rows, strict=True), strict=True)))

# %% [markdown]
# ## All claims
#
# One line a claim, in the order of the topics; unfold to see them.

# %% tags=["hide-output"]
tables.scoreboard(held)
