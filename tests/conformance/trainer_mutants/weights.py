"""Broken trainers of T4."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from contracts.weights import WeightManifest
from examples.plain_trainer import PlainTrainer
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters.checkpoint_io import copy_tokenizer
from trainer_adapters.fsdp import FSDPTrainer


@mutant(
    "T4",
    "lm_head.weight is missing",
    part="weights",
    tied=False,
)
class OmitsTheHead(FSDPTrainer):
    def weight_manifest(self, dtype: str) -> WeightManifest:
        manifest = super().weight_manifest(dtype)
        kept = tuple(p for p in manifest.parameters if p.name != "lm_head.weight")
        return replace(manifest, parameters=kept)

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        return (item for item in super().gather_weights() if item[0] != "lm_head.weight")


@mutant(
    "T4",
    "are tied and both yielded",
    part="weights",
)
class SendsTheTiedHeadToo(FSDPTrainer):
    def weight_manifest(self, dtype: str) -> WeightManifest:
        manifest = super().weight_manifest(dtype)
        tied = tuple(manifest.parameters[0].model_copy(update={"name": name}) for name in manifest.tied)
        return WeightManifest(manifest.parameters + tied, tied={})

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        items = list(super().gather_weights())
        yield from items
        yield from ((name, items[0][1]) for name in super().weight_manifest("float32").tied)


@mutant(
    "T4",
    "order differs: item 0 is model.norm.weight",
    part="weights",
)
class YieldsInAnotherOrder(FSDPTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        return reversed(list(super().gather_weights()))


@mutant("T4", "is not contiguous", part="weights")
class YieldsTransposedViews(FSDPTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        for name, tensor in super().gather_weights():
            yield name, tensor if tensor.dim() < 2 else tensor.T.contiguous().T


@mutant("T4", "the exported tokenizer reads .* differently", part="weights")
class ExportsNoTokenizer(FSDPTrainer):
    def export(self, directory: Path) -> None:
        super().export(directory)
        for file in directory.glob("*token*"):
            file.unlink()


@mutant("T4", "of the export is what was loaded: the step is not in it", part="weights")
class ExportsWhatItLoaded(FSDPTrainer):
    def export(self, directory: Path) -> None:
        if self._spec.rank == 0:
            shutil.copytree(self._spec.model_path, directory, dirs_exist_ok=True)
        dist.barrier()


@mutant("T4", "changes once it was yielded", part="weights")
class YieldsOneBuffer(PlainTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        buffer = torch.empty(max(p.numel() for p in self._model.parameters()))
        for name, tensor in super().gather_weights():
            view = buffer[: tensor.numel()].view(tensor.shape)
            yield name, view.copy_(tensor)


@mutant("T4", "no chat template", part="weights")
class ExportsNoChatTemplate(FSDPTrainer):
    def export(self, directory: Path) -> None:
        super().export(directory)
        for file in directory.glob("chat_template*"):
            file.unlink()
        settings = directory / "tokenizer_config.json"
        kept = json.loads(settings.read_text())
        kept.pop("chat_template", None)
        settings.write_text(json.dumps(kept))


@mutant("T4", "ends at the tokens", part="weights")
class ExportsNoGenerationConfig(FSDPTrainer):
    def export(self, directory: Path) -> None:
        super().export(directory)
        (directory / "generation_config.json").unlink()


@mutant("T4", "of the export is what was loaded", part="weights")
class ExportsWhatItGatheredLast(FSDPTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        self._gathered = {}
        for name, tensor in super().gather_weights():
            self._gathered[name] = tensor.clone()
            yield name, tensor

    def export(self, directory: Path) -> None:
        self._model.save_pretrained(directory, state_dict=self._gathered)
        copy_tokenizer(self._spec.model_path, directory)


@mutant("T4", "manifest says bfloat16", part="weights")
class ListsOneDtype(FSDPTrainer):
    def weight_manifest(self, dtype: str) -> WeightManifest:
        return super().weight_manifest("bfloat16")


@mutant(
    "T4",
    "differs from the checkpoint by",
    part="weights",
)
class GathersABfloat16Copy(FSDPTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        for name, tensor in super().gather_weights():
            yield name, tensor.bfloat16().float()
