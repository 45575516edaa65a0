"""Plans of what goes to NVFP4, and the recipes that hand them over."""

import json
import re
from collections import Counter
from dataclasses import replace
from fnmatch import fnmatch
from importlib.resources import files

import pytest

from codesign_lib.report import handover
from codesign_lib.report.nvfp4_plan import KEPT, KINDS, plan
from codesign_lib.specs import module_names, weights
from codesign_lib.specs.formats import Precision
from codesign_lib.specs.models import MODELS, Model
from codesign_lib.specs.published import table

NAMES = sorted(MODELS)
ASKED = {
    "default": {},
    "attention high": dict(keep=(*KEPT, "attention")),
    "ends high": dict(n_first=1, n_last=2),
    "eight ranks": dict(tp=8),
    "experts only": dict(keep=(*KEPT, "attention", "ffn", "shared_expert")),
    "all that may": dict(keep=(), precision=Precision(weights="nvfp4", activations="nvfp4", kv="fp8", head="nvfp4")),
}


def low(**rest):
    return Precision(**(dict(weights="nvfp4", activations="nvfp4", kv="bf16") | rest))


def entry(of: str, weight: str, **asked):
    (found,) = {(e.quantised, e.why) for e in plan(of, **asked).entries if e.weight == weight}
    return found


def stays(made, module):
    """Whether LLM Compressor's and ModelOpt's recipe leave a module of that name high."""
    rules = [r for r in handover.modelopt(made)["quant_cfg"] if "parent_class" not in r]
    on = [r.get("enable", True) for r in rules if fnmatch(f"{module}.weight_quantizer", r["quantizer_name"])]
    return any(re.match(p.removeprefix("re:"), module) for p in handover.ignored(made)), not on[-1]


def modules(made):
    """(name, quantised) of every module of a plan, layer by layer, of experts number 0 and 11."""
    for e in made.entries:
        for module in e.modules:
            for layer in e.layers or (None,):
                for expert in ("0", "11") if "*" in module else ("",):
                    name = module.replace("*", expert)
                    yield name if layer is None else f"model.layers.{layer}.{name}", e.quantised


class TestNames:
    @pytest.mark.parametrize("name", NAMES)
    def test_parts_add_up_to_the_weights(self, name):
        config = MODELS[name].config
        for layer in dict.fromkeys(config.layers):
            ours, theirs = Counter(), Counter()
            for m in module_names.layer_modules(layer, config):
                ours[{"output gate": "qkv"}.get(m.weight, m.weight)] += m.k * m.n * m.count
            for w in weights.layer_weights(layer, config.d_model):
                theirs[w.name] += w.n_params if w.kind or w.name == "shared gate" else 0
            assert ours == +theirs

    @pytest.mark.parametrize("name", sorted(set(table("module_names")["model"].tolist())))
    def test_names_and_shapes_are_those_that_transformers_builds(self, name):
        rows = table("module_names").where(model=name)
        real = {
            (re.sub(r"^model\.(language_model\.)?(layers\.\*\.)?", "", module), int(n), int(k)): int(count)
            for module, n, k, count in zip(*(rows[c] for c in ("module", "n", "k", "count")), strict=True)
        }
        ours, config = Counter(), MODELS[name].config
        for layer in config.layers:
            for m in module_names.layer_modules(layer, config):
                ours[m.name, m.n, m.k] += 2 if "*" in m.name else 1  # the table holds the first and the last expert
        for e in plan(name).entries:
            if not e.layers:
                ours[e.modules[0], e.n, e.k] += 1
        assert ours == real

    def test_most_committed_models_have_a_class_in_transformers(self):
        missing = {n for n in NAMES if n not in set(table("module_names")["model"].tolist())}
        assert all(MODELS[n].config.family in module_names.NO_CLASS for n in missing) and len(missing) < 3

    def test_unknown_names_are_refused(self):
        tiny = dict(model_type="olmo2", hidden_size=64, num_hidden_layers=2, vocab_size=100, num_attention_heads=4,
                    num_key_value_heads=2, intermediate_size=128)  # fmt: skip
        with pytest.raises(ValueError, match=r"family 'olmo2' have not been checked; known: .*llama"):
            plan(Model.from_config(tiny, name="tiny"))


