"""The acceptance tables of the weight transports.

    python -m benchmarks.weight_transports [--only tree,deltas] [--rounds 3]

`tree`: 16 MiB to 8 servers through 4 relays, every uplink 8 MiB a second. `deltas`: their size by the
learning rate. `staging`: for how long a publication blocks the trainer. `memory`: what a puller needs.
`runs`: the demo with each transport, two minutes each.
"""

from collections.abc import Callable, Iterator

from benchmarks.arguments import names_of, positive_int
from benchmarks.weight_transports import deltas, memory, runs, staging, tree
from contracts.support.command_line import command_parser

TABLES: dict[str, Callable[[int], Iterator[str]]] = {
    "tree": tree.rows,
    "deltas": lambda rounds: deltas.rows(),
    "staging": staging.rows,
    "memory": lambda rounds: memory.rows(),
    "runs": runs.rows,
}


def main() -> None:
    parser = command_parser("benchmarks.weight_transports", __doc__)
    parser.add_argument("--only", type=names_of(TABLES), default=list(TABLES))
    parser.add_argument("--rounds", type=positive_int, default=3, help="of tree, staging and runs")
    options = parser.parse_args()
    for name in options.only:
        for row in TABLES[name](options.rounds):
            print(row, flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
