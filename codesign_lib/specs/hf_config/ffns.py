"""How a layer works on each token alone: dense and expert feed-forward blocks, built from a config by its family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from codesign_lib.specs.hf_config.families import Family
from codesign_lib.specs.hf_config.fields import Ffn
from codesign_lib.specs.hf_config.kinds import blocks
from codesign_lib.specs.hf_config.reader import Keys

_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "top_k_experts", "moe_top_k",
          "moe_topk")  # fmt: skip
_N_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")


def ffns(keys: Keys, family: Family, kinds: list[str], d_model: int) -> list[tuple[Ffn, ...]]:
    """The feed-forward blocks of each layer: mostly one, none in a layer that only mixes tokens."""
    n = len(kinds)
    if family.name == "deci":
        return _deci(keys, family, n, d_model)
    if family.moe == "none":
        return [()] * n
    if family.moe == "longcat":
        return [_longcat(keys, family)] * n
    if family.moe == "blocks":
        made = {"mlp": lambda: (_dense(keys, family),), "moe": lambda: (experts(keys, family, d_model),)}
        built = {kind: made[kind]() for kind in ("mlp", "moe") if kind in kinds}
        keys.used.update(("intermediate_size", *_EXPERTS, *_TOP_K, *_N_SHARED, "moe_shared_expert_intermediate_size",
                          *family.d_expert, "moe_latent_size"))  # fmt: skip
        if keys.flag("mlp_bias", default=False) and "moe" in kinds:
            raise keys.refuse("mlp_bias is true in a model with experts; allowed: false")
        return [built.get(kind, ()) for kind in kinds]
    holds = _WHICH[family.moe](keys, n) if family.moe else [False] * n
    if family.name == "gemma4" and not any(holds):
        keys.used.update(("moe_intermediate_size", *_EXPERTS, *_TOP_K))
    moe = experts(keys, family, d_model) if any(holds) else None
    if isinstance(keys.raw.get("intermediate_size"), list) and not any(holds):
        bias = keys.flag("mlp_bias", default=False) if family.mlp_bias is None else family.mlp_bias
        return [(Ffn(gated=family.gated, d_dense=d, bias=bias),) for d in keys.sizes("intermediate_size", n)]
    dense = None if all(holds) else _dense(keys, family)
    if dense is None and family.d_expert != ("intermediate_size",):
        keys.used.add("intermediate_size")
    out = [(moe if has_experts else dense,) for has_experts in holds]
    return _double_wide(keys, out) if family.name == "gemma4" else out


def _dense(keys: Keys, family: Family) -> Ffn:
    bias = keys.flag("mlp_bias", default=False) if family.mlp_bias is None else family.mlp_bias
    if family.bias_key == "use_bias":
        bias = keys.flag("use_bias", default=False)
    return Ffn(gated=family.gated, d_dense=_dense_width(keys, family), bias=bias)


def _dense_width(keys: Keys, family: Family) -> int:
    if family.name == "qwen":
        # Qwen's first generation writes the width of gate and up together.
        width = keys.size("intermediate_size")
        if width % 2:
            raise keys.refuse(
                f"intermediate_size is {width}; allowed in QWenLMHeadModel: an even number, half of it used"
            )
        keys.note(f"intermediate_size is gate and up together: {width // 2} each")
        return width // 2
    if family.name == "lfm2":
        width = keys.size("block_ff_dim", "intermediate_size")
        multiple, factor = (
            keys.size("block_multiple_of", default=256),
            keys.number("block_ffn_dim_multiplier", default=1),
        )
        if keys.flag("block_auto_adjust_ff_dim", default=True):
            adjusted = int(factor * int(2 * width / 3))
            adjusted = -(-adjusted // multiple) * multiple
            keys.note(f"block_auto_adjust_ff_dim: intermediate_size {width} becomes {adjusted}")
            return adjusted
        return width
    if family.name == "granitemoehybrid":
        return keys.size("shared_intermediate_size")
    if family.name == "llama4":
        return keys.size("intermediate_size_mlp")
    if family.name == "minimax_m3":
        return keys.size("dense_intermediate_size")
    return keys.size("intermediate_size", "n_inner")


def experts(keys: Keys, family: Family, d_model: int) -> Ffn:
    """The block of a layer that routes tokens to experts."""
    n = keys.size(*_EXPERTS, most=2**16)
    top_k = _same_everywhere(keys, *_TOP_K)
    if top_k > n:
        raise keys.refuse(f"a token goes to {top_k} experts of {n}; allowed: at most all of them")
    own = family.name == "hunyuan_moe" and keys.has("moe_intermediate_size")
    d_expert = _same_everywhere(keys, *(("moe_intermediate_size",) if own else family.d_expert))
    bias = family.moe == "gpt_oss"
    shared_gate = family.shared == "gated"
    shared_bias = family.bias_key == "use_bias" and keys.flag("use_bias", default=False)
    d_shared = _SHARED[family.shared](keys, d_expert) if family.shared else 0
    d_latent = keys.size("moe_latent_size", default=0) if family.shared == "nemotron" else 0
    other = {"gemma4": d_model + n, "ernie4_5_moe": n, "afmoe": n, "laguna": n}.get(family.name, 0)
    if family.name == "lfm2_moe":
        keys.used.add("use_expert_bias")
    return Ffn(
        gated=family.gated, n_experts=n, n_active_experts=top_k, d_expert=d_expert, d_shared=d_shared,
        d_latent=d_latent, bias=shared_bias,
        shared_gate=shared_gate and d_shared > 0, router_bias=bias, expert_bias=bias,
        n_router_other=other,
    )  # fmt: skip


def _same_everywhere(keys: Keys, *names: str) -> int:
    # Some configs (Hunyuan) give a list with one entry a layer; layers that differ are not understood.
    for name in names:
        value = keys.raw.get(name)
        if isinstance(value, list):
            entries = keys.sizes(name, keys.size("num_hidden_layers", "num_layers"))
            for index, entry in enumerate(entries):
                if entry != entries[0]:
                    raise keys.refuse(
                        f"{name}[{index}] is {entry} and {name}[0] {entries[0]}; allowed: one value for all"
                    )
            return entries[0]
    return keys.size(*names)


def _shared_count(keys: Keys, d_expert: int, default: int = 0) -> int:
    for name in _N_SHARED:
        if isinstance(keys.raw.get(name), list):
            return _same_everywhere(keys, name) * d_expert
    return keys.size(*_N_SHARED, default=default, least=0, most=2**16) * d_expert


def _shared_nemotron(keys: Keys, d_expert: int) -> int:
    return keys.size("n_shared_experts", default=1, least=0) * keys.size("moe_shared_expert_intermediate_size", least=0)


def _shared_minimax_m3(keys: Keys, d_expert: int) -> int:
    n = keys.size("n_shared_experts", default=1, least=0, most=2**16)
    return n * keys.size("shared_intermediate_size", default=0, least=0)


_SHARED: dict[str, Callable[[Keys, int], int]] = {
    "count": _shared_count,
    "gated": lambda keys, d_expert: keys.size("shared_expert_intermediate_size", default=0, least=0),
    "granite": lambda keys, d_expert: keys.size("shared_intermediate_size", default=0, least=0),
    "step": lambda keys, d_expert: keys.size("share_expert_dim", "share_expert_dims"),
    "own": lambda keys, d_expert: keys.size("shared_expert_intermediate_size", default=0, least=0),
    "llama4": lambda keys, d_expert: d_expert,
    "hunyuan": lambda keys, d_expert: _shared_count(keys, keys.size("intermediate_size"), default=1),
    "gemma4": lambda keys, d_expert: keys.size("intermediate_size"),
    "nemotron": _shared_nemotron,
    "minimax_m3": _shared_minimax_m3,
}


def _first_k(keys: Keys, n: int) -> list[bool]:
    """DeepSeek's rule, and the explicit lists that newer configs carry instead."""
    first = keys.size("first_k_dense_replace", "num_dense_layers", default=None, least=0, most=n)
    freq = keys.raw.get("moe_layer_freq")
    rule = None
    if isinstance(freq, list):
        rule = [bool(flag) for flag in keys.listed("moe_layer_freq", n, allowed=(0, 1))]
    elif first is not None:
        freq = keys.size("moe_layer_freq", default=1)
        rule = [layer >= first and layer % freq == 0 for layer in range(n)]
    for name, words in (("mlp_layer_types", {"dense": False, "sparse": True}),):
        if keys.has(name):
            extra = keys.size("num_nextn_predict_layers", default=0, least=0, most=64)
            listed = [words[entry] for entry in keys.listed(name, n, allowed=words, n_extra=extra)]
            if rule is not None and first is not None and listed != rule and "first_k_dense_replace" in keys.given:
                index = next(i for i in range(n) if listed[i] != rule[i])
                raise keys.refuse(f"{name}[{index}] contradicts first_k_dense_replace = {first}; allowed: the same")
            return listed
    if keys.has("moe_layers_enum"):
        text = keys.text("moe_layers_enum")
        if not all(part.strip().isdigit() and int(part) < n for part in text.split(",")):
            raise keys.refuse(f"moe_layers_enum is {text[:40]!r}; allowed: layer numbers below {n}, with commas")
        members = {int(part) for part in text.split(",")}
        return [layer in members for layer in range(n)]
    if rule is None:
        raise keys.refuse("first_k_dense_replace is missing; allowed: a config that says which layers hold experts")
    return rule


