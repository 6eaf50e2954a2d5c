"""Makes one process a trainer rank among others that do not exist, by torch's fake process group.

Its collectives return at once. What other ranks would send is a copy of what this one sends, and a sum is
this rank's own part. So a rank's memory and kernels are real. Its values, and the time of communication, are
not.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # noqa: F401 - registers the backend
from transformers import PreTrainedModel

from trainer_adapters.checkpoint_io import load_model
from trainer_adapters.deepspeed import DeepSpeedTrainer
from trainer_adapters.fsdp import FSDPTrainer, local_part
from trainer_adapters.hugging_face_trainer import HuggingFaceTrainer

DEVIATION = 0.02  # of the random weights


@contextmanager
def fake_groups() -> Iterator[None]:
    """Makes every process group that is created in the block a fake one, whatever its backend and store.

    A new group over gloo, by which ranks agree on a step or a checkpoint, is a real one of this rank alone:
    if others gave the same answer as this one, each would write a part of this rank's shards.
    """
    init_process_group = dist.init_process_group
    new_group = dist.new_group

    def init_fake(*_: object, rank: int, world_size: int, **__: object) -> None:
        init_process_group("fake", store=dist.HashStore(), rank=rank, world_size=world_size)

    def new_fake(
        ranks: Sequence[int] | None = None, *_: object, backend: str | None = None, **__: object
    ) -> dist.ProcessGroup:
        if backend == "gloo":
            return new_group([dist.get_rank()], backend="gloo")
        return new_group(ranks, backend="fake")

    with (
        patch.object(dist, "init_process_group", init_fake),
        patch.object(dist, "new_group", new_fake),
    ):
        yield


class RandomRank(HuggingFaceTrainer):
    """A rank that reads no weights: it draws its shards on its device."""

    def _load(self) -> PreTrainedModel:
        with torch.device(self.device):
            return load_model(self._spec.model_path, rank=1)  # any rank but 0 reads none

    @torch.no_grad()
    def _shard(self) -> None:
        super()._shard()
        for shard in self.shards():
            shard.normal_(std=DEVIATION)
        self.adopt()

    def _state(self) -> dict[str, torch.Tensor]:
        """Returns the shards as plain tensors, because torch saves no sharded one that others do not save."""
        return {key: local_part(tensor) for key, tensor in super()._state().items()}


class FSDPRank(RandomRank, FSDPTrainer):
    pass


class DeepSpeedRank(RandomRank, DeepSpeedTrainer):
    def _shard(self) -> None:
        import deepspeed

        # On a CPU it would compile a kernel, for a minute, by which processes of one host communicate.
        with patch.dict(deepspeed.ops.__compatible_ops__, {"deepspeed_shm_comm": False}):
            super()._shard()
