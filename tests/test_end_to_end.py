"""Serving end to end: closed forms of TPOT and throughput, limits, drafts, and measured rows within recorded errors."""

from dataclasses import replace

import numpy as np
import pytest

from codesign_lib.serving import end_to_end, prefill
from codesign_lib.serving.decode import decode_step_s
from codesign_lib.serving.end_to_end import aggregated, served, tokens_a_step
from codesign_lib.serving.layout import Layout
from codesign_lib.specs import published
from codesign_lib.specs.formats import Precision
from codesign_lib.specs.models import MODELS

FP8 = Precision(weights="fp8", activations="fp8", kv="fp8")
TP4 = Layout(tp_attention=4, tp_ffn=4)
HOW = dict(layout=TP4, n_input=1024, n_output=512, precision=FP8)


def serve(**change):
    return aggregated("llama_3_1_70b", "h200_sxm", **(dict(batch=16) | HOW | change))


def test_the_formula():
    s = serve()
    over = end_to_end.overhead("llama_3_1_70b", "h200_sxm", FP8)
    step = decode_step_s(
        "llama_3_1_70b", "h200_sxm", layout=TP4, batch=16, n_context=1024 + 256, precision=FP8, overhead=over
    ).step_s
    prompt = prefill.layer_costs("llama_3_1_70b", "h200_sxm", n_new=1024, layout=TP4, precision=FP8).total_s
    assert s.tpot_s == pytest.approx(step + 15 / 512 * prompt)
    assert s.held_up_s == pytest.approx(15 / 512 * prompt)
    assert s.ttft_s == pytest.approx(prompt + step)
    assert s.request_per_s == pytest.approx(16 / (16 * prompt + 512 * step))
    assert s.interactivity_per_s == 1 / s.tpot_s


def test_little_s_law_and_the_two_stages_of_a_pipeline():
    s = serve(layout=Layout(tp_attention=2, tp_ffn=2, pp=2), batch=[2, 32])
    waiting_s = s.held_up_s  # for one step in 512, before the first token
    in_flight = s.request_per_s * (waiting_s + s.ttft_s + 511 * s.tpot_s)
    assert in_flight == pytest.approx([2, 32])
    assert s.held_up_s[1] == pytest.approx(31 / 512 * s.prompt_s[1] / 2)


def test_a_replica_is_held_up_by_its_own_prompts_only():
    many = serve(layout=Layout(dp=4, tp_ffn=4), batch=64)
    assert many.held_up_s == pytest.approx(15 / 512 * many.prompt_s)
    assert serve(batch=1).held_up_s == 0
    assert serve(prompt_s=0.0).tpot_s == pytest.approx(serve().tpot_s - serve().held_up_s)


def test_longer_prompts_and_fuller_batches_are_slower():
    s = serve(batch=np.array([1, 4, 16, 64])[:, None], n_input=[128, 1024, 8192])
    assert s.tpot_s.shape == (4, 3)
    assert (np.diff(s.tpot_s, axis=0) > 0).all() and (np.diff(s.tpot_s[1:], axis=1) > 0).all()
    assert (np.diff(s.request_per_s[:3], axis=0) > 0).all()


@pytest.mark.parametrize("n_output", [1, 2, 8, 128, 1024])
def test_a_replica_is_busy_all_the_time_and_no_more(n_output):
    """Prompts and steps that a second's requests need take a second, however short the answers are."""
    s = serve(layout=Layout(dp=4, tp_ffn=4), batch=64, n_output=n_output)
    steps = n_output / 16  # sixteen sequences share one
    assert s.request_per_s / 4 * (s.prompt_s + steps * s.step.step_s) == pytest.approx(1)


def test_launches_of_routed_experts_are_not_hidden():
    mix = Precision(weights="nvfp4", activations="nvfp4", kv="fp8")
    found = end_to_end.launches_s("qwen3_235b_a22b", "gb300", mix)
    # all FFNs are of routed experts: what is left is a router in each of 94 layers, in BF16 like the head
    assert found["ffn"] == pytest.approx(94 * found["head"]) and found["head"] > 0


def test_prompts_and_steps_take_every_routing():
    for routing in ("balanced", "random", "skewed"):
        how = dict(layout=Layout(dp=8, ep=8), batch=64, n_input=1024, n_output=512, precision=FP8, routing=routing)
        s = aggregated("deepseek_r1", "h200_sxm", **how)
        one = dict(n_new=1024, layout=Layout(dp=8, ep=8), precision=FP8, routing=routing)
        assert s.prompt_s == prefill.layer_costs("deepseek_r1", "h200_sxm", **one).total_s


