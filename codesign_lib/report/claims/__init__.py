"""Every claim of the book beside the call that computes ours: one list for tests, studies and the scoreboard.

It lives in the library because notebooks run where ``tests/`` is not installed. A module a topic holds the pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from codesign_lib.report.claims import (
    afd,
    attention,
    chips,
    designs,
    dimensioning,
    helix_frontier,
    laws,
    layout,
    nvfp4,
    pipeline,
    roofline,
    served,
    structure,
)
from codesign_lib.report.claims.pair import Pair
from codesign_lib.specs.published import Check

TOPICS: dict[str, Callable[[], Iterator[Pair]]] = {
    "chips": chips.sheets,
    "peaks": roofline.peaks,
    "table2": roofline.table2,
    "squares": roofline.squares,
    "up_down": roofline.up_down,
    "waves": dimensioning.waves,
    "shards": dimensioning.shards,
    "sm_counts": dimensioning.sm_counts,
    "gemm_squares": dimensioning.squares,
    "aspect": dimensioning.aspect,
    "aspect_order": dimensioning.aspect_order,
    "ffns": dimensioning.ffns,
    "figure4": dimensioning.figure4,
    "one_more": dimensioning.one_more,
    "misaligned": dimensioning.misaligned,
    "moe_dense": dimensioning.moe_dense,
    "stacks": dimensioning.stacks,
    "ladder": attention.ladder,
    "attention_article": attention.attention_article,
    "latent_heads": attention.latent_heads,
    "expert_ranks": attention.expert_ranks,
    "scaling_law": laws.scaling_law,
    "granularity": laws.granularity,
    "user_questions": attention.user_questions,
    "interactivity": served.interactivity,
    "token_prices": served.token_prices,
    "llama_70b": served.llama_70b,
    "served": served.served,
    "structure": structure.structure,
    "regimes": structure.regimes,
    "pruning": designs.pruning,
    "helix_figure1": layout.helix_figure1,
    "overlap": layout.overlap,
    "expert_limits": layout.expert_limits,
    "all_to_all": layout.all_to_all,
    "sequel": layout.sequel,
    "plateau": layout.plateau,
    "latent_experts": layout.latent_experts,
    "one_kv_head": layout.one_kv_head,
    "helix_factors": helix_frontier.helix_factors,
    "step3_work": afd.step3_work,
    "step3_costs": afd.step3_costs,
    "fast_afd": afd.fast_afd,
    "micro_batches": afd.micro_batches,
    "bubbles": pipeline.bubbles,
    "slicings": pipeline.slicings,
    "stage_orders": pipeline.stage_orders,
    "sent": pipeline.sent,
    "first_tokens": pipeline.first_tokens,
    "scaling": pipeline.scaling,
    "outside": pipeline.outside,
    "figure9": pipeline.figure9,
    "error_law": nvfp4.error_law,
    "recipe_errors": nvfp4.recipe_errors,
    "rotation": nvfp4.rotation,
    "scale_rounding": nvfp4.scale_rounding,
    "storage": nvfp4.storage,
    "nvfp4_questions": nvfp4.nvfp4_questions,
    "nvfp4_speed": nvfp4.nvfp4_speed,
    "best_layer": nvfp4.best_layer,
    "checkpoints": nvfp4.checkpoints,
    "kv_cache": nvfp4.kv_cache,
}


@cache
def pairs(topic: str) -> tuple[Pair, ...]:
    """All pairs of one topic, in the order in which they are shown.

    Raises ValueError for a topic that is none of ``TOPICS``.

    >>> [p.key for p in pairs("peaks")]
    ['peaks/bf16', 'peaks/fp8', 'peaks/nvfp4']
    """
    if topic not in TOPICS:
        raise ValueError(f"no claims on {topic!r}; topics: {', '.join(TOPICS)}")
    return tuple(TOPICS[topic]())


def check(topic: str) -> list[Check]:
    """Every claim of a topic held against our number.

    >>> all(c.ok for c in check("table2"))
    True
    """
    return [pair.check() for pair in pairs(topic)]


def find(key: str) -> Pair:
    """The pair of that key. Raises ValueError for a key that no topic has.

    >>> find("table2/math/m256").claim.unit
    's'
    """
    found = next((p for topic in TOPICS for p in pairs(topic) if p.key == key), None)
    if found is None:
        raise ValueError(f"no claim {key!r}; keys begin with {', '.join(TOPICS)}")
    return found
