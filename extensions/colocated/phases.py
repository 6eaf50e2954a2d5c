"""The phases of one trainer rank: servers generate, or they sleep and the rank has its device.

A rank comes back to the device when all servers sleep, and servers wake when all ranks have left it.
"""

import torch

from pipelinerl.training.turn_taking import TurnContext, TurnTaking


class Phases(TurnTaking):
    """The trainer begins in its own phase: the first weights wake the servers.

    sleep_timeout_s: longest time in which a server falls asleep.
    """

    alternates = True

    def __init__(self, context: TurnContext, sleep_timeout_s: float):
        self._worker = context.worker
        self._ranks = context.ranks
        self._rank_zero = context.rank_zero
        self._probe = context.ranks.on_rank_0(context.probe if context.ranks.rank == 0 else None)
        self._spans = context.spans
        self._waiting = context.waiting
        self._sleep_timeout_s = sleep_timeout_s
        self._trains = True

    def train(self, version: int) -> None:
        if self._trains:
            return
        self._rank_zero.wait_until_quiesced(version)
        with self._spans("probe", version=version), self._waiting():
            self._probe.wait()
        with self._spans("sleep", version=version), self._waiting():
            self._rank_zero.put_to_sleep(version, self._sleep_timeout_s)
        with self._spans("onload", version=version), self._waiting():
            self._worker.onload()
        self._trains = True

    def generate(self, version: int) -> None:
        with self._spans("offload", version=version), self._waiting():
            self._worker.offload()
        self._ranks.total(torch.zeros(1))  # waits until every rank has left its device
        self._rank_zero.begin_phase("generate", version)
        self._trains = False
