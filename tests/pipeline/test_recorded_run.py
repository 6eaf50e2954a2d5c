"""A run that an earlier version of the code recorded, resumed once and interrupted again, still works.

`tests/data/recorded_run` was made by the runs in miniature of `tests.pipeline.runs` on `LettersDomain`, with
checkpoints every 3 versions: the trainer was killed after version 5, and the resumed run was interrupted
after version 6. Its records are of schema 1. It is never made anew: records that change must still read it.
"""

import re
import shutil
from pathlib import Path

import pytest

from pipelinerl.launcher.resume import launcher_events
from pipelinerl.launcher.resume import resume as resume_streams
from pipelinerl.paths import ROOT
from pipelinerl.report.run_totals import accounts_of
from pipelinerl.streams import StreamCorruptError
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.training.checkpoints import Checkpoints, Position
from tests.forked import run_program
from tests.pipeline.runs import assert_accounted, finish, resume, resumptions_of

RECORDED = ROOT / "tests" / "data" / "recorded_run"
GROUPS_A_STEP = 8
SYNCED = {"actor_events": 6978, "trainer_events": 1854, "rollouts": 182233}  # when it was resumed
LAST = {"actor_events": 8387, "trainer_events": 2657, "rollouts": 199919}  # where the last record begins
REPLAYED = """\
step 1: loss 0.040645  gradient norm 0.111419  tokens 126  ess 1.0000
step 2: loss 0.058887  gradient norm 0.149533  tokens 128  ess 0.9966
step 3: loss -0.000242  gradient norm 0.102284  tokens 128  ess 0.9773
step 4: loss 0.038537  gradient norm 0.081165  tokens 117  ess 0.9484
step 5: loss 0.095039  gradient norm 0.146323  tokens 125  ess 0.9301
step 6: loss 0.095796  gradient norm 0.138514  tokens 128  ess 0.9029
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "run"))


def output_of(module: str, *arguments: object) -> str:
    done = run_program("-m", module, *map(str, arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_resumed(run):
    """Although its machine lost its power while metrics and a summary were written."""
    assert assert_accounted(run, ended=False)["trained"] == set(range(40))
    with (run / "metrics" / "trainer.jsonl").open("ab") as metrics:
        metrics.write(bytes(100) + b"\n" + bytes(100))
    leftover = run / ".summary.json.4711.part"
    leftover.write_bytes(bytes(10))
    status, err = finish(resume(run, "max_steps=8"))
    assert status == 0, err
    assert len(assert_accounted(run)["trained"]) == 8 * 8
    assert [r.version for r in resumptions_of(run)] == [3, 3]
    assert not leftover.exists()


def test_it_is_shown(run):
    listed = output_of("extensions.viewer.records", "list", run)
    assert [line.split()[:2] for line in listed.splitlines()] == [
        ["actor_events", "100"],
        ["eval_rollouts", "48"],
        ["launcher_events", "1"],
        ["preprocessor_events", "0"],
        ["rollouts", "352"],
        ["rows", "16"],
        ["trainer_events", "25"],
    ]
    for name, says in [
        ("launcher_events", "Resumed          version=3"),
        ("rollouts", "── rollout 87-3  group 87  letters train-606"),
        ("eval_rollouts", "letters heldout-"),
        ("rows", "step 5"),
        ("actor_events", "Evaluated"),
        ("trainer_events", "StepClosed"),
    ]:
        assert says in output_of("extensions.viewer.records", "show", run, name)
    with recorded_streams(run) as streams:
        assert len(accounts_of(streams).started) == 96


def test_it_replays(run, tmp_path):
    replayed = output_of("extensions.tools.replay", "trainer", run, "--out", tmp_path / "replayed")
    assert len(replayed.splitlines()) == 6
    assert numbers(replayed) == pytest.approx(numbers(REPLAYED), rel=1e-3, abs=1e-5)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


# --- the machine has lost its power: what was not on the disk yet may be zeros, or gone ---------------


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
        resumed = resume_streams(streams, launcher, Checkpoints(run), Position(3, 54675))
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
        resume_streams(streams, launcher_events(streams), Checkpoints(run), Position(3, 54675))
    assert path.read_bytes() == damaged
