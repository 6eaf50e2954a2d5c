"""What the redis backend adds to what every backend promises: broken connections, ownership, its server.

Servers are real, connections are killed for real, and nothing waits for a time to pass.
"""

import contextlib
import itertools
import multiprocessing
import os
import queue
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading

import pytest
import redis

import launch
from contracts.records import Started, encode
from pipelinerl.addresses import free_port
from pipelinerl.compose import compose_config
from pipelinerl.config import save_config
from pipelinerl.jobs import ROOT, plan_jobs
from pipelinerl.process import REDIS_VARIABLE
from pipelinerl.run_streams import open_streams, place_streams, recorded_streams
from pipelinerl.streams import StreamBusy, StreamCorrupt, StreamError, StreamTrimmed
from pipelinerl.streams.redis import RedisStreams
from pipelinerl.streams.redis_connection import Connection
from pipelinerl.streams.redis_server import RedisServer, served

pytestmark = pytest.mark.engines

processes = multiprocessing.get_context("spawn")


def event(number: int) -> Started:
    return Started(group_id=number, rollouts=8, draw=number, problem=0)


def numbers(entries) -> list[int]:
    return [entry.record.group_id for entry in entries]


def there(streams, name="events", offset=0) -> list[int]:
    return numbers(streams.reader(name).read(offset, timeout_s=0))


@pytest.fixture
def streams(redis_url, tmp_path) -> RedisStreams:
    return RedisStreams(redis_url, tmp_path.name)


@pytest.fixture
def admin(redis_url) -> redis.Redis:
    """Another client of the server, which sees and may do everything."""
    return redis.Redis.from_url(redis_url)


def kill_connections(admin: redis.Redis, part_of_name: str) -> int:
    found = [client["id"] for client in admin.client_list() if part_of_name in client["name"]]
    return sum(admin.client_kill_filter(_id=number) for number in found)


def key(tmp_path, kind: str, name: str = "events") -> str:
    return f"pipelinerl:{tmp_path.name}:{kind}:{name}"


# --- ownership --------------------------------------------------------------------------------


def test_a_writer_that_was_replaced_while_its_connection_was_broken_writes_nothing(streams, admin):
    replaced = streams.writer("events")
    replaced.append(event(0))
    assert kill_connections(admin, f":{os.getpid()}:events:") == 1
    writer = streams.writer("events")
    for attempt in (lambda: replaced.append(event(9)), lambda: replaced.trim(10**9)):
        with pytest.raises(
            StreamBusy, match=f"events is no longer .* process {os.getpid()} on .* taken it over"
        ):
            attempt()
    writer.append(event(1))
    assert there(streams) == [0, 1]


def test_a_writer_whose_connection_broke_is_the_writer_again_at_its_next_append(streams, admin):
    writer = streams.writer("events")
    kill_connections(admin, f":{os.getpid()}:events:")
    writer.append(event(0))
    with pytest.raises(StreamBusy, match=f"events is being written to by process {os.getpid()} on"):
        streams.writer("events")


def hold(url, run, connection):
    writer = RedisStreams(url, run).writer("events")
    writer.append(event(0))
    connection.send("writing")
    signal.pause()


def test_a_stream_is_free_at_once_when_its_writer_is_killed(streams, redis_url, tmp_path):
    for _ in range(3):
        ours, theirs = processes.Pipe()
        holder = processes.Process(target=hold, args=(redis_url, tmp_path.name, theirs), daemon=True)
        holder.start()
        assert ours.poll(20) and ours.recv() == "writing"
        with pytest.raises(StreamBusy, match=f"process {holder.pid} on {socket.gethostname()}"):
            streams.writer("events")
        os.kill(holder.pid, signal.SIGKILL)
        holder.join()
        streams.writer("events").close()


def test_runs_on_one_server_do_not_meet(streams, redis_url, tmp_path):
    other = RedisStreams(redis_url, f"{tmp_path.name}-other")
    ours, theirs = streams.writer("events"), other.writer("events")
    ours.append(event(0))
    theirs.append(event(1))
    other.writer("rows")
    assert there(streams) == [0] and there(other) == [1]
    assert streams.names() == ["events"] and other.names() == ["events", "rows"]


# --- broken connections -----------------------------------------------------------------------


def test_killed_connections_lose_and_double_nothing(streams, redis_url, tmp_path, admin):
    writer, count, seen = streams.writer("events"), 3000, []
    due: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whether another time

    def write():
        try:
            for number in range(count):
                writer.append(event(number))
                if number % 100 == 0:
                    due.put(True)
        finally:
            due.put(False)

    def read():
        reader = RedisStreams(redis_url, tmp_path.name).reader("events")
        seen.extend(numbers(itertools.islice(reader.read(timeout_s=20), count)))

    threads = [threading.Thread(target=work) for work in (write, read)]
    for thread in threads:
        thread.start()
    killed = dict.fromkeys(("events", "reader"), 0)
    while due.get():
        for name in killed:
            killed[name] += kill_connections(admin, f":{os.getpid()}:{name}")
    for thread in threads:
        thread.join()
    assert seen == list(range(count))
    assert min(killed.values()) >= 10, killed


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


