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
# disagree the chosen value and the others stand side by side. A dash stands for a number that the chip does not have or
# that is not public; asking for such a peak raises an error, never another format's peak.

# %% tags=["hide-input"]
from codesign_lib.report import claims, tables
from codesign_lib.report.plotting import say, si, table
from codesign_lib.specs import published
from codesign_lib.specs.formats import FORMATS
from codesign_lib.specs.hardware import CHIPS
from codesign_lib.specs.models import MODELS, state_bytes

chips, formats, models = CHIPS.values(), FORMATS.values(), MODELS.values()

# %% [markdown]
# ## Number formats
#
# Bytes an element count the block's scale {cite}`ocp2023mx,nvidia2025nvfp4,deepseek2024v3`. *Multiplied as* is the
# column of the next table that holds the rate.

# %% tags=["hide-input"]
table({
    "format": formats, "name": FORMATS, "bits": [f.payload_bits for f in formats],
    "scale bits": [f.scale_bits or "–" for f in formats], "a block of": [f.block_elements if f.scale_bits else "–" for f in formats],
    "B/element": [f"{f.bytes_per_element:.6g}" for f in formats], "multiplied as": [f.peak.split("_")[0] for f in formats],
})

# %% [markdown]
# ## Chips
#
# Dense peaks, a multiply-add counted as two. Sources are named chip by chip
# {cite}`aiconfigurator,bekman_engineering,shah2024flashattention3`.

# %% tags=["hide-input"]
peaks = sorted({f.peak for f in formats}, key=[f.peak for f in formats].index)
table({"T/s": chips} | {p.split("_")[0]: [si(v, "", 4, prefix="T")[:-2] if (v := getattr(c, p)) else "–" for c in chips] for p in peaks})

# %% [markdown]
# Memory, cores and power. L2 is what lies between the cores and HBM; exponentials a second are a third roof of
# attention.

# %% tags=["hide-input"]
fields = {"HBM": ("hbm_bytes", "B"), "bandwidth": ("hbm_bytes_per_s", "B/s"), "L2": ("l2_bytes", "B"), "exponentials": ("exp_per_s", "/s"), "power": ("power_w", "W")}
table({"chip": chips} | {what: [si(v, u) if (v := getattr(c, f)) else "–" for c in chips] for what, (f, u) in fields.items()} | {"SMs": [c.n_sms or "–" for c in chips]})

# %% [markdown]
# Links, one direction. *All links* is what a chip can send at once within its scale-up domain, *one peer* what two chips
# alone reach.

# %% tags=["hide-input"]
links = {"all links": "link_bytes_per_s", "one peer": "link_peer_bytes_per_s", "scale-out": "scale_out_bytes_per_s"}
table({"chip": chips, "name": CHIPS, "topology": [c.link_topology for c in chips], "domain": [c.n_scale_up for c in chips]} | {name: [si(v, "B/s") if (v := getattr(c, f)) else "–" for c in chips] for name, f in links.items()})

# %% [markdown]
# ### Sources

# %% tags=["hide-input"]
table({"chip": chips, "source": [c.source for c in chips], "read": [c.as_of for c in chips]})

# %% [markdown]
# ### Where sources disagree
#
# *Reading* is how this project reads the difference; the source does not say it.

# %% tags=["hide-input"]
rows = [(c, o) for c in chips for o in c.others]
table({
    "chip": [c for c, _ in rows], "field": [o.field for _, o in rows], "chosen": [si(getattr(c, o.field), digits=4) for c, o in rows],
    "other": [si(o.value, digits=4) for _, o in rows], "reading; source": [f"{o.reading}; {o.source}" for _, o in rows],
})

# %% [markdown]
# ### Held against printed sources
#
# Every peak and bandwidth is held against what a source prints, and the tests fail when one differs by more than a thousandth and
# more than the last printed digit. A rack of 72 GB300 is held against what its product page says of the whole.

# %% tags=["hide-input"]
tables.checks(claims.check("chips"))

# %% [markdown]
# ## Models
#
# Read from their `config.json`. *Stored* leaves modules for multi-token prediction and vision towers out; *active* is
# what is read for one token: the output head counted, the embedding table not. *KV* is what one more token adds to a
# request's cache in BF16 once every window is full, *state* what recurrent layers keep for a request whatever its
# length. Pattern: how a layer mixes tokens / its feed-forward block.

# %% tags=["hide-input"]
table({
    "model": models, "stored": [f"{m.n_params / 1e9:,.2f} B" for m in models], "active": [f"{m.n_active_params / 1e9:,.2f} B" for m in models],
    "KV, B/token": [m.kv_bytes_per_token("bf16") for m in models], "state": [f"{x:.0f} MiB" if (x := state_bytes(m, "bf16") / 2**20) else "–" for m in models],
    "layers": [m.n_layers for m in models], "pattern": [m.pattern for m in models],
})

# %% [markdown]
# In code a model goes by its name:

# %% tags=["hide-input"]
say(", ".join(f"`{name}`" for name in MODELS))

# %% [markdown]
# ### Parameters in named parts
#
# In millions; names as in the library. *mtp* (multi-token prediction) and *vision* are apart and in
# none of the totals above; a dash there can also mean that the config does not give their shape (see the notes below).

# %% tags=["hide-input"]
names = list(dict.fromkeys(name for m in models for name in m.n_params_by_part))
parts = {name: [f"{n / 1e6:,.0f}" if (n := m.n_params_by_part.get(name)) else "–" for m in models] for name in names}
table({"model": models} | parts)

# %% [markdown]
# ### What the configs leave open
#
# Defaults that were taken because the config does not say, and what is declared but not counted.

# %% tags=["hide-input"]
notes = [(m, note) for m in models for note in (*m.config.notes, m.size_note) if note]
table({"model": [m for m, _ in notes], "note": [note for _, note in notes], "config": [m.source for m, _ in notes]})

# %% [markdown]
# ### Held against transformers
#
# Each config that the package transformers has a class for, and that we do not refuse, was built without memory and its
# parameters counted.

# %% tags=["hide-input"]
counts, header = published.table("validation/configs"), published.table("validation/configs").header
unequal, compared = counts.where(equal="no"), [t != "" and ours > 0 for t, ours in zip(counts["theirs_n_params"], counts["ours_n_params"], strict=True)]
say(f"{header['version']}, {header['date']}: {(counts['equal'] == 'yes').sum()} of the {sum(compared)} configs compared have the same number of parameters, to the last one. The rest:")

# %% tags=["hide-input"]
table({"config": unequal["name"], "ours": [n or "–" for n in unequal["ours_n_params"]], "theirs": [t or "–" for t in unequal["theirs_n_params"]], "reason": unequal["reason"]})
