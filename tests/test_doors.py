"""What a user types wrong at a public door: one ValueError that says what is allowed; and what results print as."""

import numpy as np
import pytest

from codesign_lib.cost.moe_kernels import moe_s
from codesign_lib.cost.ops import layer
from codesign_lib.report import handover, nvfp4_plan
from codesign_lib.serving import end_to_end, frontier, memory, pools, prefill
from codesign_lib.serving.decode import decode_step_s
from codesign_lib.serving.layout import Layout, Workload, layouts, valid, violations
from codesign_lib.specs import hardware, models
from codesign_lib.specs.formats import Precision

LLAMA, H200 = models.MODELS["llama_3_1_8b"], hardware.chip("h200_sxm")
FP8 = Precision(weights="fp8", activations="fp8", kv="fp8")
STEP = dict(layout=Layout(), batch=8, n_context=1024)
DOORS = {
    "decode_step_s": lambda p: decode_step_s(LLAMA, H200, precision=p, **STEP),
    "serving_step_s": lambda p: end_to_end.serving_step_s(LLAMA, H200, precision=p, **STEP),
    "memory": lambda p: memory.memory(LLAMA, H200, precision=p, **STEP),
    "max_batch": lambda p: memory.max_batch(LLAMA, H200, layout=Layout(), n_context=1024, precision=p),
    "layer_costs": lambda p: prefill.layer_costs(LLAMA, H200, n_new=64, layout=Layout(), precision=p),
    "aggregated": lambda p: end_to_end.aggregated(
        LLAMA, H200, layout=Layout(), batch=1, n_input=64, n_output=64, precision=p
    ),
    "overhead": lambda p: end_to_end.overhead(LLAMA, H200, p),
    "transfer_s": lambda p: pools.transfer_s(LLAMA, H200, n_input=64, precision=p, n_from=1, n_to=1),
    "prefill_pool": lambda p: pools.prefill_pool(LLAMA, H200, n_chips=1, n_input=64, precision=p),
    "layouts": lambda p: layouts(8, LLAMA, precision=p),
    "valid": lambda p: valid(Layout(), LLAMA, precision=p),
    "violations": lambda p: violations(Layout(), LLAMA, precision=p),
    "plan": lambda p: nvfp4_plan.plan(LLAMA, precision=p),
    "layer.decode": lambda p: layer.decode(LLAMA.config.layers[0], 4096, 64, precision=p),
    "layer.prefill": lambda p: layer.prefill(LLAMA.config.layers[0], 4096, 64, precision=p),
}


@pytest.mark.parametrize("bad", ["fp8", ["fp8"], 8], ids=["text", "list", "number"])
@pytest.mark.parametrize("door", DOORS)
def test_a_precision_is_one(door, bad):
    with pytest.raises(ValueError, match=r"precision is .*8.*; allowed: Precision\(weights="):
        DOORS[door](bad)


@pytest.mark.parametrize("door", [handover.llm_compressor, handover.modelopt, handover.ignored])
def test_a_plan_is_one(door):
    with pytest.raises(ValueError, match=r"plan is .*; allowed: a Plan, as nvfp4_plan.plan\(model\) makes it"):
        door(LLAMA)


@pytest.mark.parametrize(
    ("look_up", "name", "near"),
    [
        (hardware.chip, "H200", "h200_sxm"), (hardware.chip, "GB300", "gb300"), (hardware.chip, "B200 SXM", "b200_sxm"),
        (models.model, "Llama-3.1-70B", "llama_3_1_70b"), (models.model, "deepseek-r1", "deepseek_r1"),
    ],
)  # fmt: skip
def test_the_nearest_name_comes_first(look_up, name, near):
    with pytest.raises(ValueError, match=f"unknown .*; did you mean {near}[,?]"):
        look_up(name)


@pytest.mark.parametrize("name", [3, None, "", "zzzzzz", "x" * 10_000], ids=["3", "None", "empty", "far", "long"])
def test_nothing_near_is_not_guessed(name):
    with pytest.raises(ValueError, match=r"unknown chip .*; known: a100_sxm") as refused:
        hardware.chip(name)
    assert "did you mean" not in str(refused.value) and len(str(refused.value)) < 300


def test_vllm_is_pointed_to_what_takes_it():
    with pytest.raises(ValueError, match=r"engine is 'vllm'; allowed: trtllm, sglang .*serving_step_s"):
        decode_step_s(LLAMA, H200, precision=FP8, engine="vllm", **STEP)
    with pytest.raises(ValueError, match=r"engine is 'tgi'; allowed: trtllm, sglang$"):
        decode_step_s(LLAMA, H200, precision=FP8, engine="tgi", **STEP)


def test_a_format_of_no_chip_names_those_of_this_one():
    sizes = dict(d_model=4096, d_expert=1536, n_experts=128, n_chosen=8)
    with pytest.raises(ValueError, match=r"on no chip; H200 SXM has .*sglang fp8_block; .*or one of these formats$"):
        moe_s(8, **sizes, chip=H200, fmt="fp8", engine="sglang")


class TestPrinted:
    def test_points(self):
        load = Workload(n_input=1024, n_output=64, n_concurrent=2 ** np.arange(6))
        found = frontier.sweep(LLAMA, H200, n_chips=[1, 2], workload=load, precisions=FP8)
        lines = str(found).splitlines()
        assert lines[0] == f"Points: {len(found)} kept of {found.n_tried} tried" and repr(found) == str(found)
        assert lines[1].split()[:2] == ["interactivity_per_s", "throughput_per_s"] and len(lines) <= 11
        assert max(map(len, lines[:-1])) < 160 and "one GPU" in str(found)
        assert str(found[np.arange(0)]).startswith(f"Points: 0 kept of {found.n_tried} tried")
        assert "interrupted" in str(frontier.Points(columns={"batch": [1]}, n_tried=2, complete=False))

    def test_plan_and_step(self):
        said = str(nvfp4_plan.plan("qwen3_235b_a22b"))
        assert said.startswith("Plan of Qwen3-235B-A22B: 99.7 % of the linear") and said.endswith("kept: router, head")
        one = decode_step_s(LLAMA, H200, precision=FP8, **STEP)
        assert str(one).endswith(f"= {1e3 * float(one.step_s):.4g} ms") and "attention" in str(one)
        many = decode_step_s(LLAMA, H200, precision=FP8, **STEP | dict(batch=[1, 2, 4]))
        assert str(many).startswith("DecodeStep: 3 steps of ")
