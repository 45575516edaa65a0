"""How a layer mixes tokens: attention, latent attention or a recurrence, built from a config by its family's rules."""

from __future__ import annotations

from codesign_lib.specs.hf_config.families import Family
from codesign_lib.specs.hf_config.fields import Attention, Indexer, Mixer
from codesign_lib.specs.hf_config.kinds import blocks
from codesign_lib.specs.hf_config.latent import HEADS, compressed, indexed, latent, longcat
from codesign_lib.specs.hf_config.reader import Keys
from codesign_lib.specs.hf_config.recurrent import recurrent

_KV_HEADS = ("num_key_value_heads", "num_attention_groups")
_HEAD_SIZE = ("head_dim", "attention_head_dim", "kv_channels")


def mixers(keys: Keys, family: Family, kinds: list[str], d_model: int) -> list[tuple[Mixer, ...]]:
    """What mixes tokens in each layer: mostly one mixer, none in a layer that is only an FFN, two side by side."""
    build = _LISTS.get(family.mixer)
    if build is not None:
        return build(keys, family, kinds, d_model)
    made = {kind: _of_kind(keys, family, kind, d_model) for kind in dict.fromkeys(kinds)}
    if family.linear == "short_conv":
        keys.used.update(("conv_bias", "conv_L_cache"))
    if not set(kinds) - {"linear", "moe", "mlp"}:
        keys.used.update((*HEADS, *_KV_HEADS, *_HEAD_SIZE))
    return [made[kind] for kind in kinds]


def _of_kind(keys: Keys, family: Family, kind: str, d_model: int) -> tuple[Mixer, ...]:
    if kind in ("moe", "mlp"):
        return ()
    if kind == "linear":
        return (recurrent(keys, family, d_model),)
    if kind == "parallel":
        return (heads(keys, family, "full", d_model), recurrent(keys, family, d_model))
    if family.mixer == "latent":
        return (latent(keys, n_gate=keys.size(*HEADS) if family.gate == "head" else 0),)
    return (heads(keys, family, kind, d_model),)


def heads(keys: Keys, family: Family, kind: str, d_model: int, **changed: object) -> Attention:
    """Attention with keys and values a head. The head size is ``head_dim``; where it is absent, d_model / heads."""
    n_heads = keys.size(*HEADS)
    n_kv_heads = keys.size(*_KV_HEADS, default=None)
    if n_kv_heads is None:
        n_kv_heads = n_heads
        keys.note(f"num_key_value_heads is absent: as many as attention heads ({n_heads})")
    d_head = changed.pop("d_head", None) or head_size(keys, d_model, n_heads)
    n_kv_heads = changed.pop("n_kv_heads", None) or n_kv_heads
    if n_heads % n_kv_heads:
        raise keys.refuse(f"num_attention_heads is {n_heads} and num_key_value_heads {n_kv_heads}; "
                          "allowed: heads that the key-value heads divide")  # fmt: skip
    gated = family.gate == "all" or (family.gate == "flag" and keys.flag("attn_output_gate", default=True))
    qkv_bias = keys.flag(family.bias_key, default=False) if family.qkv_bias is None else family.qkv_bias
    out_bias = keys.flag("attention_out_bias", default=qkv_bias) if family.out_bias is None else family.out_bias
    fields = dict(
        kind="full" if kind == "sparse" else kind,
        n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=d_head, d_value=d_head, window_tokens=window(keys, kind),
        qk_norm=_qk_norm(keys, family), n_gate=n_heads if family.gate == "head" else n_heads * d_head * gated,
        qkv_bias=qkv_bias, out_bias=out_bias, has_sinks=family.sinks == "all",
    )  # fmt: skip
    if kind == "sparse":
        sparse = keys.sub("sparse_attention_config") if keys.has("sparse_attention_config") else keys
        n_index, d_index = sparse.size("sparse_num_index_heads", "index_n_heads"), sparse.size(
            "sparse_index_dim", "index_head_dim")  # fmt: skip
        n_blocks = sparse.size("sparse_topk_blocks", "index_topk_blocks")
        fields["indexer"] = Indexer(style="block", n_heads=n_index, d_head=d_index)
        fields["n_selected_tokens"] = n_blocks * sparse.size("sparse_block_size", "index_block_size")
    return Attention(**fields | changed)


def unwindowed(layers: list[tuple[Mixer, ...]]) -> list[tuple[Mixer, ...]]:
    """The same layers where the window is off: what it kept apart stays (heads, sizes, sinks), only it is gone."""
    return [
        tuple(_with(x, kind="full", window_tokens=None) if x.kind == "sliding" else x for x in layer)
        for layer in layers
    ]


