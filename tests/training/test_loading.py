"""A rank that loads for long is not taken for one that hangs: it beats meanwhile."""

import time
from pathlib import Path

import msgspec
import pytest

from contracts.trainer import WorkerSpec
from pipelinerl.heartbeat import beat_path
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.streams.events import FRESH_RUN
from pipelinerl.streams.files import FileStreams
from pipelinerl.trainer import Trainer
from trainer_adapters.scripted import ScriptedTrainer

LOOK_S = 0.01


class LoadedError(Exception):
    """Ends the start of a trainer, once its rank has beaten."""


class LoadingTrainer(ScriptedTrainer):
    """Its `slow` method returns no sooner than the rank has beaten."""

    def __init__(self, beat: str, slow: str):
        self._beat = Path(beat)
        self._slow = slow

    def init_worker(self, spec: WorkerSpec) -> None:
        self._load("init_worker")

    def load(self, directory: Path) -> None:
        self._load("load")

    def _load(self, method: str) -> None:
        if method != self._slow:
            return
        self._beat.unlink()
        while not self._beat.exists():
            time.sleep(LOOK_S)
        raise LoadedError


@pytest.mark.parametrize("slow", ["init_worker", "load"])
def test_a_rank_beats_while_it_loads_a_model_or_a_checkpoint(tmp_path, monkeypatch, slow):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    beat = beat_path(tmp_path, "trainer-0")
    trainer = [
        f"trainer._target_={__name__}.LoadingTrainer",
        f"+trainer.beat={beat}",
        f"+trainer.slow={slow}",
    ]
    config = compose_config(["inference=scripted", "trainer=scripted", "model.path=m", *trainer])
    events = FileStreams(tmp_path / "streams").writer("launcher_events")
    events.append(msgspec.structs.replace(FRESH_RUN, version=1))
    with pytest.raises(LoadedError):
        Trainer(config, tmp_path, None)