def _step(keys: Keys, n: int) -> list[bool]:
    """Qwen's rule: every ``decoder_sparse_step``-th layer, but those in ``mlp_only_layers``."""
    step = keys.size("decoder_sparse_step", default=1)
    dense = keys.members("mlp_only_layers", n) if keys.has("mlp_only_layers") else set()
    return [(layer + 1) % step == 0 and layer not in dense for layer in range(n)]


def _llama4(keys: Keys, n: int) -> list[bool]:
    step = keys.size("interleave_moe_layer_step", default=1)
    if keys.has("moe_layers"):
        members = keys.members("moe_layers", n)
        return [layer in members for layer in range(n)]
    return [(layer + 1) % step == 0 for layer in range(n)]


def _jamba(keys: Keys, n: int) -> list[bool]:
    period = keys.size("expert_layer_period", default=2)
    offset = keys.size("expert_layer_offset", default=1, least=0, most=period - 1)
    return [layer % period == offset for layer in range(n)]


def _ernie(keys: Keys, n: int) -> list[bool]:
    start = keys.size("moe_layer_start_index", default=1, least=0)
    end = keys.size("moe_layer_end_index", default=-1, least=-1)
    every = keys.size("moe_layer_interval", default=1)
    last = n - 1 if end == -1 else end
    return [(layer + 1) % every == 0 and start <= layer <= last for layer in range(n)]


