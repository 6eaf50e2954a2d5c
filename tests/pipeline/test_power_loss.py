"""A run whose machine lost its power is resumed: what was not on the disk yet may be zeros, or gone."""

import shutil
from pathlib import Path

import pytest

from pipelinerl.launcher.resume import launcher_events, resume
from pipelinerl.report.run_totals import accounts_of
from pipelinerl.streams import StreamCorruptError
from pipelinerl.streams.files import FileStreams
from pipelinerl.training.checkpoints import Checkpoints, Position
from tests.pipeline.test_recorded_run import RECORDED

GROUPS_A_STEP = 8
SYNCED = {"actor_events": 6978, "trainer_events": 1854, "rollouts": 182233}  # when it was resumed
LAST = {"actor_events": 8387, "trainer_events": 2657, "rollouts": 199919}  # where the last record begins


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "run"))


def segment(run: Path, name: str) -> Path:
    return run / "streams" / name / f"{0:020d}.records"


def lose(run: Path, name: str, begin: int, size: int | None = None) -> None:
    """All of a stream from `begin` on is zeros, up to `size`; None: it is gone."""
    kept = segment(run, name).read_bytes()[:begin]
    segment(run, name).write_bytes(kept if size is None else kept.ljust(size, b"\0"))


@pytest.mark.parametrize("size", [None, 204_800])
@pytest.mark.parametrize("name", SYNCED)
def test_the_ledger_is_exact_wherever_a_stream_was_cut(run, name, size):
    whole = {path: path.read_bytes() for path in run.glob("streams/*/*.records")}
    places = [SYNCED[name], (SYNCED[name] + LAST[name]) // 2, *range(LAST[name], LAST[name] + 100, 19)]
    for place in places:
        lose(run, name, place, size)
        streams = FileStreams(run / "streams")
        launcher = launcher_events(streams)
        resumed = resume(streams, launcher, Checkpoints(run), Position(3, 54675))
        launcher.close()
        accounts = accounts_of(streams)
        assert accounts.errors() == []
        assert accounts.summary()["rollouts_trained"] == 4 * 3 * GROUPS_A_STEP
        assert sorted(accounts.unsettled(3)) == sorted(resumed.replayed)
        for path, content in whole.items():
            path.write_bytes(content)


def test_damage_before_what_was_synced_is_told_and_nothing_is_cut(run):
    path = segment(run, "actor_events")
    damaged = bytearray(path.read_bytes())
    damaged[1000] ^= 0x10
    path.write_bytes(damaged)
    streams = FileStreams(run / "streams")
    with pytest.raises(StreamCorruptError, match=f"{path} is corrupt at offset"):
        resume(streams, launcher_events(streams), Checkpoints(run), Position(3, 54675))
    assert path.read_bytes() == damaged
