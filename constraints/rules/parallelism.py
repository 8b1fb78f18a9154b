"""Rules of the two process grids: what tensor, expert and data parallelism can divide."""

from __future__ import annotations

from mbsolve.constraints.job import Job
from mbsolve.constraints.rule import Source, rule
from mbsolve.constraints.rules.upstream import CONFIG, MEGATRON_LM, megatron
from mbsolve.constraints.rules.useful import has_dense_layers
from mbsolve.hardware.card import Machine
from mbsolve.models.card import Model


@rule(
    "tp-divides-attention-heads",
    because="{model.num_attention_heads} attention heads do not split over TP = {tp} (remainder {left})",
    source=megatron(f"{CONFIG}:1446"),
    figures=lambda tp, model: {"left": model.num_attention_heads % tp},
)
def heads_split(tp: int, model: Model) -> bool:
    """Attention heads split evenly over the tensor ranks."""
    return model.num_attention_heads % tp == 0


@rule(
    "query-groups-vs-tp",
    because="{model.num_query_groups} query groups neither split over TP = {tp} nor are copied a whole number of "
    "times over it",
    source=megatron(f"{CONFIG}:1462"),
    since="mcore 0.16",
)
def groups_split(tp: int, model: Model) -> bool:
    """Query groups are a multiple or a divisor of TP.

    Releases before 0.16 asked for a multiple. Where each head has a group of its own, the law of the heads says it all.
    """
    groups = model.num_query_groups
    return groups % tp == 0 or tp % groups == 0 or groups == model.num_attention_heads


@rule(
    "tp-divides-ffn",
    because="FFN widths (dense {model.ffn_hidden_size}, shared experts {model.shared_expert_ffn_hidden_size}) "
    "do not split over TP = {tp}",
    source=megatron("megatron/core/utils.py divide, called by every column- and row-parallel layer"),
)
def ffn_splits(tp: int, model: Model) -> bool:
    """The widths of dense FFNs and shared experts split evenly over the tensor ranks."""
    dense = (model.ffn_hidden_size or 0) if has_dense_layers(model) else 0
    return dense % tp == 0 and (model.shared_expert_ffn_hidden_size or 0) % tp == 0


@rule(
    "vocab-divisible-tp",
    because="without padding, {model.vocab_size} rows of the vocabulary do not split over TP = {tp} (remainder {left}); "
    "padded to a multiple of 128 x TP they are {padded}",
    source=Source("NVIDIA-NeMo/Megatron-Bridge", "issue 1331"),
    figures=lambda tp, model: {
        "left": model.vocab_size % tp,
        "padded": -(-model.vocab_size // (128 * tp)) * 128 * tp,
    },
)
def vocabulary_splits(tp: int, job: Job, model: Model) -> bool:
    """An unpadded vocabulary splits evenly over the tensor ranks.

    The stack pads the vocabulary to a multiple of ``make_vocab_size_divisible_by`` (128) times TP, which always
    splits; only a job that turns the padding off (a setting of 1) can break this.
    """
    return job.settings.make_vocab_size_divisible_by > 1 or model.vocab_size % tp == 0


@rule(
    "world-divisible-by-dense-grid",
    because="TP x PP x CP = {tp} x {pp} x {cp} = {product} does not divide {job.gpus} GPUs",
    source=megatron("megatron/core/parallel_state.py:822"),
    figures=lambda tp, pp, cp: {"product": tp * pp * cp},
)
def dense_grid_fits(tp: int, pp: int, cp: int, job: Job) -> bool:
    """TP x PP x CP divides the GPUs."""
    return job.gpus % (tp * pp * cp) == 0


@rule(
    "world-divisible-by-expert-grid",
    because="ETP x EP x PP = {etp} x {ep} x {pp} = {product} does not divide {job.gpus} GPUs",
    source=megatron("megatron/core/parallel_state.py:881"),
    figures=lambda etp, ep, pp: {"product": etp * ep * pp},
)
def expert_grid_fits(etp: int, ep: int, pp: int, job: Job) -> bool:
    """ETP x EP x PP divides the GPUs."""
    return job.gpus % (etp * ep * pp) == 0


@rule(
    "ep-needs-experts",
    because="EP = {ep}, but {model.title} has no experts; EP must be 1",
    source=megatron(f"{CONFIG}:1596"),
)
def experts_exist(ep: int, model: Model) -> bool:
    """Expert parallelism needs experts."""
    return ep == 1 or model.is_moe


@rule(
    "ep-divides-experts",
    because="{model.num_experts} experts do not split over EP = {ep} (remainder {left})",
    source=megatron("megatron/core/transformer/moe/moe_layer.py:186"),
    figures=lambda ep, model: {"left": (model.num_experts or 0) % ep},
)
def experts_split(ep: int, model: Model) -> bool:
    """Experts split evenly over the expert ranks."""
    return model.num_experts is None or model.num_experts % ep == 0


@rule(
    "etp-divides-expert-ffn",
    because="experts of width {model.moe_ffn_hidden_size} do not split over ETP = {etp}",
    source=megatron("megatron/core/extensions/transformer_engine.py TEGroupedLinear"),
)
def expert_width_splits(etp: int, model: Model) -> bool:
    """The width of one expert splits evenly over the expert-tensor ranks."""
    return (model.moe_ffn_hidden_size or 0) % etp == 0


@rule(
    "sp-needs-tp-mcore",
    because="sequence parallelism is on, but TP = {tp}; it needs TP above 1",
    source=megatron("megatron/core/model_parallel_config.py:504"),
)
def sequence_parallel_needs_tp(sequence_parallel: bool, tp: int) -> bool:
    """Sequence parallelism needs tensor parallelism."""
    return not sequence_parallel or tp > 1


@rule(
    "moe-tp-without-sp-raises",
    because="the experts of {model.title} refuse to train at TP = {tp} without sequence parallelism",
    source=megatron("megatron/core/transformer/moe/moe_layer.py:636"),
)
def moe_needs_sequence_parallel(sequence_parallel: bool, tp: int, model: Model) -> bool:
    """MoE with tensor parallelism needs sequence parallelism."""
    return not model.is_moe or tp == 1 or sequence_parallel


@rule(
    "moe-bias-needs-etp1",
    because="the experts of {model.title} have biases, which allow ETP = 1 only, not {etp}",
    source=megatron(f"{CONFIG}:2612"),
)
def biased_experts_stay_whole(etp: int, model: Model) -> bool:
    """Experts with biases are not split by ETP."""
    return etp == 1 or not (model.is_moe and model.linear_bias)


@rule(
    "tp-overlap-mlm",
    because="TP communication overlap is set, but sequence parallelism is off (TP = {tp})",
    source=megatron("megatron/training/arguments.py:1442"),
    targets=MEGATRON_LM,
)
def tp_overlap_needs_sequence_parallel(sequence_parallel: bool, tp: int, job: Job) -> bool:
    """In Megatron-LM, TP communication overlap needs sequence parallelism, which is off without TP."""
    return not job.settings.tp_comm_overlap or (sequence_parallel and tp > 1)


@rule(
    "grouped-gemm-arch",
    because="grouped products of experts need compute capability 8.0 or more, which {machine.title} has not",
    source=megatron("megatron/training/arguments.py:1380"),
    targets=MEGATRON_LM,
)
def machine_groups_products(machine: Machine, model: Model) -> bool:
    """In Megatron-LM, experts need a GPU of compute capability 8.0 or more."""
    return not model.is_moe or machine.compute_capability[0] >= 8
