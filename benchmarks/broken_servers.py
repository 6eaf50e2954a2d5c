"""Steps per second of a run of which one server of three hangs and one is broken, against healthy runs.

python -m benchmarks.broken_servers [--runs 5] [--seconds 60] [--answers error] [key=value ...]

The runs take turns: one healthy server, three of them, and three of which one is stopped (SIGSTOP) and one
fails every completion. Servers and trainer are scripted, and wait rather than compute. Counted is from the
moment at which the server is stopped.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from benchmarks.ratios import ratio_of_medians
from contracts.records import Record, ServerJoined, StepClosed, WeightsPublished
from contracts.support.command_line import command_parser
from pipelinerl.paths import ROOT
from pipelinerl.streams.of_run import recorded_streams

SETTINGS = [
    "inference=scripted",
    "trainer=scripted",
    "~domain",
    "+domain._target_=tests.scripted_domain.ScriptedDomain",
    "+inference.arguments.token-delay-s=0.02",
    "inference.concurrency=8",
    "sampling.max_tokens=16",
    "batch_size=32",
    "group_size=4",
    "max_steps=100000",
    "checkpoint.every=null",
    "eval.every=null",
    "eval.problems=4",
]
OTHER = "+inference.others.{}={{module: {}, model: scripted, arguments: {{{}}}}}"
HANGS = OTHER.format("hangs", "inference_adapters.scripted", "token-delay-s: 0.02")
ONSET_S = 30.0  # of the measured time, in which the server that hangs is detected


def main() -> None:
    parser = command_parser("benchmarks.broken_servers", __doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--answers", choices=["error", "corrupt"], default="error")
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    broken = OTHER.format("broken", "benchmarks.broken_engine", f"answers: {options.answers}")
    kinds = {
        "one healthy": ["world.servers=1"],
        "three healthy": ["world.servers=3"],
        "one of three healthy": ["world.servers=3", HANGS, broken],
    }
    whole: dict[str, list[float]] = {kind: [] for kind in kinds}
    later: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(options.runs):
        for kind, settings in kinds.items():
            steps = steps_of([*SETTINGS, *settings, *options.settings], options.seconds, HANGS in settings)
            whole[kind].append(len(steps) / options.seconds)
            late = [at for at in steps if at > ONSET_S]
            later[kind].append(len(late) / (options.seconds - ONSET_S))
            print(f"{kind}: {whole[kind][-1]:.3f} steps/s, after the onset {later[kind][-1]:.3f}", flush=True)
    for other in ("one healthy", "three healthy"):
        for name, found in (("from the stop on", whole), (f"from {ONSET_S:g} s after it on", later)):
            ratio = ratio_of_medians(found["one of three healthy"], found[other])
            print(f"one of three healthy / {other}, {name}: {ratio}")


def steps_of(settings: list[str], seconds: float, hangs: bool) -> list[float]:
    """Returns the time of each step, in seconds since all servers had weights and one of them was stopped."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with running(run, settings):
            wait_until(lambda: len(of_kind(run, "trainer_events", StepClosed)) > 1)
            if hangs:
                second = of_kind(run, "launcher_events", ServerJoined)[1]
                wait_until(lambda: second.url in of_kind(run, "trainer_events", WeightsPublished)[-1].servers)
            with stopped(second.url) if hangs else contextlib.nullcontext():
                began = time.time()
                time.sleep(seconds)
        ends = [step.at - began for step in of_kind(run, "trainer_events", StepClosed)]
        return [end for end in ends if 0 <= end <= seconds]


@contextlib.contextmanager
def running(run: Path, settings: list[str]) -> Iterator[subprocess.Popen]:
    """Yields the launcher of a run, which is interrupted after the block."""
    launcher = subprocess.Popen(
        [sys.executable, "launch.py", f"run_dir={run}", *settings], cwd=ROOT, stdout=-3, stderr=-3
    )
    try:
        yield launcher
    finally:
        launcher.send_signal(signal.SIGTERM)  # SIGINT is ignored below a shell's background job
        launcher.wait()


@contextlib.contextmanager
def stopped(url: str) -> Iterator[None]:
    """Stops the server at this URL while the block runs."""
    option = f"--port {url.rpartition(':')[2]}"
    processes = [p for p in psutil.process_iter(["cmdline"]) if option in " ".join(p.info["cmdline"] or [])]
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)


def of_kind(run: Path, stream: str, kind: type[Record]) -> list[Record]:
    """Returns the run's records of one kind so far."""
    with contextlib.suppress(FileNotFoundError), recorded_streams(run) as streams:
        entries = streams.reader(stream).read(timeout_s=0)
        return [entry.record for entry in entries if isinstance(entry.record, kind)]
    return []


def wait_until(holds: Callable[[], bool], within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the run has not begun to train")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
