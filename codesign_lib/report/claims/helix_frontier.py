"""Helix's evaluation computed: decode frontiers at a million tokens of context, and the six factors it prints.

Three settings. ``kernels``: calibrated kernels and collectives, NVFP4 weights, and a cache in FP8, because no table
measures attention on an FP4 cache. ``half the bytes``: the same with half the tokens, which has the bytes of an FP4
cache. ``roofline``: half a byte everywhere, peaks, full bandwidth and no latency. Layouts are all that the model allows
on 1 to 64 GPUs of one GB200 NVL72; the batch grows by a fifth at a time, and a tenth of the memory is kept free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codesign_lib.report.claims.layout import HELIX
from codesign_lib.report.claims.pair import Pair, measured
from codesign_lib.serving import exchange, shards
from codesign_lib.serving.decode import DecodeStep, decode_step_s
from codesign_lib.serving.families import crossover_tokens as frontier_crossover
from codesign_lib.serving.families import families
from codesign_lib.serving.frontier import pareto
from codesign_lib.serving.layout import Layout, layouts, valid
from codesign_lib.serving.memory import Memory, memory
from codesign_lib.specs import hardware, models
from codesign_lib.specs.formats import Precision
from codesign_lib.specs.hf_config.fields import LatentAttention
from codesign_lib.specs.published import Claim

CHIP = "gb200"
N_GPUS = (1, 2, 4, 8, 16, 32, 64)
BATCHES = np.unique(np.round(2 ** np.arange(0, 11, 0.25)))
IN_FP4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8", head="nvfp4")
HALF_A_BYTE = Precision(weights="fp4_payload", activations="fp4_payload", kv="fp4_payload", head="fp4_payload")
SETTINGS = {
    "kernels": dict(precision=IN_FP4, n_context=1_000_000),
    "half the bytes": dict(precision=IN_FP4, n_context=500_000),
    "roofline": dict(precision=HALF_A_BYTE, n_context=1_000_000, bound=True),
}
MODELS = ("deepseek_r1", "llama_3_1_405b")


class Frontier(NamedTuple):
    """Points that no other beats: tokens a second and user, tokens a second and GPU, layout and batch of each."""

    user_per_s: NDArray[np.float64]
    gpu_per_s: NDArray[np.float64]
    layout: Layout
    batch: NDArray[np.float64]


def every_layout(model: str) -> Layout:
    """All layouts of a model on 1 to 64 GPUs."""
    return layouts(N_GPUS, model)


@cache
def step(model: str, setting: str, *, hop_b: bool) -> tuple[DecodeStep, Memory]:
    """Step and memory of every layout (rows) and batch (columns)."""
    how = dict(layout=every_layout(model)[:, None], batch=BATCHES)
    asked = SETTINGS[setting]
    held = memory(model, CHIP, **how, n_context=asked["n_context"], precision=asked["precision"])
    return decode_step_s(model, CHIP, **how, **asked, hop_b=hop_b), held


@cache
def frontier(model: str, family: str, setting: str = "kernels", *, hop_b: bool = False) -> Frontier:
    """The frontier of a family of ``serving.families.families``, of "no KVP" (every layout without), or "tied KVP".

    "tied KVP" divides the cache and leaves the FFN on the GPUs of one shard, as before Helix.
    """
    if family == "tied KVP":
        layout, step_s, fits = _tied(model, setting)
    else:
        every = every_layout(model)
        of = np.asarray(every.kvp) == 1 if family == "no KVP" else families(every)[family]
        found, held = step(model, setting, hop_b=hop_b)
        layout, step_s, fits = every[of], found.step_s[of], held.fits[of]
    user = np.where(fits, 1 / step_s, -np.inf).ravel()
    gpu = np.where(fits, BATCHES / (step_s * np.asarray(layout.n_gpus)[:, None]), -np.inf).ravel()
    kept = pareto(user, gpu)
    row, column = np.divmod(kept, BATCHES.size)
    return Frontier(user[kept], gpu[kept], layout[row], BATCHES[column])


def _tied(model: str, setting: str) -> tuple[Layout, NDArray, NDArray]:
    """KVP in front of an FFN that the KVP ranks repeat: attention's time from the one layout, the rest from TP's."""
    pairs = np.array([(k, t) for k in N_GPUS for t in N_GPUS if k > 1 and k * t <= N_GPUS[-1]]).T
    sharded = Layout(kvp=pairs[0], tp_attention=pairs[1], tp_ffn=pairs[0] * pairs[1])
    plain = Layout(tp_attention=pairs[1], tp_ffn=pairs[1])
    good = valid(sharded, model) & valid(plain, model)
    sharded, plain = sharded[good], plain[good]
    asked = SETTINGS[setting]
    one, two = (decode_step_s(model, CHIP, layout=x[:, None], batch=BATCHES, **asked) for x in (sharded, plain))
    of, merge = models.model(model), 0.0
    net = exchange.Network(chip=hardware.chip(CHIP), bound=asked.get("bound", False))
    for mixer, n in shards.kinds(of).mixers:
        width = mixer.kv_rank if isinstance(mixer, LatentAttention) else mixer.d_value
        heads = mixer.n_heads / sharded.tp_attention[:, None]
        merge = merge + n * exchange.merge_s(BATCHES, heads, width, layout=sharded[:, None], on=net)
    step_s = two.step_s - two.attention_s + one.attention_s + merge
    sizes = dict(batch=BATCHES, n_context=asked["n_context"], precision=asked["precision"])
    a, b = (memory(model, CHIP, layout=x[:, None], **sizes) for x in (sharded, plain))
    return sharded, step_s, b.total_bytes - b.kv_bytes + a.kv_bytes <= b.capacity_bytes


def fastest(model: str, family: str, *, batch: int, n_context: int, hop_b: bool = False) -> tuple[Layout, DecodeStep]:
    """The layout of a family that decodes so many sequences fastest among those in which they fit, and its step.

    Raises ValueError where they fit in none.
    """
    every = every_layout(model)
    every = every[families(every)[family]]
    how = dict(batch=batch, n_context=n_context, precision=IN_FP4)
    found = decode_step_s(model, CHIP, layout=every, **how, hop_b=hop_b)
    fits = memory(model, CHIP, layout=every, **how).fits
    if not np.any(fits):
        raise ValueError(f"fastest: {batch} sequences of {n_context:,} tokens of {model} fit in no layout of {family}")
    one = every[int(np.argmin(np.where(fits, found.step_s, np.inf)))]
    return one, decode_step_s(model, CHIP, layout=one, **how, hop_b=hop_b)


class Factors(NamedTuple):
    """What the paper prints of a model: Helix over the best without it, and what HOP-B adds."""

    interactivity: float
    throughput: float
    overlap: float


@cache
def factors(model: str, setting: str = "kernels", *, with_tied: bool = True) -> Factors:
    """Helix with HOP-B against every layout without KVP and tied KVP, the paper's baselines, or without the latter.

    ``interactivity``: most tokens a second and user, over the others' most. ``throughput``: most tokens a second and
    GPU over the others' at the same or a higher rate a user, where that is largest. ``overlap``: what the rate a user
    changes without HOP-B at equal tokens a second and GPU, where that is most.
    """
    ours, without = (frontier(model, "Helix", setting, hop_b=x) for x in (True, False))
    others = [frontier(model, x, setting) for x in ("no KVP", *(["tied KVP"] if with_tied else []))]
    user, gpu = (np.concatenate([getattr(x, name) for x in others]) for name in ("user_per_s", "gpu_per_s"))
    kept = pareto(user, gpu)
    user, gpu = user[kept], gpu[kept]
    at = np.concatenate([user, ours.user_per_s])
    at = at[(at <= user.max()) & (at <= ours.user_per_s.max())]
    # a frontier falls: its first point at or beyond a rate is the best there
    ratio = ours.gpu_per_s[np.searchsorted(ours.user_per_s, at)] / gpu[np.searchsorted(user, at)]
    inside = (ours.gpu_per_s >= without.gpu_per_s.min()) & (ours.gpu_per_s <= without.gpu_per_s.max())
    off = np.interp(ours.gpu_per_s[inside], without.gpu_per_s[::-1], without.user_per_s[::-1])
    lost = off / ours.user_per_s[inside] - 1
    return Factors(float(ours.user_per_s.max() / user.max()), float(ratio.max()), float(lost.min()))


PUBLISHED = {
    "deepseek_r1": Factors(1.5, 32.0, -0.01),
    "llama_3_1_405b": Factors(1.13, 4.0, -0.12),
}
"""Of figures 5 to 7, by the paper's text."""


