"""Refusals, in one line and in time, if a cluster must not be used: tests of `test_ray.py`."""

import socket
import sys
from pathlib import Path

import pytest

from benchmarks.ray_nodes import RayNodes
from extensions.cluster.on_ray.access import access
from pipelinerl.errors import PlanError


def refused(environment: dict[str, str], allow_unauthenticated: bool = False) -> str:
    """Returns the message of the refusal."""
    with pytest.raises(PlanError) as error:
        access(environment, allow_unauthenticated)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_without_ray(nodes: RayNodes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install -e '.[ray]'" in refused(nodes.environment)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"RAY_ADDRESS": ""}, "set RAY_ADDRESS"),
        ({"RAY_ADDRESS": "auto"}, "RAY_ADDRESS=auto is not HOST:PORT"),
        ({"RAY_AUTH_TOKEN_PATH": "/nowhere/token"}, "there is no token"),
        ({"RAY_AUTH_MODE": "disabled"}, "there is no token"),
    ],
)
def test_without_an_address_or_a_token(nodes: RayNodes, changes: dict[str, str], says: str):
    assert says in refused(nodes.environment | changes)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "/token holds no token"),
        (b" \n", "/token holds no token"),
        (b"two words", "/token holds no token"),
        (b"\xff\x00\x12", "/token holds no token"),
        (b"wrong", "refuses this token"),
    ],
)
def test_with_a_file_that_holds_no_token_or_a_wrong_one(
    nodes: RayNodes, tmp_path: Path, content: bytes, says: str
):
    (tmp_path / "token").write_bytes(content)
    assert says in refused(nodes.environment | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")})


def test_where_nobody_or_something_else_listens(nodes: RayNodes):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_address = f"127.0.0.1:{silent.getsockname()[1]}"
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            closed_address = f"127.0.0.1:{closed.getsockname()[1]}"
            assert "nobody listens" in refused(nodes.environment | {"RAY_ADDRESS": closed_address})
        assert "does not answer" in refused(nodes.environment | {"RAY_ADDRESS": silent_address})


@pytest.mark.long
def test_a_cluster_that_lets_everybody_in(nodes: RayNodes):
    """The cluster is refused, because a token that it does not require protects nothing."""
    with RayNodes(with_token=False) as unprotected:
        there = nodes.environment | {"RAY_ADDRESS": unprotected.address}
        assert "lets in whoever has no token" in refused(there)
        assert not access(there, allow_unauthenticated=True).authenticated
