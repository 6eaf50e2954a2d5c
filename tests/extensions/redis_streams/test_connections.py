"""Connections that break, and servers that come back: they are killed for real, and nothing waits for a time
to pass."""

import contextlib
import socket
import threading

import pytest
import redis

from extensions.redis_streams.connection import Connection
from extensions.redis_streams.streams import RedisStreams
from pipelinerl.streams import StreamBusyError, StreamError
from tests.extensions.redis_streams.records import key
from tests.ports import free_port
from tests.streams.records import event, there

pytestmark = pytest.mark.engines


class LosesAnAnswer:
    """Between a client and the server: passes on everything, but breaks the connection in place of the next
    answer when `armed`, after the server has given it."""

    def __init__(self, url: str):
        self._server = redis.connection.parse_url(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"redis://:{self._server['password']}@127.0.0.1:{port}/0"
        self.armed, self.lost = False, 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection((self._server["host"], self._server["port"]))
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(*ends, ends[0] is server), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self.armed:
                    self.armed, self.lost = False, self.lost + 1
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_an_append_that_arrived_though_its_answer_was_lost_is_not_repeated(streams, redis_url, tmp_path):
    proxy = LosesAnAnswer(redis_url)
    writer = RedisStreams(proxy.url, tmp_path.name).writer("events")
    for number in range(5):
        proxy.armed = True
        assert writer.append(event(number)) == writer.end
        assert proxy.lost == number + 1
    assert there(streams) == [0, 1, 2, 3, 4]
    assert writer.last() == event(4)


def test_the_server_restarts_and_nothing_is_lost_or_doubled(server):
    down, seen = threading.Event(), []
    with server:
        streams = RedisStreams(server.url, "run")
        writer = streams.writer("events")
        writer.append(event(0))
        reading = streams.reader("events").read()
        assert next(reading).record == event(0)
        reader = threading.Thread(target=lambda: seen.extend(next(reading).record for _ in range(2)))
        reader.start()  # waits on the server that ends

    def append():
        down.set()
        writer.append(event(1))  # begins while there is no server
        writer.append(event(2))

    appending = threading.Thread(target=append)
    appending.start()
    down.wait()
    with server:
        appending.join()
        reader.join()
        assert seen == [event(1), event(2)]
        assert there(streams) == [0, 1, 2] and writer.last() == event(2)
        with pytest.raises(StreamBusyError):
            streams.writer("events")


def test_a_server_that_came_back_without_its_last_records_is_found_out(streams, admin, tmp_path):
    writer = streams.writer("events")
    ends = [writer.append(event(number)) for number in range(3)]
    admin.hset(key(tmp_path, "writer"), "end", ends[1])
    with pytest.raises(
        StreamError, match=f"lost what stream events held: its end is {ends[1]}, .* {ends[2]}"
    ):
        writer.append(event(3))
    admin.delete(key(tmp_path, "writer"))
    with pytest.raises(StreamBusyError, match="the server knows no writer of it"):
        writer.append(event(3))


def test_a_server_that_does_not_answer_is_one_line_without_the_password():
    with pytest.raises(StreamError, match=r"no answer from .* redis://127.0.0.1:\d+/0 within 0.2 s") as error:
        Connection(f"redis://:secret@127.0.0.1:{free_port()}/0", "test").ping(within_s=0.2)
    assert "secret" not in str(error.value) and "\n" not in str(error.value)


class Loads:
    """Reads its data for as long as it is asked so many times, and is ready then."""

    def __init__(self, times: int):
        self._left = times
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0?protocol=2"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with client, client.makefile("rb") as asked:
                while line := asked.readline():
                    words = [asked.read(int(asked.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]
                    client.sendall(self._answer(words[0]))

    def _answer(self, command: bytes) -> bytes:
        if command != b"PING":
            return b"+OK\r\n"
        self._left -= 1
        return b"+PONG\r\n" if self._left < 0 else b"-LOADING Redis is loading the dataset in memory\r\n"


def test_a_server_that_reads_its_data_is_waited_for_beyond_the_time_for_one_that_is_away():
    Connection(Loads(20).url, "test").ping(within_s=0.1)
    with pytest.raises(StreamError, match="no answer from .* loading"):
        Connection(Loads(20).url, "test").ping(within_s=0)


def test_a_server_says_what_it_does():
    loading = Connection(Loads(1).url, "test")
    assert [loading.state(), loading.state()] == ["loading", "ready"]
    assert Connection(f"redis://127.0.0.1:{free_port()}/0", "test").state() == "silent"


@pytest.mark.parametrize("url", ["http://h", "redis://", "redis://h:port", "redis://h/0?nonsense=1"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(StreamError, match="URL of .* Redis server"):
        Connection(url, "test")
