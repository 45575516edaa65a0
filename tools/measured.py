"""NVIDIA's measured kernel tables, read from the wheel aiconfigurator-core (requirements-validation.txt).

Latencies of linear layers are those of the engine's whole module: for fp8, fp8_block and nvfp4 they include the pass
that quantises BF16 activations.
"""

from __future__ import annotations

import re
import zlib
from functools import cache
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


def attention(chip: str, engine: str, phase: str) -> pd.DataFrame:
    """All measured attention kernels of one chip and engine, ``phase`` decode or prefill, one row a shape.

    Columns: kernel (the engine's name for it), fmt (of the arithmetic), kv_fmt, n_batch, n_tokens (cached tokens that a
    decoding query reads, its own included; or the length of a prompt without a prefix), n_heads, n_kv_heads, d_head,
    window_tokens (0: none) and latency_s. Repeated measurements of one shape are averaged.
    """
    name = {"decode": "generation", "prefill": "context"}[phase]
    folder = systems() / "data" / chip / "attention" / engine / engine_version(chip, engine)
    table = pd.read_parquet(folder / f"{name}_attention_perf.parquet")
    tokens = table.step + 1 if phase == "decode" else table.isl
    window = table.window_size.astype(int) if "window_size" in table else 0
    found = pd.DataFrame(
        {
            "kernel": table.kernel_source.astype(str),
            "fmt": table.attn_dtype.map(FORMATS),
            "kv_fmt": table.kv_cache_dtype.map(FORMATS),
            "n_batch": table.batch_size,
            "n_tokens": tokens,
            "n_heads": table.num_heads,
            # tables write 0 where every query head has its own
            "n_kv_heads": table.num_key_value_heads.where(table.num_key_value_heads > 0, table.num_heads),
            "d_head": table.head_dim,
            "window_tokens": window,
            "latency_s": table.latency * 1e-3,
        }
    )
    return _averaged(found)


def latent(chip: str, engine: str, phase: str) -> pd.DataFrame:
    """Measured multi-head latent attention of DeepSeek's sizes (rank 512, rope 64): as :func:`attention`, without
    n_kv_heads, d_head and window; n_heads is what one GPU holds."""
    name = {"decode": "generation", "prefill": "context"}[phase]
    folder = systems() / "data" / chip / "mla" / engine / engine_version(chip, engine)
    table = pd.read_parquet(folder / f"{name}_mla_perf.parquet")
    found = pd.DataFrame(
        {
            "kernel": table.kernel_source.astype(str),
            "fmt": table.mla_dtype.map(FORMATS),
            "kv_fmt": table.kv_cache_dtype.map(FORMATS),
            "n_batch": table.batch_size,
            "n_tokens": table.step + 1 if phase == "decode" else table.isl,
            "n_heads": table.num_heads,
            "latency_s": table.latency * 1e-3,
        }
    )
    return _averaged(found)


MOE_LAYER = ["d_model", "d_expert", "n_chosen", "n_experts"]
MOE_FORMATS = FORMATS | {"w4a8_mxfp4_mxfp8": "mxfp4"}  # MXFP4 weights, MXFP8 activations


def moe(chip: str, engine: str) -> pd.DataFrame:
    """Measured experts of a mixture, without router and communication, one row a shape and routing.

    Columns: kernel, fmt, routing (balanced, power_law_1.01, power_law_1.2), n_tokens (of all ranks together), d_model,
    d_expert (whole), n_chosen, n_experts, tp, ep, gated and latency_s (of the busiest rank). Only TensorRT-LLM's tables
    say which layers are not gated, by the kernel's name; the same layers in another engine's are taken as not gated.
    """
    table = _moe(chip, engine)
    kinds = table.merge(ungated_layers().assign(gated=False), on=MOE_LAYER, how="left").gated
    return table.assign(gated=kinds.isna().to_numpy())


@cache
def ungated_layers() -> pd.DataFrame:
    table = _moe("b200_sxm", "trtllm")
    return table[table.kernel.str.endswith("nongated")][MOE_LAYER].drop_duplicates()


def _moe(chip: str, engine: str) -> pd.DataFrame:
    folder = systems() / "data" / chip / "moe" / engine / engine_version(chip, engine)
    table = pd.read_parquet(folder / "moe_perf.parquet")
    found = pd.DataFrame(
        {
            "kernel": table.kernel_source.astype(str),
            "fmt": table.moe_dtype.map(MOE_FORMATS),
            "routing": table.distribution.astype(str),
            "n_tokens": table.num_tokens,
            "d_model": table.hidden_size,
            "d_expert": table.inter_size,
            "n_chosen": table.topk,
            "n_experts": table.num_experts,
            "tp": table.moe_tp_size,
            "ep": table.moe_ep_size,
            "latency_s": table.latency * 1e-3,
        }
    )
    return _averaged(found[found.fmt.notna()])


def _averaged(table: pd.DataFrame) -> pd.DataFrame:
    keys = [name for name in table if name != "latency_s"]
    return table.groupby(keys, as_index=False, sort=True)["latency_s"].mean()


def hashed(table: pd.DataFrame, names: list[str], bit: int = 0) -> np.ndarray:
    """Whether each row's named sizes are kept from the fit: a bit of their checksum, as in :func:`held_out`."""
    keys, where = np.unique(table[names].to_numpy(), axis=0, return_inverse=True)
    text = ("x".join(str(int(x)) for x in key) for key in keys)
    bits = np.array([zlib.crc32(t.encode()) >> bit & 1 for t in text], dtype=bool)
    return bits[where.ravel()]


NCCL = "2.29.2"
NCCL_OPS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
            "alltoall": "all_to_all"}  # fmt: skip


def nccl(chip: str) -> pd.DataFrame:
    """NCCL inside one node: op, n_ranks, n_bytes (the whole buffer, not a rank's share), latency_s."""
    table = pd.read_parquet(systems() / "data" / chip / "comm" / "nccl" / NCCL / "nccl_perf.parquet")
    size = table.nccl_dtype.map({"half": 2, "int8": 1})
    found = {"op": table.op_name.map(NCCL_OPS), "n_ranks": table.num_gpus, "n_bytes": table.message_size * size}
    return _averaged(pd.DataFrame(found | {"latency_s": table.latency * 1e-3}))


def all_reduce(chip: str, engine: str) -> pd.DataFrame:
    """The engine's own all-reduce in BF16, SGLang's from a CUDA graph: n_ranks, n_bytes, latency_s.

    Where one-shot and two-shot were both measured, the faster.
    """
    folder = systems() / "data" / chip / "comm" / engine / engine_version(chip, engine)
    table = pd.read_parquet(folder / "custom_allreduce_perf.parquet")
    table = table[~table.kernel_source.str.contains("eager")]
    found = {"n_ranks": table.num_gpus, "n_bytes": table.message_size * 2, "latency_s": table.latency * 1e-3}
    return pd.DataFrame(found).groupby(["n_ranks", "n_bytes"], as_index=False)["latency_s"].min()
