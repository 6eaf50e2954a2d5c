"""Records a run for tests of the viewer: its streams, metrics and spans, as processes of a run write them."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import yaml

from contracts.records import (
    ActorStopped,
    Evaluated,
    MicroBatchRow,
    Rollout,
    ServerJoined,
    SetResult,
    Settled,
    Started,
    StepClosed,
    TrainingDone,
    TrainingSequence,
    VersionSpan,
    WeightsPublished,
)
from pipelinerl.metrics import metrics_path
from pipelinerl.spans import Spans
from pipelinerl.streams.files import FileStreams
from tests.builders import completion, rollout

BEGIN = 1_700_000_000.0  # unix seconds at which version 0 is live
STEP_S = 10.0
SERVERS = ("http://127.0.0.1:9001", "http://127.0.0.1:9002")
LAUNCHER = "launcher_events"


def member_of(group: int, member: int, version: int, reward: float, **changes) -> Rollout:
    """A rollout that began under `version` and ended under the next one, on either of two servers."""
    began = BEGIN + STEP_S * version + 5 + member
    ended = began + 6
    sampled = np.arange(4, 10)
    spans = [VersionSpan(version, 0, 2), VersionSpan(version + 1, 2, 6)]
    made = completion(
        [1, 2, 3], sampled.tolist(), spans=spans, server=SERVERS[member % 2], began=began, ended=ended
    )
    values = {
        "completions": [made],
        "started_at": began,
        "finished_at": ended,
        "metrics": {"success": reward},
        "expected": "9",
        "reason": "right" if reward else "wrong",
        "problem_id": f"p{group}",
        "domain": "sums",
    }
    return rollout(group, member, reward, **(values | changes))


def sequence_of(rollout: Rollout, advantage: float) -> TrainingSequence:
    """The sequence that trains on a rollout of one completion."""
    (made,) = rollout.completions
    prompt = len(made.prompt_token_ids)
    tokens = prompt + len(made.token_ids)
    sampled = np.arange(tokens) >= prompt
    versions = np.full(tokens, -1, dtype=np.int32)
    for span in made.spans:
        versions[prompt + span.start : prompt + span.end] = span.version
    return TrainingSequence(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        temperature=1.0,
        loss_weight=0.5,
        token_ids=np.concatenate([made.prompt_token_ids, made.token_ids]),
        loss_mask=sampled,
        behaviour_logprobs=np.where(sampled, -0.5, 0).astype(np.float32),
        versions=versions,
        advantages=np.where(sampled, advantage, 0).astype(np.float32),
    )


def published(version: int, at: float | None = None) -> WeightsPublished:
    at = BEGIN + STEP_S * version if at is None else at
    return WeightsPublished(
        run="r", version=version, servers=list(SERVERS), seconds=0.5, bytes=8, paused_s=0.01, at=at
    )


class RecordedRun:
    """A run in `run_dir` whose records the test appends."""

    def __init__(self, run_dir: Path, segment_bytes: int = 64 * 2**20, **config: object):
        run_dir.mkdir(parents=True, exist_ok=True)
        self.run_dir = run_dir
        self.streams = FileStreams(run_dir / "streams", segment_bytes)
        self._writers = {}
        (run_dir / "config.yaml").write_text(yaml.safe_dump({"max_steps": 4, **config}))

    def append(self, name: str, *records) -> None:
        if name not in self._writers:
            self._writers[name] = self.streams.writer(name)
        for record in records:
            self._writers[name].append(record)

    def end_of(self, name: str) -> int:
        return self.streams.reader(name).size()

    def close(self) -> None:
        """Ends the launch: its writers let go of the streams."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def begin(self) -> None:
        for number, url in enumerate(SERVERS):
            joined = ServerJoined(
                name=f"server-{number}", url=url, node="here", engine="scripted", at=BEGIN - 9
            )
            self.append(LAUNCHER, joined)
        self.append("trainer_events", published(0))

    def step(self, version: int, groups: Iterable[list[Rollout]], trained: int) -> None:
        """Records groups that started under `version`. The first `trained` of them make the next version."""
        groups = list(groups)
        for members in groups:
            group = members[0].group_id
            started = Started(
                group_id=group,
                rollouts=len(members),
                draw=group,
                problem=group,
                version=version,
                at=BEGIN + 1,
            )
            self.append("actor_events", started)
            self.append("rollouts", *members)
        sequences = [
            sequence_of(member, member.reward - 0.5)
            for members in groups[:trained]
            for member in members
            if member.completions
        ]
        ids = [members[0].group_id for members in groups[:trained]]
        self.append("rows", self.row(version, sequences, ids))
        rollouts = sum(map(len, groups[:trained]))
        made = version + 1
        closed = StepClosed(version=made, rollouts=rollouts, tokens=8, lag_histogram={0: 6, 1: 2})
        settled = Settled(group_ids=ids, rollouts=rollouts, version=made)
        self.append("trainer_events", closed, settled, published(made))
        for members in groups[trained:]:
            dropped = Settled(group_ids=[members[0].group_id], rollouts=len(members), reason="zero_advantage")
            self.append("preprocessor_events", dropped)
        self.metrics(
            "trainer", made, step_s=STEP_S, wait_s=4.0, learn_s=3.0, publish_s=0.5, entropy=1.0 / made
        )
        self.metrics("actor", made, reward_mean=0.5, success_rate=0.5, places_s=STEP_S, places_busy=0.9)

    @staticmethod
    def row(step: int, sequences: list[TrainingSequence], groups: list[int]) -> MicroBatchRow:
        return MicroBatchRow(
            step=step, index=0, micro_batches=[sequences], closes_step=True, group_ids=groups
        )

    def evaluate(self, version: int, success: float) -> None:
        of_set = SetResult(name="sums", problems=4, attempts=1, success=success)
        self.append(
            "actor_events",
            Evaluated(
                version=version,
                problems=4,
                success=success,
                first_version=version,
                last_version=version,
                sets=[of_set],
            ),
        )
        self.metrics("actor", version, heldout_success=success)

    def end(self, version: int) -> None:
        self.append("trainer_events", TrainingDone(version=version))
        self.append("actor_events", ActorStopped())
        self.close()
        (self.run_dir / "summary.json").write_text(json.dumps({"wall_s": 40.0}))

    def metrics(self, process: str, step: int, **values: float) -> None:
        path = metrics_path(self.run_dir, process)
        path.parent.mkdir(exist_ok=True)
        line = {"time": BEGIN + STEP_S * step, "step": step, **values}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def small_run(run_dir: Path, steps: int = 4) -> RecordedRun:
    """A run that has ended: two groups a step, of which one is trained on and one is dropped."""
    run = RecordedRun(run_dir)
    run.begin()
    run.evaluate(0, 0.25)
    spans = Spans(run_dir, "trainer-0")
    for version in range(steps):
        mixed = [member_of(2 * version, member, version, float(member % 2)) for member in range(4)]
        alike = [member_of(2 * version + 1, member, version, 1.0) for member in range(4)]
        run.step(version, [mixed, alike], trained=1)
        at = BEGIN + STEP_S * version
        spans.add("wait", at, 4.0)
        spans.add("learn", at + 4, 5.0, step=version)
        spans.add("publish", at + 9.5, 0.5, version=version + 1)
        spans.add("open", at + 9.5, 0.1, version=version + 1)
    run.evaluate(steps, 1.0)
    run.end(steps)
    return run
