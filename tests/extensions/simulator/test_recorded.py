"""The times that a recorded run tells, from records made by hand."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from contracts.records import VersionSpan
from extensions.simulator import __main__ as command
from extensions.simulator.lengths import as_measured
from extensions.simulator.recorded import recorded_inputs
from pipelinerl.config import save_config
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.metrics import MetricsWriter
from pipelinerl.spans import Spans
from pipelinerl.streams.files import FileStreams
from tests.builders import completion, rollout

SERVERS = 2
TOKENS = 10
PAUSED_S = 0.2


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A token took 0.1 s where a server had one request, and 0.02 s more for each other one.

    New weights held each answer up once.
    """
    save_config(compose_config([f"world.servers={SERVERS}"]), tmp_path / "config.yaml")
    rollouts = FileStreams(tmp_path / "streams").writer("rollouts")
    for requests in range(1, 9):
        for number in range(requests * SERVERS):
            took_s = TOKENS * (0.1 + 0.02 * (requests - 1)) + PAUSED_S
            began = 10.0 * requests
            answer = completion([1, 2, 3], [4] * TOKENS, began=began, ended=began + took_s)
            spans = [VersionSpan(version=0, start=0, end=4), VersionSpan(version=1, start=4, end=TOKENS)]
            answer = msgspec.structs.replace(answer, spans=spans)
            rollouts.append(rollout(SERVERS * requests * (requests - 1) // 2 + number, completions=[answer]))
    rollouts.append(rollout(100, completions=[], status="failed:timeout"))
    _train(tmp_path, epochs=1)
    metrics = MetricsWriter(tmp_path, "trainer")
    for paused_s in (0.1, PAUSED_S, 0.3):
        metrics.write(1, publish_paused_s=paused_s)
    metrics.write(1, loss=1.0)
    return tmp_path


def _train(run_dir: Path, epochs: int) -> None:
    trainer = Spans(run_dir, "trainer-0")
    trainer.add("publish", 0.0, 60.0)  # of version 0, which waited for the servers
    for step in range(3):
        for _ in range(2):
            trainer.add("learn", 0.0, 1.0, step=step, tokens=250)
        trainer.add("optimizer", 0.0, epochs * 0.25 + (epochs - 1) * 2.0, step=step)
        trainer.add("publish", 0.0, 0.5 + step)


def test_a_run_tells_its_lengths_and_times(run):
    found = recorded_inputs(run)
    assert found.lengths == [TOKENS] * SERVERS * 36
    assert found.prompt_tokens == 3
    assert found.rates.decode_s == pytest.approx(0.1)
    assert found.rates.decode_per_request_s == pytest.approx(0.02)
    assert found.rates.train_tokens_per_s == 250.0
    assert found.rates.optimizer_s == 0.25
    assert found.rates.update_s == 1.5
    assert found.rates.paused_s == PAUSED_S


def test_the_turns_of_a_recorded_rollout_are_cut_each(run):
    FileStreams(run / "streams").writer("rollouts").append(
        rollout(101, completions=[completion([1], [4] * TOKENS), completion([1], [4] * TOKENS)])
    )
    recorded = recorded_inputs(run)
    assert as_measured(recorded.lengths, TOKENS * recorded.turns).share_cut == 0.0
    assert as_measured([TOKENS], 4)(np.random.default_rng(0)) == 4


def test_the_other_epochs_of_a_run_are_no_part_of_an_update(run):
    save_config(compose_config([f"world.servers={SERVERS}", "epochs=3"]), run / "config.yaml")
    (run / "spans" / "trainer-0.jsonl").unlink()
    _train(run, epochs=3)
    rates = recorded_inputs(run).rates
    assert (rates.train_tokens_per_s, rates.optimizer_s) == (250.0, 0.25)


def test_a_command_takes_the_times_of_a_run_and_replaces_some(run, capsys):
    other_servers = f"world.servers={SERVERS + 1}"
    settings = ["batch_size=16", "group_size=4", "inference.concurrency=8", other_servers]
    assert command.main([*settings, "--like", str(run), "--steps", "2", "--update-s", "0.75"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(f"times of {run}: decode_s 0.1, decode_per_request_s 0.02")
    assert "update_s 0.75" in first
