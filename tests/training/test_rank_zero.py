"""What trainer rank 0 writes down when a step is closed."""

import pytest

from contracts.trainer import StepReport
from pipelinerl.heartbeat import Heartbeat
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.spans import Spans
from pipelinerl.streams.events import FRESH_RUN
from pipelinerl.streams.files import FileStreams
from pipelinerl.training.rank_zero import RankZero


@pytest.fixture
def rank_zero(tmp_path) -> RankZero:
    config = compose_config(["inference=scripted", "trainer=scripted"])
    streams = FileStreams(tmp_path / "streams")
    events = streams.writer("trainer_events")
    heartbeat = Heartbeat(tmp_path, "trainer-0", 60)
    return RankZero(
        config,
        tmp_path,
        streams,
        events,
        FRESH_RUN,
        publisher=None,
        heartbeat=heartbeat,
        spans=Spans(tmp_path, "trainer-0"),
    )


def test_what_a_trainer_measures_in_a_step_is_in_its_metrics(rank_zero, tmp_path):
    measured = StepReport(grad_norm=1.0, learning_rate=0.1, skipped=False, measures={"outer_round": 3})
    rank_zero.record_step(1, StepReport(2.0, 0.1, False), {"trained_tokens": 8.0})
    rank_zero.record_step(2, measured, {"trained_tokens": 8.0})
    first, second = read_metrics(metrics_path(tmp_path, "trainer"))
    assert "outer_round" not in first and first["grad_norm"] == 2.0
    assert second["outer_round"] == 3.0 and second["step"] == 2


def test_what_is_in_a_skipped_step_is_not_called_trained(rank_zero, tmp_path):
    rank_zero.record_step(1, StepReport(float("nan"), 0.1, True), {"trained_tokens": 8.0})
    (line,) = read_metrics(metrics_path(tmp_path, "trainer"))
    assert (line["trained_tokens"], line["trained_tokens_per_s"], line["skipped"]) == (0.0, 0.0, 1.0)
    (closed,) = [
        entry.record for entry in FileStreams(tmp_path / "streams").reader("trainer_events").read(0, 0)
    ]
    assert (closed.rollouts, closed.tokens, closed.skipped) == (0, 0, True)
