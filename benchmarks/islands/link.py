"""The exchange of two islands over a slow link: bytes and seconds, by code. It needs root, ip and tc.

    python -m benchmarks.islands.link [--elements 888000] [--megabit 100] [--rounds 5]

Each island is a process in a network namespace of its own. Bytes are those that left the interface. The last
column is how many times more bytes float32 after each of 100 updates would take.
"""

import argparse
import json
import subprocess
import sys
import time
from statistics import median

import torch

from benchmarks.islands.network import Network, address
from contracts.support.command_line import command_parser
from contracts.weights import listening_store
from extensions.islands.links import linked
from extensions.islands.quantise import QUANTISERS
from extensions.islands.ring import Partition, Ring
from pipelinerl.paths import ROOT

ISLANDS = 2
EVERY = 100
PORT = 29600
WITHIN_S = 120
HEAD = (
    "| code | bytes sent a round | of these, payload | seconds a round: median | times fewer at every=100 |\n"
    "|---|---|---|---|---|"
)


def measured(code: str, network: Network, options: argparse.Namespace) -> str:
    """Returns a row of the table."""
    before = network.sent_bytes(0)
    command = [sys.executable, "-m", "benchmarks.islands.link", "--code", code]
    command += ["--elements", str(options.elements), "--rounds", str(options.rounds)]
    members = [
        subprocess.Popen(
            [*network.inside(rank), *command, "--member", str(rank)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ISLANDS)
    ]
    (first, _) = [json.loads(member.communicate(timeout=WITHIN_S)[0]) for member in members]
    on_wire = (network.sent_bytes(0) - before) / options.rounds
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
    ring = Ring(group, rank, ISLANDS, WITHIN_S)
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
    network = Network(ISLANDS, options.megabit)
    try:
        for code in QUANTISERS:
            print(measured(code, network, options), flush=True)
    finally:
        network.close()


if __name__ == "__main__":
    main()
