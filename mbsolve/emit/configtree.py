"""The configuration of a launcher, section by section, read into an entry with our names.

Override lists, saved configurations and flags all become such a tree first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mbsolve.constraints.placement import expand_layout
from mbsolve.emit.architecture import ARCHITECTURE, NotModelledError, dimensions
from mbsolve.emit.entry import Entry
from mbsolve.emit.hybrid import layout_of
from mbsolve.emit.hydra import Tree
from mbsolve.emit.literals import dtype_of
from mbsolve.emit.numbers import NUMBERS, gradients, read_precision
from mbsolve.emit.passed import MATTERS, REPLACES, matter
from mbsolve.emit.section import Section
from mbsolve.errors import InputError

__all__ = ["DIRECT", "KNOWN", "fill_entry"]

DIRECT: Final = {
    "train.micro_batch_size": "mbs",
    "train.global_batch_size": "gbs",
    "model.tensor_model_parallel_size": "tp",
    "model.pipeline_model_parallel_size": "pp",
    "model.context_parallel_size": "cp",
    "model.expert_model_parallel_size": "ep",
    "model.expert_tensor_parallel_size": "etp",
    "model.sequence_parallel": "sequence_parallel",
    "model.num_layers_in_first_pipeline_stage": "first_stage_layers",
    "model.num_layers_in_last_pipeline_stage": "last_stage_layers",
    "model.account_for_embedding_in_pipeline_split": "embedding_in_split",
    "model.account_for_loss_in_pipeline_split": "loss_in_split",
    "model.recompute_granularity": "recompute_granularity",
    "model.recompute_method": "recompute_method",
    "model.recompute_num_layers": "recompute_num_layers",
    "model.moe_shared_expert_overlap": "shared_expert_overlap",
    "model.moe_permute_fusion": "permute_fusion",
    "model.make_vocab_size_divisible_by": "make_vocab_size_divisible_by",
    "model.gradient_accumulation_fusion": "grad_accumulation_fusion",
    "model.apply_rope_fusion": "rope_fusion",
    "model.use_transformer_engine_op_fuser": "op_fuser",
    "model.moe_expert_rank_capacity_factor": "expert_rank_capacity",
    "model.fp8_output_proj": "fp8_output_proj",
    "model.attention_dropout": "attention_dropout",
    "model.hidden_dropout": "hidden_dropout",
    "optimizer.use_precision_aware_optimizer": "precision_aware_optimizer",
}
SPECIAL: Final = (
    "dataset.seq_length",
    "dataset.sequence_length",
    "model.seq_length",
    "model.virtual_pipeline_model_parallel_size",
    "model.pipeline_model_parallel_layout",
    "model.recompute_modules",
    "model.moe_token_dispatcher_type",
    "model.moe_flex_dispatcher_backend",
    "model.moe_enable_deepep",
    "model.moe_router_padding_for_quantization",
    "model.moe_router_padding_for_fp8",
    "model.cp_comm_type",
    *(
        f"{section}.{key}"
        for key in ("overlap_grad_reduce", "overlap_param_gather")
        for section in ("comm_overlap", "ddp")
    ),
    *(
        f"{section}.{key}"
        for key in ("tp_comm_overlap", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute")
        for section in ("comm_overlap", "model")
    ),
    "ddp.use_distributed_optimizer",
    "optimizer.use_distributed_optimizer",
    "optimizer.optimizer",
    "optimizer.optimizer_cpu_offload",
    "optimizer.optimizer_offload_fraction",
    "model.cpu_offloading",
    "model.cpu_offloading_num_layers",
    "model.fine_grained_activation_offloading",
    "model.offload_modules",
    "model.cuda_graph_impl",
    "model.cuda_graph_modules",
    "model.cuda_graph_scope",
    "model.enable_cuda_graph",
    "model.external_cuda_graph",
)
# Every key that is read, for a proposal when one is misspelt.
KNOWN: Final = (*DIRECT, *SPECIAL, *NUMBERS, *(f"model.{name}" for name in ARCHITECTURE))
# Keys that may say layers which no card can.
TURNS: Final = (
    *("moe_layer_freq", "window_size", "window_attn_skip_freq"),
    *("hybrid_layer_pattern", "hybrid_override_pattern"),
)
# Virtual stages of a saved layout, as the letters of a layout string.
LETTERS: Final = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def fill_entry(where: str, out: Entry, tree: Tree, *, whole: bool, flags: bool = False) -> None:
    """Read a tree into an entry.

    Parameters
    ----------
    whole
        Whether the model section says a whole model, not only what differs from another.
    flags
        Whether the tree was made of flags: the program has defaults of its own then.

    Raises
    ------
    InputError
        one sentence that starts with ``where``.
    """
    try:
        _read(where, out, Section(tree), whole, flags)
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(where) else f"{where}: {text}") from error


def _read(where: str, out: Entry, given: Section, whole: bool, flags: bool) -> None:
    for key, field in DIRECT.items():
        out.state(where, field, dtype_of(given.get(key)))
    for read in (_sizes, _stages, _experts, _overlap, _optimizer, _offload, _graphs):
        read(where, out, given)
    read_precision(where, out, given.get, given.tree)
    gradients(where, out, given.get)
    _architecture(out, given, whole)
    if flags:
        _flag_defaults(out, given)
    _tell(out, given)


def _sizes(where: str, out: Entry, given: Section) -> None:
    for key in ("dataset.seq_length", "dataset.sequence_length"):
        out.state(where, "seq_len", given.get(key))
    length = given.get("model.seq_length")
    if "seq_len" not in out.sizes:
        out.state(where, "seq_len", length)
    elif length is not None and length != out.sizes["seq_len"]:
        out.ignored["model.seq_length"] = "run_recipe.py copies the length of the dataset over it"
    kinds = given.words("model.cp_comm_type")
    if kinds:
        if len(set(kinds)) > 1:
            out.ignored["cp_comm_type"] = f"one kind for all layers is modelled, {kinds[0]}"
        out.state(where, "cp_comm_type", kinds[0])


def _stages(where: str, out: Entry, given: Section) -> None:
    model = given.tree.get("model")
    vpp = given.get("model.virtual_pipeline_model_parallel_size")
    if vpp is None and isinstance(model, dict) and "virtual_pipeline_model_parallel_size" in model:
        vpp = 1
    out.state(where, "vpp", vpp)
    layout = given.get("model.pipeline_model_parallel_layout")
    if isinstance(layout, dict):
        layout = layout.get("input_data", layout.get("layout"))
    if isinstance(layout, list):
        layout = "|".join("".join(_letters(stage)) for stage in layout)
    pattern = given.get("model.hybrid_layer_pattern")
    if layout is None and isinstance(pattern, str) and "|" in pattern:
        layout = layout_of(pattern)
    out.state(where, "pipeline_layout", layout)
    out.state(where, "recompute_modules", given.words("model.recompute_modules"))


def _letters(stage: Any) -> Iterator[str]:
    names = stage if isinstance(stage, list) else [stage]
    for name in names:
        yield LETTERS.get(str(name), str(name))


def _experts(where: str, out: Entry, given: Section) -> None:
    # The second is the former name of the first, and turns it on.
    padding = [given.switch(f"model.moe_router_padding_for_{name}") for name in ("quantization", "fp8")]
    out.state(where, "router_padding", any(padding) if padding != [None, None] else None)
    kind = given.get("model.moe_token_dispatcher_type")
    backend = given.get("model.moe_flex_dispatcher_backend")
    if given.switch("model.moe_enable_deepep"):
        backend = "deepep"
    if kind != "flex":
        out.state(where, "dispatcher", kind)
        return
    if backend is None:
        out.read_as["moe_token_dispatcher_type"] = "flex with DeepEP, the stack's default"
    out.state(where, "dispatcher", backend or "deepep")


def _overlap(where: str, out: Entry, given: Section) -> None:
    for key, second, field in (
        ("overlap_grad_reduce", "ddp", "overlap_grad_reduce"),
        ("overlap_param_gather", "ddp", "overlap_param_gather"),
        ("tp_comm_overlap", "model", "tp_comm_overlap"),
        ("overlap_moe_expert_parallel_comm", "model", "ep_overlap"),
        ("delay_wgrad_compute", "model", "delay_wgrad"),
    ):
        first, other = given.switch(f"comm_overlap.{key}"), given.switch(f"{second}.{key}")
        out.state(where, field, other if first is None else first)


def _optimizer(where: str, out: Entry, given: Section) -> None:
    # One of the two turns both on.
    both = [given.switch(f"{section}.use_distributed_optimizer") for section in ("ddp", "optimizer")]
    known = [one for one in both if one is not None]
    out.state(where, "distributed_optimizer", any(known) if known else None)
    kind = given.get("optimizer.optimizer")
    if kind not in (None, "adam"):
        out.unmodelled["optimizer"] = f"{kind} keeps other state than Adam"
    offload = given.switch("optimizer.optimizer_cpu_offload")
    fraction = given.get("optimizer.optimizer_offload_fraction")
    if offload is not None:
        if offload and fraction is None:
            out.read_as["optimizer_cpu_offload"] = "nothing offloaded, because the fraction is 0 by default"
        out.state(where, "optimizer_offload_fraction", (fraction if offload else None) or 0.0)


def _offload(where: str, out: Entry, given: Section) -> None:
    offload, layers = given.switch("model.cpu_offloading"), given.get("model.cpu_offloading_num_layers")
    out.state(where, "activation_offload_layers", 0 if offload is False else layers)
    fine, modules = (
        given.switch("model.fine_grained_activation_offloading"),
        given.words("model.offload_modules"),
    )
    out.state(where, "fine_grained_offload_modules", () if fine is False else modules if fine else None)


def _graphs(where: str, out: Entry, given: Section) -> None:
    impl = given.get("model.cuda_graph_impl")
    modules = given.words("model.cuda_graph_modules")
    scope = given.words("model.cuda_graph_scope")
    modules = scope if modules is None else modules
    old = given.switch("model.enable_cuda_graph"), given.switch("model.external_cuda_graph")
    if impl is None and any(old):
        impl = "transformer_engine" if old[1] else "local"
    if modules is not None and impl == "local" and any(one.startswith("full_iteration") for one in modules):
        impl, modules = "full_iteration", ()
    out.state(where, "cuda_graph_impl", impl)
    if modules is not None:
        out.state(where, "cuda_graph_scope", tuple(one for one in modules if one != "full"))


def _architecture(out: Entry, given: Section, whole: bool) -> None:
    said = {name: given.get(f"model.{name}") for name in ARCHITECTURE}
    try:
        found = dimensions(said, whole=whole)
    except NotModelledError as error:
        out.skipped = f"{error}, which is not modelled"
        found = dimensions({k: v for k, v in said.items() if k not in TURNS}, whole=whole)
    if whole:
        out.model = {"name": "unnamed model", "dims": "its own", **found}
    else:
        # A pattern with marked stages says the split of a model that is known by its name.
        out.model_changes |= found


def _flag_defaults(out: Entry, given: Section) -> None:
    """What the flags' own program makes of what is left open."""
    out.target = "megatron-lm"
    layers = given.get("model.num_layers_per_virtual_pipeline_stage")
    if layers is not None:
        total, pp = given.get("model.num_layers"), out.plan.get("pp", 1)
        if isinstance(total, int):
            total += sum(bool(out.plan.get(name)) for name in ("embedding_in_split", "loss_in_split"))
        numbers = (layers, total, pp)
        if not all(isinstance(one, int) and one > 0 for one in numbers) or total % (pp * layers):
            raise InputError(
                f"--num-layers-per-virtual-pipeline-stage is {layers!r}, but it must divide the layers of a pipeline rank."
            )
        out.state("the command", "vpp", total // pp // layers)
    _stages_of_layout(out)


def _stages_of_layout(out: Entry) -> None:
    """A layout says how many virtual stages a pipeline rank has, also of a pattern."""
    layout, pp = out.plan.get("pipeline_layout"), out.plan.get("pp", 1)
    if not isinstance(layout, str) or not isinstance(pp, int) or pp < 2:
        return
    stages = len(expand_layout(layout))
    if stages % pp == 0 and "vpp" not in out.plan:
        out.plan["vpp"] = stages // pp
        if stages > pp:
            out.read_as["vpp"] = f"{stages // pp}, of the {stages} stages of the layout"


def _tell(out: Entry, given: Section) -> None:
    """Say what else the tree holds: what matters by name, the rest as a number."""
    pp = out.plan.get("pp", 1)
    for key, value in given.rest():
        name = key.rpartition(".")[2]
        if not matter(name, value) or (name == "microbatch_group_size_per_vp_stage" and value == pp):
            # What matters but is off needs no word.
            out.passed += key not in KNOWN and name not in REPLACES and name not in MATTERS
        elif name in REPLACES:
            out.unmodelled[name] = REPLACES[name]
        else:
            out.ignored[name] = MATTERS[name]
    peft = given.tree.get("peft")
    if peft:
        out.unmodelled["peft"] = "adapters are trained, not all parameters"
