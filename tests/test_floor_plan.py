"""Imports only go down: between the wings, and inside a wing from right to left of the bars."""

import ast
from pathlib import Path

import pytest

LIBRARY = Path(__file__).resolve().parent.parent / "codesign_lib"

# A wing knows those before it. Inside a wing a module knows those of earlier groups.
WINGS = {
    "specs": [
        {"formats", "quantities"},
        {"published", "hf_config", "scores"},
        {"caches", "patterns", "weights"},
        {"parameters", "module_names"},
        {"hardware", "models"},
        {"scaling_laws"},
    ],
    "cost": [
        {"roofline", "tiling", "blocks"},
        {"calibration", "experts"},
        {"ops"},
        {"kernels", "attention_kernels", "moe_kernels", "collectives"},
        {"latent_kernels", "gain"},
    ],
    "lowbit": [
        {"elements", "blocks"},
        {"variants", "error_law"},
        {"nvfp4", "microscaling"},
        {"recipes", "checkpoint", "gptq", "compiled"},
    ],
    "serving": [
        {"pipeline", "sharded_attention", "rules", "helix", "rental", "price"},
        {"layout", "slicing", "splitting", "tuning"},
        {"shards", "stages"},
        {"memory", "exchange"},
        {"parts"},
        {"decode", "prefill", "afd", "volumes"},
        {"first_token", "end_to_end", "pools", "points", "families"},
        {"block"},
        {"feasible"},
        {"frontier"},
    ],
    "report": [{"plotting", "claims"}, {"tables", "nvfp4_plan"}, {"review", "handover"}],
}
STANDS_ON = {
    "specs": set(),
    "cost": {"specs"},
    "lowbit": {"specs"},
    "serving": {"specs", "cost"},
    "report": {"specs", "cost", "lowbit", "serving"},
}
# a concept that fills a folder counts as one module
PACKAGES = ("claims", "hf_config", "ops")
MODULES = sorted(p for p in LIBRARY.rglob("*.py") if p.name != "__init__.py" or p.parent.name in PACKAGES)


def place(path: Path) -> tuple[str, str]:
    parts = path.relative_to(LIBRARY).with_suffix("").parts
    return parts[0], parts[1] if len(parts) > 1 else ""


def imported(path: Path) -> set[tuple[str, str]]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            names = [f"{node.module}.{a.name}" for a in node.names]
        for name in names:
            package, *rest = name.split(".")
            if package == "codesign_lib" and rest:
                found.add((rest[0], rest[1] if len(rest) > 1 else ""))
    return found


def group(wing: str, module: str) -> int:
    return next(i for i, names in enumerate(WINGS[wing]) if module in names)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(LIBRARY)))
def test_imports_go_down(path):
    wing, module = place(path)
    if wing in ("cli", "__main__"):
        return
    assert wing in WINGS, f"a new wing {wing}: give it its place in the floor plan"
    assert any(module in names for names in WINGS[wing]), f"{module} has no place in the wing {wing}"
    for other, name in imported(path):
        if other != wing:
            assert other in STANDS_ON[wing], f"{wing}.{module} imports {other}.{name}: imports only go down"
        elif name != module:
            assert group(wing, name) < group(wing, module), (
                f"{wing}.{module} imports {name} from its own group or above"
            )


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(LIBRARY)))
def test_a_module_holds_one_concept(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 300, f"{path.name} has {lines} lines: which second concept crept in?"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(LIBRARY)))
def test_only_plotting_needs_more_than_numpy(path):
    if place(path) in (("report", "plotting"), ("report", "tables"), ("lowbit", "compiled")):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    packages = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    packages |= {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert packages.isdisjoint({"matplotlib", "tabulate", "scipy", "pandas", "IPython", "numba"})
