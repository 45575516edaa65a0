"""Hold our parameter counts against transformers, to the parameter (part of `make validate-packages`).

Every config of the wheel, every committed config, and for each model class some configs made from its defaults are
built on the meta device, where weights have shapes and no memory. Writes ``data/validation/configs.csv``; with --check
it fails instead when the committed table differs. Nothing is downloaded.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
import sys
import warnings
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import validate_configs

from codesign_lib.specs.models import MODELS, Model

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.WARNING)

OUT = Path(str(files("codesign_lib"))) / "data" / "validation" / "configs.csv"
DATE = "2026-11-30"
# Names of the same network under which transformers 5.24.0 does not look.
SAME_AS = {"kimi_k2": "deepseek_v3", "deepseek_ref": "deepseek_v4", "minimax_m3": "minimax_m3_vl_text"}
NO_CLASS = "transformers has no class of that name"
EXCEPTIONS = {
    "longcat_flash": "transformers 5.24.0 gives the 256 experts that compute nothing a gate and up matrix; "
    "published: 560 B",
}

# Variants of each class's defaults: what real configs rarely exercise together.
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *((name, name, {}) for name in (
        "llama", "mistral", "ministral3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gemma4_text", "phi",
        "phi3", "phimoe", "olmo", "olmo2", "olmo3", "olmoe", "granite", "granitemoe", "granitemoeshared",
        "granitemoehybrid", "smollm3", "cohere", "cohere2", "exaone4", "starcoder2", "glm", "glm4", "seed_oss", "arcee",
        "mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "deepseek_v3", "deepseek_v32", "deepseek_v4", "gpt_oss",
        "glm4_moe_lite", "glm_moe_dsa", "minimax", "minimax_m2", "minimax_m3_vl_text", "llama4_text", "jamba",
        "ernie4_5", "ernie4_5_moe", "kimi_linear", "bamba", "falcon_h1", "lfm2", "longcat_flash", "mistral4",
        "qwen3_5_text", "qwen3_5_moe_text", "nemotron_h", "olmo_hybrid", "cwm", "gemma3n_text", "apertus", "stablelm",
        "helium", "flex_olmo", "solar_open", "hy_v3", "exaone_moe", "afmoe", "axk1", "minicpm3", "youtu", "laguna",
        "hyperclovax", "bailing_hybrid", "mamba2", "falcon_mamba",
    )),
    ("llama, biases, tied", "llama", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    ("qwen3, biases", "qwen3", dict(attention_bias=True)),
    ("qwen3_moe, every second layer", "qwen3_moe", dict(decoder_sparse_step=2, mlp_only_layers=[3, 5])),
    ("qwen2_moe, no biases", "qwen2_moe", dict(qkv_bias=False)),
    ("glm4_moe, head_dim 128, qk norm", "glm4_moe", dict(head_dim=128, use_qk_norm=True, attention_bias=True)),
    ("deepseek_v2, two dense layers", "deepseek_v2", dict(num_experts_per_tok=6, first_k_dense_replace=2)),
    ("deepseek_v3, no query latent, biases", "deepseek_v3", dict(q_lora_rank=None, attention_bias=True)),
    ("glm_moe_dsa, shared selections", "glm_moe_dsa", dict(index_topk_freq=4, index_skip_topk_offset=3)),
    ("llama4_text, every second layer", "llama4_text", dict(interleave_moe_layer_step=2)),
    ("cohere, qk norm", "cohere", dict(use_qk_norm=True)),
    ("gemma4_text, shared caches, wide FFN", "gemma4_text", dict(num_kv_shared_layers=10, use_double_wide_mlp=True)),
    ("gemma4_text, keys as values, experts", "gemma4_text",
     dict(attention_k_eq_v=True, num_global_key_value_heads=2, enable_moe_block=True, num_experts=8, top_k_experts=2,
          moe_intermediate_size=704)),
    ("granitemoehybrid, attention among Mamba", "granitemoehybrid",
     dict(layer_types=["mamba", "mamba", "attention", "mamba"] * 8, num_key_value_heads=8)),
    ("granitemoehybrid, dense", "granitemoehybrid", dict(num_local_experts=0, layer_types=["attention"] * 32)),
    ("bamba, attention layers", "bamba", dict(attn_layer_indices=[9, 18, 27], num_hidden_layers=32)),
    ("lfm2, convolutions", "lfm2", dict(full_attn_idxs=[2, 5, 8], conv_bias=True)),
    ("lfm2_moe", "lfm2_moe", dict(layer_types=["conv", "conv", "full_attention", "conv"] * 8)),
    ("hunyuan_v1_moe", "hunyuan_v1_moe", dict(head_dim=128, num_experts=16, moe_topk=2)),
    ("hunyuan_v1_dense", "hunyuan_v1_dense", dict(head_dim=128)),
    ("dots1", "dots1", dict(n_routed_experts=16, n_shared_experts=2, num_experts_per_tok=4)),
    ("nemotron", "nemotron", dict(head_dim=128, num_key_value_heads=8)),
    ("jamba, biases", "jamba", dict(mamba_proj_bias=True, mamba_conv_bias=False)),
    ("nemotron_h, biases, latent experts", "nemotron_h",
     dict(use_bias=True, use_conv_bias=False, moe_latent_size=256,
          layers_block_type=["mamba", "moe", "attention"] * 4)),
    ("falcon_h1, norm", "falcon_h1", dict(mamba_rms_norm=True, attention_bias=True)),
    ("starcoder2, no biases", "starcoder2", dict(use_bias=False)),
    ("ernie4_5_moe, biases", "ernie4_5_moe", dict(use_bias=True, moe_layer_interval=2)),
)  # fmt: skip


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


def row(name: str, origin: str, raw: dict[str, Any]) -> dict[str, Any]:
    """One line of the table: our count, theirs, and why they differ if they do."""
    out = dict(name=name, origin=origin, architecture="", ours_n_params="", theirs_n_params="",
               ours_n_mtp_params="", theirs_n_mtp_params="", ours_n_vision_params="",
               theirs_n_vision_params="", equal="", reason="")  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ours = Model.from_config(raw, name=name)
        except ValueError as error:
            return out | dict(reason=f"refused: {str(error)[:200]}", equal="no", ours_n_params=0)
        out |= dict(architecture=ours.config.architecture, ours_n_params=ours.n_params)
        try:
            built = build(raw)
            text, beside = counts(built)
        except (ValueError, KeyError) as error:
            if "Unrecognized model" not in str(error):
                raise
            return out | dict(equal="no", reason=NO_CLASS)
        if ours.config.n_mtp_modules and ours.config.family != "nemotron_h":
            try:
                modules = mtp_count(built, ours.config.n_mtp_modules)
                out |= dict(ours_n_mtp_params=ours.n_mtp_params, theirs_n_mtp_params=modules)
            except (ValueError, AttributeError):
                pass  # transformers cannot build prediction modules for this class
    vision = ours.config.n_vision_params
    if beside and vision:
        out |= dict(ours_n_vision_params=vision, theirs_n_vision_params=beside)
    of = ("mtp_params", "vision_params")
    equal = text == ours.n_params and all(out[f"ours_n_{x}"] == out[f"theirs_n_{x}"] for x in of)
    reason = "" if equal else EXCEPTIONS.get(name, "NOT EXPLAINED")
    return out | dict(theirs_n_params=text, equal="yes" if equal else "no", reason=reason)


def default(kind: str, changed: dict[str, Any]) -> dict[str, Any]:
    """The defaults of a class as the config.json it would write."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind, **changed)
    return json.loads(json.dumps(config.to_dict(), default=str)) | dict(model_type=kind)


