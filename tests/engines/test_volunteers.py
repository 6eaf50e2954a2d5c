"""Runs over a gateway with volunteers, processes with servers of their own, which are killed."""

import json
import os
import signal
import time

import pytest

from benchmarks.volunteers.redraw import redraw
from extensions.volunteers.gateway import ledger
from extensions.volunteers.gateway.database import Database
from extensions.volunteers.gateway.registry import Registry
from tests.engines.volunteers_run import LOOK_S, volunteers_run

pytestmark = pytest.mark.engines


def test_gateway_volunteers_and_launcher_are_killed_and_what_was_accepted_is_right(tmp_path):
    with volunteers_run(tmp_path, steps=10) as run:
        for name in ("ana", "ben"):
            run.join(name)
        run.until_worked("ana", "ben")
        run.kill("ana")
        run.until_worked("ben")
        run.kill("ben")
        run.until(lambda: "it waits for somebody who samples" in run.log("actor"))
        for name in ("ana", "ben"):
            run.join(name)
        run.until_worked("ana", "ben")
        os.kill(run.gateway(), signal.SIGKILL)
        run.until_worked("ana", "ben")  # they come back by themselves
        run.launch.kill()
        run.launch.wait()
        while run.gateway():
            time.sleep(LOOK_S)
        run.launch = run.start("resume=true")
        run.until_worked("ana", "ben")
        assert run.launch.wait() == 0, (tmp_path / "launch.log").read_text()[-2000:]
        database = Database(run.state, create=False)
        assert ledger.verify(database) > 10
        assert {(each.state, each.recent_strikes) for each in Registry(database).every()} == {("active", 0)}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["accounting_errors"], summary["rollouts_lost"]) == ([], 0)
    assert (summary["optimizer_steps"], summary["rollouts_failed"]) == (10, {})
    alike, other, _ = redraw(tmp_path / "run", database)
    assert other == 0
    assert alike > 1000
