"""What fine-grained offload leaves on the device for a while: the layer that runs, and the last one before its backward.

The copy to the host of a layer's tensors ends while the next layer runs, and the last group of each module in a
micro-batch whose backward comes next is not sent at all. So a forward holds the offloaded tensors of the layer it
is in, and the loss those of the last layer. In a layer's own backward they count as brought back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mbsolve.constraints.memory import sizes
from mbsolve.constraints.memory.compose import composed, names_of
from mbsolve.constraints.memory.declare import Half
from mbsolve.constraints.memory.sizes import Value, flag
from mbsolve.constraints.memory.tensors import unsent_attention_bytes, unsent_moe_bytes
from mbsolve.constraints.placement import halves_of
from mbsolve.constraints.rule import Source, Term
from mbsolve.models.card import Model

GROUPS = Source(
    "NVIDIA/Megatron-LM",
    "megatron/core/pipeline_parallel/fine_grained_activation_offload.py: should_bulk_offload, bulk_offload_group; "
    "H200 one-rank training step, 2026-11-30",
)
INPUT = Source(
    "NVIDIA/Megatron-LM",
    "megatron/core/models/gpt/gpt_model.py: forward, whose frame names the decoder's input; "
    "H200 one-rank training step, 2026-11-30",
)
_BYTES = {"attention": unsent_attention_bytes, "moe": unsent_moe_bytes}


def _of_last_layer(half: Half, model: Model) -> bool:
    """Whether the layer whose output the loss takes has the half."""
    return half in halves_of(model.mtp_layer() if model.mtp_num_layers else model.layers()[-1])


def _kept(half: Half, per: str) -> Term:
    """Offloaded tensors of a half that are still, or again, on the device."""
    fn = _BYTES[half]

    def body(values: Mapping[str, Any]) -> Value:
        there = not per.startswith("at_loss") or _of_last_layer(half, values["model"])
        return fn(**{n: values[n] for n in names_of(fn)}) * float(there)

    text = f"Tensors of an {half} half that are offloaded, but not yet gone"
    name = f"unsent.{half}.{per.removeprefix('at_')}"
    return Term(fn=composed(text, names_of(fn), body), source=GROUPS, name=name, row="device_bytes", per=per)


def _first_input(per: str) -> Term:
    """Input of the first layer of a pass, which its offload does not free before the forward returns."""

    def body(values: Mapping[str, Any]) -> Value:
        model: Model = values["model"]
        module = "attn_norm" if model.mla else "qkv_linear"
        hidden = sizes.hidden(*(values[n] for n in ("job", "model", "mbs", "cp", "tp", "sequence_parallel")))
        return hidden * flag(values[f"offload_{module}"])

    needs = (*names_of(sizes.hidden), "offload_attn_norm", "offload_qkv_linear")
    fn = composed("Input of the first layer, named by the model's forward though offloaded", needs, body)
    name = f"unsent.first_input.{per.removeprefix('at_')}"
    return Term(fn=fn, source=INPUT, name=name, row="device_bytes", per=per)


_FORWARD = ("at_forward_attention", "at_forward_dense", "at_forward_moe")
UNSENT_TERMS: tuple[Term, ...] = (
    *(_kept("attention", per) for per in (*_FORWARD, "at_loss", "at_loss_backward")),
    *(_kept("moe", per) for per in ("at_forward_moe", "at_loss", "at_loss_backward")),
    *(_first_input(per) for per in (*_FORWARD, "at_loss")),
)
