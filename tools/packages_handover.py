"""Hold the recipes of ``report.handover`` against the packages that carry them out (part of `make validate-packages`).

Names: every model config of the wheel and of ``data/configs`` is built by transformers without weights. Each of its
linear layers must be in exactly one entry of the plan, in its shape, and the patterns of both recipes must pick it as
the plan says. Scales: tiny random models are quantised by ModelOpt (``mtq.quantize``, ``export_hf_checkpoint``) and by
LLM Compressor (``oneshot``) with our recipes; what they store is compared with ours, to the bit.

Writes ``data/validation/handover_names.csv``, ``handover_scales.csv`` and the names behind the unit tests,
``data/module_names.csv``; with --check it fails instead where one differs.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import numpy as np  # noqa: E402
import packages_models  # noqa: E402
import torch  # noqa: E402
import validate_configs  # noqa: E402

from codesign_lib.lowbit import checkpoint, nvfp4  # noqa: E402
from codesign_lib.report import handover  # noqa: E402
from codesign_lib.report.nvfp4_plan import KEPT, Entry, Plan, plan  # noqa: E402
from codesign_lib.specs import module_names  # noqa: E402
from codesign_lib.specs.formats import Precision  # noqa: E402
from codesign_lib.specs.models import MODELS, Model  # noqa: E402

DATA = Path(str(files("codesign_lib"))) / "data"
DATE = "2026-11-30"
SEED = 0
OUTSIDE = ("visual", "vision", "audio", "projector", "embed_tokens", "embeddings")
NO_CLASS = "transformers has no class of that name"
IN_BFLOAT16 = "scales of bfloat16 weights are computed in bfloat16 there, in float32 here"
Stored = dict[str, dict[str, np.ndarray]]
TINY = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            head_dim=64, vocab_size=256, max_position_embeddings=256)  # fmt: skip
_EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128)
# name -> config, what is asked of the plan
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (TINY | dict(model_type="llama"), {}),
    "llama, first and last layer high": (TINY | dict(model_type="llama"), dict(n_first=1, n_last=1)),
    "llama, activations in BF16, cache in FP8": (
        TINY | dict(model_type="llama"),
        dict(precision=Precision(weights="nvfp4", activations="bf16", kv="fp8")),
    ),
    "llama, head too": (
        TINY | dict(model_type="llama"),
        dict(precision=Precision(weights="nvfp4", activations="nvfp4", kv="bf16", head="nvfp4")),
    ),
    "qwen3, attention high": (TINY | dict(model_type="qwen3"), dict(keep=(*KEPT, "attention"))),
    "qwen3_moe": (TINY | dict(model_type="qwen3_moe") | _EXPERTS, {}),
    "qwen3_5_text": (TINY | dict(model_type="qwen3_5_text", num_hidden_layers=4, linear_conv_kernel_dim=4,
                                 linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=64,
                                 linear_value_head_dim=64), {}),
    "nemotron_h, recurrent layers too": (
        TINY | dict(model_type="nemotron_h", layers_block_type=["mamba", "moe", "attention", "mamba"],
                    mamba_num_heads=8, mamba_head_dim=64, ssm_state_size=64, n_groups=2, conv_kernel=4,
                    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=128, n_shared_experts=1,
                    moe_shared_expert_intermediate_size=128, n_group=1, topk_group=1, num_hidden_layers=4),
        dict(keep=()),
    ),
    "deepseek_v3": (TINY | dict(model_type="deepseek_v3", q_lora_rank=128, kv_lora_rank=128, qk_nope_head_dim=64,
                                qk_rope_head_dim=64, v_head_dim=64, n_routed_experts=4, num_experts_per_tok=2,
                                n_shared_experts=1, moe_intermediate_size=128, n_group=1, topk_group=1,
                                first_k_dense_replace=1, num_key_value_heads=4), {}),
}  # fmt: skip


def linear_modules(network: torch.nn.Module) -> Iterator[tuple[str, int, int]]:
    """Name, N and K of every linear layer of the language model; of a layer's experts, which are one tensor, each
    matrix under its name in the checkpoint.
    """
    for name, module in network.named_modules():
        if any(word in name for word in OUTSIDE) or "Conv" in type(module).__name__:
            continue
        if isinstance(getattr(module, "gate_up_proj", None), torch.nn.Parameter) or isinstance(
            getattr(module, "up_proj", None), torch.nn.Parameter
        ):
            yield from _experts(name, module)
            continue
        for parameter, value in module.named_parameters(recurse=False):
            if value.ndim == 2 and parameter not in ("position_bias", "A_log"):
                yield (name if parameter == "weight" else f"{name}.{parameter}", *value.shape)


def _experts(name: str, module: torch.nn.Module) -> Iterator[tuple[str, int, int]]:
    """The first and the last expert's matrices; the fused tensors hold N before K, in some families K before N."""
    gated = hasattr(module, "gate_up_proj")
    first = module.gate_up_proj if gated else module.up_proj
    count, n, k = module.down_proj.shape
    if first.shape[1] != (2 if gated else 1) * k:
        n, k = k, n
    for expert in (0, count - 1):
        for part in ("gate_proj", "up_proj") if gated else ("up_proj",):
            yield f"{name}.{expert}.{part}", k, n
        yield f"{name}.{expert}.down_proj", n, k


