"""Why a sweep leaves no point, and the nearest choice that leaves one: fewer requests, more GPUs, slower, shorter.

First memory: most requests of the asked length on the asked numbers of GPUs, the fewest of ``MORE_CHIPS`` that hold
what was asked, else the longest request anywhere. Where something fits the limits are too tight: the least time per
output token of the points that keep the limit on the first token, and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from codesign_lib.serving import memory, pools
from codesign_lib.serving.block import Block, nearest, step_tokens
from codesign_lib.serving.layout import Workload, layouts
from codesign_lib.specs.formats import Precision
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.models import Model

MORE_CHIPS = (1, 2, 4, 8, 16, 32, 64, 72)
"""Numbers of GPUs that are looked at when nothing fits."""
MOST_A_REPLICA = 2.0**30
"""More sequences than any replica holds."""


def most_requests(
    model: Model, chip: Chip, *, n_chips: int, n_input: int, n_output: int, precision: Precision, mode: str
) -> int:
    """Most requests at once that some layout of ``n_chips`` GPUs holds, 0 where not one fits.

    A disaggregated deployment also has to hold a prompt on as many GPUs that read.

    >>> from codesign_lib.specs import hardware, models
    >>> r1, h200 = models.model("deepseek_r1"), hardware.chip("h200_sxm")
    >>> how = dict(n_input=8192, n_output=1024, precision=Precision(weights="fp8", activations="fp8", kv="fp8"))
    >>> [most_requests(r1, h200, n_chips=n, mode="aggregated", **how) > 0 for n in (4, 8)]
    [False, True]
    """
    try:
        found = layouts(n_chips, model, precision=precision)
    except ValueError:  # it does not divide over so many
        return 0
    found = found[np.asarray(found.kvp) == 1] if mode == "aggregated" else found
    reads = dict(n_chips=n_chips, n_input=n_input, precision=precision)
    if not len(found) or (mode == "disaggregated" and not len(pools.reading_layouts(model, chip, **reads))):
        return 0
    how = dict(layout=found, n_context=n_input + n_output, precision=precision)
    least, beyond = np.zeros(len(found)), np.full(len(found), MOST_A_REPLICA)
    while np.any(beyond - least > 1):  # halving: which stage is the fullest may change with the batch
        n = np.floor((least + beyond) / 2).clip(1)
        fits = memory.memory(model, chip, batch=n * found.dp, n_step_tokens=step_tokens(n, n_input), **how).fits
        least, beyond = np.where(fits, n, least), np.where(fits, beyond, n)
    return int(np.max(least * found.dp))


def reason(
    model: Model,
    chip: Chip,
    *,
    n_chips: ArrayLike,
    workload: Workload,
    precisions: Mapping[str, Precision],
    modes: Sequence[str],
    tasks: Iterable[Block],
) -> str:
    """What to say of a sweep that left nothing: see this module. ``tasks`` are its blocks."""
    n_in, n_out, fewest = int(workload.n_input), int(workload.n_output), int(np.min(workload.n_concurrent))
    sizes = [int(n) for n in np.unique(np.ravel(n_chips))]
    head = f"sweep: {model} with {n_in + n_out:,} tokens a request on {', '.join(map(str, sizes))} {chip}: "

    def most(n: int, n_input: int = n_in, n_output: int = n_out) -> tuple[int, str]:
        how = dict(n_chips=n, n_input=n_input, n_output=n_output)
        return max((most_requests(model, chip, precision=mix, mode=mode, **how), name)
                   for name, mix in precisions.items() for mode in modes)  # fmt: skip

    here, name = max(most(n) for n in sizes)
    if here >= fewest:
        return head + "no point keeps the limits; " + _slower(workload, tasks)
    allowed = [f"at most {here:,} requests at once, in {name}"] if here else []
    larger = [n for n in MORE_CHIPS if n > max(sizes)]
    found = {n: most(n) for n in larger}
    enough = [n for n in larger if found[n][0] >= fewest] or [n for n in larger if found[n][0] and not here]
    if enough:
        n = enough[0]
        less = "" if found[n][0] >= fewest else f", with at most {found[n][0]:,} requests at once"
        allowed.append(f"{n} of them in {found[n][1]}{less}")
    if allowed:
        what = f"{fewest:,} requests at once do not fit" if here else "nothing fits"
        return head + f"{what}; nearest that does: {', or '.join(allowed)}"
    # halving the interval: a longer request never fits where a shorter one does not
    n, short, long = max([*sizes, *MORE_CHIPS]), 0, n_in + n_out
    while long - short > max(1, short // 100):
        middle = (short + long) // 2
        short, long = (middle, long) if middle > 1 and most(n, middle - 1, 1)[0] >= 1 else (short, middle)
    shorter = f"at most about {short:,} tokens a request there, or " if short else ""
    return head + f"nothing fits, nor on {n} of them; allowed: {shorter}narrower formats"


def _slower(workload: Workload, tasks: Iterable[Block]) -> str:
    """The limits that would leave a point, each beside the other one as it is."""
    tasks = list(tasks)
    limits = {name: getattr(workload, f"{name[:4]}_limit_s") for name in ("tpot_s", "ttft_s")}
    set_ones = [name for name, limit in limits.items() if limit is not None]
    if not set_ones:
        return "allowed: fewer requests at once, or other formats"
    least = _least(tasks)
    if len(set_ones) == 2 and not np.isfinite(list(least.values())).any():  # each keeps the other from helping
        free = replace(workload, tpot_limit_s=None, ttft_limit_s=None)
        least = _least(replace(task, workload=free) for task in tasks)
        return f"allowed: both longer: {' and '.join(_at_least(name, least[name]) for name in set_ones)}, each alone"
    said = []
    for name in set_ones:
        other = "ttft_s" if name == "tpot_s" else "tpot_s"
        beside = "" if limits[other] is None else f" with {other[:4]}_limit_s {float(limits[other]):.4g}"
        if np.isfinite(least[name]):
            said.append(f"{_at_least(name, least[name])}{beside}")
        else:
            said.append(f"a longer {other[:4]}_limit_s (no {name[:4]}_limit_s helps{beside})")
    return f"allowed: {', or '.join(said)}"


def _least(tasks: Iterable[Block]) -> dict[str, float]:
    found = [nearest(task) for task in tasks]
    return {name: min(x[name] for x in found) for name in ("tpot_s", "ttft_s")}


def _at_least(name: str, time_s: float) -> str:
    digit = 10.0 ** (np.floor(np.log10(time_s)) - 3)  # rounded up: what is printed has to hold
    return f"{name[:4]}_limit_s of at least {np.ceil(time_s / digit) * digit:.4g}"
