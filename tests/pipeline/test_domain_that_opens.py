"""A domain that owns an HTTP client, in a run: the client is closed at the end and after Ctrl-C."""

import signal
from pathlib import Path

import pytest

from contracts.records import StepClosed
from tests.pipeline.runs import finish, run_to_the_end, start, wait_for_record


def calling(log: Path) -> tuple[str, ...]:
    return ("domain._target_=tests.calling_domain.CallingDomain", f"+domain.log={log}")


def check_closed(run_dir: Path, log: Path) -> None:
    """Checks that one process opened the domain and closed it, and that aiohttp complains of nothing."""
    opening, closing = log.read_text().splitlines()
    assert opening.split()[0] == "opened" and closing.split()[0] == "closed"
    assert opening.split()[1] == closing.split()[1]
    assert "Unclosed" not in (run_dir / "logs" / "actor.log").read_text()


def test_it_is_closed_at_the_end(tmp_path):
    log = tmp_path / "log"
    summary = run_to_the_end(tmp_path / "run", *calling(log), "max_steps=3")
    assert summary["optimizer_steps"] == 3 and summary["rollouts_failed"] == {}
    check_closed(tmp_path / "run", log)


@pytest.mark.long
def test_it_is_closed_when_the_run_is_interrupted(tmp_path):
    log = tmp_path / "log"
    launcher = start(tmp_path / "run", *calling(log), "max_steps=100000")
    wait_for_record(tmp_path / "run", "trainer_events", StepClosed, 3)
    launcher.send_signal(signal.SIGINT)
    assert finish(launcher)[0] == 130
    check_closed(tmp_path / "run", log)
