"""Parallel flags of engines: a layout in their words, or a reason why not."""

import numpy as np
import pytest

from codesign_lib.report import handover
from codesign_lib.report.handover import launch, to_arguments
from codesign_lib.serving.layout import Layout, layouts
from codesign_lib.serving.rules import dcp_allowed
from codesign_lib.specs.models import MODELS

R1, QWEN, LLAMA = "deepseek_r1", "qwen3_235b_a22b", "llama_3_1_405b"


@pytest.mark.parametrize(
    "engine, layout, model, flags",
    [
        # TensorRT-LLM, docs/source/features/parallel-strategy.md
        ("trtllm", Layout(tp_attention=8, tp_ffn=8), QWEN, dict(tensor_parallel_size=8, moe_tensor_parallel_size=8)),
        ("trtllm", Layout(tp_attention=8, ep=8), R1, dict(tensor_parallel_size=8, moe_expert_parallel_size=8)),
        (
            "trtllm",
            Layout(dp=8, tp_ffn=4, ep=2),
            R1,
            dict(
                tensor_parallel_size=8, enable_attention_dp=True, moe_tensor_parallel_size=4, moe_expert_parallel_size=2
            ),
        ),
        (
            "trtllm",
            Layout(tp_attention=8, tp_ffn=8, pp=2),
            LLAMA,
            dict(tensor_parallel_size=8, pipeline_parallel_size=2),
        ),
        # docs/source/features/helix.md: the ranks of a divided context run the FFN as further tensor ranks
        (
            "trtllm",
            Layout(kvp=2, tp_attention=4, tp_ffn=2, ep=4),
            R1,
            dict(
                tensor_parallel_size=4,
                context_parallel_size=2,
                moe_tensor_parallel_size=2,
                moe_expert_parallel_size=4,
                cp_config={"cp_type": "HELIX", "tokens_per_block": 32},
                kv_cache_config={"tokens_per_block": 32},
            ),
        ),
        # SGLang: the tensor ranks are all GPUs of a stage, and attention DP divides them
        ("sglang", Layout(tp_attention=8, tp_ffn=8), LLAMA, {"--tp-size": 8}),
        (
            "sglang",
            Layout(tp_attention=2, dp=4, tp_ffn=2, ep=4),
            QWEN,
            {"--tp-size": 8, "--dp-size": 4, "--enable-dp-attention": True, "--ep-size": 4},
        ),
        ("sglang", Layout(kvp=8, ep=8), R1, {"--tp-size": 8, "--ep-size": 8, "--dcp-size": 8}),
        # vLLM, docs/serving/context_parallel_deployment.md: -tp 8 -dcp 8 of DeepSeek-R1, -tp 8 -dcp 2 of Qwen3-235B
        ("vllm", Layout(kvp=8, tp_ffn=8), R1, {"--tensor-parallel-size": 8, "--decode-context-parallel-size": 8}),
        (
            "vllm",
            Layout(kvp=2, tp_attention=4, tp_ffn=8),
            QWEN,
            {"--tensor-parallel-size": 8, "--decode-context-parallel-size": 2},
        ),
        (
            "vllm",
            Layout(dp=4, tp_attention=2, ep=8),
            QWEN,
            {"--tensor-parallel-size": 2, "--data-parallel-size": 4, "--enable-expert-parallel": True},
        ),
        (
            "vllm",
            Layout(dp=4, tp_attention=2, tp_ffn=8),
            QWEN,
            {"--tensor-parallel-size": 2, "--data-parallel-size": 4},
        ),
        ("vllm", Layout(), LLAMA, {}),
    ],
)
def test_flags(engine, layout, model, flags):
    assert launch(layout, engine, model=model) == flags


