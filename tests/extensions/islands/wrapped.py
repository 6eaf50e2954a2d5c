"""DiLoCoTrainer around FSDP, as the trainer's kit can make it by its name."""

from extensions.islands.diloco import DiLoCoTrainer
from trainer_adapters.fsdp import FSDPTrainer


class WithoutRounds(DiLoCoTrainer):
    def __init__(self, **options: object):
        super().__init__(inner=FSDPTrainer(**options), every=None)


class AloneAfterEveryUpdate(DiLoCoTrainer):
    """An island without others that takes the mean: its own model."""

    def __init__(self, **options: object):
        super().__init__(inner=FSDPTrainer(**options), every=1)
