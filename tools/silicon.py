"""NVIDIA's sample of end-to-end measurements, read from the wheel aiconfigurator-core and put right where it is known wrong.

Its rows come from several dumps, mostly of the public InferenceX runs. Known faults: in one dump the parallel sizes of
wide expert parallelism are multiplied with each other (the row's id has them right), rows appear twice under two
dumps, "gb200 agg" rows with 12 to 72 GPUs are disaggregated runs, gb200 Qwen3-32B rows are mislabelled. Whether
multi-token prediction was on is not said.
"""  # noqa: E501

from __future__ import annotations

import re

import measured
import numpy as np
import pandas as pd

DENSE = {"meta-llama/Llama-3.1-70B": "llama_3_1_70b", "Qwen/Qwen3-32B": "qwen3_32b",
         "meta-llama/Llama-3.1-8B-Instruct": "llama_3_1_8b"}  # fmt: skip
MOE = {"deepseek-ai/DeepSeek-R1": "deepseek_r1", "nvidia/DeepSeek-R1-NVFP4": "deepseek_r1",
       "deepseek-ai/DeepSeek-V3": "deepseek_r1", "openai/gpt-oss-120b": "gpt_oss_120b",
       "Qwen/Qwen3-235B-A22B-FP8": "qwen3_235b_a22b", "MiniMaxAI/MiniMax-M2.5": "minimax_m2_5",
       "Qwen/Qwen3.5-397B-A17B": "qwen3_5_397b_a17b", "moonshotai/Kimi-K2.5": "kimi_k2_5",
       "zhipuai/GLM-5": "glm_5"}  # fmt: skip
FORMATS = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}


def rows() -> pd.DataFrame:
    """Every row of a model the library knows: names of the library, seconds, layout as in the row's id.

    Columns: model, chip, engine, engine_version, mode, fmt (of the linear layers, bf16 where none is stated), stated,
    n_input, n_output, n_concurrent, tp_attention, dp, pp, tp_ffn, ep, n_gpus, ttft_s, tpot_s, id.
    """
    t = pd.read_csv(measured.systems() / "silicon_sample.csv", low_memory=False)
    t["model"] = t.model_path.map(DENSE | MOE)
    t = t[t.model.notna()]
    stated = t.gemm_quant_mode.notna()
    name = t.id.str.extract(r"_c(\d+)_(?:tp|cfg)?")[0].astype(float)
    sizes = t.id.str.extract(r"_tp(\d+)(?:_\d+)?_ep(\d+)").astype(float)
    dp = t.attention_dp_size.fillna(1).clip(lower=1)
    n_gpus = sizes[0].fillna(t.tp_size * t.pp_size.fillna(1) * dp)
    ep = sizes[1].fillna(t.moe_ep_size).fillna(1).clip(lower=1)
    pp = t.pp_size.fillna(1).clip(lower=1)
    by_data = dp > 1
    out = pd.DataFrame({
        "model": t.model, "chip": t.system, "engine": t.backend, "engine_version": t.backend_version.fillna(""),
        "mode": t["mode"], "fmt": _format(t), "stated": stated,
        "n_input": t.isl, "n_output": t.osl, "n_concurrent": name.fillna(t.batch_size * dp),
        "tp_attention": np.where(by_data, 1, n_gpus / pp), "dp": np.where(by_data, n_gpus / pp, 1), "pp": pp,
        "tp_ffn": np.maximum(n_gpus / pp / ep, 1), "ep": ep, "n_gpus": n_gpus,
        "ttft_s": t.silicon_ttft_ms * 1e-3, "tpot_s": t.silicon_tpot_ms * 1e-3, "id": t.id,
    })  # fmt: skip
    split = t["mode"] == "disagg"
    for phase in ("prefill", "decode"):
        gpus = t[f"{phase}_num_workers"]
        for size in ("tp_size", "pp_size", "attention_dp_size"):
            gpus = gpus * t[f"{phase}_{size}"].fillna(1).clip(lower=1)
        out[f"n_{phase}_gpus"] = gpus.where(split)
    out.loc[split, "n_gpus"] = (out.n_prefill_gpus + out.n_decode_gpus)[split]
    return out


def _format(t: pd.DataFrame) -> pd.Series:
    """Of the linear layers; gpt-oss ships its experts in MXFP4 whatever the row calls its four bits."""
    fmt = t.gemm_quant_mode.map(FORMATS).fillna("bf16")
    return fmt.mask(t.model.eq("gpt_oss_120b") & t.precision.eq("fp4"), "mxfp4")


def dense() -> pd.DataFrame:
    """The 1,021 aggregated rows of three dense models: what decode TPOT is validated on. A batch is the concurrency."""
    t = pd.read_csv(measured.systems() / "silicon_sample.csv", low_memory=False)
    batch = t.batch_size.rename("n_batch")
    keep = (
        t.model_path.isin(DENSE) & (t["mode"] == "agg") & ~((t.system == "gb200") & (t.model_path == "Qwen/Qwen3-32B"))
    )
    found = rows()
    found["n_batch"], found["tp"] = batch, t.tp_size
    return found.loc[found.index.intersection(t.index[keep])]


def moe() -> pd.DataFrame:
    """Aggregated rows of mixtures of experts, each measurement once, mislabelled ones left out."""
    t = rows()
    t = t[t.model.isin(set(MOE.values())) & (t["mode"] == "agg")]
    t = t[~(t.chip.str.endswith("_sxm") & (t.n_gpus > 8)) & ~((t.chip == "gb200") & (t.n_gpus >= 12))]
    return t.sort_values(["id"]).drop_duplicates(["model", "chip", "engine", "n_input", "n_output", "ttft_s", "tpot_s"])


def throughput(t: pd.DataFrame) -> pd.Series:
    """Output tokens a second and GPU, derived: concurrency × output / (TTFT + output × TPOT) / GPUs."""
    return t.n_concurrent * t.n_output / (t.ttft_s + t.n_output * t.tpot_s) / t.n_gpus


def at_mean_lengths(t: pd.DataFrame) -> pd.DataFrame:
    """Rows of InferenceX with the lengths that its client draws on average, evenly from 80 to 100 % of those stated
    (RANDOM_RANGE_RATIO of .github/workflows/benchmark-tmpl.yml); what other dumps drew is not told."""
    drawn = t.id.map(stage).ne("other")
    share = np.where(drawn, 0.9, 1.0)
    return t.assign(n_input=np.round(t.n_input * share), n_output=np.round(t.n_output * share))


def stage(name: str) -> str:
    """The dump a row is of: the beginning of its id."""
    found = re.match(r"\d{4}_\d{2}_\d{2}", name)
    return found.group().replace("_", "-") if found else "other"
