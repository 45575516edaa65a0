r"""Disaggregated serving: one pool of GPUs reads prompts, another decodes, and the cache travels in between.

**Prefill.** An instance of dp replicas and pp stages takes prompts of M equal chunks through its stages (chunked
pipeline). Chunk i takes :math:`t_i` seconds of all stages together (:py:mod:`codesign_lib.serving.prefill`); with
stages alike the first token is there and prompts are read at

.. math:: t_p = \frac{1}{\text{pp}} \left( \sum_i t_i + (\text{pp} - 1) \max_i t_i \right), \qquad
          r_p = \frac{\text{dp} \cdot \text{pp}}{\sum_i t_i}

**Transfer.** A request's cache of K bytes leaves over the NICs of all GPUs of the smaller instance, or over the links
where both fit into one domain: :math:`t_k = K / (n\,W)`. It is added to the time to first token and never overlapped.

**Ratio.** Pools are as large as it takes for equal rates. With :math:`r_d` requests a second of a decoding instance of
:math:`n_d` GPUs,

.. math:: \frac{\text{GPUs that read}}{\text{GPUs that decode}} = \frac{r_d / n_d}{r_p / n_p}

so the prefill layout that reads most prompts a GPU is the best one for every decoding layout. A limit on TTFT leaves
each decoding layout and batch another time to read in: the limit less its transfer and its first step. Whole instances
are rounded by nobody here: with few GPUs the real ratio is worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.serving import memory, prefill
from codesign_lib.serving.layout import AXES, Layout, layouts
from codesign_lib.specs import models
from codesign_lib.specs.formats import BF16, Precision, as_precision
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.models import Model
from codesign_lib.specs.quantities import positive

N_CHUNKS = (1, 4, 16)
"""Numbers of equal chunks that are tried."""
LEAST_CHUNK_TOKENS = 512
AS_GOOD = 0.01
"""Rates of reading that differ by less are taken for equal."""


@dataclass(frozen=True, kw_only=True)
class PrefillPool:
    """Instances that read prompts, one a layout: seconds to the first token, prompts a second and GPU."""

    layout: Layout
    n_chunks: NDArray[np.int64]
    ttft_s: NDArray[np.float64]
    prompts_per_s: NDArray[np.float64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Numbers of GPUs of its instances, each once, the smallest first."""
        return np.unique(self.layout.n_gpus)

    def best(self, ttft_limit_s: ArrayLike | None = None) -> NDArray[np.int64]:
        """Index of the layout that reads most prompts a GPU within the limit, −1 where none keeps it.

        Of those within ``AS_GOOD`` of the most the smallest instance is taken: a large one may not be buildable beside
        a few that decode. Of equals in size and rate the faster. One limit, or limits with an axis of :py:attr:`sizes`
        in front, one for the instances of each size.

        >>> pool = PrefillPool(layout=Layout(pp=[1, 2]), n_chunks=np.ones(2), ttft_s=np.array([2.0, 1.0]),
        ...                    prompts_per_s=np.array([0.5, 0.4]))
        >>> [int(pool.best(limit)) for limit in (None, 1.5, 0.5)], pool.best([[0.5, 3.0], [1.5, 3.0]]).tolist()
        ([0, 1, -1], [1, 0])
        """
        sizes, gpus = self.sizes, np.broadcast_to(self.layout.n_gpus, self.ttft_s.shape)
        limit = np.asarray(np.inf if ttft_limit_s is None else ttft_limit_s, np.float64)
        if not limit.ndim:
            limit = np.full(sizes.size, limit)
        rates, entries = [], []
        for n, most in zip(sizes, limit, strict=True):
            # of one size: who waits longer for the first token reads more, or does not count
            order = np.lexsort((-self.prompts_per_s, self.ttft_s))
            order = order[gpus[order] == n]
            rate = self.prompts_per_s[order]
            better = rate > np.concatenate([[0.0], np.maximum.accumulate(rate)[:-1]])
            at = np.searchsorted(self.ttft_s[order][better], most, side="right")
            rates.append(np.concatenate([[0.0], rate[better]])[at])
            entries.append(np.concatenate([[-1], order[better]])[at])
        rates = np.stack(rates)
        smallest = np.argmax(rates >= (1 - AS_GOOD) * rates.max(axis=0), axis=0)
        return np.take_along_axis(np.stack(entries), smallest[None], axis=0)[0]

    def fastest(self) -> int:
        """Index of the layout with the earliest first token."""
        return int(np.argmin(self.ttft_s))


