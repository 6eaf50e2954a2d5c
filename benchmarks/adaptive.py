"""Shows to how many requests `inference.concurrency=null` settles, on emulated servers.

python -m benchmarks.adaptive [--each 0.0003,0.00005] [--seconds 300] [--out runs/adaptive] [key=value ...]

Each run is a real one, whose server and trainer sleep instead of computing (benchmarks/emulated). A token
takes the server 10 ms, and the seconds of `--each` more for each request in flight. One more request is worth
half of the average where both parts are equal: there the limit should settle. The trainer takes next to no
time, and no lag is too large, so that requests are never missing. The table is in docs/benchmarks.md.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from benchmarks.arguments import composed, new_directory, positive_seconds
from benchmarks.schedules import EMULATED, launch
from contracts.support.command_line import command_parser
from pipelinerl.clients.adaptive_limit import MOST
from pipelinerl.spans import spans_path

TOKEN_S = 0.01  # as in EMULATED
MEAN_TOKENS = 200
BATCH = 64
SETTINGS = (
    *EMULATED,
    "++inference.arguments.sigma=1",
    f"++inference.arguments.mean-tokens={MEAN_TOKENS}",
    f"sampling.max_tokens={10 * MEAN_TOKENS}",
    f"packing.micro_batch_tokens={11 * MEAN_TOKENS}",
    f"batch_size={BATCH}",
    "+trainer.token_s=0.000001",
    "inference.concurrency=null",
    "max_lag=null",
)
HELD_S = 3  # seconds that a limit must hold; a second in which it changed has a mean of two values
HEAD = ("seconds a token", "worth it up to", "limits, and since which second", "in the second half")

Held = tuple[int, float, float]  # a limit, and the seconds at which it began and ended to hold


def main() -> None:
    parser = command_parser("benchmarks.adaptive", __doc__)
    parser.add_argument("--each", type=costs, default="0.0003,0.00005", help="separated by commas")
    parser.add_argument("--seconds", type=positive_seconds, default=300.0, help="of each run, about")
    parser.add_argument("--out", type=Path, default=Path("runs/adaptive"))
    parser.add_argument("settings", nargs="*", help="for every run")
    options = parser.parse_args()
    composed(parser, [*settings_of(options.each[0], options.seconds), *options.settings])
    out = new_directory(parser, options.out)
    print(f"| {' | '.join(HEAD)} |")
    print(f"|{' --- |' * len(HEAD)}")
    for each in options.each:
        run_dir = out / plain(each)
        launch(*settings_of(each, options.seconds), f"run_dir={run_dir}", *options.settings)
        print(f"| {' | '.join(row(each, list(limits_of(run_dir))))} |", flush=True)


def costs(text: str) -> list[float]:
    """Parses seconds that are separated by commas."""
    return [positive_cost(part) for part in text.split(",")]


def positive_cost(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be seconds above 0, not {text!r}")
    return seconds


def settings_of(each: float, seconds: float) -> list[str]:
    """Returns the settings of a run that takes about `seconds` at the best limit."""
    best = worth_it_up_to(each)
    tokens_per_s = best / (TOKEN_S + each * best)
    steps = math.ceil(seconds * tokens_per_s / (BATCH * MEAN_TOKENS))
    return [*SETTINGS, f"++inference.arguments.token-each-s={plain(each)}", f"max_steps={steps}"]


def worth_it_up_to(each: float) -> float:
    """Returns the number of requests at which another one adds half of the average throughput per request."""
    return min(TOKEN_S / each, MOST)


def limits_of(run_dir: Path) -> Iterator[Held]:
    """Yields the limits of the only server of a run, one after the other."""
    lines = map(json.loads, spans_path(run_dir, "actor").read_text().splitlines())
    return held((line["t"], line["capacity"]) for line in lines if line["n"] == "places")


def held(capacities: Iterable[tuple[float, float]]) -> Iterator[Held]:
    """Yields each capacity that held for a while, from pairs of a time and a mean over about a second."""
    first = None
    for capacity, same in groupby(capacities, key=lambda pair: pair[1]):
        times = [moment for moment, _ in same]
        first = times[0] if first is None else first
        if len(times) >= HELD_S:
            yield round(capacity), times[0] - first, times[-1] - first


def plain(seconds: float) -> str:
    """Returns the number as text without an exponent."""
    return f"{seconds:.9f}".rstrip("0")


def row(each: float, limits: list[Held]) -> list[str]:
    if not limits:
        return [f"{TOKEN_S:g} + {plain(each)} a request", f"{worth_it_up_to(each):.0f}", "none held", ""]
    half = limits[-1][2] / 2
    late: dict[int, float] = {}
    for limit, begin, end in limits:
        late[limit] = late.get(limit, 0.0) + max(0.0, end - max(begin, half))
    shares = {limit: seconds / sum(late.values()) for limit, seconds in late.items() if seconds}
    return [
        f"{TOKEN_S:g} + {plain(each)} a request",
        f"{worth_it_up_to(each):.0f}",
        ", ".join(f"{limit} ({begin:.0f})" for limit, begin, _ in limits),
        ", ".join(f"{limit}: {share:.0%}" for limit, share in sorted(shares.items())),
    ]


if __name__ == "__main__":
    main()
