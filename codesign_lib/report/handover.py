"""Decisions handed to the tools that carry them out: what to quantise, and how to divide a model over GPUs.

A plan of :py:mod:`codesign_lib.report.nvfp4_plan` becomes a recipe of LLM Compressor or a config of ModelOpt, a layout
the parallel flags of TensorRT-LLM, SGLang or vLLM. All are plain data that the tools take as they are. Layers that run
as one share a global scale, which both quantisation tools see to themselves.

Sources: LLM Compressor 0.14, ``QuantizationModifier`` (targets, ignore, scheme); ModelOpt 0.47, guide "Quantization
Configuration (quant_cfg)" and preset ``configs/ptq/presets/model/nvfp4.yaml``; TensorRT-LLM, docs/source/features
(parallel-strategy.md, helix.md); SGLang, server arguments, "DP, DPA and SGLang DP Router", "Expert Parallelism" and
"Decode Context Parallelism"; vLLM, "Data Parallel", "Expert Parallel" and "Context Parallel Deployment".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from codesign_lib.report.nvfp4_plan import Plan
from codesign_lib.serving.layout import Layout, check_division
from codesign_lib.serving.rules import dcp_allowed
from codesign_lib.specs.hf_config.fields import Attention, Recurrent
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as named

_NVFP4 = dict(num_bits=(2, 1), block_sizes={-1: 16, "type": "dynamic", "scale_bits": (4, 3)})
_FP8 = dict(num_bits=(4, 3))
# Beside the language model's layers; what a config does not show, or not as linear layers.
_OUTSIDE = {
    "mtp": "it predicts further tokens: small, and what it gets wrong costs speed",
    "beside": "vision or sound: not part of the language model, and its sizes need not be multiples of 16",
}
_BESIDE = (
    "visual", "vision_tower", "vision_model", "embed_vision", "multi_modal_projector", "mm_projector",
    "patch_merge_mlp", "vit_large_projector", "audio_tower", "embed_audio",
)  # fmt: skip
# Families whose checkpoints have such parts though a config may hold the text part only, as Llama 4's, MiniMax-M3's and
# Step-3.7's here. Transformers 5.24.0, models/*/modeling_*.py; names of MiniMax-M3: NVIDIA's hf_quant_config.json.
_MULTIMODAL = ("gemma3", "gemma4", "llama4", "minimax_m3", "qwen3_5", "qwen3_5_moe", "step3p7")


def llm_compressor(plan: Plan) -> dict[str, Any]:
    """The plan as a recipe of LLM Compressor: ``oneshot(model=…, recipe=to_json(…))``.

    All ``Linear`` modules are targets, ``ignore`` lists those that stay as regular expressions over their names.

    >>> from codesign_lib.report.nvfp4_plan import plan
    >>> llm_compressor(plan("llama_3_1_8b"))["quant_stage"]["quant_modifiers"]["QuantizationModifier"]
    {'targets': ['Linear'], 'scheme': 'NVFP4', 'ignore': ['re:.*lm_head$']}
    """
    _check_plan("llm_compressor", plan)
    scheme = "NVFP4" if plan.precision.activations.name == "nvfp4" else "NVFP4A16"
    modifier: dict[str, Any] = dict(targets=["Linear"], scheme=scheme, ignore=list(ignored(plan)))
    if plan.precision.kv.name == "fp8":
        modifier["kv_cache_scheme"] = dict(num_bits=8, type="float", strategy="tensor", dynamic=False, symmetric=True)
    elif plan.precision.kv.name != "bf16":
        raise ValueError(f"llm_compressor: kv is {plan.precision.kv.name}; allowed: bf16, fp8")
    return dict(quant_stage=dict(quant_modifiers=dict(QuantizationModifier=modifier)))


def ignored(plan: Plan) -> dict[str, str]:
    """What stays high, as LLM Compressor's regular expressions, each with its reason.

    >>> from codesign_lib.report.nvfp4_plan import plan
    >>> ignored(plan("mixtral_8x7b"))
    {'re:.*layers...mlp...gate$': 'a router picks experts: ...', 're:.*lm_head$': 'the output head: ...'}
    """
    _check_plan("ignored", plan)
    return {f"re:{pattern}": why for pattern, why in _patterns(plan, _regex)}


def modelopt(plan: Plan) -> dict[str, Any]:
    """The plan as a quantisation config of ModelOpt: ``mtq.quantize(model, modelopt(plan), forward_loop)``.

    Rules apply in order: nothing, then all weights and inputs in NVFP4, then off again what stays.

    >>> from codesign_lib.report.nvfp4_plan import plan
    >>> config = modelopt(plan("llama_3_1_8b"))
    >>> [rule["quantizer_name"] for rule in config["quant_cfg"]]
    ['*', '*weight_quantizer', '*input_quantizer', '*', '*conv1d.*', '*lm_head.*']
    """
    _check_plan("modelopt", plan)
    rules: list[dict[str, Any]] = [dict(quantizer_name="*", enable=False)]
    rules.append(dict(quantizer_name="*weight_quantizer", cfg=_NVFP4))
    if plan.precision.activations.name == "nvfp4":
        rules.append(dict(quantizer_name="*input_quantizer", cfg=_NVFP4))
    rules.append(dict(quantizer_name="*", parent_class="nn.Embedding", enable=False))
    rules.append(dict(quantizer_name="*conv1d.*", enable=False))  # not linear, but it has quantizers there
    rules += [dict(quantizer_name=pattern, enable=False) for pattern in dict(_patterns(plan, _wildcard))]
    kv = {"bf16": None, "fp8": _FP8, "nvfp4": _NVFP4}
    if plan.precision.kv.name not in kv:
        raise ValueError(f"modelopt: kv is {plan.precision.kv.name}; allowed: {', '.join(kv)}")
    if kv[plan.precision.kv.name]:
        rules.append(dict(quantizer_name="*[kv]_bmm_quantizer", cfg=kv[plan.precision.kv.name]))
    return dict(quant_cfg=rules, algorithm="max")


def _check_plan(subject: str, plan: Plan) -> None:
    if not isinstance(plan, Plan):
        raise ValueError(f"{subject}: plan is {plan!r:.40}; allowed: a Plan, as nvfp4_plan.plan(model) makes it")


def to_json(recipe: Mapping[str, Any]) -> str:
    """A recipe as JSON text, which is YAML too.

    >>> from codesign_lib.report.nvfp4_plan import plan
    >>> to_json(llm_compressor(plan("llama_3_1_8b"))).splitlines()[4]
    '        "targets": ['
    """
    return json.dumps(recipe, indent=2) + "\n"


def launch(layout: Layout, engine: str, *, model: Model | str) -> dict[str, Any]:
    """The parallel flags with which an engine divides a model as one layout does; the rest of a launch is the user's.

    ``trtllm``: the keys of the file that ``trtllm-serve --config`` reads (:py:func:`to_json`). ``sglang`` and ``vllm``:
    arguments of the command (:py:func:`to_arguments`). Where an engine puts what is small (shared experts, dense
    layers beside experts, embedding) is its own affair. TensorRT-LLM divides contexts on the generation servers of a
    disaggregated deployment only.

    Raises ValueError for an unknown engine, a layout that the model does not allow, several layouts at once, and, all
    reasons at once, for what the engine does not have according to its documentation.

    >>> launch(Layout(dp=8, ep=8), "vllm", model="deepseek_r1")
    {'--data-parallel-size': 8, '--enable-expert-parallel': True}
    >>> launch(Layout(kvp=8, tp_attention=8, tp_ffn=64), "sglang", model="llama_3_1_405b")
    Traceback (most recent call last):
    ValueError: launch: sglang cannot run kvp=8 tp_attention=8 tp_ffn=64 of Llama-3.1-405B: it divides contexts of ...
    """
    if engine not in _ENGINES:
        raise ValueError(f"launch: engine is {engine!r:.40}; allowed: {', '.join(_ENGINES)}")
    of = named(model)
    if not isinstance(layout, Layout) or layout.shape:
        raise ValueError(f"launch: layout is {layout!s:.60}; allowed: one Layout, as in layouts[0]")
    check_division("launch", layout, of)
    missing, flags = _ENGINES[engine](layout, of)
    slots = any(f.n_experts % layout.ep for layer in of.config.layers for f in layer.ffns)
    missing.append((slots, "ep must divide the experts: spare slots need a load balancer with settings of its own"))
    reasons = [reason for lacks, reason in missing if lacks]
    if reasons:
        raise ValueError(f"launch: {engine} cannot run {layout} of {of}: {'; '.join(reasons)}")
    return {name: value for name, value in flags.items() if value is True or value not in (1, False)}


def to_arguments(flags: Mapping[str, Any]) -> str:
    """Flags of a command as its text.

    >>> to_arguments(launch(Layout(dp=8, ep=8), "sglang", model="deepseek_r1"))
    '--tp-size 8 --dp-size 8 --enable-dp-attention --ep-size 8'
    """
    return " ".join(name if value is True else f"{name} {value}" for name, value in flags.items())


def _trtllm(x: Layout, of: Model) -> tuple[list[tuple[bool, str]], dict[str, Any]]:
    experts = _has_experts(of)
    missing = [
        (1 < x.dp != x.n_stage, "attention is either divided over all GPUs of a stage or copied to all of them"),
        (x.dp > 1 and not experts, "attention DP of a model without experts is not documented"),
        (x.kvp > 1 and not _all_latent(of), "it divides contexts of latent attention only"),
        (x.kvp > 1 and x.dp > 1, "dividing contexts and attention DP together is not documented"),
    ]
    flags = {
        "tensor_parallel_size": x.n_stage // x.kvp,
        "pipeline_parallel_size": x.pp,
        "context_parallel_size": x.kvp,
        "enable_attention_dp": x.dp > 1,
        "moe_tensor_parallel_size": x.tp_ffn if experts else 1,
        "moe_expert_parallel_size": x.ep if experts else 1,
    }
    if x.kvp > 1:
        flags["cp_config"] = {"cp_type": "HELIX", "tokens_per_block": _HELIX_BLOCK}
        flags["kv_cache_config"] = {"tokens_per_block": _HELIX_BLOCK}
    return missing, flags


def _sglang(x: Layout, of: Model) -> tuple[list[tuple[bool, str]], dict[str, Any]]:
    missing = [(x.kvp > 1 and not _all_latent(of), "it divides contexts of latent attention only")]
    return missing, {
        "--tp-size": x.n_stage,
        "--dp-size": x.dp,
        "--enable-dp-attention": x.dp > 1,
        "--ep-size": x.ep,
        "--dcp-size": x.kvp,
        "--pp-size": x.pp,
    }


def _vllm(x: Layout, of: Model) -> tuple[list[tuple[bool, str]], dict[str, Any]]:
    experts, heads = _has_experts(of), _kv_heads(of)
    grouped = bool(dcp_allowed(of, tp=x.n_replica, dcp=x.kvp))
    missing = [
        (x.dp > 1 and not experts, "its replicas of a model without experts are whole models: start as many instances"),
        (x.ep > 1 and x.tp_ffn > 1, "experts are either whole or all divided, over all GPUs of a stage"),
        (x.tp_attention < heads and not grouped, f"contexts are divided after the {heads} key-value heads are"),
        (x.tp_attention >= heads and not grouped, "kvp must divide the query heads of each key-value head"),
    ]
    return missing, {
        "--tensor-parallel-size": x.n_replica,
        "--decode-context-parallel-size": x.kvp,
        "--data-parallel-size": x.dp,
        "--enable-expert-parallel": x.ep > 1,
        "--pipeline-parallel-size": x.pp,
    }


_ENGINES = {"trtllm": _trtllm, "sglang": _sglang, "vllm": _vllm}
_HELIX_BLOCK = 32  # tokens a block of the cache, as in the documentation's example


def _has_experts(of: Model) -> bool:
    return any(ffn.n_experts for layer in of.config.layers for ffn in layer.ffns)


def _all_latent(of: Model) -> bool:
    """Whether every layer with a cache holds one latent a token."""
    mixers = [m for layer in of.config.layers for m in layer.mixers if not isinstance(m, Recurrent)]
    return bool(mixers) and all(m.kind == "latent" for m in mixers)


def _kv_heads(of: Model) -> int:
    """Key-value heads, the most of any layer; a latent is one."""
    mixers = [m for layer in of.config.layers for m in layer.mixers]
    return max((m.n_kv_heads for m in mixers if isinstance(m, Attention)), default=1)


def _patterns(plan: Plan, spell) -> Iterator[tuple[str, str]]:
    """Pattern and reason of what stays, those of all layers with such a module in one, the rest layer by layer."""
    with_it: dict[str, set[int]] = {}
    for entry in plan.entries:
        for module in entry.modules:
            with_it.setdefault(module, set()).update(entry.layers)
    for entry in plan.entries:
        if entry.quantised:
            continue
        for module in entry.modules:
            every = set(entry.layers) == with_it[module]
            for pattern in spell(module, None if every else entry.layers, bool(entry.layers)):
                yield pattern, entry.why
    config = plan.model.config
    if n_mtp := len(config.mtp_layers) or config.n_mtp_uncounted:  # as layers after the last one, or apart
        after = tuple(range(plan.model.n_layers, plan.model.n_layers + n_mtp))
        for module, layers in (("mtp", None), ("", after)):
            yield from ((p, _OUTSIDE["mtp"]) for p in spell(module, layers, bool(layers), whole=True))
    if config.has_vision or config.family in _MULTIMODAL:
        for module in _BESIDE:
            yield from ((p, _OUTSIDE["beside"]) for p in spell(module, None, False, whole=True))


def _regex(module: str, layers: tuple[int, ...] | None, inside: bool, *, whole: bool = False) -> Iterator[str]:
    name = module.replace(".", r"\.").replace("*", r"\d+")
    numbers = r"\d+" if layers is None else f"({'|'.join(map(str, layers))})"
    if whole:
        yield rf".*layers\.{numbers}\..*" if layers else rf".*{name}.*"
        return
    yield rf".*layers\.{numbers}\.{name}$" if inside else rf".*{name}$"


def _wildcard(module: str, layers: tuple[int, ...] | None, inside: bool, *, whole: bool = False) -> Iterator[str]:
    if whole:
        yield from (f"*layers.{number}.*" for number in layers) if layers else (f"*{module}*",)
        return
    if ".*." in module:
        module = module.split(".*.")[0]  # ModelOpt keeps a layer's experts in one module; all stay or none
    for number in ("*",) if layers is None else layers:
        yield f"*layers.{number}.{module}.*" if inside else f"*{module}.*"
