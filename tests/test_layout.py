"""Who holds what: the invariant, every valid division against a brute force, and all violations at once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign_lib.serving import layout as layouts_of
from codesign_lib.serving.layout import AXES, Layout, Workload, check, layouts, valid, violations
from codesign_lib.serving.rules import Rule, dcp_allowed, rules
from codesign_lib.specs import models
from codesign_lib.specs.formats import Precision

IN_FP8_BLOCK = Precision(weights="fp8_block", activations="fp8_block", kv="bf16")
IN_FP4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8")


def with_heads(n_heads, n_kv_heads):
    """Llama-3.1-8B with other head counts."""
    config = models.MODELS["llama_3_1_8b"].config
    (mixer,) = config.layers[0].mixers
    layer = replace(config.layers[0], mixers=(replace(mixer, n_heads=n_heads, n_kv_heads=n_kv_heads),))
    return models.Model(name="x", title="x", config=replace(config, layers=(layer,) * 32), source="changed by a test")


def test_products_of_the_two_halves_are_equal():
    for bad in (dict(tp_attention=8), dict(kvp=2, tp_ffn=4), dict(dp=8, ep=4, tp_ffn=4)):
        with pytest.raises(ValueError, match="allowed: equal products"):
            Layout(**bad)
    mixed = Layout(kvp=2, tp_attention=2, dp=2, tp_ffn=4, ep=2, pp=3)
    assert (mixed.n_replica, mixed.n_stage, mixed.n_gpus, mixed.n_dense_ranks) == (4, 8, 24, 4)
    assert Layout(dp=8, tp_ffn=8).n_dense_ranks == 8
    assert Layout(tp_attention=2, dp=6, tp_ffn=3, ep=4).n_dense_ranks == 6


@pytest.mark.parametrize("bad", [0, -1, 1.5, np.nan, np.inf, True, "2", None, [1, 0]], ids=repr)
@pytest.mark.parametrize("axis", AXES)
def test_an_axis_is_a_whole_number_from_one(axis, bad):
    with pytest.raises(ValueError, match="Layout"):
        Layout(**{axis: bad})


def test_an_array_of_layouts():
    many = Layout(tp_attention=[1, 2, 4], tp_ffn=[1, 2, 5], pp=2)
    assert many.shape == (3,) and len(many) == 3 and many.n_gpus.tolist() == [2, 4, 8]
    assert many[1] == Layout(tp_attention=2, tp_ffn=2, pp=2)
    assert many[:, None].shape == (3, 1)
    with pytest.raises(ValueError, match="equal products"):
        many[2]
    assert valid(many, "llama_3_1_8b").tolist() == [True, True, False]
    with pytest.raises(ValueError, match="do not broadcast"):
        Layout(dp=[1, 2], ep=[1, 2, 3])
    with pytest.raises(ValueError, match="read-only"):
        many.tp_attention[0] = 2
    with pytest.raises(TypeError):
        len(many[0])


def test_equal_layouts_are_equal_and_print_what_they_divide():
    a, b = Layout(kvp=2, tp_ffn=2), Layout(kvp=2, tp_ffn=2)
    assert a == b and hash(a) == hash(b) and a != Layout(dp=2, tp_ffn=2) and a != "kvp=2"
    assert str(a) == "kvp=2 tp_ffn=2" and str(Layout()) == "one GPU" and str(Layout(dp=[1, 1])) == "2 layouts"


def test_workload():
    w = Workload(n_input=1000, n_output=[10, 20], n_concurrent=8)
    assert w.n_context.tolist() == [1010, 1020]
    for bad in (dict(n_input=0), dict(n_output=1.5), dict(n_concurrent=-1), dict(tpot_limit_s=0.0)):
        with pytest.raises(ValueError, match="Workload"):
            Workload(**(dict(n_input=1, n_output=1, n_concurrent=1) | bad))


SAMPLE = ["llama_3_1_405b", "deepseek_r1", "deepseek_v4_pro", "nemotron_3_super"]


@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.parametrize("precision", [None, IN_FP4], ids=["any", "nvfp4"])
@settings(max_examples=12)
@given(n_gpus=st.integers(1, 24), copies=st.booleans())
def test_layouts_are_those_without_violation(name, precision, n_gpus, copies):
    how = dict(precision=precision, copies=copies)
    expected = set()
    for pp in range(1, n_gpus + 1):
        for kvp in range(1, n_gpus // pp + 1):
            for tp in range(1, n_gpus // pp // kvp + 1):
                for f in range(1, n_gpus // pp + 1):
                    n, dp = n_gpus // pp, n_gpus // pp // kvp // tp
                    if pp * kvp * tp * dp == n_gpus and n % f == 0:
                        one = Layout(kvp=kvp, tp_attention=tp, dp=dp, tp_ffn=f, ep=n // f, pp=pp)
                        if not violations(one, name, **how):
                            expected.add(one)
    if not expected:
        with pytest.raises(ValueError, match="does not divide"):
            layouts(n_gpus, name, **how)
        return
    found = layouts(n_gpus, name, **how)
    assert {found[i] for i in range(len(found))} == expected and len(found) == len(expected)


def test_layouts_of_several_sizes_at_once():
    both = layouts([4, 8], "deepseek_r1")
    assert len(both) == len(layouts(4, "deepseek_r1")) + len(layouts(8, "deepseek_r1"))
    assert set(both.n_gpus.tolist()) == {4, 8}


def test_all_violations_at_once_with_the_nearest_legal_sizes():
    # sglang#31799, #31801: one after the other the engine named the vocabulary, the heads and 65,536
    found = {v.what: v for v in violations(Layout(tp_attention=24, tp_ffn=24), "deepseek_v4_pro")}
    assert found["vocabulary"].size == 129_280 and found["query heads"].size == 128
    assert found["attention width"].size == 65_536
    assert found["query heads"].legal == (16, 32) and found["vocabulary"].legal == (20, 32)
    assert "128 % 24 = 8" in str(found["query heads"])
    with pytest.raises(ValueError, match=r"vocabulary.*query heads.*attention width"):
        check("decode_step_s", Layout(tp_attention=24, tp_ffn=24), models.MODELS["deepseek_v4_pro"], IN_FP4)
    with pytest.raises(ValueError, match="allowed: one"):
        violations(Layout(dp=[1, 1]), "deepseek_v4_pro")


def test_expert_width_against_the_block():
    # ATOM#1488, sglang#3345: what is left is no multiple of 128
    config = models.MODELS["qwen3_235b_a22b"]
    (bad,) = violations(Layout(tp_attention=4, dp=2, tp_ffn=8), config, precision=IN_FP8_BLOCK)
    assert (bad.what, bad.formula, bad.legal) == ("expert width", "1,536 / 8 = 192, 192 % 128 = 64", (6, 12))
    for size, tp in ((1536, 8), (3072, 16), (18_432, 32)):
        rule = layouts_of.rules(config, IN_FP8_BLOCK, True)[0]._replace(size=size, block=128)
        assert not rule.holds(tp) and size // tp % 128 == 64 and rule.holds(rule.nearest(tp)[0])
    assert not violations(Layout(tp_attention=4, dp=2, ep=8), config, precision=IN_FP8_BLOCK)  # or EP
    assert not violations(Layout(tp_attention=4, dp=2, tp_ffn=8), config)  # in BF16 it is legal


def test_ten_key_value_heads():
    # sglang#19086: K = 10 cannot be divided or copied over 4 or 8 ranks
    ten = with_heads(40, 10)
    for tp, legal in ((1, True), (2, True), (4, False), (5, True), (8, False), (10, True), (20, True)):
        found = [v for v in violations(Layout(tp_attention=tp, tp_ffn=tp), ten) if v.what == "key-value heads"]
        assert (not found) == legal, tp
    (bad,) = (v for v in violations(Layout(tp_attention=4, tp_ffn=4), ten) if v.what == "key-value heads")
    assert bad.legal == (2, 5)
    # without copies Helix's rule: tensor parallelism up to the key-value heads, the context beyond
    assert valid(Layout(kvp=2, tp_attention=10, tp_ffn=20), ten, copies=False) == valid(
        Layout(kvp=2, tp_attention=10, tp_ffn=20), ten
    )
    assert any(v.what == "key-value heads" for v in violations(Layout(tp_attention=20, tp_ffn=20), ten, copies=False))


def test_a_latent_is_one_head_and_a_dense_model_has_no_experts():
    (bad,) = violations(Layout(tp_attention=8, ep=8), "deepseek_r1", copies=False)
    assert bad.what == "latent heads" and bad.legal == (1,)
    assert not violations(Layout(kvp=8, ep=8), "deepseek_r1", copies=False)
    (bad,) = violations(Layout(dp=8, ep=8), "llama_3_1_8b")
    assert (bad.what, bad.legal) == ("experts", (1,))


def test_the_whole_replica_divides_vocabulary_and_output():
    found = {v.what: v.ranks for v in violations(Layout(kvp=3, tp_attention=2, tp_ffn=6), "qwen3_32b")}
    assert found == {"vocabulary": "n_replica", "attention output": "n_replica", "FFN width": "n_dense_ranks"}


def test_experts_beyond_their_number_and_uneven_ones():
    # 256 experts in 288 slots are 36 GPUs of 8 (TensorRT-LLM, expert parallel load balancing)
    at_36 = Layout(dp=36, ep=36)
    assert not violations(at_36, "deepseek_r1")
    (bad,) = violations(at_36, "deepseek_r1", copies=False)
    assert (bad.what, bad.legal) == ("experts", (32, 64))
    assert [v.what for v in violations(Layout(dp=257, ep=257), "deepseek_r1")] == ["experts"]
    assert [v.what for v in violations(Layout(pp=62), "deepseek_r1")] == ["layers"]


@given(tp=st.sampled_from([1, 2, 4, 8, 16, 32, 64, 96]), dcp=st.integers(1, 96))
def test_decode_context_parallelism_of_vllm(tp, dcp):
    latent, grouped = (bool(dcp_allowed(name, tp=tp, dcp=dcp)) for name in ("deepseek_r1", "llama_3_1_70b"))
    assert latent == (tp % dcp == 0)
    if grouped and dcp > 1:
        assert dcp <= tp // 8 and latent
        # so it divides only what would be copies: our kvp with at least one head a rank
        assert valid(Layout(kvp=dcp, tp_attention=tp // dcp, tp_ffn=tp), "llama_3_1_70b", copies=False) == (
            tp // dcp == 8 and tp <= 64
        )


def test_decode_context_parallelism_in_vllm_s_guide():
    assert dcp_allowed("deepseek_r1", tp=8, dcp=8) and dcp_allowed("kimi_k2", tp=16, dcp=[8, 16]).all()
    assert dcp_allowed("qwen3_235b_a22b", tp=8, dcp=[1, 2, 4]).tolist() == [True, True, False]
    assert dcp_allowed("qwen3_235b_a22b", tp=12, dcp=[1, 3]).tolist() == [True, False]  # 16 queries a head, not by 3


def test_more_ranks_than_can_be_counted_are_refused():
    many = np.array([2**40])
    with pytest.raises(ValueError, match="Layout: more than 2"):
        Layout(kvp=many, dp=many, tp_ffn=many, ep=many)


def rules_of(name, precision=None, copies=True):
    return {x.what: x for x in rules(models.MODELS[name], precision, copies)}


def test_formats_that_come_in_blocks():
    """Each product's inner size: a rank gets whole blocks of its own format."""
    mixed = Precision(weights="fp8_block", activations="fp8_block", kv="bf16", experts="nvfp4")
    found = rules_of("deepseek_v4_pro", mixed)
    assert found["expert width"].block == 16 and found["attention output"].block == 128
    assert found["shared expert width"].block == 128
    plain = rules_of("deepseek_v4_pro")
    assert {plain[x].block for x in ("expert width", "attention output", "shared expert width")} == {1}
    assert Rule("whole", 100, "tp_ffn", "divides", 128).holds([1, 2, 100]).tolist() == [True, False, False]


def test_recurrent_key_heads_are_copied_or_refused():
    # Qwen3.5-397B: 64 value heads and 16 key heads
    kinds = {
        copies: rules_of("qwen3_5_397b_a17b", copies=copies)["recurrent key heads"].kind for copies in (True, False)
    }
    assert kinds == {True: "copies", False: "divides"}
    at = dict(tp_attention=32, ep=32)
    assert not violations(Layout(**at), "qwen3_5_397b_a17b")
    broken = [x.what for x in violations(Layout(**at), "qwen3_5_397b_a17b", copies=False)]
    assert "recurrent key heads" in broken and "recurrent heads" not in broken


def test_no_number_of_gpus_is_refused():
    with pytest.raises(ValueError, match="layouts: n_gpus is empty; allowed: one number, or several"):
        layouts([], "llama_3_1_8b")