def in_plan(made: Plan, name: str) -> list[tuple[Entry, tuple[int, int] | None]]:
    """The entries that hold a real name, each with the shape (N, K) that it gives the module."""
    found = re.search(r"(?:^|\.)layers\.(\d+)\.(.+)$", name)
    inner, layer = (re.sub(r"experts\.\d+\.", "experts.*.", found[2]), int(found[1])) if found else (name, None)
    out = []
    for entry in made.entries:
        if any(inner == m or (layer is None and inner.endswith(f".{m}")) for m in entry.modules) and (
            layer in entry.layers if entry.layers else layer is None
        ):
            out.append((entry, _shape(made, entry, inner, layer)))
    return out


def _shape(made: Plan, entry: Entry, inner: str, layer: int | None) -> tuple[int, int] | None:
    if layer is None:
        return entry.n, entry.k
    config = made.model.config
    modules = module_names.layer_modules(config.layers[layer], config)
    return next(((m.n, m.k) for m in modules if m.name == inner), None)


def names_row(title: str, raw: dict[str, Any]) -> tuple[list[Any], list[list[Any]]]:
    """A line of the table of names, and the real names in short."""
    ours = Model.from_config(raw, name=title)
    made = plan(ours, tp=1)
    family = ours.config.family
    try:
        network = packages_models.build(raw)
    except ValueError as error:
        if "Unrecognized model" not in str(error):
            raise
        return [title, family, 0, 0, 0, 0, 0, 0, 0, NO_CLASS], []
    regexes = [re.compile(p.removeprefix("re:")) for p in handover.ignored(made)]
    rules = handover.modelopt(made)["quant_cfg"]
    counts = dict.fromkeys(("modules", "quantised", "ignored", "absent", "twice", "shape", "pattern"), 0)
    short: dict[tuple, int] = {}
    for name, n, k in linear_modules(network):
        counts["modules"] += 1
        found = in_plan(made, name)
        counts["absent"] += not found
        counts["twice"] += len(found) > 1
        if found:
            entry, shape = found[0]
            counts["quantised" if entry.quantised else "ignored"] += 1
            counts["shape"] += shape != (n, k)
            low = not any(p.match(name) for p in regexes)
            counts["pattern"] += (low, on(rules, name)) != (entry.quantised, entry.quantised)
        else:
            print(f"  {title}: not in the plan: {name} {n}×{k}")
        key = (re.sub(r"(?<=\.)\d+(?=\.)", "*", name), n, k)
        short[key] = short.get(key, 0) + 1
    return [title, family, *counts.values(), ""], [[title, *key, n] for key, n in short.items()]


def on(rules: list[dict[str, Any]], name: str) -> bool:
    """Whether ModelOpt's rules leave a linear layer's weight quantised: the last that matches decides."""
    state = False
    expert = re.sub(r"experts\.\d+\.(gate|up)_proj", "experts.gate_up_proj", name)
    name = re.sub(r"experts\.\d+\.down_proj", "experts.down_proj", expert)
    for rule in rules:
        if "parent_class" not in rule and fnmatch(f"{name}.weight_quantizer", rule["quantizer_name"]):
            state = rule.get("enable", True)
    return state


