"""A trainer that takes its time before the weights that it publishes."""

import time

from trainer_adapters.scripted import ScriptedTrainer

SECONDS = 0.3


class SlowGather(ScriptedTrainer):
    def gather_weights(self):
        time.sleep(SECONDS)
        yield from super().gather_weights()
