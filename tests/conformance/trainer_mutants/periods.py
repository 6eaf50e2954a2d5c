"""Broken trainers of T10. Their period is longer than the steps of any other guarantee."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from contracts.trainer import StepReport
from extensions.islands.island import Island
from tests.conformance.averaging_trainers import GoesHalfWay
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters.deepspeed import DeepSpeedTrainer

broken = partial(mutant, "T10", part="periods")


@broken("update of step 12, which ends no period of 11, of .* is off by")
class EndsItsPeriodAStepLate(GoesHalfWay):
    @property
    def period(self) -> int:
        return 11


@broken("update of step 13, which ends no period of 12, of .* is off by")
class CountsOnlyWhatIsNotSkipped(GoesHalfWay):
    def step(self) -> StepReport:
        report = super().step()
        self._since -= report.skipped
        return report


@broken("update of step 13, which ends no period of 12, of .* is off by")
class ForgetsMomentsAtTheEnd(GoesHalfWay):
    def step(self) -> StepReport:
        report = super().step()
        if self._since == 0:
            self.reset_optimizer()
        return report


@broken("in step 13, rank 0 reports the learning rate")
class BeginsItsScheduleAnewAtTheEnd(GoesHalfWay):
    def step(self) -> StepReport:
        report = super().step()
        if self._since == 0:
            self._inner._closed_steps.zero_()
        return report


@broken("after step 12, which ends a period, a log-probability on rank 0 is off by", needs_deepspeed=True)
class ComputesWithWhatWasBefore(GoesHalfWay):
    """Computes with the weights before they were averaged, and gathers those after."""

    inner = DeepSpeedTrainer

    def _new_island(self) -> Island:
        island = super()._new_island()
        island._inner = replace(island._inner, adopt=lambda: None)
        return island


@broken(r"weight \(after step 24, from the checkpoint\) of .* is off by")
class ForgetsWhereItsPeriodBegan(GoesHalfWay):
    def load(self, directory: Path) -> None:
        super().load(directory)
        self._island = self._new_island()


@broken(r"weight \(after step 24, from the checkpoint\) of .* is off by")
class BeginsItsPeriodAnewOnLoad(GoesHalfWay):
    def load(self, directory: Path) -> None:
        super().load(directory)
        self._since = 0


@broken("step 12 has the measure outer_.*=tensor")
class ReportsTensors(GoesHalfWay):
    def step(self) -> StepReport:
        report = super().step()
        return replace(report, measures={name: torch.tensor(v) for name, v in report.measures.items()})


@broken("the period is 0")
class HasAPeriodOfNothing(GoesHalfWay):
    @property
    def period(self) -> int:
        return 0


@broken("update of step 25, which ends no period of 12, of .* is off by")
class PutsOffAnEndThatIsSkipped(GoesHalfWay):
    def step(self) -> StepReport:
        if self._since < self.period - 1:
            return super().step()
        island = self._island
        self._island = None  # without which there is no round
        report = super().step()
        self._island = island
        if report.skipped:
            return report
        self._since = 0
        island.drift.updates += 1
        return replace(report, measures=island.synchronise(self._others))


@broken(r"the ranks have the periods \[12, 13\]", ranks=2)
class HasAPeriodOfEachRank(GoesHalfWay):
    @property
    def period(self) -> int:
        return 12 + self._spec.rank