def tiny(raw: dict[str, Any], folder: str) -> None:
    """A random model of that config, saved with a tokeniser that LLM Compressor asks for."""
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(SEED)
    config = AutoConfig.for_model(**raw)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(i): i for i in range(256)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0").save_pretrained(folder)


def stored(folder: str) -> dict[str, torch.Tensor]:
    from safetensors import safe_open

    found = {}
    for path in Path(folder).glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def ids() -> torch.Tensor:
    return torch.randint(0, 256, (4, 128), generator=torch.Generator().manual_seed(SEED))


def run_modelopt(made: Plan, folder: str, out: str, dtype: torch.dtype) -> Stored:
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    mtq.quantize(network, handover.modelopt(made), lambda m: m(ids()))
    export_hf_checkpoint(network, export_dir=out)
    return gathered(out, dict(weight="packed", weight_scale="scales", weight_scale_2="global"))


def run_llm_compressor(made: Plan, folder: str, out: str, dtype: torch.dtype) -> Stored:
    from datasets import Dataset
    from llmcompressor import oneshot
    from loguru import logger
    from transformers import AutoModelForCausalLM, AutoTokenizer

    logger.remove()
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    data = Dataset.from_dict({"input_ids": ids().tolist(), "attention_mask": [[1] * 128] * 4})
    recipe = handover.to_json(handover.llm_compressor(made))
    oneshot(model=network, processor=AutoTokenizer.from_pretrained(folder), dataset=data, max_seq_length=128,
            num_calibration_samples=4, recipe=recipe)  # fmt: skip
    network.save_pretrained(out, save_compressed=True)
    return gathered(out, dict(weight_packed="packed", weight_scale="scales", weight_global_scale="global"))


def gathered(folder: str, names: dict[str, str]) -> Stored:
    """Of every module that was stored in three tensors: codes, scales as bytes, global scale."""
    out: Stored = {}
    for name, tensor in stored(folder).items():
        module, _, last = name.rpartition(".")
        if last in names and tensor.dtype != torch.bfloat16:  # what stayed high bears the name "weight" too
            plain = tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
            out.setdefault(module, {})[names[last]] = plain.numpy()
    return {module: parts for module, parts in out.items() if len(parts) == 3}


def scales_rows(title: str) -> Iterator[list[Any]]:
    """What each package stored of one tiny model, against ours."""
    raw, asked = CASES[title]
    made = plan(Model.from_config(raw, name=title), **asked)
    with tempfile.TemporaryDirectory() as folder:
        tiny(raw, folder)
        weights = {n.removesuffix(".weight"): t.float().numpy() for n, t in stored(folder).items() if t.ndim == 2}
        for package, variant, run, dtype in RUNS:
            with tempfile.TemporaryDirectory() as out:
                found = compared(made, variant, weights, run(made, folder, out, dtype))
            reason = IN_BFLOAT16 if (package, dtype) == ("llmcompressor", torch.bfloat16) and any(found[3:6]) else ""
            yield [title, package, str(dtype).removeprefix("torch."), *found, reason]


def compared(made: Plan, variant: str, weights: dict[str, np.ndarray], theirs: Stored) -> list[int]:
    """Modules planned, quantised though not planned, and missing; codes, scales and global scales that differ; modules
    that share a global scale with those they run with, and that could and do not.
    """
    want = {name: found[0][0] for name in weights if (found := in_plan(made, name)) and found[0][0].quantised}
    differ, shared, alone = [0, 0, 0], 0, 0
    for name in sorted(set(want) & set(theirs)):
        w, group, parts = weights[name], members(name, want[name], weights), theirs[name]
        candidates = [checkpoint.shared_amax(*(weights[n] for n in group)), checkpoint.shared_amax(w)]
        matches = [a for a in candidates if stored_global(w, a, variant) == parts["global"].reshape(())]
        ours = nvfp4.quantise(w, variant=variant, amax=(matches or candidates)[0])
        differ[0] += int((ours.packed != parts["packed"]).sum())
        differ[1] += int((ours.scales != parts["scales"].reshape(ours.scales.shape)).sum())
        differ[2] += not matches
        if len(group) > 1 and matches:
            shared, alone = shared + (matches[0] == candidates[0]), alone + (matches[0] != candidates[0])
    return [len(want), len(set(theirs) - set(want)), len(set(want) - set(theirs)), *differ, shared, alone]


