r"""Many layouts and batches at once: which points no other beats in interactivity and throughput.

For every number of GPUs, valid layout, batch, format mix and draft length: does it fit, how long does a token take,
how many tokens does a GPU give. **Aggregated**: prompts between decode steps
(:py:mod:`codesign_lib.serving.end_to_end`), layouts without kvp. **Disaggregated**
(:py:mod:`codesign_lib.serving.pools`): decoding alone, in any layout, and as many GPUs reading prompts as keep up:

.. math:: \frac{\text{tokens/s}}{\text{GPU}} = \frac{N\,X}{n_d\,(1 + \text{GPUs that read / GPUs that decode})}

with X requests a second of N output tokens. **Decode**: prompts cost nothing (cached, or counted elsewhere). A point
fits when every sequence can grow to input + output tokens; points beyond the workload's limits are none.

Kernels of another engine than the one that serves, routing, queueing and everything that the modules below leave out
are left out here too. Ratios between points are safer than points.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import calibration
from codesign_lib.serving import end_to_end, feasible, pools
from codesign_lib.serving.block import Block, points_of
from codesign_lib.serving.layout import Workload, layouts
from codesign_lib.serving.points import Points, joined
from codesign_lib.specs.formats import Precision, as_precision
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model
from codesign_lib.specs.quantities import as_floats, positive

BLOCK_POINTS = 65_536
"""Points that are held at a time; what is kept of them is small."""
MODES = ("aggregated", "disaggregated", "decode")
GROUPS = ("precision", "mode", "n_draft")
"""Columns whose every combination keeps a frontier of its own."""


def pareto(x: ArrayLike, y: ArrayLike) -> NDArray[np.int64]:
    """Indices of the points that no other beats, more of both being better, in the order of growing ``x``.

    A point is beaten by one that is at least as good in both and better in one; of equal points the first stays. Exact:
    one sort and one running maximum. −∞ marks what does not count and is never kept. Raises ValueError for arrays that
    are not of one equal length, and for NaN.

    >>> pareto([1, 2, 3, 2], [5, 4, 1, 3]).tolist()
    [0, 1, 2]
    """
    x, y = as_floats("pareto", x=x, y=y)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"pareto: x of shape {x.shape} and y of shape {y.shape}; allowed: one axis, of equal length")
    order = np.lexsort((-y, -x))  # best x first, of equal ones the best y; a stable sort
    before = np.concatenate([[-np.inf], np.maximum.accumulate(y[order])[:-1]]) if x.size else y
    kept = order[(y[order] > before) & (x[order] > -np.inf)]
    return kept[::-1]


def frontier(points: Points) -> Points:
    """The points that no other beats in interactivity and throughput, slowest first."""
    return points[pareto(points["interactivity_per_s"], points["throughput_per_s"])]


def area(points: Points, *, slowest_per_s: float, fastest_per_s: float) -> float:
    """Area under the frontier between two interactivities: what a product of both is worth, tokens²/s² a user and GPU.

    Under the staircase: at each interactivity the best throughput of a point at least as fast, 0 beyond the fastest.

    >>> p = Points(columns={"interactivity_per_s": [10.0, 40.0], "throughput_per_s": [400.0, 100.0]}, n_tried=2)
    >>> area(p, slowest_per_s=5, fastest_per_s=50)
    5000.0
    """
    low, high = (float(x) for x in positive("area", slowest_per_s=slowest_per_s, fastest_per_s=fastest_per_s))
    if low >= high:
        raise ValueError(f"area: slowest_per_s is {low:g}, fastest_per_s {high:g}; allowed: slowest below fastest")
    kept = frontier(points)
    edges = np.clip(np.concatenate([[low], kept["interactivity_per_s"]]), low, high)
    return float(np.sum(np.diff(edges) * kept["throughput_per_s"]))


def best(points: Points, *, under: Workload) -> int:
    """Index of the point with the highest throughput within the limits of ``under``.

    A frontier that was reduced keeps the best point for any limit on TPOT. A limit on TTFT has to be given to the
    sweep, which chooses by it who reads the prompts of a disaggregated point (aggregated ones may also be kept with
    ``keep="all"``), else ValueError. So is a limit that nothing meets, with what comes nearest.

    >>> p = Points(columns={"tpot_s": [.01, .02], "ttft_s": [1., 1.], "throughput_per_s": [5., 9.]}, n_tried=2)
    >>> best(p, under=Workload(n_input=1, n_output=1, n_concurrent=1, tpot_limit_s=0.015))
    0
    """
    if not len(points):
        raise ValueError("best: there are no points; allowed: at least one")
    late = points["ttft_s"] > (np.inf if under.ttft_limit_s is None else under.ttft_limit_s)
    if late.any() and (points.kept != "all" or "disaggregated" in points.columns.get("mode", late)[late].tolist()):
        raise ValueError(
            "best: these points were reduced, or their reading layouts chosen, without this limit on TTFT; "
            "allowed: give it to sweep"
        )
    ok = np.ones(len(points), bool)
    for name, limit in (("tpot_s", under.tpot_limit_s), ("ttft_s", under.ttft_limit_s)):
        ok &= points[name] <= (np.inf if limit is None else limit)
    if not ok.any():
        nearest = ", ".join(f"least {name} {1e3 * points[name].min():.3g} ms" for name in ("tpot_s", "ttft_s"))
        raise ValueError(f"best: no point keeps the limits; allowed: slower ones ({nearest})")
    return int(np.argmax(np.where(ok, points["throughput_per_s"], -np.inf)))


def sweep(
    model: Model | str,
    chip: Chip | str,
    *,
    n_chips: ArrayLike,
    workload: Workload,
    precisions: Precision | Mapping[str, Precision],
    modes: Sequence[str] = ("aggregated",),
    engine: str = "trtllm",
    routing: str = "balanced",
    n_draft: int | Sequence[int] = 0,
    acceptance: float = 0.0,
    draft_s: float = 0.0,
    keep: str = "frontier",
    progress: bool = False,
    executor: Executor | None = None,
) -> Points:
    """Every valid layout × batch × format mix × draft length on instances of ``n_chips`` GPUs, as
    :py:class:`codesign_lib.serving.points.Points`.

    ``workload.n_concurrent`` are the batches; its lengths are single numbers. ``precisions`` by name. ``keep``: the
    ``frontier`` of every format mix, mode and draft length (so each can be compared with each), or ``all`` points that
    fit. Another size or batch never makes a frontier worse, but that of disaggregated points by up to 1 %: of readers
    that are as good the smallest is taken (:py:mod:`codesign_lib.serving.pools`).
    Work is done in blocks of ``BLOCK_POINTS``, reduced at once, so memory stays bounded; ``executor``, any of
    ``concurrent.futures``, takes the blocks, and a block whose worker died is computed here, whatever the executor
    calls it. ``progress`` shows a bar where tqdm is installed. An interruption returns what was done, with
    ``complete=False``.

    Raises ValueError where nothing fits or nothing keeps the limits, with the nearest choice that would, and as the
    modules below do.

    >>> fp4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8")
    >>> load = Workload(n_input=1024, n_output=1024, n_concurrent=2 ** np.arange(9))
    >>> found = sweep("llama_3_1_70b", "gb300", n_chips=[1, 2, 4], workload=load, precisions=fp4)
    >>> found.n_tried, bool((np.diff(found["interactivity_per_s"]) > 0).all())
    (90, True)
    """
    of, c, mixes = as_model(model), as_chip(chip), _by_name(precisions)
    _calibrated(c, engine)
    _check(workload, modes, keep, executor, n_draft=n_draft, acceptance=acceptance, draft_s=draft_s)
    how = dict(model=of, chip=c, workload=workload, engine=engine, routing=routing, acceptance=acceptance,
               draft_s=draft_s)  # fmt: skip
    tasks = [t for name, mix in mixes.items() for t in _tasks(how, n_chips, name, mix, modes, np.atleast_1d(n_draft))]
    done, complete = {}, True
    try:
        for i, points in _shown(_run(partial(_work, keep=keep), tasks, executor), len(tasks), progress):
            done[i] = points
    except KeyboardInterrupt:
        if not done:
            raise
        complete = False
    found = _reduced(joined([done[i] for i in sorted(done)], complete=complete), keep) if done else ()
    if not len(found) and complete:
        asked = dict(n_chips=n_chips, workload=workload, precisions=mixes, modes=modes, tasks=tasks)
        raise ValueError(feasible.reason(of, c, **asked))
    return found


def _by_name(precisions: Precision | Mapping[str, Precision]) -> dict[str, Precision]:
    if isinstance(precisions, Precision):
        return {f"{precisions.weights.name}, KV {precisions.kv.name}": precisions}
    if not isinstance(precisions, Mapping) or not precisions:
        raise ValueError(f"sweep: precisions is {precisions!r:.60}; allowed: a Precision, or several in a dict by name")
    if not all(isinstance(name, str) for name in precisions):
        raise ValueError(f"sweep: precisions has the names {list(precisions)!r:.60}; allowed: texts")
    return {name: as_precision(f"sweep: precisions[{name!r}]", mix) for name, mix in precisions.items()}


def _calibrated(chip: Chip, engine: str) -> None:
    kernels = end_to_end.KERNELS_OF.get(engine, engine)
    known = {x.chip for x in calibration.table() if (x.kernel, x.engine) == ("gemm", kernels)}
    if known and chip.name not in known:
        raise ValueError(
            f"sweep: {chip} has no calibrated kernels of {kernels}; allowed: {', '.join(sorted(known))} (others have "
            "decode_step_s and first_token, with transfer_from or as a bound)"
        )


def _check(workload: Workload, modes: Sequence[str], keep: str, executor: Executor | None, **drafts: ArrayLike) -> None:
    if not isinstance(workload, Workload):
        raise ValueError(f"sweep: workload is {workload!r:.60}; allowed: a Workload")
    for name, value in (("workload.n_concurrent", workload.n_concurrent), ("n_draft", drafts["n_draft"])):
        if not np.size(value):
            raise ValueError(f"sweep: {name} is empty; allowed: one number, or several")
    for name in ("acceptance", "draft_s"):
        if np.ndim(drafts[name]):
            raise ValueError(f"sweep: {name} is {drafts[name]!r:.60}; allowed: one number")
    for name in ("n_input", "n_output", "ttft_limit_s", "tpot_limit_s"):
        if np.ndim(getattr(workload, name)):
            raise ValueError(
                f"sweep: workload.{name} is an array; allowed: one number, only n_concurrent may be several"
            )
    if isinstance(modes, str) or not isinstance(modes, Collection) or not modes or set(modes) - set(MODES):
        raise ValueError(f"sweep: modes is {modes!r:.60}; allowed: a sequence of {', '.join(MODES)}")
    if keep not in ("frontier", "all"):
        raise ValueError(f"sweep: keep is {keep!r}; allowed: frontier, all")
    if executor is not None and not hasattr(executor, "submit"):
        raise ValueError(f"sweep: executor is {executor!r:.60}; allowed: one of concurrent.futures, or None")


def _tasks(
    how: dict, n_chips: ArrayLike, name: str, mix: Precision, modes: Sequence[str], drafts: NDArray
) -> Iterator[Block]:
    model, load = how["model"], how["workload"]
    every = layouts(n_chips, model, precision=mix)
    rows = max(1, BLOCK_POINTS // np.size(load.n_concurrent))
    for mode in modes:
        pool, some = None, every
        if mode == "aggregated":
            some = every[np.asarray(every.kvp) == 1]
        elif mode == "disaggregated":
            reads = dict(n_chips=n_chips, n_input=int(load.n_input), precision=mix)
            if not len(pools.reading_layouts(model, how["chip"], **reads)):
                continue
            kernels = end_to_end.KERNELS_OF.get(how["engine"], how["engine"])
            pool = pools.prefill_pool(model, how["chip"], engine=kernels, routing=how["routing"], **reads)
        for n_draft in drafts.tolist():
            for first in range(0, len(some), rows):
                block = some[first : first + rows]
                yield Block(**how, name=name, precision=mix, mode=mode, layout=block, pool=pool, n_draft=n_draft)


def _run(work: Callable, tasks: list[Block], executor: Executor | None) -> Iterator[tuple[int, Points]]:
    """Every block's number and points, in the order in which they are done."""
    if executor is None:
        yield from ((i, work(task)) for i, task in enumerate(tasks))
        return
    sent, left = {}, []
    for i, task in enumerate(tasks):
        try:
            sent[executor.submit(work, task)] = i
        except Exception:  # a pool that is broken takes no more
            left.append(i)
    try:
        for future in as_completed(sent):
            try:
                points = future.result()
            except ValueError:  # a refusal: it would be one here
                raise
            except Exception:  # its worker is gone, which every executor says in its own words
                left.append(sent[future])
                continue
            yield sent[future], points
        yield from ((i, work(tasks[i])) for i in left)
    finally:
        for future in sent:
            future.cancel()


def _shown(points: Iterable[tuple[int, Points]], total: int, progress: bool) -> Iterable[tuple[int, Points]]:
    if not progress:
        return points
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        return points
    return tqdm(points, total=total, unit="block", delay=1.0)


def _work(block: Block, keep: str) -> Points:
    return _reduced(points_of(block), keep)


def _reduced(points: Points, keep: str) -> Points:
    """The frontier of every format mix, mode and draft length; of all points where all are kept, all."""
    if keep == "all" or not len(points):
        return replace(points, kept=keep)
    names = np.stack([points[name].astype(str) for name in GROUPS])
    _, group = np.unique(names, axis=1, return_inverse=True)
    rows = [np.flatnonzero(group.ravel() == g) for g in range(group.max() + 1)]
    kept = [r[pareto(points["interactivity_per_s"][r], points["throughput_per_s"][r])] for r in rows]
    return replace(points[np.concatenate(kept)], kept=keep)