def reading_layouts(model: Model, chip: Chip, *, n_chips: ArrayLike, n_input: int, precision: Precision) -> Layout:
    """The layouts with kvp = 1 that hold the weights and one prompt a replica and stage; none of them: of length 0."""
    found = layouts(n_chips, model, precision=precision)
    found = found[np.asarray(found.kvp) == 1]
    fits = memory.memory(
        model, chip, layout=found, batch=found.dp * found.pp, n_context=np.full(1, n_input), n_step_tokens=n_input,
        precision=precision,
    ).fits  # fmt: skip
    return found[fits]


def prefill_pool(
    model: Model,
    chip: Chip,
    *,
    n_chips: ArrayLike,
    n_input: int,
    precision: Precision,
    engine: str = "trtllm",
    routing: str = "balanced",
) -> PrefillPool:
    """Every way to read prompts of ``n_input`` tokens that fits: all layouts with kvp = 1, pipelines in chunks.

    Raises ValueError where none fits.
    """
    as_precision("prefill_pool", precision)
    found = reading_layouts(model, chip, n_chips=n_chips, n_input=n_input, precision=precision)
    if not len(found):
        raise ValueError(
            f"prefill_pool: {model} with prompts of {n_input:,} tokens does not fit on {np.max(n_chips)} {chip}"
        )
    counts = [m for m in N_CHUNKS if m == 1 or n_input // m >= LEAST_CHUNK_TOKENS]
    pp, ttft, rate = np.asarray(found.pp, np.float64), [], []
    for m in counts:
        size = int(np.ceil(n_input / m))
        behind = size * np.arange(m)[:, None]
        chunk = np.minimum(size, n_input - behind)
        took = prefill.layer_costs(
            model, chip, n_new=chunk, n_prefix=behind, layout=found[None, :], precision=precision, engine=engine,
            routing=routing,
        ).total_s  # fmt: skip
        took = np.broadcast_to(took, (m, len(found)))
        ttft.append((took.sum(axis=0) + (pp - 1) * took.max(axis=0)) / pp)
        rate.append(found.dp * pp / took.sum(axis=0) / found.n_gpus)
    every = Layout(**{a: np.tile(np.broadcast_to(getattr(found, a), found.shape), len(counts)) for a in AXES})
    return PrefillPool(
        layout=every, n_chunks=np.repeat(counts, len(found)), ttft_s=np.concatenate(ttft),
        prompts_per_s=np.concatenate(rate),
    )  # fmt: skip


def transfer_s(
    model: Model, chip: Chip, *, n_input: ArrayLike, precision: Precision, n_from: ArrayLike, n_to: ArrayLike
) -> NDArray[np.float64]:
    """Seconds that one request's cache and states take from ``n_from`` GPUs to ``n_to``: the formula of this module.

    >>> from codesign_lib.specs import hardware
    >>> fp8 = Precision(weights="fp8", activations="fp8", kv="fp8")
    >>> r1, chip = models.model("deepseek_r1"), hardware.chip("gb300")
    >>> within, across = transfer_s(r1, chip, n_input=8192, precision=fp8, n_from=8, n_to=[64, 72])
    >>> round(float(across / within), 1)                          # NICs instead of links
    9.0
    """
    source, target = positive("transfer_s", n_from=n_from, n_to=n_to)
    as_precision("transfer_s", precision)
    size = models.kv_bytes(model, n_input, precision.kv) + models.state_bytes(model, BF16, with_convolution=True)
    across = source + target > chip.n_scale_up
    if np.any(across) and chip.scale_out_bytes_per_s is None:
        raise ValueError(f"transfer_s: {chip} has no scale_out_bytes_per_s: its NIC rate is not public")
    rate = np.where(across, chip.scale_out_bytes_per_s or np.inf, chip.link_bytes_per_s)
    return size / (np.minimum(source, target) * rate)


def prefill_gpus(request_per_s: ArrayLike, prompts_per_s: ArrayLike) -> NDArray[np.float64]:
    """GPUs that read for every GPU that decodes, from requests and prompts a second and GPU.

    >>> float(prefill_gpus(2.0, 4.0))
    0.5
    """
    made, read = positive("prefill_gpus", request_per_s=request_per_s, prompts_per_s=prompts_per_s)
    return made / read
