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
        for line in read_metrics(metrics_path(run_dir, "actor")):
            reward = line.get("reward_mean")
            if reward is not None and reward < below:
                text = f"reward_mean was {reward:g} at version {line['step']}\n"
                (run_dir / "alarm.txt").write_text(text)
                return
        time.sleep(1)


main(Path(sys.argv[1]), float(sys.argv[2]))
