"""What grows with a run: the memory of its processes, the cost of resuming it, its rate with many servers.

python -m benchmarks.growth [--seconds 60] [--servers 1 64] [--requests 64] [--groups 10000 100000]
                            [--set key=value ...]

The runs are scripted, as many as numbers of servers. The servers of a run share so many requests at a time.
A run is counted for so many seconds after its servers have joined. Resuming is measured over recorded events
of so many groups.
"""

import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks.arguments import composed, positive_int, positive_seconds
from benchmarks.broken_servers import of_kind, running
from benchmarks.resume_cost import resume_cpu_s
from benchmarks.run_processes import jobs_of
from contracts.records import WeightsPublished
from contracts.support.command_line import command_parser
from pipelinerl.metrics import MetricsTail, metrics_path

GROUP_SIZE = 4
SETTINGS = [
    "inference=scripted",
    "trainer=scripted",
    "~domain",
    "+domain._target_=tests.scripted_domain.ScriptedDomain",
    "sampling.max_tokens=4",
    "batch_size=32",
    f"group_size={GROUP_SIZE}",
    "max_steps=1000000",
    "checkpoint.every=null",
    "eval.every=null",
    "eval.problems=4",
]
EVERY_S = 1.0  # seconds between two samples
STARTS_WITHIN_S = 600
SETTLED = 3  # versions published to all servers, before counting
MIB = 2**20


class Sample(NamedTuple):
    at: float  # seconds, monotonic
    rollouts: int  # rollouts that the preprocessor has read
    resident: dict[str, int]  # bytes by process


def main() -> None:
    parser = command_parser("benchmarks.growth", __doc__)
    parser.add_argument("--seconds", type=positive_seconds, default=60)
    parser.add_argument("--servers", type=positive_int, nargs="+", default=[1, 64])
    parser.add_argument("--requests", type=positive_int, default=64, help="in flight, over all servers")
    parser.add_argument("--groups", type=positive_int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--set", nargs="*", default=[], help="keys of the runs")
    options = parser.parse_args()
    if uneven := [servers for servers in options.servers if options.requests % servers]:
        parser.error(f"--requests {options.requests} cannot be shared by {uneven[0]} servers alike")
    composed(parser, [*SETTINGS, *options.set])
    for servers in options.servers:
        shared = [f"world.servers={servers}", f"inference.concurrency={options.requests // servers}"]
        samples = samples_of([*SETTINGS, *shared, *options.set], servers, options.seconds)
        report(servers, samples)
    print("\n| groups recorded | CPU seconds to resume | per 100,000 groups |\n| ---: | ---: | ---: |")
    for groups in options.groups:
        cpu_s = resume_cpu_s(groups)
        print(f"| {groups} | {cpu_s:.2f} | {cpu_s / groups * 1e5:.2f} |", flush=True)


def samples_of(settings: list[str], servers: int, seconds: float) -> list[Sample]:
    """Returns samples of a run, starting when all its servers have received weights."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with running(run, settings) as launcher:
            wait_for_servers(run, servers, launcher)
            jobs = jobs_of(run)
            server = next(name for name in jobs if name.startswith("server"))
            watched = {name: jobs[name] for name in ("actor", "preprocessor", "trainer-0", server)}
            processes = {name: psutil.Process(pid) for name, pid in watched.items()}
            processes["launcher"] = psutil.Process(launcher.pid)
            tail = MetricsTail(metrics_path(run, "preprocessor"))
            groups = 0
            samples: list[Sample] = []
            ends = time.monotonic() + seconds
            while time.monotonic() < ends or len(samples) < 2:
                groups = max([groups, *(line["groups"] for line in tail.read())])
                resident = {name: process.memory_info().rss for name, process in processes.items()}
                samples.append(Sample(time.monotonic(), int(groups) * GROUP_SIZE, resident))
                time.sleep(EVERY_S)
            return samples


def wait_for_servers(run: Path, servers: int, launcher: subprocess.Popen) -> None:
    """Waits until some versions were published to so many servers. Fails if the launcher ends before."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    published = 0
    while published < SETTLED:
        if launcher.poll() is not None:
            raise RuntimeError(
                f"the run ended with status {launcher.returncode} before its servers had joined"
            )
        if time.monotonic() > deadline:
            raise TimeoutError(f"{servers} servers have not joined within {STARTS_WITHIN_S} s")
        time.sleep(EVERY_S)
        events = of_kind(run, "trainer_events", WeightsPublished)
        published = sum(len(event.servers) == servers for event in events)


def report(servers: int, samples: list[Sample]) -> None:
    """Prints the rate of the run, and the memory of each process with its growth in the second half."""
    first = samples[0]
    last = samples[-1]
    rate = (last.rollouts - first.rollouts) / (last.at - first.at)
    print(f"\n{servers} servers: {rate:.0f} rollouts a second, {last.rollouts} rollouts in all\n")
    print("| process | resident memory, MiB | MiB more for 100,000 rollouts |\n| --- | ---: | ---: |")
    later = samples[len(samples) // 2 :]
    rollouts = [sample.rollouts for sample in later]
    for name in last.resident:
        mib = [sample.resident[name] / MIB for sample in later]
        slope = np.polyfit(rollouts, mib, 1)[0] * 1e5 if rollouts[0] < rollouts[-1] else np.nan
        print(f"| {name} | {mib[-1]:.0f} | {slope:+.1f} |", flush=True)


if __name__ == "__main__":
    main()
