"""mbsolve: the best Megatron-Bridge training configuration for a model, a machine and a size, with the proof.

Names are loaded when they are first used, so that ``import mbsolve`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mbsolve.constraints.check import Verdict as Verdict
    from mbsolve.constraints.check import check as check
    from mbsolve.constraints.evaluate import evaluate as evaluate
    from mbsolve.constraints.evaluation import Evaluation as Evaluation
    from mbsolve.constraints.job import Job as Job
    from mbsolve.constraints.vocabulary import Plan as Plan
    from mbsolve.constraints.vocabulary import Settings as Settings
    from mbsolve.hardware.card import load_machine as load_machine
    from mbsolve.models.card import load_model as load_model
    from mbsolve.reading import InputError as InputError
    from mbsolve.reading import make_job as make_job
    from mbsolve.solver.api import solve as solve
    from mbsolve.solver.outcome import Outcome as Outcome

    __version__: str

_HOME = {
    "Evaluation": "mbsolve.constraints.evaluation",
    "InputError": "mbsolve.reading",
    "Job": "mbsolve.constraints.job",
    "Outcome": "mbsolve.solver.outcome",
    "Plan": "mbsolve.constraints.vocabulary",
    "Settings": "mbsolve.constraints.vocabulary",
    "Verdict": "mbsolve.constraints.check",
    "check": "mbsolve.constraints.check",
    "evaluate": "mbsolve.constraints.evaluate",
    "load_machine": "mbsolve.hardware.card",
    "load_model": "mbsolve.models.card",
    "make_job": "mbsolve.reading",
    "solve": "mbsolve.solver.api",
}

__all__ = [
    "Evaluation",
    "InputError",
    "Job",
    "Outcome",
    "Plan",
    "Settings",
    "Verdict",
    "__version__",
    "check",
    "evaluate",
    "load_machine",
    "load_model",
    "make_job",
    "solve",
]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mbsolve")
    except PackageNotFoundError:
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'mbsolve' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
