"""Rules of how a sequence is cut."""

from __future__ import annotations

from math import lcm

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import rule
from mbsolve.constraints.rules.upstream import bridge, megatron
from mbsolve.models.card import Model


@rule(
    "seq-cp-divisible",
    because="{job.seq_len} tokens do not split into the 2 x CP = {pieces} pieces of context parallelism",
    source=bridge("src/megatron/bridge/training/config.py:1575"),
    figures=lambda cp: {"pieces": 2 * cp},
)
def sequence_splits(cp: int, job: Job) -> bool:
    """With context parallelism the sequence is a multiple of 2 x CP."""
    return cp == 1 or job.seq_len % (2 * cp) == 0


@rule(
    "seq-sp-divisible",
    because="of {job.seq_len} tokens one of CP = {cp} ranks holds {part}, which do not split over TP = {tp} for sequence "
    "parallelism; the sequence must be a multiple of {unit}",
    source=megatron("megatron/core/pipeline_parallel/schedules.py:1185"),
    figures=lambda cp, tp, job: {
        "part": job.seq_len // cp,
        "unit": tp if cp == 1 else cp * lcm(2, tp),
    },
)
def local_sequence_splits(sequence_parallel: bool, cp: int, tp: int, job: Job) -> bool:
    """With sequence parallelism the tokens of a context rank split evenly over the tensor ranks."""
    return not sequence_parallel or job.seq_len // cp % tp == 0


@rule(
    "cp-a2a-heads",
    because="a2a context parallelism exchanges heads: {model.num_attention_heads} heads and "
    "{model.num_query_groups} query groups on TP = {tp} do not split over CP = {cp}",
    source=megatron("megatron/core/extensions/transformer_engine.py:2153"),
)
def heads_split_over_context(tp: int, cp: int, job: Job, model: Model) -> bool:
    """With a2a context parallelism the heads and query groups of a tensor rank split evenly over CP."""
    if cp == 1 or job.settings.cp_comm_type != "a2a":
        return True
    heads, groups = model.num_attention_heads // tp, max(1, model.num_query_groups // tp)
    return heads % cp == 0 and groups % cp == 0


@rule(
    "hcp-required-for-a2a-p2p",
    because="cp_comm_type a2a+p2p needs hierarchical context-parallel sizes, which mbsolve does not set",
    source=bridge("src/megatron/bridge/training/config.py:1683"),
)
def hierarchy_is_sized(job: Job) -> bool:
    """Hierarchical context parallelism needs its sizes; it is not offered here."""
    return job.settings.cp_comm_type != "a2a+p2p"
