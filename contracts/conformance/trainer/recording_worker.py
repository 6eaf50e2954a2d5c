"""A worker that exposes only the contract, and records its current call."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from contracts.trainer import TrainerWorker


def import_adapter(path: str) -> type[TrainerWorker]:
    """Returns the class at `"package.module.Class"`.

    Raises ValueError, with a message of one line, if it is not a `TrainerWorker` that can be instantiated.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"{path!r} is not a path to a class, package.module.Class")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # the module of an adapter may raise anything
        raise ValueError(f"cannot import {path}: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, TrainerWorker)):
        raise ValueError(f"{path} is not a contracts.trainer.TrainerWorker")
    if missing := sorted(found.__abstractmethods__):
        raise ValueError(f"{path} does not implement {', '.join(missing)}")
    return found


GATHERS = {"gather_weights", "gather_low_rank"}  # methods that yield
OPTIONAL = {"shards", "adopt", "offload", "onload"}  # methods that a backend may leave out


class RecordingWorker:
    """A proxy of `worker` with only the methods of the contract, its period, and whether it offloads.

    The file `position_file` always contains its position: "in forward()", "after step()".
    """

    def __init__(self, worker: TrainerWorker, position_file: Path):
        self._worker = worker
        self._position_file = position_file

    @property
    def period(self) -> Any:
        """The worker's period, which may violate the contract."""
        return self._worker.period

    @property
    def offloads(self) -> bool:
        return self._worker.offloads

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in TrainerWorker.__abstractmethods__ | GATHERS | OPTIONAL:
            raise AttributeError(f"{name} is not part of the trainer contract")
        method = getattr(self._worker, name)

        def call(*args: object, **options: object) -> object:
            self._position_file.write_text(f"in {name}()")
            result = method(*args, **options)
            self._position_file.write_text(f"after {name}()")
            return self._each(name, result) if name in GATHERS else result

        return call

    def _each(self, name: str, items: Iterator[Any]) -> Iterator[Any]:
        """Yields the items of a generator, and records the position while it computes the next one."""
        self._position_file.write_text(f"in {name}()")
        for item in items:
            self._position_file.write_text(f"after {name}() yielded {item[0]}")
            yield item
            self._position_file.write_text(f"in {name}(), after {item[0]}")
        self._position_file.write_text(f"after {name}()")
