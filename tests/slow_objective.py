"""An objective that takes time, like a trainer that is slower than the servers."""

import time

from pipelinerl.objectives.reinforce import Reinforce

SECONDS = 0.25


class Slow(Reinforce):
    def __call__(self, scores, batch):
        time.sleep(SECONDS)
        return super().__call__(scores, batch)
