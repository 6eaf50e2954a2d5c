"""An observer that writes RUN_DIR/alarm.txt with the mean rewards below a bound."""

from pipelinerl.observers import PYTHON, Observer


class RewardAlarm(Observer):
    name = "alarm"

    def __init__(self, below: float):
        self._below = float(below)

    def command(self, run_dir):
        return (*PYTHON, "watch_reward", str(run_dir), str(self._below))
