"""Broken trainers of T3."""

import math
from dataclasses import replace

import torch

from contracts.trainer import OptimizerSpec, StepReport, WorkerSpec
from examples.plain_trainer import PlainTrainer
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters import fsdp
from trainer_adapters.fsdp import FSDPTrainer, local_part
from trainer_adapters.learning_rate import learning_rate


@mutant("T3", "reports the gradient norm 0.02 .* before clipping", part="updates")
class ReportsTheClippedNorm(FSDPTrainer):
    def step(self) -> StepReport:
        report = super().step()
        return replace(report, grad_norm=min(report.grad_norm, self._spec.optimizer.max_grad_norm))


@mutant("T3", "reports skipped=False", part="updates")
class UpdatesWithoutAFiniteGradient(FSDPTrainer):
    def _global_norm(self, gradients: list[torch.Tensor]) -> float:
        norm = super()._global_norm(gradients)
        return norm if math.isfinite(norm) else 0.0


@mutant("T3", "update of .* is off by", part="updates")
class KeepsTheMoments(FSDPTrainer):
    _optimizer = None

    def reset_optimizer(self) -> None:
        if self._optimizer is None:
            super().reset_optimizer()


@mutant("T3", "reports the gradient norm", part="updates")
class KeepsTheGradientOfASkippedStep(FSDPTrainer):
    def step(self) -> StepReport:
        kept = [(p, p.grad.clone()) for _, p in self._trained() if p.grad is not None]
        report = super().step()
        if report.skipped:
            for parameter, gradient in kept:
                parameter.grad = gradient
        return report


@mutant("T3", "reports the learning rate", part="updates")
class CountsTheWarmUpIntoTheDecay(FSDPTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        decay = spec.optimizer.decay_steps
        shorter = {"decay_steps": decay and decay - spec.optimizer.warmup_steps}
        super().init_worker(spec.model_copy(update={"optimizer": spec.optimizer.model_copy(update=shorter)}))


@mutant("T3", "reports the learning rate -", part="updates")
class LearnsBackwardsAfterTheDecay(FSDPTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        fsdp.learning_rate = self._rate  # in the process of this rank
        super().init_worker(spec)

    @staticmethod
    def _rate(spec: OptimizerSpec, closed_steps: int) -> float:
        rate = learning_rate(spec, closed_steps)
        if rate or spec.decay_steps is None:
            return rate
        return spec.lr * (1 - (closed_steps - spec.warmup_steps) / spec.decay_steps)


@mutant("T3", "update of .* is off by", part="updates")
class DecaysMatricesAlone(FSDPTrainer):
    def step(self) -> StepReport:
        group = self._optimizer.param_groups[0]
        if len(self._optimizer.param_groups) == 1:
            vectors = [p for p in group["params"] if p.dim() == 1]
            group["params"] = [p for p in group["params"] if p.dim() > 1]
            self._optimizer.param_groups.append({**group, "params": vectors, "weight_decay": 0.0})
        return super().step()


@mutant("T3", "update of .* is off by", part="updates")
class ForgetsItsSettingsInAReset(FSDPTrainer):
    _optimizer = None

    def reset_optimizer(self) -> None:
        first = self._optimizer is None
        super().reset_optimizer()
        if not first:
            self._optimizer.param_groups[0].update(eps=1e-8, weight_decay=0.01)


@mutant("T3", "update of .* is off by", part="updates")
class ForgetsTheBiasCorrection(FSDPTrainer):
    def step(self) -> StepReport:
        for state in self._optimizer.state.values():
            state["step"].fill_(1000)
        return super().step()


@mutant("T3", "learning rate", part="updates")
class ReportsTheNextRate(FSDPTrainer):
    def step(self) -> StepReport:
        report = super().step()
        return replace(report, learning_rate=learning_rate(self._spec.optimizer, int(self._closed_steps)))


@mutant("T3", "reports the gradient norm", part="updates")
class CountsTiedWeightsTwice(PlainTrainer):
    def step(self) -> StepReport:
        counted = torch.nn.utils.clip_grad_norm_
        every = [p for _, p in self._model.named_parameters(remove_duplicate=False)]
        torch.nn.utils.clip_grad_norm_ = lambda _, limit: counted(every, limit)  # in this rank's process
        try:
            return super().step()
        finally:
            torch.nn.utils.clip_grad_norm_ = counted


@mutant("T3", "update of .* is off by", part="updates")
class SchedulesMatricesAlone(PlainTrainer):
    """Has a second group of parameters, whose learning rate never changes."""

    def reset_optimizer(self) -> None:
        super().reset_optimizer()
        group = self._optimizer.param_groups[0]
        vectors = [p for p in group["params"] if p.dim() == 1]
        group["params"] = [p for p in group["params"] if p.dim() > 1]
        self._optimizer.add_param_group({"params": vectors})


class _KnowsIdleSteps(FSDPTrainer):
    def _idle(self) -> bool:
        return self._global_norm([local_part(p.grad) for _, p in self._trained() if p.grad is not None]) == 0


@mutant("T3", "update of .* is off by", part="updates")
class StandsStillWithoutAGradient(_KnowsIdleSteps):
    def step(self) -> StepReport:
        if not self._idle():
            return super().step()
        update = self._optimizer.step
        self._optimizer.step = lambda: None
        try:
            return super().step()
        finally:
            self._optimizer.step = update


@mutant("T3", "reports the learning rate", part="updates")
class DoesNotCountIdleSteps(_KnowsIdleSteps):
    def step(self) -> StepReport:
        idle = self._idle()
        report = super().step()
        self._closed_steps -= int(idle)
        return report
