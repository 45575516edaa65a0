"""Draw data/linear_gb300.csv: the measured rows that study 01 holds the roofline against.

  python tools/sample_linear.py           draw and write
  python tools/sample_linear.py --check   draw and compare with the committed file

Rows: GB300, both engines, BF16, FP8 and NVFP4. At 8,192 tokens: square layers, and the up- and down-projection of
H = 4096 and 7168 for every measured H′. At 1 to 16,384 tokens (powers of two): measured layers of real models.
"""

from __future__ import annotations

import sys
from pathlib import Path

import measured
import pandas as pd

OUT = Path(__file__).resolve().parent.parent / "codesign_lib" / "data" / "linear_gb300.csv"
CHIP = "gb300"
FORMATS = ("bf16", "fp8", "nvfp4")
SQUARES = (512, 1024, 2048, 4096, 8192, 16384)
HIDDEN = (4096, 7168)
WIDTH_MAX = 16384
# (k, n): Llama-3.1-405B attention out; DeepSeek-R1 attention out, shared expert gate+up, shared expert down
REAL = ((16384, 16384), (16384, 7168), (7168, 4096), (2048, 7168))
TOKENS = tuple(2**i for i in range(15))


def draw() -> str:
    parts = []
    for engine in measured.ENGINES:
        table = measured.gemm(CHIP, engine)
        table = table[table.fmt.isin(FORMATS)]
        square = (table.m == 8192) & (table.n == table.k) & table.n.isin(SQUARES)
        width = table[["n", "k"]].min(axis=1).between(128, WIDTH_MAX) & table[["n", "k"]].max(axis=1).le(WIDTH_MAX)
        pair = (table.m == 8192) & (table.n.isin(HIDDEN) | table.k.isin(HIDDEN)) & width
        real = table.m.isin(TOKENS) & pd.Series(zip(table.k, table.n, strict=True), index=table.index).isin(REAL)
        parts.append(table[square | pair | real].assign(engine=engine))
    rows = pd.concat(parts)[["engine", "fmt", "m", "n", "k", "latency_s"]]
    versions = ", ".join(f"{e} {measured.engine_version(CHIP, e)}" for e in measured.ENGINES)
    head = [
        "# title: measured linear layers on GB300; whole module: includes quantising BF16 activations; output BF16",
        f"# source: {measured.PACKAGE}, systems/data/{CHIP}/gemm (NVIDIA, github.com/ai-dynamo/aiconfigurator)",
        f"# version: {measured.package_version()}; engines {versions}",
        "# date: 2026-11-30",
        f"# licence: {measured.LICENCE}",
        "# drawn_by: tools/sample_linear.py",
    ]
    return "\n".join(head) + "\n" + rows.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def main(argv: list[str]) -> int:
    text = draw()
    if "--check" not in argv:
        OUT.write_text(text, encoding="utf-8")
        print(f"wrote {OUT.name}: {text.count(chr(10)) - 7} rows")
        return 0
    same = OUT.read_text(encoding="utf-8") == text
    print(f"{OUT.name}: {'as drawn' if same else 'differs from what tools/sample_linear.py draws'}")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
