"""Checkpoints that are either whole or absent: torch.distributed.checkpoint, renamed into place.

Tensors are copied at once and written in the background, each rank its own shards, while training goes
on; they are read in place. The number of ranks may differ.
"""

import shutil
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from contracts.trainer import SaveHandle


class Saving(SaveHandle):
    """Of a checkpoint that is being written. On any rank, done means that it is whole on disk."""

    def __init__(self, written: futures.Future):
        self._written = written

    def wait(self) -> None:
        self._written.result()

    def wait_ended(self) -> None:
        """Return once nothing is written any more, whatever came of it: that is for `wait` to say."""
        futures.wait([self._written])


class _RenamedIntoPlace(dcp.FileSystemWriter):
    """Writes beside `directory`; `finish`, which rank 0 calls once every rank has written, renames."""

    def __init__(self, directory: Path):
        self._directory, self._partial = directory, _partial(directory)
        super().__init__(self._partial)

    def set_up_storage_writer(self, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        if is_coordinator:
            shutil.rmtree(self._partial, ignore_errors=True)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        _put_in_place(self._partial, self._directory)


class ShardedCheckpoints:
    """Writes one checkpoint at a time, over a process group of its own: training's collectives go on."""

    def __init__(self, timeout_s: float):
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._saving: Saving | None = None

    def save(self, state: dict[str, torch.Tensor], directory: Path) -> SaveHandle:
        """What every rank gives is written as it is now."""
        self.close()  # waits for the one before
        written = dcp.async_save(
            state, storage_writer=_RenamedIntoPlace(directory), process_group=self._group
        )
        self._saving = Saving(written)
        return self._saving

    def load(self, state: dict[str, torch.Tensor], directory: Path) -> None:
        """Fill the tensors of `state`. Random-number state that the checkpoint has none of (it was
        written by fewer ranks) stays as it is; anything else that is missing raises ValueError."""
        stored = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
        wanted = {key: tensor for key, tensor in state.items() if key in stored or not is_rng(key)}
        if missing := wanted.keys() - stored.keys():
            raise ValueError(
                f"{directory} has no {min(missing)}: it was written with another model, or other options"
            )
        dcp.load(wanted, checkpoint_id=directory, process_group=self._group)

    def close(self) -> None:
        if self._saving:
            self._saving.wait_ended()
            self._saving = None


@contextmanager
def complete_or_absent(directory: Path) -> Iterator[Path]:
    """A directory for all ranks to write to, which becomes `directory` when all have left the block
    without an error. Replaces what was there."""
    partial = _partial(directory)
    coordinator = dist.get_rank() == 0
    if coordinator:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    yield partial
    dist.barrier()
    if coordinator:
        _put_in_place(partial, directory)
    dist.barrier()


def _partial(directory: Path) -> Path:
    return directory.with_name(directory.name + ".partial")


def _put_in_place(partial: Path, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)


def rng_state(rank: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Named by rank: each has its own."""
    state = {f"rng.cpu.{rank}": torch.get_rng_state()}
    if device.type == "cuda":
        state[f"rng.cuda.{rank}"] = torch.cuda.get_rng_state(device)
    return state


def restore_rng(state: dict[str, torch.Tensor], rank: int, device: torch.device) -> None:
    torch.set_rng_state(state[f"rng.cpu.{rank}"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[f"rng.cuda.{rank}"], device)


def is_rng(key: str) -> bool:
    return key.startswith("rng.")
