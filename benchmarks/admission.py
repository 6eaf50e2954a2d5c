"""What admission makes of long answers, in virtual time.

python -m benchmarks.admission [--steps 100] [--seeds 8]

Servers and trainer only count seconds (benchmarks/virtual_run.py): the figures are the same on any machine.
The table is in docs/benchmarks.md.
"""

import argparse
from collections.abc import Iterable
from statistics import fmean

from benchmarks.arguments import positive_int
from benchmarks.emulated.lengths import Lengths
from benchmarks.virtual_run import Devices, Group, VirtualRun

MEAN_TOKENS = 50
MOST_TOKENS = 500
LONG = 3 * MEAN_TOKENS  # tokens from which an answer counts as long
HEAD = (
    "trainer's time / servers'",
    "places",
    "max_lag",
    "lengths",
    "trained tokens/s",
    "trainer idle",
    "lag",
    "stale: short, long",
    "by queueing",
    "tokens an answer: sampled, trained",
)
SLOWER = ((1.7, 16, 4, 1.0), (1.4, 32, 8, 1.0), (1.4, 64, 4, 0.0))
BALANCED = ((1.0, 32, 8, 1.0), (1.0, 32, 4, 1.0), (1.0, 32, 4, 0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=positive_int, default=100)
    parser.add_argument("--seeds", type=positive_int, default=8)
    options = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |")
    print(f"|{' --- |' * len(HEAD)}")
    for slower, places, max_lag, sigma in SLOWER + BALANCED:
        devices = devices_of(slower, places, max_lag)
        runs = [VirtualRun(devices, Lengths(MEAN_TOKENS, sigma, seed)) for seed in range(options.seeds)]
        for run in runs:
            run.run(options.steps)
        what = [f"{slower:g}", f"{places}", f"{max_lag}", "long-tailed" if sigma else "constant"]
        print(f"| {' | '.join([*what, *cells(runs)])} |")


def devices_of(slower: float, places: int, max_lag: int) -> Devices:
    server_token_s = 0.01 + 0.0003 * places
    return Devices(
        places=places,
        server_token_s=server_token_s,
        trainer_token_s=slower * server_token_s / places,
        publish_s=0.15,
        batch_size=32,
        group_size=4,
        max_lag=max_lag,
        most_tokens=MOST_TOKENS,
    )


def cells(runs: list[VirtualRun]) -> list[str]:
    """Returns means over the runs."""
    trained = [group for run in runs for group in run.trained]
    stale = [group for run in runs for group in run.stale]
    tokens = sum(group.tokens for group in trained)
    of_groups = f"{sum(run.stale_by_queueing for run in runs)} of {len(trained) + len(stale)}"
    short, long = (share(stale, trained, lengths) for lengths in (range(LONG), range(LONG, MOST_TOKENS + 1)))
    return [
        f"{tokens / sum(run.seconds for run in runs):.0f}",
        f"{fmean(run.idle_s / run.seconds for run in runs):.1%}",
        f"{sum(run.lag_tokens for run in runs) / tokens:.2f}",
        f"{short:.1%}, {long:.1%}",
        of_groups,
        f"{mean_length(trained + stale):.1f}, {mean_length(trained):.1f}",
    ]


def share(stale: Iterable[Group], trained: Iterable[Group], lengths: range) -> float:
    """Returns the share of stale groups among those whose longest answer has one of these lengths."""
    dropped, kept = (sum(max(group.lengths) in lengths for group in groups) for groups in (stale, trained))
    return dropped / (dropped + kept) if dropped + kept else 0.0


def mean_length(groups: list[Group]) -> float:
    return fmean(length for group in groups for length in group.lengths)


if __name__ == "__main__":
    main()
