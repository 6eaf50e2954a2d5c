"""A run of a million rollouts in the viewer: its memory, and the seconds that it prints."""

import random
import statistics
import time

import numpy as np
import psutil
import pytest

from contracts.records import Settled, Started, VersionSpan
from tests.builders import completion
from tests.view.recorded_run import BEGIN, SERVERS, RecordedRun, member_of, published, sequence_of
from tests.view.viewers import Viewer, viewing

ROLLOUTS = 1_000_448  # whole steps
GROUP = 8
TOKENS = 256
GROUPS_A_STEP = 64
RSS_BYTES = 400e6
PAGES = 200


def record(run: RecordedRun) -> None:
    """Records the run: of each step's groups half are trained on."""
    run.begin()
    chance = random.Random(0)
    sampled = np.arange(TOKENS, dtype=np.int32)
    for version in range(ROLLOUTS // GROUP // GROUPS_A_STEP):
        spans = [VersionSpan(version, 0, 100), VersionSpan(version + 1, 100, TOKENS)]
        began = BEGIN + 10.0 * version
        times = {"began": began, "ended": began + 11, "server": SERVERS[version % 2]}
        made = completion([1] * 16, sampled.tolist(), spans=spans, **times)
        members = []
        groups = range(version * GROUPS_A_STEP, (version + 1) * GROUPS_A_STEP)
        for group in groups:
            run.append(
                "actor_events",
                Started(group_id=group, rollouts=GROUP, draw=group, problem=group, version=version, at=began),
            )
            for member in range(GROUP):
                members.append(
                    member_of(group, member, version, chance.random(), completions=[made], started_at=began)
                )
        run.append("rollouts", *members)
        trained = groups[::2]
        sequences = [sequence_of(member, 0.5) for member in members if member.group_id % 2 == 0]
        run.append("rows", run.row(version, sequences, list(trained)))
        run.append(
            "trainer_events",
            Settled(group_ids=list(trained), rollouts=GROUP * len(trained), version=version + 1),
            published(version + 1),
        )
        dropped = list(groups[1::2])
        run.append(
            "preprocessor_events",
            Settled(group_ids=dropped, rollouts=GROUP * len(dropped), reason="zero_advantage"),
        )
    run.end(version + 1)


QUERIES = (
    "", "&sort=worst", "&sort=longest", "&outcome=trained&sort=best",
    "&outcome=dropped: zero_advantage&reward_from=0.999", "&version_from={version}&version_to={version}",
    "&version_from={version}&sort=worst", "&reward_from=0.5&reward_to=0.5001",
    "&mixed=true&version_to={version}", "&status=failed",
)  # fmt: skip


def page_times(viewer: Viewer) -> list[float]:
    """Opens lists with all kinds of filters, and goes on to their next pages; returns the seconds of each."""
    chance = random.Random(1)
    seconds = []
    while len(seconds) < PAGES:
        query = chance.choice(QUERIES).format(version=chance.randrange(ROLLOUTS // GROUP // GROUPS_A_STEP))
        after = ""
        for _ in range(4):
            began = time.monotonic()
            page = viewer.get(f"runs/run/rollouts?stream=train{query}{after}".replace(" ", "%20"))
            seconds.append(time.monotonic() - began)
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
    return seconds


@pytest.mark.long
def test_a_million_rollouts_are_indexed_and_listed_in_little_memory(tmp_path):
    run = RecordedRun(tmp_path / "run")
    record(run)
    print(f"recorded {run.end_of('rollouts') / 1e9:.2f} GB")
    with viewing(run.run_dir) as viewer:
        process = psutil.Process(viewer.process.pid)
        before = sum(process.cpu_times()[:2])
        began = time.monotonic()
        while not viewer.get("runs/run")["indexed"]["is_complete"]:
            time.sleep(0.1)
        took = time.monotonic() - began
        cpu = sum(process.cpu_times()[:2]) - before
        assert viewer.get("runs/run")["indexed"]["rollouts"] == ROLLOUTS
        seconds = page_times(viewer)
        p95 = statistics.quantiles(seconds, n=20)[-1]
        rss = process.memory_info().rss
        print(f"index {took:.1f} s, {cpu:.1f} CPU s; RSS {rss / 1e6:.0f} MB; page p95 {1000 * p95:.0f} ms")
        assert viewer.get("runs/run/accounting")["holds"]
    assert rss < RSS_BYTES