def helix_factors() -> Iterator[Pair]:
    """The six factors against ours with calibrated kernels, signs that could differ, and the order of the models.

    Of signs only those of interactivity are held against ours. Without HOP-B no step of ours is faster, whatever the
    models say, and the largest ratio of two curves is hardly below 1: neither could fail. The order of the third factor
    is the other way round: it is recorded as a gap.
    """
    names = {"interactivity": "tokens/s/user, most", "throughput": "tokens/s/GPU at equal tokens/s/user, most"}
    for model, published in PUBLISHED.items():
        title = models.MODELS[model].title
        for name, what in names.items():
            value = getattr(published, name)
            yield measured(f"helix_factors/{name}/{model}", f"{title}: Helix over the rest, {what}", value, "×", HELIX,
                           _ours(model, name))  # fmt: skip
        yield measured(f"helix_factors/overlap/{model}", f"{title}: tokens/s/user without HOP-B", published.overlap, "",
                       HELIX, _ours(model, "overlap"))  # fmt: skip
    for model, published in PUBLISHED.items():
        what = f"{models.MODELS[model]}: Helix or the rest has the fastest stream"
        claim = Claim(what=what, value=published.interactivity, unit="×", source=HELIX, kind="trend")
        yield Pair(key=f"helix_factors/sign/{model}", claim=claim, ours=_ours(model, "interactivity"))
    for name, what in names.items():
        value = tuple(getattr(PUBLISHED[m], name) for m in MODELS)
        claim = Claim(what=f"order of the models: {what}", value=value, unit="×", source=HELIX, kind="trend")
        yield Pair(key=f"helix_factors/order/{name}", claim=claim, ours=_both(name))
    # HOP-B matters more in Llama there, and more in DeepSeek here: a gap of more than the value is the other order
    one, two = (PUBLISHED[m].overlap for m in MODELS)
    what = "order of the models: what is lost without HOP-B, DeepSeek-R1 over Llama-3.1-405B"
    yield measured("helix_factors/order/overlap", what, one / two, "×", HELIX, _lost_ratio)


