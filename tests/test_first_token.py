"""A prompt's way through the stages of a layout."""

import numpy as np
import pytest

from codesign_lib.cost import collectives
from codesign_lib.serving import first_token as ft
from codesign_lib.serving import pipeline, prefill, slicing
from codesign_lib.serving.layout import Layout
from codesign_lib.specs.formats import Precision

FP8 = dict(precision=Precision(weights="fp8", activations="fp8", kv="fp8"))
BF16 = Precision(weights="bf16", activations="bf16", kv="bf16")
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


@pytest.mark.parametrize(
    ("stage", "stages", "across"),
    [(1, 10, [8]), (2, 5, [4]), (3, 4, [2]), (5, 3, [1, 2]), (8, 3, [1, 2]), (16, 3, [1, 2])],
)
def test_no_stage_is_spread_over_two_domains(stage, stages, across):
    # eight GPUs a node; of stages of three it holds two, of five one
    how = dict(n_input=8192, chunks=[8192], precision=BF16, bound=True)
    link = ft.first_token("deepseek_r1", "h200_sxm", layout=Layout(dp=stage, ep=stage, pp=stages), **how).link_s
    expected = [8192 * 7168 * 2 / (50e9 if at in across else 450e9) for at in range(1, stages)]
    assert link[:, 0] == pytest.approx(expected)


def test_the_straddling_case_with_real_kernels():
    link = ft.first_token(
        "deepseek_r1", "h200_sxm", n_input=8192, chunks=[8192], layout=Layout(dp=3, ep=3, pp=4), **FP8
    ).link_s
    near = float(collectives.point_to_point_s(8192 * 7168 * 2, chip="h200_sxm"))
    assert link[:, 0] == pytest.approx([near, 8192 * 7168 * 2 / 50e9, near])


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


def test_a_limit_of_chunks_in_flight_keeps_the_pipeline_from_filling():
    found = first([8192] * 8)
    unlimited, as_stages, two = (found.queued_tokens_per_s_per_gpu(100, in_flight=x) for x in (None, 4, 8))
    assert as_stages < two <= unlimited < found.most_tokens_per_s_per_gpu
    assert unlimited == pytest.approx(found.most_tokens_per_s_per_gpu, rel=0.01)
    served = pipeline.served(found.stage_s, np.zeros(100), found.link_s, in_flight=4)
    assert as_stages == pytest.approx(float(served.requests_per_s) * 65_536 / 8)
    # one chunk at a time: all stages and links, one after the other
    assert found.queued_tokens_per_s_per_gpu(3, in_flight=1) == pytest.approx(
        65_536 / (found.stage_s.sum() + found.link_s.sum()) / 8
    )
    assert found.queued_tokens_per_s_per_gpu(1) == pytest.approx(found.tokens_per_s_per_gpu)
    with pytest.raises(ValueError, match="n_prompts is 0"):
        found.queued_tokens_per_s_per_gpu(0)


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
        ({"n_input": [8]}, r"first_token: n_input is \[8\]; allowed: one whole number"),
        ({"layout": Layout(pp=81)}, "first_token: Llama-3.1-70B does not divide as pp=81: layers: 81 > 80"),
        ({"layout": Layout(pp=81), "stage_layers": [1] * 81}, "does not divide as pp=81"),
        ({"stage_layers": [20, 20, 20]}, "allowed: 4 numbers that sum to 80, the layers of Llama-3.1-70B"),
        ({"stage_layers": [20, 20, 20, 21]}, "that sum to 80"),
        ({"stage_layers": [0, 20, 30, 30]}, "stage_layers is 0.0"),
        ({"precision": None}, "precision is None; allowed: Precision"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        first(**({"chunks": [8192, 8192], "n_input": 16_384} | change))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ft.even_stages(10.5, 2), "even_stages: n_layers is 10.5; allowed: whole"),
        (lambda: ft.even_stages(True, 1), "even_stages: n_layers is True"),
        (lambda: ft.even_stages(-1, 1), "even_stages: n_layers is -1"),
        (lambda: ft.even_stages([4, 4], 1), r"even_stages: n_layers is \[4, 4\]; allowed: one whole number"),
        (lambda: ft.even_stages(4, 5), "n_stages is 5"),
        (lambda: law("x"), "prompt_law: up_to_tokens is 'x'"),
        (lambda: law([64, 128]), r"prompt_law: up_to_tokens is \[64, 128\]; allowed: one whole number"),
        (lambda: law(2), "prompt_law: up_to_tokens is 2; allowed: at least 3"),
        (
            lambda: first([8192]).queued_tokens_per_s_per_gpu([3, 4]),
            r"n_prompts is \[3, 4\]; allowed: one whole number",
        ),
        (
            lambda: plan(ft.optimal_chunks, n_input=2**20, granule_tokens=1),
            "optimal_chunks: granule_tokens is 1; .* 8,192th",
        ),
        (
            lambda: plan(ft.tuned_chunks, n_input=2**20, granule_tokens=64),
            "tuned_chunks: granule_tokens is 64; allowed: at ",
        ),
        (lambda: plan(ft.tuned_chunks, n_input=[65_536]), "tuned_chunks: n_input is .65536.; allowed: one whole"),
        (
            lambda: plan(ft.tuned_chunks, granule_tokens=[1024]),
            "tuned_chunks: granule_tokens is .1024.; allowed: one whole",
        ),
        (lambda: plan(ft.tuned_chunks, n_input=10_000), "tuned_chunks: n_input is 10,000; allowed: a multiple of"),
        (lambda: plan(ft.tuned_chunks, precision=None), "tuned_chunks: precision is None; allowed: Precision"),
        (lambda: plan(ft.tuned_chunks, layout=Layout(pp=81)), "tuned_chunks: Llama-3.1-70B does not divide as pp=81"),
        (
            lambda: plan(ft.optimal_chunks, layout=Layout(pp=81)),
            "optimal_chunks: Llama-3.1-70B does not divide as pp=81",
        ),
        (lambda: plan(ft.optimal_chunks, n_input=10_000), "n_input is 10,000; allowed: a multiple of .*, 1,024"),
        (lambda: plan(ft.optimal_chunks, layout=PP4[None]), "optimal_chunks: layout is 1 layouts; allowed: one Layout"),
        (lambda: plan(ft.tuned_chunks, layout=4), "tuned_chunks: layout is 4; allowed: one Layout"),
    ],
)
def test_plans_refuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def law(n):
    return ft.prompt_law("llama_3_1_70b", "gb300", up_to_tokens=n, layout=PP4, **FP8)


