"""Counts against parameters that were built on a GPU, and FLOPs against hand-checked values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbsolve.models.card import Model, load_model, model_names
from mbsolve.models.counts import (
    active_parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    layer_weight_shapes,
    mtp_extra_parameters,
    mtp_parameters,
    mtp_weight_shape,
    total_parameters,
)
from mbsolve.models.flops import flops_per_token


class Built(NamedTuple):
    """Parameters of one rank of a real Megatron-Core 0.19.2 model on an H200 (probes of 2026-11-30)."""

    id: str
    model: str
    layers: int
    first_k_dense: int
    tp: int
    ep: int
    embedding: bool
    head: bool
    parameters: int
    expert_parameters: int


BUILT = [
    Built("l8-tp1", "llama3-8b", 32, 0, 1, 1, True, True, 8030261248, 0),
    Built("l8.8L.none", "llama3-8b", 8, 0, 1, 1, True, True, 2795573248, 0),
    Built("l8.8L.tp2", "llama3-8b", 8, 0, 2, 1, True, True, 1397821440, 0),
    Built("l8.pp2vpp4.r0", "llama3-8b", 16, 0, 1, 1, True, False, 4015128576, 0),
    Built("l8.pp2vpp4.r1", "llama3-8b", 16, 0, 1, 1, False, True, 4015132672, 0),
    Built("q30.8L.ep8.none", "qwen3-30b-a3b", 8, 0, 1, 8, True, True, 1379438592, 603979776),
    Built("q30.8L.tp2ep4", "qwen3-30b-a3b", 8, 0, 2, 4, True, True, 1596755968, 1207959552),
    Built("q30.ep16.48L", "qwen3-30b-a3b", 48, 0, 1, 16, True, True, 3353032704, 1811939328),
    Built("q30.tp2pp2ep4.r0", "qwen3-30b-a3b", 24, 0, 2, 4, True, False, 4012349440, 3623878656),
    Built("q30.tp2pp2ep4.r1", "qwen3-30b-a3b", 24, 0, 2, 4, False, True, 4012351488, 3623878656),
    Built("d3.5L.ep32.none", "dsv3", 5, 1, 1, 32, True, True, 4778122240, 1409286144),
    Built("dsv3-9L-fp8", "dsv3", 9, 3, 1, 32, True, True, 7115725824, 2113929216),
]


@pytest.mark.parametrize("built", BUILT, ids=lambda built: built.id)
def test_parameters_of_a_rank_are_exact(built: Built) -> None:
    model = load_model(built.model).model_copy(
        update={"num_layers": built.layers, "first_k_dense": built.first_k_dense}
    )
    layers = [layer_parameters(model, kind, built.tp, built.ep) for kind in model.layers()]
    expert = sum(layer.expert for layer in layers)
    total = expert + sum(layer.dense for layer in layers)
    total += embedding_parameters(model, built.tp) if built.embedding else 0
    total += head_parameters(model, built.tp, embedding_here=built.embedding) if built.head else 0
    assert (total, expert) == (built.parameters, built.expert_parameters)


# What the stack reports for a token: TFLOP/s x step time / tokens of published performance tables and model cards,
# median of the rows of one model that agree with each other to 0.2%. Left out: GPT-OSS before release 26.06, which
# counted windowed layers by half of the sequence; and fine-tuning rows, whose sequences are packed.
PUBLISHED_FLOPS = [
    ("dsv3", {}, 4096, 260.0, "Megatron-Bridge with MTP"),
    ("dsv3", {"mtp_num_layers": 0}, 4096, 249.7, "Megatron-Bridge 25.11, without MTP"),
    ("kimi-k2", {}, 4096, 204.5, "NeMo AutoModel"),
    ("qwen3-235b-a22b", {}, 4096, 148.04, "Megatron-Bridge"),
    ("qwen3-30b-a3b", {}, 4096, 23.006, "Megatron-Bridge"),
    ("qwen3-8b", {}, 4096, 49.033, "Megatron-Bridge model card"),
    ("llama3-70b", {}, 8192, 449.22, "Megatron-Bridge"),
    ("llama3-8b", {}, 8192, 51.472, "Megatron-Bridge"),
    ("llama3.1-405b", {}, 8192, 2524.0, "Megatron-Bridge"),
    ("moonlight-16b", {}, 4096, 17.16, "Megatron-Bridge model card"),
    ("gpt-oss-120b", {}, 4096, 32.63, "Megatron-Bridge 26.06 and later"),
]


@pytest.mark.parametrize(
    ("name", "changes", "seq_len", "gigaflops", "source"),
    PUBLISHED_FLOPS,
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_flops_of_a_token(
    name: str, changes: dict[str, int], seq_len: int, gigaflops: float, source: str
) -> None:
    model = load_model(name).model_copy(update=changes)
    assert flops_per_token(model, seq_len) / 1e9 == pytest.approx(gigaflops, rel=0.002), source


@pytest.mark.parametrize(
    ("name", "seq_len", "gigaflops"),
    [
        ("llama2-7b", 4096, 46.06),
        ("llama2-13b", 4096, 87.21),
        ("llama2-70b", 4096, 444.4),
        ("llama3-8b", 8192, 57.914),
        ("llama3-70b", 8192, 481.4),
        ("llama3.1-405b", 8192, 2625.7),
        ("gpt3-175b", 2048, 1076.5),
        ("nemotron4-15b", 4096, 93.98),
        ("nemotron4-340b", 4096, 2105.3),
        ("mixtral-8x7b", 4096, 82.92),
        ("gpt3-5b", 2048, 32.684),
        ("gpt3-20b", 2048, 128.183),
        ("nemotron3-8b", 4096, 51.411),
        ("nemotron3-22b", 4096, 130.334),
    ],
)
def test_flops_of_pages_that_count_the_whole_score_matrix(name: str, seq_len: int, gigaflops: float) -> None:
    """NeMo 24.12 to 25.07 pages count what causal attention skips: the context of a sequence twice as long."""
    assert flops_per_token(load_model(name), 2 * seq_len) / 1e9 == pytest.approx(gigaflops, rel=0.002)


def test_flops_of_a_window() -> None:
    model = load_model("gpt-oss-20b")
    full = model.model_copy(update={"sliding_window": None, "window_period": None})
    heads = 6 * 12 * 2 * 64 * 64
    for seq_len in (64, 128):
        assert flops_per_token(model, seq_len) == flops_per_token(full, seq_len)
    for seq_len in (129, 4096):
        seen = sum(min(token, 128) for token in range(1, seq_len + 1)) / seq_len
        saved = flops_per_token(full, seq_len) - flops_per_token(model, seq_len)
        assert saved == pytest.approx(heads * (seq_len / 2 - seen), rel=1e-9)


def test_flops_of_a_tiny_model_by_hand() -> None:
    model = Model(
        name="tiny",
        title="tiny",
        num_layers=2,
        hidden_size=4,
        ffn_hidden_size=8,
        num_attention_heads=2,
        num_query_groups=1,
        head_dim=2,
        vocab_size=10,
        attention="gqa",
        tie_embeddings=True,
        qk_layernorm=False,
        gated_mlp=False,
        sliding_window=3,
        window_period=2,
    )
    qkv, proj, ffn, logits = 4 * (2 + 2 * 1) * 2, 4 * 4, 2 * 4 * 8, 4 * 10
    windowed, full = (3 - 3 * 2 / 32) * 2 * (2 + 2), 8 * 2 * (2 + 2)
    assert flops_per_token(model, 16) == 6 * (2 * (qkv + proj + ffn) + windowed + full + logits)
    assert total_parameters(model) == 2 * (qkv + proj + ffn + 4 + 4) + 40 + 4


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("dsv3", 37.6),
        ("kimi-k2", 32.9),
        ("qwen3-30b-a3b", 3.35),
        ("qwen3-235b-a22b", 22.2),
        ("llama3-8b", 8.03),
    ],
)
def test_active_parameters(name: str, billions: float) -> None:
    assert active_parameters(load_model(name)) / 1e9 == pytest.approx(billions, rel=0.005)


def test_mtp_of_deepseek_v3() -> None:
    model = load_model("dsv3")
    layer = layer_parameters(model, model.mtp_layer())
    hidden = model.hidden_size
    assert mtp_extra_parameters(model, 4) == 2 * hidden * hidden // 4 + 3 * hidden
    assert mtp_parameters(model) == layer.dense + layer.expert + 2 * hidden * hidden + 3 * hidden
    assert mtp_weight_shape(model, 4) == (hidden // 4, 2 * hidden)
    assert mtp_parameters(load_model("kimi-k2")) == 0


def test_a_tied_matrix_counts_once_on_a_rank() -> None:
    model = load_model("llama3-8b").model_copy(update={"tie_embeddings": True})
    assert head_parameters(model, 2, embedding_here=True) == model.hidden_size
    assert head_parameters(model, 2) == model.hidden_size + embedding_parameters(model, 2)


def test_biases_and_sinks_of_gpt_oss_are_counted() -> None:
    model = load_model("gpt-oss-120b")
    kind = model.layers()[1]
    bare = model.model_copy(update={"linear_bias": False, "attention_sink": False})
    with_bias, without = layer_parameters(model, kind, 2, 4), layer_parameters(bare, kind, 2, 4)
    qkv, hidden, heads = (64 + 2 * 8) * 64 // 2, 2880, 64 // 2
    assert with_bias.dense - without.dense == qkv + hidden + 128 + heads
    assert with_bias.expert - without.expert == 32 * (2 * 2880 + 2880)
    assert with_bias.cached == without.cached


def test_weight_shapes_are_distinct_and_carry_the_cached_elements() -> None:
    model = load_model("qwen3-30b-a3b")
    shapes = layer_weight_shapes(model, model.layers()[0], tp=2)
    assert shapes == ((2560, 2048), (2048, 2048), (1536, 2048), (2048, 768))
    dense, down = shapes[:2], shapes[2:]
    cached = sum(rows * columns for rows, columns in dense) + 128 * sum(
        rows * columns for rows, columns in down
    )
    assert layer_parameters(model, model.layers()[0], tp=2).cached == cached


def test_query_groups_are_split_when_tensor_parallelism_exceeds_them() -> None:
    model = load_model("qwen3-30b-a3b")
    (qkv, _), *_ = layer_weight_shapes(model, model.layers()[0], tp=8)
    assert qkv == (32 + 2 * 4) * 128 // 8


def test_vectors_of_gpt3_and_qwen2() -> None:
    gpt3, qwen = load_model("gpt3-175b"), load_model("qwen2.5-7b")
    bare = gpt3.model_copy(update={"norm_bias": False, "learned_positions": None})
    hidden, kind = gpt3.hidden_size, gpt3.layers()[0]
    assert layer_parameters(gpt3, kind, 8).dense - layer_parameters(bare, kind, 8).dense == 2 * hidden
    assert embedding_parameters(gpt3, 8) - embedding_parameters(bare, 8) == 2048 * hidden
    assert head_parameters(gpt3, 8) == 51200 * hidden // 8 + 2 * hidden
    without = qwen.model_copy(update={"qkv_bias": False})
    both = qwen.model_copy(update={"linear_bias": True})
    none, qkv, every = (layer_parameters(m, qwen.layers()[0], 2).dense for m in (without, qwen, both))
    assert qkv - none == (28 + 2 * 4) * 128 // 2
    assert every - none == (28 + 2 * 4) * 128 // 2 + 3584 + 18944 + 3584


@given(
    name=st.sampled_from(model_names()),
    degrees=st.lists(
        st.tuples(*(st.sampled_from([1, 2, 4, 8]) for _ in range(3))),
        min_size=1,
        max_size=6,
    ),
)
def test_arrays_give_what_scalars_give(name: str, degrees: list[tuple[int, int, int]]) -> None:
    model = load_model(name)
    tp, ep, etp = (np.array(column, dtype=np.int32) for column in zip(*degrees, strict=True))
    for kind in set(model.layers()):
        many = layer_parameters(model, kind, tp, ep, etp)
        for index, (t, e, x) in enumerate(degrees):
            one = layer_parameters(model, kind, t, e, x)
            assert (many.dense[index], many.expert[index], many.cached[index]) == one
            assert all(type(count) is int for count in one)
    assert embedding_parameters(model, tp).tolist() == [embedding_parameters(model, t) for t, _, _ in degrees]
    assert head_parameters(model, tp).tolist() == [head_parameters(model, t) for t, _, _ in degrees]
    assert mtp_extra_parameters(model, tp).tolist() == [mtp_extra_parameters(model, t) for t, _, _ in degrees]
