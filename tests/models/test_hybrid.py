"""Hybrid models: what their layers are, parameters of real modules, and published FLOPs of a token."""

from __future__ import annotations

from typing import Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mbsolve.models.card import DATA, CardError, LayerKind, load_model, parse_model
from mbsolve.models.counts import (
    active_parameters,
    elements,
    expert_linears,
    layer_parameters,
    layer_weight_shapes,
    mtp_parameters,
    total_parameters,
)
from mbsolve.models.flops import flops_per_token

NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"


def refusal(name: str, change: dict[str, object]) -> str:
    raw = yaml.safe_load((DATA / f"{name}.yaml").read_text()) | change
    with pytest.raises(CardError) as caught:
        parse_model(raw)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_layers_of_a_pattern() -> None:
    nano, lightning = load_model("nemotron-3-nano"), load_model("nemotron-3.5-lightning")
    kinds = {"M": ("mamba", "none"), "*": ("attention", "none"), "E": ("none", "moe"), "-": ("none", "dense")}
    assert nano.layers() == tuple(kinds[symbol] for symbol in NANO)
    assert lightning.layers() == nano.layers()
    assert lightning.mtp_layer() == ("attention", "moe")
    assert load_model("nemotron-h-56b").layers().count(LayerKind("none", "dense")) == 54
    assert nano.hybrid and nano.is_moe and not load_model("dsv3").hybrid


def test_every_fourth_layer_has_full_attention() -> None:
    layers = load_model("qwen3-next-80b").layers()
    assert [kind.mixer for kind in layers[:8]] == (["gdn"] * 3 + ["attention"]) * 2
    assert {kind.ffn for kind in layers} == {"moe"}
    assert load_model("qwen3-next-80b").mtp_layer() == ("attention", "moe")


# Parameters of one mixer of Megatron-Core 0.19.2 built on the meta device, the norm before it left out.
BUILT: list[tuple[str, Literal["mamba", "gdn", "attention"], int, int]] = [
    ("nemotron-3-nano", "mamba", 1, 38742208),
    ("nemotron-3-nano", "mamba", 2, 19371104),
    ("nemotron-3-nano", "mamba", 8, 4842776),
    ("nemotron-3-nano-4b", "mamba", 1, 79033632),
    ("nemotron-3-nano-4b", "mamba", 2, 39516816),
    ("nemotron-3-nano-4b", "mamba", 8, 9879204),
    ("nemotron-h-56b", "mamba", 1, 438424320),
    ("nemotron-h-56b", "mamba", 2, 219212160),
    ("nemotron-h-56b", "mamba", 8, 54803040),
    ("qwen3-next-80b", "gdn", 1, 33718464),
    ("qwen3-next-80b", "gdn", 2, 16859296),
    ("qwen3-next-80b", "gdn", 8, 4214920),
    ("qwen3-next-80b", "attention", 1, 27263488),
    ("qwen3-next-80b", "attention", 2, 13632000),
    ("qwen3-next-80b", "attention", 8, 3408384),
]


@pytest.mark.parametrize(("name", "mixer", "tp", "parameters"), BUILT)
def test_parameters_of_a_mixer_are_exact(
    name: str, mixer: Literal["mamba", "gdn", "attention"], tp: int, parameters: int
) -> None:
    model = load_model(name)
    found = layer_parameters(model, LayerKind(mixer, "none"), tp)
    assert found.dense == parameters + model.hidden_size
    assert found.expert == 0


def test_halves_add_up_to_a_layer() -> None:
    model = load_model("qwen3-next-80b")
    whole = layer_parameters(model, LayerKind("gdn", "moe"), 2, 4)
    mixer, ffn = (
        layer_parameters(model, LayerKind("gdn", "none"), 2, 4),
        layer_parameters(model, LayerKind("none", "moe"), 2, 4),
    )
    assert tuple(a + b for a, b in zip(mixer, ffn, strict=True)) == whole


def test_weight_shapes_of_a_mixer() -> None:
    assert layer_weight_shapes(load_model("nemotron-3-nano"), LayerKind("mamba", "none"), 2) == (
        (5152, 2688),
        (2688, 2048),
    )


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("nemotron-3-nano", 31.58),
        ("nemotron-3-nano-4b", 3.974),
        ("nemotron-3-super", 120.67),
        ("qwen3-next-80b", 79.67),
    ],
)
def test_totals(name: str, billions: float) -> None:
    assert total_parameters(load_model(name)) / 1e9 == pytest.approx(billions, rel=1e-3)


def test_the_checkpoint_of_nemotron_3_super_has_as_many_elements() -> None:
    """What Megatron-Bridge counted at import: one MTP block, and a correction bias for each expert of 41 routers."""
    model = load_model("nemotron-3-super")
    once = mtp_parameters(model.model_copy(update={"mtp_num_layers": 1}))
    assert total_parameters(model) + once + 41 * 512 == 123_611_033_088
    assert active_parameters(model) / 1e9 == pytest.approx(12.77, rel=1e-3)


LATENT = LayerKind("none", "moe")


@pytest.mark.parametrize(("tp", "ep", "etp"), [(1, 1, 1), (4, 8, 2), (8, 64, 1)])
def test_experts_of_a_latent_by_hand(tp: int, ep: int, etp: int) -> None:
    model = load_model("nemotron-3-super")
    found = layer_parameters(model, LATENT, tp, ep, etp)
    projections = 2 * 4096 * 1024
    shared, router, norm = 2 * 4096 * 5376 // tp, 512 * 4096, 4096
    assert found.expert == 512 // ep * 2 * 1024 * 2688 // etp
    assert found.dense == projections + shared + router + norm
    assert found.cached == found.expert + projections + shared


