"""One block of a sweep: many layouts × batches in one format mix and mode, priced together, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    load, batch = block.workload, _batch(block)
    held, served = _held(block, batch), _served(block, batch)
    step, (ttft, throughput, reading) = served.step, _split(block, served)
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


def nearest(block: Block) -> dict[str, float]:
    """Where no point is left: the least TPOT of those that fit and keep the limit on TTFT, and the other way round.

    Infinite where the other limit, or memory, leaves nothing.
    """
    load, batch = block.workload, _batch(block)
    held, served = _held(block, batch), _served(block, batch)
    soonest = served.ttft_s
    if block.pool is not None:
        first = [block.pool.ttft_s[block.pool.layout.n_gpus == n].min() for n in block.pool.sizes]
        soonest = served.step.step_s + np.min(np.reshape(first, (-1, 1, 1)) + _sent(block), axis=0)
    ok = {"tpot_s": soonest <= _limit(load.ttft_limit_s), "ttft_s": served.tpot_s <= _limit(load.tpot_limit_s)}
    times = {"tpot_s": served.tpot_s, "ttft_s": soonest}
    return {name: float(np.min(times[name], where=held.fits & ok[name], initial=np.inf)) for name in ok}


def step_tokens(n_sequences: ArrayLike, n_input: int) -> NDArray[np.float64]:
    """Tokens of a replica's step, for the memory of its activations: one a sequence, and a chunk of a prompt."""
    return np.ceil(n_sequences) + min(n_input, MOST_STEP_TOKENS)


def _batch(block: Block) -> NDArray[np.float64]:
    return whole("sweep", n_concurrent=np.ravel(block.workload.n_concurrent))[0]


def _held(block: Block, batch: NDArray) -> memory.Memory:
    layout, n_in = block.layout[:, None], int(block.workload.n_input)
    return memory.memory(
        block.model, block.chip, layout=layout, batch=batch, n_context=n_in + int(block.workload.n_output),
        precision=block.precision, n_step_tokens=step_tokens(batch / layout.dp, n_in),
    )  # fmt: skip


def _served(block: Block, batch: NDArray) -> Served:
    layout, n_in, n_out = block.layout[:, None], int(block.workload.n_input), int(block.workload.n_output)
    step = end_to_end.serving_step_s(
        block.model, block.chip, layout=layout, batch=batch, n_context=int(np.ceil(n_in + n_out / 2)),
        n_draft=block.n_draft, precision=block.precision, engine=block.engine, routing=block.routing,
    )  # fmt: skip
    prompt = 0.0
    if block.mode == "aggregated":
        prompt = prefill.layer_costs(block.model, block.chip, n_new=n_in, layout=layout, **block.how).total_s
    return end_to_end.served(
        step, batch=batch, n_output=n_out, layout=layout, prompt_s=prompt, n_draft=block.n_draft,
        acceptance=block.acceptance, draft_s=block.draft_s,
    )  # fmt: skip


def _limit(limit_s: float | None) -> float:
    return np.inf if limit_s is None else float(limit_s)


def _sent(block: Block) -> NDArray[np.float64]:
    """Seconds of moving a request's cache, [size of what reads, decoding layout, 1]."""
    n_to = np.asarray(block.layout.n_gpus, np.float64)[:, None]
    return pools.transfer_s(
        block.model, block.chip, n_input=int(block.workload.n_input), precision=block.precision,
        n_from=block.pool.sizes[:, None, None], n_to=n_to,
    )  # fmt: skip


def _split(block: Block, served: Served) -> tuple[NDArray, NDArray, dict]:
    """Time to first token, output tokens a second and GPU, and what the reading GPUs are."""
    n_out, n_gpus = float(block.workload.n_output), np.asarray(block.layout.n_gpus, np.float64)[:, None]
    names = [f"prefill_{x}" for x in ("tp_attention", "dp", "ep", "pp", "n_chunks")]
    decoded = served.request_per_s * n_out / n_gpus
    if block.pool is None:  # prompts come between steps, or from nowhere
        return served.ttft_s, decoded, {"prefill_fraction": 0.0} | dict.fromkeys(names, 0)
    pool, sent, limit_s = block.pool, _sent(block), block.workload.ttft_limit_s
    # the transfer and the first step come on top of reading, another time for every point
    at = pool.best(None if limit_s is None else limit_s - (sent + served.step.step_s))
    at = np.broadcast_to(at, served.tpot_s.shape)
    size = np.searchsorted(pool.sizes, np.asarray(pool.layout.n_gpus)[at])
    more = pools.prefill_gpus(served.request_per_s / n_gpus, pool.prompts_per_s[at])
    ttft = pool.ttft_s[at] + sent[size, np.arange(len(at))[:, None], 0] + served.step.step_s
    columns = (pool.layout.tp_attention, pool.layout.dp, pool.layout.ep, pool.layout.pp, pool.n_chunks)
    reading = {"prefill_fraction": more / (1 + more)}
    reading |= {name: np.asarray(column)[at] for name, column in zip(names, columns, strict=True)}
    return np.where(at < 0, np.inf, ttft), decoded / (1 + more), reading
