"""A run of a million rollouts in the viewer, its memory, and the seconds that it prints."""

import statistics
import time

import psutil
import pytest

from contracts.records import Completion, Rollout, VersionSpan
from tests.builders import completion
from tests.extensions.viewer.recorded_run import BEGIN, SERVERS, RecordedRun, member_of
from tests.extensions.viewer.viewers import viewing

STEPS = 1954
GROUPS_A_STEP = 64
GROUP = 8
TOKENS = 256
OWN_BYTES = 250e6
QUERIES = (
    "", "&sort=newest", "&sort=worst", "&sort=longest", "&outcome=trained&sort=best",
    "&outcome=dropped:%20zero_advantage&reward_from=0.999", "&version_from=900&version_to=900",
    "&version_from=900&sort=worst", "&reward_from=0.5&reward_to=0.5001", "&mixed=true&version_to=900",
    "&status=failed",
)  # fmt: skip


def record(run: RecordedRun) -> None:
    """Records the run: of each step's groups half are trained on."""
    run.begin()
    sampled = [*range(TOKENS)]
    for version in range(STEPS):
        spans = [VersionSpan(version, 0, 100), VersionSpan(version + 1, 100, TOKENS)]
        began = BEGIN + 10.0 * version
        times = {"began": began, "ended": began + 11, "server": SERVERS[version % 2]}
        made = completion([1] * 16, sampled, spans=spans, **times)
        groups = range(version * GROUPS_A_STEP, (version + 1) * GROUPS_A_STEP)
        members = [[of(group, member, version, made) for member in range(GROUP)] for group in groups]
        run.step(version, members, trained=GROUPS_A_STEP // 2)
    run.end(STEPS)


def of(group: int, member: int, version: int, made: Completion) -> Rollout:
    return member_of(group, member, version, group * member % 1009 / 1009, completions=[made])


@pytest.mark.long
def test_a_million_rollouts_are_indexed_and_listed_in_little_memory(tmp_path):
    run = RecordedRun(tmp_path / "run")
    record(run)
    with viewing(run.run_dir) as viewer:
        process = psutil.Process(viewer.process.pid)
        before = sum(process.cpu_times()[:2])
        while not viewer.get("runs/run")["indexed"]["is_complete"]:
            time.sleep(0.1)
        print(f"index: {sum(process.cpu_times()[:2]) - before:.1f} CPU s")
        assert viewer.get("runs/run")["indexed"]["rollouts"] == STEPS * GROUPS_A_STEP * GROUP
        seconds = []
        for query in 5 * QUERIES:
            after = ""
            for _ in range(4):
                began = time.monotonic()
                following = viewer.get(f"runs/run/rollouts?stream=train{query}{after}")["next"]
                seconds.append(time.monotonic() - began)
                after = f"&after={following}" if following else ""
        for path in ("", f"?began={BEGIN}&ended={BEGIN + 10.0 * STEPS}"):
            began = time.monotonic()
            answer = viewer.get(f"runs/run/timeline{path}")
            print(f"timeline, merged {answer['is_merged']}: {time.monotonic() - began:.2f} s")
        assert answer["is_merged"]
        own = process.memory_full_info().uss  # it shares pages with the process that it is forked from
        p95 = statistics.quantiles(seconds, n=20)[-1]
        print(f"{own / 1e6:.0f} MB of its own; page p95 {1000 * p95:.0f} ms")
        assert viewer.get("runs/run/accounting")["holds"]
    assert own < OWN_BYTES
