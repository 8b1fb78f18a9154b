"""The part of a launch that is Megatron-LM's own: its argument parser, its checks, and the configs made of the arguments."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

# What a launch needs beside the flags of a plan: data, tokenizer, schedule.
REST = (
    *("--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", "100"),
    *("--lr", "3e-4", "--min-lr", "3e-5", "--lr-decay-style", "cosine"),
)


class Configured(NamedTuple):
    """What the program makes of the flags: the arguments, the model's config, and the flags that it changed."""

    args: Any
    model: Any
    rewritten: dict[str, list[str]]


class Program:
    """``pretrain_gpt.py`` up to the point where it would start processes."""

    def __init__(self) -> None:
        self.arguments = import_module("megatron.training.arguments")
        self.training = import_module("megatron.training.argument_utils")
        optimizer = import_module("megatron.core.optimizer.optimizer_config")
        self.configs = (
            optimizer.OptimizerConfig,
            import_module(
                "megatron.core.distributed.distributed_data_parallel_config"
            ).DistributedDataParallelConfig,
        )
        # To build the parser takes a third of a second: once is enough.
        parser = self.arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
        vars(self.arguments)["add_megatron_arguments"] = lambda _: parser
        self.names = {flag: action.dest for action in parser._actions for flag in action.option_strings}

    def configured(self, flags: Sequence[str]) -> Configured:
        """Parse and check flags as the program does, and build the configs.

        Raises
        ------
        Exception
            whatever the program says; `ValueError` where its parser would end it.
        """
        args = self._parsed([*flags, *REST])
        before = {flag: vars(args).get(self.names[flag]) for flag in flags if flag in self.names}
        args = self.arguments.validate_args(args, {})
        rewritten = {
            flag: [str(was), str(now)]
            for flag, was in before.items()
            if flag in self.names and _plain(now := vars(args).get(self.names[flag])) != _plain(was)
        }
        model = self.training.core_transformer_config_from_args(args)
        for config in self.configs:
            fields = [field.name for field in dataclasses.fields(config) if hasattr(args, field.name)]
            config(**{name: getattr(args, name) for name in fields})
        return Configured(args, model, rewritten)

    def _parsed(self, words: Sequence[str]) -> Any:
        kept, said = sys.argv, io.StringIO()
        sys.argv = ["pretrain_gpt.py", *words]
        try:
            with contextlib.redirect_stderr(said):
                return self.arguments.parse_args()
        except SystemExit as end:
            raise ValueError(said.getvalue().strip().splitlines()[-1]) from end
        finally:
            sys.argv = kept


def _plain(value: Any) -> Any:
    """A value as its word: formats and scopes by name, a list of one as what it holds."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        return [_plain(one) for one in value]
    text = str(getattr(value, "name", value))
    return {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}.get(text, text)
