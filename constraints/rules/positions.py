"""Rules of positions in a sequence: rotary, learnt, and how far they reach."""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import CONFIG, MEGATRON_LM, megatron
from mbsolve.models.card import Model


@rule(
    "mla-rope-fusion",
    because="rope_fusion is on, and the latent attention of {model.title} fuses a yarn embedding only, not {model.rotary}",
    source=megatron(f"{CONFIG}:3346"),
)
def latent_attention_fuses_yarn(job: Job, model: Model) -> bool:
    """Multi-head latent attention fuses its rotary embedding only if that is of kind yarn."""
    return not (model.mla and job.settings.rope_fusion) or model.rotary == "yarn"


@rule(
    "seq-max-position",
    because="sequences have {job.seq_len} tokens, but {model.title} has learnt {model.learned_positions} positions",
    source=megatron("megatron/training/arguments.py:1355"),
    targets=MEGATRON_LM,
)
def positions_reach_the_end(job: Job, model: Model) -> bool:
    """In Megatron-LM, learnt positions reach to the end of a sequence; Bridge makes the table as long as that."""
    return model.learned_positions is None or job.seq_len <= model.learned_positions


@rule(
    "mtp-positions-mlm",
    because="Megatron-LM trains MTP with rotary or no positions only, and {model.title} has {model.mtp_num_layers} MTP "
    "layers (learnt positions: {model.learned_positions}, rotary: {model.rotary})",
    source=megatron("megatron/training/arguments.py, validate_args (MTP validation)"),
    targets=MEGATRON_LM,
)
def mtp_knows_its_positions(model: Model) -> bool:
    """In Megatron-LM, MTP needs a plain rotary embedding or none; latent attention has its own."""
    plain = model.learned_positions is None and (model.mla or model.rotary != "yarn")
    return not model.mtp_num_layers or plain
