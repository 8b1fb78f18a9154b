"""What the real Megatron-Bridge and Megatron-Core say to a configuration, without a GPU.

A program of its own, because those packages live in an environment of their own; it needs nothing of mbsolve::

    python -m tests.oracle.driver < requests.jsonl > answers.jsonl

A request is one JSON object a line, with the keys of `Request`. With ``flags`` it goes the way of Megatron-LM's
``pretrain_gpt.py``: its parser, its checks, its configs (`tests.oracle.flags`). Else it goes that of Bridge: a fresh
container with the architecture alone, Bridge's own parser for the KEY=VALUE arguments (or, ten times as fast, each
field set by itself if the request is ``direct``), ``runtime_config_update``
(which finalises and validates all configs). Then, for both, what follows on a cluster and needs no GPU: the process grid, the
layers of every pipeline rank, the micro-batches. An answer has ``error`` (null: nobody objects), the ``stage``
that objected, ``where`` it did, ``rewritten``, the arguments that the stack changed, and ``layers``, how many there are
in every virtual stage.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import json
import logging
import os
import sys
import types
import typing
import warnings
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any, NotRequired, TypedDict
from unittest import mock

from tests.oracle.flags import Program
from tests.oracle.hollow import ABSENT, KERNELS, NEED_TRITON, FusedAdam, Group, HollowFinder
from tests.oracle.values import built, place, rewritten

VERSIONS = {"megatron-core": "0.19.2", "megatron-bridge": "0.6.2"}
TRANSFORMER_ENGINE = "2.14.0"
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class Request(TypedDict):
    """One question."""

    architecture: dict[str, Any]
    vocabulary: int
    device: tuple[str, int, int]
    gpus: int
    environment: dict[str, str]
    overrides: list[str]
    direct: NotRequired[bool]
    flags: NotRequired[list[str]]


class Stack:
    """The packages, imported once and made to run on any computer."""

    def __init__(self) -> None:
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        if not hasattr(typing, "override"):  # Python 3.11
            vars(import_module("typing"))["override"] = import_module("typing_extensions").override
        self.torch = import_module("torch")
        if importlib.util.find_spec("triton") is None:
            sys.meta_path.insert(0, HollowFinder(NEED_TRITON))
        # Core before the stubs, so that it finds no Transformer Engine and takes the ways that need none.
        self.parallel = import_module("megatron.core.parallel_state")
        self.batches = import_module("megatron.core.num_microbatches_calculator")
        self.block = import_module("megatron.core.transformer.transformer_block")
        self.allocation = import_module("megatron.core.models.hybrid.hybrid_layer_allocation")
        for log in ("log_on_each_pipeline_stage", "log_single_rank"):
            vars(self.allocation)[log] = lambda *_, **__: None
        for module, names in KERNELS.items():
            for name in names:
                if getattr(import_module(module), name, None) is None:
                    setattr(import_module(module), name, object())
        version = import_module("packaging.version").Version(TRANSFORMER_ENGINE)
        vars(import_module("megatron.core.utils"))["_te_version"] = version
        gone = [name for name in ABSENT if importlib.util.find_spec(name.partition(".")[0]) is None]
        gone += [name for name in ABSENT if "." in name and name not in gone]
        sys.meta_path.insert(0, HollowFinder(gone))
        vars(import_module("transformer_engine.pytorch.optimizers"))["FusedAdam"] = FusedAdam
        self._bridge()
        parser = import_module("hydra.core.override_parser.overrides_parser").OverridesParser.create()
        self._program: Program | None = None
        self.parsed = lru_cache(maxsize=None)(lambda text: parser.parse_override(text).value())
        vars(self.parallel)["create_group"] = lambda ranks=None, *_, **__: Group(ranks)

    def _bridge(self) -> None:
        training = "megatron.bridge.training"
        self.config = import_module(f"{training}.config")
        self.overrides = import_module(f"{training}.utils.omegaconf_utils").process_config_with_overrides
        self.tokenizer = import_module(f"{training}.tokenizers.config").TokenizerConfig
        self.gpt = import_module("megatron.bridge.models.gpt_provider").GPTModelProvider
        self.mla = import_module("megatron.bridge.models.mla_provider").MLAModelProvider
        self.hybrid = import_module("megatron.bridge.models.hybrid.hybrid_provider").HybridModelProvider
        vars(import_module(f"{training}.comm_overlap"))["HAVE_TE"] = True

    def container(self, request: Request) -> Any:
        """A pretraining run of the architecture, all else as Bridge has it."""
        config, functional = self.config, self.torch.nn.functional
        fields = dict(request["architecture"])
        fields["activation_func"] = getattr(functional, fields["activation_func"])
        provider = self.mla if fields.get("multi_latent_attention") else self.gpt
        if "hybrid_layer_pattern" in fields:
            provider = self.hybrid
        known = {field.name for field in dataclasses.fields(provider)}
        unknown = set(fields) - known
        if unknown:
            raise KeyError(f"the provider has no {', '.join(sorted(unknown))}")
        return config.ConfigContainer(
            train=config.TrainingConfig(train_iters=10, global_batch_size=1, micro_batch_size=1),
            validation=config.ValidationConfig(eval_iters=0, eval_interval=10),
            model=provider(**fields, vocab_size=request["vocabulary"], should_pad_vocab=True),
            optimizer=config.OptimizerConfig(optimizer="adam", lr=1e-4, min_lr=1e-5),
            ddp=config.DistributedDataParallelConfig(use_distributed_optimizer=True),
            scheduler=config.SchedulerConfig(lr_decay_style="cosine", lr_warmup_iters=1),
            dataset=config.MockGPTDatasetConfig(
                seq_length=4096,
                random_seed=1,
                reset_attention_mask=False,
                reset_position_ids=False,
                eod_mask_loss=False,
                dataloader_type="single",
            ),
            logger=config.LoggerConfig(),
            tokenizer=self.tokenizer(tokenizer_type="NullTokenizer", vocab_size=request["vocabulary"]),
            checkpoint=config.CheckpointConfig(),
            rng=config.RNGConfig(),
        )

    def answer(self, request: Request) -> dict[str, Any]:
        """Who objects to a request, if anybody does."""
        state = dict[str, Any](stage="overrides")
        try:
            with (
                self._machine(request),
                self._world(request["gpus"]),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                judge = self._by_flags if "flags" in request else self._by_bridge
                judge(request, state)
        except Exception as error:  # noqa: BLE001 - whatever they raise is the answer
            text = f"{type(error).__name__}: {error}".strip()
            return {"error": text, "where": place(error), **state}
        del state["stage"]
        return {"error": None, **state}

    def _by_bridge(self, request: Request, state: dict[str, Any]) -> None:
        config = self._applied(self.container(request), request)
        config.model.seq_length = config.dataset.seq_length
        state["stage"] = "config"
        self.config.runtime_config_update(config)
        state["rewritten"] = rewritten(config, request["overrides"])
        pattern, train = getattr(config.model, "hybrid_layer_pattern", None), config.train
        batch = (train.global_batch_size, train.micro_batch_size, config.data_parallel_size)
        self._launched(config.model, pattern, batch, state)

    def _by_flags(self, request: Request, state: dict[str, Any]) -> None:
        self._program = self._program or Program()
        state["stage"] = "config"
        args, model, state["rewritten"] = self._program.configured(request.get("flags", []))
        batch = (args.global_batch_size, args.micro_batch_size, args.data_parallel_size)
        self._launched(model, args.hybrid_layer_pattern, batch, state)

    def _launched(
        self, model: Any, pattern: str | None, batch: tuple[int, int, int], state: dict[str, Any]
    ) -> None:
        """What follows the configs and needs no GPU."""
        state["stage"] = "grid"
        self._grid(model)
        state["stage"] = "layers"
        state["layers"] = self._layers(model, pattern)
        state["stage"] = "batch"
        self.batches.ConstantNumMicroBatchesCalculator(*batch, False, 0)

    def _applied(self, config: Any, request: Request) -> Any:
        if not request.get("direct"):
            return self.overrides(config, cli_overrides=list(request["overrides"]))
        for text in request["overrides"]:
            owner, (*path, last) = config, text.partition("=")[0].split(".")
            for name in path:
                owner = getattr(owner, name)
            value = built(self.parsed(text))
            if isinstance(getattr(owner, last), self.torch.dtype):
                value = getattr(self.torch, DTYPES[value])
            setattr(owner, last, value)
        return config

    def _grid(self, model: Any) -> None:
        self.parallel.initialize_model_parallel(
            tensor_model_parallel_size=model.tensor_model_parallel_size,
            pipeline_model_parallel_size=model.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=model.virtual_pipeline_model_parallel_size,
            context_parallel_size=model.context_parallel_size,
            hierarchical_context_parallel_sizes=model.hierarchical_context_parallel_sizes,
            expert_model_parallel_size=model.expert_model_parallel_size,
            expert_tensor_parallel_size=model.expert_tensor_parallel_size,
            create_gloo_process_groups=False,
        )

    def _layers(self, model: Any, pattern: str | None) -> list[int]:
        """Layers of every virtual stage, in the order of the model."""
        ranks, chunks = model.pipeline_model_parallel_size, model.virtual_pipeline_model_parallel_size
        self.parallel.set_virtual_pipeline_model_parallel_world_size(chunks)
        self.parallel.set_pipeline_model_parallel_world_size(ranks)
        placed = [0] * (ranks * (chunks or 1))
        for rank in range(ranks):
            # A layout is read for the rank that one is.
            self.parallel.set_pipeline_model_parallel_rank(rank)
            for chunk in range(chunks) if chunks else (None,):
                if pattern is None:
                    here = self.block.get_num_layers_to_build(model, vp_stage=chunk, pp_rank=rank)
                else:
                    here = self._segment(model, pattern, rank, chunk)
                placed[(chunk or 0) * ranks + rank] = here
        if sum(placed) != model.num_layers:
            raise ValueError(f"{sum(placed)} layers are placed, the model has {model.num_layers}")
        return placed

    def _segment(self, model: Any, pattern: str, rank: int, chunk: int | None) -> int:
        """Layers of a pattern in one virtual stage."""
        ranks, at = model.pipeline_model_parallel_size, mock.patch.object
        distributed = self.torch.distributed
        with at(distributed, "get_rank", lambda _: rank), at(distributed, "get_world_size", lambda _: ranks):
            symbols, _ = self.allocation.select_pipeline_segment(
                pattern.split("/")[0],
                Group(None),
                chunk,
                model.num_layers_in_first_pipeline_stage,
                model.num_layers_in_last_pipeline_stage,
            )
        return len(symbols)

    @contextlib.contextmanager
    def _machine(self, request: Request) -> Iterator[None]:
        """The GPU and the environment that a request names."""
        cuda, before = self.torch.cuda, dict(os.environ)
        kept = {name: getattr(cuda, name) for name in ("get_device_properties", "get_device_capability")}
        name, major, minor = request["device"]
        properties = types.SimpleNamespace(
            name=name, major=major, minor=minor, total_memory=80 << 30, multi_processor_count=132
        )
        cuda.get_device_properties = lambda *_, **__: properties
        cuda.get_device_capability = lambda *_, **__: (major, minor)
        os.environ.update(request["environment"], WORLD_SIZE=str(request["gpus"]), RANK="0")
        try:
            yield
        finally:
            vars(cuda).update(kept)
            os.environ.clear()
            os.environ.update(before)

    @contextlib.contextmanager
    def _world(self, gpus: int) -> Iterator[None]:
        """A process group without other processes; there are GPUs to those who ask later."""
        cuda, distributed = self.torch.cuda, self.torch.distributed
        store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
        distributed.init_process_group("fake", store=store, rank=0, world_size=gpus)
        available, cuda.is_available = cuda.is_available, lambda: True
        try:
            yield
        finally:
            cuda.is_available = available
            self.parallel.set_pipeline_model_parallel_rank(None)
            self.parallel.set_pipeline_model_parallel_world_size(None)
            self.parallel.set_virtual_pipeline_model_parallel_world_size(None)
            with contextlib.suppress(Exception):
                self.parallel.destroy_model_parallel()
            distributed.destroy_process_group()


def main() -> None:
    """Answer the requests on standard input, one a line."""
    stack = Stack()
    for line in sys.stdin:
        if line.strip():
            print(json.dumps(stack.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
