"""The weight publisher goes by what the launcher says of servers: who joins, who leaves, who comes back."""

import contextlib
import os
import signal

import pytest

from contracts.records import Evaluated, ServerCondemned, TrainingDone
from pipelinerl.training.membership.stranded import SILENT_CHECKS
from pipelinerl.training.publishing.base import publish
from pipelinerl.training.publishing.group import GroupPublisher
from tests.clock import Clock
from tests.inference_adapters.servers import Server, contract, serving, wait_ready
from tests.pipeline.launched import Launcher, context_of, moved_clock
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    records,
    resumptions_of,
    server_pids,
    start,
    wait_for,
    wait_for_record,
)
from tests.pipeline.test_weight_publisher import (
    FAILING,
    assert_serves,
    change,
    config,
    publisher,
    publisher_of,
)

SCRIPTED = "inference_adapters.scripted"
PATIENT = [f"weights.{name}_timeout_s=3600" for name in ("rendezvous", "bucket", "live")]


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """Returns the clock of the choice of servers."""
    return moved_clock(monkeypatch)


def serving_several(stack: contextlib.ExitStack, count: int) -> list[Server]:
    servers = [stack.enter_context(serving(SCRIPTED)) for _ in range(count)]
    for server in servers:
        wait_ready(server.url)
    return servers


def replacing(launcher: Launcher, worker, spare: list[str], *settings: str) -> GroupPublisher:
    """Returns a publisher for a launcher that replaces a condemned server by the last of the spare ones."""

    def replace(record: ServerCondemned) -> None:
        launcher.condemned.append(record)
        launcher.leave(record.url, "condemned")
        launcher.join(spare.pop(), name="server-0")

    manifest = worker.weight_manifest("float32")
    return GroupPublisher(config(*settings), context_of(launcher, manifest, record=replace))


def test_those_that_join_are_taken_into_one_new_epoch(worker, ranks):
    with contextlib.ExitStack() as stack:
        first, *others = (server.url for server in serving_several(stack, 3))
        launcher = Launcher(first)
        sender = publisher(worker, launcher=launcher)
        assert publish(worker, ranks, sender, 0).servers == [first]
        launcher.join(*others)
        change(worker)
        assert publish(worker, ranks, sender, 1).servers == [first, *others]
        assert contract(first)["group"]["epoch"] == 2
        for url in (first, *others):
            assert_serves(url, worker, 1)
        sender.close()


def test_one_that_left_is_not_asked_although_it_answers_and_comes_back_as_another(worker, ranks):
    with contextlib.ExitStack() as stack:
        stays, leaves = (server.url for server in serving_several(stack, 2))
        launcher = Launcher(stays, leaves)
        sender = publisher(worker, launcher=launcher)
        publish(worker, ranks, sender, 0)
        launcher.leave(leaves)
        assert publish(worker, ranks, sender, 1).servers == [stays]
        assert contract(leaves)["weights"]["version"] == 0
        launcher.join(leaves, name="server-1")
        assert publish(worker, ranks, sender, 2).servers == [stays, leaves]
        assert contract(leaves)["group"]["epoch"] == 3
        sender.close()


def test_a_silent_server_that_leaves_in_a_broadcast_is_not_waited_for(worker, ranks):
    """It is one of three: the others may wait for it, too. Nobody is blamed."""
    with contextlib.ExitStack() as stack:
        one, silent, other = serving_several(stack, 3)
        launcher = Launcher(one.url, silent.url, other.url)
        sender = publisher(worker, launcher=launcher, settings=PATIENT)
        publish(worker, ranks, sender, 0)
        sender.open(1)
        silent.process.send_signal(signal.SIGSTOP)
        launcher.leave(silent.url)
        sender.send(worker.gather_weights())
        published = sender.confirm(1) or publish(worker, ranks, sender, 1)
        assert published.servers == [one.url, other.url]
        assert_serves(other.url, worker, 1)
        assert not sender.strikes.troubled
        silent.process.send_signal(signal.SIGCONT)
        sender.close()


def test_a_silent_server_that_leaves_in_the_rendezvous_is_not_waited_for(worker, ranks):
    with contextlib.ExitStack() as stack:
        one, silent, other = serving_several(stack, 3)
        launcher = Launcher(one.url, silent.url, other.url)
        sender = publisher(worker, launcher=launcher, settings=PATIENT)
        form = sender._weight_groups.form

        def form_without(infos, timeout_s):
            silent.process.send_signal(signal.SIGSTOP)
            launcher.leave(silent.url)
            sender._weight_groups.form = form
            return form(infos, timeout_s)

        sender._weight_groups.form = form_without
        assert publish(worker, ranks, sender, 0).servers == [one.url, other.url]
        silent.process.send_signal(signal.SIGCONT)
        sender.close()


def test_one_that_falls_silent_for_good_is_to_be_replaced(worker, ranks, clock: Clock):
    with contextlib.ExitStack() as stack:
        healthy, silent = serving_several(stack, 2)
        launcher = Launcher(healthy.url, silent.url)
        sender = publisher(worker, launcher=launcher, settings=["world.server_start_timeout_s=2"])
        assert publish(worker, ranks, sender, 0).servers == [healthy.url, silent.url]
        silent.process.send_signal(signal.SIGSTOP)
        version = 1
        while not launcher.condemned and version < 40:
            assert publish(worker, ranks, sender, version).servers == [healthy.url]
            version += 1
            clock.now += 1.0
        silent.process.send_signal(signal.SIGCONT)
        assert [(said.joining, said.replaceable) for said in launcher.condemned] == [(2, True)]
        assert "not ready within server_start_timeout_s=2 s" in launcher.condemned[0].why
        assert publish(worker, ranks, sender, version).servers == [healthy.url]
        sender.close()


