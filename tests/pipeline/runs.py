"""Whole runs in miniature: the real launcher and processes, scripted engine, trainer and domain."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from contracts.records import Record, Resumed, ServerJoined, Settled, Started
from pipelinerl.paths import ROOT
from pipelinerl.streams import Streams
from pipelinerl.streams.events import resumptions
from pipelinerl.streams.of_run import recorded_streams
from tests.forked import Forked

MINIATURE = (
    "inference=scripted",
    "trainer=scripted",
    "~domain",
    "+domain._target_=tests.scripted_domain.ScriptedDomain",
    "sampling.max_tokens=4",
    "batch_size=32",
    "group_size=4",
    "eval.problems=16",
)
SEED = int(os.environ.get("SEED", "0"))  # of `make soak`
EVENT_STREAMS = ("actor_events", "preprocessor_events", "trainer_events")


def start(run_dir: Path, *overrides: str) -> Forked:
    return Forked("launch.py", f"run_dir={run_dir}", *MINIATURE, *overrides)


def resume(run_dir: Path, *overrides: str) -> Forked:
    return Forked("launch.py", f"run_dir={run_dir}", "resume=true", *overrides)


def launch(
    run_dir: Path, *overrides: str, environment: dict[str, str] | None = None, directory: Path = ROOT
) -> subprocess.Popen[str]:
    """`environment`: beside the one of the tests. `directory`: in which its user works."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "launch.py"), f"run_dir={run_dir}", *overrides],
        cwd=directory,
        env=os.environ | (environment or {}),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(launcher: subprocess.Popen[str] | Forked, within_s: float = 240) -> tuple[int, str]:
    """Exit status and what was said on stderr; a launcher that does not end is a failure."""
    try:
        _, err = launcher.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        launcher.send_signal(signal.SIGINT)
        raise
    return launcher.returncode, err


def run_to_the_end(run_dir: Path, *overrides: str, within_s: float = 240) -> dict:
    """The summary of a run that must succeed."""
    status, err = finish(start(run_dir, *overrides), within_s)
    assert status == 0, err
    return json.loads((run_dir / "summary.json").read_text())


def records(run_dir: Path, *names: str) -> list[Record]:
    with recorded_streams(run_dir) as streams:
        return [entry.record for name in names for entry in streams.reader(name).read(timeout_s=0)]


def resumptions_of(run_dir: Path) -> list[Resumed]:
    with recorded_streams(run_dir) as streams:
        return list(resumptions(streams))


def wait_for(condition: Callable[[], object], within_s: float = 120) -> object:
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
    return found


def wait_for_record(
    run_dir: Path, name: str, kind: type[Record], count: int = 1, within_s: float = 120
) -> None:
    wait_for(lambda: sum(isinstance(r, kind) for r in records(run_dir, name)) >= count, within_s)


def processes_of(run_dir: Path) -> list[int]:
    """Live processes with the run directory in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            zombie = (entry / "stat").read_text().split(")")[-1].split()[0] == "Z"
        except OSError:
            continue
        if str(run_dir).encode() in text and not zombie:
            found.append(int(entry.name))
    return found


def job_pid(run_dir: Path, module: str) -> int:
    """The process of a run whose command line names the module."""

    def find():
        for pid in processes_of(run_dir):
            command = Path(f"/proc/{pid}/cmdline").read_text()
            if module in command and "launch.py" not in command:
                return pid

    return wait_for(find)


def server_pids(run_dir: Path) -> list[int]:
    """The servers of a run. Their command line does not name it, but the launcher's events do."""
    urls = [record.url for record in records(run_dir, "launcher_events") if isinstance(record, ServerJoined)]
    return [pid for url in urls if (pid := listener(url))]


def listener(url: str) -> int | None:
    """The process of an inference server whose command line names the port of this URL."""
    port = url.rpartition(":")[2]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if f"--port {port}" in " ".join(words) and alive(int(entry.name)):
                    return int(entry.name)
    return None


def job_pid_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_accounted(run_dir: Path, ended: bool = True) -> dict[str, set[int]]:
    """started = trained + dropped(by reason) + in flight, disjoint, over group ids; none is in flight when
    the run has ended by itself. What was trained above the version of a resumption is undone by it."""
    started: list[int] = []
    settled: list[tuple[str, int | None, int]] = []  # (how, version that the step made, group)
    for record in life_by_life(run_dir):
        match record:
            case Started():
                started.append(record.group_id)
            case Settled():
                how = record.reason if record.reason else "trained"
                settled += [(how, record.version, group) for group in record.group_ids]
            case Resumed():
                settled = [s for s in settled if s[1] is None or s[1] <= record.version]
                settled += [("interrupted", None, group) for group in record.interrupted]
                settled += [("rolled_back", None, group) for group in record.rolled_back]
    every = [group for _, _, group in settled]
    assert len(every) == len(set(every)), "a group settled twice"
    assert len(started) == len(set(started)), "a group started twice"
    assert set(every) <= set(started)
    outcomes: dict[str, set[int]] = {}
    for how, _, group in settled:
        outcomes.setdefault(how, set()).add(group)
    if in_flight := set(started) - set(every):
        assert not ended, f"{in_flight} were lost"
        outcomes["in flight"] = in_flight
    return outcomes


def life_by_life(run_dir: Path) -> list[Record]:
    with recorded_streams(run_dir) as streams:
        return list(launches(streams))


def launches(streams: Streams) -> Iterator[Record]:
    """The events of all streams up to each resumption, before the resumption itself."""
    begin = dict.fromkeys(EVENT_STREAMS, 0)
    for resumed in [*resumptions(streams), None]:
        for name in EVENT_STREAMS:
            for entry in streams.reader(name).read(begin[name], timeout_s=0):
                if resumed and entry.next_offset > resumed.ends[name]:
                    break
                yield entry.record
        if resumed:
            yield resumed
            begin = resumed.ends
