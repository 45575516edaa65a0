import pytest

from codesign_lib.specs import models

# embedding tables: not linear layers, but in the published totals
PUBLISHED = {
    "llama_3_1_405b": (128256 * 16384, 405.85e9),  # transformers, LlamaForCausalLM
    "deepseek_r1": (129280 * 7168, 671.03e9),  # DeepSeek-V3 README, main model
    "gpt_oss_120b": (201088 * 2880, 116.83e9),  # OpenAI gpt-oss model card: 116.83 B
}


@pytest.mark.parametrize("name", list(models.MODELS))
def test_layers_add_up_to_the_published_parameters(name):
    embedding, published = PUBLISHED[name]
    total = sum(layer.n_params for layer in models.model(name).linear_layers()) + embedding
    assert total == pytest.approx(published, rel=1e-3)


def test_unknown_model():
    with pytest.raises(ValueError, match=r"unknown model 'gpt_5'; known: llama_3_1_405b"):
        models.model("gpt_5")


def test_a_routed_expert_sees_its_share():
    expert = next(x for x in models.model("deepseek_r1").linear_layers() if x.kind == "expert")
    assert expert.tokens_fraction == 8 / 256
