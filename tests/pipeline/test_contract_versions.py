"""A run through servers of version 1 of the inference contract, and what a run leaves for others to read."""

import os
import stat

import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.inference.reference import Reference
from contracts.support.token import TOKEN_VARIABLE
from tests.conformance.broken_servers import TOKEN
from tests.conformance.models import make_scripted_model
from tests.inference_adapters.servers import serving, wait_ready
from tests.pipeline.runs import assert_accounted, run_to_the_end
from tests.ports import free_port

SERVER = "tests.conformance.version_1_server"


def test_a_strict_server_of_version_1_trains_a_run_to_its_end_which_nobody_else_may_read(tmp_path):
    """The run is through two of them. Its umask lets others read what it makes."""
    run = tmp_path / "runs" / "run"
    before = os.umask(0o022)
    try:
        summary = run_to_the_end(run, f"inference.module={SERVER}", "world.servers=2", "max_steps=3")
    finally:
        os.umask(before)
    assert summary["optimizer_steps"] == 3 and summary["weight_updates"] == 4
    assert "failed" not in assert_accounted(run)
    assert SERVER in (run / "config.yaml").read_text()
    for path, mode in ((run, 0o700), (run / "logs", 0o700), (run / "config.yaml", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode, path
    assert stat.S_IMODE(run.parent.stat().st_mode) == 0o755


@pytest.mark.long
def test_the_kit_passes_a_server_of_version_1(tmp_path):
    model = make_scripted_model(tmp_path)
    options = ["--port", str(free_port())]
    with serving(SERVER, *options, environment={TOKEN_VARIABLE: TOKEN}) as server:
        wait_ready(server.url)
        reference = Reference(model, trust_remote_code=True)
        verdicts = check_inference([server.url], reference, token=TOKEN, only=["G1", "G6", "G10"])
    assert [verdict.state for verdict in verdicts] == ["pass"] * 3, verdicts
