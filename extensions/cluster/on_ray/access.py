"""Checks that this process may join a Ray cluster. Called by `executor.py`, before the process joins.

A separate process probes the cluster. Ray itself would retry a refused connection for 20 s or more, and
report the reason only in its log.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from contracts.support.addresses import interface_of
from pipelinerl.errors import PlanError

CONNECT_S = 3.0
MODE_VARIABLE = "RAY_AUTH_MODE"
ALLOW = "executor.allow_unauthenticated=true"


class Access(NamedTuple):
    """A cluster that accepts this process."""

    address: str
    version: str  # version of Ray
    authenticated: bool


def address_of(environment: Mapping[str, str]) -> str | None:
    """Returns the cluster's HOST:PORT in RAY_ADDRESS, or None. Raises PlanError for another form."""
    address = environment.get("RAY_ADDRESS")
    if address and (":" not in address or "://" in address):
        raise PlanError(f"RAY_ADDRESS={address} is not HOST:PORT of the cluster's head")
    return address or None


def missing_ray() -> str | None:
    """Returns how to install Ray, or None if it is installed."""
    return None if find_spec("ray") else "executor=ray: ray is not installed: pip install -e '.[ray]'"


def access(environment: Mapping[str, str], allow_unauthenticated: bool) -> Access:
    """Probes the cluster. Raises PlanError if it cannot be reached, or needs no token."""
    if lacking := missing_ray():
        raise PlanError(lacking)
    address = address_of(environment)
    if address is None:
        raise PlanError("executor=ray: set RAY_ADDRESS to HOST:PORT of the cluster's head (docs/cluster.md)")
    token = _token(environment)
    authenticated = token is not None
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        source = "RAY_AUTH_TOKEN" if environment.get("RAY_AUTH_TOKEN") else _token_path(environment)
        raise PlanError(f"executor=ray: {source} holds no token: it is empty, or no line of text")
    if not authenticated and not allow_unauthenticated:
        raise PlanError(
            "executor=ray: there is no token: set RAY_AUTH_TOKEN_PATH to a file that holds the cluster's, "
            f"or {ALLOW}; {MODE_VARIABLE} must be token, if it is set"
        )
    found = _probe(address, environment, authenticated)
    _check_versions(address, found)
    if found["is_open"] and not allow_unauthenticated:
        raise PlanError(
            f"the Ray cluster at {address} lets in whoever has no token: start it with {MODE_VARIABLE}=token "
            f"and a token (docs/cluster.md), or set {ALLOW}"
        )
    if not any(interface_of(there) for there in found["addresses"]):
        raise PlanError(
            f"this machine is not a node of the Ray cluster at {address}: run the command on one of its "
            f"nodes, or make it one (ray start --address={address})"
        )
    return Access(address, found["ray_version"], authenticated and not found["is_open"])


def _token(environment: Mapping[str, str]) -> str | None:
    if environment.get(MODE_VARIABLE, "token") != "token":
        return None
    if token := environment.get("RAY_AUTH_TOKEN"):
        return token.strip()
    path = _token_path(environment)
    try:
        return path.read_text(errors="replace").strip() if path.is_file() else None
    except OSError as error:
        raise PlanError(f"executor=ray: the token cannot be read: {error}") from error


def _token_path(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def _probe(address: str, environment: Mapping[str, str], authenticated: bool) -> dict:
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise PlanError(f"nobody listens at RAY_ADDRESS={address}: {error}") from error
    probe = subprocess.run(
        [sys.executable, "-m", "extensions.cluster.on_ray.cluster", address],
        env={**environment, MODE_VARIABLE: "token" if authenticated else "disabled"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    if probe.returncode == -signal.SIGALRM:
        raise PlanError(f"what listens at RAY_ADDRESS={address} does not answer as the head of a Ray cluster")
    if probe.returncode:
        last = (probe.stderr.strip().splitlines() or [""])[-1]
        raise PlanError(f"RAY_ADDRESS={address} is not the head of a Ray cluster: {last}")
    found = json.loads(probe.stdout.strip().splitlines()[-1])
    if "refused" in found:
        raise PlanError(
            f"the Ray cluster at {address} refuses this token: set RAY_AUTH_TOKEN_PATH to the file of its own"
        )
    return found


def _check_versions(address: str, found: dict) -> None:
    theirs = (found["ray_version"], ".".join(found["python_version"].split(".")[:2]))
    own = (found["own_ray"], found["own_python"])
    if theirs != own:
        raise PlanError(
            f"the Ray cluster at {address} has Ray {theirs[0]} for Python {theirs[1]}, and this is Ray "
            f"{own[0]} for Python {own[1]}: they must be the same"
        )


def prepare_environment(allowed: Access) -> None:
    """Sets the environment variables that Ray reads when it is imported."""
    os.environ[MODE_VARIABLE] = "token" if allowed.authenticated else "disabled"
    os.environ["RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL"] = "minor"  # Ray's default is the patch level
