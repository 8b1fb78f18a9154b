"""Stand-ins for what the real packages import and a computer without a GPU has not."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import types
from collections.abc import MutableSequence, Sequence
from importlib import import_module
from typing import Any

# Modules that a GPU or a library behind it is needed for; the validators ask only whether they are there.
ABSENT = (
    "transformer_engine",
    "modelopt",
    "megatron.energon",
    "webdataset",
    "nvidia_resiliency_ext",
    "torch.utils.tensorboard",
    "datasets",
    "peft",
)
# These import triton without asking.
NEED_TRITON = ("megatron.core.transformer.moe.ops.paged_stash", "megatron.core.ssm.ops")
KERNELS = {
    "megatron.core.transformer.moe.moe_utils": (
        "fused_permute",
        "fused_permute_with_probs",
        "fused_permute_and_pad_with_probs",
        "fused_sort_chunks_by_index",
        "fused_sort_chunks_by_index_with_probs",
        "fused_unpermute",
    ),
    "megatron.core.models.common.embeddings.rope_utils": (
        "fused_apply_rotary_pos_emb",
        "fused_apply_rotary_pos_emb_thd",
    ),
}


class Hollow(types.ModuleType):
    """A module that has every name, to be imported and never run."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 - so that it counts as a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        base = import_module("torch").nn.Module
        value: Any = type(name, (base,), {}) if name[0].isupper() else Hollow(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # As a decorator it leaves the function alone.
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else None


class HollowFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a hollow module wherever one of the given names, or something below it, is imported."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in self.names):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Hollow:
        return Hollow(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class Group:
    """A process group that only knows its ranks."""

    def __init__(self, ranks: Sequence[int] | None) -> None:
        self.ranks = list(ranks or [0])

    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def rank(self) -> int:
        """The own rank."""
        return 0


class FusedAdam:
    """What the optimizer's config reads off Transformer Engine's: its parameters."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.0,
        master_weight_dtype: Any = None,
        exp_avg_dtype: Any = None,
        exp_avg_sq_dtype: Any = None,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
    ) -> None:
        """Nothing to keep."""
