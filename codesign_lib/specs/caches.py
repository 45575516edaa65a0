"""What a request keeps in memory, layer by layer: terms that grow with the context, and states that do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.specs.hf_config.fields import Attention, CompressedAttention, LatentAttention, Layer, Recurrent
from codesign_lib.specs.quantities import common_shape, positive


@dataclass(frozen=True, kw_only=True)
class CacheTerm:
    """``n_elements`` cached for every ``tokens_per_entry`` tokens, of at most ``window_tokens`` tokens (``None``: all).

    ``kind`` is the layer's; ``n_kv_heads`` and ``n_elements_per_head`` say how tensor parallelism can divide it.
    """

    kind: str
    n_kv_heads: int
    n_elements_per_head: int
    window_tokens: int | None = None
    tokens_per_entry: int = 1

    @property
    def n_elements(self) -> int:
        """Elements of one entry, all heads together."""
        return self.n_kv_heads * self.n_elements_per_head

    def n_entries(self, n_context: NDArray[np.float64]) -> NDArray[np.float64]:
        """Entries kept at a context of so many tokens: the window at most, whole entries only."""
        kept = n_context if self.window_tokens is None else np.minimum(n_context, self.window_tokens)
        return np.floor(kept / self.tokens_per_entry) if self.tokens_per_entry > 1 else kept


def cache_terms(layers: Iterable[Layer]) -> dict[CacheTerm, int]:
    """The terms of the key-value cache and how many layers have each; layers that read another's cache have none."""
    found: dict[CacheTerm, int] = {}
    for layer in layers:
        for mixer in layer.mixers:
            for term in _terms(mixer):
                found[term] = found.get(term, 0) + 1
    return found


def _terms(mixer: object) -> Iterable[CacheTerm]:
    if isinstance(mixer, Attention) and mixer.kv_source_layer is None:
        yield CacheTerm(
            kind=mixer.kind,
            n_kv_heads=mixer.n_kv_heads,
            n_elements_per_head=mixer.d_head + mixer.d_value,
            window_tokens=mixer.window_tokens,
        )
    elif isinstance(mixer, LatentAttention):
        yield CacheTerm(kind="latent", n_kv_heads=1, n_elements_per_head=mixer.kv_rank + mixer.d_rope)
    elif isinstance(mixer, CompressedAttention):
        one = dict(n_kv_heads=1, n_elements_per_head=mixer.d_head)
        yield CacheTerm(kind="sliding", window_tokens=mixer.window_tokens, **one)
        if mixer.tokens_per_entry > 1:
            yield CacheTerm(kind="compressed", tokens_per_entry=mixer.tokens_per_entry, **one)


def indexer_terms(layers: Iterable[Layer]) -> dict[CacheTerm, int]:
    """The keys that sparse attention's indexers cache as well: one small head a layer that scores."""
    found: dict[CacheTerm, int] = {}
    for layer in layers:
        for mixer in layer.mixers:
            if getattr(mixer, "indexer", None):
                x = mixer.indexer
                term = CacheTerm(
                    kind="indexer", n_kv_heads=1, n_elements_per_head=x.d_head, tokens_per_entry=x.tokens_per_entry
                )
                found[term] = found.get(term, 0) + 1
    return found


def recurrent_mixers(layers: Iterable[Layer]) -> list[Recurrent]:
    """All recurrent layers' mixers."""
    return [mixer for layer in layers for mixer in layer.mixers if isinstance(mixer, Recurrent)]


def whole(subject: str, **values: ArrayLike) -> NDArray[np.float64]:
    """The one value as a float64 array, checked to be whole numbers from 1.

    >>> whole("kv_bytes_per_rank", tp=0.5)
    Traceback (most recent call last):
    ValueError: kv_bytes_per_rank: tp is 0.5; allowed: whole numbers from 1
    """
    ((name, _),), (array,) = values.items(), positive(subject, **values)
    if np.any(array % 1):
        raise ValueError(f"{subject}: {name} is {array[array % 1 != 0].flat[0]:g}; allowed: whole numbers from 1")
    return array


def kv_heads_per_rank(n_kv_heads: ArrayLike, tp: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Key-value heads each of ``tp`` ranks holds, ceil(K / TP), and copies of each head, max(1, TP / K).

    Raises ValueError where neither number divides the other: heads can be neither divided nor copied evenly.

    >>> heads, copies = kv_heads_per_rank(2, [1, 2, 8])
    >>> heads.tolist(), copies.tolist()
    ([2.0, 1.0, 1.0], [1.0, 1.0, 4.0])
    >>> kv_heads_per_rank(10, 4)
    Traceback (most recent call last):
    ValueError: 10 key-value heads at tensor parallelism 4: neither divides the other; allowed: 1, 2, 5, 10, or
    multiples of 10
    """
    both = dict(n_kv_heads=whole("kv_heads_per_rank", n_kv_heads=n_kv_heads), tp=whole("kv_heads_per_rank", tp=tp))
    shape = common_shape("kv_heads_per_rank", **both)
    heads, ranks = (np.broadcast_to(x, shape) for x in both.values())
    bad = (heads % ranks != 0) & (ranks % heads != 0)
    if np.any(bad):
        k, t = int(heads[bad][0]), ranks[bad][0]
        divisors = ", ".join(str(x) for x in range(1, k + 1) if k % x == 0)
        raise ValueError(
            f"{k} key-value heads at tensor parallelism {t:g}: neither divides the other; allowed: {divisors}, "
            f"or multiples of {k}"
        )
    return np.ceil(heads / ranks), np.maximum(1.0, ranks / heads)
