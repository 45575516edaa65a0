"""The pattern of a model: one label a layer, repeats folded."""

from __future__ import annotations

from codesign_lib.specs.hf_config.fields import CompressedAttention, Layer


def label(layer: Layer) -> str:
    """How a layer mixes tokens / what feed-forward block it has; "-" for none."""
    mixer = "+".join(_mixer_label(x) for x in layer.mixers) or "-"
    ffn = "moe" if any(f.n_experts for f in layer.ffns) else "dense" if layer.ffns else "-"
    return f"{mixer}/{ffn}"


def _mixer_label(mixer: object) -> str:
    if getattr(mixer, "kv_source_layer", None) is not None:
        return f"{mixer.kind} shared"
    if isinstance(mixer, CompressedAttention):
        return f"compressed {mixer.tokens_per_entry}:1" if mixer.tokens_per_entry > 1 else "sliding"
    if not getattr(mixer, "n_selected_tokens", None):
        return mixer.kind
    # "reusing": attends to the tokens that an earlier layer's indexer selected
    return f"{'sparse' if mixer.indexer else 'reusing'} {mixer.kind}"


def folded(labels: tuple[str, ...]) -> str:
    """The labels in order, the longest repeats folded.

    >>> folded(("a", "b", "b", "a", "b", "b", "c"))
    '2 × (1 a + 2 b) + 1 c'
    """
    out, at = [], 0
    while at < len(labels):
        best, period = 1, 1
        for length in range(1, min(16, len(labels) - at) + 1):
            block, n = labels[at : at + length], 1
            while labels[at + n * length : at + (n + 1) * length] == block:
                n += 1
            if n * length > best * period and (n > 1 or length == 1):
                best, period = n, length
        block = labels[at : at + period]
        out.append(f"{best} {block[0]}" if period == 1 else f"{best} × ({folded(block)})")
        at += best * period
    return " + ".join(out)
