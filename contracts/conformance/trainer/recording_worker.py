"""A worker of which only the contract can be used, and which says what it is doing."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from contracts.trainer import TrainerWorker


def import_adapter(path: str) -> type[TrainerWorker]:
    """`"package.module.Class"` -> the class. Raises ValueError, in one line, for anything that is not a
    `TrainerWorker` that can be made."""
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"{path!r} is not a path to a class, package.module.Class")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot import {path}: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, TrainerWorker)):
        raise ValueError(f"{path} is not a contracts.trainer.TrainerWorker")
    if missing := sorted(found.__abstractmethods__):
        raise ValueError(f"{path} does not implement {', '.join(missing)}")
    return found


class Watched:
    """`worker` without all that is not in the contract. The file `told` always holds where it is:
    "in forward()", "after step()"."""

    def __init__(self, worker: TrainerWorker, told: Path):
        self._worker, self._told = worker, told

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in TrainerWorker.__abstractmethods__:
            raise AttributeError(f"{name} is not part of the trainer contract")
        method = getattr(self._worker, name)

        def call(*args: object, **options: object) -> object:
            self._told.write_text(f"in {name}()")
            result = method(*args, **options)
            self._told.write_text(f"after {name}()")
            return self._each(name, result) if name == "gather_weights" else result

        return call

    def _each(self, name: str, items: Iterator[Any]) -> Iterator[Any]:
        """The work of a generator is done when it is asked for the next item."""
        self._told.write_text(f"in {name}()")
        for item in items:
            self._told.write_text(f"after {name}() yielded {item[0]}")
            yield item
            self._told.write_text(f"in {name}(), after {item[0]}")
        self._told.write_text(f"after {name}()")