@pytest.mark.parametrize("asked", ASKED, ids=lambda a: a.replace(" ", "_"))
@pytest.mark.parametrize("name", NAMES)
class TestEveryModel:
    def test_every_linear_layer_is_in_one_entry_with_a_reason(self, name, asked):
        made = plan(name, **ASKED[asked])
        ours, theirs = Counter(), Counter()
        for e in made.entries:
            assert e.why and (e.quantised or e.why != "K and N fit")
            ours[e.kind] += 0 if e.weight == "shared gate" else e.n_params
        for layer in MODELS[name].linear_layers():
            theirs[layer.kind] += layer.n_params
        assert ours == theirs
        names = [n for n, _ in modules(made)]
        assert len(names) == len(set(names))

    def test_both_recipes_pick_what_the_plan_says(self, name, asked):
        made = plan(name, **ASKED[asked])
        regexes = [re.compile(p.removeprefix("re:")) for p in handover.ignored(made)]
        rules = [r for r in handover.modelopt(made)["quant_cfg"] if "parent_class" not in r]
        for module, quantised in modules(made):
            assert quantised != any(r.match(module) for r in regexes), module
            fused = re.sub(r"experts\.\d+\.(gate_|up_|down_)proj", "experts.fused", module)
            on = [r.get("enable", True) for r in rules if fnmatch(f"{fused}.weight_quantizer", r["quantizer_name"])]
            assert quantised == on[-1], module


class TestDecisions:
    def test_kinds_that_stay(self):
        assert entry("qwen3_235b_a22b", "router") == (False, KINDS["router"])
        assert entry("nemotron_3_super", "latent in") == (False, KINDS["latent"])
        assert entry("deepseek_v3_2", "indexer q")[0] is entry("deepseek_v4_pro", "hyper-connection")[0] is False
        assert entry("llama_3_1_8b", "qkv")[0] and not entry("llama_3_1_8b", "qkv", keep=("attention",))[0]
        # asked for or not, routers stay
        assert not entry("qwen3_235b_a22b", "router", keep=())[0]

    def test_a_gate_in_the_queries_keeps_them_high(self):
        assert "gate" in entry("qwen3_5_27b", "qkv")[1] and entry("qwen3_5_27b", "out")[0]
        assert entry("step_3_7_flash", "qkv")[0] and not entry("step_3_7_flash", "output gate")[0]

    def test_what_attention_absorbs_stays(self):
        assert "fold" in entry("deepseek_r1", "kv_b")[1] and entry("deepseek_r1", "q_b")[0]

    def test_decays_of_states_stay_even_where_recurrent_layers_do_not(self):
        assert "decay" in entry("qwen3_5_27b", "gated_delta in", keep=())[1]
        assert entry("qwen3_5_27b", "gated_delta out", keep=())[0]
        assert entry("nemotron_3_super", "mamba2 in", keep=())[0]

    def test_sizes_on_a_rank(self):
        assert entry("gemma_4_26b_a4b", "expert down") == (True, "K and N fit")
        assert entry("gemma_4_26b_a4b", "expert down", tp=4) == (
            False,
            "K = 176 on each of 4 ranks is no multiple of 64",
        )
        assert entry("gemma_4_26b_a4b", "expert down", tp=4, tp_experts=1)[0]
        assert "2112 rows are padded to 2176" in entry("deepseek_r1", "q_a and kv_a", tp=8)[1]

    def test_rows_on_a_rank(self):
        """32 of them, not 16: 10,944 / 4 = 2,736 = 85.5 · 32, 10,944 / 2 = 171 · 32."""
        assert entry("glm_4_5_air", "gate_up", tp=2)[0]
        assert entry("glm_4_5_air", "gate_up", tp=4) == (False, "N = 2736 on each of 4 ranks is no multiple of 32")

    def test_experts_stay_together(self):
        yes, why = entry("nemotron_3_super", "expert up", tp=4)
        assert (yes, why) == (False, "the experts' other matrix stays: K = 672 on each of 4 ranks is no multiple of 64")

    def test_ends(self):
        made = plan("llama_3_1_8b", n_first=2, n_last=1)
        stays = {layer for e in made.entries if not e.quantised for layer in e.layers}
        assert stays == {0, 1, 31}
        assert any("(0|1)" in p for p in handover.ignored(made)) and any("(31)" in p for p in handover.ignored(made))

    def test_the_head(self):
        assert not entry("llama_3_1_8b", "head")[0]
        assert entry("llama_3_1_8b", "head", precision=low(head="nvfp4"))[0]
        assert "embedding table" in entry("qwen3_0_6b", "head", precision=low(head="nvfp4"))[1]

    def test_more_kept_is_less_quantised(self):
        more = ((), ("attention",), ("attention", "shared_expert"), ("attention", "expert"))
        shares = [plan("deepseek_r1", keep=(*KEPT, *kinds)).quantised_fraction for kinds in more]
        assert shares == sorted(shares, reverse=True) and shares[0] > 0.99 and shares[-1] < 0.03


