"""The vision tower and projector of a multimodal config: their parameters, for the towers whose shape is known.

Only counted, never costed: the language model is what the rest of the library is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codesign_lib.specs.hf_config.reader import Keys


def n_vision_params(raw: Mapping[str, Any], d_text: int, where: str) -> int:
    """Parameters of the tower and projector that feed a text model of ``d_text``.

    Raises ValueError for a tower that is not known or lacks a field.
    """
    tower = raw.get("vision_config")
    if not isinstance(tower, Mapping):
        raise ValueError(f"{where}: vision_config is missing; allowed: an object")
    keys = Keys(tower, f"{where}: vision_config")
    kind = keys.text("model_type", default="moonvit" if "vt_hidden_size" in tower else "")
    if kind not in _TOWERS:
        raise ValueError(f"{where}: vision_config.model_type is {kind!r:.40}; allowed: {', '.join(sorted(_TOWERS))}")
    return _TOWERS[kind](keys, d_text)


def _block(d: int, d_ff: int) -> int:
    # Two layer norms, four projections and two FFN matrices, all with biases.
    return 4 * d + 4 * (d * d + d) + 2 * d * d_ff + d_ff + d


def _merger(d_in: int, d_out: int) -> int:
    return d_in * d_in + d_in + d_in * d_out + d_out


def _qwen3(keys: Keys, d_text: int) -> int:
    d, d_ff, depth = keys.size("hidden_size"), keys.size("intermediate_size"), keys.size("depth", most=4096)
    patch, frames, merge = keys.size("patch_size"), keys.size("temporal_patch_size"), keys.size("spatial_merge_size")
    d_out, d_merged = keys.size("out_hidden_size"), d * merge**2
    deepstack = keys.raw.get("deepstack_visual_indexes") or []
    n_deepstack = len(deepstack) if isinstance(deepstack, list) else 0
    patches = keys.size("in_channels", default=3) * frames * patch**2 * d + d
    positions = keys.size("num_position_embeddings") * d
    mergers = 2 * d + _merger(d_merged, d_out) + n_deepstack * (2 * d_merged + _merger(d_merged, d_out))
    return patches + positions + depth * _block(d, d_ff) + mergers


def _gemma4(keys: Keys, d_text: int) -> int:
    d, d_ff, depth = keys.size("hidden_size"), keys.size("intermediate_size"), keys.size("num_hidden_layers", most=4096)
    n_heads, d_head = keys.size("num_attention_heads"), keys.size("head_dim")
    n_kv = keys.size("num_key_value_heads", default=n_heads)
    layer = 2 * d * d_head * (n_heads + n_kv) + 2 * d_head + 3 * d * d_ff + 4 * d
    patches = 3 * keys.size("patch_size") ** 2 * d + 2 * keys.size("position_embedding_size", default=10240) * d
    return patches + depth * layer + d * d_text


def _siglip(keys: Keys, d_text: int) -> int:
    # Gemma 3's: learned positions, a final norm, and a projector of one norm and one matrix.
    d, d_ff, depth = keys.size("hidden_size"), keys.size("intermediate_size"), keys.size("num_hidden_layers", most=4096)
    image, patch = keys.size("image_size"), keys.size("patch_size")
    patches = keys.size("num_channels", default=3) * patch**2 * d + d + (image // patch) ** 2 * d
    head = _block(d, d_ff) - d if keys.flag("vision_use_head", default=True) else 0  # a query in place of one norm
    return patches + depth * _block(d, d_ff) + 2 * d + head + d + d * d_text


def _moonvit(keys: Keys, d_text: int) -> int:
    d, d_ff, depth = keys.size("vt_hidden_size"), keys.size("vt_intermediate_size"), keys.size("vt_num_hidden_layers")
    positions = keys.size("init_pos_emb_height") * keys.size("init_pos_emb_width") * d
    patches = 3 * keys.size("patch_size") ** 2 * d + d
    merge = keys.sizes("merge_kernel_size", 2)
    d_merged = keys.size("mm_hidden_size", default=d) * merge[0] * merge[1]
    return patches + positions + depth * _block(d, d_ff) + 2 * d + 2 * d + _merger(d_merged, d_text)


_TOWERS = {
    "qwen3_vl": _qwen3, "qwen3_vl_moe": _qwen3, "qwen3_5": _qwen3, "qwen3_5_moe": _qwen3,
    "qwen3_vl_vision": _qwen3, "qwen3_vl_moe_vision": _qwen3, "qwen3_5_vision": _qwen3, "qwen3_5_moe_vision": _qwen3,
    "gemma4_vision": _gemma4, "siglip_vision_model": _siglip, "moonvit": _moonvit,
}  # fmt: skip
