"""What it costs to observe a run: spans, looks at places, a follower that feeds a tracker, and the viewer.

python -m benchmarks.observation [--to tensorboard] [key=value ...]

A run is started, with the follower and a viewer beside it. The viewer's page of the run is open all the time,
and every half minute somebody looks at rollouts and at the timeline. Printed are the CPU seconds of each, and
what the run's spans and looks cost: their number times the CPU time of one, measured alone.
"""

import collections
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

from contracts.support.command_line import command_parser
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.paths import ROOT
from pipelinerl.rollouts.places import LOOK_S, Look, PlaceTimes
from pipelinerl.spans import Spans

CALLS = 20_000
LOOK_EVERY_S = 30.0


def main() -> None:
    parser = command_parser("benchmarks.observation", __doc__)
    parser.add_argument("--to", default="tensorboard", help="the tracker that is fed")
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        launcher = started("launch.py", f"run_dir={run}", *options.settings)
        while not metrics_path(run, "trainer").exists() and launcher.poll() is None:
            time.sleep(0.1)
        follower = started("-m", "extensions.viewer.track", str(run), "--to", options.to)
        viewer = started(
            "-m", "extensions.viewer", str(run), "--end-with-run", stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=watch, args=(viewer.stdout.readline().split()[-1],), daemon=True).start()
        whole = cpu_seconds(launcher)
        report(run, whole, cpu_seconds(follower), cpu_seconds(viewer))


def started(*arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, **({"stdout": subprocess.DEVNULL} | options)
    )


def watch(url: str) -> None:
    """Looks at the viewer as somebody does who has its page of the run open, until it ends."""
    opener = build_opener(HTTPCookieProcessor())
    with contextlib.suppress(OSError, HTTPException):
        opener.open(url).read()
        api = f"{url.partition('?')[0]}api/runs/run"
        live = opener.open(f"{api}/stream")
        threading.Thread(target=lambda: collections.deque(live, maxlen=0), daemon=True).start()
        while True:
            opener.open(f"{api}/rollouts").read()
            opener.open(f"{api}/timeline").read()
            time.sleep(LOOK_EVERY_S)


def cpu_seconds(process: subprocess.Popen) -> float:
    """Waits for the end of the process. Returns its CPU seconds, including those of ended children."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{process.args} ended with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def report(run: Path, whole: float, followed: float, viewed: float) -> None:
    count = sum(len(path.read_text().splitlines()) for path in (run / "spans").iterdir())
    looks = sum(line.get("places_s") or 0.0 for line in read_metrics(metrics_path(run, "actor"))) / LOOK_S
    with tempfile.TemporaryDirectory() as folder:
        spans = Spans(Path(folder), "alone")
        span_s = of_one(lambda: spans.add("wait", time.time(), 0.1, version=1))
        times = PlaceTimes(spans)
        look = Look(in_flight=60, capacity=64, under_way=62, away=2, blocked_by=None)
        look_s = of_one(lambda: times.look(look))
    print(f"run: {whole:.1f} CPU seconds")
    print(f"{count} spans of {1e6 * span_s:.1f} µs: {count * span_s / whole:.3%}")
    print(f"{looks:.0f} looks at places of {1e6 * look_s:.1f} µs: {looks * look_s / whole:.3%}")
    print(f"follower: {followed:.1f} CPU seconds: {followed / whole:.2%}")
    print(f"viewer: {viewed:.1f} CPU seconds: {viewed / whole:.2%}")


def of_one(work: Callable[[], object]) -> float:
    """Returns the CPU seconds of one call."""
    began = time.process_time()
    for _ in range(CALLS):
        work()
    return (time.process_time() - began) / CALLS


if __name__ == "__main__":
    main()
