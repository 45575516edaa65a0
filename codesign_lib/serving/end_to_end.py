r"""From kernels to what a user sees: time per output token and throughput when prompts and decoding share the GPUs.

A step of B running sequences takes :math:`t_d` (:py:mod:`codesign_lib.serving.decode`), at the mean context of a
request, input + output / 2. While a sequence makes its N tokens every other one of its replica is replaced once, and
each new prompt holds everybody up for as long as it takes (:py:mod:`codesign_lib.serving.prefill`; with pp stages a
pp-th of it):

.. math:: \text{TPOT} = t_d + \frac{B/\text{dp} - 1}{N}\,\frac{t_p}{\text{pp}}, \qquad
          \text{TTFT} \ge t_p + t_d, \qquad
          X = \frac{B}{t_p + (B/\text{dp} - 1)\,t_p/\text{pp} + N\,t_d} \text{ requests a second}

Three constants are fitted end to end, none of them a kernel's (``data/serving_overhead.csv``; only
``tools/calibrate_tpot.py`` fits): seconds of the host a step, more of them in vLLM, and seconds a running sequence. One
thing is stated: a decode step is replayed as a whole (CUDA graph), so the launch that every linear layer's calibrated
time contains overlaps with the layer before it and is taken off again. Prompts keep it.

They were fitted to Llama-3.1 and are judged on Qwen3-32B, whose rows are all of H100 in BF16 and FP8: of H200,
Blackwell and NVFP4 nothing is held out but by fits without a chip. Of mixtures of experts nothing was fitted
(``data/validation/tpot.csv``).

vLLM has no calibrated kernels here; it is given SGLang's and its own overhead.

In the life of a sequence, N tokens and its own prompt, every other prompt of its replica is read once: X pays for all
of them, also where answers are short. 1/N of them delay the first step, which is waiting and no part of TTFT here.

Ignored: queueing. A time to first token under load is the queue's, not the kernels': ``ttft_s`` is the least it can
be, and nothing is claimed of it. Chunks of a prompt that ride along with decoding are priced as if they came between
steps; requests are all alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import calibration
from codesign_lib.cost.tiling import whole
from codesign_lib.serving import prefill, shards
from codesign_lib.serving.decode import DecodeStep, Overhead, decode_step_s
from codesign_lib.serving.layout import Layout
from codesign_lib.specs import published
from codesign_lib.specs.formats import Format, Precision, as_precision
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model
from codesign_lib.specs.quantities import not_negative

KERNELS_OF = {"trtllm": "trtllm", "sglang": "sglang", "vllm": "sglang"}
"""Whose calibrated kernels an engine is given."""


@cache
def constants(engine: str) -> dict[str, float]:
    """``step_s`` and ``sequence_s`` of an engine, from ``data/serving_overhead.csv``; ValueError for another engine.

    >>> constants("vllm")["step_s"] > constants("trtllm")["step_s"]
    True
    """
    table = published.table("serving_overhead")
    known = table["engine"].tolist()
    if engine not in known:
        raise ValueError(f"constants: engine is {engine!r:.40}; allowed: {', '.join(known)}")
    at = known.index(engine)
    return {name: float(table[name][at]) for name in ("step_s", "sequence_s")}


def launches_s(
    model: Model | str, chip: Chip | str, precision: Precision, *, engine: str = "trtllm"
) -> dict[str, float]:
    """Seconds of launches in the calibrated times of all linear layers of one decode step, by the part they are in.

    Routed experts are left out: their kernels are several, and what of them a graph hides is not known.

    >>> nvfp4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8")
    >>> {part: f"{1e3 * x:.2f} ms" for part, x in launches_s("llama_3_1_70b", "gb300", nvfp4).items()}
    {'projections': '1.19 ms', 'ffn': '1.19 ms', 'head': '0.00 ms'}
    """
    of, c, found, one = as_model(model), as_chip(chip), shards.kinds(as_model(model)), Layout()
    as_precision("launches_s", precision)
    d, kernels = of.config.d_model, KERNELS_OF.get(engine, engine)
    parts = {
        "projections": [(x, n) for mixer, n in found.mixers for x in shards.mixer_shards(mixer, d, one)],
        "ffn": [(x, n) for ffn, n in found.ffns for x in shards.ffn_shards(ffn, d, one) if x.of.kind != "expert"]
        + [(x, n * int(x.count)) for rest, n in found.others for x in shards.rest_shards(rest, d)],
        "head": [(x, 1) for x in shards.outer_shards(of, one)],
    }
    return {
        part: sum(n * _launch_s(c, kernels, shards.format_of(x.of, precision)) for x, n in all_of if x.of.kind)
        for part, all_of in parts.items()
    }


def _launch_s(chip: Chip, engine: str, fmt: Format) -> float:
    found = calibration.find("gemm", chip.name, engine, fmt.name)
    return found.numbers["launch_s"] if found else 0.0


def overhead(model: Model | str, chip: Chip | str, precision: Precision, *, engine: str = "trtllm") -> Overhead:
    """What a decode step takes beside its kernels, less the launches that a graph hides: see this module.

    >>> nvfp4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8")
    >>> overhead("llama_3_1_70b", "gb300", nvfp4).layer_s < 0
    True
    """
    of = as_model(model)
    hidden = sum(launches_s(of, chip, precision, engine=engine).values())
    source = published.table("serving_overhead").header["source"]
    return Overhead(**constants(engine), layer_s=-hidden / of.n_layers, source=source)


def serving_step_s(
    model: Model | str, chip: Chip | str, *, precision: Precision, engine: str = "trtllm", **how
) -> DecodeStep:
    """A decode step as an engine runs it: ``decode_step_s`` with its :py:func:`overhead`, launches taken off the parts
    that they are in, so that ``overhead_s`` is the host's alone. Keywords as in ``decode_step_s``.

    >>> fp8 = Precision(weights="fp8", activations="fp8", kv="fp8")
    >>> one = serving_step_s("llama_3_1_8b", "h200_sxm", layout=Layout(), batch=1, n_context=1024, precision=fp8)
    >>> bool(one.overhead_s == constants("trtllm")["step_s"] + constants("trtllm")["sequence_s"])
    True
    """
    over = overhead(model, chip, as_precision("serving_step_s", precision), engine=engine)
    kernels = KERNELS_OF.get(engine, engine)
    step = decode_step_s(model, chip, precision=precision, engine=kernels, overhead=over, **how)
    hidden = launches_s(model, chip, precision, engine=engine)
    less = {f"{part}_s": getattr(step, f"{part}_s") - x for part, x in hidden.items()}
    return replace(step, **less, overhead_s=step.overhead_s - over.layer_s * as_model(model).n_layers)


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a request sees and an instance gives, arrays of one shape; ``step`` is the decode step by part.

    ``prompt_s``: one prompt alone. ``held_up_s``: the part of ``tpot_s`` that other requests' prompts cause.
    ``request_per_s`` counts finished requests of the instance; ``ttft_s`` has no queue in it.
    """

    step: DecodeStep
    prompt_s: NDArray[np.float64]
    held_up_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    ttft_s: NDArray[np.float64]
    request_per_s: NDArray[np.float64]

    @property
    def interactivity_per_s(self) -> NDArray[np.float64]:
        """Tokens a second that a user sees after the first, 1 / TPOT.

        >>> round(1 / ((22 - 2) / 999), 2)      # 1,000 tokens in 22 s, the first after 2 s: not 1,000 / 22
        49.95
        """
        return 1 / self.tpot_s


