"""The pipeline: the actor, the preprocessor and the trainer run concurrently, and stream to each other."""

import contracts  # noqa: F401  imports of modules that have moved are answered
from pipelinerl.api import RunFailedError, run

__all__ = ["RunFailedError", "run"]