def _lost_ratio() -> float:
    one, two = (factors(m).overlap for m in MODELS)
    return one / two


def _ours(model: str, name: str):
    return lambda: getattr(factors(model), name)


def _both(name: str):
    return lambda: tuple(getattr(factors(m), name) for m in MODELS)


def crossover_tokens(
    model: str,
    *,
    batch: int,
    n_kv_heads: int | None = None,
    memory_ratio: float = 1.0,
    link_ratio: float = 1.0,
    bound: bool = False,
) -> float:
    """Context from which the fastest Helix layout of up to 64 GPUs beats the fastest TP layout, without HOP-B.

    With other key-value heads, memory bandwidth or links than the real ones; kernels keep the numbers fitted to GB200.
    """
    of, chip = models.model(model), hardware.chip(CHIP)
    if n_kv_heads is not None:
        layers = tuple(
            replace(x, mixers=tuple(replace(m, n_kv_heads=n_kv_heads) for m in x.mixers)) for x in of.config.layers
        )
        of = replace(of, config=replace(of.config, layers=layers))
    rates = {"hbm_bytes_per_s": memory_ratio, "link_bytes_per_s": link_ratio, "link_peer_bytes_per_s": link_ratio}
    chip = replace(chip, **{name: ratio * getattr(chip, name) for name, ratio in rates.items()})
    every = every_layout(model)
    named = families(every)
    how = dict(ours=every[named["Helix"]], others=every[named["TP"]], batch=batch, precision=IN_FP4, least=16)
    return frontier_crossover(of, chip, **how, bound=bound, transfer_from=None if bound else CHIP)
