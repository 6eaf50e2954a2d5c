"""The options of the executor on Ray, and what a run on it must be."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from pipelinerl.config import Bool, RunConfig, Section
from pipelinerl.errors import PlanError
from pipelinerl.streams.of_run import backend_of


class RayOptions(Section):
    place_timeout_s: float = Field(
        120, gt=0, description="Longest wait for the workers and world.servers_min servers to be placed."
    )
    forward_env: list[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]] = Field(
        [], description="Variables of the launcher's environment that jobs get on any node."
    )
    allow_unauthenticated: Bool = Field(
        False, description="Whether to run on a cluster that whoever reaches it may use."
    )


def check_run(config: RunConfig) -> None:
    """Raises PlanError for a run whose processes cannot be on several nodes."""
    if not backend_of(config.streams, Path()).spans_nodes:
        raise PlanError("executor=ray needs streams=redis")
    if config.inference.host:
        raise PlanError(
            f"inference.host={config.inference.host}: with executor=ray, servers bind to their node's "
            "address; leave it null"
        )