def test_the_only_one_that_falls_silent_is_replaced(worker, ranks, clock: Clock):
    with serving(SCRIPTED) as silent, serving(SCRIPTED) as sound:
        launcher = Launcher(silent.url)
        sender = replacing(launcher, worker, [sound.url], "world.server_start_timeout_s=2")
        assert publish(worker, ranks, sender, 0).servers == [silent.url]
        silent.process.send_signal(signal.SIGSTOP)
        assert publish(worker, ranks, sender, 1).servers == [sound.url]
        silent.process.send_signal(signal.SIGCONT)
        assert [record.url for record in launcher.condemned] == [silent.url]
        sender.close()


def test_one_that_was_never_asked_in_time_is_asked_before_it_is_condemned(worker, ranks, clock: Clock):
    """As after a step that took longer than a server may take to start."""
    with contextlib.ExitStack() as stack:
        healthy, newcomer = serving_several(stack, 2)
        launcher = Launcher(healthy.url)
        sender = publisher(worker, launcher=launcher, settings=["world.server_start_timeout_s=0.1"])
        publish(worker, ranks, sender, 0)
        launcher.join(newcomer.url)
        newcomer.process.send_signal(signal.SIGSTOP)
        sender.servers.refresh()
        assert publish(worker, ranks, sender, 1).servers == [healthy.url]
        clock.now += 1.0
        newcomer.process.send_signal(signal.SIGCONT)
        published = publish(worker, ranks, sender, 2)
        assert launcher.condemned == []
        assert published.servers == [healthy.url, newcomer.url]
        sender.close()


def test_a_version_whose_servers_hang_is_wanted_by_one_that_is_ready(worker, ranks):
    with contextlib.ExitStack() as stack:
        hangs, ready = serving_several(stack, 2)
        launcher = Launcher(hangs.url)
        sender = publisher(worker, launcher=launcher)
        publish(worker, ranks, sender, 0)
        launcher.join(ready.url)
        assert not any(sender.is_stranded() for _ in range(SILENT_CHECKS + 1))
        hangs.process.send_signal(signal.SIGSTOP)
        assert [sender.is_stranded() for _ in range(SILENT_CHECKS)] == [False] * (SILENT_CHECKS - 1) + [True]
        assert publish(worker, ranks, sender, 0).servers == [ready.url]
        hangs.process.send_signal(signal.SIGCONT)
        sender.close()


def test_a_version_whose_servers_have_all_left_is_published_again_to_the_next(worker, ranks):
    with serving(SCRIPTED) as before, serving(FAILING, "--load-s", "1") as after:
        launcher = Launcher(before.url)
        sender = publisher(worker, launcher=launcher)
        publish(worker, ranks, sender, 3)
        launcher.join(after.url)
        wait_ready(after.url)
        assert not sender.is_stranded()
        launcher.leave(before.url)
        assert sender.is_stranded()
        assert publish(worker, ranks, sender, 3).servers == [after.url]
        assert_serves(after.url, worker, 3)
        assert not sender.is_stranded()
        launcher.leave(after.url)
        assert not sender.is_stranded()  # there is none yet
        sender.close()


def test_a_server_that_fails_every_update_is_condemned_and_replaced(worker, ranks):
    with serving(SCRIPTED) as sound, serving(FAILING, "--fails-in-bucket", "0") as failing:
        launcher = Launcher(failing.url)
        sender = replacing(launcher, worker, [sound.url])
        assert publish(worker, ranks, sender, 0).servers == [sound.url]
        assert [(c.url, c.replaceable) for c in launcher.condemned] == [(failing.url, True)]
        assert "no room for the bucket" in launcher.condemned[0].why
        sender.close()


def test_a_server_that_refuses_for_good_is_condemned_without_a_replacement(worker, ranks):
    with serving(SCRIPTED) as sound, serving(FAILING, "--accepts", "float16") as odd:
        launcher = Launcher(sound.url, odd.url)
        sender = publisher_of(launcher, worker, config())
        sender.wait_for_servers()
        assert publish(worker, ranks, sender, 0).servers == [sound.url]
        assert [(c.url, c.replaceable) for c in launcher.condemned] == [(odd.url, False)]
        sender.close()


# --- whole runs -----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_run_that_loses_its_only_server_in_the_last_evaluation_begins_it_again(tmp_path):
    run = tmp_path / "run"
    slow = ("sampling.max_tokens=16", "+inference.arguments.token-delay-s=0.05", "eval.problems=16")
    launcher = start(run, *slow, "max_steps=1", "batch_size=8", "eval.attempts=4")
    wait_for_record(run, "trainer_events", TrainingDone)
    wait_for(lambda: records(run, "eval_rollouts")[-1].rollout_id.startswith("eval-1-"))
    (server,) = server_pids(run)
    os.kill(server, signal.SIGKILL)
    status, err = finish(launcher)
    assert status == 0 and "no server is left that holds the last version" in err, err
    assert len(resumptions_of(run)) == 1
    evaluations = [r for r in records(run, "actor_events") if isinstance(r, Evaluated)]
    assert [(e.version, e.failed) for e in evaluations] == [(0, 0), (1, 0)]
    assert_accounted(run)
