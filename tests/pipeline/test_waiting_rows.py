"""The preprocessor in a process of its own, between streams and a reference server that the test writes."""

import asyncio
from pathlib import Path

from contracts.records import ActorStopped, MicroBatchRow, StepClosed, TrainingDone
from pipelinerl.config import save_config
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.process import REFERENCE_VARIABLE
from pipelinerl.streams import StreamReader
from pipelinerl.streams.files import FileStreams
from tests.builders import group
from tests.clients.test_reference import ScoringServer
from tests.forked import Forked
from tests.limits import HANG_S

STEPS = 4
POLLS = 20  # enough for a row to be scored that does not wait


async def rows_of_step(reader: StreamReader, step: int) -> list[MicroBatchRow]:
    """Waits until the row that closes the step is there."""

    def read() -> list[MicroBatchRow]:
        rows = []
        for entry in reader.read():
            rows.append(entry.record)
            if entry.record.closes_step and entry.record.step == step:
                return [row for row in rows if row.step == step]

    return await asyncio.wait_for(asyncio.to_thread(read), HANG_S)


def test_a_row_waits_until_the_trainer_has_made_the_version_of_its_reference(tmp_path: Path):
    """The server has served that version already, before the workers went back to an older checkpoint."""
    reference = ["reference=scripted", "reference.renew_every=2"]
    config = compose_config([*reference, "inference=scripted", "batch_size=2", "group_size=2"])
    save_config(config, tmp_path / "config.yaml")
    streams = FileStreams(tmp_path / "streams")
    rollouts, trainer, actor = (streams.writer(f) for f in ("rollouts", "trainer_events", "actor_events"))
    for group_id in range(STEPS):
        for rollout in group(group_id, [0.0, 1.0]):
            rollouts.append(rollout)
    server = ScoringServer()
    server.version = 2

    async def scenario() -> None:
        async with server.serving() as url:
            process = Forked(
                *("-m", "pipelinerl.preprocessor", "--run-dir", str(tmp_path)),
                environment={REFERENCE_VARIABLE: url},
            )
            try:
                await go_on(process)
            finally:
                process.kill()

    async def go_on(process: Forked) -> None:
        rows = streams.reader("rows")
        while server.contracts < POLLS and not server.requests:
            await asyncio.sleep(0.01)
        assert server.requests == []
        server.version = 0
        for step in (0, 1):
            assert [row.reference_version for row in await rows_of_step(rows, step)] == [0]
        assert len(server.requests) == 2
        for version in (1, 2):
            trainer.append(StepClosed(version=version, rollouts=2, tokens=1, lag_histogram={}))
        server.version = 2
        for step in (2, 3):
            assert [row.reference_version for row in await rows_of_step(rows, step)] == [2]
        trainer.append(TrainingDone(version=4))
        actor.append(ActorStopped())
        assert await asyncio.to_thread(process.wait, 60) == 0

    asyncio.run(scenario())
