"""Draw the end-to-end measurements that studies and tests need without the wheel.

python tools/sample_serving.py           draw and write data/{serving_sample,llama_70b_tpot,frontier_points}.csv
python tools/sample_serving.py --check   draw and compare with the committed files
"""

from __future__ import annotations

import sys

import fitting
import measured
import numpy as np
import pandas as pd
import silicon

SEED = 20261130
N_STRATUM = 4
HOW = ["model", "chip", "engine", "fmt"]
TPOT = [*HOW, "stated", "n_input", "n_output", "n_batch", "tp", "tpot_s"]
POINTS = [*HOW, "mode", "n_input", "n_output", "n_concurrent", "tp_attention", "dp", "tp_ffn", "ep", "n_gpus",
          "n_prefill_gpus", "interactivity_per_s", "throughput_per_s"]  # fmt: skip


def serving_sample() -> pd.DataFrame:
    """Time per output token of dense models, aggregated serving: rows of every model, chip, engine, format and TP.
    stated: whether the row says its format; the others are taken as BF16."""
    shuffled = silicon.dense().sample(frac=1, random_state=SEED)
    drawn = shuffled.groupby([*HOW, "tp"]).head(N_STRATUM)
    return drawn.assign(stated=drawn.stated.astype(int))[TPOT]


def llama_70b_tpot() -> pd.DataFrame:
    """Times of Llama-3.1-70B, TensorRT-LLM: every concurrency, TP and pair of lengths. Lengths are drawn evenly from 80
    to 100 % of those stated. With 1,024 in and out the runs below TP 8 gather prompts for up to 20 steps
    (batch_wait_max_tokens_ratio and batch_wait_timeout_iters in benchmarks/70b_*_trt_slurm.sh of InferenceX), which
    their first tokens show; the runs with TP 8 and those of other lengths do not."""
    t = silicon.dense()
    t = t[(t.model == "llama_3_1_70b") & (t.engine == "trtllm")]
    return t.assign(stated=1)[[*TPOT, "ttft_s"]]


def frontier_points() -> pd.DataFrame:
    """Interactivity (1/TPOT) and output tokens a second and GPU of served models, the rows that no other of the same
    chip, format and lengths beats. Throughput is derived: concurrency × output / (TTFT + output × TPOT) / GPUs. Whether
    multi-token prediction was on is not said; TTFT includes queueing. Split runs: GPUs of prefill and decode together,
    and no layout where it is not told."""
    t = silicon.rows()
    t = t[t.model.isin(["deepseek_r1", "gpt_oss_120b", "llama_3_1_70b"]) & t.n_gpus.notna()]
    one_box = t.chip.str.endswith("_sxm") & (t.n_gpus > 8)
    t = t[(t["mode"] == "disagg") | ~(one_box | ((t.chip == "gb200") & (t.n_gpus >= 12)))]
    t = t.assign(interactivity_per_s=1 / t.tpot_s, throughput_per_s=silicon.throughput(t))
    t = t.drop_duplicates([*HOW[:-1], "n_input", "n_output", "ttft_s", "tpot_s"])
    groups = ["model", "chip", "fmt", "mode", "n_input", "n_output"]
    t = pd.concat(beaten_by_none(g) for _, g in t.groupby(groups))
    split = t["mode"] == "disagg"
    t.loc[split, ["tp_attention", "dp", "tp_ffn", "ep"]] = 0
    return t.assign(n_prefill_gpus=t.n_prefill_gpus.fillna(0))[POINTS]


def beaten_by_none(t: pd.DataFrame) -> pd.DataFrame:
    t = t.sort_values(["interactivity_per_s", "throughput_per_s"], ascending=False)
    best_before = np.concatenate([[-np.inf], np.maximum.accumulate(t.throughput_per_s)[:-1]])
    return t[t.throughput_per_s > best_before]


def text(rows: pd.DataFrame, draw) -> str:
    head = [
        f"# title: measured serving. {' '.join(draw.__doc__.split())}",
        f"# source: {measured.PACKAGE}, systems/silicon_sample.csv (NVIDIA, github.com/ai-dynamo/aiconfigurator; "
        "mostly public InferenceX runs)",
        f"# version: {measured.package_version()}",
        f"# date: {fitting.DATE}",
        f"# licence: {measured.LICENCE}",
        "# drawn_by: tools/sample_serving.py",
    ]
    whole = [c for c in rows if c.startswith("n_") or c in ("tp", "tp_attention", "dp", "tp_ffn", "ep", "stated")]
    rows = rows.astype(dict.fromkeys(whole, int)).sort_values(list(rows.columns))
    return "\n".join(head) + "\n" + rows.to_csv(index=False, float_format="%.5g", lineterminator="\n")


def main(argv: list[str]) -> int:
    return fitting.draw((serving_sample, llama_70b_tpot, frontier_points), text, tool="sample_serving", argv=argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
