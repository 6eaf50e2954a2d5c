"""Servers that hang, refuse connections, or die again and again hold up neither the start nor every step."""

import contextlib
import itertools
import signal
import socket
from collections.abc import Iterator

from pipelinerl.training.membership.candidates import POLL_S, REFUSALS
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
        assert len(sender.candidates.choose([])) == 2
        sender.close()


def test_the_only_server_is_replaced_when_its_port_is_closed_and_not_while_it_starts(worker, monkeypatch):
    with serving("inference_adapters.scripted") as only, serving("inference_adapters.scripted") as other:
        wait_ready(only.url)
        wait_ready(other.url)
        starting = f"http://127.0.0.1:{free_port()}"
        launcher = Launcher(only.url)

        def replace() -> None:
            if launcher.condemned and starting not in launcher._names:
                launcher.join(starting)
                sleeps.extend([lambda: None] * 2 * REFUSALS + [lambda: launcher.join(other.url)])
            sleeps.pop(0)() if sleeps else None

        sleeps: list = []
        clock = moved_clock(monkeypatch, itertools.repeat(replace))
        sender = publisher_of(launcher, worker, config(*SETTINGS))
        sender.wait_for_servers()
        only.process.kill()
        only.process.wait()
        began = clock.now
        (chosen,) = sender.candidates.choose([])
        sender.close()
        (condemned,) = launcher.condemned
        assert (chosen.url, condemned.url, condemned.replaceable) == (other.url, only.url, True)
        assert condemned.why == f"its port is closed: it refused {REFUSALS} connections in a row"
        assert clock.now - began <= (3 * REFUSALS + 3) * POLL_S
