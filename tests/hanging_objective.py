"""An objective that fails, is slow or never returns, in a step after the first: once, or every time."""

import time
from pathlib import Path

from pipelinerl.objectives.reinforce import Reinforce

SLOW_S = 4.0


class HangingObjective(Reinforce):
    """mark: a file that is made at the first fault. fault: hang, slow, fail or always."""

    def __init__(self, max_importance_weight: float, mark: str, fault: str):
        super().__init__(max_importance_weight)
        object.__setattr__(self, "_mark", Path(mark))
        object.__setattr__(self, "_fault", fault)
        object.__setattr__(self, "_calls", [])

    def __call__(self, scores, batch):
        self._calls.append(1)
        if len(self._calls) > 4 and (self._fault == "always" or not self._mark.exists()):
            self._mark.touch()
            if self._fault in ("hang", "slow"):
                time.sleep(1000 if self._fault == "hang" else SLOW_S)
            else:
                raise ArithmeticError("the fifth batch is too much")
        return super().__call__(scores, batch)
