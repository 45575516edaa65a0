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
import os
import sys
import warnings
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import packages_class_defaults
import validate_configs
from packages_models import build, counts, default, kv_elements, mtp_count

from codesign_lib.specs.models import MODELS, Model, kv_bytes

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.WARNING)

OUT = Path(str(files("codesign_lib"))) / "data" / "validation" / "configs.csv"
DATE = "2026-11-30"
N_CONTEXT = 100_000
NO_CLASS = "transformers has no class of that name"
EXCEPTIONS = {
    "longcat_flash": "transformers 5.24.0 gives the 256 experts that compute nothing a gate and up matrix; "
    "published: 560 B",
}
# Where only the cache differs.
_129 = "transformers 5.24.0 adds the query's own token to the window: 129 for the 128 that config and report give"
WINDOWS = {"XiaomiMiMo/MiMo-V2-Flash": _129, "mimo_v2_flash": _129}

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
        "hyperclovax", "internlm3", "bailing_hybrid", "mamba2", "falcon_mamba", "mimo_v2_flash",
    )),
    ("llama, biases, tied", "llama", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    ("qwen3, biases", "qwen3", dict(attention_bias=True)),
    ("ministral, head size", "ministral", dict(head_dim=128)),
    ("qwen2, window", "qwen2", dict(use_sliding_window=True, max_window_layers=20)),
    ("qwen3, window", "qwen3", dict(use_sliding_window=True, sliding_window=1000, max_window_layers=7)),
    ("qwen2_moe, window", "qwen2_moe", dict(use_sliding_window=True, max_window_layers=11)),
    ("qwen3_moe, window", "qwen3_moe", dict(use_sliding_window=True, sliding_window=512)),
    ("smollm3, window", "smollm3", dict(use_sliding_window=True, sliding_window=100)),
    ("olmo3, longer than its window", "olmo3", dict(max_position_embeddings=65536)),
    ("exaone4, longer than its window", "exaone4", dict(max_position_embeddings=65536)),
    ("exaone_moe, longer than its window", "exaone_moe", dict(max_position_embeddings=65536)),
    ("mistral, no window", "mistral", dict(sliding_window=None)),
    ("starcoder2, window", "starcoder2", dict(sliding_window=1024)),
    ("mixtral, window", "mixtral", dict(sliding_window=1024)),
    ("phi3, window", "phi3", dict(sliding_window=2047)),
    ("gemma3n_text, fewer shared", "gemma3n_text", dict(num_kv_shared_layers=10)),
    ("gemma4_text, 8 layers", "gemma4_text", dict(num_hidden_layers=8)),
    ("gemma4_text, window off", "gemma4_text", dict(max_position_embeddings=512)),
    ("phimoe, head bias", "phimoe", dict(lm_head_bias=True)),
    ("phi, tied", "phi", dict(tie_word_embeddings=True)),
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


def row(name: str, origin: str, raw: dict[str, Any]) -> dict[str, Any]:
    """One line of the table: our count, theirs, and why they differ if they do."""
    out = dict(name=name, origin=origin, config="", architecture="", ours_n_params="", theirs_n_params="",
               ours_n_mtp_params="", theirs_n_mtp_params="", ours_n_vision_params="",
               theirs_n_vision_params="", n_context="", ours_n_kv_elements="", theirs_n_kv_elements="",
               equal="", reason="")  # fmt: skip
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
    # A window no shorter than the longest context is off, here and for whoever stays within it.
    n_context = min(N_CONTEXT, ours.config.n_context_max or N_CONTEXT)
    cached = kv_elements(built, n_context)
    if cached is not None:
        out |= dict(n_context=n_context, ours_n_kv_elements=int(kv_bytes(ours, n_context, "int8")),
                    theirs_n_kv_elements=cached)  # fmt: skip
    of = ("mtp_params", "vision_params")
    equal = text == ours.n_params and all(out[f"ours_n_{x}"] == out[f"theirs_n_{x}"] for x in of)
    reason = "" if equal else EXCEPTIONS.get(name, "NOT EXPLAINED")
    if out["ours_n_kv_elements"] != out["theirs_n_kv_elements"] and not reason:
        reason = WINDOWS.get(name, "NOT EXPLAINED")
    return out | dict(theirs_n_params=text, equal="yes" if equal else "no", reason=reason)


def table() -> tuple[str, list[dict[str, Any]]]:
    rows = [row(validate_configs.name_of(p), "wheel", json.loads(p.read_text(encoding="utf-8")))
            for p in validate_configs.configs()]  # fmt: skip
    folder = files("codesign_lib") / "data" / "configs"
    rows += [
        row(name, "committed", json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))) for name in MODELS
    ]
    rows += [
        row(label, "class default", default(kind, changed))
        | dict(config=json.dumps(dict(model_type=kind) | changed, separators=(",", ":")))
        for label, kind, changed in CASES
    ]
    text = io.StringIO()
    head = (
        "title: parameters and cached elements of model configs, ours and those that transformers builds",
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
    defaults = packages_class_defaults.text()
    same_defaults = packages_class_defaults.OUT.read_text(encoding="utf-8") == defaults
    if not same_defaults and "--check" not in argv:
        # Read at import: written first, the counts below are made in a second run.
        packages_class_defaults.OUT.write_text(defaults, encoding="utf-8")
        print(f"wrote {packages_class_defaults.OUT.name}, which is read at import: run once more")
        return 1
    text, rows = table()
    dropped, faults = packages_class_defaults.dropped()
    print(dropped.splitlines()[-1].replace(",", " "))
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
    for fault in faults:
        print("  absent key:", fault)
    bad = bool(unexplained or faults)
    outputs = {OUT: text, packages_class_defaults.DROPPED: dropped}
    if "--check" in argv:
        same = {path.name: path.read_text(encoding="utf-8") == new for path, new in outputs.items()}
        same[packages_class_defaults.OUT.name] = same_defaults
        for name, is_same in same.items():
            print(f"{name}: {'as committed' if is_same else 'differs from the committed file'}")
        return int(bad or not all(same.values()))
    for path, new in outputs.items():
        path.write_text(new, encoding="utf-8")
        print(f"wrote {path.name}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