class TestRecipes:
    def test_llm_compressor(self):
        made = plan("llama_3_1_8b", precision=low(activations="bf16", kv="fp8"))
        modifier = handover.llm_compressor(made)["quant_stage"]["quant_modifiers"]["QuantizationModifier"]
        assert modifier["scheme"] == "NVFP4A16" and modifier["kv_cache_scheme"]["num_bits"] == 8
        assert modifier["targets"] == ["Linear"] and modifier["ignore"] == list(handover.ignored(made))

    def test_modelopt(self):
        rules = handover.modelopt(plan("llama_3_1_8b", precision=low(activations="bf16", kv="fp8")))["quant_cfg"]
        names = [r["quantizer_name"] for r in rules]
        assert names[0] == "*" and rules[0]["enable"] is False
        assert "*input_quantizer" not in names and names[-1] == "*[kv]_bmm_quantizer"
        assert rules[1]["cfg"]["block_sizes"][-1] == 16 and rules[-1]["cfg"]["num_bits"] == (4, 3)
        assert handover.modelopt(plan("llama_3_1_8b", precision=low(kv="nvfp4")))["quant_cfg"][-1]["cfg"][
            "num_bits"
        ] == (2, 1)

    def test_text_reads_back(self):
        recipe = handover.llm_compressor(plan("deepseek_r1"))
        assert json.loads(handover.to_json(recipe)) == recipe

    @pytest.mark.parametrize("name", NAMES)
    def test_layers_that_predict_further_tokens_stay_all_of_them(self, name):
        """After the last layer or apart, and none of the network's own for that reason."""
        made, config = plan(name), MODELS[name].config
        n = len(config.mtp_layers) or config.n_mtp_uncounted  # Nemotron's one module is two layers
        after = [f"model.layers.{made.model.n_layers + i}.mlp.down_proj" for i in range(n + 1)]
        apart = ("mtp.fc", "model.mtp.layers.0.mlp.down_proj")
        for module in (*after[:n], *(apart if n else ())):
            assert stays(made, module) == (True, True), module
        assert stays(made, after[n]) == (False, False)

    def test_models_with_several_such_layers(self):
        assert {n: MODELS[n].config.n_mtp_uncounted for n in ("step_3_7_flash", "minimax_m2_5", "minimax_m3")} == {
            "step_3_7_flash": 3, "minimax_m2_5": 3, "minimax_m3": 7,
        }  # fmt: skip

    @pytest.mark.parametrize(
        "name, modules",
        [
            # transformers 5.24.0, models/*/modeling_*.py; hf_quant_config.json of nvidia/MiniMax-M3-NVFP4
            ("llama_4_maverick", ("vision_model.model.layers.3.self_attn.q_proj", "multi_modal_projector.linear_1")),
            ("gemma_3_27b", ("model.vision_tower.encoder.layers.3.mlp.fc1", "model.multi_modal_projector.proj")),
            ("gemma_4_26b_a4b", ("model.vision_tower.encoder.layers.0.mlp.gate_proj",
                                 "model.embed_vision.embedding_projection", "model.audio_tower.layers.0.ffn.linear",
                                 "model.embed_audio.embedding_projection")),
            ("kimi_k2_5", ("vision_tower.encoder.blocks.3.wqkv", "mm_projector.proj.0")),
            ("minimax_m3", ("model.vision_tower.layers.3.mlp.fc1", "model.multi_modal_projector.linear_1",
                            "patch_merge_mlp.linear_1")),
            ("qwen3_5_27b", ("model.visual.blocks.3.attn.qkv", "model.visual.merger.linear_fc1")),
            ("qwen3_5_397b_a17b", ("model.visual.blocks.3.attn.qkv",)),
            ("step_3_7_flash", ("model.vision_model.layers.3.mlp.fc1", "model.multi_modal_projector",
                                "vit_large_projector")),
        ],
    )  # fmt: skip
    def test_vision_and_sound_stay_whether_the_config_shows_them_or_not(self, name, modules):
        for module in modules:
            assert stays(plan(name), module) == (True, True), module

    def test_a_model_without_them_has_no_pattern_for_them(self):
        assert list(handover.ignored(plan("qwen3_32b"))) == ["re:.*lm_head$"]

    @pytest.mark.parametrize("name", NAMES)
    def test_every_config_of_a_class_that_sees_is_known_to(self, name):
        """The class is that of the config itself, before its text part is taken out."""
        raw = json.loads((files("codesign_lib") / "data" / "configs" / f"{name}.json").read_text(encoding="utf-8"))
        if "ForConditionalGeneration" in raw["architectures"][0]:
            assert stays(plan(name), "model.vision_tower.layers.0.mlp.fc1") == (True, True)

    def test_dots_of_a_name_are_dots(self):
        (pattern,) = (p.removeprefix("re:") for p in handover.ignored(plan("llama_3_1_8b", keep=("ffn",)))
                      if "down_proj" in p)  # fmt: skip
        assert re.match(pattern, "model.layers.3.mlp.down_proj")
        for other in ("model.layers.3.mlp_down_proj", "model.layers_3.mlp.down_proj", "model.layers.3_mlp.down_proj"):
            assert not re.match(pattern, other)

    def test_embeddings_are_not_quantised(self):
        """They are looked up, not multiplied; ModelOpt has quantisers on them."""
        rules = handover.modelopt(plan("llama_3_1_8b"))["quant_cfg"]
        (at,) = [i for i, r in enumerate(rules) if r.get("parent_class") == "nn.Embedding"]
        assert rules[at] == dict(quantizer_name="*", parent_class="nn.Embedding", enable=False)
        assert at > max(i for i, r in enumerate(rules) if "cfg" in r)  # the last that matches decides

    def test_one_layer_is_not_taken_for_another(self):
        patterns = [re.compile(p.removeprefix("re:")) for p in handover.ignored(plan("llama_3_1_8b", n_first=2))]
        assert any(p.match("model.layers.1.mlp.up_proj") for p in patterns)
        assert not any(p.match("model.layers.11.mlp.up_proj") for p in patterns)


