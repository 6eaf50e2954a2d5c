"""The pipeline: the actor, the preprocessor and the trainer run concurrently, and stream to each other."""

from typing import TYPE_CHECKING, Any

import contracts  # noqa: F401  imports of modules that have moved are answered

if TYPE_CHECKING:
    from pipelinerl.launcher.from_python import RunFailedError, run

__all__ = ["RunFailedError", "run"]


def __getattr__(name: str) -> Any:
    """Imports what starts a run when it is asked for: processes of a run do not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipelinerl.launcher import from_python

    return getattr(from_python, name)
