"""The command of the observer: reads the actor's metrics every second, until the run has ended."""

import sys
import time
from pathlib import Path

from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.observers import end_path


def main(run_dir, below):
    has_ended = False
    while not has_ended:
        has_ended = end_path(run_dir).exists()
        lines = [line for line in read_metrics(metrics_path(run_dir, "actor")) if "reward_mean" in line]
        low = [f"{line['reward_mean']} at version {line['step']}\n" for line in lines if is_low(line, below)]
        if low:
            (run_dir / "alarm.txt").write_text("".join(low))
        time.sleep(1)


def is_low(line, below):
    return line["reward_mean"] is not None and line["reward_mean"] < below


main(Path(sys.argv[1]), float(sys.argv[2]))
