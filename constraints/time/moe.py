"""The mixture-of-experts sub-block: router, permutation, dispatch, routed and shared experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mbsolve.constraints.job import Job
from mbsolve.constraints.time.attention import norm_ops
from mbsolve.constraints.time.dispatch import (
    choose,
    dispatch_launches,
    expert_tensor_launches,
    expert_tensor_parallel,
    routed_tokens,
)
from mbsolve.constraints.time.experts import (
    expert_activation,
    expert_launches,
    experts,
    quantise_experts,
)
from mbsolve.constraints.time.ffn import ACTIVATION_LAUNCHES, ffn_activation, ffn_linears, ffn_quantise
from mbsolve.constraints.time.ops import Op, Part
from mbsolve.constraints.time.overlap import exposed_dispatch
from mbsolve.constraints.time.rates import (
    BENCH,
    CHOSEN,
    FIT,
    NOTHING,
    Pass,
    gemm,
    gemm_launches,
    moved,
    quantise,
    sharded_tokens,
    tensor_parallel,
    tensor_parallel_launches,
    tokens,
)
from mbsolve.hardware.card import Machine
from mbsolve.hardware.topology import Topology
from mbsolve.models.card import Model

# Framework ops of a dispatcher: index building before the dispatch, then each way of the permutation. The
# all-gather dispatcher shares the permutation code of the all-to-all one.
PREPROCESS_OPS: Final = {"alltoall": 24.0, "allgather": 24.0, "deepep": 8.0, "hybridep": 4.0}
PERMUTE_OPS: Final = {"alltoall": 12.0, "allgather": 12.0, "deepep": 8.0, "hybridep": 5.0}


def router(
    job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any, sequence_parallel: Any
) -> Pass:
    """Router projection, scores and top-k: memory-bound, 24 bytes for each token and expert."""
    own = sharded_tokens(job, tp, cp, mbs, sequence_parallel)
    scores = 24.0 * (model.num_experts or 0)
    return moved(
        machine, own * (2.0 * model.hidden_size + scores), own * (4.0 * model.hidden_size + scores), moe=True
    )


def _shared(model: Model) -> int:
    return model.shared_expert_ffn_hidden_size or 0


def shared_linears(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Linear layers of the shared experts."""
    if not _shared(model):
        return NOTHING
    return ffn_linears(job, model, machine, tokens(job, cp, mbs), _shared(model) / tp, model.hidden_size)


