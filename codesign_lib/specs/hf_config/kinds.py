"""The kind of every layer: where attention is full, sliding or chunked, and where a recurrent layer stands instead."""

from __future__ import annotations

from collections.abc import Callable

from codesign_lib.specs.hf_config.families import Family
from codesign_lib.specs.hf_config.reader import Keys

# What the entries of layer_types (and of older keys) mean here.
_NAMES = {
    "full_attention": "full", "attention": "full", "global_attention": "full", "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding", "local_attention": "sliding", "chunked_attention": "chunked",
    "linear_attention": "linear", "conv": "linear", "mamba": "linear", "mamba2": "linear",
    "minimax_m3_sparse": "sparse", "compressed_sparse_attention": "full",
    "heavily_compressed_attention": "full", "moe": "moe", "mlp": "mlp", "hybrid": "parallel",
}  # fmt: skip
# What an explicit list of layer types makes superfluous.
_IMPLIED = (
    "sliding_window_pattern", "_sliding_window_pattern", "full_attention_interval", "max_window_layers",
    "layer_group_size", "no_rope_layers", "no_rope_layer_interval", "full_attn_idxs", "attn_layer_indices",
    "attn_type_list", "hybrid_layer_pattern", "global_attn_every_n_layers", "attn_layer_period", "attn_layer_offset",
)  # fmt: skip
_PATTERN = {"M": "linear", "E": "moe", "*": "full", "-": "mlp"}


def layer_kinds(keys: Keys, family: Family, n_layers: int) -> list[str]:
    """One of ``full sliding chunked sparse linear parallel moe mlp`` for each of the layers.

    An explicit list in the config goes before the family's rule. ``sliding`` says what is built, not that the window
    is on: a declared window may be off (``window_is_on``).
    """
    rule = _RULES[family.kinds]
    if family.kinds not in ("blocks", "parallel") and keys.has("layer_types", "layers_block_type"):
        name = "layer_types" if keys.has("layer_types") else "layers_block_type"
        entries = keys.listed(
            name, n_layers, allowed=_NAMES, n_extra=keys.size("num_nextn_predict_layers", default=0, least=0, most=64)
        )
        kinds = [_NAMES[entry] for entry in entries]
        keys.used.update(_IMPLIED)
        _check_listed(keys, family, name, kinds)
        if family.name == "gemma4" and kinds[-1] == "sliding":
            keys.note(f"{name}[{n_layers - 1}] is sliding: full, as Gemma 4 makes its last layer")
            kinds[-1] = "full"
    else:
        kinds = rule(keys, family, n_layers)
    if "linear" in kinds and not family.linear:
        raise keys.refuse(f"layer {kinds.index('linear')} is recurrent; allowed in {family.name}: attention only")
    return kinds


def blocks(keys: Keys, n: int) -> list[Keys]:
    """The entries of ``block_configs``, one a layer."""
    value = keys.raw.get("block_configs")
    keys.used.update(("block_configs", "num_key_value_heads", "intermediate_size"))
    if not isinstance(value, list) or len(value) != n:
        got = f"{len(value)} entries" if isinstance(value, list) else repr(value)[:40]
        raise keys.refuse(f"block_configs has {got}, num_hidden_layers is {n}; allowed: one block a layer")
    for index, block in enumerate(value):
        if not isinstance(block, dict):
            raise keys.refuse(f"block_configs[{index}] is {block!r:.40}; allowed: an object")
    for index, block in enumerate(value):
        name = f"block_configs[{index}]"
        keys.children.setdefault(name, Keys(block, f"{keys.where}: {name}"))
    return [keys.children[f"block_configs[{index}]"] for index in range(n)]


def n_layers_of(keys: Keys, family: Family, most: int) -> int:
    """How many layers the model has; Nemotron-H says it by a pattern or a list, Longcat counts double blocks."""
    if family.kinds == "blocks":
        blocks = _blocks(keys, family, 0)
        n = keys.size("num_hidden_layers", default=len(blocks), most=most)
        if n != len(blocks):
            raise keys.refuse(
                f"num_hidden_layers is {n} but the pattern names {len(blocks)} layers: index {min(n, len(blocks))} "
                f"is {'one too many' if n < len(blocks) else 'missing'}"
            )
        return n
    return keys.size("num_hidden_layers", "num_layers", "n_layer", most=most)


_FLAGGED = ("flagged", "flagged_all", "flagged_odd", "nope")
_WINDOWED = (*_FLAGGED, "all", "period", "listed", "mimo_v2", "every_fourth")


