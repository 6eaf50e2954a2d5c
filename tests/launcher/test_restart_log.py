"""What the launcher writes of a restart can be read again."""

import pytest

from contracts.records import Restarted
from pipelinerl.launcher.restart_log import RestartLog
from pipelinerl.streams.events import recorded
from pipelinerl.streams.files import FileStreams


@pytest.mark.parametrize("kind", ["workers", "services"])
def test_a_restart_is_a_record_that_can_be_read(tmp_path, kind):
    streams = FileStreams(tmp_path / "streams")
    RestartLog(tmp_path, streams.writer("launcher_events")).record(kind, ["one"], "why")
    (told,) = recorded(streams, "launcher_events")
    assert isinstance(told, Restarted)
    assert (told.kind, told.names, told.why) == (kind, ["one"], "why")