def test_without_a_precision_the_error_names_the_call():
    with pytest.raises(ValueError, match="first_token: precision is None; allowed: Precision"):
        ft.first_token("llama_3_1_70b", "gb300", n_input=8192, chunks=[8192], layout=PP4)


def test_the_law_of_three_tokens_is_the_law():
    a, b = law(3)
    took = prefill.layer_costs("llama_3_1_70b", "gb300", n_new=[1, 2, 3], layout=PP4, **FP8).total_s
    assert a == pytest.approx(max(np.diff(took, 2)[0] / 2, 0), abs=1e-9) and b >= 0


def test_dynamic_chunks_are_no_shorter_than_a_quarter_of_the_first():
    # attention alone in the end: chunks of equal time would be thinner than that
    chunks = ft.dynamic_chunks(
        "llama_3_1_70b", "gb300", n_input=2_097_152, first_tokens=65_536, smoothing=1.0, layout=PP4, **FP8
    )
    assert chunks[-2] == chunks[:-1].min() == 65_536 // 4


def plan(how, **change):
    return how("llama_3_1_70b", "gb300", **dict(n_input=65_536, granule_tokens=1024, layout=PP4) | FP8 | change)


def test_whole_floats_are_whole_numbers():
    for how in (ft.tuned_chunks, lambda *a, **k: ft.optimal_chunks(*a, **k).sizes):
        assert plan(how, n_input=65_536.0).tolist() == plan(how).tolist()


def test_tuned_chunks_are_no_worse_than_fixed_and_dynamic_ones():
    n, how = 65_536, dict(layout=PP4, **FP8)
    took = first(plan(ft.tuned_chunks)).ttft_s
    dynamic = ft.dynamic_chunks("llama_3_1_70b", "gb300", n_input=n, first_tokens=8192, **how)
    assert took <= first(dynamic).ttft_s
    assert took <= min(first(slicing.fixed_chunks(n, size)).ttft_s for size in 1024 * 2 ** np.arange(7)) * (1 + 1e-9)


def test_the_search_begins_between_equal_lengths_and_equal_times_too(monkeypatch):
    fp4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8")
    how = dict(n_input=32_768, layout=Layout(dp=16, ep=16, pp=4), precision=fp4)

    def took():
        chunks = ft.tuned_chunks("deepseek_r1", "gb300", granule_tokens=256, **how)
        return ft.first_token("deepseek_r1", "gb300", chunks=chunks, **how).ttft_s

    every = took()
    monkeypatch.setattr(ft, "SMOOTHINGS", (0.0,))
    assert every < 0.99 * took()
