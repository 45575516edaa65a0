"""Where the language model is in a config, which family it is of, and what the objects around it say of it."""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import Any

from codesign_lib.specs.hf_config.defaults import architecture_of
from codesign_lib.specs.hf_config.families import BY_ARCHITECTURE, BY_MODEL_TYPE, FAMILIES, Family
from codesign_lib.specs.hf_config.reader import Keys

_DATA = files("codesign_lib") / "data"
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
          "intermediate_size", "vocab_size")  # fmt: skip
_LAYERS, _WIDTHS = {"num_hidden_layers", "num_layers", "n_layer"}, {"hidden_size", "num_attention_heads"}
_NOT_TEXT = ("vision", "visual", "audio", "image", "video", "speech", "talker", "vit", "wav", "encoder", "draft")
# Objects whose own keys are read, and named where they are not understood.
_READ_INSIDE = ("linear_attn_config", "sparse_attention_config", "block_configs")
_N_SHOWN = 20


def _words(name: str) -> frozenset[str]:
    lines = (_DATA / name).read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


KEYS_WITHOUT_EFFECT = _words("keys_without_effect.txt")
SWITCHES_WITHOUT_EFFECT = _words("switches_without_effect.txt")


def refuse_encoders(raw: dict[str, Any], where: str) -> None:
    for name in ("is_encoder_decoder", "add_cross_attention"):
        if raw.get(name) is True:
            raise ValueError(f"{where}: {name} is true; allowed: false, models of a decoder alone")
    if isinstance(raw.get("encoder"), dict) and isinstance(raw.get("decoder"), dict):
        raise ValueError(f"{where}: there is an encoder and a decoder; allowed: models of a decoder alone")