def _all(keys: Keys, n: int) -> list[bool]:
    return [True] * n


def _gemma4(keys: Keys, n: int) -> list[bool]:
    return [keys.flag("enable_moe_block", default=False)] * n


def _optional(keys: Keys, n: int) -> list[bool]:
    return [keys.size(*_EXPERTS, default=0, least=0) > 0] * n


_WHICH: dict[str, Callable[[Keys, int], list[bool]]] = {
    "all": _all, "gpt_oss": _all, "first_k": _first_k, "step": _step, "llama4": _llama4, "jamba": _jamba,
    "ernie": _ernie, "gemma4": _gemma4, "optional": _optional,
}  # fmt: skip


def _double_wide(keys: Keys, layers: list[tuple[Ffn, ...]]) -> list[tuple[Ffn, ...]]:
    # Gemma 4: layers that read an earlier layer's cache may have an FFN twice as wide.
    n_shared = keys.size("num_kv_shared_layers", default=0, least=0)
    if not keys.flag("use_double_wide_mlp", default=False) or not n_shared:
        return layers
    return layers[:-n_shared] + [(replace(ffn, d_dense=2 * ffn.d_dense),) for (ffn,) in layers[-n_shared:]]


def _longcat(keys: Keys, family: Family) -> tuple[Ffn, ...]:
    dense = Ffn(gated=True, d_dense=keys.size("ffn_hidden_size", "intermediate_size"))
    moe = Ffn(
        gated=True, n_experts=keys.size(*_EXPERTS), n_active_experts=keys.size(*_TOP_K),
        d_expert=keys.size("expert_ffn_hidden_size", "moe_intermediate_size"),
        n_idle_experts=keys.size("zero_expert_num", default=0, least=0),
    )  # fmt: skip
    return dense, dense, moe


def _deci(keys: Keys, family: Family, n: int, d_model: int) -> list[tuple[Ffn, ...]]:
    out: list[tuple[Ffn, ...]] = []
    keys.used.add("intermediate_size")
    bias = keys.flag("mlp_bias", default=False)
    for block in blocks(keys, n):
        ffn = block.sub("ffn")
        if ffn.flag("replace_with_linear", default=False) or ffn.has("sparsify"):
            raise ffn.refuse("replace_with_linear or sparsify is set; allowed: neither")
        if ffn.flag("no_op", default=False):
            out.append(())
            continue
        width = int(2 * ffn.number("ffn_mult", default=0.0) * d_model / 3)
        out.append((Ffn(gated=True, d_dense=-(-width // 256) * 256, bias=bias),))
    return out