def window_is_on(keys: Keys, family: Family, kinds: list[str]) -> bool:
    """Whether sliding layers slide: a window is declared, its flag is set where the family has one, and it is shorter
    than the longest context that the config gives.
    """
    if family.kinds not in _WINDOWED and keys.raw.get("use_sliding_window") is not False:
        return False
    on = keys.flag("use_sliding_window", default=family.kinds not in _FLAGGED)
    keys.used.update(("sliding_window", "sliding_window_size"))
    if not on or family.kinds not in _WINDOWED:
        return False  # a window that is off may be written as 0
    width = keys.size("sliding_window", "sliding_window_size", default=None)
    if width is None or "sliding" not in kinds:
        return False
    n_context = keys.raw.get("max_position_embeddings")
    if isinstance(n_context, int) and width >= n_context:
        keys.note(f"the window of {width} tokens is no shorter than the longest context ({n_context}): full attention")
        return False
    return True


def _check_listed(keys: Keys, family: Family, name: str, kinds: list[str]) -> None:
    # A layer that is listed as windowed needs a window, and a class that has one.
    for kind, widths in (
        ("sliding", ("sliding_window", "sliding_window_size")),
        ("chunked", ("attention_chunk_size",)),
    ):
        if kind not in kinds:
            continue
        at = f"{name}[{kinds.index(kind)}] is {kind} attention"
        if family.kinds not in (("chunks",) if kind == "chunked" else _WINDOWED):
            raise keys.refuse(f"{at}; {widths[0]} has no effect in {family.name}; allowed: no such layers")
        if not keys.has(*widths) and not (keys.has("use_sliding_window") and not keys.raw["use_sliding_window"]):
            raise keys.refuse(f"{at} but {widths[0]} is missing; allowed: its number of tokens")


def _full(keys: Keys, family: Family, n: int) -> list[str]:
    return ["full"] * n


def _all(keys: Keys, family: Family, n: int) -> list[str]:
    return ["sliding"] * n


def _flagged(keys: Keys, family: Family, n: int) -> list[str]:
    # Qwen2 and 3: the window holds from layer max_window_layers on, and only behind its flag.
    first = keys.size("max_window_layers", default=28, least=0)
    return ["sliding" if layer >= first else "full" for layer in range(n)]


def _flagged_all(keys: Keys, family: Family, n: int) -> list[str]:
    # Qwen3's experts: behind the flag every layer slides; the class has no max_window_layers.
    keys.used.add("max_window_layers")
    return ["sliding"] * n


def _flagged_odd(keys: Keys, family: Family, n: int) -> list[str]:
    # Qwen2's experts: layers 0, 2, 4, … below max_window_layers slide, the other way round than in dense Qwen2.
    first = keys.size("max_window_layers", default=28, least=0)
    return ["sliding" if (layer + 1) % 2 and layer < first else "full" for layer in range(n)]


def _every_fourth(keys: Keys, family: Family, n: int) -> list[str]:
    # CWM: layers 0, 4, 8, … are full, the rest slides.
    return ["sliding" if layer % 4 else "full" for layer in range(n)]


def _period(keys: Keys, family: Family, n: int) -> list[str]:
    names = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
    if any(isinstance(keys.raw.get(name), str) for name in names):
        text = keys.text(*names)
        if not text or set(text) - set("LG"):
            raise keys.refuse(f"sliding_window_pattern is {text!r}; allowed: a number or text of L and G")
        return ["sliding" if text[layer % len(text)] == "L" else "full" for layer in range(n)]
    period = keys.size(*names, default=family.period)
    kinds = ["sliding" if (layer + 1) % period else "full" for layer in range(n)]
    return [*kinds[:-1], "full"] if family.name == "gemma4" else kinds


def _interval(keys: Keys, family: Family, n: int) -> list[str]:
    period = keys.size("full_attention_interval", "layer_group_size", default=family.period)
    return ["linear" if (layer + 1) % period else "full" for layer in range(n)]


def _recurrent(keys: Keys, family: Family, n: int) -> list[str]:
    return ["linear"] * n


def _nope(keys: Keys, family: Family, n: int) -> list[str]:
    # SmolLM3: layers without rotary embedding are the ones that may slide, behind a flag.
    rotary = _rotary_layers(keys, n)
    return ["full" if has_rotary else "sliding" for has_rotary in rotary]


def _chunks(keys: Keys, family: Family, n: int) -> list[str]:
    # Llama 4: layers with rotary embedding attend within their chunk.
    on = keys.has("attention_chunk_size")
    return ["chunked" if has_rotary and on else "full" for has_rotary in _rotary_layers(keys, n)]


def _rotary_layers(keys: Keys, n: int) -> list[int]:
    interval = keys.size("no_rope_layer_interval", default=4)
    if keys.has("no_rope_layers") and keys.raw["no_rope_layers"] != []:
        return keys.listed("no_rope_layers", n, allowed=(0, 1))
    return [int((layer + 1) % interval != 0) for layer in range(n)]