def text_part(raw: dict[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    """The path and the object of the language model in a (possibly multimodal) config."""
    found: list[tuple[str, dict[str, Any]]] = []
    level = [("", raw)]
    for _ in range(3):
        deeper = []
        for path, part in level:
            for key, value in part.items():
                if not isinstance(value, dict) or not isinstance(key, str):
                    continue
                if any(word in key.lower() for word in _NOT_TEXT):
                    continue
                here = f"{path}.{key}" if path else key
                if (any(value.get(name) is not None for name in _LAYERS) and _WIDTHS & value.keys()) or (
                    key == "text_config" and "model_type" in value
                ):  # fmt: skip
                    found.append((here, value))
                else:
                    deeper.append((here, value))
        level = deeper
    if any(raw.get(name) is not None for name in (*_LAYERS, "hybrid_override_pattern", "layers_block_type")):
        # A flat config; some files repeat it in text_config, which must then agree with it.
        if len(found) == 1 and found[0][0] == "text_config":
            text = found[0][1]
            for name in _SIZES:
                one, other = raw.get(name), text.get(name)
                if one is not None and other is not None and one != other:
                    raise ValueError(
                        f"{where}: {name} is {one!r:.40} but text_config.{name} is {other!r:.40}; "
                        "allowed: the same in both"
                    )
            return found[0]
        return "", raw
    if len(found) > 1:
        paths = ", ".join(path for path, _ in found)
        raise ValueError(f"{where}: several parts could be the language model: {paths}; allowed: one")
    if found:
        return found[0]
    return "", raw


def wrappers_of(raw: dict[str, Any], path: str, where: str) -> list[Keys]:
    """The objects around the text part, the nearest first; [] for a flat config."""
    around, here, at = [], raw, where
    for key in path.split(".") if path else ():
        around.append(Keys(here, at))
        here, at = here[key], f"{where}: {key}"
    return around[::-1]


def family_of(raw: dict[str, Any], text: dict[str, Any], where: str) -> tuple[Family, str]:
    """The conventions that hold and the architecture they were chosen by: the text part's own names go first."""
    unknown = None
    for part in (text,) if text is raw else (text, raw):
        names, model_type = part.get("architectures"), part.get("model_type")
        if names is not None and not (isinstance(names, list) and names and isinstance(names[0], str)):
            raise ValueError(f"{where}: architectures is {names!r:.60}; allowed: a list with the model's class name")
        if model_type is not None and not isinstance(model_type, str):
            raise ValueError(f"{where}: model_type is {model_type!r:.60}; allowed: text")
        name = names[0] if names else None
        by_name, by_type = BY_ARCHITECTURE.get(name or ""), BY_MODEL_TYPE.get(model_type or "")
        if by_name and by_type and by_name is not by_type:
            raise ValueError(
                f"{where}: architectures names {name} ({by_name.name}) but model_type is {model_type!r} "
                f"({by_type.name}); allowed: both of one family"
            )
        if by_name:
            return by_name, name
        if by_type and (name is None or text is not raw):
            return by_type, architecture_of(by_type, model_type)
        unknown = unknown or name or model_type
    if unknown is None:
        raise ValueError(f"{where}: architectures and model_type are missing; allowed: a config that names one")
    listed = ", ".join(sorted({family.architectures[0] for family in FAMILIES}))
    raise ValueError(f"{where}: the architecture {unknown!r:.60} is not supported; supported: {listed}")


def is_tied(keys: Keys, wrappers: list[Keys], architecture: str) -> bool:
    """Whether the output head is the embedding's table."""
    name, values = "tie_word_embeddings", []
    for part in (keys, *wrappers):
        part.used.update((name, "tie_embedding"))
        if name in part.given or "tie_embedding" in part.given:
            own = Keys({key: part.raw[key] for key in part.given}, part.where)
            values.append(own.flag(name, "tie_embedding", default=False))
    if not values:
        tied = bool(keys.raw.get(name, False))
        keys.note(f"{name} is absent: {str(tied).lower()} ({architecture}'s default)")
        return tied
    inner, outer = values[0], values[min(1, len(values) - 1)]
    if inner != outer:
        # transformers ties by the outer flag, and writes the class default of the text part inside.
        if inner != keys.default_of(name):
            raise keys.refuse(f"{name} is {inner} here but {outer} at the top level; allowed: the same in both")
        keys.note(f"{name} is {str(inner).lower()} in the text part and {str(outer).lower()} at the top level, "
                  "which decides")  # fmt: skip
    return outer


def quantisation(keys: Keys, wrappers: list[Keys]) -> str:
    """The method that the nearest quantization_config declares, "" where there is none."""
    for part in (keys, *wrappers):
        if part.has("quantization_config"):
            declared = part.sub("quantization_config")
            return str(declared.raw.get("quant_method") or declared.raw.get("quant_algo") or "declared")[:40]
    return ""


def unknown_keys(keys: Keys, wrappers: list[Keys], family: Family, path: str) -> tuple[str, ...]:
    """Every key that was neither read nor is known to have no effect, those of inner objects with their path."""
    found = _left(keys, family, "")
    for name, child in keys.children.items():
        if name.startswith(_READ_INSIDE):
            found += _left(child, family, f"{name}.")
            for inner, grandchild in child.children.items():
                found += _left(grandchild, family, f"{name}.{inner}.")
    for part, key in zip(wrappers, path.split(".")[::-1], strict=False):
        part.used.add(key)
        # A field that says again what the text part says.
        part.used.update(name for name in part.given & keys.given if part.raw[name] == keys.raw[name])
        found += _left(part, family, "")
    return tuple(dict.fromkeys(found))


def _left(keys: Keys, family: Family, prefix: str) -> list[str]:
    known = keys.used | KEYS_WITHOUT_EFFECT | {*family.ignored, *family.refused}
    unread = (key for key in keys.raw if key in keys.given and key not in known and not key.startswith("_"))
    left = (key for key in unread if keys.raw[key] or key not in SWITCHES_WITHOUT_EFFECT)
    return [prefix + (key if key.isprintable() else ascii(key)[1:-1]) for key in left]


def warning_of(where: str, unknown: tuple[str, ...]) -> str:
    """One line that names the keys, or the first of very many."""
    shown = ", ".join(key if len(key) <= 60 else f"{key[:57]}..." for key in unknown[:_N_SHOWN])
    more = f" and {len(unknown) - _N_SHOWN} more" if len(unknown) > _N_SHOWN else ""
    return f"{where}: keys that were not understood and not used: {shown}{more}"


def frames_to_caller() -> int:
    """How far up the stack the first caller outside the library's specs is: where a warning should point."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("codesign_lib.specs"):
        level, frame = level + 1, frame.f_back
    return level
