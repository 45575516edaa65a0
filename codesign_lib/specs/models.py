"""Models: what the network is. For now three of them, as the shapes of their linear layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LinearLayer:
    """One kind of linear layer: ``count`` of them in the network, each a k×n weight.

    ``tokens_fraction`` is the share of all tokens that reaches each one: 1 for a layer that all tokens pass,
    top-k / experts for a routed expert under balanced routing. ``kind`` is ``attention``, ``ffn``, ``expert``,
    ``shared_expert``, ``router`` or ``head``.
    """

    name: str
    k: int
    n: int
    count: int
    kind: str
    tokens_fraction: float = 1.0

    @property
    def n_params(self) -> int:
        return self.k * self.n * self.count


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network as its linear layers; projections that engines fuse (QKV, gate and up) are one layer here."""

    name: str
    title: str
    layers: tuple[LinearLayer, ...]
    source: str

    def linear_layers(self) -> tuple[LinearLayer, ...]:
        """All linear layers, output head included.

        >>> sum(layer.n_params for layer in MODELS["llama_3_1_405b"].linear_layers()) / 1e9
        403.747...
        """
        return self.layers

    def __str__(self) -> str:
        return self.title


def _layer(name: str, k: int, n: int, count: int, kind: str, tokens_fraction: float = 1.0) -> LinearLayer:
    return LinearLayer(name=name, k=k, n=n, count=count, kind=kind, tokens_fraction=tokens_fraction)


_ALL = (
    Model(
        name="llama_3_1_405b",
        title="Llama-3.1-405B",
        source="config.json of meta-llama/Llama-3.1-405B",
        layers=(
            _layer("qkv", 16384, (128 + 2 * 8) * 128, 126, "attention"),
            _layer("out", 128 * 128, 16384, 126, "attention"),
            _layer("gate_up", 16384, 2 * 53248, 126, "ffn"),
            _layer("down", 53248, 16384, 126, "ffn"),
            _layer("head", 16384, 128256, 1, "head"),
        ),
    ),
    Model(
        name="deepseek_r1",
        title="DeepSeek-R1",
        source="config.json of deepseek-ai/DeepSeek-R1",
        layers=(
            _layer("q_a and kv_a", 7168, 1536 + 512 + 64, 61, "attention"),
            _layer("q_b", 1536, 128 * (128 + 64), 61, "attention"),
            _layer("kv_b", 512, 128 * (128 + 128), 61, "attention"),
            _layer("out", 128 * 128, 7168, 61, "attention"),
            _layer("gate_up", 7168, 2 * 18432, 3, "ffn"),
            _layer("down", 18432, 7168, 3, "ffn"),
            _layer("router", 7168, 256, 58, "router"),
            _layer("expert gate_up", 7168, 2 * 2048, 58 * 256, "expert", 8 / 256),
            _layer("expert down", 2048, 7168, 58 * 256, "expert", 8 / 256),
            _layer("shared gate_up", 7168, 2 * 2048, 58, "shared_expert"),
            _layer("shared down", 2048, 7168, 58, "shared_expert"),
            _layer("head", 7168, 129280, 1, "head"),
        ),
    ),
    Model(
        name="gpt_oss_120b",
        title="gpt-oss-120b",
        source="config.json of openai/gpt-oss-120b",
        layers=(
            _layer("qkv", 2880, (64 + 2 * 8) * 64, 36, "attention"),
            _layer("out", 64 * 64, 2880, 36, "attention"),
            _layer("router", 2880, 128, 36, "router"),
            _layer("expert gate_up", 2880, 2 * 2880, 36 * 128, "expert", 4 / 128),
            _layer("expert down", 2880, 2880, 36 * 128, "expert", 4 / 128),
            _layer("head", 2880, 201088, 1, "head"),
        ),
    ),
)

MODELS = {m.name: m for m in _ALL}


def model(name: Model | str) -> Model:
    """The model of that name; a :py:class:`Model` passes through. Raises ValueError for any other name.

    >>> model("deepseek_r1").title
    'DeepSeek-R1'
    """
    if isinstance(name, Model):
        return name
    if isinstance(name, str) and name in MODELS:
        return MODELS[name]
    raise ValueError(f"unknown model {name!r}; known: {', '.join(MODELS)}")
