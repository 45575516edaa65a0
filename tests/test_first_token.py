"""A prompt's way through the stages of a layout."""

import numpy as np
import pytest

from codesign_lib.cost import collectives
from codesign_lib.serving import first_token as ft
from codesign_lib.serving import pipeline, prefill, slicing
from codesign_lib.serving.layout import Layout
from codesign_lib.specs.formats import Precision

FP8 = dict(precision=Precision(weights="fp8", activations="fp8", kv="fp8"))
PP4 = Layout(tp_attention=2, tp_ffn=2, pp=4)


def first(chunks, layout=PP4, **how):
    return ft.first_token("llama_3_1_70b", how.pop("chip", "gb300"), n_input=how.pop("n_input", None) or sum(chunks),
                          chunks=chunks, layout=layout, **FP8 | how)  # fmt: skip


def test_one_stage_and_one_chunk_is_the_sum_of_all_layers():
    alone = Layout(tp_attention=8, tp_ffn=8)
    found = first([32_768], alone)
    costs = prefill.layer_costs("llama_3_1_70b", "gb300", n_new=32_768, layout=alone, **FP8)
    assert found.ttft_s == pytest.approx(float(costs.total_s), rel=1e-12)
    assert found.ttft_s == pytest.approx(sum(found.parts_s.values()), rel=1e-12)
    assert found.idle_fraction == pytest.approx(0, abs=1e-12)
    assert found.tokens_per_s_per_gpu == pytest.approx(32_768 / found.ttft_s / 8)
    assert found.most_tokens_per_s_per_gpu == pytest.approx(found.tokens_per_s_per_gpu)


def test_stages_hold_their_layers():
    found = first([8192] * 4, stage_layers=[19, 20, 20, 21])
    rows = prefill.layer_costs(
        "llama_3_1_70b", "gb300", n_new=8192, n_prefix=8192 * np.arange(4), layout=PP4, **FP8
    ).cost_s
    assert np.allclose(found.stage_s, [rows[:20].sum(0), rows[20:40].sum(0), rows[40:60].sum(0), rows[60:].sum(0)])
    assert first([8192] * 4).stage_layers.tolist() == [20] * 4
    assert ft.even_stages(61, 8).tolist() == [7, 7, 7, 8, 8, 8, 8, 8]


def test_a_plain_pipeline_does_not_help_one_prompt():
    tp2 = first([65_536], Layout(tp_attention=2, tp_ffn=2))
    plain, cut = first([65_536]), first([8192] * 8)
    assert plain.ttft_s == pytest.approx(tp2.ttft_s, rel=0.01)
    assert cut.ttft_s < 0.5 * plain.ttft_s
    assert plain.idle_fraction == pytest.approx(0.75, abs=0.01)
    assert plain.most_tokens_per_s_per_gpu == pytest.approx(tp2.tokens_per_s_per_gpu, rel=0.02)  # filled, it is as good


def test_links_are_nics_between_domains_and_counted_once_each():
    small, large = Layout(tp_attention=4, tp_ffn=4, pp=2), Layout(tp_attention=8, tp_ffn=8, pp=2)
    inside, across = (first([8192] * 2, x, chip="h200_sxm").link_s for x in (small, large))
    message = 8192 * 8192 * 2
    near = float(collectives.point_to_point_s(message, chip="h200_sxm"))
    assert inside == pytest.approx(np.full((1, 2), near))
    assert message / 450e9 < near < 2 * message / 450e9
    assert across == pytest.approx(np.full((1, 2), message / 50e9))
    four = first([8192], Layout(tp_attention=4, tp_ffn=4, pp=4), chip="h200_sxm").link_s[:, 0]
    assert four == pytest.approx([near, message / 50e9, near])
    bound = first([8192], small, chip="h200_sxm", bound=True).link_s
    assert bound == pytest.approx(message / 450e9)


def test_optimal_chunks_are_no_worse_than_fixed_and_dynamic_ones():
    n, how = 131_072, dict(layout=PP4, **FP8)
    best = ft.optimal_chunks("llama_3_1_70b", "gb300", n_input=n, granule_tokens=1024, **how)
    assert best.sizes.sum() == n
    took = first(best.sizes)
    # stages are alike but for embedding and head, links are short
    assert took.ttft_s == pytest.approx(best.finish_s, rel=0.05)
    fixed = [first(slicing.fixed_chunks(n, size)).ttft_s for size in 1024 * 2 ** np.arange(8)]
    assert took.ttft_s < 1.01 * min(fixed)
    dynamic = ft.dynamic_chunks("llama_3_1_70b", "gb300", n_input=n, first_tokens=16_384, **how)
    assert dynamic.sum() == n and (np.diff(dynamic) <= 0).all() and dynamic[0] == 16_384
    assert best.lower_bound_s <= first(dynamic).ttft_s


def test_the_law_is_that_of_the_costs():
    a, b = ft.prompt_law("llama_3_1_70b", "gb300", up_to_tokens=65_536, layout=PP4, **FP8)
    x = np.array([16_384, 65_536])
    took = prefill.layer_costs("llama_3_1_70b", "gb300", n_new=x, layout=PP4, **FP8).total_s
    assert np.diff(a * x * x + b * x) == pytest.approx(np.diff(took), rel=0.02)


def test_filled_pipelines_are_limited_by_the_longest_stage():
    found = first([8192] * 8)
    served = pipeline.served(found.stage_s, np.zeros(200), found.link_s)
    per_gpu = float(served.requests_per_s) * 65_536 / 8
    assert per_gpu == pytest.approx(found.most_tokens_per_s_per_gpu, rel=0.01)
    assert found.tokens_per_s_per_gpu < per_gpu


def test_replicas_each_bring_a_prompt():
    dp = Layout(dp=4, ep=4)
    how = dict(n_input=8192, chunks=[8192], **FP8)
    found = ft.first_token("deepseek_r1", "gb300", layout=dp, **how)
    assert found.tokens_per_s_per_gpu == pytest.approx(4 * 8192 / found.ttft_s / 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_input": 10_000}, "chunks sum to 16,384; allowed: n_input, 10,000"),
        ({"chunks": [8192, 0]}, "chunks is 0.0"),
        ({"chunks": [[8192]]}, r"chunks has shape \(1, 1\)"),
        ({"layout": PP4[None]}, "layout is 1 layouts; allowed: one Layout"),
        ({"layout": Layout(pp=81)}, "does not divide|n_stages is 81"),
        ({"stage_layers": [20, 20, 20]}, "allowed: 4 numbers that sum to 80, the layers of Llama-3.1-70B"),
        ({"stage_layers": [20, 20, 20, 21]}, "that sum to 80"),
        ({"stage_layers": [0, 20, 30, 30]}, "stage_layers is 0.0"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        first(**({"chunks": [8192, 8192], "n_input": 16_384} | change))


def test_optimal_chunks_refuses_a_granule_that_does_not_divide():
    with pytest.raises(ValueError, match="n_input is 10,000; allowed: a multiple of granule_tokens, 1,024"):
        ft.optimal_chunks("llama_3_1_70b", "gb300", n_input=10_000, granule_tokens=1024, layout=PP4, **FP8)