def tokens_a_step(n_draft: ArrayLike, acceptance: ArrayLike) -> NDArray[np.float64]:
    r"""Tokens that a step makes when D drafted ones are checked and each is accepted, if all before it were, with α.

    .. math:: \frac{1 - \alpha^{D+1}}{1 - \alpha}

    The last one comes from the check itself. α in [0, 1], D whole and at least 0, else ValueError. Source: Leviathan
    et al., arXiv:2211.17192.

    >>> tokens_a_step([0, 1, 3], 0.8).round(3).tolist(), float(tokens_a_step(3, 1.0))
    ([1.0, 1.8, 2.952], 4.0)
    """
    subject = "tokens_a_step"
    draft, a = not_negative(subject, n_draft=n_draft, acceptance=acceptance)
    if np.any(a > 1) or np.any(draft != np.floor(draft)):
        raise ValueError(f"{subject}: acceptance {acceptance!r}, n_draft {n_draft!r}; allowed: 0 to 1, and whole")
    below = np.minimum(a, 1 - 1e-12)
    return np.where(a == 1, draft + 1, (1 - below ** (draft + 1)) / (1 - below))[()]


def aggregated(
    model: Model | str,
    chip: Chip | str,
    *,
    layout: Layout,
    batch: ArrayLike,
    n_input: ArrayLike,
    n_output: ArrayLike,
    precision: Precision,
    engine: str = "trtllm",
    routing: str = "balanced",
    n_draft: int = 0,
    acceptance: float = 0.0,
    draft_s: float = 0.0,
    prompt_s: ArrayLike | None = None,
) -> Served:
    """Serving of ``batch`` sequences at once, those of the whole instance, with prompts between decode steps.

    The formula is this module's. Layout (with kvp = 1), batch and lengths broadcast. With ``n_draft`` tokens drafted
    a step, each accepted with ``acceptance``, a step makes :py:func:`tokens_a_step` tokens and takes ``draft_s`` longer
    for the drafter. ``prompt_s`` takes the place of the computed prompt, e.g. 0 where prompts are read elsewhere.
    Raises ValueError as ``decode_step_s`` and ``layer_costs`` do. Whether it fits is ``memory``'s.

    >>> in_fp8 = Precision(weights="fp8", activations="fp8", kv="fp8")
    >>> tp4 = Layout(tp_attention=4, tp_ffn=4)
    >>> s = aggregated("llama_3_1_70b", "h200_sxm", layout=tp4, batch=[8, 64], n_input=1024, n_output=1024, precision=in_fp8)
    >>> bool(s.tpot_s[0] < s.tpot_s[1]), bool(s.request_per_s[0] < s.request_per_s[1])
    (True, True)
    """  # noqa: E501
    subject, of, kernels = "aggregated", as_model(model), KERNELS_OF.get(engine, engine)
    b, n_in, n_out = whole(subject, batch=batch, n_input=n_input, n_output=n_output)
    how = dict(layout=layout, precision=as_precision(subject, precision), routing=routing)
    n_context = np.ceil(n_in + n_out / 2)
    step = serving_step_s(of, chip, batch=b, n_context=n_context, n_draft=n_draft, engine=engine, **how)
    if prompt_s is None:
        prompt_s = prefill.layer_costs(of, chip, n_new=n_in, engine=kernels, **how).total_s
    return served(
        step, batch=b, n_output=n_out, layout=layout, prompt_s=prompt_s, n_draft=n_draft, acceptance=acceptance,
        draft_s=draft_s,
    )  # fmt: skip


