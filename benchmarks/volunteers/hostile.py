"""Sends malformed requests and slow connections to a gateway while an honest volunteer works.

    python -m benchmarks.volunteers.hostile --out DIR

It prints the answers by status, the gateway's memory, the latency of `/health` at the contract's port, and
the volunteer's completions a second before and beside the attack.
"""

import http.client
import random
import signal
import socket
import sqlite3
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

from benchmarks.run_processes import jobs_of
from benchmarks.volunteers.machines import Certificate, NginxRelays, ended, joined, started, wait_for
from contracts.support.command_line import command_parser

ATTACKER = "127.0.0.2"  # another address of the loopback
MALFORMED = 10_000
SLOW = 500
MEASURED_S = 30.0
ROUTES = (("POST", "/v1/tasks"), ("PUT", f"/v1/tasks/{'0' * 32}"), ("POST", "/v1/me"), ("GET", "/x"))
BODIES = (b"{}", b"[" * 1400, b'{"payload": "e30=", "payloadType": "x", "signatures": []}', b"\xff", b"null")


def main() -> None:
    parser = command_parser("benchmarks.volunteers.hostile", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the run; it must not exist")
    out = parser.parse_args().out
    out.mkdir(parents=True)
    certificate = Certificate(out)
    with NginxRelays(out, certificate, 1) as relays:
        launch = started(out, certificate, relays, 100_000, False, "stop_at=null", tls=False)
        wait_for(out / "state" / "gateway.json", launch, 120.0)
        volunteer = joined(out, certificate, "honest")
        try:
            until(lambda: completions(out) > 500)
            measure(out)
        finally:
            ended(volunteer)
            launch.send_signal(signal.SIGINT)
            launch.wait()


def measure(out: Path) -> None:
    process = psutil.Process(jobs_of(out / "run")["server-0"])
    port = int(out.joinpath("state", "gateway.json").read_text().split('"port": ')[1].split(",")[0])
    before = rate(out)
    memory = process.memory_info().rss
    statuses: Counter[int] = Counter()
    stop = threading.Event()
    attack = [threading.Thread(target=flood, args=(port, statuses, stop)) for _ in range(4)]
    attack.append(threading.Thread(target=hold, args=(port, stop)))
    latencies: list[float] = []
    watch = threading.Thread(target=ask_health, args=(process, latencies, stop))
    for thread in [*attack, watch]:
        thread.start()
    beside = rate(out)
    until(lambda: statuses.total() >= MALFORMED)
    stop.set()
    for thread in [*attack, watch]:
        thread.join()
    print("answers to malformed requests:", dict(sorted(statuses.items())))
    print(f"memory: {memory / 2**20:.0f} MiB before, {process.memory_info().rss / 2**20:.0f} MiB after")
    p50, p99, most = 1e3 * np.quantile(latencies, [0.5, 0.99, 1.0])
    print(f"/health of the contract's port: p50 {p50:.0f} ms, p99 {p99:.0f} ms, at most {most:.0f} ms")
    print(f"completions a second: {before:.0f} before, {beside:.0f} beside: {beside / before:.0%}")


def completions(out: Path) -> int:
    with sqlite3.connect(out / "state" / "volunteers.db") as connection:
        return connection.execute("SELECT coalesce(sum(completions), 0) FROM volunteers").fetchone()[0]


def rate(out: Path) -> float:
    """Returns the accepted completions a second, over a while."""
    began = completions(out)
    time.sleep(MEASURED_S)
    return (completions(out) - began) / MEASURED_S


def flood(port: int, statuses: Counter[int], stop: threading.Event) -> None:
    source = random.Random()
    while not stop.is_set():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(ATTACKER, 0))
        try:
            for _ in range(20):
                method, path = source.choice(ROUTES)
                connection.request(method, path, source.choice(BODIES))
                answer = connection.getresponse()
                answer.read()
                statuses[answer.status] += 1
                time.sleep(0.01)  # as one machine does that has other work
        except (OSError, http.client.HTTPException):
            statuses[0] += 1
        finally:
            connection.close()


def hold(port: int, stop: threading.Event) -> None:
    """Opens connections of several addresses that send one byte a second."""
    sockets = []
    for number in range(SLOW):
        each = socket.socket()
        each.bind((f"127.0.1.{number % 20 + 1}", 0))
        each.connect(("127.0.0.1", port))
        sockets.append(each)
    while not stop.wait(1.0):
        for each in sockets:
            try:
                each.send(b"P")
            except OSError:
                continue
    for each in sockets:
        each.close()


def ask_health(process: psutil.Process, latencies: list[float], stop: threading.Event) -> None:
    command = process.cmdline()
    url = f"http://127.0.0.1:{command[command.index('--port') + 1]}/health"
    while not stop.wait(0.1):
        began = time.monotonic()
        with urllib.request.urlopen(url, timeout=30) as answer:
            answer.read()
        latencies.append(time.monotonic() - began)


def until(reached: Callable[[], bool]) -> None:
    while not reached():
        time.sleep(0.2)


if __name__ == "__main__":
    main()
