"""Weights lent to servers on the same machine: what they serve after each update, and a dead server."""

import os
import signal

import torch

from pipelinerl.training.publishing.base import publish
from pipelinerl.training.publishing.group import GroupPublisher
from pipelinerl.training.ranks import Ranks
from tests.inference_adapters.servers import serving, wait_ready
from tests.limits import HANG_S
from tests.pipeline.launched import Launcher, context_of
from tests.pipeline.runs import assert_accounted, run_to_the_end
from tests.pipeline.test_weight_publisher import assert_serves, config
from trainer_adapters.scripted import ScriptedTrainer

UPDATES = int(os.environ.get("SOAK_UPDATES", "10"))


def redraw(worker: ScriptedTrainer, seed: int) -> None:
    """Gives the worker weights that no other version has."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in worker._weights.values():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=generator))


def test_each_update_is_served_and_a_dead_server_stops_no_other(worker):
    with serving("inference_adapters.scripted") as stays, serving("inference_adapters.scripted") as dies:
        launcher = Launcher(stays.url, dies.url)
        for server in (stays, dies):
            wait_ready(server.url)
        sender = GroupPublisher(config(), context_of(launcher, worker.weight_manifest("float32")), "ipc")
        sender.wait_for_servers()
        urls = [stays.url, dies.url]
        for version in range(UPDATES):
            if version == UPDATES // 2:
                dies.process.send_signal(signal.SIGKILL)
                launcher.leave(urls.pop())
            published = publish(worker, Ranks(0, 1, HANG_S), sender, version)
            assert published.servers == urls
            for url in urls:
                assert_serves(url, worker, version)
            redraw(worker, version)
        sender.close()


def test_a_run_with_lent_weights(tmp_path):
    run = tmp_path / "run"
    summary = run_to_the_end(run, "weights=ipc", "max_steps=3", "world.servers=2")
    assert summary["weight_updates"] == 4 and summary["logprob_gap_mean_abs"] < 1e-5
    assert_accounted(run)
