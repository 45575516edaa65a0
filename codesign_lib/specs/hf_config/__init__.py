"""A Hugging Face `config.json`, turned into plain checked fields for every layer.

What a field means depends on the architecture; those conventions are data in ``families``. What is not understood
is refused with one ``ValueError``; keys that are neither read nor known to have no effect are named in one warning.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

from codesign_lib.specs.hf_config.defaults import CLASSES, class_of
from codesign_lib.specs.hf_config.families import BY_ARCHITECTURE, FAMILIES, Family
from codesign_lib.specs.hf_config.ffns import ffns
from codesign_lib.specs.hf_config.fields import Config, Ffn, Layer, Mixer
from codesign_lib.specs.hf_config.kinds import block_list, layer_kinds, n_layers_of, window_is_on
from codesign_lib.specs.hf_config.mixers import mixers, unwindowed
from codesign_lib.specs.hf_config.parts import (
    family_of,
    frames_to_caller,
    is_tied,
    quantisation,
    refuse_encoders,
    text_part,
    unknown_keys,
    warning_of,
    wrappers_of,
)  # fmt: skip
from codesign_lib.specs.hf_config.reader import MAX_LAYERS, Keys, load
from codesign_lib.specs.hf_config.vision import n_vision_params

__all__ = ["BY_ARCHITECTURE", "CLASSES", "FAMILIES", "Config", "read", "supported"]
_DATA = files("codesign_lib") / "data"
_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")


def supported() -> tuple[str, ...]:
    """The architectures that are understood, as `config.json` names them.

    >>> "DeepseekV3ForCausalLM" in supported()
    True
    """
    return tuple(sorted(BY_ARCHITECTURE))


def read(config: str | os.PathLike[str] | Mapping[str, Any]) -> Config:
    """The fields of a `config.json`, given as its path or as a dict.

    Takes the text model out of a multimodal wrapper and says on which path it was found (``Config.text_path``).
    ``null`` is the same as absent. One ``UserWarning`` names every key that was not understood.

    Raises ValueError, one sentence, for a file that cannot be read as JSON; another format than Hugging Face's; an
    architecture that is not supported; a field that is missing, out of range, of the wrong length or contradicts
    another.

    >>> small = read({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    ...               "intermediate_size": 256, "vocab_size": 1000})
    >>> small.layers[0].mixers[0].d_head, small.layers[0].ffns[0].d_dense
    (16, 256)
    >>> small.notes[-1]
    "tie_word_embeddings is absent: false (LlamaForCausalLM's default)"
    """
    raw, where = load(config)
    try:
        return _read(raw, where)
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply for a config.json") from None


def _read(raw: dict[str, Any], where: str) -> Config:
    refuse_encoders(raw, where)
    path, text = text_part(raw, where)
    refuse_encoders(text, f"{where}: {path}" if path else where)
    keys = Keys(text, f"{where}: {path}" if path else where)
    wrappers = wrappers_of(raw, path, where)
    family, architecture = family_of(raw, text, keys.where)
    for name in family.refused:
        if keys.raw.get(name):
            raise keys.refuse(f"{name} is set; what it adds to a {architecture} is not public, so nothing is counted")
    kind = class_of(family, architecture, text.get("model_type"), raw.get("model_type"))
    if kind:
        keys.fill_absent(CLASSES[kind]["defaults"], f"{architecture}'s default", bare=bool(path))
    for name, value in family.only.items():
        if keys.flag(name, default=value) != value:
            raise keys.refuse(f"{name} is {str(not value).lower()}; allowed in {architecture}: {str(value).lower()} "
                              "(the other is not modelled)")  # fmt: skip
    keys.fill(family.defaults, f"{architecture}'s default")

    if family.name == "hyperclovax" and not keys.flag("use_post_norm", default=True):
        family = replace(family, n_norms=2)
    d_model, n_vocab = keys.size("hidden_size", "n_embd", most=2**20), keys.size("vocab_size", most=2**26)
    n_layers = n_layers_of(keys, family, MAX_LAYERS)
    kinds = layer_kinds(keys, family, n_layers)
    mixed, blocks = mixers(keys, family, kinds, d_model), ffns(keys, family, kinds, d_model)
    if not window_is_on(keys, family, kinds) and "sliding" in kinds:
        mixed = unwindowed(mixed)
    beside, n_vocab_per_layer = _beside(keys, family, n_vocab)
    layers = tuple(_layer(family, d_model, mixer, ffn, beside) for mixer, ffn in zip(mixed, blocks, strict=True))
    n_mtp, mtp, n_uncounted = _mtp(keys, family, layers, d_model)
    tied = is_tied(keys, wrappers, architecture)
    method = quantisation(keys, wrappers)
    called = raw.get("_name_or_path") or text.get("_name_or_path") or ""
    around = [part.raw for part in wrappers] or [raw]
    seeing = next((x for x in around if any("vision" in key and isinstance(x[key], dict) for key in x)), None)
    has_vision = seeing is not None
    n_vision = _vision(keys, seeing, d_model, where) if has_vision else 0
    context = next((k for k in ("max_position_embeddings", "model_max_length", "seq_length") if keys.has(k)), None)
    n_context = keys.size(context) if context else None

    head_bias = _head_bias(keys, family)
    unknown = unknown_keys(keys, wrappers, family, path)
    if unknown:
        warnings.warn(warning_of(where, unknown), UserWarning, stacklevel=frames_to_caller())
    return Config(
        name=called if isinstance(called, str) else "", architecture=architecture,
        family=family.name, text_path=path, d_model=d_model, n_vocab=n_vocab, tied=tied,
        layers=layers, mtp_layers=mtp, n_mtp_modules=n_mtp, n_mtp_uncounted=n_uncounted,
        n_final_norm_params=family.norm_weights * d_model,
        head_bias=head_bias,
        d_per_layer_input=beside.get("d_per_layer_input", 0),
        n_vocab_per_layer_input=n_vocab_per_layer,
        n_context_max=n_context, quantisation=method,
        has_vision=has_vision, n_vision_params=n_vision,
        notes=tuple(keys.notes), unknown_keys=unknown, used_keys=tuple(sorted(keys.used & keys.given)), source=where,
    )  # fmt: skip


def _vision(keys: Keys, raw: dict[str, Any], d_model: int, where: str) -> int | None:
    try:
        return n_vision_params(raw, d_model, where)
    except ValueError as error:
        keys.note(f"the vision tower is not counted: {error}")
        return None


def _beside(keys: Keys, family: Family, n_vocab: int) -> tuple[dict[str, int], int]:
    """What some families put beside mixer and FFN in every layer, and the vocabulary of their per-layer embeddings."""
    beside = dict(n_other_params=family.n_other)
    if family.name == "deepseek_v4":
        return beside | dict(n_hyper=keys.size("hc_mult", most=64)), 0
    if family.name not in ("gemma3n", "gemma4"):
        return beside, 0
    beside["d_per_layer_input"] = keys.size("hidden_size_per_layer_input", default=0, least=0)
    n_vocab_per_layer = keys.size("vocab_size_per_layer_input", default=n_vocab)
    if family.name == "gemma3n":
        beside |= dict(n_altup=keys.size("altup_num_inputs", most=64), d_laurel=keys.size("laurel_rank"))
    return beside, n_vocab_per_layer if beside["d_per_layer_input"] else 0


def _layer(
    family: Family, d_model: int, mixer: tuple[Mixer, ...], ffn: tuple[Ffn, ...], beside: dict[str, int]
) -> Layer:
    n_norms = family.n_norms + (family.n_expert_norms if any(block.n_experts for block in ffn) else 0)
    if family.name == "deci":
        n_norms = bool(mixer) + bool(ffn)
    return Layer(
        mixers=mixer, ffns=ffn, n_norm_params=n_norms * family.norm_weights * d_model, **beside
    )  # fmt: skip


def _mtp(keys: Keys, family: Family, layers: tuple[Layer, ...], d_model: int) -> tuple[int, tuple[Layer, ...], int]:
    """Multi-token-prediction modules: the counted ones, all their layers, and how many are not counted."""
    n = keys.size(*(name for name in _MTP_KEYS if name not in family.ignored), default=0, least=0, most=64)
    keys.used.update(("mtp_hybrid_override_pattern", "mtp_layers_block_type", "mtp_use_dedicated_embeddings"))
    if not n:
        return 0, (), 0
    if family.mtp == "decoder":
        # A module holds one more layer of the last kind; where only some layers score, one that scores.
        like = next((x for x in reversed(layers) if getattr(x.mixers[0], "indexer", None)), layers[-1])
        return n, (like,) * n, 0
    if family.mtp == "blocks":
        kinds = block_list(keys, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
        mixed, blocks = mixers(keys, family, kinds, d_model), ffns(keys, family, kinds, d_model)
        pairs = zip(mixed, blocks, strict=True)
        return n, tuple(_layer(family, d_model, mixer, ffn, {}) for mixer, ffn in pairs) * n, 0
    keys.note(f"{n} multi-token-prediction modules are declared and not counted: their shape is not in the config")
    return 0, (), n


def _head_bias(keys: Keys, family: Family) -> bool:
    if family.name == "phimoe":
        return keys.flag("lm_head_bias", default=False)
    return family.head_bias or ("ernie" in family.name and keys.flag("use_bias", default=False))