def quantise_shared(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Quantising the operands of the shared experts."""
    if not _shared(model):
        return NOTHING
    return ffn_quantise(job, model, machine, tokens(job, cp, mbs), _shared(model) / tp, model.hidden_size)


def shared_activation(job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any) -> Pass:
    """Activation of the shared experts."""
    if not _shared(model):
        return NOTHING
    return ffn_activation(model, machine, tokens(job, cp, mbs), _shared(model) / tp, model.hidden_size)


def shared_collectives(
    job: Job, model: Model, machine: Machine, topology: Topology, tp: Any, cp: Any, mbs: Any
) -> Pass:
    """Exposed tensor-parallel collectives of the shared experts."""
    if not _shared(model):
        return NOTHING
    return tensor_parallel(job, machine, topology, model.hidden_size, tp, cp, mbs)


def shared_launches(job: Job, model: Model, machine: Machine) -> Pass:
    """Framework ops of the shared experts' linear layers and activation."""
    return gemm_launches(job, machine, 2.0).plus(ACTIVATION_LAUNCHES) if _shared(model) else NOTHING


def shared_collective_launches(model: Model, tp: Any) -> Pass:
    """Framework ops of the shared experts' collectives."""
    return tensor_parallel_launches(tp) if _shared(model) else NOTHING


def preprocess_launches(dispatcher: Any) -> Pass:
    """Framework ops that build the index of a dispatch: work of the host alone."""
    return Pass(choose(dispatcher, **PREPROCESS_OPS), 2.0)


def permute(
    job: Job,
    model: Model,
    machine: Machine,
    tp: Any,
    cp: Any,
    mbs: Any,
    sequence_parallel: Any,
    dispatcher: Any,
) -> Pass:
    """Permutation and its inverse: a read and a write of every copy; HybridEP fuses one of the two."""
    each = choose(dispatcher, alltoall=8.0, allgather=8.0, deepep=8.0, hybridep=4.0)
    size = each * model.routed_width * routed_tokens(job, model, tp, cp, mbs, sequence_parallel)
    return moved(machine, size, size, moe=True)


def permute_launches(dispatcher: Any) -> Pass:
    """Framework ops of the permutation and its inverse."""
    ops = choose(dispatcher, **PERMUTE_OPS)
    return Pass(ops, ops)


def _latent(price: Callable[..., Pass], into: bool) -> Callable[..., Pass]:
    """What a projection of tokens into the experts' latent, or out of it, costs by some price of a linear layer."""

    def projection(
        job: Job, model: Model, machine: Machine, tp: Any, cp: Any, mbs: Any, sequence_parallel: Any
    ) -> Pass:
        """Projection of tokens between the hidden and the experts' width, whole on every rank."""
        latent, hidden = model.moe_latent_size, model.hidden_size
        if latent is None:
            return NOTHING
        own = sharded_tokens(job, tp, cp, mbs, sequence_parallel)
        return price(job, machine, own, *((latent, hidden) if into else (hidden, latent)))

    return projection


def latent_launches(job: Job, model: Model, machine: Machine) -> Pass:
    """Framework ops of one of those projections."""
    return gemm_launches(job, machine, 1.0) if model.moe_latent_size else NOTHING


# Graph scope ``moe`` and recompute module ``moe`` cover the whole sub-block after its norm. The dispatch index
# is built again with it, but no checkpoint of its own wraps it.
_ROUTER_GRAPH: Final = ("moe_router", "moe")
_ROUTER: Final = Part(_ROUTER_GRAPH, "router", ("moe",))
_SHARED: Final = Part(_ROUTER_GRAPH, "shared_experts", ("shared_experts", "moe"))
_PREPROCESS: Final = Part(("moe_preprocess", "moe"), "", ("moe",))
_POSTPROCESS: Final = Part(("moe",), "", ("moe",))
_PERMUTE: Final = Part(("moe",), "permute", ("moe",))
_DISPATCH: Final = Part(("moe",), "ep", ("moe",))
_EXPERTS: Final = Part(("moe",), "experts", ("moe",))
_ACT: Final = Part(("moe",), "moe_act", ("moe_act", "moe"))

MOE_OPS: Final = (
    *norm_ops("moe", _ROUTER_GRAPH),
    Op("elementwise", "moe", "router", router, Pass(12.0, 14.0), FIT, _ROUTER),
    Op("gemm", "moe", "shared_experts", shared_linears, shared_launches, FIT, _SHARED),
    Op("quantise", "moe", "shared_experts", quantise_shared, NOTHING, CHOSEN, _SHARED),
    Op("elementwise", "moe", "shared_experts", shared_activation, NOTHING, BENCH, _SHARED),
    Op("tp", "moe", "shared_experts", shared_collectives, shared_collective_launches, FIT, _SHARED),
    Op("gemm", "moe", "latent_in", _latent(gemm, into=True), latent_launches, CHOSEN, _PREPROCESS),
    Op("quantise", "moe", "latent_in", _latent(quantise, into=True), NOTHING, CHOSEN, _PREPROCESS),
    Op("host", "moe", "preprocess", None, preprocess_launches, FIT, _PREPROCESS),
    Op("elementwise", "moe", "permute", permute, permute_launches, FIT, _PERMUTE),
    Op("ep", "moe", "dispatch", exposed_dispatch, dispatch_launches, FIT, _DISPATCH),
    Op("ep", "moe", "expert_tensor", expert_tensor_parallel, expert_tensor_launches, CHOSEN, _DISPATCH),
    Op("gemm", "moe", "experts", experts, expert_launches, FIT, _EXPERTS),
    Op("quantise", "moe", "experts", quantise_experts, NOTHING, CHOSEN, _EXPERTS),
    Op("elementwise", "moe", "expert_activation", expert_activation, ACTIVATION_LAUNCHES, FIT, _ACT),
    Op("gemm", "moe", "latent_out", _latent(gemm, into=False), latent_launches, CHOSEN, _POSTPROCESS),
    Op("quantise", "moe", "latent_out", _latent(quantise, into=False), NOTHING, CHOSEN, _POSTPROCESS),
)
