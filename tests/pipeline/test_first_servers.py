"""Servers that hang, or die again and again, hold up neither the start of a run nor every step of it."""

import contextlib
import itertools
import signal
import socket
from collections.abc import Iterator

from pipelinerl.training.candidates import POLL_S
from tests.clock import Clock
from tests.inference_adapters.servers import serving, wait_ready
from tests.pipeline.launched import Launcher, moved_clock
from tests.pipeline.test_weight_publisher import config, publisher_of
from tests.ports import free_port

GRACE_S = 1.0
SETTINGS = [f"world.server_grace_s={GRACE_S}", "world.server_start_timeout_s=600"]


@contextlib.contextmanager
def hanging() -> Iterator[str]:
    """Yields the URL of a server that takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def seconds_waited(worker, launcher: Launcher, clock: Clock) -> float:
    sender = publisher_of(launcher, worker, config(*SETTINGS))
    began = clock.now
    sender.wait_for_servers()
    sender.close()
    return clock.now - began


def test_a_server_that_hangs_while_it_loads_is_waited_for_as_long_as_the_grace(worker, caplog, monkeypatch):
    with serving("inference_adapters.scripted") as sound, hanging() as silent:
        wait_ready(sound.url)
        waited_s = seconds_waited(worker, Launcher(sound.url, silent), moved_clock(monkeypatch))
        assert GRACE_S <= waited_s <= GRACE_S + 2 * POLL_S
        assert f"begins without {silent}" in caplog.text


def test_a_server_that_dies_again_and_again_is_not_waited_for_longer(worker, monkeypatch):
    """Each of its deaths is news of the launcher, after which servers have time again."""
    with serving("inference_adapters.scripted") as sound:
        wait_ready(sound.url)
        launcher = Launcher(sound.url)

        def die_again() -> None:
            url = f"http://127.0.0.1:{free_port()}"
            launcher.join(url, name="server-1")
            if len(deaths) % 2:
                launcher.leave(url, "ended")
            deaths.append(url)

        deaths: list[str] = []
        die_again()
        waited_s = seconds_waited(worker, launcher, moved_clock(monkeypatch, itertools.repeat(die_again)))
        assert deaths and waited_s <= GRACE_S + 2 * POLL_S


def test_one_that_is_ready_within_the_grace_is_waited_for(worker, monkeypatch):
    with serving("inference_adapters.scripted") as sound, serving("inference_adapters.scripted") as late:
        wait_ready(sound.url)
        wait_ready(late.url)
        late.process.send_signal(signal.SIGSTOP)
        moved_clock(monkeypatch, [lambda: late.process.send_signal(signal.SIGCONT)])
        sender = publisher_of(Launcher(sound.url, late.url), worker, config(*SETTINGS))
        sender.wait_for_servers()
        assert len(sender._candidates.choose([])) == 2
        sender.close()
