"""Atomic checkpoints by torch.distributed.checkpoint (DCP): written to a temporary directory, then renamed.

Each rank copies its shards at once, and writes the copy in the background while training continues. Loading
is in place. The number of ranks may differ between saving and loading.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from contracts.support.files import is_disk_full, sync, sync_tree
from contracts.support.messages import one_line
from contracts.trainer import SaveHandle

OPTIONAL = ("rng.", "buffer.")  # prefixes of keys that a checkpoint may lack


class Saving(SaveHandle):
    """A handle to a checkpoint that is being written. On any rank, `wait` returns after all ranks' writes."""

    def __init__(self, written: futures.Future):
        self._written = written

    def wait(self) -> None:
        try:
            self._written.result()
        except CheckpointException as error:  # not a subclass of Exception
            failures = [failure for failure, _ in error.failures.values()]
            full = next((failure for failure in failures if is_disk_full(failure)), None)
            message = f"the checkpoint could not be written: {one_line(full or error)}"
            raise (OSError(full.errno, message) if full else OSError(message)) from error

    def wait_ended(self) -> None:
        """Waits until writing has ended, without raising its errors."""
        futures.wait([self._written])


class _RenamedIntoPlace(dcp.FileSystemWriter):
    """A writer to a temporary directory, which rank 0 renames to `directory` after all ranks have written."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._partial = _partial(directory)
        super().__init__(self._partial)

    def set_up_storage_writer(self, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        if is_coordinator:
            shutil.rmtree(self._partial, ignore_errors=True)

    def write_data(self, *args: object) -> torch.futures.Future[list[WriteResult]]:
        """Writes the rank's shards. Raises OSError if the disk is full, instead of torch.save's error."""
        try:
            return super().write_data(*args)
        except RuntimeError as error:
            if is_disk_full(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._partial)) from error
            raise

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        _put_in_place(self._partial, self._directory)


class ShardedCheckpoints:
    """Writes and reads checkpoints over its own process group, independent of training's collectives."""

    def __init__(self, timeout_s: float):
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._saving: Saving | None = None

    def save(self, state: dict[str, torch.Tensor], directory: Path) -> SaveHandle:
        """Starts to write a copy of `state`, each rank its part. Waits for the previous checkpoint first."""
        self.close()
        written = dcp.async_save(
            state, storage_writer=_RenamedIntoPlace(directory), process_group=self._group
        )
        self._saving = Saving(written)
        return self._saving

    def load(self, state: dict[str, torch.Tensor], directory: Path) -> None:
        """Fills the tensors of `state`. Raises ValueError if the checkpoint lacks one of them.

        Random-number state may be missing if fewer ranks wrote the checkpoint, and buffers if it is old.
        These tensors are then left unchanged.
        """
        stored = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
        wanted = {
            key: tensor for key, tensor in state.items() if key in stored or not key.startswith(OPTIONAL)
        }
        if missing := wanted.keys() - stored.keys():
            raise ValueError(
                f"{directory} has no {min(missing)}: it was written with another model, or other options"
            )
        dcp.load(wanted, checkpoint_id=directory, process_group=self._group)

    def stored(self, key: str, directory: Path) -> torch.Tensor | None:
        """Returns the stored uint8 tensor of this key, read on every rank, or None if there is none."""
        metadata = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
        if key not in metadata:
            return None
        tensor = torch.empty(metadata[key].size, dtype=torch.uint8)
        self.load({key: tensor}, directory)
        return tensor

    def close(self) -> None:
        if self._saving:
            self._saving.wait_ended()
            self._saving = None


@contextmanager
def complete_or_absent(directory: Path) -> Iterator[Path]:
    """Yields a temporary directory for all ranks, which replaces `directory` when all have left the block.

    If the block raises, `directory` is unchanged.
    """
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
    sync_tree(partial)
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)
    sync(directory.parent)


def rng_state(rank: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Returns the states of the random-number generators under keys that contain the rank."""
    state = {f"rng.cpu.{rank}": torch.get_rng_state()}
    if device.type == "cuda":
        state[f"rng.cuda.{rank}"] = torch.cuda.get_rng_state(device)
    return state


def restore_rng(state: dict[str, torch.Tensor], rank: int, device: torch.device) -> None:
    torch.set_rng_state(state[f"rng.cpu.{rank}"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[f"rng.cuda.{rank}"], device)