def head_size(keys: Keys, d_model: int, n_heads: int) -> int:
    """``head_dim`` or, where it is absent, hidden size / heads, which must then divide."""
    d_head = keys.size(*_HEAD_SIZE, default=None, most=2**16)
    if d_head is None:
        if d_model % n_heads:
            raise keys.refuse(f"hidden_size is {d_model} and num_attention_heads {n_heads}, and there is no head_dim; "
                              "allowed: a head_dim, or heads that divide the hidden size")  # fmt: skip
        d_head = d_model // n_heads
        keys.note(f"head_dim is absent: hidden_size / num_attention_heads = {d_head}")
    return d_head


def window(keys: Keys, kind: str) -> int | None:
    """Tokens a sliding or chunked layer keeps, ``None`` for a layer that keeps all."""
    if kind == "sliding":
        return keys.size("sliding_window", "sliding_window_size", default=None)
    return keys.size("attention_chunk_size", default=None) if kind == "chunked" else None


def _qk_norm(keys: Keys, family: Family) -> str:
    if not family.qk_norm.startswith("?"):
        return family.qk_norm
    default = family.name == "minimax_m2"
    return family.qk_norm[1:] if keys.flag("use_qk_norm", default=default) else ""


def _gemma4(keys: Keys, family: Family, kinds: list[str], d_model: int) -> list[tuple[Mixer, ...]]:
    # Global layers have their own head size (and, where keys serve as values, their own number of key-value heads);
    # the last layers may read the cache of the last layer of their kind that has one.
    same = keys.flag("attention_k_eq_v", default=False)
    d_global = keys.size("global_head_dim", default=512)
    n_global = keys.size("num_global_key_value_heads", default=None) if same else None
    keys.used.add("num_global_key_value_heads")
    if keys.has("per_layer_config"):
        # Files written by transformers say it layer by layer.
        changed = list(keys.sub("per_layer_config").raw.values())
        if not changed or any(entry != changed[0] for entry in changed) or not isinstance(changed[0], dict):
            raise keys.refuse("per_layer_config changes layers in different ways; allowed: global layers, all alike")
        one = Keys(changed[0], f"{keys.where}: per_layer_config")
        d_global, n_global = one.size("head_dim", default=d_global), one.size("num_key_value_heads", default=n_global)
    wide = dict(d_head=d_global, values_are_keys=same, n_kv_heads=n_global)
    made = {kind: heads(keys, family, kind, d_model, **({} if kind == "sliding" else wide)) for kind in set(kinds)}
    return _sharing(keys, [made[kind] for kind in kinds], keys.size("num_kv_shared_layers", default=0, least=0))


def _gemma3n(keys: Keys, family: Family, kinds: list[str], d_model: int) -> list[tuple[Mixer, ...]]:
    made = {kind: heads(keys, family, kind, d_model) for kind in set(kinds)}
    return _sharing(keys, [made[kind] for kind in kinds], keys.size("num_kv_shared_layers", default=15, least=0))


def _sharing(keys: Keys, layers: list[Attention], n_shared: int) -> list[tuple[Mixer, ...]]:
    first = len(layers) - n_shared
    if first < 1 and n_shared:
        raise keys.refuse(f"num_kv_shared_layers is {n_shared} of {len(layers)} layers; allowed: fewer than all")
    out: list[tuple[Mixer, ...]] = []
    for index, layer in enumerate(layers):
        if index < first:
            out.append((layer,))
            continue
        sources = [source for source in range(first) if layers[source].kind == layer.kind]
        if not sources:
            raise keys.refuse(f"layer {index} shares the cache of a {layer.kind} layer, but none before has one")
        out.append((_with(layer, kv_source_layer=sources[-1]),))
    return out


def _with(layer: Attention, **changed: object) -> Attention:
    return Attention(**{name: getattr(layer, name) for name in layer.__dataclass_fields__} | changed)


def _hunyuan(keys: Keys, family: Family, kinds: list[str], d_model: int) -> list[tuple[Mixer, ...]]:
    # Cross-layer attention: of every cla_share_factor layers the first has keys and values.
    layer = heads(keys, family, "full", d_model)
    factor = keys.size("cla_share_factor", default=1)
    if not keys.flag("use_cla", default=False):
        factor = 1
    return [
        (layer if index % factor == 0 else _with(layer, kv_source_layer=index - index % factor),)
        for index in range(len(kinds))
    ]


