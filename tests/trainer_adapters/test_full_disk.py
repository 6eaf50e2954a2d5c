"""Checkpoints on a disk that is full: all ranks go on, and the next one is saved."""

import errno
import logging
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from contracts.records import CheckpointSaved
from contracts.trainer import SaveHandle
from pipelinerl.training.checkpoint_saver import CheckpointSaver
from pipelinerl.training.checkpoints import Checkpoints, Position
from tests.limits import HANG_S
from tests.ports import free_port
from tests.small_disk import fill, make_room
from trainer_adapters.checkpoint import ShardedCheckpoints

pytestmark = pytest.mark.engines


class Disk:
    """Filled and emptied by rank 0, between barriers."""

    def __init__(self, rank: int, directory: Path):
        self._rank = rank
        self._directory = directory

    def do(self, change, *arguments) -> None:
        dist.barrier()
        if self._rank == 0:
            change(self._directory, *arguments)
        dist.barrier()


def save_thrice(rank: int, port: int, directory: Path) -> None:
    """The second save finds no room for the shard of rank 1, which rank 0 hears of."""
    init = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=2)
    checkpoints = ShardedCheckpoints(timeout_s=HANG_S)
    disk = Disk(rank, directory)
    state = {f"tensor.{rank}": torch.full((10, 500_000)[rank : rank + 1], float(rank))}
    checkpoints.save(state, directory / "1").wait()
    disk.do(fill, 500_000)
    saving = checkpoints.save(state, directory / "2")
    with pytest.raises(OSError, match="could not be written: .*No space left") as error:
        saving.wait()
    assert error.value.errno == errno.ENOSPC and not (directory / "2").exists()
    disk.do(make_room)
    checkpoints.save(state, directory / "3").wait()
    checkpoints.load(state, directory / "3")
    checkpoints.close()
    dist.destroy_process_group()


def test_ranks_that_find_no_room_say_so_and_save_the_next_one(small_disk):
    torch.multiprocessing.spawn(save_thrice, (free_port(), small_disk), nprocs=2)


class Written(SaveHandle):
    """Writes so many bytes when it is waited for."""

    def __init__(self, directory: Path, size: int):
        self._file = directory / "shard"
        self._size = size

    def wait(self) -> None:
        self._file.parent.mkdir(parents=True)
        self._file.write_bytes(bytes(self._size))


def test_a_checkpoint_without_room_is_left_out_and_the_one_before_stays(small_disk, caplog):
    caplog.set_level(logging.WARNING)
    checkpoints = Checkpoints(small_disk)
    announced: list[CheckpointSaved] = []
    saver = CheckpointSaver(checkpoints, 1, announced.append, sync_streams=lambda: None)

    def save(version: int) -> None:
        saver.begin(Position(version, version), Written(checkpoints.worker(version), 2**20))
        saver.finish()

    save(1)
    fill(small_disk, leaving=2**19)
    save(2)
    assert checkpoints.complete_checkpoints() == [Position(1, 1)]
    assert not checkpoints.worker(2).parent.exists()
    (warning,) = caplog.records
    assert warning.getMessage().startswith("version 2 is not saved: there is no room")
    make_room(small_disk)
    save(3)
    assert [saved.version for saved in announced] == [1, 3]
    assert checkpoints.complete_checkpoints() == [Position(3, 3)]
