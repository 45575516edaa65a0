"""Draw the measured linear layers that studies and tests need without the wheel.

  python tools/sample_gemm.py           draw and write
  python tools/sample_gemm.py --check   draw and compare with the committed files

Latencies are those of the whole module in the engine: quantising BF16 activations is included, outputs are BF16.
"""

from __future__ import annotations

import sys
from pathlib import Path

import measured
import numpy as np
import pandas as pd

DATA = Path(__file__).resolve().parent.parent / "codesign_lib" / "data"
COLUMNS = ["chip", "engine", "fmt", "m", "n", "k", "latency_s"]
REGIMES = (1, 65, 1024, np.inf)  # decode, middle, prefill
N_STRATUM = 4
SEED = 20261130
TOKENS = 8192
SQUARES = (512, 1024, 2048, 4096, 8192, 16384)
HIDDEN = (4096, 7168)
# (k, n): DeepSeek-R1's attention out, shared expert gate and up, shared expert down; and the longest k on a small n
LAYERS = ((16384, 7168), (7168, 4096), (2048, 7168), (65536, 128))
SM_COUNT_CHIPS = ("b200_sxm", "b300_sxm", "gb200", "gb300")
SM_COUNT_N, SM_COUNT_K = (4096, 6144, 7168, 8192, 10240, 12288, 16384), (4096, 8192, 16384)


def sample(tables: pd.DataFrame) -> pd.DataFrame:
    """The same number of rows from each chip × engine × format × regime, half of them from held-out layers."""
    regime = pd.cut(tables.m, REGIMES, right=False, labels=False)
    strata = ["chip", "engine", "fmt", regime, measured.held_out(tables.n, tables.k)]
    return tables.groupby(strata, sort=False).sample(N_STRATUM // 2, random_state=SEED)


def shapes(tables: pd.DataFrame) -> pd.DataFrame:
    """GB300 at 8,192 tokens: squares; N·K = 2²⁴; FFN pairs; N swept at K = 8192, K swept at N = 8192 and 10240."""
    n, k = tables.n, tables.k
    square = (n == k) & n.isin(SQUARES)
    aspect = n * k == 2**24
    pair = n.isin(HIDDEN) | k.isin(HIDDEN)
    swept = (k == 8192) | n.isin((8192, 10240))
    return tables[(tables.chip == "gb300") & (tables.m == TOKENS) & (square | aspect | pair | swept)]


def staircase(tables: pd.DataFrame) -> pd.DataFrame:
    """GB300, N = K = 8192, all measured numbers of tokens from 256 to 4352 and one more each."""
    return tables[(tables.chip == "gb300") & (tables.n == 8192) & (tables.k == 8192) & tables.m.between(256, 4353)]


def tokens(tables: pd.DataFrame) -> pd.DataFrame:
    """GB300 and H100, N = K = 8192 and 16384, powers of two of tokens and one more; GB300, four layers."""
    powers = [2**i for i in range(16)]
    chips, square = tables.chip.isin(("gb300", "h100_sxm")), (tables.n == tables.k) & tables.n.isin((8192, 16384))
    square &= chips & tables.m.isin([*powers, *(m + 1 for m in powers)])
    layer = pd.Series(list(zip(tables.k, tables.n, strict=True)), index=tables.index).isin(LAYERS)
    return tables[square | (layer & (tables.chip == "gb300") & tables.m.isin(powers))]


def sm_count(tables: pd.DataFrame) -> pd.DataFrame:
    """Blackwell, TensorRT-LLM, NVFP4: several N and K, all measured numbers of tokens from 256 to 8192."""
    which = tables.chip.isin(SM_COUNT_CHIPS) & (tables.engine == "trtllm") & (tables.fmt == "nvfp4")
    return tables[which & tables.n.isin(SM_COUNT_N) & tables.k.isin(SM_COUNT_K) & tables.m.between(256, 8192)]


DRAWN = {
    "gemm_sample.csv": sample,
    "gemm_gb300.csv": shapes,
    "gemm_staircase.csv": staircase,
    "gemm_tokens.csv": tokens,
    "gemm_sm_count.csv": sm_count,
}


def load() -> pd.DataFrame:
    parts = [measured.gemm(c, e).assign(chip=c, engine=e) for c in measured.CHIPS for e in measured.ENGINES]
    return pd.concat(parts, ignore_index=True)[COLUMNS]


def text(rows: pd.DataFrame, draw) -> str:
    engines = ", ".join(f"{e} {measured.VERSIONS[e]}" for e in measured.ENGINES)
    head = [
        f"# title: measured linear layers. {' '.join(draw.__doc__.split())}",
        f"# source: {measured.PACKAGE}, systems/data (NVIDIA, github.com/ai-dynamo/aiconfigurator)",
        f"# version: {measured.package_version()}; engines {engines}",
        "# date: 2026-11-30",
        f"# licence: {measured.LICENCE}",
        "# drawn_by: tools/sample_gemm.py",
    ]
    rows = rows.sort_values(COLUMNS[:-1])
    return "\n".join(head) + "\n" + rows.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def main(argv: list[str]) -> int:
    tables, different = load(), 0
    for name, draw in DRAWN.items():
        rows = draw(tables)
        drawn, path = text(rows, draw), DATA / name
        if "--check" not in argv:
            path.write_text(drawn, encoding="utf-8")
            print(f"wrote {name}: {len(rows)} rows")
            continue
        same = path.exists() and path.read_text(encoding="utf-8") == drawn
        different += not same
        print(f"{name}: {'as drawn' if same else 'differs from what tools/sample_gemm.py draws'}")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