def _two_heads(keys: Keys, family: Family, kinds: list[str], d_model: int) -> list[tuple[Mixer, ...]]:
    # MiMo-V2: sliding layers have head counts and sizes of their own (twice the key-value heads where none are given);
    # values are narrower than keys.
    made = {}
    for kind in set(kinds):
        at = "swa_" if kind == "sliding" else ""
        base = heads(keys, family, kind, d_model)
        n_heads = keys.size(f"{at}num_attention_heads", default=base.n_heads)
        d_head = keys.size(f"{at}head_dim", default=base.d_head)
        flag = "add_swa_attention_sink_bias" if at else "add_full_attention_sink_bias"
        made[kind] = _with(
            base, n_heads=n_heads, d_head=d_head,
            n_kv_heads=keys.size(f"{at}num_key_value_heads", default=base.n_kv_heads * (2 if at else 1)),
            d_value=keys.size(f"{at}v_head_dim", "v_head_dim", default=d_head),
            has_sinks=keys.flag(flag, default=bool(at)),
        )  # fmt: skip
    keys.used.add("attention_chunk_size")  # the same number as the window, read by no public implementation
    return [(made[kind],) for kind in kinds]


def _step(keys: Keys, family: Family, kinds: list[str], d_model: int) -> list[tuple[Mixer, ...]]:
    # Step 3.5 and 3.7: sliding layers may have their own number of query heads (and as many gates).
    made = {kind: heads(keys, family, kind, d_model) for kind in set(kinds)}
    n_sliding = keys.size("num_sliding_attention_heads", default=None)
    if keys.has("attention_other_setting"):
        n_sliding = keys.sub("attention_other_setting").size("num_attention_heads", default=n_sliding)
    if n_sliding is not None and "sliding" in made:
        made["sliding"] = _with(made["sliding"], n_heads=n_sliding, n_gate=n_sliding)
    return [(made[kind],) for kind in kinds]


def _laguna(keys: Keys, family: Family, kinds: list[str], d_model: int) -> list[tuple[Mixer, ...]]:
    # Every layer has its own number of query heads, and a gate for each head or each of its elements.
    gating = keys.raw.get("gating", True)
    if gating not in (True, "per-head", "per-element", "elementwise"):
        raise keys.refuse(f"gating is {gating!r:.40}; allowed: true, per-head, per-element")
    keys.used.add("gating")
    base = {kind: heads(keys, family, kind, d_model) for kind in set(kinds)}
    if keys.has("num_attention_heads_per_layer"):
        counts = keys.sizes("num_attention_heads_per_layer", len(kinds))
    else:
        counts = [base[kind].n_heads for kind in kinds]
    out: list[tuple[Mixer, ...]] = []
    for index, (kind, n) in enumerate(zip(kinds, counts, strict=True)):
        if n % base[kind].n_kv_heads:
            raise keys.refuse(f"num_attention_heads_per_layer[{index}] is {n} and num_key_value_heads "
                              f"{base[kind].n_kv_heads}; allowed: heads that the key-value heads divide")  # fmt: skip
        n_gate = n if gating in (True, "per-head") else n * base[kind].d_head
        out.append((_with(base[kind], n_heads=n, n_gate=n_gate),))
    return out


def _deci(keys: Keys, family: Family, kinds: list[str], d_model: int) -> list[tuple[Mixer, ...]]:
    out: list[tuple[Mixer, ...]] = []
    n_heads, bias = keys.size(*HEADS), keys.flag("attention_bias", default=False)
    for index, block in enumerate(blocks(keys, len(kinds))):
        attention = block.sub("attention")
        no_op, linear = (attention.flag(name, default=False) for name in ("no_op", "replace_with_linear"))
        if linear or attention.has("sparsify") or attention.has("num_sink_tokens"):
            raise attention.refuse(f"block {index} uses replace_with_linear, sparsify or sinks; allowed: none of them")
        if no_op:
            out.append(())
            continue
        group = attention.size("n_heads_in_group", most=n_heads)
        if n_heads % group:
            raise attention.refuse(f"n_heads_in_group is {group}; allowed: a divisor of {n_heads} heads")
        width = attention.size("window_length", default=None)
        out.append((_with(
            Attention(kind="full", n_heads=n_heads, n_kv_heads=n_heads // group, d_value=d_model // n_heads,
                      d_head=head_size(keys, d_model, n_heads), qkv_bias=bias, out_bias=bias),
            kind="sliding" if width else "full", window_tokens=width),))  # fmt: skip
    return out


_LISTS = {
    "indexed": indexed, "compressed": compressed, "gemma4": _gemma4, "gemma3n": _gemma3n,
    "hunyuan": _hunyuan, "two_heads": _two_heads,
    "longcat": longcat, "step": _step, "laguna": _laguna, "deci": _deci,
}  # fmt: skip
