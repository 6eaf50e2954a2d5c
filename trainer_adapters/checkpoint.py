"""Checkpoints that are either whole or absent: torch.distributed.checkpoint, renamed into place.

Tensors are written and read in place, each rank its own shards; the number of ranks may differ.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from contracts.trainer import SaveHandle


class Saved(SaveHandle):
    """The checkpoint was whole before `save` returned."""

    def wait(self) -> None:
        pass


@contextmanager
def whole_or_absent(directory: Path) -> Iterator[Path]:
    """A directory for all ranks to write to, which becomes `directory` when all have left the block
    without an error. Replaces what was there."""
    partial = directory.with_name(directory.name + ".partial")
    coordinator = dist.get_rank() == 0
    if coordinator:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    yield partial
    dist.barrier()
    if coordinator:
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    dist.barrier()


def save(state: dict[str, torch.Tensor], directory: Path) -> SaveHandle:
    with whole_or_absent(directory) as partial:
        dcp.save(state, checkpoint_id=partial)
    return Saved()


def load(state: dict[str, torch.Tensor], directory: Path) -> None:
    """Fill the tensors of `state`. Random-number state that the checkpoint has none of (it was written
    by fewer ranks) stays as it is; anything else that is missing raises."""
    stored = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
    wanted = {key: tensor for key, tensor in state.items() if key in stored or not is_rng(key)}
    dcp.load(wanted, checkpoint_id=directory)


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
