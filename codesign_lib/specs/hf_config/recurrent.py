"""Layers that keep a state of constant size: Mamba 1 and 2, delta nets, lightning attention, short convolutions."""

from __future__ import annotations

from codesign_lib.specs.hf_config.families import Family
from codesign_lib.specs.hf_config.fields import Recurrent
from codesign_lib.specs.hf_config.reader import Keys

_STATE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def recurrent(keys: Keys, family: Family, d_model: int) -> Recurrent:
    """The recurrent layer of this family, its sizes read and checked."""
    return _RECURRENT[family.linear](keys, d_model)


def _state_bytes(keys: Keys) -> float:
    name = keys.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype", default="float32")
    if name not in _STATE_BYTES:
        raise keys.refuse(f"mamba_ssm_cache_dtype is {name!r}; allowed: {', '.join(_STATE_BYTES)}")
    return _STATE_BYTES[name]


def _mamba2(keys: Keys, d_model: int) -> Recurrent:
    keys.used.add("mamba_proj_bias")  # Nemotron-H has it and reads use_bias
    n_heads = keys.size("mamba_num_heads", "mamba_n_heads")
    d_inner = keys.size("mamba_d_ssm", default=None)
    expand = keys.size("mamba_expand", "expand", default=2)
    if keys.raw.get("mamba_d_head") == "auto":
        keys.used.add("mamba_d_head")
        d_head = (d_inner or expand * d_model) // n_heads
    else:
        d_head = keys.size("mamba_head_dim", "mamba_d_head", default=(d_inner or expand * d_model) // n_heads)
    if d_inner is not None and d_inner != n_heads * d_head:
        raise keys.refuse(f"mamba_d_ssm is {d_inner} but mamba_n_heads × mamba_d_head is {n_heads * d_head}")
    if d_inner is None and keys.has("mamba_expand") and expand * d_model != n_heads * d_head:
        raise keys.refuse(f"mamba_expand × hidden_size is {expand * d_model} but mamba_n_heads × mamba_d_head is "
                          f"{n_heads * d_head}; allowed: the same")  # fmt: skip
    n_groups, d_state = keys.size("n_groups", "mamba_n_groups"), keys.size("ssm_state_size", "mamba_d_state")
    return Recurrent(
        kind="mamba2", n_heads=n_heads, n_key_heads=n_groups, d_key=d_state, d_value=d_head,
        n_conv=n_heads * d_head + 2 * n_groups * d_state, conv_tokens=keys.size("conv_kernel", "mamba_d_conv"),
        conv_bias=keys.flag("use_conv_bias", "mamba_conv_bias", default=True),
        proj_bias=keys.flag("use_bias", default=False)
        if keys.has("use_bias") else keys.flag("mamba_proj_bias", "projectors_bias", default=False),
        has_norm=keys.flag("mamba_rms_norm", default="mamba_d_ssm" not in keys.raw),
        state_bytes_per_element=_state_bytes(keys),
    )  # fmt: skip


def _mamba1(keys: Keys, d_model: int) -> Recurrent:
    d_inner = keys.size("mamba_expand", default=2) * d_model
    keys.used.add("mamba_dt_rank")
    rank = keys.raw.get("mamba_dt_rank", "auto")
    return Recurrent(
        kind="mamba1", n_heads=d_inner, d_key=keys.size("mamba_d_state"), d_value=1, n_conv=d_inner,
        conv_tokens=keys.size("mamba_d_conv"),
        d_rank=-(-d_model // 16) if rank == "auto" else keys.size("mamba_dt_rank"),
        conv_bias=keys.flag("mamba_conv_bias", default=True), proj_bias=keys.flag("mamba_proj_bias", default=False),
    )  # fmt: skip


def _gated_delta(keys: Keys, d_model: int) -> Recurrent:
    n_key, n_value = keys.size("linear_num_key_heads"), keys.size("linear_num_value_heads")
    if n_value % n_key:
        raise keys.refuse(f"linear_num_value_heads is {n_value} and linear_num_key_heads {n_key}; allowed: a multiple")
    d_key, d_value = keys.size("linear_key_head_dim"), keys.size("linear_value_head_dim")
    return Recurrent(
        kind="gated_delta", n_heads=n_value, n_key_heads=n_key, d_key=d_key, d_value=d_value,
        n_conv=2 * n_key * d_key + n_value * d_value, conv_tokens=keys.size("linear_conv_kernel_dim"),
        state_bytes_per_element=_state_bytes(keys),
    )  # fmt: skip


def _kimi_delta(keys: Keys, d_model: int) -> Recurrent:
    linear = keys.sub("linear_attn_config") if keys.has("linear_attn_config") else keys
    nested = linear is not keys
    n_heads = linear.size("num_heads" if nested else "linear_num_heads")
    d_head = linear.size("head_dim" if nested else "linear_head_dim")
    return Recurrent(
        kind="kimi_delta", n_heads=n_heads, n_key_heads=n_heads, d_key=d_head, d_value=d_head, d_rank=d_head,
        n_conv=3 * n_heads * d_head, conv_tokens=linear.size("short_conv_kernel_size", "linear_conv_kernel_dim"),
    )  # fmt: skip


def _full_delta(keys: Keys, d_model: int) -> Recurrent:
    # Kimi's delta rule with gates of full rank.
    n_heads = keys.size("linear_num_heads", "num_attention_heads")
    d_head = keys.size("linear_head_dim", default=None) or keys.size("head_dim")
    return Recurrent(
        kind="kimi_delta", n_heads=n_heads, n_key_heads=n_heads, d_key=d_head, d_value=d_head,
        n_conv=3 * n_heads * d_head, conv_tokens=keys.size("short_conv_kernel_size", "linear_conv_kernel_dim"),
    )  # fmt: skip


def _plain_mamba2(keys: Keys, d_model: int) -> Recurrent:
    n_heads, d_head, d_state = keys.size("num_heads"), keys.size("head_dim"), keys.size("state_size")
    expand = keys.size("expand", default=2)
    if expand * d_model != n_heads * d_head:
        raise keys.refuse(f"expand × hidden_size is {expand * d_model} but num_heads × head_dim is {n_heads * d_head}; "
                          "allowed: the same")  # fmt: skip
    n_groups = keys.size("n_groups", default=8)
    return Recurrent(
        kind="mamba2", n_heads=n_heads, n_key_heads=n_groups, d_key=d_state, d_value=d_head,
        n_conv=n_heads * d_head + 2 * n_groups * d_state, conv_tokens=keys.size("conv_kernel", default=4),
        conv_bias=keys.flag("use_conv_bias", default=True), proj_bias=keys.flag("use_bias", default=False),
    )  # fmt: skip


def _plain_mamba1(keys: Keys, d_model: int) -> Recurrent:
    d_inner = keys.size("intermediate_size", default=2 * d_model)
    rank = keys.raw.get("time_step_rank", "auto")
    keys.used.add("time_step_rank")
    return Recurrent(
        kind="mamba1", n_heads=d_inner, d_key=keys.size("state_size"), d_value=1, n_conv=d_inner,
        conv_tokens=keys.size("conv_kernel", default=4), has_norm=False,
        d_rank=-(-d_model // 16) if rank == "auto" else keys.size("time_step_rank"),
        conv_bias=keys.flag("use_conv_bias", default=True), proj_bias=keys.flag("use_bias", default=False),
    )  # fmt: skip


def _lightning(keys: Keys, d_model: int) -> Recurrent:
    n_heads = keys.size("num_attention_heads")
    d_head = keys.size("head_dim", default=d_model // n_heads)
    return Recurrent(kind="lightning", n_heads=n_heads, n_key_heads=n_heads, d_key=d_head, d_value=d_head)


def _short_conv(keys: Keys, d_model: int) -> Recurrent:
    bias = keys.flag("conv_bias", default=False)
    return Recurrent(
        kind="short_conv", n_conv=d_model, conv_tokens=keys.size("conv_L_cache"), conv_bias=bias, proj_bias=bias
    )


_RECURRENT = {
    "mamba2": _mamba2, "mamba1": _mamba1, "gated_delta": _gated_delta, "kimi_delta": _kimi_delta,
    "full_delta": _full_delta,
    "plain_mamba2": _plain_mamba2, "plain_mamba1": _plain_mamba1,
    "lightning": _lightning, "short_conv": _short_conv,
}  # fmt: skip
