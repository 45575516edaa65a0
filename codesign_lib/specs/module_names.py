"""What a checkpoint's modules are called: every linear layer of a model under the name that transformers gives it.

Engines fuse projections that read the same input, and so does :py:mod:`codesign_lib.specs.weights`; tools that quantise
a model meet them one by one, under names that differ from family to family. Names are relative to their layer, with
``*`` for the number of an expert. Those of a family that nobody held against a real model are refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from codesign_lib.specs.hf_config.fields import (
    Attention,
    CompressedAttention,
    Config,
    Ffn,
    Indexer,
    LatentAttention,
    Layer,
    Recurrent,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Module:
    """``count`` equal linear layers of one layer of the network, each k×n: ``name``, relative to the layer.

    ``weight`` is the fused weight it is part of, whose parts share one input and one global scale (the gate of
    attention's output stands alone); ``kind`` is that weight's kind. ``split``: which size tensor parallelism divides,
    ``n``, ``k``, or "" where every rank holds it all.
    """

    name: str
    weight: str
    kind: str
    k: int
    n: int
    split: str
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Style:
    """Where a family keeps its parts. ``gate`` is the projection of attention's output gate, "" where it is part of
    the queries'; ``fused``: gate and up are one matrix already.
    """

    attention: str = "self_attn"
    recurrent: str = "linear_attn"
    ffn: str = "mlp"
    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    shared: str = "mlp.shared_experts"
    gate: str = ""
    fused: bool = False


_LLAMA4 = dict(ffn="feed_forward", router="feed_forward.router", experts="feed_forward.experts")
STYLES = {
    "gemma4": Style(router="router.proj", experts="experts", shared="mlp"),
    "gpt_oss": Style(router="mlp.router"),
    "jamba": Style(recurrent="mamba", **_LLAMA4),
    "llama4": Style(shared="feed_forward.shared_expert", **_LLAMA4),
    "minimax_m3": Style(fused=True),
    "nemotron_h": Style(attention="mixer", recurrent="mixer", ffn="mixer", router="mixer.gate", experts="mixer.experts",
                        shared="mixer.shared_experts"),
    "qwen3_5_moe": Style(shared="mlp.shared_expert"),
    "step3p7": Style(gate="g_proj"),
}  # fmt: skip
# Held against transformers 5.24.0 module for module by tools/packages_handover.py, or, where it has no class, said to
# be named as Llama's are.
_LIKE_LLAMA = (
    "deepseek_v3", "deepseek_v32", "deepseek_v4", "gemma3", "glm4_moe", "llama", "mimo_v2", "minimax_m2", "mixtral",
    "qwen2", "qwen3", "qwen3_5", "qwen3_moe",
)  # fmt: skip
NO_CLASS = ("deci", "mimo")
STYLES |= {family: Style() for family in (*_LIKE_LLAMA, *NO_CLASS)}


def style(config: Config) -> Style:
    """The names of a config's family. Raises ValueError where nobody has checked them.

    >>> from codesign_lib.specs.models import model
    >>> style(model("llama_4_maverick").config).router
    'feed_forward.router'
    """
    if config.family not in STYLES:
        raise ValueError(
            f"{config.source}: the names of modules of the family {config.family!r} have not been checked; "
            f"known: {', '.join(sorted(STYLES))}"
        )
    return STYLES[config.family]


def layer_modules(layer: Layer, config: Config) -> tuple[Module, ...]:
    """The linear layers of one layer, in the order of its weights.

    >>> from codesign_lib.specs.models import model
    >>> config = model("deepseek_r1").config
    >>> [m.name for m in layer_modules(config.layers[0], config)][:3]
    ['self_attn.q_a_proj', 'self_attn.kv_a_proj_with_mqa', 'self_attn.q_b_proj']
    """
    names, d, out = style(config), config.d_model, []
    for mixer in layer.mixers:
        out += _MIXERS[type(mixer)](mixer, d, names)
    for ffn in layer.ffns:
        out += _ffn(ffn, d, names)
    if layer.n_hyper:
        n_out = (2 + layer.n_hyper) * layer.n_hyper
        for name in ("attn_hc.fn", "ffn_hc.fn"):
            out.append(_module(name, "hyper-connection", "residual", layer.n_hyper * d, n_out, ""))
    if layer.n_altup or layer.d_laurel or layer.d_per_layer_input:
        raise ValueError(f"{config.source}: the names of per-layer embeddings' modules have not been checked")
    return tuple(out)


def _module(name: str, weight: str, kind: str, k: int, n: int, split: str, count: int = 1) -> Module:
    return Module(name=name, weight=weight, kind=kind, k=k, n=n, split=split, count=count)


def _attention(a: Attention, d: int, names: Style) -> Iterator[Module]:
    n_kv, n_gate = 0 if a.kv_source_layer is not None else a.n_kv_heads, a.n_gate
    n_q, n_v = a.n_heads * a.d_head, 0 if a.values_are_keys else n_kv * a.d_value
    widths = dict(q_proj=n_q if names.gate else n_q + n_gate, k_proj=n_kv * a.d_head, v_proj=n_v)
    for name, n in widths.items():
        if n:
            yield _module(f"{names.attention}.{name}", "qkv" if n_kv else "q", "attention", d, n, "n")
    if names.gate and n_gate:
        yield _module(f"{names.attention}.{names.gate}", "output gate", "attention", d, n_gate, "n")
    yield _module(f"{names.attention}.o_proj", "out", "attention", a.n_heads * a.d_value, d, "k")
    if a.indexer:
        yield from _indexer(a.indexer, d, d, f"{names.attention}.indexer")


def _latent(a: LatentAttention, d: int, names: Style) -> Iterator[Module]:
    at, n_q = names.attention, a.n_heads * (a.d_nope + a.d_rope)
    if a.q_rank is None:
        yield _module(f"{at}.q_proj", "q and kv_a", "attention", d, n_q + a.n_gate, "n")
        yield _module(f"{at}.kv_a_proj_with_mqa", "q and kv_a", "attention", d, a.kv_rank + a.d_rope, "")
    else:
        yield _module(f"{at}.q_a_proj", "q_a and kv_a", "attention", d, a.q_rank + a.n_gate, "")
        yield _module(f"{at}.kv_a_proj_with_mqa", "q_a and kv_a", "attention", d, a.kv_rank + a.d_rope, "")
        yield _module(f"{at}.q_b_proj", "q_b", "attention", a.q_rank, n_q, "n")
    yield _module(f"{at}.kv_b_proj", "kv_b", "attention", a.kv_rank, a.n_heads * (a.d_nope + a.d_value), "n")
    yield _module(f"{at}.o_proj", "out", "attention", a.n_heads * a.d_value, d, "k")
    if a.indexer:
        yield from _indexer(a.indexer, d, a.q_rank or d, f"{at}.indexer")


def _compressed(a: CompressedAttention, d: int, names: Style) -> Iterator[Module]:
    at, n_q = names.attention, a.n_heads * a.d_head
    yield _module(f"{at}.q_a_proj", "q_a and kv", "attention", d, a.q_rank, "")
    yield _module(f"{at}.kv_proj", "q_a and kv", "attention", d, a.d_head, "")
    yield _module(f"{at}.q_b_proj", "q_b", "attention", a.q_rank, n_q, "n")
    # one module holds the matrices of all groups
    yield _module(f"{at}.o_a_proj", "out_a", "attention", n_q // a.n_out_groups, a.n_out_groups * a.out_rank, "n")
    yield _module(f"{at}.o_b_proj", "out", "attention", a.n_out_groups * a.out_rank, d, "k")
    if a.tokens_per_entry > 1:
        width = a.d_head * (2 if a.indexer else 1)
        for name in ("kv_proj", "gate_proj"):
            yield _module(f"{at}.compressor.{name}", "compressor", "attention", d, width, "")
    if a.indexer:
        inner = f"{at}.compressor.indexer"
        for name in ("kv_proj", "gate_proj"):
            yield _module(f"{inner}.{name}", "indexer compressor", "indexer", d, 2 * a.indexer.d_head, "")
        yield from _indexer(a.indexer, d, a.q_rank, inner)


def _indexer(x: Indexer, d: int, d_query: int, at: str) -> Iterator[Module]:
    q, n_q = {"block": "q_proj", "dsa": "wq_b", "compressed": "q_b_proj"}[x.style], x.n_heads * x.d_head
    yield _module(f"{at}.{q}", "indexer q", "indexer", d_query, n_q, "")
    if x.style == "block":
        yield _module(f"{at}.k_proj", "indexer k", "indexer", d, x.d_head, "")
    elif x.style == "dsa":
        yield _module(f"{at}.wk", "indexer k and weights", "indexer", d, x.d_head, "")
        yield _module(f"{at}.weights_proj", "indexer k and weights", "indexer", d, x.n_heads, "")
    else:
        yield _module(f"{at}.scorer.weights_proj", "indexer weights", "indexer", d, x.n_heads, "")


def _recurrent(r: Recurrent, d: int, names: Style) -> Iterator[Module]:
    at, n_value, weight = names.recurrent, r.n_heads * r.d_value, f"{r.kind} in"
    if r.kind == "gated_delta":
        widths = dict(in_proj_qkv=r.n_conv, in_proj_z=n_value, in_proj_b=r.n_heads, in_proj_a=r.n_heads)
    elif r.kind == "mamba2":
        widths = dict(in_proj=2 * n_value + 2 * r.n_key_heads * r.d_key + r.n_heads)
    elif r.kind == "mamba1":
        widths = dict(in_proj=2 * n_value)
        yield _module(f"{at}.x_proj", "x", "recurrent", n_value, r.d_rank + 2 * r.d_key, "")
        yield _module(f"{at}.dt_proj", "dt", "recurrent", r.d_rank, n_value, "n")
    else:
        raise ValueError(f"the names of the modules of {r.kind} layers have not been checked")
    for name, n in widths.items():
        yield _module(f"{at}.{name}", weight, "recurrent", d, n, "n")
    yield _module(f"{at}.out_proj", f"{r.kind} out", "recurrent", n_value, d, "k")


def _ffn(f: Ffn, d: int, names: Style) -> Iterator[Module]:
    inner = f.d_latent or d
    if f.d_dense:
        yield from _gated(f, names, names.ffn, "", "ffn", d, f.d_dense)
    if f.n_experts:
        yield _module(names.router, "router", "router", d, f.n_experts + f.n_idle_experts, "")
        if f.d_latent:
            yield _module(f"{names.ffn}.fc1_latent_proj", "latent in", "latent", d, f.d_latent, "")
            yield _module(f"{names.ffn}.fc2_latent_proj", "latent out", "latent", f.d_latent, d, "")
        single = Style(fused=False)  # experts come one by one, gate and up apart
        yield from _gated(f, single, f"{names.experts}.*", "expert ", "expert", inner, f.d_expert, f.n_experts)
        if f.d_shared:
            yield from _gated(f, names, names.shared, "shared ", "shared_expert", d, f.d_shared)
        if f.shared_gate:
            yield _module(f"{names.shared}_gate", "shared gate", "router", d, 1, "")


def _gated(f: Ffn, names: Style, at: str, of: str, kind: str, d: int, width: int, count: int = 1) -> Iterator[Module]:
    first = f"{of}gate_up" if f.gated else f"{of}up"
    parts = ("gate_up_proj",) if f.gated and names.fused else ("gate_proj", "up_proj") if f.gated else ("up_proj",)
    for name in parts:
        yield _module(f"{at}.{name}", first, kind, d, (2 if f.gated else 1) * width // len(parts), "n", count)
    yield _module(f"{at}.down_proj", f"{of}down", kind, width, d, "k", count)


_MIXERS = {
    Attention: _attention,
    LatentAttention: _latent,
    CompressedAttention: _compressed,
    Recurrent: _recurrent,
}
