"""Layouts by the names that papers give them, and from which context one set of layouts beats another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codesign_lib.serving.decode import decode_step_s
from codesign_lib.serving.layout import Layout
from codesign_lib.specs.formats import Precision
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.models import Model
from codesign_lib.specs.quantities import positive

PER_OCTAVE = 8
"""Contexts looked at in every doubling."""


def families(layout: Layout) -> dict[str, NDArray[np.bool_]]:
    """Which of the layouts are what papers compare, by name; combinations of them are in none.

    ``TP``: attention by heads, FFN by width or experts, over the same GPUs. ``PP``: that in stages. ``EP``: attention
    data-parallel, experts spread. ``Helix``: the cache along the sequence, then all GPUs for the FFN.

    >>> {name: of.tolist() for name, of in families(Layout(kvp=[1, 4], tp_attention=[8, 2], tp_ffn=8)).items()}
    {'TP': [True, False], 'PP': [False, False], 'EP': [False, False], 'Helix': [False, True]}
    """
    one = {x: np.broadcast_to(np.asarray(getattr(layout, x)) == 1, layout.shape) for x in ("kvp", "dp", "pp")}
    spread = np.broadcast_to((np.asarray(layout.tp_attention) == 1) & (np.asarray(layout.tp_ffn) == 1), layout.shape)
    return {
        "TP": one["kvp"] & one["dp"] & one["pp"],
        "PP": one["kvp"] & one["dp"] & ~one["pp"],
        "EP": one["kvp"] & ~one["dp"] & one["pp"] & spread,
        "Helix": ~one["kvp"] & one["dp"] & one["pp"],
    }


def crossover_tokens(
    model: Model | str,
    chip: Chip | str,
    *,
    ours: Layout,
    others: Layout,
    batch: int,
    precision: Precision,
    least: float = 512,
    most: float = 2**24,
    **how,
) -> float:
    """Context from which the fastest of our layouts decodes ``batch`` sequences faster than the fastest of the others.

    Keywords as in ``decode_step_s``. Looked for on eight contexts a doubling between ``least`` and ``most`` and
    interpolated between two; infinite where the others win at the longest, ``least`` where ours win at every one. Where
    the lead changes more than once it is the last context from which ours keep it. Memory is not asked.

    >>> in_fp4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8", head="nvfp4")
    >>> tp, helix = Layout(tp_attention=[64], tp_ffn=64), Layout(kvp=[8], tp_attention=8, tp_ffn=64)
    >>> how = dict(ours=helix, others=tp, precision=in_fp4)
    >>> one, many = (crossover_tokens("llama_3_1_405b", "gb200", batch=b, **how) for b in (8, 64))
    >>> bool(many < one)
    True
    """
    low, high = (float(x) for x in positive("crossover_tokens", least=least, most=most))
    if not low < high or not all(x.shape and len(x) for x in (ours, others)):
        raise ValueError(
            f"crossover_tokens: least {least!r}, most {most!r}, ours of shape {ours.shape}, others of {others.shape}; "
            "allowed: least below most, arrays of layouts, none empty"
        )
    contexts = np.unique(np.round(np.geomspace(low, high, round(PER_OCTAVE * np.log2(high / low)) + 1)))
    best = []
    for layout in (ours, others):
        step = decode_step_s(
            model, chip, layout=layout[:, None], batch=batch, n_context=contexts, precision=precision, **how
        )
        best.append(np.min(step.step_s, axis=0))
    lead = np.log(best[1] / best[0])
    if lead[-1] <= 0:
        return float(np.inf)
    behind = np.flatnonzero(lead <= 0)
    if not behind.size:
        return float(contexts[0])
    i = behind[-1]
    share = lead[i] / (lead[i] - lead[i + 1])
    return float(np.exp((1 - share) * np.log(contexts[i]) + share * np.log(contexts[i + 1])))
