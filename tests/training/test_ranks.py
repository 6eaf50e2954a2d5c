"""The trainer ranks' control group, in processes of their own: how long may rank 0 wait?"""

import time
from pathlib import Path

import pytest
import torch.distributed as dist

from contracts.conformance.processes import fork_server
from contracts.records import Pinned, WeightsPublished
from pipelinerl.training.ranks import Ranks
from tests.pipeline.runs import records, run_to_the_end, wait_for
from tests.ports import free_port

TIMEOUT_S = 0.5


def one_rank(rank: int, port: int, results: Path) -> None:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    ranks = Ranks(rank, 2, TIMEOUT_S)

    def after(seconds: float, records: list[Pinned]) -> list[Pinned]:
        time.sleep(seconds)
        return records

    slow = ranks.scatter(lambda: after(3 * TIMEOUT_S, [Pinned(server="slow"), Pinned(server="slower" * 9)]))
    quick = ranks.scatter(lambda: [Pinned(server="quicker" * 9), Pinned(server="quick")])
    decisions = [ranks.agree(lambda: True), ranks.agree(lambda: False)]
    ranks.wait_for_rank_0(lambda: time.sleep(2 * TIMEOUT_S))
    found = f"{slow.server} {quick.server} {decisions}"
    if rank == 0 and ranks.agree(lambda: False) is False:
        (results / "rank-0").write_text(found)
        time.sleep(60)  # hangs, alone
    ranks.agree(lambda: False)
    (results / "rank-1").write_text(found)
    try:
        ranks.agree(lambda: False)
    except RuntimeError as error:
        (results / "silent").write_text(str(error))
        (results / "silent").rename(results / "silence")


def test_ranks_wait_for_data_as_long_as_rank_0_is_alive_and_not_for_a_silent_one(tmp_path):
    port = free_port()
    processes = [fork_server().Process(target=one_rank, args=(rank, port, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    wait_for((tmp_path / "silence").exists, within_s=30)
    for process in processes:
        process.kill()
        process.join()
    assert (tmp_path / "rank-0").read_text() == f"slow {'quicker' * 9} [True, False]"
    assert (tmp_path / "rank-1").read_text() == f"{'slower' * 9} quick [True, False]"
    assert "imed out" in (tmp_path / "silence").read_text()


@pytest.mark.engines  # for its time
def test_a_run_whose_rows_come_more_slowly_than_ranks_may_be_silent_goes_on(tmp_path):
    slow = ("+inference.arguments.token_delay_s=0.8", "sampling.max_tokens=4", "eval.problems=2")
    settings = ("batch_size=8", "max_steps=1", "world.trainer_ranks=2", "world.rank_timeout_s=2", *slow)
    summary = run_to_the_end(tmp_path / "run", *settings)
    assert summary["logprob_gap_max_abs"] < 1e-5
    published = [r for r in records(tmp_path / "run", "trainer_events") if isinstance(r, WeightsPublished)]
    assert [r.version for r in published] == [0, 1]
