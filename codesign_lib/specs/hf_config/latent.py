"""Attention over latents: DeepSeek's multi-head latent attention, with an indexer, and its compressed successor."""

from __future__ import annotations

from codesign_lib.specs.hf_config.families import Family
from codesign_lib.specs.hf_config.fields import CompressedAttention, Indexer, LatentAttention, Mixer
from codesign_lib.specs.hf_config.reader import Keys

HEADS = ("num_attention_heads", "n_head")


def latent(keys: Keys, **changed: object) -> LatentAttention:
    """Multi-head latent attention. ``qk_head_dim``, where given, must be the sum of its two parts."""
    n_heads = keys.size(*HEADS)
    d_nope, d_rope = keys.size("qk_nope_head_dim", most=2**16), keys.size("qk_rope_head_dim", most=2**16)
    total = keys.size("qk_head_dim", default=d_nope + d_rope)
    if total != d_nope + d_rope:
        raise keys.refuse(f"qk_head_dim is {total} but qk_nope_head_dim + qk_rope_head_dim is {d_nope + d_rope}; "
                          "allowed: the same")  # fmt: skip
    fields = dict(
        n_heads=n_heads, d_nope=d_nope, d_rope=d_rope, d_value=keys.size("v_head_dim", most=2**16),
        q_rank=keys.size("q_lora_rank", default=None), kv_rank=keys.size("kv_lora_rank"),
        bias=keys.flag("attention_bias", default=False),
    )  # fmt: skip
    return LatentAttention(**fields | changed)


def indexed(keys: Keys, family: Family, kinds: list[str], d_model: int) -> list[tuple[Mixer, ...]]:
    """DeepSeek-V3.2 scores tokens in every layer; GLM-5.2 reuses what an earlier layer selected ("shared")."""
    n = len(kinds)
    indexer = Indexer(style="dsa", n_heads=keys.size("index_n_heads"), d_head=keys.size("index_head_dim"))
    scoring = latent(keys, indexer=indexer, n_selected_tokens=keys.size("index_topk"))
    sharing = latent(keys, n_selected_tokens=keys.size("index_topk"))
    every, offset = keys.size("index_topk_freq", default=1), keys.size("index_skip_topk_offset", default=2, least=0)
    if keys.has("indexer_types"):
        full = [entry == "full" for entry in keys.listed("indexer_types", n, allowed=("full", "shared"))]
    elif keys.has("index_topk_pattern"):
        pattern = keys.raw["index_topk_pattern"]
        listed = Keys({"index_topk_pattern": list(pattern) if isinstance(pattern, str) else pattern}, keys.where)
        full = [entry in "Ff" for entry in listed.listed("index_topk_pattern", n, allowed=("F", "S", "full", "shared"))]
    else:
        full = [max(layer - offset + 1, 0) % every == 0 for layer in range(n)]
    return [(scoring if scores else sharing,) for scores in full]


def compressed(keys: Keys, family: Family, kinds: list[str], d_model: int) -> list[tuple[Mixer, ...]]:
    """DeepSeek-V4: by ``compress_ratios`` a window alone (0), or with an entry for every 4 or 128 tokens beside it."""
    n = len(kinds)
    n_mtp = keys.size("num_nextn_predict_layers", default=0, least=0, most=64)
    if keys.has("compress_ratios"):
        ratios = keys.listed("compress_ratios", n, allowed=(0, 4, 128), n_extra=n_mtp)
    else:
        # Files written by transformers name the kinds instead.
        names = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
        ratios = [names[entry] for entry in keys.listed("layer_types", n, allowed=names)]
        keys.used.add("compress_rates")
    n_heads, d_head = keys.size(*HEADS), keys.size("head_dim")
    groups = keys.size("o_groups")
    if n_heads * d_head % groups:
        raise keys.refuse(f"o_groups is {groups} and num_attention_heads × head_dim {n_heads * d_head}; "
                          "allowed: groups that divide it")  # fmt: skip
    if keys.size("qk_rope_head_dim", most=2**16) > d_head:
        raise keys.refuse(f"qk_rope_head_dim is above head_dim ({d_head}); allowed: at most that")
    indexer = Indexer(
        style="compressed", n_heads=keys.size("index_n_heads"), d_head=keys.size("index_head_dim"), tokens_per_entry=4
    )
    top_k = keys.size("index_topk")
    fields = dict(
        n_heads=n_heads, d_head=d_head, q_rank=keys.size("q_lora_rank"), n_out_groups=groups,
        out_rank=keys.size("o_lora_rank"), window_tokens=keys.size("sliding_window"),
    )  # fmt: skip
    made = {
        ratio: CompressedAttention(
            **fields,
            tokens_per_entry=max(ratio, 1),
            indexer=indexer if ratio == 4 else None,
            n_selected_tokens=top_k if ratio == 4 else None,
        )
        for ratio in (0, 4, 128)
    }
    return [(made[ratio],) for ratio in ratios]


def longcat(keys: Keys, family: Family, kinds: list[str], d_model: int) -> list[tuple[Mixer, ...]]:
    """Longcat-Flash: two attentions a layer."""
    return [(latent(keys), latent(keys)) for _ in kinds]
