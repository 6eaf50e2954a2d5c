"""What a run must be like so that volunteers can sample for it; the launcher asks before the start."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from extensions.volunteers.gateway.numerics import CALIBRATION, lacks_commitments
from extensions.volunteers.gateway.options import STATE, check_public

MODULE = "extensions.volunteers"


def check_run(run: Mapping[str, Any]) -> None:
    """Raises ValueError, with a one-line message, for a run that volunteers cannot sample for."""
    if not run["weights"]["_target_"].endswith(".Relay"):
        raise ValueError("inference=volunteers needs weights=relay: volunteers fetch weights from a store")
    for engine in (run["inference"], *run["inference"]["others"].values()):
        if engine["module"] == MODULE:
            _check_arguments(engine["arguments"], run["max_lag"])
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


def _check_arguments(arguments: Mapping[str, Any], max_lag: int | None) -> None:
    behind = arguments.get("behind", 1)
    if max_lag is not None and behind > max_lag:
        raise ValueError(
            f"inference.arguments.behind={behind} is more than max_lag={max_lag}: set it to {max_lag}"
        )
    state = Path(arguments.get("state") or STATE)
    if arguments.get("require") and not arguments.get("observe") and lacks_commitments(state):
        raise ValueError(
            f"inference.arguments.require needs tolerances that were measured, in {state / CALIBRATION}: run "
            "it with inference.arguments.observe=true, too, and volunteers of your own first"
        )
    listener = ("certificate", "key", "behind_proxy")
    host = arguments.get("public_host") or "127.0.0.1"
    try:
        check_public(host, *(arguments.get(name) for name in listener))
    except ValueError as error:
        raise ValueError(f"inference.arguments: {error}") from None


def check_model(model: str) -> None:
    """Takes every model that loads: the audit computes with transformers."""
