"""Read every real model config of the wheel aiconfigurator-core (part of `make validate`).

A config is understood when its parameters, linear layers, KV and state bytes and layer pattern all come out. The
rest must be refused by name with a reason. Fails when fewer than 80 of the 89 are understood, when reading them all
takes 2 s or more, or when a count differs from the committed table ``data/validation/configs.csv``.
"""

from __future__ import annotations

import csv
import json
import sys
import time
import warnings
from importlib.resources import files
from pathlib import Path

from codesign_lib.specs import models

N_MIN, SECONDS_MAX, N_CONTEXT = 80, 2.0, 131_072


def configs() -> list[Path]:
    """The model configs of the installed wheel; its hf_quant_config.json are records of quantisation, not models."""
    import aiconfigurator_core

    folder = Path(aiconfigurator_core.__file__).parent / "model_configs"
    return sorted(p for p in folder.glob("*_config.json") if not p.name.endswith("hf_quant_config.json"))


def name_of(path: Path) -> str:
    """Owner/name, as the hub writes it."""
    return path.name.removesuffix("_config.json").replace("--", "/")


def committed() -> dict[str, int]:
    """Our parameter counts of the wheel's configs, as committed."""
    text = (files("codesign_lib") / "data" / "validation" / "configs.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row["name"]: int(row["ours_n_params"]) for row in rows if row["origin"] == "wheel"}


def trimmed_differ(real: dict[str, models.Model]) -> list[str]:
    """The committed, trimmed configs that do not say the same as the wheel's whole ones."""
    folder = files("codesign_lib") / "data" / "configs"
    out = []
    for name, ours in models.MODELS.items():
        repository = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["_source"]["repository"]
        whole = real.get(repository)
        if whole is not None and (whole.config.layers, whole.parts) != (ours.config.layers, ours.parts):
            out.append(f"data/configs/{name}.json does not say what {repository} says")
    return out


def main() -> int:
    paths, expected = configs(), committed()
    understood, refused, bad = 0, [], []
    head = f"{'params':>10} {'active':>9} {'mtp':>8} {'KV B/token':>11} {'KV 128Ki':>10} {'state':>9}  layers"
    print(f"{'config':52} {head}")

    start, rows = time.perf_counter(), []
    for path in paths:
        name = name_of(path)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model = models.Model.from_config(path, name=name)
            kv = float(models.kv_bytes(model, N_CONTEXT, "bf16"))
            state = models.state_bytes(model, "bf16")
            if not (model.n_params and model.linear_layers() and model.pattern and kv + state > 0):
                raise ValueError(f"{name}: something is empty")
        except ValueError as error:
            refused.append(f"{name}: {error}")
            continue
        rows.append((name, model, kv, state))
        understood += 1
        if caught:
            bad.append(f"{name}: {caught[0].message}")
        if expected.get(name, model.n_params) != model.n_params:
            bad.append(f"{name}: {model.n_params} parameters, the committed table says {expected[name]}")
    seconds = time.perf_counter() - start
    bad += trimmed_differ({name: model for name, model, _, _ in rows})
    for name, model, kv, state in rows:
        counts = f"{model.n_params / 1e9:8.2f} B {model.n_active_params / 1e9:7.2f} B {model.n_mtp_params / 1e9:6.2f} B"
        memory = f"{model.kv_bytes_per_token('bf16'):11,.0f} {kv / 2**30:6.2f} GiB {state / 2**20:5.1f} MiB"
        print(f"{name:52} {counts} {memory}  {model.pattern[:60]}")
    print("\n".join(["", "refused:", *refused]))
    print(f"{understood} of {len(paths)} understood, {len(refused)} refused, in {seconds:.2f} s")
    if understood < N_MIN:
        bad.append(f"fewer than {N_MIN} configs are understood")
    if seconds >= SECONDS_MAX:
        bad.append(f"reading took {seconds:.2f} s; allowed: less than {SECONDS_MAX:g}")
    print("\n".join(bad) or "all as committed")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
