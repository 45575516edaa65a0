"""Which layers of a model go to NVFP4, which stay, and why: every linear layer once, in one plan.

Layers that engines run as one (q, k, v; gate, up) are decided together, since they share one global scale. The two
matrices of the experts are decided together because kernels run both in one format; their scales are each expert's own.
:py:mod:`codesign_lib.report.handover` writes a plan down for the tools that carry it out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from codesign_lib.specs import module_names
from codesign_lib.specs.formats import Precision, as_precision
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as named
from codesign_lib.specs.module_names import Module

# K and N that a GEMM takes: ModelOpt 0.47, torch/quantization/backends/nvfp4_gemm.py. Block scales come in tiles of
# 128 rows by 4 blocks of 16: cuBLAS documentation, block scaling factors layout.
K_MULTIPLE, N_MULTIPLE, N_TILE = 64, 32, 128
KINDS = {
    "attention": "attention is a small part of the weights, and more of the error than its share",
    "expert": "experts stay, as asked",
    "ffn": "dense feed-forward layers stay, as asked",
    "indexer": "an indexer picks the tokens to attend to: a small layer, whose mistakes drop tokens",
    "latent": "every token and all experts pass through it",
    "recurrent": "a recurrent layer carries its error on from token to token in its state",
    "residual": "mixes the residual streams, small and no ordinary linear layer",
    "router": "a router picks experts: a small layer, whose mistakes send tokens elsewhere",
    "shared_expert": "a shared expert serves every token, as an attention layer does",
}
ALWAYS_KEPT = ("indexer", "residual", "router")
KEPT = (*ALWAYS_KEPT, "latent", "recurrent")
HEAD = "the output head: its error goes straight into the probabilities"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A group of equal linear layers with one decision.

    ``modules`` are names within a layer (``*``: every expert), ``layers`` the layers they are in, ``()`` for what
    stands outside. k×n is the fused matrix, ``count`` how many there are in the network.
    """

    modules: tuple[str, ...]
    layers: tuple[int, ...]
    weight: str
    kind: str
    k: int
    n: int
    count: int
    quantised: bool
    why: str

    @property
    def n_params(self) -> int:
        """Elements of all of them."""
        return self.k * self.n * self.count


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every linear layer of a model, each in one entry, and the precision asked for."""

    model: Model
    precision: Precision
    entries: tuple[Entry, ...]

    @property
    def quantised_fraction(self) -> float:
        """Share of the linear layers' parameters that is quantised."""
        return sum(e.n_params for e in self.entries if e.quantised) / sum(e.n_params for e in self.entries)

    def __repr__(self) -> str:
        kept = list(dict.fromkeys(e.weight for e in self.entries if not e.quantised))
        low = list(dict.fromkeys(e.weight for e in self.entries if e.quantised))
        return (
            f"Plan of {self.model}: {100 * self.quantised_fraction:.1f} % of the linear layers' parameters in NVFP4 "
            f"({', '.join(low) or 'none'}); kept: {', '.join(kept) or 'none'}"
        )


def plan(
    model: Model | str,
    *,
    precision: Precision | None = None,
    keep: Collection[str] = KEPT,
    n_first: int = 0,
    n_last: int = 0,
    tp: int = 1,
    tp_experts: int | None = None,
) -> Plan:
    """Decide every linear layer of a model.

    ``precision`` defaults to weights and activations in NVFP4, cache and head in BF16.
    ``keep``: kinds of layers that stay high, of ``KINDS``; indexers, routers and residual mixing stay in any case.
    ``n_first``, ``n_last``: whole layers at the ends that stay. ``tp`` ranks divide attention and dense layers,
    ``tp_experts`` (default: as many) the experts. On each rank K must be a multiple of 64 and N of 32, or the layer
    stays; an N that is no multiple of 128 is quantised, its scales padded.

    Raises ValueError for weights other than NVFP4, an unknown kind, more layers than there are, and a family whose
    module names are not known.

    >>> decided = plan("qwen3_235b_a22b")
    >>> [(e.weight, e.quantised) for e in decided.entries]
    [('qkv', True), ('out', True), ('router', False), ('expert gate_up', True), ('expert down', True), ('head', False)]
    >>> round(decided.quantised_fraction, 3)
    0.997
    """
    of, default = named(model), Precision(weights="nvfp4", activations="nvfp4", kv="bf16")
    precision = default if precision is None else as_precision(f"plan of {of}", precision)
    _check(of, precision, keep, n_first, n_last, tp, tp_experts)
    keep, tp_experts = {*keep, *ALWAYS_KEPT}, tp_experts or tp
    found: dict[tuple, list[int]] = {}
    for i, layer in enumerate(of.config.layers):
        end = f"one of the first {n_first} layers" if i < n_first else ""
        end = f"one of the last {n_last} layers" if i >= of.n_layers - n_last else end
        groups = _groups(module_names.layer_modules(layer, of.config))
        gated = not module_names.style(of.config).gate and any(getattr(m, "n_gate", 0) for m in layer.mixers)
        decided = {
            weight: _decision(group, keep, end, tp_experts if group[0].kind == "expert" else tp, gated=gated)
            for weight, group in groups.items()
        }
        for weight, group in groups.items():
            found.setdefault((weight, tuple(group), *_with_partner(weight, decided)), []).append(i)
    entries = [
        Entry(modules=tuple(m.name for m in group), layers=tuple(layers), weight=weight, kind=group[0].kind,
              k=group[0].k, n=sum(m.n for m in group), count=group[0].count * len(layers), quantised=yes, why=why)
        for (weight, group, yes, why), layers in found.items()
    ]  # fmt: skip
    return Plan(model=of, precision=precision, entries=(*entries, *_outer(of, precision.head.name == "nvfp4", tp)))


