"""The weight publisher against real servers: content, deaths, refusals, and servers that come back."""

import asyncio
import signal
from collections.abc import Mapping, Sequence

import aiohttp
import pytest
import torch

from contracts.inference import ScoreRequest
from contracts.trainer import OptimizerSpec, WorkerSpec
from pipelinerl.clients.server_control import ContractRefusalError
from pipelinerl.components import build_domain, needed_capabilities
from pipelinerl.config import RunConfig
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.training.membership.candidates import NoServersError
from pipelinerl.training.publishing.base import publish
from pipelinerl.training.publishing.group import GroupPublisher
from pipelinerl.training.ranks import Ranks
from tests.inference_adapters.failing_engine import ONCE, POISON
from tests.inference_adapters.servers import contract, serving, wait_ready
from tests.limits import HANG_S
from tests.pipeline.launched import Launcher, context_of
from tests.pipeline.runs import wait_for
from tests.ports import free_port
from trainer_adapters.scripted import ScriptedTrainer

FAILING = "tests.inference_adapters.failing_engine"
TOKENS = [5, 17, 40, 3, 88]


def config(*overrides: str) -> RunConfig:
    limits = [f"weights.{name}_timeout_s={HANG_S}" for name in ("rendezvous", "bucket", "live")]
    limits.append(f"world.server_start_timeout_s={HANG_S}")
    return compose_config(["inference=scripted", *limits, "weights.bucket_bytes=1024", *overrides])


def publisher_of(
    launcher: Launcher,
    worker: ScriptedTrainer,
    own_config: RunConfig,
    dtype: str = "float32",
    needs: Mapping[str, str] | None = None,
) -> GroupPublisher:
    return GroupPublisher(own_config, context_of(launcher, worker.weight_manifest(dtype), needs=needs or {}))


def publisher(
    worker: ScriptedTrainer, *urls: str, launcher: Launcher | None = None, settings: Sequence[str] = ()
) -> GroupPublisher:
    publisher = publisher_of(launcher or Launcher(*urls), worker, config(*settings))
    publisher.wait_for_servers()
    return publisher


def change(worker: ScriptedTrainer) -> None:
    with torch.no_grad():
        for weight in worker._weights.values():
            weight.add_(0.1)


def scores(url: str, sequences: list[list[int]], temperature: float = 1.0) -> tuple[int, list[list[float]]]:
    """Returns the version that a server holds, and its log-probabilities."""

    async def score() -> dict:
        request = ScoreRequest(sequences=sequences, temperature=temperature).wire()
        async with aiohttp.ClientSession() as session, session.post(f"{url}/score", json=request) as answer:
            return await answer.json()

    answer = asyncio.run(score())
    return answer["version"], answer["logprobs"]


def expected(worker: ScriptedTrainer) -> list[float]:
    token_ids = torch.tensor([TOKENS])
    before = worker._log_softmax(token_ids[:, :-1], torch.ones(1))
    return before.gather(-1, token_ids[:, 1:, None]).flatten().tolist()


def assert_serves(url: str, worker: ScriptedTrainer, version: int) -> None:
    live, (logprobs,) = scores(url, [TOKENS])
    assert live == version
    assert logprobs == pytest.approx(expected(worker), abs=1e-5)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("sampling.seeded=true", "sampling.seeded=true needs seeds: .* does not declare the capability seed"),
        (
            "domain=calculator",
            "the domain calculator needs tools .*: .* does not declare the capability tools",
        ),
    ],
)
def test_a_run_needs_servers_that_do_what_it_asks_for(worker, setting, says):
    own_config = config(setting)
    needs = needed_capabilities(own_config, build_domain(own_config))
    with serving(FAILING) as server:
        sender = publisher_of(Launcher(server.url), worker, own_config, needs=needs)
        sender.wait_for_servers()
        with pytest.raises(ValueError, match=says):
            publish(worker, Ranks(0, 1, HANG_S), sender, 0)
        sender.close()


def test_a_resumed_trainer_takes_servers_over_and_back_in_version(worker):
    """The one before was killed: its store and its group are gone, and nobody told the server."""
    with serving("inference_adapters.scripted") as server:
        before = publisher(worker, server.url)
        publish(worker, Ranks(0, 1, HANG_S), before, 9)
        change(worker)
        after = publisher(worker, server.url)
        assert publish(worker, Ranks(0, 1, HANG_S), after, 4).version == 4
        assert_serves(server.url, worker, 4)
        change(worker)
        publish(worker, Ranks(0, 1, HANG_S), after, 5)
        assert_serves(server.url, worker, 5)
        with pytest.raises(ContractRefusalError, match="other_run"):
            publish(worker, Ranks(0, 1, HANG_S), before, 10)
        after.close()
        before.close()