def table() -> tuple[str, list[dict[str, Any]]]:
    rows = [row(validate_configs.name_of(p), "wheel", json.loads(p.read_text(encoding="utf-8")))
            for p in validate_configs.configs()]  # fmt: skip
    folder = files("codesign_lib") / "data" / "configs"
    rows += [
        row(name, "committed", json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))) for name in MODELS
    ]
    rows += [row(label, "class default", default(kind, changed)) for label, kind, changed in CASES]
    text = io.StringIO()
    head = (
        "title: parameters of model configs, ours and those of the classes of transformers on the meta device",
        f"source: transformers; configs of aiconfigurator-core {version('aiconfigurator-core')} and data/configs",
        f"version: transformers {version('transformers')}, torch {version('torch').split('+')[0]}",
        f"date: {DATE}",
        "licence: Apache-2.0",
        "drawn_by: tools/packages_configs.py",
    )
    text.write("".join(f"# {line}\n" for line in head))
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue(), rows


def main(argv: list[str]) -> int:
    text, rows = table()
    for origin in ("wheel", "committed", "class default"):
        of = [r for r in rows if r["origin"] == origin]
        known = [r for r in of if r["theirs_n_params"] != ""]
        n_equal = sum(r["equal"] == "yes" for r in of)
        print(f"{origin:14} {n_equal} equal of {len(known)} that transformers builds, {len(of)} in all")
    for r in rows:
        if r["equal"] == "no":
            print(f"  {r['name']}: ours {r['ours_n_params']}, theirs {r['theirs_n_params'] or '-'}: {r['reason']}")
    unexplained = [r["name"] for r in rows if r["reason"] == "NOT EXPLAINED"]
    if unexplained:
        print("not explained:", ", ".join(unexplained))
    if "--check" in argv:
        same = OUT.read_text(encoding="utf-8") == text
        print(f"{OUT.name}: {'as committed' if same else 'differs from the committed table'}")
        return int(bool(unexplained) or not same)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text, encoding="utf-8")
    print(f"wrote {OUT.name}: {len(rows)} rows")
    return int(bool(unexplained))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
