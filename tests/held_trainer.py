"""A trainer that can be paused in a gather, between the first tensor and the second."""

import time
from pathlib import Path

from trainer_adapters.scripted import ScriptedTrainer

POLL_S = 0.02


class HeldTrainer(ScriptedTrainer):
    """If there is a file `hold`, it renames it to `held`, and waits until that file is removed."""

    def __init__(self, hold: str, held: str):
        super().__init__()
        self._hold = Path(hold)
        self._held = Path(held)

    def gather_weights(self):
        for index, weight in enumerate(super().gather_weights()):
            if index == 1 and self._hold.exists():
                self._hold.rename(self._held)
                while self._held.exists():
                    time.sleep(POLL_S)
            yield weight