def test_a_dead_server_is_left_out_and_a_restarted_one_comes_back(worker):
    port = free_port()
    with serving("inference_adapters.scripted") as survivor:
        ranks = Ranks(0, 1, HANG_S)
        with serving("inference_adapters.scripted", "--port", str(port)) as mortal:
            sender = publisher(worker, survivor.url, mortal.url)
            publish(worker, ranks, sender, 0)
        assert publish(worker, ranks, sender, 1).servers == [survivor.url]
        change(worker)
        with serving("inference_adapters.scripted", "--port", str(port)) as reborn:
            wait_ready(reborn.url)
            assert publish(worker, ranks, sender, 2).servers == [survivor.url, reborn.url]
            assert_serves(reborn.url, worker, 2)
        sender.close()


def test_a_pinned_server_keeps_what_it_serves_until_it_is_released(worker):
    with serving("inference_adapters.scripted") as one, serving("inference_adapters.scripted") as pinned:
        sender, ranks = publisher(worker, one.url, pinned.url), Ranks(0, 1, HANG_S)
        publish(worker, ranks, sender, 0)
        before = scores(pinned.url, [TOKENS])
        sender.pin(pinned.url)
        for version in (1, 2):
            change(worker)
            assert publish(worker, ranks, sender, version).servers == [one.url]
            assert scores(pinned.url, [TOKENS]) == before
        sender.release(pinned.url)
        assert publish(worker, ranks, sender, 3).servers == [one.url, pinned.url]
        assert_serves(pinned.url, worker, 3)
        sender.close()


def test_a_pinned_server_is_published_to_when_no_other_answers(worker):
    with serving("inference_adapters.scripted") as pinned:
        with serving("inference_adapters.scripted") as mortal:
            sender, ranks = publisher(worker, mortal.url, pinned.url), Ranks(0, 1, HANG_S)
            sender.pin(pinned.url)
            assert publish(worker, ranks, sender, 0).servers == [mortal.url]
        assert publish(worker, ranks, sender, 1).servers == [pinned.url]
        assert_serves(pinned.url, worker, 1)
        sender.close()


def test_a_server_that_dies_in_the_rendezvous_takes_no_other_with_it(worker):
    with serving("inference_adapters.scripted") as survivor, serving("inference_adapters.scripted") as mortal:
        sender = publisher(worker, survivor.url, mortal.url)
        form = sender._weight_groups.form

        def form_without(infos, timeout_s):
            sender._weight_groups.form = form
            mortal.process.kill()
            mortal.process.wait()
            return form(infos, timeout_s=1)  # nobody comes

        sender._weight_groups.form = form_without
        assert publish(worker, Ranks(0, 1, HANG_S), sender, 0).servers == [survivor.url]
        assert_serves(survivor.url, worker, 0)
        sender.close()


def test_a_server_that_fails_to_apply_is_left_out(worker):
    with (
        serving("inference_adapters.scripted") as sound,
        serving(FAILING) as failing,
    ):
        sender, ranks = publisher(worker, sound.url, failing.url), Ranks(0, 1, HANG_S)
        assert len(publish(worker, ranks, sender, POISON - 1).servers) == 2
        assert publish(worker, ranks, sender, POISON).servers == [sound.url]
        assert len(publish(worker, ranks, sender, POISON + 1).servers) == 2
        sender.close()


def test_servers_that_all_lost_their_weights_get_them_again(worker):
    with serving(FAILING) as one, serving(FAILING) as other:
        sender, ranks = publisher(worker, one.url, other.url), Ranks(0, 1, HANG_S)
        assert publish(worker, ranks, sender, ONCE).servers == [one.url, other.url]
        assert_serves(one.url, worker, ONCE)
        assert_serves(other.url, worker, ONCE)
        sender.close()


def test_servers_that_lose_their_weights_every_time_are_an_error(worker):
    with serving(FAILING) as only:
        sender = publisher(worker, only.url, settings=["world.server_start_timeout_s=5"])
        with pytest.raises(NoServersError, match="every server failed, the last of them at http.*:"):
            publish(worker, Ranks(0, 1, HANG_S), sender, POISON)
        sender.close()


def test_a_server_that_is_not_well_is_left_out(worker):
    with serving("inference_adapters.scripted") as sound, serving(FAILING, "--unwell") as unwell:
        sender = publisher(worker, sound.url, unwell.url, settings=["world.server_grace_s=0.1"])
        assert publish(worker, Ranks(0, 1, HANG_S), sender, 0).servers == [sound.url]
        assert contract(unwell.url)["run"] is None
        sender.close()


