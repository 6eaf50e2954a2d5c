"""A gate before a run's optimizer steps, so that a test acts while steps are left."""

import os
import time
from pathlib import Path

from pipelinerl.objectives.reinforce import Reinforce

POLL_S = 0.02
ALL = 1_000_000


class StepGate:
    """The gate of a run: no more steps are computed than it allows.

    settings: overrides of the run. Each step is one micro-batch, so that batches are steps.
    """

    def __init__(self, folder: Path, steps: int):
        """Allows the first `steps`."""
        self._file = folder / "allowed_steps"
        self.allow(steps)
        self.settings = (
            "objective._target_=tests.step_gate.GatedObjective",
            f"+objective.gate={self._file}",
            "packing.micro_batch_tokens=1000",
        )

    def allow(self, steps: int) -> None:
        """Allows so many steps in all, of each process that computes them."""
        written = self._file.with_suffix(".new")
        written.write_text(str(steps))
        os.replace(written, self._file)

    def open(self) -> None:
        self.allow(ALL)


class GatedObjective(Reinforce):
    """Waits before a batch that the gate does not allow yet.

    gate: the file with the number of allowed batches.
    """

    def __init__(self, max_importance_weight: float, gate: str):
        super().__init__(max_importance_weight)
        object.__setattr__(self, "_gate", Path(gate))
        object.__setattr__(self, "_calls", [])

    def __call__(self, scores, batch):
        self._calls.append(1)
        while len(self._calls) > int(self._gate.read_text()):
            time.sleep(POLL_S)
        return super().__call__(scores, batch)
