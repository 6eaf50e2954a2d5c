"""The trainer ranks' control group, in processes of their own: how long may rank 0 wait?"""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from contracts.conformance.processes import fork_server
from contracts.records import Pinned
from pipelinerl.training.ranks import Ranks
from tests.limits import HANG_S
from tests.pipeline.runs import wait_for
from tests.ports import free_port


class Beats:
    """Signs that a rank is told rank 0 is alive, counted in a file."""

    def __init__(self, path: Path):
        self._path = path

    def __call__(self) -> None:
        with self._path.open("a") as file:
            file.write("x")

    @property
    def count(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def wait_for_signs(self) -> None:
        """Waits until another rank has been told several times that rank 0 is alive."""
        before = self.count
        wait_for(lambda: self.count >= before + 4)


def one_rank(rank: int, port: int, results: Path) -> None:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    beats = Beats(results / "beats")
    ranks = Ranks(rank, 2, HANG_S, heartbeat_timeout_s=0.2, beat=beats if rank else lambda: None)

    def after_signs(made: list[Pinned]) -> list[Pinned]:
        beats.wait_for_signs()
        return made

    slow = ranks.scatter(lambda: after_signs([Pinned(server="slow"), Pinned(server="slower" * 9)]))
    quick = ranks.scatter(lambda: [Pinned(server="quicker" * 9), Pinned(server="quick")])
    decisions = [ranks.agree(lambda: True), ranks.agree(lambda: False)]
    ranks.on_rank_0(beats).wait_for_signs()
    (results / f"rank-{rank}").write_text(f"{slow.server} {quick.server} {decisions}")
    if rank == 0:
        wait_for((results / "silence").exists)  # silent, and alive
        return
    group = ranks._group
    assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=HANG_S)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.5), group)
    try:
        ranks.agree(lambda: False)
    except RuntimeError as error:
        written(results / "silence", str(error))


def written(path: Path, text: str) -> None:
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def test_ranks_wait_for_data_as_long_as_rank_0_is_alive_and_not_for_a_silent_one(tmp_path):
    port = free_port()
    processes = [fork_server().Process(target=one_rank, args=(rank, port, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert (tmp_path / "rank-0").read_text() == f"slow {'quicker' * 9} [True, False]"
    assert (tmp_path / "rank-1").read_text() == f"{'slower' * 9} quick [True, False]"
    assert "imed out" in (tmp_path / "silence").read_text()