def test_the_only_server_is_waited_for_while_it_loads(worker):
    with serving(FAILING, "--load-s", "1") as loading:
        sender = publisher_of(Launcher(loading.url), worker, config())
        assert publish(worker, Ranks(0, 1, HANG_S), sender, 0).servers == [loading.url]
        sender.close()


def test_a_server_that_hung_when_the_run_began_is_taken_over_when_it_answers(worker):
    with serving("inference_adapters.scripted") as sound, serving("inference_adapters.scripted") as hung:
        before = publisher(worker, sound.url, hung.url)
        publish(worker, Ranks(0, 1, HANG_S), before, 3)
        hung.process.send_signal(signal.SIGSTOP)
        after = publisher_of(Launcher(sound.url, hung.url), worker, config())
        assert publish(worker, Ranks(0, 1, HANG_S), after, 0).servers == [sound.url]
        hung.process.send_signal(signal.SIGCONT)
        version = 1
        while publish(worker, Ranks(0, 1, HANG_S), after, version).servers != [sound.url, hung.url]:
            version += 1
        assert_serves(hung.url, worker, version)
        after.close()
        before.close()


class OutOfMemoryTrainer(ScriptedTrainer):
    """Has no room for its third tensor when it gathers them."""

    def gather_weights(self):
        for index, weight in enumerate(super().gather_weights()):
            if index == 2:
                raise torch.OutOfMemoryError("the trainer has no room to gather")
            yield weight


def test_the_trainers_own_failure_in_a_gather_is_told_as_it_is():
    trainer = OutOfMemoryTrainer()
    trainer.init_worker(WorkerSpec(model_path="", optimizer=OptimizerSpec(lr=0.1), master_port=free_port()))
    with serving("inference_adapters.scripted") as server:
        sender = publisher(trainer, server.url, settings=["weights.bucket_bytes=64"])
        with pytest.raises(torch.OutOfMemoryError, match="no room to gather"):
            publish(trainer, Ranks(0, 1, HANG_S), sender, 0)
        wait_for(lambda: contract(server.url)["weights"]["state"] != "receiving")  # not for its silence
        assert contract(server.url)["group"] is None
        sender.close()
    trainer.close()


def test_a_server_that_dies_between_202_and_broadcast_does_not_stop_the_others(worker):
    with serving("inference_adapters.scripted") as survivor, serving("inference_adapters.scripted") as mortal:
        sender = publisher(worker, survivor.url, mortal.url)
        sender.open(0)
        mortal.process.kill()
        mortal.process.wait()
        weights = worker.gather_weights()
        sender.send(weights)
        assert sender.confirm(0) is None
        published = publish(worker, Ranks(0, 1, HANG_S), sender, 0)
        assert published.servers == [survivor.url]
        assert_serves(survivor.url, worker, 0)
        sender.close()


@pytest.mark.engines
def test_a_server_that_waits_its_time_out_in_a_broken_broadcast_is_waited_for(worker):
    quick_to_join = ["weights.rendezvous_timeout_s=1", "weights.bucket_timeout_s=7"]
    with serving("inference_adapters.scripted") as survivor, serving("inference_adapters.scripted") as mortal:
        sender = publisher(worker, survivor.url, mortal.url, settings=quick_to_join)
        sender.open(0)
        connection = sender._weight_groups.group._group  # one that does not close with the group
        mortal.process.kill()
        mortal.process.wait()
        sender.send(worker.gather_weights())
        assert publish(worker, Ranks(0, 1, HANG_S), sender, 0).servers == [survivor.url]
        del connection
        sender.close()


def test_the_last_server_gone_is_an_error(worker):
    """A replacement is asked for once."""
    with serving("inference_adapters.scripted") as only:
        launcher = Launcher(only.url)
        sender = publisher(worker, launcher=launcher, settings=["world.server_start_timeout_s=0.5"])
    with pytest.raises(NoServersError):
        publish(worker, Ranks(0, 1, HANG_S), sender, 0)
    assert len(launcher.condemned) == 1
    sender.close()


def test_weights_that_do_not_fit_are_an_error_not_an_endless_retry(worker):
    with serving("inference_adapters.scripted") as server:
        sender = publisher_of(Launcher(server.url), worker, config(), dtype="float64")
        sender.wait_for_servers()
        with pytest.raises(ContractRefusalError, match="dtype_mismatch"):
            sender.open(0)
        sender.close()
