"""The networks that transformers makes of configs, on the meta device: what our counts are held against."""

from __future__ import annotations

import json
import math
from typing import Any

# Names of the same network under which transformers 5.24.0 does not look.
SAME_AS = {"kimi_k2": "deepseek_v3", "deepseek_ref": "deepseek_v4", "minimax_m3": "minimax_m3_vl_text"}


def build(raw: dict[str, Any]) -> Any:
    """The model that transformers makes of a config, on the meta device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    raw = _plain(raw)
    kind = raw.pop("model_type")
    if kind == "step3p7" and "text_config" not in raw:
        raw = {"text_config": raw}
    config = AutoConfig.for_model(SAME_AS.get(kind, kind), **raw)
    auto = AutoModelForCausalLM if type(config) in AutoModelForCausalLM._model_mapping else AutoModelForImageTextToText
    with torch.device("meta"):
        return auto.from_config(config)


def _plain(raw: dict[str, Any]) -> dict[str, Any]:
    dropped = ("quantization_config", "auto_map", "_source")
    return {k: _plain(v) if isinstance(v, dict) else v for k, v in raw.items() if k not in dropped}


def counts(model: Any) -> tuple[int, int]:
    """Parameters of the language model, and of everything beside it (vision, projector)."""
    shapes = {name: math.prod(p.shape) for name, p in model.named_parameters()}
    inner = "model.language_model."
    wrapped = any(name.startswith(inner) for name in shapes)
    text = sum(n for name, n in shapes.items() if not wrapped or name.startswith((inner, "lm_head")))
    return text, sum(shapes.values()) - text


def mtp_count(model: Any, n: int) -> int:
    """Parameters of the prediction modules, as transformers builds them of the last layer's kind."""
    import torch
    from transformers.modeling_layers import MtpModel

    with torch.device("meta"):
        modules = MtpModel(model, n)
    return sum(math.prod(p.shape) for name, p in modules.named_parameters() if name.startswith("layers."))


def kv_elements(model: Any, n_context: int) -> int | None:
    """Elements that a request caches at a context: widths of the built projections, windows of transformers' cache.

    ``None`` where this cannot be told (compressed caches, attention by another name).
    """
    from transformers import DynamicCache

    kept = DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    inner = ("vision", "visual", "audio")
    stacks = [m for name, m in model.named_modules() if name.endswith("layers") and not any(x in name for x in inner)]
    total, found = 0, False
    for layer, cache in zip(stacks[0], kept, strict=False):  # the last layers may share, and then keep nothing
        if type(cache).__name__.startswith("Linear"):
            continue
        window = getattr(cache, "sliding_window", None) if getattr(cache, "is_sliding", False) else None
        n_elements = 0
        for name, module in layer.named_modules():
            parent, _, last = name.rpartition(".")
            if "indexer" in name or not hasattr(module, "out_features"):
                continue
            beside = layer.get_submodule(parent)
            if last == "k_proj":  # where there is no v_proj, keys serve as values and both are cached
                n_elements += module.out_features + (getattr(beside, "v_proj", None) or module).out_features
            elif last == "qkv_proj":
                n_elements += module.out_features - beside.o_proj.in_features
            elif last == "kv_a_proj_with_mqa":
                n_elements += module.out_features
        found = found or n_elements > 0
        total += n_elements * min(n_context, window or n_context)
    return total if found else None


def default(kind: str, changed: dict[str, Any]) -> dict[str, Any]:
    """The defaults of a class as the config.json it would write."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind, **changed)
    return json.loads(json.dumps(config.to_dict(), default=str)) | dict(model_type=kind)
