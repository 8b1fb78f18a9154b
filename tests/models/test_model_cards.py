"""The model cards: found by name, alias or path; complete, sourced, and refused in one sentence when wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mbsolve.models.card import DATA, CardError, Model, load_model, model_names, parse_model
from mbsolve.models.counts import total_parameters

NAMES = model_names()


def raw_card(name: str) -> dict[str, object]:
    raw = yaml.safe_load((DATA / f"{name}.yaml").read_text())
    assert isinstance(raw, dict)
    return raw


def refusal(raw: dict[str, object]) -> str:
    with pytest.raises(CardError) as caught:
        parse_model(raw)
    text = str(caught.value)
    assert "\n" not in text and text.endswith((".", "?"))
    return text


SHIPPED = """
deepseek-v2 dsv3 glm-4.5-air gpt-1t gpt-22b gpt-oss-120b gpt-oss-20b gpt3-175b gpt3-20b gpt3-5b grok-1 kimi-k2
llama2-13b llama2-70b llama2-7b
llama3-70b llama3-8b llama3.1-405b mixtral-8x22b mixtral-8x7b moonlight-16b mt-nlg-530b nemotron-3-nano nemotron-3-nano-4b
nemotron-3-super nemotron-3.5-lightning nemotron-h-56b nemotron3-22b nemotron3-8b nemotron4-15b nemotron4-340b
qwen2.5-14b qwen2.5-32b qwen2.5-72b qwen2.5-7b qwen3-14b qwen3-235b-a22b qwen3-30b-a3b qwen3-8b qwen3-next-80b
qwen3.5-27b qwen3.5-35b-a3b
"""


def test_the_cards_are_shipped() -> None:
    assert tuple(SHIPPED.split()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_field_has_a_source(name: str) -> None:
    model = load_model(name)
    wanted = set(Model.model_fields) - {"name", "title", "aliases", "sources"}
    assert wanted <= set(model.sources)
    assert all(model.sources.values())
    assert isinstance(raw_card(name)["source"], str)
    assert model.name == name


# Of these the name alone is published; other figures confirm their sizes (test_counts).
UNSAID = {"gpt3-20b", "gpt3-5b", "grok-1", "nemotron3-22b", "nemotron3-8b"}


def test_totals_are_published_of_all_other_cards() -> None:
    assert {name for name in NAMES if load_model(name).published_params is None} == UNSAID


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNSAID])
def test_the_total_is_the_published_one(name: str) -> None:
    model = load_model(name)
    assert model.published_params is not None
    # A total of two digits says no more than half of its last one.
    digits = str(int(model.published_params)).rstrip("0")
    within = 0.005 if len(digits) > 2 else max(0.005, 0.5 / int(digits.ljust(2, "0")))
    assert total_parameters(model) == pytest.approx(model.published_params, rel=within)


def test_no_two_cards_share_a_name() -> None:
    words = [word for name in NAMES for word in (name, *load_model(name).aliases)]
    spellings = ["".join(c for c in word.lower() if c not in "-_.") for word in words]
    assert len(set(spellings)) == len(spellings)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("DeepSeek-V3", "dsv3"),
        ("deepseek_v3", "dsv3"),
        ("ds-v3", "dsv3"),
        ("DSV3", "dsv3"),
        ("Kimi_K2", "kimi-k2"),
        ("qwen3_30b_a3b", "qwen3-30b-a3b"),
        ("Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("gpt_oss_120b", "gpt-oss-120b"),
        ("Moonlight-16B-A3B", "moonlight-16b"),
        ("Llama-3-70B", "llama3-70b"),
        ("llama-3.1-405b", "llama3.1-405b"),
        ("Llama-3.1-8B", "llama3-8b"),
        ("Llama-3.1-70B", "llama3-70b"),
        ("Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("GLM-4.5-Air", "glm-4.5-air"),
        ("GPT-3-175B", "gpt3-175b"),
        ("DeepSeek-V2", "deepseek-v2"),
        ("Nemotron-4-15B", "nemotron4-15b"),
        ("Nemotron-3-Super-120B-A12B", "nemotron-3-super"),
        ("Qwen3.8-27B", "qwen3.5-27b"),
        ("Grok-1-314B", "grok-1"),
    ],
)
def test_aliases_ignore_case_and_separators(word: str, name: str) -> None:
    assert load_model(word).name == name


def test_an_unknown_name_gets_a_proposal() -> None:
    with pytest.raises(CardError, match="did you mean 'qwen3-30b-a3b'"):
        load_model("qwen3-30b-a3")
    with pytest.raises(CardError, match=r"no model 'xyzzy' among deepseek-v2, dsv3, .*b\.$"):
        load_model("xyzzy")


def test_a_users_card_works_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = raw_card("llama3-8b") | {"name": "mine", "num_layers": {"value": 16, "source": "my paper"}}
    for file in ("mine.yaml", "mine"):
        (tmp_path / file).write_text(yaml.safe_dump(raw))
    monkeypatch.chdir(tmp_path)
    for where in (tmp_path / "mine.yaml", str(tmp_path / "mine.yaml"), "mine.yaml", "mine", "./mine"):
        model = load_model(where)
        assert (model.name, model.num_layers, model.sources["num_layers"]) == ("mine", 16, "my paper")
        assert model.sources["hidden_size"] == raw["source"]


def test_a_missing_file_is_named() -> None:
    with pytest.raises(CardError, match=r"nowhere\.yaml cannot be read"):
        load_model("nowhere.yaml")


@given(cut=st.floats(0.01, 0.99), name=st.sampled_from(["dsv3", "llama3-8b"]))
def test_a_card_cut_short_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: float, name: str) -> None:
    text = (DATA / f"{name}.yaml").read_text()
    text = text[: text.index("published_params")]
    path = tmp_path_factory.mktemp("cut") / "cut.yaml"
    path.write_text(text[: int(len(text) * cut)])
    with pytest.raises(CardError) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "- 1", "just words", "1: 2", "a: [", "a: &a [*a]", "a: 2026-99-99"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(text)
    with pytest.raises(CardError) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("dsv3", {"hiden_size": 7168}, "unknown field 'hiden_size'; did you mean 'hidden_size'?"),
        ("dsv3", {"num_layers": "61 layers"}, "num_layers is '61 layers', but it must be a whole number"),
        ("dsv3", {"num_layers": 0}, "num_layers is 0, but it must be at least 1"),
        ("dsv3", {"num_layers": True}, "num_layers is True"),
        ("dsv3", {"tie_embeddings": "no"}, "tie_embeddings is 'no'"),
        ("dsv3", {"kv_lora_rank": None}, "kv_lora_rank is missing, but attention 'mla' needs it"),
        ("dsv3", {"moe_topk": 300}, "moe_topk is 300, but at most num_experts = 256"),
        ("dsv3", {"moe_topk": None}, "moe_topk is missing"),
        ("dsv3", {"first_k_dense": 61}, "first_k_dense is 61, but it must be less than num_layers = 61"),
        ("dsv3", {"ffn_hidden_size": None}, "ffn_hidden_size is missing"),
        ("dsv3", {"router_num_groups": None}, "must be given together"),
        ("dsv3", {"router_num_groups": 7}, "router_num_groups is 7, but it must divide"),
        ("dsv3", {"router_group_topk": 9}, "router_group_topk is 9"),
        ("dsv3", {"source": 3}, "source is 3"),
        ("dsv3", {"qkv_bias": True}, "qkv_bias is true, but it is not allowed with attention 'mla'"),
        ("gpt3-175b", {"learned_positions": 0}, "learned_positions is 0"),
        ("llama3-8b", {"num_query_groups": 5}, "num_query_groups is 5, but it must divide"),
        (
            "llama3-8b",
            {"kv_lora_rank": 512},
            "kv_lora_rank is 512, but it is allowed with attention 'mla' only",
        ),
        ("llama3-8b", {"moe_topk": 2}, "moe_topk is 2, but it is allowed with num_experts only"),
        ("llama3-8b", {"window_period": 2}, "window_period is 2, but it needs sliding_window"),
        ("llama3-8b", {"attention": "mqa"}, "attention is 'mqa', but it must be 'gqa' or 'mla'"),
        ("qwen3-30b-a3b", {"shared_expert_gate": True}, "shared_expert_gate is true"),
    ],
)
def test_a_wrong_card_is_refused_in_one_sentence(name: str, change: dict[str, object], said: str) -> None:
    assert said in refusal(raw_card(name) | change)


def test_a_missing_field_is_named() -> None:
    raw = raw_card("dsv3")
    del raw["vocab_size"]
    assert "lacks the field 'vocab_size'" in refusal(raw)


def test_layers_of_each_kind() -> None:
    dsv3, gpt_oss, llama = load_model("dsv3"), load_model("gpt-oss-120b"), load_model("llama3-8b")
    assert [layer.ffn for layer in dsv3.layers()] == ["dense"] * 3 + ["moe"] * 58
    assert dsv3.mtp_layer() == ("attention", "moe")
    assert [layer.mixer for layer in gpt_oss.layers()[:4]] == ["window_attention", "attention"] * 2
    assert set(llama.layers()) == {("attention", "dense")}
    assert dsv3.is_moe and dsv3.mla and not llama.is_moe and not llama.mla


@pytest.mark.parametrize(
    ("name", "mebi"),
    [("llama3-8b", 4), ("llama3-70b", 8), ("llama3.1-405b", 8), ("dsv3", 16), ("moonlight-16b", 16)],
)
def test_default_tokens_of_a_batch(name: str, mebi: int) -> None:
    model = load_model(name)
    assert model.default_tokens_per_batch() == mebi * 2**20
    assert model.model_copy(update={"tokens_per_batch": 1000}).default_tokens_per_batch() == 1000


def test_a_card_is_frozen_and_hashable() -> None:
    model = load_model("dsv3")
    assert hash(model) == hash(load_model("DeepSeek-V3"))
    with pytest.raises(ValueError, match="frozen"):
        model.num_layers = 3
