"""The exchange of two islands over a slow link: bytes and seconds, by code. It needs root, ip and tc.

    python -m benchmarks.islands.link [--elements 888000] [--megabit 100] [--rounds 5]

Each island is a process in a network namespace of its own. Bytes are those that left the interface. The last
column is how many times more bytes float32 after each of 100 updates would take.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

import torch

from contracts.support.command_line import command_parser
from contracts.weights import listening_store
from pipelinerl.paths import ROOT
from trainer_adapters.islands.links import linked
from trainer_adapters.islands.quantise import QUANTISERS
from trainer_adapters.islands.ring import Partition, Ring

ISLANDS = 2
EVERY = 100
PORT = 29600
WITHIN_S = 120
HEAD = (
    "| code | bytes sent a round | of these, payload | seconds a round: median | times fewer at every=100 |\n"
    "|---|---|---|---|---|"
)


def address(rank: int) -> str:
    return f"10.255.77.{rank + 1}"


def name(rank: int) -> str:
    return f"island{rank}"


@contextlib.contextmanager
def two_namespaces(megabit: float) -> Iterator[None]:
    """Makes two network namespaces for the block, with a link between them of so many Mbit/s each way."""
    limit = ["rate", f"{megabit}mbit", "burst", "64kb", "latency", "400ms"]
    try:
        for rank in range(ISLANDS):
            ip("netns", "add", name(rank))
        first, second = ["link0", "netns", name(0)], ["link1", "netns", name(1)]
        ip("link", "add", *first, "type", "veth", "peer", "name", *second)
        for rank in range(ISLANDS):
            ip("-n", name(rank), "addr", "add", f"{address(rank)}/24", "dev", f"link{rank}")
            for device in ("lo", f"link{rank}"):
                ip("-n", name(rank), "link", "set", device, "up")
            shaped = ["qdisc", "add", "dev", f"link{rank}", "root", "tbf", *limit]
            subprocess.run(["tc", "-n", name(rank), *shaped], check=True)
        yield
    finally:
        for rank in range(ISLANDS):
            subprocess.run(["ip", "netns", "del", name(rank)], check=False)


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def sent_bytes(rank: int) -> int:
    (found,) = json.loads(ip("-n", name(rank), "-json", "-s", "link", "show", f"link{rank}"))
    return found["stats64"]["tx"]["bytes"]


def measured(code: str, options: argparse.Namespace) -> str:
    """Returns a row of the table."""
    before = sent_bytes(0)
    command = [sys.executable, "-m", "benchmarks.islands.link", "--code", code]
    command += ["--elements", str(options.elements), "--rounds", str(options.rounds)]
    members = [
        subprocess.Popen(
            ["ip", "netns", "exec", name(rank), *command, "--member", str(rank)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ISLANDS)
    ]
    (first, _) = [json.loads(member.communicate(timeout=WITHIN_S)[0]) for member in members]
    on_wire = (sent_bytes(0) - before) / options.rounds
    synchronous = EVERY * 2 * (ISLANDS - 1) / ISLANDS * 4 * options.elements
    payload = first["sent"] / options.rounds
    fewer = synchronous / payload
    return f"| `{code}` | {on_wire:,.0f} | {payload:,.0f} | {first['seconds']:.3f} | {fewer:.1f} |"


def member(rank: int, options: argparse.Namespace) -> None:
    """Makes the exchanges of one island, and prints what they took."""
    store = listening_store(address(0), PORT, WITHIN_S) if rank == 0 else None
    group = linked(address(rank), f"{address(0)}:{PORT}", options.code, (rank, ISLANDS), WITHIN_S)
    values = torch.randn(options.elements, generator=torch.Generator().manual_seed(rank))
    partition = Partition(options.elements, ISLANDS)
    seconds = []
    ring = Ring(group, rank, ISLANDS)
    for _ in range(options.rounds):
        ring.gather(b"begin")
        began = time.perf_counter()
        ring.sum(lambda begin, end: values[begin:end].clone(), partition, QUANTISERS[options.code])
        seconds.append(time.perf_counter() - began)
    ring.gather(b"ended")
    print(json.dumps({"sent": ring.sent, "seconds": median(seconds)}), flush=True)
    del store


def main() -> None:
    parser = command_parser("benchmarks.islands.link", __doc__)
    parser.add_argument("--elements", type=int, default=888_000)
    parser.add_argument("--megabit", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--member", type=int, help="for the command itself: be one of the islands")
    parser.add_argument("--code", choices=QUANTISERS, help="of that island")
    options = parser.parse_args()
    if options.member is not None:
        return member(options.member, options)
    print(HEAD)
    with two_namespaces(options.megabit):
        for code in QUANTISERS:
            print(measured(code, options), flush=True)


if __name__ == "__main__":
    main()
