"""A decision handed to the tools that carry it out: a plan as a recipe of LLM Compressor or a config of ModelOpt.

Both are plain data that the packages take as they are; :py:mod:`codesign_lib.report.nvfp4_plan` makes the plan. What
runs as one shares a global scale, which both tools see to themselves.

Sources: LLM Compressor 0.14, ``QuantizationModifier`` (targets, ignore, scheme); ModelOpt 0.47, guide "Quantization
Configuration (quant_cfg)" and preset ``configs/ptq/presets/model/nvfp4.yaml``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from codesign_lib.report.nvfp4_plan import Plan

_NVFP4 = dict(num_bits=(2, 1), block_sizes={-1: 16, "type": "dynamic", "scale_bits": (4, 3)})
_FP8 = dict(num_bits=(4, 3))
# Beside the language model's layers; what a config does not show, or not as linear layers.
_OUTSIDE = {
    "mtp": "it predicts further tokens: small, and what it gets wrong costs speed",
    "visual": "vision: not part of the language model, and its sizes need not be multiples of 16",
}
_VISION = ("visual", "vision_tower", "vision_model", "embed_vision", "multi_modal_projector", "mm_projector")


def llm_compressor(plan: Plan) -> dict[str, Any]:
    """The plan as a recipe of LLM Compressor: ``oneshot(model=…, recipe=to_json(…))``.

    All ``Linear`` modules are targets, ``ignore`` lists those that stay as regular expressions over their names.

    >>> from codesign_lib.report.nvfp4_plan import plan
    >>> llm_compressor(plan("llama_3_1_8b"))["quant_stage"]["quant_modifiers"]["QuantizationModifier"]
    {'targets': ['Linear'], 'scheme': 'NVFP4', 'ignore': ['re:.*lm_head$']}
    """
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
    return {f"re:{pattern}": why for pattern, why in _patterns(plan, _regex)}


def modelopt(plan: Plan) -> dict[str, Any]:
    """The plan as a quantisation config of ModelOpt: ``mtq.quantize(model, modelopt(plan), forward_loop)``.

    Rules apply in order: nothing, then all weights and inputs in NVFP4, then off again what stays.

    >>> from codesign_lib.report.nvfp4_plan import plan
    >>> config = modelopt(plan("llama_3_1_8b"))
    >>> [rule["quantizer_name"] for rule in config["quant_cfg"]]
    ['*', '*weight_quantizer', '*input_quantizer', '*', '*conv1d.*', '*lm_head.*']
    """
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


def to_json(recipe: Mapping[str, Any]) -> str:
    """A recipe as JSON text, which is YAML too.

    >>> from codesign_lib.report.nvfp4_plan import plan
    >>> to_json(llm_compressor(plan("llama_3_1_8b"))).splitlines()[4]
    '        "targets": ['
    """
    return json.dumps(recipe, indent=2) + "\n"


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
    if plan.model.config.n_mtp_modules or plan.model.config.n_mtp_uncounted:
        # as layers after the last one, or apart
        for module, layers in (("mtp", None), ("", (plan.model.n_layers,))):
            yield from ((p, _OUTSIDE["mtp"]) for p in spell(module, layers, bool(layers), whole=True))
    if plan.model.config.has_vision:
        for module in _VISION:
            yield from ((p, _OUTSIDE["visual"]) for p in spell(module, None, False, whole=True))


def _regex(module: str, layers: tuple[int, ...] | None, inside: bool, *, whole: bool = False) -> Iterator[str]:
    name = module.replace(".", r"\.").replace("*", r"\d+")
    if whole:
        yield rf".*layers\.{layers[0]}\..*" if layers else rf".*{name}.*"
        return
    numbers = r"\d+" if layers is None else f"({'|'.join(map(str, layers))})"
    yield rf".*layers\.{numbers}\.{name}$" if inside else rf".*{name}$"


def _wildcard(module: str, layers: tuple[int, ...] | None, inside: bool, *, whole: bool = False) -> Iterator[str]:
    if whole:
        yield f"*layers.{layers[0]}.*" if layers else f"*{module}*"
        return
    if ".*." in module:
        module = module.split(".*.")[0]  # ModelOpt keeps a layer's experts in one module; all stay or none
    for number in ("*",) if layers is None else layers:
        yield f"*layers.{number}.{module}.*" if inside else f"*{module}.*"
