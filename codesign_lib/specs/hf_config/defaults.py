"""What holds where a field is absent: the defaults that the model's own configuration class declares.

``data/class_defaults.json`` lists them for every model type that transformers has a class for; it is drawn from those
classes by ``tools/packages_configs.py``, which also drops one key at a time and compares.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from codesign_lib.specs.hf_config.families import Family

_TEXT = (files("codesign_lib") / "data" / "class_defaults.json").read_text(encoding="utf-8")
CLASSES: dict[str, dict[str, Any]] = {k: v for k, v in json.loads(_TEXT).items() if not k.startswith("_")}


def class_of(family: Family, architecture: str, *model_types: object) -> str:
    """The model type whose class says what holds: the config's own, else its architecture's, else its family's first.

    "" where transformers has no class of the family.
    """
    known = [kind for kind in family.model_types if kind in CLASSES]
    named = [kind for kind in known if kind in model_types]
    same = [kind for kind in known if CLASSES[kind]["architecture"] == architecture]
    return next(iter((*named, *same, *known)), "")


def architecture_of(family: Family, model_type: str) -> str:
    """The class name of a model type: what a config without ``architectures`` is called."""
    name = CLASSES.get(model_type, {}).get("architecture", "")
    return name if name in family.architectures else family.architectures[0]
