"""A launcher of one job, to be killed: `python -m tests.launcher.executors.owner local|ray LOG SCRIPT`."""

import sys
import time
from pathlib import Path

from pipelinerl.launcher.executors.base import Executor, Placed, Process, ResourceRequest
from pipelinerl.launcher.executors.local import LocalExecutor


def executor_of(kind: str) -> Executor:
    if kind == "local":
        return LocalExecutor()
    from extensions.cluster.on_ray.executor import RayExecutor, RayOptions

    return RayExecutor(RayOptions())


def main(kind: str, log: str, script: str) -> None:
    executor = executor_of(kind)
    executor.request([ResourceRequest("job", "job", "job", 0.5)])
    while not isinstance(executor.poll()["job"], Placed):
        time.sleep(0.05)
    own = {"OWN": str(Path(log).parents[1])}
    executor.start("job", Process(("/bin/sh", "-c", script), own, Path(log)))
    while executor.poll():
        time.sleep(0.25)


if __name__ == "__main__":
    main(*sys.argv[1:])
