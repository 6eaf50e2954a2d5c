"""Refuses a run whose trainer and engines have different versions of NCCL, which cannot form a group.

Called by `prepare.py`. The versions are those that are installed. A plan for another machine takes those that
the pinned packages ask for.
"""

import re
import sys
from importlib.metadata import version
from typing import NamedTuple

from pipelinerl.config import EngineConfig, RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.interpreters import installed
from pipelinerl.launcher.checking.prerequisites import driver_cuda
from pipelinerl.launcher.executors.base import executor_class
from pipelinerl.launcher.jobs import interpreter_of, missing_engine
from pipelinerl.weight_transport import Group, transport_of

# Requires-Dist of torch's wheels on PyPI, for Linux. A version that is not here is not compared.
NCCL_OF_TORCH = {"2.11.0": "2.28.9", "2.12.0": "2.29.7", "2.13.0": "2.29.7", "2.14.1": "2.30.7"}
# Requires-Dist of the wheels of the engines' supported releases on PyPI.
TORCH_OF_ENGINE = {"vllm": "2.13.0", "sglang": "2.14.1"}  # vllm 0.32.0, sglang 0.5.23
WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


class Nccl(NamedTuple):
    version: str
    source: str  # where it is from, for messages
    python: str  # interpreter that uses it
    wheel: str = WHEELS[0]

    @property
    def numbers(self) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", self.version)]


def check_nccl(config: RunConfig) -> None:
    """Raises PlanError if the trainer's NCCL is known to differ from that of an engine in a group with it."""
    receivers = _receivers(config)
    if not receivers:
        return
    trainer = _nccl_of(sys.executable, version("torch").partition("+")[0], config.plan)
    for key, engine in receivers.items():
        other = _of_engine(engine, config.plan)
        if trainer and other and other.version != trainer.version:
            raise PlanError(_refusal(config, key, engine.package or key, trainer, other))


def _receivers(config: RunConfig) -> dict[str, EngineConfig]:
    """Returns the engines that receive weights over NCCL, by their keys in the configuration."""
    if config.device != "cuda":
        return {}
    engines: dict[str, EngineConfig] = {}
    if isinstance(transport_of(config), Group):
        engines |= config.inference.used_engines(config.world.servers)
    if config.reference and config.reference.renew_every:
        engines["reference"] = config.reference
    return engines


def _of_engine(engine: EngineConfig, is_planned: bool) -> Nccl | None:
    python = interpreter_of(engine)
    torch = TORCH_OF_ENGINE.get(engine.package or "")
    if missing_engine(engine):  # a plan for another machine
        return _brought_by(torch, "ITS_PYTHON")
    return None if python == sys.executable else _nccl_of(python, torch, is_planned)


def _nccl_of(python: str, torch: str | None, is_planned: bool) -> Nccl | None:
    """Returns the NCCL that is installed there or, for a plan, that this torch brings; None if unknown."""
    if found := installed(python, WHEELS):
        wheel, number = found
        return Nccl(number, "installed", python, wheel)
    is_for_another_machine = is_planned and driver_cuda() is None
    return _brought_by(torch, python) if is_for_another_machine else None


def _brought_by(torch: str | None, python: str) -> Nccl | None:
    number = NCCL_OF_TORCH.get(torch or "")
    return Nccl(number, f"as torch {torch} brings", python) if number else None


def _refusal(config: RunConfig, key: str, name: str, trainer: Nccl, other: Nccl) -> str:
    older, newer = sorted([trainer, other], key=lambda one: one.numbers)
    stored = "relay" if executor_class(config).spans_nodes else "shared"
    instead = "" if key == "reference" else f"set weights={stored}, or "
    return (
        f"{key}: the trainer has NCCL {trainer.version} ({trainer.source}) and {name} {other.version} "
        f"({other.source}), which cannot form a group: {instead}install the newer one for both: "
        f"{older.python} -m pip install {older.wheel}=={newer.version}"
    )