def _mimo_v2(keys: Keys, family: Family, n: int) -> list[str]:
    if keys.has("hybrid_layer_pattern"):
        return ["sliding" if flag else "full" for flag in keys.listed("hybrid_layer_pattern", n, allowed=(0, 1))]
    return ["sliding" if layer and (layer + 1) % 6 else "full" for layer in range(n)]


def _sparse_blocks(keys: Keys, family: Family, n: int) -> list[str]:
    if not keys.has("sparse_attention_config"):
        return ["full"] * n
    sparse = keys.sub("sparse_attention_config")
    if not sparse.flag("use_sparse_attention", default=True):
        return ["full"] * n
    return ["sparse" if flag else "full" for flag in sparse.listed("sparse_attention_freq", n, allowed=(0, 1))]


def _kimi(keys: Keys, family: Family, n: int) -> list[str]:
    if not keys.has("linear_attn_config"):
        return ["full" if layer and layer % 4 == 0 else "linear" for layer in range(n)]
    linear = keys.sub("linear_attn_config")
    full, recurrent = (linear.members(name, n, first=1) for name in ("full_attn_layers", "kda_layers"))
    keys.used.add("layer_types")
    for layer in range(n):
        if (layer in full) == (layer in recurrent):
            raise linear.refuse(f"layer {layer + 1} is in {'both' if layer in full else 'neither'} of "
                                "full_attn_layers and kda_layers; allowed: exactly one")  # fmt: skip
    return ["full" if layer in full else "linear" for layer in range(n)]


def _blocks(keys: Keys, family: Family, n: int) -> list[str]:
    return block_list(keys, "hybrid_override_pattern", "layers_block_type", "layer_types")


def block_list(keys: Keys, pattern: str, *lists: str) -> list[str]:
    """Nemotron-H's layers (or those of its MTP module), from a pattern text or a list of names."""
    if keys.has(pattern):
        text = keys.text(pattern)
        for index, letter in enumerate(text):
            if letter not in _PATTERN:
                raise keys.refuse(f"{pattern}[{index}] is {letter!r}; allowed: {', '.join(_PATTERN)}")
        if not text:
            raise keys.refuse(f"{pattern} is empty; allowed: one letter a layer")
        return [_PATTERN[letter] for letter in text]
    present = next((name for name in lists if keys.has(name)), None)
    if present is None:
        raise keys.refuse(f"{pattern} or {lists[0]} is missing; allowed: a config that gives one")
    value = keys.raw[present]
    if value == []:
        raise keys.refuse(f"{present} is empty; allowed: one entry a layer")
    entries = keys.listed(present, len(value) if isinstance(value, list) else 0, allowed=_NAMES)
    return [_NAMES[entry] for entry in entries]


def _members(keys: Keys, family: Family, n: int) -> list[str]:
    # Bamba and LFM2 list their attention layers.
    name = "full_attn_idxs" if keys.has("full_attn_idxs") else "attn_layer_indices"
    attention = keys.members(name, n) if keys.has(name) else set()
    if not attention and family.name == "lfm2":
        attention = set(range(n))
    return ["full" if layer in attention else "linear" for layer in range(n)]


def _parallel(keys: Keys, family: Family, n: int) -> list[str]:
    return ["parallel"] * n


def _jamba(keys: Keys, family: Family, n: int) -> list[str]:
    period = keys.size("attn_layer_period", default=8)
    offset = keys.size("attn_layer_offset", default=4, least=0, most=period - 1)
    return ["full" if layer % period == offset else "linear" for layer in range(n)]


def _attn_type_list(keys: Keys, family: Family, n: int) -> list[str]:
    if keys.has("attn_type_list"):
        return ["full" if flag else "linear" for flag in keys.listed("attn_type_list", n, allowed=(0, 1))]
    return ["full" if (layer + 1) % 2 else "linear" for layer in range(n)]


_RULES: dict[str, Callable[[Keys, Family, int], list[str]]] = {
    "full": _full, "listed": _full, "all": _all, "flagged": _flagged, "period": _period, "interval": _interval,
    "recurrent": _recurrent,
    "nope": _nope, "chunks": _chunks, "flagged_all": _flagged_all, "flagged_odd": _flagged_odd,
    "every_fourth": _every_fourth,
    "mimo_v2": _mimo_v2, "sparse_blocks": _sparse_blocks, "kimi": _kimi,
    "blocks": _blocks, "members": _members, "parallel": _parallel, "jamba": _jamba, "attn_type_list": _attn_type_list,
}  # fmt: skip
