"""What NVIDIA's own NVFP4 releases keep high, beside the plan of report.nvfp4_plan (part of `make validate`).

The wheel aiconfigurator-core carries the quantisation records of these releases (hf_quant_config.json). Of every linear
layer of a model the record says whether it is in NVFP4, in 8 bits (FP8, MXFP8) or in neither; the shares of each kind's
weights go into ``data/validation/handover_released.csv`` beside ours. Fails where the committed table differs; --write
writes it.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import validate_configs

from codesign_lib.report.nvfp4_plan import Plan, plan
from codesign_lib.specs import module_names
from codesign_lib.specs.models import Model

OUT = Path(str(files("codesign_lib"))) / "data" / "validation" / "handover_released.csv"
DATE = "2026-11-30"
COLUMNS = ("release", "kind", "params_fraction", "nvfp4_fraction", "eight_bit_fraction", "ours_nvfp4_fraction")
# How checkpoints spell what transformers calls by one name.
PREFIXES = ("model.layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers", "layers")
SPELLINGS = (
    {},
    {"mlp.": "block_sparse_moe.", ".gate_proj": ".w1", ".up_proj": ".w3", ".down_proj": ".w2"},
    {"self_attn.": "attn.", "mlp.": "ffn."},
    {"indexer.q_proj": "index_q_proj", "indexer.k_proj": "index_k_proj"},
    {"mlp.shared_experts.": "block_sparse_moe.shared_experts.", "gate_up_proj": "gate_proj"},
    {"gate_up_proj": "gate_proj"},
)


def names(module: str, layer: int | None) -> Iterator[str]:
    """Every name that a record may use for a module of a layer; of experts, the first and all of them together."""
    if layer is None:
        yield from (module, f"model.{module}", f"language_model.{module}", module.removeprefix("lm_"))
        return
    for spelling in SPELLINGS:
        name = module.replace("*", "0")
        for old, new in spelling.items():
            name = name.replace(old, new)
        for prefix in PREFIXES:
            yield f"{prefix}.{layer}.{name}"
            if ".experts.0." in name:
                yield f"{prefix}.{layer}.{name.split('.0.')[0]}"


def reader(record: dict[str, Any]) -> Callable[[str, int | None], str] | None:
    """The format of a module by a release's record; None where the record names no layer."""
    layers, excluded = record.get("quantized_layers"), record.get("exclude_modules")
    if layers:
        return lambda module, layer: next(
            (layers[n]["quant_algo"] for n in names(module, layer) if n in layers), "unquantised"
        )
    if excluded and record["quant_algo"] == "NVFP4":
        return lambda module, layer: (
            "unquantised" if any(fnmatch(n, p) for n in names(module, layer) for p in excluded) else "NVFP4"
        )
    return None


def shares(made: Plan, format_of: Callable[[str, int | None], str]) -> dict[str, list[float]]:
    """By kind: parameters, and of them those in NVFP4, in 8 bits, and in NVFP4 by our plan."""
    config = made.model.config
    ours = {(name, layer): e.quantised for e in made.entries for name in e.modules for layer in e.layers or (None,)}
    modules = [(i, m.name, m.kind, m.k * m.n * m.count) for i, layer in enumerate(config.layers)
               for m in module_names.layer_modules(layer, config)]  # fmt: skip
    modules += [(None, e.modules[0], e.kind, e.n_params) for e in made.entries if not e.layers]
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for layer, name, kind, n in modules:
        fmt = format_of(name, layer)
        for i, yes in enumerate((True, "NVFP4" in fmt, "FP8" in fmt, ours[name, layer])):
            found[kind][i] += n * yes
    for kind in ("router", "residual"):  # mostly no linear modules to these tools, so that no record lists them
        found.pop(kind, None)
    return found


def table() -> tuple[str, list[list[str]]]:
    rows = []
    for path in validate_configs.configs():
        record = path.with_name(path.name.replace("_config.json", "_hf_quant_config.json"))
        if not record.exists():
            continue
        read = json.loads(record.read_text(encoding="utf-8"))
        format_of = reader(read.get("quantization", read))
        if format_of is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = Model.from_config(path, name=validate_configs.name_of(path))
        found = shares(plan(model), format_of)
        total = sum(x[0] for x in found.values())
        for kind, (n, *parts) in sorted(found.items(), key=lambda x: -x[1][0]):
            rows.append([validate_configs.name_of(path), kind, f"{n / total:.4f}", *(f"{p / n:.3f}" for p in parts)])
    text = io.StringIO()
    text.write(
        "# title: what NVIDIA's NVFP4 releases quantise, by kind of layer, beside our plan\n"
        "# source: hf_quant_config.json of the releases, in aiconfigurator-core\n"
        f"# version: aiconfigurator-core {version('aiconfigurator-core')}\n# date: {DATE}\n# licence: Apache-2.0\n"
        "# drawn_by: tools/validate_handover.py --write\n"
    )
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    return text.getvalue(), rows


def main(argv: list[str]) -> int:
    text, rows = table()
    for row in rows:
        print("  ".join(row))
    if "--write" in argv:
        OUT.write_text(text, encoding="utf-8")
        print(f"wrote {OUT.name}: {len(rows)} rows")
        return 0
    same = OUT.read_text(encoding="utf-8") == text
    print(f"{OUT.name}: {'as committed' if same else 'differs from the committed table'}")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