def served(
    step: DecodeStep,
    *,
    batch: ArrayLike,
    n_output: ArrayLike,
    layout: Layout,
    prompt_s: ArrayLike,
    n_draft: int = 0,
    acceptance: float = 0.0,
    draft_s: float = 0.0,
) -> Served:
    """What comes of a decode step and a prompt whose seconds are known: the second half of :py:func:`aggregated`."""
    b, n_out = whole("served", batch=batch, n_output=n_output)
    prompt, drafter = not_negative("served", prompt_s=prompt_s, draft_s=draft_s)
    dp, pp = (np.asarray(x, np.float64) for x in (layout.dp, layout.pp))
    made = tokens_a_step(n_draft, acceptance)
    token_s = (step.step_s + drafter) / made
    others = np.maximum(b / dp - 1, 0) * prompt / pp  # in the life of a sequence every other one begins once
    held_up = others / n_out
    tpot, ttft = token_s + held_up, prompt + step.step_s
    requests = b / (ttft + others + (n_out - 1) * token_s)
    shape = np.broadcast_shapes(tpot.shape, requests.shape)
    spread = (np.broadcast_to(x, shape)[()] for x in (prompt, held_up, tpot, ttft, requests))
    names = ("prompt_s", "held_up_s", "tpot_s", "ttft_s", "request_per_s")
    return Served(step=step, **dict(zip(names, spread, strict=True)))
