"""What each model class of transformers fills in for an absent field (part of `make validate-packages`).

Writes ``data/class_defaults.json``: for every model type that the library reads, the class's architecture and the
declared defaults of the fields that ``specs.hf_config`` reads. Lists are left out: they follow from rules.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import warnings
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from packages_models import build, counts, default, kv_elements

from codesign_lib.specs import hf_config
from codesign_lib.specs.models import Model, kv_bytes, state_bytes

LIBRARY = Path(str(files("codesign_lib")))
OUT = LIBRARY / "data" / "class_defaults.json"
DROPPED = LIBRARY / "data" / "validation" / "dropped_keys.csv"
DATE = "2026-11-30"
# The longest context is no shape, and what a class assumes of it says nothing about a model.
# What a class's own defaults lack to be a whole model.
COMPLETED = {
    "deepseek_v2": dict(num_experts_per_tok=6),
    "dots1": dict(n_routed_experts=16, n_shared_experts=2, num_experts_per_tok=4),
    "glm4_moe": dict(head_dim=128),
    "glm4v_moe_text": dict(head_dim=128),
    "qwen3_omni_moe_text": dict(head_dim=128),
    "ministral": dict(head_dim=128),
}
NOT_SHAPES = {
    "max_position_embeddings",
    "is_encoder_decoder",
    "add_cross_attention",
    "model_type",
    "architectures",
    "hidden_act",
    "dtype",
}


def read_words() -> set[str]:
    """Every word in quotes in the sources of the reader: what it may ask a config for."""
    text = "".join(path.read_text(encoding="utf-8") for path in (LIBRARY / "specs" / "hf_config").glob("*.py"))
    return set(re.findall(r'"(\w+)"', text)) - NOT_SHAPES


def of_class(kind: str, words: set[str]) -> dict[str, Any] | None:
    """The defaults that the class of one model type declares (of its text part, where it has one)."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as IMAGES

    if kind not in CONFIG_MAPPING:
        return None
    made = CONFIG_MAPPING[kind]
    text = (getattr(made, "sub_configs", None) or {}).get("text_config")
    if isinstance(text, type) and dataclasses.is_dataclass(text):
        made = text
    found, names = {}, {field.name for field in dataclasses.fields(made)}
    for field in dataclasses.fields(made):
        value = field.default
        if (getattr(made, "attribute_map", None) or {}).get(field.name) in names:
            continue  # an inherited field that only names another one
        if field.name in words and isinstance(value, bool | int | float | str):
            found[field.name] = value
    found.pop("num_labels", None)
    if "tie_word_embeddings" not in found:
        found["tie_word_embeddings"] = bool(getattr(made(), "tie_word_embeddings", False))
    name = CAUSAL.get(kind) or CAUSAL.get(made.model_type) or IMAGES.get(kind, "")
    return dict(architecture=name, defaults=dict(sorted(found.items())))


def text() -> str:
    """The whole file."""
    words = read_words()
    types = {}
    for family in hf_config.FAMILIES:
        for kind in family.model_types:
            found = of_class(kind, words)
            if found is not None:
                types[kind] = found
    head = dict(
        title="defaults of the fields of model configs, as the configuration classes of transformers declare them",
        source="https://github.com/huggingface/transformers",
        version=f"transformers {version('transformers')}",
        date=DATE, licence="Apache-2.0", drawn_by="tools/packages_configs.py",
    )  # fmt: skip
    lines = ",\n".join(f" {json.dumps(kind)}: {json.dumps(types[kind])}" for kind in sorted(types))
    return f'{{"_source": {json.dumps(head, indent=1)},\n{lines}}}\n'


def _seen(raw: dict[str, Any]) -> tuple[Any, ...]:
    """What a reader gets of a config: counts, cache, states and pattern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Model.from_config(raw)
    cached = tuple(int(kv_bytes(model, n, "int8")) for n in (1000, 100_000))
    return model.n_params, model.n_active_params, cached, state_bytes(model, "bf16"), model.pattern


def _as_transformers(raw: dict[str, Any]) -> bool:
    """Whether transformers makes the same of this config as we do: parameters, and the cache at 1,000 tokens."""
    built = build(dict(raw))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = Model.from_config(raw)
    cached = kv_elements(built, 1000)
    return counts(built)[0] == ours.n_params and cached in (None, int(kv_bytes(ours, 1000, "int8")))


def dropped() -> tuple[str, list[str]]:
    """Each class's defaults as a config, without one key at a time: the table, and what is silently misread.

    A key may be refused as missing, may make no difference, or may change what transformers makes of it in the same
    way (a key that the class derives others from). Anything else is a fault.
    """
    columns = ("model_type", "n_keys", "n_without_effect", "n_refused", "as_transformers", "refused")
    rows, faults = [], []
    for kind in hf_config.CLASSES:
        raw = default(kind, COMPLETED.get(kind, {}))
        raw = raw["text_config"] | dict(model_type=kind) if isinstance(raw.get("text_config"), dict) else raw
        raw.pop("architectures", None)
        try:
            whole = _seen(raw)
        except ValueError as error:
            rows.append(dict(zip(columns, (kind, 0, 0, 0, "", f"whole: {str(error)[:120]}"), strict=True)))
            continue
        refused, as_theirs, n_same = [], [], 0
        keys = [key for key in raw if key != "model_type" and key not in COMPLETED.get(kind, {})]
        for key in keys:
            rest = {name: value for name, value in raw.items() if name != key}
            try:
                n_same += (same := _seen(rest) == whole)
            except ValueError:
                refused.append(key)
                continue
            if same:
                continue
            as_theirs.append(key)
            if not _as_transformers(rest):
                faults.append(f"{kind}: without {key} ({raw[key]!r:.40}) the counts differ from those of transformers")
        values = (kind, len(keys), n_same, len(refused), " ".join(as_theirs), " ".join(refused))
        rows.append(dict(zip(columns, values, strict=True)))
    n = [sum(row[name] for row in rows) for name in columns[1:4]]
    n_theirs = sum(len(row["as_transformers"].split()) for row in rows)
    rows.append(dict(zip(columns, ("all", *n, n_theirs, ""), strict=True)))
    text = io.StringIO()
    head = (
        "title: configs of each class's defaults without one key at a time: what the reader makes of them",
        "source: https://github.com/huggingface/transformers",
        f"version: transformers {version('transformers')}",
        f"date: {DATE}",
        "licence: Apache-2.0",
        "drawn_by: tools/packages_configs.py",
    )
    text.write("".join(f"# {line}\n" for line in head))
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue(), faults