@given(latent=st.integers(1, 4096), shared=st.sampled_from([None, 5376]), gated=st.booleans())
def test_a_latent_as_wide_as_the_hidden_state_costs_its_projections(
    latent: int, shared: int | None, gated: bool
) -> None:
    """A latent scales the experts alone, and adds two matrices that every token meets."""
    plain = load_model("nemotron-3-super").model_copy(
        update={"moe_latent_size": None, "shared_expert_ffn_hidden_size": shared, "gated_mlp": gated}
    )
    narrow = plain.model_copy(update={"moe_latent_size": latent})
    full, less = (layer_parameters(model, LATENT, ep=8) for model in (plain, narrow))
    assert less.expert * 4096 == full.expert * latent
    assert less.dense - full.dense == 2 * 4096 * latent
    saved = 22 * elements(expert_linears(plain, LATENT, 1)) * (4096 - latent) / 4096 - 2 * 4096 * latent
    # 40 layers of the pattern and two MTP blocks, three passes of two FLOPs.
    assert flops_per_token(plain, 512) - flops_per_token(narrow, 512) == pytest.approx(6 * 42 * saved)


# TFLOP/s over tokens a second of published rows of Megatron-Bridge: model cards and performance summary.
FLOPS = [
    ("nemotron-3-nano", 8192, 22.278),
    ("nemotron-3.5-lightning", 8192, 28.149),
    ("nemotron-3.5-lightning", 8192, 28.154),
    ("nemotron-3-nano-4b", 4096, 20.556),
    ("nemotron-3-nano-4b", 4096, 20.562),
    ("nemotron-3-super", 8192, 84.726),
    ("nemotron-3-super", 8192, 84.735),
    ("nemotron-3-super", 4096, 83.726),
]


@pytest.mark.parametrize(("name", "seq_len", "gigaflops"), FLOPS)
def test_flops_of_a_token_are_the_published_ones(name: str, seq_len: int, gigaflops: float) -> None:
    assert flops_per_token(load_model(name), seq_len) / 1e9 == pytest.approx(gigaflops, rel=5e-4)


# The same of the vision-language recipes of Qwen3.8-27B, whose vision tower adds a little.
def test_published_flops_of_qwen38_are_those_of_the_language_model() -> None:
    found = flops_per_token(load_model("qwen3.8-27b"), 4096) / 1e9
    assert 0.003 < 167.944 / found - 1 < 0.005


def test_published_flops_of_qwen36_hold_a_vision_tower_too() -> None:
    # Rows of the vision-language recipe: 23.01 to 23.04, of which the language model is what is counted here.
    found = flops_per_token(load_model("qwen3.6-35b-a3b"), 4096) / 1e9
    assert found == pytest.approx(22.42, rel=1e-3)
    assert 0.02 < 23.02 / found - 1 < 0.03


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("nemotron-3-nano", {"layer_pattern": NANO[:-1] + "X"}, "has the symbol 'X'"),
        ("nemotron-3-nano", {"layer_pattern": NANO[:-1]}, "has 51 layers, but num_layers is 52"),
        ("nemotron-3-nano", {"layer_pattern": NANO + "/*E"}, "has 1 MTP parts, but mtp_num_layers is 0"),
        ("nemotron-3-nano", {"layer_pattern": NANO + "/E", "mtp_num_layers": 1}, "has the MTP part 'E'"),
        ("nemotron-3-nano", {"layer_pattern": NANO.replace("E", "M")}, "E goes with num_experts"),
        ("nemotron-3-nano", {"layer_pattern": NANO.replace("E", "-", 1)}, "ffn_hidden_size is missing"),
        ("nemotron-3-nano", {"mamba_state_dim": None}, "mamba_state_dim is None, but it goes with an M"),
        ("nemotron-3-nano", {"mamba_num_groups": 7}, "mamba_num_groups is 7, but it must divide"),
        ("nemotron-3-nano", {"sliding_window": 128}, "sliding_window is 128, but a hybrid model has none"),
        ("nemotron-3-nano", {"first_k_dense": 1}, "first_k_dense must go"),
        ("nemotron-3-nano", {"moe_latent_size": 0}, "moe_latent_size is 0"),
        (
            "nemotron-h-56b",
            {"moe_latent_size": 64},
            "moe_latent_size is 64, but it is allowed with num_experts",
        ),
        ("qwen3-next-80b", {"linear_num_key_heads": 5}, "linear_num_key_heads is 5, but it must divide"),
        ("qwen3-next-80b", {"linear_conv_kernel": None}, "goes with linear_attention_period"),
        ("qwen3-next-80b", {"linear_bias": True}, "linear_bias is True, but a hybrid model has none"),
        ("llama3-8b", {"mamba_state_dim": 128}, "mamba_state_dim is 128, but it goes with an M"),
        ("dsv3", {"attention_output_gate": True}, "attention 'gqa' only"),
    ],
)
def test_a_wrong_hybrid_is_refused_in_one_sentence(name: str, change: dict[str, object], said: str) -> None:
    assert said in refusal(name, change)
