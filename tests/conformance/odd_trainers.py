"""Trainers that fulfil the contract in an unusual way: the kit must pass each of them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from contracts.inference import Parameter
from contracts.trainer import PackedBatch, SaveHandle, TokenScores, WorkerSpec
from contracts.weights import WeightManifest
from examples.plain_trainer import PlainTrainer
from tests.conformance.averaging_trainers import Averages
from tests.conformance.sharing_trainers import SharesOutItsReplicas
from tests.conformance.wide_trainers import ComputesInFloat64
from trainer_adapters.fsdp import FSDPTrainer


@dataclass(frozen=True)
class Odd:
    trainer: type
    on: str  # the parts of guarantees that its peculiarity affects, as far as they take no longer than others
    ranks: int = 1

    @property
    def path(self) -> str:
        return f"{self.trainer.__module__}.{self.trainer.__qualname__}"

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The codes of these guarantees, each with the name of the part."""
        return [(code, part) for code, _, part in (each.partition("/") for each in self.on.split())]


class ExportsInFloat64(PlainTrainer):
    def export(self, directory: Path) -> None:
        super().export(directory)
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
        model.save_pretrained(directory)


class TrainsInFloat64(PlainTrainer):
    """Gathers float32, and exports what was not rounded."""

    def init_worker(self, spec: WorkerSpec) -> None:
        super().init_worker(spec)
        self._model.double()

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        for name, tensor in super().gather_weights():
            yield name, None if tensor is None else tensor.float()


class ExportsManyFiles(PlainTrainer):
    def export(self, directory: Path) -> None:
        super().export(directory)
        (directory / "model.safetensors").unlink()
        self._model.save_pretrained(directory, max_shard_size="40KB")


class ChecksPointsEverywhere(FSDPTrainer):
    def __init__(self) -> None:
        super().__init__(activation_checkpointing=True, logits_chunk=7)


class YieldsFloat64(PlainTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        for name, tensor in super().gather_weights():
            yield name, None if tensor is None else tensor.double()


class TiesTheOtherWay(PlainTrainer):
    """Sends the head, to which it ties the embedding, and everything in reverse."""

    HEAD = "lm_head.weight"

    def _names(self) -> dict[str, torch.nn.Parameter]:
        every = dict(self._model.named_parameters(remove_duplicate=False))
        last = {parameter: name for name, parameter in every.items()}
        return {name: parameter for parameter, name in reversed(last.items())}

    def weight_manifest(self, dtype: str) -> WeightManifest:
        sent = self._names()
        every = dict(self._model.named_parameters(remove_duplicate=False))
        listed = [Parameter(name=name, dtype=dtype, shape=tuple(p.shape)) for name, p in sent.items()]
        tied = {name: self.HEAD for name in every if name not in sent}
        return WeightManifest(parameters=tuple(listed), tied=tied)

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        for name, parameter in self._names().items():
            yield name, parameter.detach().clone() if self._spec.rank == 0 else None


class SavesSlowly(PlainTrainer):
    def save(self, directory: Path) -> SaveHandle:
        time.sleep(0.5)
        return super().save(directory)


class GivesValuesUnasked(FSDPTrainer):
    def __init__(self) -> None:
        super().__init__(value_head=True)


class RefusesWhatIsNotPlain(PlainTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        super().init_worker(spec)
        if self._model.config.model_type not in ("qwen2", "llama"):
            raise ValueError("only plain decoders are trained")


class ScoresOneSequenceOfAnEmptyBatch(PlainTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        if batch.num_tokens:
            return super().forward(batch, grad, entropy)
        one = replace(
            batch,
            token_ids=torch.tensor([5, 6]),
            position_ids=torch.arange(2),
            cu_seqlens=torch.tensor([0, 2], dtype=torch.int32),
            temperature=torch.ones(2),
        )
        scores = super().forward(one, grad, entropy)
        return TokenScores(scores.logprobs[:0], None if scores.entropy is None else scores.entropy[:0])


ODD = [
    Odd(ComputesInFloat64, "T2/cuts"),
    Odd(ExportsInFloat64, "T4/weights"),
    Odd(TrainsInFloat64, "T4/weights"),
    Odd(ExportsManyFiles, "T4/weights"),
    Odd(YieldsFloat64, "T4/weights T6/idle-ranks"),
    Odd(TiesTheOtherWay, "T2/orders T4/weights"),
    Odd(ChecksPointsEverywhere, "T1/decoders T7/scoring"),
    Odd(SavesSlowly, "T5/saves"),
    Odd(GivesValuesUnasked, "T1/decoders T4/weights T5/resume"),
    Odd(RefusesWhatIsNotPlain, "T1/special-models", ranks=2),
    Odd(ScoresOneSequenceOfAnEmptyBatch, "T1/decoders T6/idle-ranks", ranks=2),
    Odd(SharesOutItsReplicas, "T9/shards", ranks=2),
    Odd(Averages, "T10/periods", ranks=2),
]