class TestRefusals:
    @pytest.mark.parametrize(
        "asked, says",
        [
            (dict(precision=Precision(weights="fp8", activations="fp8", kv="bf16")), "weights in fp8"),
            (dict(precision=low(activations="fp8")), "activations in fp8; allowed: nvfp4 weights with nvfp4 or bf16"),
            (dict(precision=low(head="fp8")), "head is fp8; allowed: bf16, nvfp4"),
            (dict(keep=("attention", "norms")), "keep holds .norms.; allowed: attention, expert"),
            (dict(keep="attention"), "keep holds"),
            (dict(keep=None), "keep holds None; allowed: several of attention, expert"),
            (dict(n_first=-1), "n_first is -1; allowed: a whole number from 0"),
            (dict(n_last=True), "n_last is True"),
            (dict(n_first=20, n_last=20), "n_first \\+ n_last is 40; allowed: at most 32 layers"),
            (dict(tp=0), "tp is 0; allowed: a whole number from 1"),
            (dict(tp=2.0), "tp is 2.0"),
            (dict(tp_experts=0), "tp_experts is 0"),
        ],
    )
    def test_plan(self, asked, says):
        with pytest.raises(ValueError, match=f"plan of Llama-3.1-8B.*{says}"):
            plan("llama_3_1_8b", **asked)

    def test_caches_that_a_tool_does_not_know(self):
        with pytest.raises(ValueError, match="llm_compressor: kv is nvfp4; allowed: bf16, fp8"):
            handover.llm_compressor(plan("llama_3_1_8b", precision=low(kv="nvfp4")))
        with pytest.raises(ValueError, match="modelopt: kv is mxfp8; allowed: bf16, fp8, nvfp4"):
            handover.modelopt(plan("llama_3_1_8b", precision=low(kv="mxfp8")))

    def test_names_of_other_recurrent_layers(self):
        of = MODELS["qwen3_5_27b"]
        layer = of.config.layers[0]
        other = replace(layer, mixers=(replace(layer.mixers[0], kind="lightning"),))
        with pytest.raises(ValueError, match="modules of lightning layers have not been checked"):
            plan(replace(of, config=replace(of.config, layers=(other,))))


