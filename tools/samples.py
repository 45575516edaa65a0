"""Draw the measured kernels, other than linear layers, that studies and tests need without the wheel.

python tools/samples.py           draw and write data/{attention,latent,moe,…}_sample.csv
python tools/samples.py --check   draw and compare with the committed files
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import calibrate_attention
import calibrate_moe
import fitting
import measured
import pandas as pd

SEED = 20261130
N_STRATUM = 6
CONTEXTS = (8192, 16_384, 131_072)


def attention_sample() -> pd.DataFrame:
    """Decoding and prefill, head size 128: rows of every chip, engine and format, half from held-out shapes."""
    parts = []
    for chip, engine in pairs():
        for phase in ("decode", "prefill"):
            t = getattr(calibrate_attention, f"{phase}_rows")(chip, engine)
            t = t[t.n_tokens >= calibrate_attention.LEAST_TOKENS]
            drawn = t.groupby(["kv_fmt", "held_out"]).sample(N_STRATUM, random_state=SEED)
            parts.append(drawn.assign(chip=chip, engine=engine, phase=phase))
    names = ["chip", "engine", "phase", "fmt", "kv_fmt", "n_batch", "n_tokens", "n_heads", "n_kv_heads", "d_head"]
    return pd.concat(parts)[[*names, "latency_s"]]


def attention_heads() -> pd.DataFrame:
    """GB300 and H200, TensorRT-LLM, decoding batch 8 of 32,768 tokens: all heads and head sizes, no window."""
    parts = []
    for chip in ("gb300", "h200_sxm"):
        t = measured.attention(chip, "trtllm", "decode")
        t = t[(t.n_batch == 8) & (t.n_tokens == 32_768) & (t.window_tokens == 0)]
        parts.append(t.assign(chip=chip, engine="trtllm"))
    names = ["chip", "engine", "kv_fmt", "n_batch", "n_tokens", "n_heads", "n_kv_heads", "d_head"]
    return pd.concat(parts)[[*names, "latency_s"]]


def prefill_lengths() -> pd.DataFrame:
    """B200, GB200 and GB300, TensorRT-LLM, prefill of one prompt, 64 heads on 8 and 64: all lengths and head sizes."""
    parts = []
    for chip in ("b200_sxm", "gb200", "gb300"):
        t = measured.attention(chip, "trtllm", "prefill")
        t = t[(t.n_batch == 1) & (t.n_heads == 64) & t.n_kv_heads.isin([8, 64]) & (t.window_tokens == 0)]
        parts.append(t[t.fmt == t.kv_fmt].assign(chip=chip, engine="trtllm"))
    names = ["chip", "engine", "fmt", "n_batch", "n_tokens", "n_heads", "n_kv_heads", "d_head"]
    return pd.concat(parts)[[*names, "latency_s"]]


def latent_heads() -> pd.DataFrame:
    """Latent decoding on GB300 and H200, batch 8 and 64, three contexts: the whole row of heads a GPU."""
    parts = []
    for chip in ("gb300", "h200_sxm"):
        for engine in measured.ENGINES:
            t = measured.latent(chip, engine, "decode")
            t = t[t.n_batch.isin([8, 64]) & t.n_tokens.isin(CONTEXTS)]
            parts.append(t.assign(chip=chip, engine=engine))
    names = ["chip", "engine", "kv_fmt", "n_batch", "n_tokens", "n_heads"]
    return pd.concat(parts)[[*names, "latency_s"]]


MOE_NAMES = ["chip", "engine", "gated", "fmt", "routing", "n_tokens", *calibrate_moe.LAYER]


def moe_sample() -> pd.DataFrame:
    """Experts: rows of every chip, engine and format, balanced and skewed by 1.2, half from held-out layers."""
    parts = []
    for routing in ("balanced", "power_law_1.2"):
        for t in calibrate_moe.tables(routing):
            drawn = t.rows.groupby("held_out").sample(5, random_state=SEED)
            parts.append(drawn.assign(chip=t.chip, engine=t.engine, gated=t.gated))
    return pd.concat(parts)[[*MOE_NAMES, "latency_s"]]


def moe_ranks() -> pd.DataFrame:
    """GB300, TensorRT-LLM, NVFP4 and FP8 block: DeepSeek-R1's experts, all EP and TP and numbers of tokens; and the
    latent pair of 512 experts, with EP alone. Balanced, and EP skewed by 1.2."""
    t = measured.moe("gb300", "trtllm")
    t = t[t.kernel.isin(["moe_torch_flow_cutlass", "deepgemm", "moe_torch_flow_nongated"])]
    r1 = (t.d_model == 7168) & (t.d_expert == 2048) & (t.n_experts == 256) & t.fmt.isin(["nvfp4", "fp8_block"])
    latent = (t.n_experts == 512) & (t.n_chosen == 22) & (t.fmt == "nvfp4") & (t.tp == 1) & (t.d_expert == 2688)
    balanced = (t.routing == "balanced") & ((t.fmt == "nvfp4") | (t.tp == 1))
    t = t[(r1 | latent) & (balanced | ((t.routing == "power_law_1.2") & (t.tp == 1) & (t.fmt == "nvfp4")))]
    t = t[t.n_tokens.isin([1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192, 16_384])]
    return t.assign(chip="gb300", engine="trtllm")[[*MOE_NAMES, "latency_s"]]


DRAWN: tuple[Callable[[], pd.DataFrame], ...] = (attention_sample, attention_heads, prefill_lengths, latent_heads)
DRAWN += (moe_sample, moe_ranks)


def pairs() -> Iterator[tuple[str, str]]:
    for chip in measured.CHIPS:
        for engine in measured.ENGINES:
            yield chip, engine


def text(rows: pd.DataFrame, draw: Callable) -> str:
    engines = ", ".join(f"{e} {measured.VERSIONS[e]}" for e in measured.ENGINES)
    head = [
        f"# title: measured kernels. {' '.join(draw.__doc__.split())}",
        f"# source: {measured.PACKAGE}, systems/data (NVIDIA, github.com/ai-dynamo/aiconfigurator)",
        f"# version: {measured.package_version()}; engines {engines}",
        f"# date: {fitting.DATE}",
        f"# licence: {measured.LICENCE}",
        "# drawn_by: tools/samples.py",
    ]
    rows = rows.sort_values(list(rows.columns[:-1]))
    return "\n".join(head) + "\n" + rows.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def main(argv: list[str]) -> int:
    return fitting.draw(DRAWN, text, tool="samples", argv=argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
