"""One block of a sweep: many layouts × batches in one format mix and mode, priced together, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codesign_lib.cost.tiling import whole
from codesign_lib.serving import end_to_end, memory, pools, prefill
from codesign_lib.serving.end_to_end import Served
from codesign_lib.serving.layout import AXES, Layout, Workload
from codesign_lib.serving.points import PARTS, Points
from codesign_lib.specs.formats import Precision
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.models import Model

MOST_STEP_TOKENS = 8192
"""Prompt tokens of a step, for the memory of its activations."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """What a worker is sent; ``pool`` reads the prompts where ``mode`` is disaggregated, else None."""

    model: Model
    chip: Chip
    workload: Workload
    name: str
    precision: Precision
    mode: str
    layout: Layout
    pool: pools.PrefillPool | None
    engine: str
    routing: str
    n_draft: int
    acceptance: float
    draft_s: float

    @property
    def how(self) -> dict:
        kernels = end_to_end.KERNELS_OF.get(self.engine, self.engine)
        return dict(precision=self.precision, engine=kernels, routing=self.routing)


def points_of(block: Block) -> Points:
    """Every point of a block that fits and keeps the workload's limits; ``n_tried`` counts all."""
    load, layout = block.workload, block.layout[:, None]
    (batch,) = whole("sweep", n_concurrent=np.ravel(load.n_concurrent))
    n_in, n_out = int(load.n_input), int(load.n_output)
    held = memory.memory(
        block.model, block.chip, layout=layout, batch=batch, n_context=n_in + n_out, precision=block.precision,
        n_step_tokens=np.ceil(batch / layout.dp) + min(n_in, MOST_STEP_TOKENS),
    )  # fmt: skip
    step = end_to_end.serving_step_s(
        block.model, block.chip, layout=layout, batch=batch, n_context=int(np.ceil(n_in + n_out / 2)),
        n_draft=block.n_draft, precision=block.precision, engine=block.engine, routing=block.routing,
    )  # fmt: skip
    prompt = 0.0
    if block.mode == "aggregated":
        prompt = prefill.layer_costs(block.model, block.chip, n_new=n_in, layout=layout, **block.how).total_s
    served = end_to_end.served(
        step, batch=batch, n_output=n_out, layout=layout, prompt_s=prompt, n_draft=block.n_draft,
        acceptance=block.acceptance, draft_s=block.draft_s,
    )  # fmt: skip
    ttft, throughput, reading = _split(block, batch, served)
    ok = held.fits & (ttft <= _limit(load.ttft_limit_s)) & (served.tpot_s <= _limit(load.tpot_limit_s))
    row, column = np.nonzero(ok)
    shown = {
        "precision": np.full(row.size, block.name),
        "mode": np.full(row.size, block.mode),
        "n_draft": np.full(row.size, block.n_draft),
        **{axis: np.broadcast_to(getattr(block.layout, axis), block.layout.shape)[row] for axis in AXES},
        "n_gpus": np.asarray(block.layout.n_gpus)[row],
        "batch": batch.astype(np.int64)[column],
    }
    numbers = {
        "tpot_s": served.tpot_s,
        "ttft_s": ttft,
        "interactivity_per_s": served.interactivity_per_s,
        "throughput_per_s": throughput,
        **{f"{part}_s": step.parts_s[part] for part in PARTS},
        "held_up_s": served.held_up_s,
        "free_bytes": held.free_bytes,
    }
    shown |= {name: np.broadcast_to(x, ok.shape)[ok] for name, x in numbers.items()}
    shown |= {name: np.full(row.size, x) if np.ndim(x) == 0 else x[ok] for name, x in reading.items()}
    return Points(columns=shown, n_tried=ok.size)


def _limit(limit_s: float | None) -> float:
    return np.inf if limit_s is None else float(limit_s)


def _split(block: Block, batch: NDArray, served: Served) -> tuple[NDArray, NDArray, dict]:
    """Time to first token, output tokens a second and GPU, and what the reading GPUs are."""
    n_out, n_gpus = float(block.workload.n_output), np.asarray(block.layout.n_gpus, np.float64)[:, None]
    names = [f"prefill_{x}" for x in ("tp_attention", "dp", "ep", "pp", "n_chunks")]
    if block.pool is None:  # prompts come between steps, or from nowhere
        return served.ttft_s, served.request_per_s * n_out / n_gpus, {"prefill_fraction": 0.0} | dict.fromkeys(names, 0)
    pool = block.pool
    # the transfer and the first step come on top of the prompt: the slowest of them is taken off the limit
    load, sizes = block.workload, np.asarray(pool.layout.n_gpus, np.float64)
    sent = pools.transfer_s(
        block.model, block.chip, n_input=int(load.n_input), precision=block.precision, n_from=sizes.min(), n_to=n_gpus
    )
    at = pool.best(None if load.ttft_limit_s is None else float(load.ttft_limit_s) - float(np.min(sent)))
    if at < 0:
        nothing = np.full(served.tpot_s.shape, np.inf)
        return nothing, -nothing, {"prefill_fraction": 0.0} | dict.fromkeys(names, 0)
    n_from = float(pool.layout.n_gpus[at])
    sent = pools.transfer_s(
        block.model, block.chip, n_input=int(load.n_input), precision=block.precision, n_from=n_from, n_to=n_gpus
    )
    # a sequence decodes for N − 1 tokens; its place is taken up again at once
    rate = batch / (n_out * served.tpot_s)
    more = pools.prefill_gpus(rate / n_gpus, pool.prompts_per_s[at])
    ttft = pool.ttft_s[at] + sent + served.step.step_s
    reading = {"prefill_fraction": more / (1 + more)}
    axes = (pool.layout.tp_attention[at], pool.layout.dp[at], pool.layout.ep[at], pool.layout.pp[at], pool.n_chunks[at])
    return ttft, rate * n_out / (n_gpus * (1 + more)), reading | dict(zip(names, map(int, axes), strict=True))
