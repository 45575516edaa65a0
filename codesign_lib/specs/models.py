"""Models: what the network is. From a `config.json` its linear layers, its parameters in named parts, its pattern, and
what a request keeps in memory: ``kv_bytes``, ``indexer_bytes``, ``state_bytes``, ``kv_bytes_per_rank`` (with copies).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.specs import caches, hf_config, parameters, patterns, weights
from codesign_lib.specs.caches import whole
from codesign_lib.specs.formats import Format, as_format
from codesign_lib.specs.hf_config.fields import Config
from codesign_lib.specs.parameters import Part
from codesign_lib.specs.quantities import common_shape, look_up, not_negative
from codesign_lib.specs.weights import LinearLayer, Weight

APART = ("mtp", "vision")  # parts that are not counted in the language model
_CONFIGS = files("codesign_lib") / "data" / "configs"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network as its config describes it. What-if: ``replace(model, config=replace(model.config, …))``.

    ``n_params`` counts the unquantised language model: no multi-token-prediction modules, no vision or audio tower, no
    router correction bias that is not trained by gradients (as in transformers).
    """

    name: str
    title: str
    config: Config
    source: str

    @classmethod
    def from_config(cls, config: str | os.PathLike[str] | Mapping[str, Any], *, name: str | None = None) -> Model:
        """The model that a Hugging Face `config.json` (a path or a dict) describes.

        Raises ValueError for what is not understood and warns once of keys that were not used, as
        :py:func:`codesign_lib.specs.hf_config.read` does. ``model.config.notes`` say which defaults were taken.

        >>> tiny = Model.from_config({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        ...     "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128},
        ...     name="tiny")
        >>> tiny.n_params, kv_bytes(tiny, [10, 20], "bf16")
        (86848, array([2560., 5120.]))
        """
        if name is not None and not (isinstance(name, str) and name):
            raise ValueError(f"Model.from_config: name is {name!r:.40}; allowed: text, or None")
        read = hf_config.read(config)
        title = name or read.name.rstrip("/").rsplit("/", 1)[-1] or read.architecture
        return cls(name=title, title=title, config=read, source=f"{read.source} ({read.architecture})")

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """Every weight of the language model, equal ones of several layers together."""
        c = self.config
        return parameters.merged(weights.all_layers(c.layers, c.d_model), weights.outer_weights(c))

    @cached_property
    def mtp_weights(self) -> tuple[Weight, ...]:
        """Every weight that the multi-token-prediction modules own."""
        return parameters.merged(weights.mtp_weights(self.config))

    def linear_layers(self) -> tuple[LinearLayer, ...]:
        """All linear layers, output head included, multi-token-prediction modules not; fused as engines fuse them.

        The gate of shared experts, a matrix of one column, counts as a vector and is none of them.

        >>> sum(layer.n_params for layer in MODELS["llama_3_1_405b"].linear_layers()) / 1e9
        403.747...
        """
        return tuple(
            LinearLayer(name=w.name, k=w.k, n=w.n, count=w.count, kind=w.kind, tokens_fraction=w.read_fraction)
            for w in self.weights
            if w.kind
        )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The language model in named parts, then what is apart, "mtp" (prediction modules) and "vision", if any."""
        mtp = parameters.parts(self.mtp_weights, tied=False)
        n_read, n_vision = sum(x.n_read for x in mtp), self.config.n_vision_params
        own = (Part(name="mtp", n_stored=self.n_mtp_params, n_read=n_read),) if mtp else ()
        tower = (Part(name="vision", n_stored=n_vision, n_read=0),) if n_vision else ()
        return parameters.parts(self.weights, tied=self.config.tied) + own + tower

    @property
    def n_params_by_part(self) -> dict[str, int]:
        """Stored parameters of each part; all but "mtp" and "vision" add up to ``n_params``.

        >>> MODELS["deepseek_r1"].n_params_by_part["mtp"]
        11610067968
        """
        return {part.name: part.n_stored for part in self.parts}

    @property
    def n_params(self) -> int:
        """Parameters stored, a tied head once, multi-token-prediction modules apart.

        >>> MODELS["deepseek_r1"].n_params
        671026404352
        """
        return sum(part.n_stored for part in self.parts if part.name not in APART)

    @property
    def n_mtp_params(self) -> int:
        """Parameters that the multi-token-prediction modules own (embedding and head are the model's)."""
        return parameters.total(self.mtp_weights)

    @property
    def n_active_params(self) -> int:
        """Parameters read for one token, with the output head and top-k routed experts, without the embedding table.

        >>> round(MODELS["deepseek_r1"].n_active_params / 1e9, 2)
        36.63
        """
        return sum(part.n_read for part in self.parts if part.name not in APART)

    @property
    def n_layers(self) -> int:
        """Layers as the config counts them."""
        return len(self.config.layers)

    @property
    def layer_labels(self) -> tuple[str, ...]:
        """One label a layer, of how it mixes tokens / what feed-forward block it has."""
        return tuple(patterns.label(layer) for layer in self.config.layers)

    @property
    def pattern(self) -> str:
        """The layers in order, repeats folded.

        >>> MODELS["deepseek_r1"].pattern
        '3 latent/dense + 58 latent/moe'
        >>> MODELS["gemma_3_27b"].pattern
        '10 × (5 sliding/dense + 1 full/dense) + 2 sliding/dense'
        """
        return patterns.folded(self.layer_labels)

    def kv_bytes_per_token(self, fmt: Format | str) -> float:
        """Bytes that one more token adds to the cache once the context is longer than every window.

        >>> MODELS["deepseek_r1"].kv_bytes_per_token("bf16"), MODELS["deepseek_r1"].kv_bytes_per_token("fp8")
        (70272.0, 35136.0)
        """
        terms = caches.cache_terms(self.config.layers).items()
        size = as_format(fmt).bytes_per_element
        return size * sum(n * x.n_elements / x.tokens_per_entry for x, n in terms if x.window_tokens is None)

    @property
    def size_note(self) -> str:
        """A sentence where all parameters together differ by more than 5 % from the model's name, else ""."""
        if self.config.n_vision_params is None:
            return ""  # the tower's share of the total is not known
        return parameters.size_note(self.title, self.n_params + self.config.n_vision_params)

    def __str__(self) -> str:
        return self.title


def kv_bytes(
    model: Model | str, n_context: ArrayLike, fmt: Format | str, *, with_mtp: bool = False
) -> NDArray[np.float64]:
    r"""Bytes of one request's key-value cache at a context of ``n_context`` tokens (any shape), stored once.

    .. math:: b \sum_\text{layers} e_l \left\lfloor \min(n, w_l) / r_l \right\rfloor

    with :math:`e_l` elements an entry (keys and values of all key-value heads, or one latent), :math:`w_l` the layer's
    window and :math:`r_l` tokens an entry (1 but in compressed attention). Layers that read another layer's cache have
    none. Left out: the keys of sparse attention's indexer (``indexer_bytes``), recurrent states (``state_bytes``),
    page rounding. ``with_mtp`` adds the multi-token-prediction layers.

    Raises ValueError for a negative context, an unknown format or model, and ``with_mtp`` where no shape is public.

    >>> kv_bytes(MODELS["gemma_3_27b"], [1024, 131_072], "bf16") / 2**30
    array([ 0.484375, 10.40625 ])
    """
    by_kind = kv_bytes_by_kind(model, n_context, fmt, with_mtp=with_mtp)
    return sum(by_kind.values(), np.zeros(np.shape(n_context)))


def kv_bytes_by_kind(
    model: Model | str, n_context: ArrayLike, fmt: Format | str, *, with_mtp: bool = False
) -> dict[str, NDArray[np.float64]]:
    """The summands of :py:func:`kv_bytes` by kind: ``full``, ``sliding``, ``chunked``, ``latent``, ``compressed``.

    >>> {kind: float(x) / 2**20 for kind, x in kv_bytes_by_kind(MODELS["gemma_3_27b"], 131_072, "bf16").items()}
    {'sliding': 416.0, 'full': 10240.0}
    """
    of, (context,) = _named(model), not_negative("kv_bytes", n_context=n_context)
    size = as_format(fmt).bytes_per_element
    found: dict[str, NDArray[np.float64]] = {}
    if with_mtp and of.config.n_mtp_uncounted:
        raise ValueError(f"{of}: {of.config.n_mtp_uncounted} multi-token-prediction modules are declared, but the "
                         "config does not give their shape; allowed: with_mtp=False")  # fmt: skip
    layers = of.config.layers + (of.config.mtp_layers if with_mtp else ())
    for term, n in caches.cache_terms(layers).items():
        found[term.kind] = found.get(term.kind, 0.0) + size * n * term.n_elements * term.n_entries(context)
    return found


def indexer_bytes(model: Model | str, n_context: ArrayLike, fmt: Format | str) -> NDArray[np.float64]:
    """Bytes of the keys that sparse attention's indexers keep for one request, beside the key-value cache.

    >>> float(indexer_bytes(MODELS["deepseek_r1"], 1000, "fp8"))
    0.0
    """
    (context,) = not_negative("indexer_bytes", n_context=n_context)
    size, terms = as_format(fmt).bytes_per_element, caches.indexer_terms(_named(model).config.layers)
    return sum((size * n * x.n_elements * x.n_entries(context) for x, n in terms.items()), np.zeros(context.shape))


def state_bytes(model: Model | str, fmt: Format | str, *, with_convolution: bool = False) -> float:
    """Bytes of one request's recurrent states, whatever the context; 0 for a model of attention alone.

    Each state is ``n_heads`` × ``d_key`` × ``d_value`` elements of the width the config declares (FP32 where it
    declares none: kernels accumulate in it), so ``fmt`` does not change it. ``fmt`` is the format of the convolutions'
    windows of the last inputs; they are added ``with_convolution``, and always where they are the only state.

    >>> state_bytes(MODELS["nemotron_3_super"], "bf16") / 2**20
    160.0
    """
    size, out = as_format(fmt).bytes_per_element, 0.0
    for r in caches.recurrent_mixers(_named(model).config.layers):
        out += r.n_heads * r.d_key * r.d_value * r.state_bytes_per_element
        if with_convolution or r.kind == "short_conv":
            out += r.n_conv * (r.conv_tokens - 1) * size
    return out


def kv_bytes_per_rank(
    model: Model | str, n_context: ArrayLike, fmt: Format | str, *, tp: ArrayLike
) -> NDArray[np.float64]:
    """Bytes of one request's key-value cache on each of ``tp`` ranks; together they hold copies where TP exceeds K.

    A latent or compressed cache is one head: every rank holds it whole.

    >>> qwen = MODELS["qwen3_5_397b_a17b"]
    >>> float(8 * kv_bytes_per_rank(qwen, 4096, "bf16", tp=8) / kv_bytes(qwen, 4096, "bf16"))
    4.0
    """
    layers, (context,) = _named(model).config.layers, not_negative("kv_bytes_per_rank", n_context=n_context)
    ranks = whole("kv_bytes_per_rank", tp=tp)
    size = as_format(fmt).bytes_per_element
    out = np.zeros(common_shape("kv_bytes_per_rank", n_context=context, tp=ranks))
    for term, n in caches.cache_terms(layers).items():
        heads, _ = caches.kv_heads_per_rank(term.n_kv_heads, ranks)
        out = out + size * n * heads * term.n_elements_per_head * term.n_entries(context)
    return out


def _load() -> dict[str, Model]:
    found = {}
    for path in sorted((p for p in _CONFIGS.iterdir() if p.name.endswith(".json")), key=lambda p: p.name):
        name = path.name.removesuffix(".json")
        raw = json.loads(path.read_text(encoding="utf-8"))
        of = raw["_source"]
        source = f"{of['file']} of {of['repository']}, {of['licence']}, read {of['date']}"
        found[name] = Model(name=name, title=of["title"], config=hf_config.read(raw), source=source)
    return found


MODELS = _load()


def model(name: Model | str) -> Model:
    """The model of that name; a :py:class:`Model` passes through. Raises ValueError for any other name.

    >>> model("deepseek_r1").title
    'DeepSeek-R1'
    """
    return name if isinstance(name, Model) else look_up("model", name, MODELS)


_named = model  # where an argument has that name
