"""A trainer that waits before it gathers the weights to publish."""

import time

from trainer_adapters.scripted import ScriptedTrainer

SECONDS = 0.3


class SlowGather(ScriptedTrainer):
    def gather_weights(self):
        time.sleep(SECONDS)
        yield from super().gather_weights()
