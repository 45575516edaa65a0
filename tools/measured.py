"""NVIDIA's measured kernel tables, read from the wheel aiconfigurator-core (requirements-validation.txt).

Latencies of linear layers are those of the engine's whole module: for fp8, fp8_block and nvfp4 they include the pass
that quantises BF16 activations.
"""

from __future__ import annotations

import re
import zlib
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd

PACKAGE = "aiconfigurator-core"
LICENCE = "Apache-2.0"
FORMATS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
CHIPS = ("h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300")
ENGINES = ("trtllm", "sglang")
# Newest measured version of each engine; chips measured with another one are named.
VERSIONS = {"trtllm": "1.3.0rc20", "sglang": "0.5.14", "vllm": "0.24.0"}
VERSIONS_OF_CHIP = {
    ("a100_sxm", "trtllm"): "1.0.0",
    ("a100_sxm", "sglang"): "0.5.10",
    ("a100_sxm", "vllm"): "0.14.0",
}


OUTSIDE_CHIPS = ("a100_sxm", "l40s", "rtx_pro_6000_server")  # measured, but no calibration is fitted to them


def package_version() -> str:
    return version(PACKAGE)


def systems() -> Path:
    """The folder of tables and chip descriptions inside the installed wheel."""
    import aiconfigurator_core

    return Path(aiconfigurator_core.__file__).parent / "systems"


def sheet(chip: str) -> dict[str, float]:
    """Numbers of the package's description of a chip, section ``gpu``."""
    text = (systems() / f"{chip}.yaml").read_text(encoding="utf-8")
    found = re.findall(r"^  (\w+): ([\d.eE+-]+)\s*(?:#.*)?$", text.split("\nnode:")[0], flags=re.MULTILINE)
    return {name: float(value) for name, value in found}


def engine_version(chip: str, engine: str) -> str:
    return VERSIONS_OF_CHIP.get((chip, engine), VERSIONS[engine])


def gemm(chip: str, engine: str) -> pd.DataFrame:
    """All measured linear layers of one chip and engine: columns fmt, m, n, k, latency_s, in that order of sorting.

    Formats of the table that the library does not name (int8 weight-only kernels, say) are left out. vLLM's
    fp8_block rows were run eagerly and are left out.
    """
    folder = systems() / "data" / chip / "gemm" / engine / engine_version(chip, engine)
    table = pd.read_parquet(folder / "gemm_perf.parquet", columns=["gemm_dtype", "m", "n", "k", "latency"])
    table["fmt"] = table.pop("gemm_dtype").map(FORMATS)
    table = table[table.fmt.notna() & ~((engine == "vllm") & (table.fmt == "fp8_block"))]
    table["latency_s"] = table.pop("latency") * 1e-3
    return table.sort_values(["fmt", "m", "n", "k"], ignore_index=True)[["fmt", "m", "n", "k", "latency_s"]]


def held_out(n: pd.Series, k: pd.Series, bit: int = 0) -> np.ndarray:
    """Whether each layer is kept from the fit: a bit of a checksum of (n, k), the same on every machine.

    Bit 0 splits fitting rows from held-out ones; bit 1 splits the fitting rows again, to choose between forms.
    """
    layers, where = np.unique(np.stack([n, k], axis=1), axis=0, return_inverse=True)
    bits = np.array([zlib.crc32(f"{int(a)}x{int(b)}".encode()) >> bit & 1 for a, b in layers], dtype=bool)
    return bits[where.ravel()]
