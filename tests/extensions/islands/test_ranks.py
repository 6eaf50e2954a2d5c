"""Two islands of two ranks each, in four processes: all ranks of an island decide alike."""

import math
from datetime import timedelta
from errno import EISDIR
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from contracts.trainer import SaveHandle, WorkerSpec
from extensions.islands.membership import Meeting
from tests.extensions.islands.fleet import JoinedTrainer
from tests.extensions.islands.groups import DyingGroup, gloo
from tests.extensions.islands.workers import OPTIMIZER, TinyWorker
from tests.limits import HANG_S
from tests.ports import free_port
from tests.trainer_adapters.workers import run_ranks
from trainer_adapters.process_group import join_process_group

ISLANDS = 2
RANKS = 2


class RankedWorker(TinyWorker):
    """A TinyWorker whose ranks have half of the masters each."""

    def init_worker(self, spec: WorkerSpec) -> None:
        super().init_worker(spec)
        join_process_group(spec, "gloo")
        self.rank = spec.rank
        self.masters = self.masters[spec.rank :: spec.world_size]
        self.seed = 10 * self.seed + spec.rank
        self.reset_optimizer()
        self.adopt()

    def save(self, directory: Path) -> SaveHandle:
        return super().save(directory / str(self.rank))

    def load(self, directory: Path) -> None:
        super().load(directory / str(self.rank))

    def close(self) -> None:
        dist.destroy_process_group()


class StoreMembership:
    """All islands take part in each round. `dying` breaks off the next exchange of this rank."""

    def __init__(self, store: dist.Store, island: int, rank: int):
        self._store = store
        self._island = island
        self._rank = rank
        self._quorums = 0
        self.dying = False

    def quorum(self, round: int, lineage: str) -> Meeting:
        self._quorums += 1
        prefix = f"{self._rank}-{self._quorums}"
        group = gloo(prefix, self._island, ISLANDS, store=self._store)
        if self.dying:
            group = DyingGroup(group, 3)
            self.dying = False
        return Meeting(self._island, ISLANDS, round, group)

    def commit(self, ok: bool) -> bool:
        votes = torch.tensor(float(ok))
        dist.all_reduce(votes, dist.ReduceOp.MIN)
        return bool(votes)

    def leave(self) -> None:
        pass


class Process:
    """One rank of one island."""

    def __init__(self, process: int, ports: list[int], **options: object):
        self.island = process // RANKS
        self.rank = process % RANKS
        store = dist.TCPStore(
            "127.0.0.1", ports[-1], is_master=process == 0, timeout=timedelta(seconds=HANG_S)
        )
        self.membership = StoreMembership(store, self.island, self.rank)
        self.worker = RankedWorker(seed=self.island + 1)
        self.trainer = JoinedTrainer(
            inner=self.worker,
            every=2,
            island=f"island-{self.island}",
            membership=self.membership,
            outer_lr=0.7,
            outer_momentum=0.9,
            **options,
        )
        self.trainer.init_worker(
            WorkerSpec(
                model_path="",
                optimizer=OPTIMIZER,
                rank=self.rank,
                world_size=RANKS,
                master_port=ports[self.island],
                timeout_s=HANG_S,
            )
        )

    def run(self, updates: int = 2) -> dict[str, float]:
        return [self.trainer.step() for _ in range(updates)][-1].measures

    def end(self) -> None:
        self.trainer.close()


def rounds_and_checkpoints(process: int, _: int, ports: list[int], directory: Path) -> list:
    own = Process(process, ports)
    results = []
    results.append((own.run(), own.worker.vector()))
    own.membership.dying = process == 3  # one rank of one island
    results.append((own.run(), own.worker.vector()))
    own.run(1)
    if process == 1:
        own.worker.masters[0].detach()[0] = math.inf
    results.append((own.run(1), own.worker.vector()))
    own.run(1)
    results.append(save_and_load(own, directory / str(own.island)))
    own.end()
    return results


def save_and_load(own: Process, directory: Path) -> tuple[list[str], bool, int]:
    """Returns the files of a checkpoint, whether it continues bit for bit, and the error of another one."""
    own.trainer.save(directory / "whole").wait()
    files = sorted(path.name for path in (directory / "whole").iterdir())
    own.run(3)
    expected = own.worker.vector()
    own.trainer.load(directory / "whole")
    own.run(3)
    same = expected.equal(own.worker.vector())
    dist.barrier()
    if own.rank == 1:
        (directory / "whole" / "outer-1.safetensors").unlink()
        (directory / "blocked" / "outer-1.safetensors").mkdir(parents=True)
    dist.barrier()
    with pytest.raises(OSError) as error:
        own.trainer.save(directory / "blocked").wait()
    own.trainer.save(directory / "free").wait()
    with pytest.raises(ValueError, match="not that of every rank"):
        own.trainer.load(directory / "whole")
    return files, same, error.value.errno


def test_the_ranks_of_an_island_decide_save_and_load_alike_and_one_s_error_is_told_on_all(tmp_path):
    ports = [free_port() for _ in range(3)]
    results = run_ranks(ISLANDS * RANKS, rounds_and_checkpoints, tmp_path, ports, tmp_path)
    first, second, third, saved = zip(*results, strict=True)
    assert saved == ((["inner", "outer-0.safetensors", "outer-1.safetensors"], True, EISDIR),) * (
        ISLANDS * RANKS
    )
    for rank in range(RANKS):
        assert first[rank][1].equal(first[RANKS + rank][1])
        assert second[rank][1].equal(second[RANKS + rank][1])
        assert third[rank][1].equal(third[RANKS + rank][1])
        assert third[rank][1].isfinite().all()
    for island in range(ISLANDS):
        ranks = slice(RANKS * island, RANKS * (island + 1))
        for name in ("outer_drift_norm", "outer_cosine", "outer_bytes", "outer_alone", "outer_round"):
            assert len({measures[name] for measures, _ in first[ranks]}) == 1, name
            assert len({measures[name] for measures, _ in second[ranks]}) == 1, name
    assert first[0][0]["outer_drift_norm"] != first[2][0]["outer_drift_norm"]
    assert all(measures["outer_round"] == 2 and measures["outer_alone"] == 0 for measures, _ in second)
    assert second[0][0]["outer_bytes"] > 1.5 * first[0][0]["outer_bytes"]  # of two attempts
    norms = [measures["outer_drift_norm"] for measures, _ in third]
    assert not any(map(math.isfinite, norms[:RANKS])) and all(map(math.isfinite, norms[RANKS:]))
