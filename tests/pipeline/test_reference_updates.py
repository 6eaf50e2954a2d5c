"""The weights of a renewal, kept in a file and sent to real reference servers."""

from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from contracts.trainer import TrainerWorker
from pipelinerl.errors import GaveUpError
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.training.checkpoints import Checkpoints, Position
from pipelinerl.training.membership.strikes import MOST_FAILURES
from pipelinerl.training.reference_updates import ReferenceUpdates
from tests.inference_adapters.failing_engine import ONCE, POISON
from tests.inference_adapters.servers import contract, serving, wait_ready
from tests.limits import HANG_S
from tests.pipeline.test_weight_publisher import change, scores
from tests.trainer_adapters.models import make_sequences
from tests.trainer_adapters.workers import started, train
from trainer_adapters.fsdp import FSDPTrainer

SCRIPTED = "inference_adapters.scripted"
FAILING = "tests.inference_adapters.failing_engine"
TRANSFORMERS = "inference_adapters.transformers"
EVERY = 2
SEQUENCES = [[5, 17, 40, 3, 88], [9, 9, 1]]


def updates(
    run: Path, worker: TrainerWorker, url: str, dtype: str = "float32"
) -> AbstractContextManager[ReferenceUpdates]:
    """Returns what the trainer of a run has."""
    quick = [f"weights.{name}_timeout_s={HANG_S:g}" for name in ("rendezvous", "bucket", "live")]
    config = compose_config(["reference=scripted", f"reference.renew_every={EVERY}", *quick])
    manifest = worker.weight_manifest(dtype)
    checkpoints = Checkpoints(run)
    return closing(ReferenceUpdates(config, url, None, manifest, checkpoints, "127.0.0.1", lambda: None))


def save(worker: TrainerWorker, run: Path, version: int) -> None:
    worker.save(Checkpoints(run).worker(version)).wait()
    Checkpoints(run).complete(Position(version, 0), keep=1)


def tend(reference: ReferenceUpdates, version: int) -> None:
    reference.check_soon()
    reference.tend(version)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_renewed_server_scores_as_one_that_was_started_on_the_export(tmp_path, dtype):
    model = make_tiny_model(tmp_path / "model")
    sequences = [s.token_ids.tolist() for s in make_sequences([17, 5, 40])]
    options = ("--dtype", dtype)
    export = tmp_path / "export"
    with started(FSDPTrainer(), model) as worker, serving(TRANSFORMERS, "--model", model, *options) as server:
        wait_ready(server.url)
        before = scores(server.url, sequences, 0.7)
        with updates(tmp_path, worker, server.url, dtype) as reference:
            train(worker, range(EVERY))
            worker.export(export)
            reference.keep(EVERY, worker.gather_weights())
            train(worker, range(1))
            tend(reference, EVERY)
        renewed = scores(server.url, sequences, 0.7)
    with serving(TRANSFORMERS, "--model", str(export), "--version", str(EVERY), *options) as server:
        wait_ready(server.url)
        assert renewed == scores(server.url, sequences, 0.7)
    assert renewed[0] == EVERY and renewed[1] != before[1]


def test_a_server_takes_the_asked_version_after_a_restart_and_an_older_one_from_another_trainer(
    tmp_path, worker
):
    scored = {}
    save(worker, tmp_path, 3)  # which needs version 2
    with serving(SCRIPTED) as first, updates(tmp_path, worker, first.url) as reference:
        for version in (2, 4):
            change(worker)
            reference.keep(version, worker.gather_weights())
            tend(reference, version)
            scored[version] = scores(first.url, SEQUENCES)
            assert scored[version][0] == version
        port = first.url.rpartition(":")[2]
        first.process.kill()
        first.process.wait()
        tend(reference, 4)  # nobody is there: training goes on
        with serving(SCRIPTED, "--port", port) as again:
            wait_ready(again.url)
            assert scores(again.url, SEQUENCES)[0] == 0
            tend(reference, 4)
            assert scores(again.url, SEQUENCES) == scored[4]
            with updates(tmp_path, worker, again.url) as resumed:
                tend(resumed, 2)
            assert scores(again.url, SEQUENCES) == scored[2]
    assert scored[2][1] != scored[4][1]


def test_a_server_that_serves_the_version_is_not_sent_it_again(tmp_path, worker):
    with serving(SCRIPTED) as server, updates(tmp_path, worker, server.url) as reference:
        wait_ready(server.url)
        tend(reference, 0)  # which is not even kept
        assert contract(server.url)["run"] is None


def test_an_update_that_fails_is_made_again(tmp_path, worker):
    with serving(FAILING) as server, updates(tmp_path, worker, server.url) as reference:
        wait_ready(server.url)
        reference.keep(ONCE, worker.gather_weights())
        tend(reference, ONCE)
        assert contract(server.url)["weights"]["state"] == "lost"
        tend(reference, ONCE)
        assert scores(server.url, SEQUENCES)[0] == ONCE


def test_updates_that_fail_time_after_time_end_the_run(tmp_path, worker):
    with serving(FAILING) as server, updates(tmp_path, worker, server.url) as reference:
        wait_ready(server.url)
        reference.keep(POISON, worker.gather_weights())
        for _ in range(MOST_FAILURES - 1):
            tend(reference, POISON)
        with pytest.raises(
            GaveUpError, match="cannot be renewed: .*poisoned; set reference.renew_every=null"
        ):
            tend(reference, POISON)


def test_a_server_that_refuses_the_weights_ends_the_run_at_once(tmp_path, worker):
    with (
        serving(FAILING, "--accepts", "float16") as server,
        updates(tmp_path, worker, server.url) as reference,
    ):
        wait_ready(server.url)
        reference.keep(2, worker.gather_weights())
        with pytest.raises(GaveUpError, match="422"):
            tend(reference, 2)


def test_only_what_checkpoints_need_is_kept(tmp_path, worker):
    checkpoints = Checkpoints(tmp_path)
    with updates(tmp_path, worker, "http://127.0.0.1:1") as reference:
        for version in (0, 2):
            reference.keep(version, worker.gather_weights())
        assert kept(checkpoints) == [2]
        save(worker, tmp_path, 3)
        for version in (4, 6):
            reference.keep(version, worker.gather_weights())
        assert kept(checkpoints) == [2, 6]
        assert reference.is_kept(2) and not reference.is_kept(4)
    checkpoints.reference(6).with_name(".00000008.pt.1.part").touch()
    checkpoints.discard_after(3)
    assert [file.name for file in checkpoints.reference(0).parent.iterdir()] == ["00000002.pt"]


def kept(checkpoints: Checkpoints) -> list[int]:
    return sorted(int(file.stem) for file in checkpoints.reference(0).parent.iterdir())