def members(name: str, entry: Entry, weights: dict[str, np.ndarray]) -> list[str]:
    """The modules that run as one with this."""
    stem, dot, _ = name.rpartition(".")
    names = (f"{stem}{dot}{module.rpartition('.')[2]}" for module in entry.modules)
    return [n for n in names if n in weights]


def stored_global(w: np.ndarray, amax: float, variant: str) -> np.float32:
    """The global scale as the package stores it."""
    q = nvfp4.quantise(w, variant=variant, amax=amax)
    if variant == "modelopt":
        return checkpoint.to_modelopt(q)["weight_scale_2"].reshape(())
    return checkpoint.to_compressed_tensors(q)["weight_global_scale"].reshape(())


RUNS = (
    ("nvidia-modelopt", "modelopt", run_modelopt, torch.bfloat16),
    ("llmcompressor", "compressed_tensors", run_llm_compressor, torch.float32),
    ("llmcompressor", "compressed_tensors", run_llm_compressor, torch.bfloat16),
)


def as_text(title: str, columns: str, rows: list[list[Any]], packages: tuple[str, ...]) -> str:
    text = io.StringIO()
    versions = ", ".join(f"{p} {version(p).split('+')[0]}" for p in packages)
    text.write(
        f"# title: {title}\n# source: {', '.join(packages)}\n# version: {versions}\n# date: {DATE}\n"
        "# licence: Apache-2.0\n# drawn_by: tools/packages_handover.py\n"
    )
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns.split())
    writer.writerows(rows)
    return text.getvalue()


def main(argv: list[str]) -> int:
    names, real = [], []
    for path in validate_configs.configs():
        title = validate_configs.name_of(path)
        try:
            names.append(names_row(title, json.loads(path.read_text(encoding="utf-8")))[0])
        except ValueError as error:
            names.append([title, "", 0, 0, 0, 0, 0, 0, 0, f"refused: {str(error)[:100]}"])
    for name in MODELS:
        raw = json.loads((DATA / "configs" / f"{name}.json").read_text(encoding="utf-8"))
        row, short = names_row(name, raw)
        names.append(row)
        real += short
    for row in names:
        print("  ".join(map(str, row)))
    scales = []
    for title in CASES:
        for row in scales_rows(title):
            scales.append(row)
            print("  ".join(map(str, row)), flush=True)
    tables = {
        "validation/handover_names": as_text(
            "linear layers of real models, each once in the plan of report.handover, and picked as it says",
            "config family n_modules n_quantised n_ignored n_absent n_twice n_shape_differs n_pattern_differs reason",
            names, ("transformers", "torch")),
        "module_names": as_text(
            "names and shapes of the linear layers of the models in data/configs, as transformers builds them",
            "model module n k count", real, ("transformers", "torch")),
        "validation/handover_scales": as_text(
            "tiny random models quantised by two packages with our recipes: what they store against ours, to the bit",
            "case package dtype n_planned n_unplanned n_missing codes_differ scales_differ globals_differ n_share "
            "n_alone reason",
            scales, ("nvidia-modelopt", "llmcompressor", "compressed-tensors", "transformers", "torch")),
    }  # fmt: skip
    failed = any(sum(row[5:9]) for row in names) or any(sum(row[4:6]) for row in scales)
    failed |= any(sum(row[6:9]) and not row[-1] for row in scales)
    print("every layer once, as planned, to the bit" if not failed else "FAILED: see above")
    for name, text in tables.items():
        path = DATA / f"{name}.csv"
        if "--check" in argv:
            same = path.read_text(encoding="utf-8") == text
            failed |= not same
            print(f"{path.name}: {'as committed' if same else 'differs from the committed table'}")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.name}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
