"""Broken trainers of T4 whose weights have another dtype, order or file than expected."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from contracts.trainer import WorkerSpec
from examples.plain_trainer import PlainTrainer
from tests.conformance.trainer_mutants.mutants import mutant


@mutant("T4", "differs from the checkpoint by", part="weights")
class LoadsInTheDtypeOfTheConfig(PlainTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        super().init_worker(spec)
        narrow = AutoModelForCausalLM.from_pretrained(spec.model_path, dtype="auto")
        self._model.load_state_dict(narrow.float().state_dict())


@mutant(
    "T4",
    "differs from the checkpoint by",
    part="weights",
)
class SplitsBiasesOfGroupedHeadsWrongly(PlainTrainer):
    """Keeps queries, keys and values of a group of heads together, and splits biases as if it did not."""

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        groups = self._model.config.num_key_value_heads
        biases = {name: p.detach() for name, p in self._model.named_parameters() if "_proj.bias" in name}
        split: dict[str, torch.Tensor] = {}
        for query in (name for name in biases if "q_proj" in name):
            names = [query.replace("q_proj", f"{letter}_proj") for letter in "qkv"]
            parts = [biases[name].chunk(groups) for name in names]
            fused = torch.cat([torch.cat(group) for group in zip(*parts, strict=True)])
            whole = fused.split([len(biases[name]) for name in names])
            split |= {name: tensor.clone() for name, tensor in zip(names, whole, strict=True)}
        for name, tensor in super().gather_weights():
            yield name, tensor if tensor is None else split.get(name, tensor)


@mutant("T4", "of the export is what was loaded", part="weights")
class LeavesTheFormerExport(PlainTrainer):
    _former = False

    def export(self, directory: Path) -> None:
        new = directory.with_name("new")
        self._model.save_pretrained(new, max_shard_size="40KB" if self._former else "1GB")
        AutoTokenizer.from_pretrained(self._spec.model_path).save_pretrained(new)
        shutil.copytree(new, directory, dirs_exist_ok=True)
        shutil.rmtree(new)
        self._former = True
