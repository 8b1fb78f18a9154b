"""The memory terms of a published run that differs from the runs that are planned: some replaced, some added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from mbsolve.constraints.evaluate import Priced
from mbsolve.constraints.job import Job
from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.sizes import BF16, Value
from mbsolve.constraints.rule import Row, Source, Term, term
from mbsolve.emit.habits import Habits
from mbsolve.models.card import Model

__all__ = ["as_run"]

DEVICE: Final[Row] = "device_bytes"
# torch refuses deterministic algorithms unless CUBLAS_WORKSPACE_CONFIG fixes the workspace; the tests of Megatron-LM
# set :4096:8, eight of 4 MiB, one workspace for the main and one for the autograd thread.
DETERMINISTIC_WORKSPACES: Final = 2 * 8 * 4096 * 1024.0
STATE: Final = ("masters.", "moments.", "gradient_copies.", "optimizer_step.")
LOCAL = Source("NVIDIA/Megatron-LM", "megatron/core/transformer/dot_product_attention.py, read in the code")


@term("buffer.attention_scores", row=DEVICE, per="one", source=LOCAL)
def attention_scores(job: Job, model: Model, mbs: Value, tp: Value, cp: Value) -> Value:
    """Global buffer for the scores of attention without Transformer Engine."""
    return sizes.tokens(job, mbs, cp) * job.seq_len * model.num_attention_heads / np.asarray(tp) * BF16


def as_run(p: Priced, habits: Habits) -> Priced:
    """The priced plan with the device terms that the run had."""
    out = Priced(p.job, p.plan, p.values)
    out.terms.update(p.terms)
    out.terms[DEVICE] = [(t, _value(t, value, p, habits)) for t, value in p.terms[DEVICE]]
    out.terms[DEVICE] += [(t, value) for t, value in _added(p, habits)]
    return out


def _value(t: Term, value: float, p: Priced, habits: Habits) -> float:
    """The value of a term in a run with these habits."""
    if t.name == "workspace.torch_cublas" and habits.deterministic:
        return DETERMINISTIC_WORKSPACES
    if t.name == "workspace.te_gemm" and habits.local_layers:
        return 0.0
    if t.name == "workspace.te_grouped_gemm" and (habits.local_layers or not habits.grouped_experts):
        return 0.0
    if t.name.startswith("weight_copies.") and not habits.transposed_weights and p.job.settings.fp8_param:
        return 0.0
    if t.name.startswith(STATE) and p.job.settings.distributed_optimizer:
        return value * habits.optimizer_instances
    return value


def _added(p: Priced, habits: Habits) -> Iterator[tuple[Term, float]]:
    """Terms that planned runs do not have, with their values."""
    if habits.local_layers:
        yield attention_scores, float(attention_scores.call(p.job.facts, p.values))