@pytest.mark.parametrize(
    "engine, layout, model, says",
    [
        ("trtllm", Layout(dp=4, tp_attention=2, ep=8), R1, "attention is either divided over all GPUs of a stage or"),
        ("trtllm", Layout(dp=8, tp_ffn=8), LLAMA, "attention DP of a model without experts is not documented"),
        ("trtllm", Layout(kvp=2, tp_attention=8, tp_ffn=16), LLAMA, "contexts of latent attention only"),
        ("trtllm", Layout(kvp=2, dp=4, ep=8), R1, "either divided .*; dividing contexts and attention DP together"),
        ("sglang", Layout(kvp=8, tp_attention=8, tp_ffn=64), LLAMA, "sglang cannot run kvp=8 .* of Llama"),
        ("vllm", Layout(dp=2, tp_ffn=2), LLAMA, "start as many instances"),
        ("vllm", Layout(tp_attention=8, tp_ffn=2, ep=4), QWEN, "experts are either whole or all divided"),
        ("vllm", Layout(kvp=4, tp_attention=2, tp_ffn=8), QWEN, "after the 4 key-value heads are"),
        ("vllm", Layout(kvp=2, tp_attention=8, ep=16), "llama_4_maverick", "kvp must divide the query heads of each"),
        ("tgi", Layout(), LLAMA, "engine is 'tgi'; allowed: trtllm, sglang, vllm"),
        ("vllm", Layout(tp_attention=[1, 2], tp_ffn=[1, 2]), LLAMA, "layout is 2 layouts; allowed: one Layout"),
        ("vllm", 8, LLAMA, "layout is 8; allowed: one Layout"),
        ("vllm", Layout(tp_attention=24, tp_ffn=24), LLAMA, "launch: Llama-3.1-405B does not divide"),
        ("vllm", Layout(), "gpt5", "unknown model 'gpt5'"),
    ],
)
def test_refusals(engine, layout, model, says):
    with pytest.raises(ValueError, match=says):
        launch(layout, engine, model=model)


GPUS = {
    "trtllm": ("tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size"),
    "sglang": ("--tp-size", "--pp-size"),
    "vllm": ("--tensor-parallel-size", "--data-parallel-size", "--pipeline-parallel-size"),
}


@pytest.mark.parametrize("model", [R1, QWEN, "llama_3_1_70b"])
@pytest.mark.parametrize("engine", sorted(GPUS))
def test_every_layout_gets_its_gpus_or_a_reason(engine, model):
    every, n_run = layouts(8, model), 0
    for i in range(len(every)):
        try:
            flags = launch(every[i], engine, model=model)
        except ValueError as error:
            assert f"{engine} cannot run {every[i]} of " in str(error)
            continue
        n_run += 1
        assert np.prod([flags.get(name, 1) for name in GPUS[engine]]) == 8
        if "--dp-size" in flags:
            assert flags["--enable-dp-attention"] and flags["--tp-size"] % flags["--dp-size"] == 0
        experts = flags.get("moe_tensor_parallel_size", 1) * flags.get("moe_expert_parallel_size", 1)
        assert experts in (1, flags.get("tensor_parallel_size", 1) * flags.get("context_parallel_size", 1))
    assert 0 < n_run <= len(every)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_vllm_is_handed_no_context_that_it_refuses(model):
    """Of all layouts: those that ``dcp_allowed`` refuses, and no others, are refused for how contexts are divided."""
    for n in (8, 16, 32):
        every = layouts(n, model)
        if not every.shape:
            continue
        for i in range(len(every)):
            said = ""
            try:
                launch(every[i], "vllm", model=model)
            except ValueError as error:
                said = str(error)
            for_contexts = "contexts are divided" in said or "kvp must divide" in said
            assert for_contexts != dcp_allowed(model, tp=every[i].n_replica, dcp=every[i].kvp), every[i]


def test_arguments_are_text():
    flags = launch(Layout(dp=4, tp_attention=2, ep=8), "vllm", model=QWEN)
    assert to_arguments(flags) == "--tensor-parallel-size 2 --data-parallel-size 4 --enable-expert-parallel"
    assert to_arguments({}) == ""
    assert '"cp_type": "HELIX"' in handover.to_json(launch(Layout(kvp=2, tp_ffn=2), "trtllm", model=R1))


@pytest.mark.parametrize("engine", ["trtllm", "sglang", "vllm"])
def test_experts_that_ranks_do_not_divide_are_no_plain_flag(engine):
    """256 experts over 36 GPUs are 288 slots, which a load balancer has to fill."""
    with pytest.raises(ValueError, match="ep must divide the experts: spare slots need a load balancer"):
        launch(Layout(dp=36, ep=36), engine, model="deepseek_r1")
    assert launch(Layout(dp=32, ep=32), engine, model="deepseek_r1")
