"""The config.json of a checkpoint becomes the card that is shipped, or one sentence says why it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbsolve.models.card import CardError, Model, load_model
from mbsolve.models.counts import total_parameters

FOLDER = Path(__file__).parent / "huggingface"

# Parameters of the models that transformers 5.12 builds from these files on torch's meta device, MTP not built and the
# routers' correction biases (buffers of Megatron-Core) left out.
BUILT = {
    "deepseek-v2": 235741434880,
    "dsv3": 671026404352,
    "glm-4.5-air": 106852245504,
    "gpt-oss-120b": 116829156672,
    "gpt-oss-20b": 20914757184,
    "kimi-k2": 1026408209408,
    "llama2-7b": 6738415616,
    "llama3-70b": 70553706496,
    "llama3-8b": 8030261248,
    "mixtral-8x22b": 140620634112,
    "mixtral-8x7b": 46702792704,
    "moonlight-16b": 15960108544,
    "qwen2.5-7b": 7615616512,
    "qwen3-235b-a22b": 235093634560,
    "qwen3-30b-a3b": 30532122624,
    "qwen3-8b": 8190735360,
}


def config(name: str) -> dict[str, Any]:
    raw = json.loads((FOLDER / f"{name}.json").read_text())
    assert isinstance(raw, dict)
    return raw


def loaded(tmp_path: Path, raw: object) -> Model:
    path = tmp_path / "config.json"
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return load_model(path)


def refusal(tmp_path: Path, raw: object) -> str:
    with pytest.raises(CardError) as caught:
        loaded(tmp_path, raw)
    text = str(caught.value)
    assert "\n" not in text and text.endswith((".", "?"))
    return text


@pytest.mark.parametrize("name", BUILT)
def test_a_public_config_gives_the_shipped_card(name: str) -> None:
    found, shipped = load_model(FOLDER / f"{name}.json"), load_model(name)
    own = {"name", "title", "aliases", "sources", "published_params", "tokens_per_batch", "pretrain_seq_len"}
    # MLA does not use head_dim, and providers differ on what they write there.
    own |= {"head_dim"} if shipped.mla else set()
    assert found.model_dump(exclude=own) == shipped.model_dump(exclude=own)
    assert total_parameters(found) == total_parameters(shipped) == BUILT[name]
    assert found.name == name
    assert "model_type" in found.sources["hidden_size"]


def test_every_fixture_is_tested() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(BUILT)


def test_a_folder_stands_for_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "Mine-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config("qwen3-8b")))
    monkeypatch.chdir(tmp_path)
    for where in (folder, str(folder), "Mine-8B", "./Mine-8B", "Mine-8B/config.json"):
        assert load_model(where).name == "Mine-8B"
    monkeypatch.chdir(folder)
    assert load_model("config.json").name == "Mine-8B"
    with pytest.raises(CardError, match=r"config\.json cannot be read"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "fields"),
    [
        ("llama3-8b", {"head_dim": None}, {"head_dim": 128}),
        ("llama3-8b", {"attention_bias": True, "mlp_bias": True}, {"linear_bias": True}),
        ("llama3-8b", {"tie_word_embeddings": True}, {"tie_embeddings": True}),
        ("qwen3-8b", {"head_dim": None, "hidden_size": 2560}, {"head_dim": 128}),
        (
            "qwen3-8b",
            {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 0},
            {"sliding_window": 4096, "window_period": None},
        ),
        ("qwen3-8b", {"use_sliding_window": True, "sliding_window": 4096}, {"sliding_window": None}),
        (
            "qwen3-8b",
            {
                "use_sliding_window": True,
                "sliding_window": 512,
                "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 6,
            },
            {"sliding_window": 512, "window_period": 6},
        ),
        ("qwen3-30b-a3b", {"mlp_only_layers": [0, 1]}, {"first_k_dense": 2}),
        ("mixtral-8x7b", {"sliding_window": 4096}, {"sliding_window": 4096, "window_period": None}),
        ("gpt-oss-20b", {"layer_types": None}, {"sliding_window": 128, "window_period": 2}),
        ("glm-4.5-air", {"use_qk_norm": True}, {"qk_layernorm": True}),
        ("dsv3", {"n_shared_experts": None}, {"shared_expert_ffn_hidden_size": None}),
        ("dsv3", {"scoring_func": "softmax"}, {"router_score_function": "softmax"}),
    ],
)
def test_variants_that_a_card_can_say(
    tmp_path: Path, name: str, change: dict[str, object], fields: dict[str, object]
) -> None:
    model = loaded(tmp_path, config(name) | change)
    assert {field: getattr(model, field) for field in fields} == fields


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("llama3-8b", {"model_type": "lama"}, "model_type is 'lama', but supported are deepseek_v2, "),
        ("llama3-8b", {"model_type": "lama"}, "did you mean 'llama'?"),
        ("llama3-8b", {"model_type": None}, "lacks the field 'model_type'"),
        ("llama3-8b", {"model_type": ["llama"]}, "model_type is ['llama']"),
        ("llama3-8b", {"hidden_size": None}, "lacks the field 'hidden_size'"),
        ("llama3-8b", {"hidden_size": "4096"}, "hidden_size is '4096', but it must be a whole number"),
        ("llama3-8b", {"hidden_size": 4096.0}, "hidden_size is 4096.0"),
        (
            "llama3-8b",
            {"num_hidden_layers": 0},
            "num_hidden_layers is 0, but it must be a whole number of at least 1",
        ),
        ("llama3-8b", {"vocab_size": True}, "vocab_size is True"),
        (
            "llama3-8b",
            {"tie_word_embeddings": "no"},
            "tie_word_embeddings is 'no', but it must be true or false",
        ),
        ("llama3-8b", {"attention_bias": True}, "attention_bias is true and mlp_bias is false"),
        ("llama3-8b", {"num_key_value_heads": 5}, "num_query_groups is 5, but it must divide"),
        ("llama3-8b", {"num_attention_heads": 24}, "hidden_size is 4096, but without head_dim"),
        ("llama3-8b", {"layer_types": ["chunked_attention"] * 32}, "layer_types has 'chunked_attention'"),
        ("qwen3-8b", {"num_key_value_heads": None}, "lacks the field 'num_key_value_heads'"),
        ("qwen3-8b", {"attention_bias": True}, "attention_bias is True, but only false is supported"),
        (
            "qwen3-8b",
            {"use_sliding_window": True, "max_window_layers": 20},
            "use_sliding_window is true from layer 20 on (max_window_layers)",
        ),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2, but only 1 is supported"),
        (
            "qwen3-30b-a3b",
            {"mlp_only_layers": [3, 7]},
            "mlp_only_layers is [3, 7], but only the leading layers",
        ),
        ("qwen3-30b-a3b", {"mlp_only_layers": 3}, "mlp_only_layers is 3, but it must be a list"),
        ("qwen3-30b-a3b", {"num_experts_per_tok": 129}, "moe_topk is 129"),
        ("gpt-oss-20b", {"attention_bias": False}, "attention_bias is False, but only true is supported"),
        ("gpt-oss-20b", {"num_hidden_layers": 12}, "layer_types has 24 entries, but num_hidden_layers is 12"),
        (
            "gpt-oss-20b",
            {"layer_types": ["full_attention", "sliding_attention"] * 12},
            "layer_types mixes the kinds, but only a window on all layers or on all but every n-th is supported",
        ),
        ("dsv3", {"moe_layer_freq": 2}, "moe_layer_freq is 2, but only 1 is supported"),
        ("dsv3", {"scoring_func": "tanh"}, "scoring_func is 'tanh', but it must be softmax or sigmoid"),
        ("dsv3", {"topk_group": None}, "lacks the field 'topk_group'"),
        ("dsv3", {"first_k_dense_replace": 61}, "first_k_dense is 61, but it must be less than num_layers"),
    ],
)
def test_what_no_card_can_say_is_refused_by_name(
    tmp_path: Path, name: str, change: dict[str, object], said: str
) -> None:
    assert said in refusal(tmp_path, config(name) | change)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not valid JSON at line 1"),
        ('{\n"model_type": llama}', "is not valid JSON at line 2"),
        ("[1]", "must be a mapping"),
        ("[" * 100000, "holds a value that cannot be read"),
        ('{"model_type": ' + "1" * 5000 + "}", "holds a value that cannot be read"),
    ],
)
def test_what_is_no_json_mapping_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(CardError, match="is not text in UTF-8"):
        load_model(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def load_or_refuse(folder: Path, text: str) -> None:
    path = folder / "config.json"
    path.write_text(text, encoding="utf-8")
    try:
        model = load_model(path)
    except CardError as error:
        assert "\n" not in str(error)
    else:
        assert model.num_layers >= 1


@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=60) | JSON.map(json.dumps))
def test_garbage_is_never_another_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    load_or_refuse(tmp_path_factory.mktemp("garbage"), text)


@given(name=st.sampled_from(sorted(BUILT)), data=st.data())
def test_a_damaged_config_is_never_another_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    raw = config(name)
    keys = data.draw(st.lists(st.sampled_from(sorted(raw)), min_size=1, max_size=3))
    for key in keys:
        if data.draw(st.booleans()):
            raw.pop(key, None)
        else:
            raw[key] = data.draw(JSON | st.integers(0, 300))
    text = json.dumps(raw)
    cut = data.draw(st.sampled_from([len(text), len(text) // 2]))
    load_or_refuse(tmp_path_factory.mktemp("damaged"), text[:cut])


# What the public config.json of NVIDIA-Nemotron-3-Super-120B-A12B-BF16 says of sizes.
SUPER: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hidden_size": 4096,
    "num_hidden_layers": 88,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 131072,
    "tie_word_embeddings": False,
    "hybrid_override_pattern": str(load_model("nemotron-3-super").layer_pattern).partition("/")[0],
    "n_routed_experts": 512,
    "num_experts_per_tok": 22,
    "moe_intermediate_size": 2688,
    "moe_latent_size": 1024,
    "moe_shared_expert_intermediate_size": 5376,
    "n_shared_experts": 1,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "num_nextn_predict_layers": 1,
    "mtp_hybrid_override_pattern": "*E",
}
BLOCKS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def test_a_mamba_hybrid_gives_the_shipped_card_with_its_one_mtp_block(tmp_path: Path) -> None:
    found, shipped = loaded(tmp_path, SUPER), load_model("nemotron-3-super")
    own = {"name", "title", "aliases", "sources", "published_params", "pretrain_seq_len"}
    own |= {"mtp_num_layers", "layer_pattern"}
    assert found.model_dump(exclude=own) == shipped.model_dump(exclude=own)
    assert f"{found.layer_pattern}/*E" == shipped.layer_pattern
    assert (found.mtp_num_layers, total_parameters(found)) == (1, total_parameters(shipped))


def test_layers_that_are_listed_are_those_of_the_pattern(tmp_path: Path) -> None:
    lists = {
        "layers_block_type": [BLOCKS[symbol] for symbol in SUPER["hybrid_override_pattern"]],
        "mtp_layers_block_type": ["attention", "moe"],
    }
    named = {key: value for key, value in SUPER.items() if not key.endswith("override_pattern")} | lists
    own = {"name", "title"}
    plain = loaded(tmp_path, SUPER)
    assert loaded(tmp_path, named).model_dump(exclude=own) == plain.model_dump(exclude=own)


def test_a_hybrid_without_experts_has_dense_layers(tmp_path: Path) -> None:
    short = {"hybrid_override_pattern": "M-M*-", "num_hidden_layers": 5, "intermediate_size": 21504}
    found = loaded(tmp_path, SUPER | short | {"num_nextn_predict_layers": 0})
    assert (found.is_moe, found.moe_latent_size, found.ffn_hidden_size) == (False, None, 21504)
    assert [kind.ffn for kind in found.layers()] == ["none", "dense", "none", "none", "dense"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"hybrid_override_pattern": None},
            "neither hybrid_override_pattern nor layers_block_type says them",
        ),
        ({"hybrid_override_pattern": 3}, "hybrid_override_pattern is 3"),
        ({"hybrid_override_pattern": "MX" * 44}, "has the symbol 'X'"),
        (
            {"hybrid_override_pattern": None, "layers_block_type": ["mamba2"]},
            "layers_block_type has 'mamba2'",
        ),
        ({"num_hidden_layers": 87}, "has 88 layers, but num_layers is 87"),
        ({"use_bias": True}, "use_bias is True, but only false is supported"),
        ({"use_conv_bias": False}, "use_conv_bias is False, but only true is supported"),
        ({"moe_latent_size": 0}, "moe_latent_size is 0, but it must be a whole number of at least 1"),
        ({"ssm_state_size": None}, "lacks the field 'ssm_state_size'"),
        ({"head_dim": None}, "lacks the field 'attention_head_dim'"),
        ({"mtp_hybrid_override_pattern": "E"}, "has the MTP part 'E'"),
    ],
)
def test_a_hybrid_that_no_card_can_say_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    assert said in refusal(tmp_path, SUPER | change)