class TestRealPackages:
    def test_every_linear_layer_of_every_config_is_once_in_the_plan(self):
        rows = table("validation/handover_names")
        assert len(rows) >= 88 + len(MODELS)
        for column in ("n_absent", "n_twice", "n_shape_differs", "n_pattern_differs"):
            assert (rows[column] == 0).all(), column
        built = rows["reason"] == ""
        assert built.sum() >= 110 and (rows["n_modules"][built] > 100).all()
        assert ((rows["n_quantised"] + rows["n_ignored"]) == rows["n_modules"]).all()

    def test_what_they_store_is_ours_to_the_bit(self):
        rows = table("validation/handover_scales")
        assert set(rows["package"]) == {"nvidia-modelopt", "llmcompressor"} and len(set(rows["case"])) >= 6
        assert (rows["n_planned"] > 0).all() and not (rows["n_unplanned"] + rows["n_missing"]).any()
        exact = rows["reason"] == ""
        for column in ("codes_differ", "scales_differ", "globals_differ", "n_alone"):
            assert (rows[column][exact] == 0).all()
        # only where one package computes scales in bfloat16
        assert set(zip(rows["package"][~exact], rows["dtype"][~exact], strict=True)) == {("llmcompressor", "bfloat16")}
        assert {"bfloat16", "float32"} == set(rows["dtype"][exact])


class TestReleases:
    """What NVIDIA's own releases do, by their records."""

    def share(self, kind: str, column: str = "nvfp4_fraction"):
        rows = table("validation/handover_released")
        return rows[column][rows["kind"] == kind]

    def test_experts_go_to_nvfp4_everywhere_and_so_they_do_here(self):
        assert len(self.share("expert")) >= 18
        assert (self.share("expert") == 1).all() and (self.share("expert", "ours_nvfp4_fraction") == 1).all()

    def test_attention_mostly_stays_and_is_little(self):
        assert (self.share("attention") == 0).mean() > 0.8
        rows = table("validation/handover_released")
        with_experts = {r for r, kind in zip(rows["release"], rows["kind"], strict=True) if kind == "expert"}
        small = [f for r, kind, f in zip(*(rows[c] for c in ("release", "kind", "params_fraction")), strict=True)
                 if kind == "attention" and r in with_experts]  # fmt: skip
        assert max(small) < 0.05

    def test_indexers_stay_here_as_there(self):
        assert not self.share("indexer").any() and not self.share("indexer", "ours_nvfp4_fraction").any()

    def test_heads_mostly_stay(self):
        assert (self.share("head") == 0).sum() > 4 * (self.share("head") == 1).sum() > 0
