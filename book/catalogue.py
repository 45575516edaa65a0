# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# (catalogue)=
# # Catalogue
#
# The chips, number formats and models that the library knows, printed from it. Nothing here is typed; where sources
# disagree the chosen value and the others stand side by side. A dash means that the number is not public, and asking
# the library for it raises an error.

# %%
from codesign_lib.report import claims, plotting
from codesign_lib.report.plotting import say, si, table
from codesign_lib.specs import published
from codesign_lib.specs.formats import FORMATS
from codesign_lib.specs.hardware import CHIPS
from codesign_lib.specs.models import MODELS, state_bytes

chips, formats, models = CHIPS.values(), FORMATS.values(), MODELS.values()

# %% [markdown]
# ## Number formats
#
# Bytes an element count the block's scale {cite}`ocp2023mx,nvidia2025nvfp4,deepseek2024v3`. *Multiplied as* is the field
# of a chip that holds the rate.

# %%
table({
    "format": formats, "name": FORMATS, "payload, bits": [f.payload_bits for f in formats],
    "scale, bits": [f.scale_bits or "–" for f in formats], "block, elements": [f.block_elements if f.scale_bits else "–" for f in formats],
    "B/element": [f"{f.bytes_per_element:.6g}" for f in formats], "multiplied as": [f.peak for f in formats],
})

# %% [markdown]
# ## Chips
#
# Dense peaks, a multiply-add counted as two. Sources are named chip by chip
# {cite}`aiconfigurator,bekman_engineering,shah2024flashattention3`.

# %%
peaks = sorted({f.peak for f in formats}, key=[f.peak for f in formats].index)
columns = {p.removesuffix("_per_s"): [si(v, "", 4, prefix="T")[:-2] if (v := getattr(c, p)) else "–" for c in chips] for p in peaks}
table({"chip": chips, "name": CHIPS} | {f"{name.replace('_flops', '').replace('_ops', '')}, T/s": column for name, column in columns.items()})

# %% [markdown]
# Memory, cores and power. L2 is what lies between the cores and HBM; exponentials a second are a third roof of
# attention.

# %%
fields = {"hbm_bytes": "B", "hbm_bytes_per_s": "B/s", "l2_bytes": "B", "exp_per_s": "/s", "power_w": "W"}
table({"chip": chips} | {f: [si(v, u) if (v := getattr(c, f)) else "–" for c in chips] for f, u in fields.items()} | {"n_sms": [c.n_sms or "–" for c in chips]})

# %% [markdown]
# Links, one direction. *All links* is what a chip can send at once within its scale-up domain, *one peer* what two chips
# alone reach.

# %%
links = {"all links": "link_bytes_per_s", "one peer": "link_peer_bytes_per_s", "scale-out": "scale_out_bytes_per_s"}
table({"chip": chips, "topology": [c.link_topology for c in chips], "domain": [c.n_scale_up for c in chips]} | {name: [si(v, "B/s") if (v := getattr(c, f)) else "–" for c in chips] for name, f in links.items()})

# %% [markdown]
# ### Sources

# %%
table({"chip": chips, "source": [c.source for c in chips], "read": [c.as_of for c in chips]})

# %% [markdown]
# ### Where sources disagree
#
# *Reading* is how this project reads the difference; the source does not say it.

# %%
rows = [(c, o) for c in chips for o in c.others]
table({
    "chip": [c for c, _ in rows], "field": [o.field for _, o in rows], "chosen": [f"{getattr(c, o.field):.5g}" for c, o in rows],
    "other": [f"{o.value:.5g}" for _, o in rows], "reading": [o.reading for _, o in rows], "its source": [o.source for _, o in rows],
})

# %% [markdown]
# ### Held against second sources
#
# Every peak and bandwidth has a second source, and the tests fail when one differs by more than a thousandth or more
# than its last printed digit. A rack of 72 GB300 is held against what its product page says of the whole.

# %%
plotting.checks(claims.check("chips"))

# %% [markdown]
# ## Models
#
# Read from their `config.json`. *Stored* leaves modules for multi-token prediction and vision towers out; *active* is
# what is read for one token: the output head counted, the embedding table not. *KV* is what one more token adds to a
# request's cache in BF16 once every window is full, *state* what recurrent layers keep for a request whatever its
# length. Pattern: how a layer mixes tokens / its feed-forward block.

# %%
table({
    "model": models, "name": MODELS, "layers": [m.n_layers for m in models],
    "stored, B": [f"{m.n_params / 1e9:,.2f}" for m in models], "active, B": [f"{m.n_active_params / 1e9:,.2f}" for m in models],
    "KV, B/token": [m.kv_bytes_per_token("bf16") for m in models], "state, MiB": [state_bytes(m, "bf16") / 2**20 for m in models],
    "pattern": [m.pattern for m in models],
})

# %% [markdown]
# ### Parameters in named parts
#
# In millions. *MTP* (multi-token prediction) and *vision* are apart and in none of the totals above.

# %%
names = list(dict.fromkeys(name for m in models for name in m.n_params_by_part))
parts = {name: [f"{n / 1e6:,.0f}" if (n := m.n_params_by_part.get(name)) else "–" for m in models] for name in names}
table({"model": models} | parts)

# %% [markdown]
# ### What the configs leave open
#
# Defaults that were taken because the config does not say, and what is declared but not counted.

# %%
notes = [(m, note) for m in models for note in (*m.config.notes, m.size_note) if note]
table({"model": [m for m, _ in notes], "note": [note for _, note in notes], "config": [m.source for m, _ in notes]})

# %% [markdown]
# ### Held against transformers
#
# Each config that the package transformers has a class for was built without memory and its parameters counted.

# %%
counts, header = published.table("validation/configs"), published.table("validation/configs").header
unequal = counts.where(equal="no")
say(f"{header['version']}, {header['date']}: {(counts['equal'] == 'yes').sum()} of {len(counts)} configs have the same number of parameters, to the last one.")

# %%
table({"config": unequal["name"], "ours": unequal["ours_n_params"], "theirs": [t or "–" for t in unequal["theirs_n_params"]], "reason": unequal["reason"]})
