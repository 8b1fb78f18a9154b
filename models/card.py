"""The model card: the architecture facts that memory, time and the rules are computed from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mbsolve.cards import (
    CardError,
    card_names,
    card_sources,
    explain,
    find_card,
    plain_values,
    read_mapping,
)
from mbsolve.models.counts import total_parameters
from mbsolve.models.huggingface import read_config
from mbsolve.models.kinds import (
    LayerKind,
    attention_layers,
    linear_attention_layers,
    pattern_layers,
    pattern_mtp,
)
from mbsolve.models.wholeness import CHECKS

__all__ = ["CardError", "LayerKind", "Model", "load_model", "model_names", "parse_model"]

DATA = Path(__file__).parent / "data"
USUAL_SEQ_LEN = 4096
MEBI = 2**20
SMALL_DENSE_PARAMETERS = 20e9

Positive = Annotated[int, Field(strict=True, ge=1)]
NonNegative = Annotated[int, Field(strict=True, ge=0)]
Flag = Annotated[bool, Field(strict=True)]


class Model(BaseModel):
    """A decoder-only transformer as a card describes it.

    Parameters
    ----------
    name, title, aliases
        The card's own name, the name for people, and other names that find it.
    num_layers
        Decoder layers, MTP layers not counted; at least 1.
    hidden_size, ffn_hidden_size
        Widths of the residual stream and of a dense FFN. The latter may be None if every layer is MoE.
    num_attention_heads, num_query_groups, head_dim
        Query heads, key-value heads (they divide the query heads), width of a head. MLA uses the first alone.
    vocab_size
        Rows of the embedding, as trained.
    attention
        ``gqa`` (multi-head and multi-query are its ends) or ``mla``.
    q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim
        MLA only. ``q_lora_rank`` None: queries come from one full matrix.
    num_experts, moe_topk, moe_ffn_hidden_size
        Routed experts, experts a token visits, width of one expert. None on dense models.
    moe_latent_size
        Width in which the routed experts take and give tokens, between two projections; None: the hidden size.
    shared_expert_ffn_hidden_size, shared_expert_gate
        Total width of the shared experts, and whether a gate scales them.
    first_k_dense
        Leading layers with a dense FFN; less than ``num_layers``.
    router_score_function, router_num_groups, router_group_topk, aux_loss
        Routing: score, group limit (both or neither), whether an auxiliary loss is configured.
    mtp_num_layers
        Multi-token-prediction layers.
    tie_embeddings, gated_mlp, qk_layernorm, attention_sink
        Output layer uses the embedding matrix; gate in the FFN; norms on queries and keys; one learnt sink per
        head.
    linear_bias, qkv_bias, norm_bias
        Biases of all linear layers, or of the query, key and value projection alone (not with MLA); an offset
        beside the scale of every norm.
    learned_positions
        Rows of a learnt position embedding, which every tensor-parallel rank holds whole; None: rotary or none.
    rotary
        Kind of the rotary embedding: ``rope``, ``yarn``, or ``none``; not read where positions are learnt.
    sliding_window, window_period
        Tokens that a windowed layer sees. Layer ``i`` (from 0) is windowed unless ``window_period`` divides
        ``i + 1``; without a period all layers are.
    published_params
        Published total, embeddings and output layer in, MTP apart; None where none is published.
    tokens_per_batch
        Published tokens of a global batch, or None.
    pretrain_seq_len
        Tokens of a sequence in published pretraining runs, or None.
    layer_pattern
        Layers of a Mamba hybrid, one symbol each: ``M`` Mamba-2, ``*`` attention, ``-`` dense FFN, ``E`` MoE; then
        for every MTP block ``/`` and its two symbols.
    attention_output_gate
        The query projection also makes a gate, as wide as the queries, on the attention output.
    linear_attention_period
        Layer ``i`` (from 0) has full attention if this divides ``i + 1``, else a gated delta net.
    linear_conv_kernel, linear_key_head_dim, linear_value_head_dim, linear_num_key_heads, linear_num_value_heads
        Gated delta nets: taps of the convolution, widths and numbers of heads (key heads divide value heads).
    mamba_state_dim, mamba_num_heads, mamba_head_dim, mamba_num_groups, mamba_conv_kernel
        Mamba-2: width of the state, heads, width of a head, groups (they divide the heads), taps of the convolution.
    sources
        Field -> where its value comes from.

    Raises
    ------
    pydantic.ValidationError
        If a field is of a wrong type or the fields contradict each other (`parse_model` raises `CardError`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    title: str
    aliases: tuple[str, ...] = ()
    num_layers: Positive
    hidden_size: Positive
    ffn_hidden_size: Positive | None = None
    num_attention_heads: Positive
    num_query_groups: Positive
    head_dim: Positive
    vocab_size: Positive
    attention: Literal["gqa", "mla"]
    q_lora_rank: Positive | None = None
    kv_lora_rank: Positive | None = None
    qk_nope_head_dim: Positive | None = None
    qk_rope_head_dim: Positive | None = None
    v_head_dim: Positive | None = None
    num_experts: Positive | None = None
    moe_topk: Positive | None = None
    moe_ffn_hidden_size: Positive | None = None
    moe_latent_size: Positive | None = None
    shared_expert_ffn_hidden_size: Positive | None = None
    shared_expert_gate: Flag = False
    first_k_dense: NonNegative = 0
    router_score_function: Literal["softmax", "sigmoid"] = "softmax"
    router_num_groups: Positive | None = None
    router_group_topk: Positive | None = None
    aux_loss: Flag = False
    mtp_num_layers: NonNegative = 0
    tie_embeddings: Flag
    gated_mlp: Flag = True
    qk_layernorm: Flag
    linear_bias: Flag = False
    qkv_bias: Flag = False
    norm_bias: Flag = False
    learned_positions: Positive | None = None
    rotary: Literal["rope", "yarn", "none"] = "rope"
    attention_sink: Flag = False
    sliding_window: Positive | None = None
    window_period: Annotated[int, Field(strict=True, ge=2)] | None = None
    layer_pattern: Annotated[str, Field(min_length=1)] | None = None
    attention_output_gate: Flag = False
    linear_attention_period: Annotated[int, Field(strict=True, ge=2)] | None = None
    linear_conv_kernel: Positive | None = None
    linear_key_head_dim: Positive | None = None
    linear_value_head_dim: Positive | None = None
    linear_num_key_heads: Positive | None = None
    linear_num_value_heads: Positive | None = None
    mamba_state_dim: Positive | None = None
    mamba_num_heads: Positive | None = None
    mamba_head_dim: Positive | None = None
    mamba_num_groups: Positive | None = None
    mamba_conv_kernel: Positive | None = None
    published_params: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    tokens_per_batch: Positive | None = None
    pretrain_seq_len: Positive | None = None
    sources: dict[str, str] = Field(default_factory=dict)

    def __hash__(self) -> int:
        """Hash by name and depth, because `sources` is a dict; equality still compares every field."""
        return hash((self.name, self.num_layers, self.hidden_size))

    @model_validator(mode="after")
    def _is_whole(self) -> Model:
        for check in CHECKS:
            check(self)
        return self

    @property
    def hybrid(self) -> bool:
        """Whether layers differ in their mixer for good, or lack a half: a pattern, or gated delta nets."""
        return self.layer_pattern is not None or self.linear_attention_period is not None

    @property
    def is_moe(self) -> bool:
        """Whether some layers have routed experts."""
        return self.num_experts is not None

    @property
    def routed_width(self) -> int:
        """Width of a token on its way to the routed experts, in them, and back."""
        return self.moe_latent_size or self.hidden_size

    @property
    def mla(self) -> bool:
        """Whether attention is multi-head latent attention."""
        return self.attention == "mla"

    def layers(self) -> tuple[LayerKind, ...]:
        """Return the kind of every decoder layer, first to last, MTP layers not included."""
        if self.layer_pattern is not None:
            return pattern_layers(self.layer_pattern)
        period = self.linear_attention_period
        if period is not None:
            return linear_attention_layers(self.num_layers, self.first_k_dense, self.is_moe, period)
        windowed = self.sliding_window is not None
        return attention_layers(
            self.num_layers, self.first_k_dense, self.is_moe, windowed, self.window_period
        )

    def mtp_layer(self) -> LayerKind:
        """Return the kind of the layer inside an MTP block: that of the pattern, or of the last decoder layer."""
        own = pattern_mtp(self.layer_pattern) if self.layer_pattern is not None else None
        return own or self.layers()[-1]

    def default_seq_len(self) -> int:
        """Return the tokens of a sequence when the user names none: the card's published value, else 4,096."""
        return self.pretrain_seq_len or USUAL_SEQ_LEN

    def default_tokens_per_batch(self) -> int:
        """Return the tokens of a global batch when the user names none.

        The card's published value; else 16 Mi for MoE, 4 Mi for dense models below 20e9 parameters, 8 Mi above.
        """
        if self.tokens_per_batch is not None:
            return self.tokens_per_batch
        if self.is_moe:
            return 16 * MEBI
        return (4 if total_parameters(self) < SMALL_DENSE_PARAMETERS else 8) * MEBI


def parse_model(raw: Mapping[str, object], where: str = "The model") -> Model:
    """Build a model from the mapping of a card or of a job file.

    Parameters
    ----------
    raw
        Field -> value or ``{value: ..., source: ...}``; a top-level ``source`` is the default source.
    where
        How the error names the card; it starts a sentence.

    Raises
    ------
    CardError
        One sentence: the field, its value, and what is allowed.
    """
    default = raw.get("source", where)
    if not isinstance(default, str):
        raise CardError(f"{where}: source is {default!r}, but it must be a text.")
    fields = [field for field in Model.model_fields if field != "sources"]
    try:
        values = plain_values({key: value for key, value in raw.items() if key != "source"})
        found = card_sources(raw, (f for f in fields if f not in ("name", "title", "aliases")), default)
        return Model.model_validate({"sources": found, **(values if isinstance(values, dict) else {})})
    except ValidationError as error:
        raise CardError(explain(error, where, fields)) from error
    except RecursionError as error:
        raise CardError(f"{where} contains itself.") from error


@lru_cache(maxsize=64)
def _shipped(path: Path) -> Model:
    return parse_model(read_mapping(path), f"The model card {path.stem}")


def model_names() -> tuple[str, ...]:
    """Return the names of the shipped cards, sorted."""
    return card_names(DATA)


def load_model(name_or_path: str | Path) -> Model:
    """Return the card of a name, an alias, a YAML file or the ``config.json`` of a Hugging Face checkpoint.

    Parameters
    ----------
    name_or_path
        A shipped name or alias (case and ``-``, ``_``, ``.`` do not count), or a path: anything with a ``/``,
        ending in ``.yaml``, ``.yml`` or ``.json``, or naming what exists. A ``.json`` file, or a folder with a
        ``config.json``, is read as a checkpoint's configuration; any other file as a card.

    Raises
    ------
    CardError
        If there is no such card, or the file is no valid card.
    """
    path = find_card(name_or_path, DATA, "model")
    if path.parent == DATA:
        return _shipped(path)
    path = path / "config.json" if os.path.isdir(path) else path
    if path.suffix == ".json":
        return parse_model(read_config(path), f"The config {path}")
    return parse_model(read_mapping(path), f"The card {path}")
