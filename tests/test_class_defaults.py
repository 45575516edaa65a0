"""Absent fields: what the model's own class declares holds, and the counts are then those that transformers builds."""

from __future__ import annotations

import csv
import json
import warnings

import pytest

from codesign_lib.specs import hf_config
from codesign_lib.specs.hf_config import CLASSES, read
from codesign_lib.specs.models import Model, kv_bytes, state_bytes


def _table(name: str) -> list[dict[str, str]]:
    lines = (hf_config._DATA / "validation" / name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


_ROWS = {row["name"]: row for row in _table("configs.csv") if row["origin"] == "class default"}
# Their classes declare a list, or derive sizes in code that no config shows: what is missing is named.
_DERIVED = {"nemotron_h", "deepseek_v4", "olmo_hybrid", "minicpm3"}


def _model(raw: dict) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Model.from_config(raw)


@pytest.mark.parametrize("name", _ROWS)
def test_a_bare_text_part_is_what_transformers_builds(name):
    """Parameters and cache of a text part that leaves out all but a few fields, against the built class."""
    row = _ROWS[name]
    config = json.loads(row["config"])
    if config["model_type"] in _DERIVED and len(config) == 1:
        with pytest.raises(ValueError, match="is missing"):
            read(dict(text_config=config))
        return
    model = _model(dict(text_config=config))
    if row["equal"] == "yes":
        assert model.n_params == int(row["theirs_n_params"])
    if row["theirs_n_kv_elements"]:
        assert float(kv_bytes(model, int(row["n_context"]), "int8")) == int(row["theirs_n_kv_elements"])


def _seen(raw: dict) -> tuple:
    model = _model(raw)
    kv = tuple(float(kv_bytes(model, n, "int8")) for n in (1000, 100_000))
    return model.n_params, model.n_active_params, kv, state_bytes(model, "bf16"), model.pattern


@pytest.mark.parametrize("kind", CLASSES)
def test_one_absent_key_is_its_default_or_refused_by_name(kind):
    whole = CLASSES[kind]["defaults"] | dict(model_type=kind)
    try:
        expected = _seen(whole)
    except ValueError as error:
        assert "is missing" in str(error) or "head_dim" in str(error)
        return
    for key in CLASSES[kind]["defaults"]:
        rest = {name: value for name, value in whole.items() if name != key}
        try:
            assert _seen(rest) == expected, key
        except ValueError as error:
            assert f"{key}" in str(error) and "is missing" in str(error)


def test_the_committed_audit_compared_every_class_and_found_no_fault():
    rows = {row["model_type"]: row for row in _table("dropped_keys.csv")}
    assert [*rows] == [*CLASSES, "all"]
    for kind, row in rows.items():
        n_other = len(row["as_transformers"].split()) if kind != "all" else int(row["as_transformers"])
        assert int(row["n_keys"]) == int(row["n_without_effect"]) + int(row["n_refused"]) + n_other, kind
        assert int(row["n_keys"]) >= 20, kind


def test_what_was_taken_is_noted_and_null_stays_null():
    full = CLASSES["gpt_oss"]["defaults"] | dict(model_type="gpt_oss")
    without = {k: v for k, v in full.items() if k != "sliding_window"}
    # openai/gpt-oss-120b: 18 of 36 layers keep all, 8 heads of 64, keys and values: 36,864 B a token in bf16
    model = _model(without)
    assert model.kv_bytes_per_token("bf16") == 36_864
    assert "sliding_window is absent: 128 (GptOssForCausalLM's default)" in model.config.notes
    assert _model(full | dict(sliding_window=None)).kv_bytes_per_token("bf16") == 2 * 36_864

    deepseek = CLASSES["deepseek_v3"]["defaults"] | dict(model_type="deepseek_v3")
    for key in ("q_lora_rank", "n_shared_experts"):
        model = _model({k: v for k, v in deepseek.items() if k != key})
        assert model.n_params == 671_026_404_352  # DeepSeek-V3's 671 B
        assert any(note.startswith(f"{key} is absent") for note in model.config.notes)
    # Without a query latent: 61 layers × (7168·128·192 − 7168·1536 − 1536 − 1536·128·192) more
    more = 61 * (7168 * 128 * 192 - 7168 * 1536 - 1536 - 1536 * 128 * 192)
    assert _model(deepseek | dict(q_lora_rank=None)).n_params == 671_026_404_352 + more


def test_another_name_of_a_field_goes_before_the_default():
    raw = CLASSES["deepseek_v3"]["defaults"] | dict(model_type="deepseek_v3")
    renamed = {k: v for k, v in raw.items() if k not in ("n_routed_experts", "num_mtp_layers")}
    config = read(renamed | dict(num_experts=64, num_nextn_predict_layers=0))
    assert config.layers[-1].ffns[0].n_experts == 64 and config.n_mtp_modules == 0
    assert not any(note.startswith(("n_routed_experts", "num_mtp_layers")) for note in config.notes)


def test_a_family_is_called_by_the_class_of_its_model_type():
    assert read(dict(text_config=dict(model_type="glm_moe_dsa"))).architecture == "GlmMoeDsaForCausalLM"
    assert read(dict(text_config=dict(model_type="smollm3"))).architecture == "SmolLM3ForCausalLM"


def test_smollm3_is_tied_and_its_window_has_a_flag():
    # HuggingFaceTB/SmolLM3-3B: 3.075 B parameters, head tied
    raw = CLASSES["smollm3"]["defaults"] | dict(architectures=["SmolLM3ForCausalLM"], model_type="smollm3")
    raw.pop("tie_word_embeddings")
    embedding, layer = 128_256 * 2048, 2048 * (2 * 2048 + 2 * 4 * 128) + 3 * 2048 * 11008 + 2 * 2048
    assert _model(raw).n_params == embedding + 36 * layer + 2048 == 3_075_098_624
    assert {x.mixers[0].kind for x in read(raw | dict(sliding_window=512)).layers} == {"full"}
    on = read(raw | dict(sliding_window=512, use_sliding_window=True)).layers
    assert [x.mixers[0].kind for x in on[:4]] == ["full", "full", "full", "sliding"]