def _check(of: Model, precision: Precision, keep, n_first: int, n_last: int, tp: int, tp_experts: int | None) -> None:
    if precision.weights.name != "nvfp4" or precision.activations.name not in ("nvfp4", "bf16"):
        raise ValueError(
            f"plan of {of}: weights in {precision.weights.name} and activations in {precision.activations.name}; "
            "allowed: nvfp4 weights with nvfp4 or bf16 activations"
        )
    if precision.head.name not in ("bf16", "nvfp4"):
        raise ValueError(f"plan of {of}: head is {precision.head.name}; allowed: bf16, nvfp4")
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        raise ValueError(f"plan of {of}: keep holds {keep!r}; allowed: several of {', '.join(KINDS)}")
    if unknown := sorted({str(kind) for kind in keep} - set(KINDS)):
        raise ValueError(f"plan of {of}: keep holds {', '.join(unknown)!r}; allowed: {', '.join(KINDS)}")
    for name, value, least in (("n_first", n_first, 0), ("n_last", n_last, 0), ("tp", tp, 1),
                               ("tp_experts", tp if tp_experts is None else tp_experts, 1)):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"plan of {of}: {name} is {value!r}; allowed: a whole number from {least}")
    if n_first + n_last > of.n_layers:
        raise ValueError(f"plan of {of}: n_first + n_last is {n_first + n_last}; allowed: at most {of.n_layers} layers")


def _groups(modules: Iterable[Module]) -> dict[str, list[Module]]:
    """Modules of one layer by the weight that they are parts of."""
    found: dict[str, list[Module]] = {}
    for module in modules:
        found.setdefault(module.weight, []).append(module)
    return found


def _decision(group: list[Module], keep: set[str], end: str, tp: int, *, gated: bool) -> tuple[bool, str]:
    """Whether these modules, which share an input, are quantised together, and why; ``gated``: queries hold a gate."""
    kind, names = group[0].kind, {m.name.rsplit(".", 1)[-1] for m in group}
    if kind in keep:
        return False, KINDS[kind]
    if end:
        return False, end
    if group[0].weight == "output gate":
        return False, "gates attention's output, and a gate does not bear the error"
    if "q_proj" in names and gated:  # ModelOpt issue 2091: perplexity 65 where about 10 is right
        return False, "the queries' projection also gates attention's output, and a gate does not bear the error"
    if "kv_b_proj" in names:  # vLLM, v1/attention/backends/mla/common.py: dequantised when loaded
        return False, "engines fold it into queries and outputs at decode, in BF16"
    if names & {"in_proj_a", "in_proj_b", "x_proj", "dt_proj"}:
        return False, "makes the decay and step of a recurrent state, small and sensitive"
    for module in group:
        for axis, size, multiple in (("K", module.k, K_MULTIPLE), ("N", module.n, N_MULTIPLE)):
            rank = size / tp if module.split == axis.lower() else size
            if rank % multiple:
                where = f" on each of {tp} ranks" if rank != size else ""
                return False, f"{axis} = {rank:g}{where} is no multiple of {multiple}"
    n = sum(m.n / tp if m.split == "n" else m.n for m in group)
    padded = -(-n // N_TILE) * N_TILE
    note = "" if padded == n else f"; scales of its {n:g} rows are padded to {padded:g}"
    return True, f"K and N fit{note}"


def _with_partner(weight: str, decided: Mapping[str, tuple[bool, str]]) -> tuple[bool, str]:
    """The decision, for an expert's matrix that of both: kernels run them in one format."""
    yes, why = decided[weight]
    if weight.startswith("expert") and yes:
        high = [why for other, (low, why) in decided.items() if other.startswith("expert") and not low]
        if high:
            return False, f"the experts' other matrix stays: {high[0]}"
    return yes, why


def _outer(of: Model, low_head: bool, tp: int) -> Iterator[Entry]:
    c = of.config
    if streams := c.layers[0].n_hyper:
        yield Entry(modules=("hc_head.hc_fn",), layers=(), weight="hyper-connection head", kind="residual",
                    k=streams * c.d_model, n=streams, count=1, quantised=False, why=KINDS["residual"])  # fmt: skip
    head = Module(name="lm_head", weight="head", kind="head", k=c.d_model, n=c.n_vocab, split="n")
    yes, why = _decision([head], set(), "" if low_head else HEAD, tp, gated=False)
    if yes and c.tied:
        yes, why = False, "the output head is the embedding table, which is looked up, not multiplied"
    yield Entry(modules=(head.name,), layers=(), weight=head.weight, kind=head.kind, k=head.k, n=head.n, count=1,
                quantised=yes, why=why)  # fmt: skip
