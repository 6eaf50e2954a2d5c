"""Broken trainers, each a few lines over the correct FSDPTrainer, and what the kit must say of them."""

import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from contracts.trainer import PackedBatch, SaveHandle, StepReport, TokenScores, WorkerSpec
from contracts.weights import WeightManifest
from trainer_adapters import token_scores
from trainer_adapters.fsdp import FSDPTrainer


@dataclass(frozen=True)
class Mutant:
    trainer: type[FSDPTrainer]
    breaks: str  # the guarantee that it is made to break
    says: str  # in the verdict, as a regular expression
    ranks: int = 1
    tied: bool = True  # the head of the model that it is tried on, of the kit's two
    also: frozenset[str] = frozenset()  # the other guarantees that cannot hold either
    why: str = ""  # they cannot
    patience_s: float = 60


class DividesByMicroBatches(FSDPTrainer):
    _backwards = 0

    def backward(self, loss: torch.Tensor) -> None:
        self._backwards += 1
        super().backward(loss)

    def step(self) -> StepReport:
        for _, parameter in self._trained():
            if parameter.grad is not None:
                parameter.grad /= self._backwards
        self._backwards = 0
        return super().step()


class AveragesOverRanks(FSDPTrainer):
    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss / dist.get_world_size())


class LetsNeighboursSeeEachOther(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        one = torch.tensor([0, batch.num_tokens], dtype=torch.int32)
        return super().forward(replace(batch, cu_seqlens=one), grad, entropy)


class ShiftsTheMaskInPlace(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        batch.loss_mask.copy_(batch.loss_mask.roll(1))
        return scores


class ForgetsTemperature(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        return super().forward(replace(batch, temperature=torch.ones(batch.num_tokens)), grad, entropy)


class ScoresTheFirstToken(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        return replace(scores, logprobs=scores.logprobs - (batch.position_ids == 0) * math.log(98))


class ScoresWhateverTheModel(FSDPTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        token_scores.LOGIT_TRANSFORMS.clear()  # in the process of this rank
        super().init_worker(spec)

    def _check_scores(self) -> None:
        pass


class DetachesTheEntropy(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        return replace(scores, entropy=scores.entropy.detach()) if entropy else scores


class PretendsThatTheEntropyHasAGradient(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        return replace(scores, entropy=scores.entropy.detach() + 0 * scores.logprobs) if entropy else scores


class OmitsTheHead(FSDPTrainer):
    def weight_manifest(self, dtype: str) -> WeightManifest:
        manifest = super().weight_manifest(dtype)
        kept = tuple(p for p in manifest.parameters if p.name != "lm_head.weight")
        return replace(manifest, parameters=kept)

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        return (item for item in super().gather_weights() if item[0] != "lm_head.weight")


class SendsTheTiedHeadToo(FSDPTrainer):
    def weight_manifest(self, dtype: str) -> WeightManifest:
        manifest = super().weight_manifest(dtype)
        tied = tuple(manifest.parameters[0].model_copy(update={"name": name}) for name in manifest.tied)
        return WeightManifest(manifest.parameters + tied, tied={})

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        items = list(super().gather_weights())
        yield from items
        yield from ((name, items[0][1]) for name in super().weight_manifest("float32").tied)


class YieldsInAnotherOrder(FSDPTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        return reversed(list(super().gather_weights()))


class YieldsTransposedViews(FSDPTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        for name, tensor in super().gather_weights():
            yield name, tensor if tensor.dim() < 2 else tensor.T.contiguous().T


class ExportsNoTokenizer(FSDPTrainer):
    def export(self, directory: Path) -> None:
        super().export(directory)
        for file in directory.glob("*token*"):
            file.unlink()


class ExportsWhatItLoaded(FSDPTrainer):
    def export(self, directory: Path) -> None:
        if self._spec.rank == 0:
            shutil.copytree(self._spec.model_path, directory)
        dist.barrier()


class GathersAllAtOnce(FSDPTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        yield from list(super().gather_weights())


class ReportsTheClippedNorm(FSDPTrainer):
    def step(self) -> StepReport:
        report = super().step()
        return replace(report, grad_norm=min(report.grad_norm, self._spec.optimizer.max_grad_norm))


class UpdatesWithNaN(FSDPTrainer):
    def _global_norm(self, gradients: list[torch.Tensor]) -> float:
        norm = super()._global_norm(gradients)
        return norm if math.isfinite(norm) else 0.0


class KeepsTheMoments(FSDPTrainer):
    _optimizer = None

    def reset_optimizer(self) -> None:
        if self._optimizer is None:
            super().reset_optimizer()


class ForgetsMomentsOnLoad(FSDPTrainer):
    def load(self, directory: Path) -> None:
        super().load(directory)
        self.reset_optimizer()


class ForgetsTheScheduleOnLoad(FSDPTrainer):
    def load(self, directory: Path) -> None:
        super().load(directory)
        self._closed_steps.zero_()


class SavesOnlyOnce(FSDPTrainer):
    def save(self, directory: Path) -> SaveHandle:
        return Nothing() if directory.exists() else super().save(directory)


class WaitsTogether(FSDPTrainer):
    def save(self, directory: Path) -> SaveHandle:
        return Together(super().save(directory))


class Nothing(SaveHandle):
    def wait(self) -> None:
        pass


@dataclass(frozen=True)
class Together(SaveHandle):
    saving: SaveHandle

    def wait(self) -> None:
        self.saving.wait()
        dist.barrier()


@dataclass(frozen=True)
class Later(SaveHandle):
    save: Callable[[Path], SaveHandle]
    directory: Path

    def wait(self) -> None:
        self.save(self.directory)


class SavesWhenWaitedFor(FSDPTrainer):
    def save(self, directory: Path) -> SaveHandle:
        return Later(super().save, directory)


class RefusesEmptyBatches(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        if not batch.num_tokens:
            raise ValueError("nothing to score")
        return super().forward(batch, grad, entropy)


class MeetsOnlyWhereThereIsWork(FSDPTrainer):
    """Its ranks wait for each other in every forward of a batch that is not empty."""

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        if not batch.num_tokens:
            nothing = torch.zeros(0, requires_grad=grad)
            return TokenScores(nothing, nothing if entropy else None)
        return super().forward(batch, grad, entropy)


class HoldsTheLogits(FSDPTrainer):
    def __init__(self):
        super().__init__(logits_chunk=10**9)


class Raises(FSDPTrainer):
    def step(self) -> StepReport:
        if self._spec.rank == 1:
            raise RuntimeError("no more gradients")
        return super().step()


class Dies(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        if self._spec.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(batch, grad, entropy)


class Hangs(FSDPTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        time.sleep(3600)


NOT_COMPARABLE = "there is no weight to compare with, or to differentiate at"
NO_BONUS = "the objective's bonus for entropy has no gradient"
ALL_AT_ONCE = "a list of all weights is made on the way"
MUTANTS = [
    Mutant(
        DividesByMicroBatches,
        "T2",
        "gradient of .* 0.125 times",
        also=frozenset({"T3", "T6"}),
        why="the norm that a step reports is wrong; an idle step's division too",
    ),
    Mutant(
        AveragesOverRanks,
        "T2",
        "all tensors are 0.5 times",
        ranks=2,
        also=frozenset({"T3", "T6"}),
        why="the norm that a step reports is half of what it is",
    ),
    Mutant(
        LetsNeighboursSeeEachOther,
        "T1",
        "neighbours are seen: token .* changes by",
        also=frozenset({"T2", "T3", "T6"}),
        why="scores of packs are other scores, with other gradients",
    ),
    Mutant(ShiftsTheMaskInPlace, "T1", r"forward changes loss_mask of the batch"),
    Mutant(
        ForgetsTemperature,
        "T1",
        "temperature is not applied",
        also=frozenset({"T2", "T3", "T6"}),
        why="scores at another temperature have other gradients",
    ),
    Mutant(
        DetachesTheEntropy,
        "T1",
        "entropy has no gradient with grad=True",
        also=frozenset({"T2", "T3", "T6"}),
        why=NO_BONUS,
    ),
    Mutant(
        PretendsThatTheEntropyHasAGradient,
        "T2",
        "gradient of .* is off by",
        also=frozenset({"T3", "T6"}),
        why=NO_BONUS,
    ),
    Mutant(
        ScoresWhateverTheModel, "T1", "divides its logits after the head is scored wrongly, without an error"
    ),
    Mutant(ScoresTheFirstToken, "T1", "first token of a sequence has nothing before it"),
    Mutant(
        OmitsTheHead,
        "T4",
        "lm_head.weight is missing",
        tied=False,
        also=frozenset({"T1", "T2", "T3", "T6"}),
        why=NOT_COMPARABLE,
    ),
    Mutant(SendsTheTiedHeadToo, "T4", "are tied and both yielded", also=frozenset({"T7"}), why=ALL_AT_ONCE),
    Mutant(
        YieldsInAnotherOrder,
        "T4",
        "order differs: item 0 is model.norm.weight",
        also=frozenset({"T7"}),
        why=ALL_AT_ONCE,
    ),
    Mutant(YieldsTransposedViews, "T4", "is not contiguous"),
    Mutant(ExportsNoTokenizer, "T4", "the exported tokenizer reads .* differently"),
    Mutant(ExportsWhatItLoaded, "T4", "of the export is what was loaded: the step is not in it"),
    Mutant(ReportsTheClippedNorm, "T3", "reports the gradient norm 0.02 .* before clipping"),
    Mutant(UpdatesWithNaN, "T3", "reports skipped=False"),
    Mutant(KeepsTheMoments, "T3", "update of .* is off by"),
    Mutant(ForgetsMomentsOnLoad, "T5", "after resumed step 1.* is off by|gradient norm of resumed step 2"),
    Mutant(ForgetsTheScheduleOnLoad, "T5", "learning rate of resumed step 1"),
    Mutant(SavesOnlyOnce, "T5", "resumed step 1"),
    Mutant(SavesWhenWaitedFor, "T5", "learning rate of resumed step 1"),
    Mutant(WaitsTogether, "T5", "rank . raised|not every rank ended", ranks=2, patience_s=30),
    Mutant(
        RefusesEmptyBatches,
        "T6",
        r"rank 0 raised in forward\(\): ValueError: nothing to score",
        also=frozenset({"T1", "T2"}),
        why="each has an empty batch among others",
    ),
    Mutant(
        MeetsOnlyWhereThereIsWork,
        "T6",
        r"not every rank ended within \d+ s: rank 0 is in (forward|backward)\(\); rank 1 is in step",
        ranks=2,
        also=frozenset({"T2"}),
        why="some of its cuts have empty shares",
        patience_s=3,
    ),
    Mutant(HoldsTheLogits, "T7", "grows by .* the full logits are held"),
    Mutant(GathersAllAtOnce, "T7", "gather_weights holds .* of all weights at once on rank 0"),
]