def test_a_launch_before_the_mixer_and_one_before_the_ffn():
    of = MODELS["deepseek_v4_flash"]
    bare = replace(of, config=replace(of.config, layers=tuple(replace(x, n_hyper=0) for x in of.config.layers)))
    found, without = (end_to_end.launches_s(x, "gb300", FP8) for x in (of, bare))
    assert found["ffn"] - without["ffn"] == pytest.approx(of.n_layers * found["head"])  # two in BF16 there too


def test_engines_differ_by_their_overhead():
    trt, sgl, vllm = (end_to_end.constants(e) for e in ("trtllm", "sglang", "vllm"))
    assert trt == sgl and vllm["sequence_s"] == trt["sequence_s"] and vllm["step_s"] > trt["step_s"] > 0
    assert serve(engine="vllm").tpot_s == pytest.approx(serve(engine="sglang").tpot_s + vllm["step_s"] - sgl["step_s"])
    with pytest.raises(ValueError, match="engine is 'tgi'; allowed: trtllm, sglang, vllm"):
        serve(engine="tgi")


class TestDrafts:
    def test_closed_form_by_simulation(self):
        draws = np.random.default_rng(1).random((200_000, 3)) < 0.7
        made = 1 + np.cumprod(draws, axis=1).sum(axis=1)
        assert tokens_a_step(3, 0.7) == pytest.approx(made.mean(), rel=0.01)

    def test_limits(self):
        assert tokens_a_step(5, 0.0) == 1
        assert tokens_a_step(5, 1.0) == 6
        assert tokens_a_step(0, 0.9) == 1
        assert tokens_a_step([1, 2], [[0.5], [1.0]]).tolist() == [[1.5, 1.75], [2.0, 3.0]]

    def test_drafts_pay_when_they_are_accepted(self):
        plain, good, bad = serve(batch=1), serve(batch=1, n_draft=3, acceptance=0.8), serve(batch=1, n_draft=3)
        assert good.tpot_s < 0.5 * plain.tpot_s
        assert bad.tpot_s >= plain.tpot_s
        slow = serve(batch=1, n_draft=3, acceptance=0.8, draft_s=0.004)
        assert slow.tpot_s == pytest.approx(good.tpot_s + 0.004 / tokens_a_step(3, 0.8))

    @pytest.mark.parametrize(("d", "a"), [(1.5, 0.5), (2, 1.1)])
    def test_refusals(self, d, a):
        with pytest.raises(ValueError, match="allowed: 0 to 1, and whole"):
            tokens_a_step(d, a)

    def test_the_first_token_takes_a_whole_step(self):
        s = serve(n_draft=3, acceptance=0.9)
        assert s.ttft_s == pytest.approx(float(s.prompt_s + s.step.step_s))

    @pytest.mark.parametrize("draft_s", [-1.0, np.inf, np.nan])
    def test_the_drafter_takes_a_time(self, draft_s):
        with pytest.raises(ValueError, match=r"draft_s is .*; allowed: (finite|real) numbers"):
            serve(n_draft=1, acceptance=0.5, draft_s=draft_s)


def test_interactivity_is_one_over_tpot():
    # 1,000 tokens in 22 s, the first after 2 s: what the user sees is not 1,000 / 22
    step = replace(
        serve(batch=1).step, **{f"{part}_s": 0.0 for part in serve().step.parts_s} | {"overhead_s": 20 / 999}
    )
    s = served(step, batch=1, n_output=1000, layout=Layout(), prompt_s=2.0 - 20 / 999)
    assert (s.ttft_s, s.tpot_s) == pytest.approx((2.0, 20 / 999))
    assert s.request_per_s == pytest.approx(1 / 22)
    assert s.interactivity_per_s == pytest.approx(49.95)


@pytest.mark.parametrize(
    ("model", "median", "p90"), [("llama_3_1_70b", 0.06, 0.16), ("llama_3_1_8b", 0.06, 0.2), ("qwen3_32b", 0.15, 0.5)]
)
def test_measured_rows(model, median, p90):
    """The committed sample, drawn evenly over tables large and small; all rows are in tools/validate_tpot.py."""
    rows = published.table("serving_sample").where(model=model)
    error, names = [], ("chip", "engine", "fmt", "n_input", "n_output", "n_batch", "tp", "tpot_s")
    for chip, engine, fmt, n_in, n_out, b, tp, took in zip(*(rows[c].tolist() for c in names), strict=True):
        if b * tp > 512:  # the cache does not hold as many: waiting is not modelled here
            continue
        mix = Precision(weights=fmt, activations=fmt, kv="fp8" if fmt in ("fp8", "nvfp4") else "bf16")
        sizes = dict(layout=Layout(tp_attention=int(tp), tp_ffn=int(tp)), batch=b, n_input=n_in, n_output=n_out)
        error.append(aggregated(model, chip, **sizes, precision=mix, engine=engine).tpot_s / took - 1)
    assert len(error) > 20
    assert np.median(np.abs(error)) < median
    assert np.quantile(np.abs(error), 0.9) < p90
