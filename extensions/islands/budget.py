"""Computes the cost of rounds on a link.

    python -m extensions.islands.budget \\
        --parameters 10e9 --islands 4 --megabit 4000 --every 100 --step-s 24

An island sends 2 (N - 1) / N coded vectors per round. The code `blocks` takes 1 + 4 / 256 bytes per element.
"""

import math

from contracts.support.command_line import command_parser
from extensions.islands.quantise import BLOCK, FLOAT32

CODED = 1 + FLOAT32 / BLOCK  # bytes per element
CODING_S = 22e-9  # seconds per element, on one thread


def sent(parameters: float, islands: int, element_bytes: float) -> float:
    """Returns the bytes that an island sends in one sum over all islands."""
    return 2 * (islands - 1) / islands * parameters * element_bytes


def lines(parameters: float, islands: int, megabit: float, every: int, step_s: float) -> list[str]:
    """Returns the cost of a round as lines of text. megabit: Mbit/s of the slowest link."""
    coded = sent(parameters, islands, CODED)
    synchronous = every * sent(parameters, islands, FLOAT32)
    transfer_s = coded * 8 / (megabit * 1e6)
    coding_s = parameters * CODING_S
    of_round = every * step_s
    return [
        f"bytes that an island sends a round: {coded:.4g}",
        f"with float32 after every update: {synchronous:.4g}, {synchronous / coded:.0f} times as many",
        f"transfer of a round: {transfer_s:.4g} s at {megabit:g} Mbit/s",
        f"coding, on one thread, of which most runs during the transfer: {coding_s:.4g} s",
        f"updates of a round: {of_round:.4g} s",
        f"share of time for the transfer: {transfer_s / (transfer_s + of_round):.2%}; "
        f"with all coding: {(transfer_s + coding_s) / (transfer_s + coding_s + of_round):.2%}",
    ]


def main() -> None:
    parser = command_parser("extensions.islands.budget", __doc__)
    parser.add_argument("--parameters", type=float, required=True, help="number of trained elements")
    parser.add_argument("--islands", type=int, required=True)
    parser.add_argument("--megabit", type=float, required=True, help="Mbit/s of the slowest link")
    parser.add_argument("--every", type=int, required=True, help="updates between rounds")
    parser.add_argument("--step-s", type=float, required=True, help="seconds per update")
    args = parser.parse_args()
    numbers = (args.parameters, args.megabit, args.every, args.step_s)
    if args.islands < 2 or not all(0 < number < math.inf for number in numbers):
        parser.error("two islands at least, and finite numbers above 0")
    print("\n".join(lines(args.parameters, args.islands, args.megabit, args.every, args.step_s)))


if __name__ == "__main__":
    main()
