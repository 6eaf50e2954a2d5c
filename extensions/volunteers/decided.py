"""What a run must be like so that volunteers can sample for it; the launcher asks before the start."""

from collections.abc import Mapping
from typing import Any


def check_run(run: Mapping[str, Any]) -> None:
    """Raises ValueError, with a one-line message, for a run that volunteers cannot sample for."""
    if not run["weights"]["_target_"].endswith(".Relay"):
        raise ValueError("inference=volunteers needs weights=relay: volunteers fetch weights from a store")
    engines = 1 + len(run["inference"]["others"])
    if run["world"]["servers"] > engines:
        raise ValueError(
            f"world.servers={run['world']['servers']} would start several gateways, and volunteers reach "
            "one: set world.servers=1, or add other servers by inference.others"
        )
    if run["sampling"]["seeded"]:
        raise ValueError(
            "sampling.seeded with inference=volunteers: their draws are prescribed by keys; leave it out"
        )


def check_model(model: str) -> None:
    """Takes every model that loads: the audit computes with transformers."""