@pytest.fixture
def server(tmp_path) -> RedisServer:
    return RedisServer(tmp_path / "redis")


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
    assert down.wait(20)
    with server:
        appending.join(20)
        reader.join(20)
        assert seen == [event(1), event(2)]
        assert there(streams) == [0, 1, 2] and writer.last() == event(2)
        with pytest.raises(StreamBusy):
            streams.writer("events")


def test_a_server_that_came_back_without_its_last_records_is_found_out(streams, admin, tmp_path):
    writer = streams.writer("events")
    ends = [writer.append(event(number)) for number in range(3)]
    admin.hset(key(tmp_path, "writer"), "end", ends[1])
    with pytest.raises(
        StreamError, match=f"lost what stream events held: its end is {ends[1]}, .* {ends[2]}"
    ):
        writer.append(event(3))
    with pytest.raises(StreamError, match=f"offset {ends[2]} lies beyond the end"):
        there(streams, offset=ends[2])
    admin.delete(key(tmp_path, "writer"))
    with pytest.raises(StreamBusy, match="the server knows no writer of it"):
        writer.append(event(3))


def test_a_server_that_does_not_answer_is_one_line_without_the_password():
    with pytest.raises(StreamError, match=r"no answer from .* redis://127.0.0.1:\d+/0 within 0.2 s") as error:
        Connection(f"redis://:secret@127.0.0.1:{free_port()}/0", "test").ping(within_s=0.2)
    assert "secret" not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("url", ["http://h", "redis://", "redis://h:port", "redis://h/0?nonsense=1"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(StreamError, match="URL of .* Redis server"):
        Connection(url, "test")


# --- reading ----------------------------------------------------------------------------------


def test_a_waiting_reader_blocks_and_does_not_poll(streams, admin):
    streams.writer("events").append(event(0))
    admin.config_resetstat()
    assert numbers(streams.reader("events").read(timeout_s=1.0)) == [0]
    assert admin.info("commandstats")["cmdstat_xread"]["calls"] <= 4


def test_what_retention_let_go_of_is_an_error_that_names_where_it_begins(streams, admin, tmp_path):
    writer = streams.writer("events")
    offsets = [0] + [writer.append(event(number)) for number in range(100)]
    late = streams.reader("events").read(timeout_s=0)
    assert next(late).record == event(0)
    writer.trim(offsets[60])
    assert streams.reader("events").first_offset() == offsets[60]
    with pytest.raises(StreamTrimmed, match=f"events is trimmed: it begins at {offsets[60]}, not at 0"):
        there(streams)
    with pytest.raises(StreamTrimmed):
        list(late)
    admin.xdel(key(tmp_path, "stream"), f"{offsets[71]}-0")
    with pytest.raises(StreamTrimmed, match=f"begins at {offsets[71]}, not at {offsets[70]}"):
        there(streams, offset=offsets[60])


def test_what_is_no_record_is_corrupt(streams, admin, tmp_path):
    writer = streams.writer("events")
    end = writer.append(event(0))
    with pytest.raises(StreamCorrupt, match=f"no record that begins at {end - 1}"):
        there(streams, offset=end - 1)
    admin.xadd(key(tmp_path, "stream"), {"record": b"\x81\xa6record\xa7Unknown"}, f"{end + 16}-0")
    with pytest.raises(StreamCorrupt, match=f"no known record at {end}"):
        there(streams)
    admin.xadd(key(tmp_path, "stream"), {"what": b"ever"}, f"{end + 17}-0")
    with pytest.raises(StreamCorrupt, match=f"holds no record at {end + 17}-0"):
        writer.last()


def test_keep_bytes_bounds_a_stream_except_what_is_protected_and_events(redis_url, tmp_path):
    size, keep = len(encode(event(10))), 50 * len(encode(event(10)))
    streams = RedisStreams(redis_url, tmp_path.name, keep_bytes=keep)
    rows, books, reader = streams.writer("rows"), streams.writer("actor_events"), streams.reader("rows")
    rows.protect(0)
    for number in range(200):
        rows.append(event(number))
        books.append(event(number))
    assert there(streams, "rows") == there(streams, "actor_events") == list(range(200))
    rows.protect(rows.end)
    rows.append(event(200))
    assert keep <= rows.end - reader.first_offset() < keep + 2 * size
    tiny = RedisStreams(redis_url, tmp_path.name, keep_bytes=1).writer("eval_rollouts")
    tiny.append(event(0))
    tiny.append(event(1))
    assert tiny.last() == event(1)


# --- the server of a run ----------------------------------------------------------------------


def test_the_password_is_not_seen_by_others(server, tmp_path, monkeypatch):
    told, program = tmp_path / "arguments", tmp_path / "bin" / "redis-server"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {told}\nexec {shutil.which("redis-server")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    with server:
        assert told.read_text() == "-\n"
        file = tmp_path / "redis" / "url"
        assert file.read_text() == server.url and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not file.exists()


def test_one_server_at_a_time_runs_over_the_data_and_they_outlive_it(server, tmp_path):
    with served(tmp_path / "redis") as url:
        RedisStreams(url, "run").writer("events").append(event(0))
        with pytest.raises(StreamBusy, match="a Redis server runs over"):
            server.__enter__()
        with served(tmp_path / "redis") as same:
            assert same == url
    with server:
        assert there(RedisStreams(server.url, "run")) == [0]
    with pytest.raises(StreamError, match="no answer"):
        Connection(server.url, "test").ping(within_s=0)


def test_a_run_that_has_ended_is_shown_and_its_server_is_gone_again(tmp_path, monkeypatch):
    monkeypatch.delenv(REDIS_VARIABLE, raising=False)
    config = compose_config(["streams=redis"])
    place = place_streams(config, tmp_path)
    config = config.model_copy(update={"streams": place.options})
    save_config(config, tmp_path / "config.yaml")
    with place.server:
        open_streams(config, tmp_path, place.url).writer("actor_events").append(event(7))
    command = [sys.executable, "-m", "pipelinerl.streams", "show", str(tmp_path), "actor_events"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "group_id=7" in done.stdout, done.stderr
    with place.server:  # refused while another runs over the data
        pass


def test_a_server_that_cannot_start_says_why(server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", redis.connection.parse_url(server.url)["port"]))
        with pytest.raises(StreamError, match="redis-server did not start; see .*log"):
            server.__enter__()


# --- the configuration ------------------------------------------------------------------------


def refused(capsys, *overrides: str) -> str:
    assert (
        launch.main(["inference=scripted", "trainer=scripted", "streams=redis", "plan=true", *overrides]) == 2
    )
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_without_redis_server_on_the_path_a_run_is_refused_and_a_plan_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    says = "there is no redis-server on the PATH; install it"
    assert says in refused(capsys, "plan=false", f"run_dir={tmp_path}/run")
    assert launch.main(["inference=scripted", "trainer=scripted", "streams=redis", "plan=true"]) == 0
    assert f"not here: streams=redis: {says}" in capsys.readouterr().out


def test_a_wrong_password_is_one_line_before_anything_starts(capsys, redis_url, tmp_path):
    port = redis.connection.parse_url(redis_url)["port"]
    line = refused(capsys, f"streams.url='redis://:wr0ng@127.0.0.1:{port}/0'", f"run_dir={tmp_path}/run")
    assert f"redis://127.0.0.1:{port}/0 refuses the user or password" in line and REDIS_VARIABLE in line
    assert "wr0ng" not in line and not (tmp_path / "run").exists()


def test_a_password_reaches_the_jobs_by_their_environment_alone(redis_url, tmp_path):
    config = compose_config(["inference=scripted", "streams=redis", f"streams.url='{redis_url}'"])
    place = place_streams(config, tmp_path)
    password = redis.connection.parse_url(redis_url)["password"]
    save_config(config.model_copy(update={"streams": place.options}), tmp_path / "config.yaml")
    assert password not in (tmp_path / "config.yaml").read_text()
    jobs = plan_jobs(config, tmp_path, "token", place.url)
    assert not any(password in word for job in jobs for word in job.command)
    told = {job.role for job in jobs if job.environment.get(REDIS_VARIABLE) == redis_url}
    assert told == {"actor", "preprocessor", "trainer"}


def test_a_users_server_is_found_again_by_the_environment(redis_url, tmp_path, monkeypatch):
    monkeypatch.setenv(REDIS_VARIABLE, redis_url)
    config = compose_config(["streams=redis"])
    place = place_streams(config, tmp_path)
    assert place.url == redis_url and place.server is None
    begun = config.model_copy(update={"resume": True, "streams": place.options})
    save_config(begun, tmp_path / "config.yaml")
    with pytest.raises(StreamError, match=f"has no streams of {place.options.run}"):
        place_streams(begun, tmp_path)
    open_streams(begun, tmp_path).writer("events").append(event(0))
    with recorded_streams(tmp_path) as streams:
        assert there(streams) == [0]
    assert place_streams(begun, tmp_path) == place


def test_a_run_with_a_server_of_its_own_keeps_it_whatever_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.delenv(REDIS_VARIABLE, raising=False)
    config = compose_config(["streams=redis"])
    begun = config.model_copy(update={"resume": True, "streams": place_streams(config, tmp_path).options})
    monkeypatch.setenv(REDIS_VARIABLE, "redis://127.0.0.1:1/0")
    assert place_streams(begun, tmp_path).server is not None
